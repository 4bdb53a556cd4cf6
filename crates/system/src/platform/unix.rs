//! Files on Unix: each has an owner, and mode bits for the others.

use std::fs::{self, DirBuilder, File, FileType, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    PermissionsExt as _, fchown,
};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::OwnerError;

/// Creates a directory that only the user can enter, and those above it, unless they exist.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// A file that these options create is only for the user.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

/// Opens a file; a new one is only for the user. A symbolic link, FIFO or terminal is not followed, waited for or acquired.
pub fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    private(options).custom_flags(flags.bits().cast_signed()).open(path)
}

/// Opens a file for reading, without waiting for a FIFO and without acquiring a controlling terminal.
pub fn open_input(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Whether the file is a FIFO: a named pipe, or what a shell makes of `<(…)`.
pub fn is_fifo(kind: FileType) -> bool {
    kind.is_fifo()
}

/// The name of a kind that is neither a regular file nor a directory, for errors.
pub fn special_kind(kind: FileType) -> &'static str {
    if is_fifo(kind) {
        "a FIFO (a named pipe, or what a shell makes of <(…))"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// Whether the file belongs to the user.
pub fn is_own(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw()
}

/// Whether the mode lets other users do anything with the file.
pub fn is_open_to_others(metadata: &Metadata) -> bool {
    metadata.mode() & 0o077 != 0
}

/// Whether the mode lets every user do anything with the file or directory, and not only a group.
pub fn is_open_to_all(metadata: &Metadata) -> bool {
    metadata.mode() & 0o007 != 0
}

/// Whether the mode lets other users write to the file or directory.
pub fn is_writable_for_others(metadata: &Metadata) -> bool {
    metadata.mode() & 0o022 != 0
}

/// Leaves the file to the user alone.
pub fn make_private(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o600))
}

/// Gives a file or directory exactly this mode, whatever the umask was when it was created.
pub fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
}

/// Creates a directory that all users can enter and list, whatever the umask is.
pub fn create_public_directory(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY;
    let directory = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    set_mode(&directory, 0o755)
}

/// Gives a file the owner of the one that it replaces, and the `shared` bits of its mode.
pub fn inherit_access(file: &File, replaced: &Metadata, shared: u32) -> Result<(), OwnerError> {
    let inherit = || {
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (replaced.uid(), replaced.gid()) {
            let uid = (own.uid() != replaced.uid()).then_some(replaced.uid());
            fchown(file, uid, Some(replaced.gid()))?;
        }
        file.set_permissions(Permissions::from_mode(0o600 | replaced.mode() & shared))
    };
    inherit().map_err(|source| OwnerError { owner: replaced.uid(), source })
}

/// Whether the path still names the opened file.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (opened, found) = (file.metadata()?, fs::metadata(path)?);
    Ok((opened.dev(), opened.ino()) == (found.dev(), found.ino()))
}

/// Reads from the start of a file, wherever its cursor is.
pub fn read_start(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    file.read_at(buffer, 0)
}

/// Writes from the start of a file, wherever its cursor is.
pub fn write_start(file: &File, content: &[u8]) -> io::Result<()> {
    file.write_all_at(content, 0)
}

/// Writes the entries of a directory to disk, after a file was created or renamed in it.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn is_one_of(error: &io::Error, errors: &[Errno]) -> bool {
    errors.iter().any(|known| error.raw_os_error() == Some(known.raw_os_error()))
}

/// Whether the system has no sockets for addresses of this family.
pub fn is_unknown_family(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::AFNOSUPPORT])
}

/// Whether the process or the system has no file descriptors or memory left for a socket.
pub fn is_exhausted(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM])
}

/// The machine since its start, to tell whether a process ID of a shared file is one here.
pub fn machine() -> Option<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // Linux; machines that were cloned have the same name.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Some(format!("{name} {}", boot.trim()))
}

/// Ctrl-C in the terminal does not reach the process that the command starts.
pub fn own_process_group(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn private_files_are_for_the_user_and_links_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        let mode = |name: &str| fs::metadata(path(name)).unwrap().mode() & 0o777;
        create_private_directory(&path("a/b")).unwrap();
        create_private_directory(&path("a/b")).unwrap();
        let create = |name: &str| open_private(OpenOptions::new().write(true).create(true), &path(name));
        let file = create("a/b/file").unwrap();
        assert_eq!((mode("a"), mode("a/b"), mode("a/b/file")), (0o700, 0o700, 0o600));
        let found = file.metadata().unwrap();
        assert!(is_own(&found) && !is_open_to_others(&found) && !is_writable_for_others(&found));
        symlink(path("a/b/file"), path("link")).unwrap();
        assert!(create("link").is_err());
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::RUSR).unwrap();
        assert!(is_fifo(open_input(&path("fifo")).unwrap().metadata().unwrap().file_type()));
        for (bits, is_open, is_writable) in [(0o600, false, false), (0o640, true, false), (0o620, true, true)]
        {
            file.set_permissions(Permissions::from_mode(bits)).unwrap();
            let found = file.metadata().unwrap();
            assert_eq!((is_open_to_others(&found), is_writable_for_others(&found)), (is_open, is_writable));
        }
        make_private(&path("a/b/file")).unwrap();
        assert_eq!(mode("a/b/file"), 0o600);
    }

    #[test]
    fn errors_of_sockets_are_told_apart() {
        for (error, is_unknown, is_out) in [
            (Errno::AFNOSUPPORT, true, false),
            (Errno::MFILE, false, true),
            (Errno::NFILE, false, true),
            (Errno::NOBUFS, false, true),
            (Errno::NOMEM, false, true),
            (Errno::CONNABORTED, false, false),
            (Errno::ADDRINUSE, false, false),
        ] {
            let error = io::Error::from(error);
            assert_eq!((is_unknown_family(&error), is_exhausted(&error)), (is_unknown, is_out), "{error}");
        }
        assert_eq!(machine(), machine());
    }

    #[test]
    fn a_file_is_known_after_it_was_renamed_and_read_from_its_start() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        let open =
            |name: &str| OpenOptions::new().create(true).append(true).read(true).open(path(name)).unwrap();
        let file = open("file");
        assert!(is_at(&file, &path("file")).unwrap());
        fs::rename(path("file"), path("other")).unwrap();
        drop(open("file"));
        assert!(!is_at(&file, &path("file")).unwrap() && is_at(&file, &path("other")).unwrap());
        fs::write(path("other"), "content").unwrap();
        let mut buffer = [0; 4];
        assert_eq!(read_start(&file, &mut buffer).unwrap(), 4);
        assert_eq!(&buffer, b"cont");
        let file = OpenOptions::new().write(true).open(path("other")).unwrap();
        write_start(&file, b"CON").unwrap();
        assert_eq!(fs::read_to_string(path("other")).unwrap(), "CONtent");
        sync_directory(home.path()).unwrap();
    }

    #[test]
    fn a_child_of_its_own_group_leads_it() {
        let mut command = Command::new("sh");
        let output = own_process_group(command.args(["-c", "ps -o pid= -o pgid= -p $$"])).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let ids: Vec<&str> = text.split_whitespace().collect();
        assert!(matches!(ids[..], [process, group] if process == group), "{text}");
    }
}
