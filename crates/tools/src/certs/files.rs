//! Writes a set of files, all or none: each file is complete and has mode 0600 before it gets its name. Existing files
//! stay, unless `--force` replaces them: the new file inherits owner and mode, and a failure restores the old one.
//!
//! With `--force`, a symbolic link is followed and stays one, as for a certificate that lives in another directory. A link
//! that another user could have placed is refused: see [`resolve`].

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use portcullis_system::input_file::{self, ReadFileError};
use portcullis_system::platform::{self, OwnerError};
use secrecy::zeroize::Zeroizing;
use tempfile::{Builder, NamedTempFile};

use super::link::{LinkError, resolve};

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// A file of that name exists.
    #[error("{}: the file already exists; choose another name, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// The name that stands for standard output elsewhere.
    #[error("-: this command writes a file; give its name, or ./- for a file of this name")]
    StandardOutput,
    /// The path leads through a link that must not be followed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The file that is to be replaced cannot be kept for a failure.
    #[error("{}: it {problem}, and is not replaced; choose another name, or remove it first", path.display())]
    NotReplaceable {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: ReadFileError,
    },
    /// The same name was given for two files.
    #[error("{}: two outputs have this name; choose another name for one of them", .0.display())]
    Twice(PathBuf),
    /// The directory is missing.
    #[error("{}: the directory {} does not exist; create it first", path.display(), directory.display())]
    NoDirectory {
        /// The file.
        path: PathBuf,
        /// The missing directory.
        directory: PathBuf,
    },
    /// The directory is not writable.
    #[error("cannot create a file in {}: {source}", directory.display())]
    NotWritable {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file that is to be replaced belongs to another user.
    #[error(
        "{}: it belongs to the user {owner}, and the new file cannot be given that owner ({source}); run this as that \
         user, or remove the file first",
        path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// The uid of the owner.
        owner: u32,
        /// The system's error.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl Fn(io::Error) -> FileError + use<> {
    let path = path.to_owned();
    move |source| FileError::Io { path: path.clone(), source }
}

/// Files staged in memory. Dropped or killed before [`commit`](Self::commit), it leaves nothing on disk. During
/// `commit` a new file is unnamed until it gets its final name, except by [`NewFile::name`] with `force` and for
/// [`NewFile::Named`].
#[derive(Debug)]
pub(crate) struct NewFiles {
    force: bool,
    staged: Vec<StagedFile>,
}

struct StagedFile {
    path: PathBuf,
    content: Zeroizing<Vec<u8>>,
    /// The mode bits that a replacement inherits from the old file.
    shared: u32,
    /// Whether an existing file is replaced.
    force: bool,
}

impl fmt::Debug for StagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

/// A replaced secret stays readable for its group.
const SECRET_MODE_MASK: u32 = 0o640;
/// A replaced public file keeps all its read permissions.
const PUBLIC_MODE_MASK: u32 = 0o644;

// threat: left-behind-key
impl NewFiles {
    /// With `force`, existing files are replaced.
    pub(crate) fn new(force: bool) -> Self {
        Self { force, staged: Vec::new() }
    }

    /// Stages content that may contain a key. Fails early if the file exists or the directory is not writable.
    pub(crate) fn stage(&mut self, path: &Path, content: &[u8]) -> Result<(), FileError> {
        self.add(path, content, SECRET_MODE_MASK, self.force)
    }

    /// The same for a file that must not exist, also with `force`.
    pub(crate) fn stage_new(&mut self, path: &Path, content: &[u8]) -> Result<(), FileError> {
        self.add(path, content, SECRET_MODE_MASK, false)
    }

    /// Stages content without a key: a replaced certificate stays readable for the servers that use it.
    pub(crate) fn stage_public(&mut self, path: &Path, content: &[u8]) -> Result<(), FileError> {
        self.add(path, content, PUBLIC_MODE_MASK, self.force)
    }

    fn add(&mut self, path: &Path, content: &[u8], shared: u32, force: bool) -> Result<(), FileError> {
        if self.staged.iter().any(|known| known.path == path) {
            return Err(FileError::Twice(path.to_owned()));
        }
        must_be_free(path, force)?;
        NewFile::create(&destination(path, force)?).map(drop)?;
        let content = Zeroizing::new(content.to_vec());
        self.staged.push(StagedFile { path: path.to_owned(), content, shared, force });
        Ok(())
    }

    /// Writes all files, then gives each its name. If one fails, restores those before it.
    pub(crate) fn commit(self) -> Result<CommittedFiles, FileError> {
        let mut written = Vec::new();
        for staged in &self.staged {
            written.push(WrittenFile::of(staged)?);
        }
        let mut done: Vec<PlacedFile> = Vec::new();
        for file in written {
            match file.place() {
                Ok(placed) => done.push(placed),
                Err(error) => {
                    CommittedFiles(done).undo();
                    return Err(error);
                }
            }
        }
        for PlacedFile { path, .. } in &done {
            let directory = directory_of(path);
            platform::sync_directory(directory).map_err(at(directory))?;
        }
        Ok(CommittedFiles(done))
    }
}

/// Committed files, which [`undo`](Self::undo) can still remove. Dropping it keeps them.
#[derive(Debug)]
pub(crate) struct CommittedFiles(Vec<PlacedFile>);

impl CommittedFiles {
    /// Restores the state before the commit.
    pub(super) fn undo(self) {
        self.0.into_iter().rev().for_each(PlacedFile::undo);
    }
}

/// A committed file, and the file that it replaced.
#[derive(Debug)]
struct PlacedFile {
    path: PathBuf,
    before: Option<ReplacedFile>,
}

/// A replaced file. Its content is kept in memory: a copy on disk would outlive a killed command.
struct ReplacedFile {
    content: Zeroizing<Vec<u8>>,
    metadata: Metadata,
}

impl fmt::Debug for ReplacedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.metadata.permissions().fmt(f)
    }
}

impl ReplacedFile {
    /// Reads the file before it is replaced.
    fn read(path: &Path) -> Result<Option<Self>, FileError> {
        let metadata = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(at(path))?,
        };
        let content = input_file::read(path).map_err(|problem| match problem {
            ReadFileError::Io(source) => at(path)(source),
            problem => FileError::NotReplaceable { path: path.to_owned(), problem },
        })?;
        Ok(Some(Self { content: Zeroizing::new(content), metadata }))
    }
}

impl PlacedFile {
    fn undo(self) {
        // Best effort: the caller already reports the error that led here.
        match self.before {
            Some(ReplacedFile { content, metadata }) => {
                let restored = NewFile::written(&self.path, &content, Some((&metadata, 0o777)));
                drop(restored.map(|file| file.name(&self.path, true)));
            }
            None => drop(fs::remove_file(&self.path)),
        }
    }
}

/// Replaces a record by what is kept of it, or creates it. Unlike [`NewFiles`], keeps no copy of the old one in memory: records may
/// be larger than the files that [`input_file`] reads. Complete before it gets its name.
pub(super) fn replace_record(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let path = resolve(path)?;
    let metadata = match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        metadata => Some(metadata.map_err(at(&path))?),
    };
    let replaced = metadata.as_ref().map(|metadata| (metadata, SECRET_MODE_MASK));
    NewFile::written(&path, content, replaced)?.name(&path, true).map_err(at(&path))?;
    let directory = directory_of(&path);
    platform::sync_directory(directory).map_err(at(directory))
}

/// Writes a file by `write`, whose content may be larger than memory. Complete before it gets its name.
pub(crate) fn write_streamed(
    path: &Path,
    force: bool,
    write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
) -> Result<(), FileError> {
    must_be_free(path, force)?;
    let path = destination(path, force)?;
    let metadata = match fs::symlink_metadata(&path) {
        Ok(metadata) if force => Some(metadata),
        _ => None,
    };
    let replaced = metadata.as_ref().map(|metadata| (metadata, SECRET_MODE_MASK));
    let file = NewFile::filled(&path, replaced, |file| {
        let mut buffered = io::BufWriter::new(file);
        write(&mut buffered)?;
        buffered.flush()
    })?;
    file.name(&path, force).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists if !force => FileError::Exists(path.clone()),
        _ => at(&path)(error),
    })?;
    let directory = directory_of(&path);
    platform::sync_directory(directory).map_err(at(directory))
}

/// A file with its content, before it gets its name.
struct WrittenFile {
    path: PathBuf,
    file: NewFile,
    before: Option<ReplacedFile>,
    force: bool,
}

impl WrittenFile {
    fn of(staged: &StagedFile) -> Result<Self, FileError> {
        let force = staged.force;
        let path = destination(&staged.path, force)?;
        let before = if force { ReplacedFile::read(&path)? } else { None };
        let replaced = before.as_ref().map(|ReplacedFile { metadata, .. }| (metadata, staged.shared));
        let file = NewFile::written(&path, &staged.content, replaced)?;
        Ok(Self { path, file, before, force })
    }

    fn place(self) -> Result<PlacedFile, FileError> {
        let Self { path, file, before, force } = self;
        match file.name(&path, force) {
            Ok(()) => Ok(PlacedFile { path, before }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !force => {
                Err(FileError::Exists(path))
            }
            Err(error) => Err(at(&path)(error)),
        }
    }
}

/// A file created with mode 0600.
enum NewFile {
    /// Without a name (`O_TMPFILE`): removed when the process ends.
    #[cfg(target_os = "linux")]
    Unnamed(File),
    /// On file systems without `O_TMPFILE`: `.portcullis-…`, which stays if the process is killed.
    Named(NamedTempFile),
}

impl NewFile {
    /// Creates it in the directory of `path`.
    fn create(path: &Path) -> Result<Self, FileError> {
        let directory = directory_of(path);
        Self::create_in(directory).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound if !directory.is_dir() => {
                FileError::NoDirectory { path: path.to_owned(), directory: directory.to_owned() }
            }
            _ => FileError::NotWritable { directory: directory.to_owned(), source },
        })
    }

    fn create_in(directory: &Path) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{Mode, OFlags};
            let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
            if let Ok(file) = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
                return Ok(Self::Unnamed(file.into()));
            }
        }
        Builder::new().prefix(".portcullis-").tempfile_in(directory).map(Self::Named)
    }

    /// Creates it with its content, and the owner and shared mode bits of the file that it replaces.
    fn written(path: &Path, content: &[u8], replaced: Option<(&Metadata, u32)>) -> Result<Self, FileError> {
        Self::filled(path, replaced, |file| file.write_all(content))
    }

    /// The same with a content that `write` writes.
    fn filled(
        path: &Path,
        replaced: Option<(&Metadata, u32)>,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<Self, FileError> {
        let mut file = Self::create(path)?;
        let opened = file.as_file();
        if let Some((metadata, shared)) = replaced {
            platform::inherit_access(opened, metadata, shared).map_err(|OwnerError { owner, source }| {
                FileError::Owner { path: path.to_owned(), owner, source }
            })?;
        }
        write(opened).and_then(|()| opened.sync_all()).map_err(at(path))?;
        Ok(file)
    }

    fn as_file(&mut self) -> &mut File {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unnamed(file) => file,
            Self::Named(file) => file.as_file_mut(),
        }
    }

    /// Gives the file its name; with `force`, replaces an existing file. linkat(2) never replaces a file, so with
    /// `force` the new one is `.portcullis-…` for an instant, and stays so if the process is killed then.
    // Never checks before it renames: a file that appeared in between would be lost.
    fn name(self, path: &Path, force: bool) -> io::Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unnamed(file) => {
                if !force {
                    return link(&file, path);
                }
                let named = Builder::new()
                    .prefix(".portcullis-")
                    .make_in(directory_of(path), |beside| link(&file, beside))?;
                named.into_temp_path().persist(path).map_err(|failed| failed.error)
            }
            Self::Named(file) if force => file.persist(path).map(drop).map_err(|failed| failed.error),
            Self::Named(file) => file.persist_noclobber(path).map(drop).map_err(|failed| failed.error),
        }
    }
}

#[cfg(target_os = "linux")]
fn link(file: &File, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD};
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    Ok(rustix::fs::linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// The path of the file: with `force` the one behind symbolic links. Without, an existing link is an error anyway, and
/// linkat(2) follows none.
fn destination(path: &Path, force: bool) -> Result<PathBuf, FileError> {
    if force { Ok(resolve(path)?) } else { Ok(path.to_owned()) }
}

/// Fails if the file exists and `force` is not given, or if it cannot be replaced.
pub(super) fn must_be_free(path: &Path, force: bool) -> Result<(), FileError> {
    if path.as_os_str() == "-" {
        return Err(FileError::StandardOutput);
    }
    let destination = destination(path, force)?;
    match fs::symlink_metadata(&destination) {
        Ok(_) if !force => Err(FileError::Exists(path.to_owned())),
        Ok(found) if !found.is_file() => ReplacedFile::read(&destination).map(drop),
        _ => Ok(()),
    }
}

/// Creates a directory with mode 0700 unless it exists. Returns whether it was created.
pub(super) fn make_directory(path: &Path) -> Result<bool, FileError> {
    if path.is_dir() {
        return Ok(false);
    }
    platform::create_private_directory(path).map_err(at(path))?;
    Ok(true)
}

/// The directory of a file.
pub(super) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_open_to_their_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = NewFiles::new(false);
        files.stage(&directory.path().join("a.crt"), b"a").unwrap();
        files.stage(&directory.path().join("a.key"), b"b").unwrap();
        assert!(names(directory.path()).is_empty(), "a command that is killed now leaves nothing");
        files.commit().unwrap();
        assert_eq!(names(directory.path()), ["a.crt", "a.key"]);
        for name in ["a.crt", "a.key"] {
            let mode = fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_kept_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = ["a.crt", "a.key"].map(|name| directory.path().join(name));
        let mut files = NewFiles::new(false);
        files.stage(&first, b"new").unwrap();
        files.stage(&second, b"new").unwrap();
        fs::write(&second, "foreign").unwrap();
        let error = files.commit().unwrap_err();
        assert!(matches!(error, FileError::Exists(path) if path == second));
        assert_eq!(names(directory.path()), ["a.key"]);
        assert_eq!(fs::read_to_string(&second).unwrap(), "foreign");
    }

    #[test]
    fn a_replaced_file_is_restored_if_a_later_file_fails() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = ["a.crt", "a.key"].map(|name| directory.path().join(name));
        fs::write(&first, "old").unwrap();
        let mut files = NewFiles::new(true);
        files.stage(&first, b"new").unwrap();
        files.stage(&second, b"new").unwrap();
        // A directory cannot be replaced by a file.
        fs::create_dir(&second).unwrap();
        files.commit().unwrap_err();
        assert_eq!(fs::read_to_string(&first).unwrap(), "old");
        assert_eq!(names(directory.path()), ["a.crt", "a.key"]);

        fs::remove_dir(&second).unwrap();
        let mut files = NewFiles::new(true);
        files.stage(&first, b"new").unwrap();
        files.stage(&second, b"new").unwrap();
        files.commit().unwrap();
        assert_eq!(fs::read_to_string(&first).unwrap(), "new");
        assert_eq!(names(directory.path()), ["a.crt", "a.key"]);
    }

    #[test]
    fn a_replacement_never_widens_the_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for (name, mode, public, expected) in [
            ("a.crt", 0o644, true, 0o644),
            ("b.crt", 0o755, true, 0o644),
            ("c.crt", 0o400, true, 0o600),
            ("a.key", 0o640, false, 0o640),
            ("b.key", 0o644, false, 0o640),
        ] {
            fs::write(path(name), "old").unwrap();
            fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
            let mut files = NewFiles::new(true);
            let stage = if public { NewFiles::stage_public } else { NewFiles::stage };
            stage(&mut files, &path(name), b"new").unwrap();
            let placed = files.commit().unwrap();
            let found = fs::metadata(path(name)).unwrap();
            assert_eq!((found.permissions().mode() & 0o777, found.len()), (expected, 3), "{name}");
            placed.undo();
            assert_eq!(fs::read_to_string(path(name)).unwrap(), "old", "{name}");
            let restored = fs::metadata(path(name)).unwrap().permissions().mode() & 0o077;
            assert_eq!(restored, mode & 0o077, "{name}");
        }
    }

    #[test]
    fn a_symbolic_link_is_followed_and_stays_one() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("real")).unwrap();
        let (real, link) = (directory.path().join("real/a.crt"), directory.path().join("a.crt"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink("real/a.crt", &link).unwrap();
        let mut files = NewFiles::new(true);
        files.stage_public(&link, b"new").unwrap();
        files.commit().unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("real/a.crt"));
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert_eq!((names(directory.path()).len(), names(&directory.path().join("real")).len()), (2, 1));
    }

    #[test]
    fn a_dangling_link_gets_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("a.crt");
        std::os::unix::fs::symlink("b.crt", &link).unwrap();
        let mut files = NewFiles::new(true);
        files.stage_public(&link, b"new").unwrap();
        files.commit().unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("b.crt"));
        assert_eq!(fs::read_to_string(directory.path().join("b.crt")).unwrap(), "new");
    }

    #[test]
    fn only_regular_files_of_bounded_size_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::RUSR).unwrap();
        fs::create_dir(path("directory")).unwrap();
        std::os::unix::fs::symlink("/dev/null", path("null")).unwrap();
        for (path, text) in [
            (path("fifo"), "it is a FIFO"),
            (path("directory"), "it is a directory"),
            (path("null"), "/dev/null: it is a device"),
            (PathBuf::from("/dev/zero"), "/dev/zero: it is a device"),
            (PathBuf::from("-"), "-: this command writes a file"),
        ] {
            let error = NewFiles::new(true).stage(&path, b"new").unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn obstacles_are_reported_before_anything_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let there = directory.path().join("a");
        fs::write(&there, "").unwrap();
        let mut files = NewFiles::new(false);
        let told = |error: FileError| error.to_string();
        assert!(told(files.stage(&there, b"").unwrap_err()).ends_with("replace it with --force"));
        let lost = directory.path().join("no/such");
        assert!(told(files.stage(&lost, b"").unwrap_err()).contains("does not exist"));
        let fresh = directory.path().join("b");
        files.stage(&fresh, b"").unwrap();
        assert!(told(files.stage(&fresh, b"").unwrap_err()).contains("two outputs"));
        drop(files);
        assert_eq!(names(directory.path()), ["a"]);
    }
}
