//! New files, all of them or none: each is written whole beside its place, readable by its owner alone, and then moved
//! there. What is already there is left alone, unless it is to be replaced; then it comes back if a later file fails.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum FileError {
    /// There is a file of that name.
    #[error("{}: it is there already; choose another name, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// The same name was given for two files.
    #[error("{}: two files would have this name; choose another one for one of them", .0.display())]
    Twice(PathBuf),
    /// The directory is missing.
    #[error("{}: there is no directory {}; make it first", path.display(), directory.display())]
    NoDirectory {
        /// The file.
        path: PathBuf,
        /// Where it should have been.
        directory: PathBuf,
    },
    /// The system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl Fn(io::Error) -> FileError + use<> {
    let path = path.to_owned();
    move |source| FileError::Io { path: path.clone(), source }
}

/// Files that are about to be there. Dropped without [`commit`](Self::commit), it leaves nothing.
#[derive(Debug)]
pub(in crate::cli) struct NewFiles {
    force: bool,
    staged: Vec<(PathBuf, NamedTempFile)>,
}

impl NewFiles {
    /// With `force`, what is there is replaced.
    pub(in crate::cli) fn new(force: bool) -> Self {
        Self { force, staged: Vec::new() }
    }

    /// Writes the content beside its place. An obstacle that can be seen now is told now.
    pub(in crate::cli) fn stage(&mut self, path: &Path, content: &[u8]) -> Result<(), FileError> {
        if self.staged.iter().any(|(known, _)| known == path) {
            return Err(FileError::Twice(path.to_owned()));
        }
        must_be_free(path, self.force)?;
        let directory = directory_of(path);
        // A file of this crate is open to its owner alone (0600) from the first moment.
        let mut file = Builder::new().prefix(".portcullis-").tempfile_in(directory).map_err(|source| {
            match source.kind() {
                io::ErrorKind::NotFound => {
                    FileError::NoDirectory { path: path.to_owned(), directory: directory.to_owned() }
                }
                _ => FileError::Io { path: path.to_owned(), source },
            }
        })?;
        file.write_all(content).and_then(|()| file.as_file().sync_all()).map_err(at(path))?;
        self.staged.push((path.to_owned(), file));
        Ok(())
    }

    /// Moves every file into its place; if one cannot be, those before it are as they were.
    pub(in crate::cli) fn commit(self) -> Result<NewlyPlaced, FileError> {
        let mut done: Vec<Placed> = Vec::new();
        for (path, file) in self.staged {
            match place(&path, file, self.force) {
                Ok(placed) => done.push(placed),
                Err(error) => {
                    NewlyPlaced(done).undo();
                    return Err(error);
                }
            }
        }
        for Placed { path, .. } in &done {
            let directory = directory_of(path);
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(at(directory))?;
        }
        Ok(NewlyPlaced(done))
    }
}

/// Files that are in their places, and could be taken back. Dropped, it leaves them there.
#[derive(Debug)]
pub(in crate::cli) struct NewlyPlaced(Vec<Placed>);

impl NewlyPlaced {
    /// Leaves everything as it was before.
    pub(super) fn undo(self) {
        self.0.into_iter().rev().for_each(Placed::undo);
    }
}

/// A file in its place, and what was there before.
#[derive(Debug)]
struct Placed {
    path: PathBuf,
    before: Option<NamedTempFile<()>>,
}

impl Placed {
    fn undo(self) {
        // There is an error to be told already, and this is the best that can still be done.
        match self.before {
            Some(before) => drop(before.into_temp_path().persist(&self.path)),
            None => drop(fs::remove_file(&self.path)),
        }
    }
}

fn place(path: &Path, file: NamedTempFile, force: bool) -> Result<Placed, FileError> {
    if !force {
        // Not a look and then a move: a file that appeared between the two would be lost.
        return match file.persist_noclobber(path) {
            Ok(_) => Ok(Placed { path: path.to_owned(), before: None }),
            Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => {
                Err(FileError::Exists(path.to_owned()))
            }
            Err(failed) => Err(at(path)(failed.error)),
        };
    }
    // A second name for what is there, which goes away with the value.
    let second_name = Builder::new()
        .prefix(".portcullis-")
        .make_in(directory_of(path), |second| fs::hard_link(path, second));
    let before = match second_name {
        Ok(before) => Some(before),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(at(path)(error)),
    };
    file.persist(path).map_err(|failed| at(path)(failed.error))?;
    Ok(Placed { path: path.to_owned(), before })
}

/// An error if there is something of that name that must stay.
pub(super) fn must_be_free(path: &Path, force: bool) -> Result<(), FileError> {
    if !force && fs::symlink_metadata(path).is_ok() {
        return Err(FileError::Exists(path.to_owned()));
    }
    Ok(())
}

/// Makes a directory that only its owner can enter; one that is there stays as it is. Tells whether it was made.
pub(super) fn make_directory(path: &Path) -> Result<bool, FileError> {
    if path.is_dir() {
        return Ok(false);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at(path))?;
    Ok(true)
}

/// Where a file is.
pub(super) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

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
        assert!(names(directory.path()).iter().all(|name| name.starts_with(".portcullis-")));
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
        fs::write(&second, "somebody else's").unwrap();
        let error = files.commit().unwrap_err();
        assert!(matches!(error, FileError::Exists(path) if path == second));
        assert_eq!(names(directory.path()), ["a.key"]);
        assert_eq!(fs::read_to_string(&second).unwrap(), "somebody else's");
    }

    #[test]
    fn what_was_replaced_comes_back_if_a_later_file_fails() {
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
    fn obstacles_are_told_before_anything_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let there = directory.path().join("a");
        fs::write(&there, "").unwrap();
        let mut files = NewFiles::new(false);
        let told = |error: FileError| error.to_string();
        assert!(told(files.stage(&there, b"").unwrap_err()).ends_with("replace it with --force"));
        let lost = directory.path().join("no/such");
        assert!(told(files.stage(&lost, b"").unwrap_err()).contains("there is no directory"));
        let fresh = directory.path().join("b");
        files.stage(&fresh, b"").unwrap();
        assert!(told(files.stage(&fresh, b"").unwrap_err()).contains("two files"));
        drop(files);
        assert_eq!(names(directory.path()), ["a"]);
    }
}
