//! Files on Windows: each has an access control list, which a new one inherits from its directory.
//!
//! The lists are neither read nor changed, and nor are owners: the system has no safe interface to them. In the user's profile,
//! where all files of these commands are by default, a new file is for the user, the administrators and the system.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::windows::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use super::OwnerError;

/// Opens a link itself instead of the file behind it.
// winbase.h, FILE_FLAG_OPEN_REPARSE_POINT
const OPEN_REPARSE_POINT: u32 = 0x0020_0000;
/// If the path is a pipe, its server learns who the user is, and cannot act as the user.
// winbase.h, SECURITY_IDENTIFICATION
const IDENTIFICATION: u32 = 0x0001_0000;

/// The child is not in the group to which Ctrl-C goes.
// winbase.h, CREATE_NEW_PROCESS_GROUP
const NEW_PROCESS_GROUP: u32 = 0x0000_0200;

// winsock2.h, WSAEAFNOSUPPORT
const UNKNOWN_FAMILY: i32 = 10047;
// winerror.h, ERROR_NOT_ENOUGH_MEMORY and ERROR_NO_SYSTEM_RESOURCES; winsock2.h, WSAEMFILE and WSAENOBUFS
const EXHAUSTED: [i32; 4] = [8, 1450, 10024, 10055];

/// Creates a directory, and those above it, unless they exist. It is as private as the directory in which it is.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// A file that these options create is as private as its directory.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

/// Opens a file; a new one is as private as its directory. Anything else than a regular file is refused, a symbolic link, too.
pub fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let options = options.security_qos_flags(IDENTIFICATION).custom_flags(OPEN_REPARSE_POINT);
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_symlink() {
        return Err(io::Error::other("is a symbolic link"));
    }
    if kind.is_file() { Ok(file) } else { Err(io::Error::other("is not a regular file")) }
}

/// Opens a file for reading.
pub fn open_input(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).security_qos_flags(IDENTIFICATION).open(path)
}

/// Never: pipes are not among the files.
pub fn is_fifo(_: FileType) -> bool {
    false
}

/// The name of a kind that is neither a regular file nor a directory, for errors.
pub fn special_kind(kind: FileType) -> &'static str {
    if kind.is_symlink() { "a symbolic link" } else { "a device" }
}

/// Not known: see the head of this file.
pub fn is_own(_: &Metadata) -> bool {
    true
}

/// Not known: see the head of this file.
pub fn is_open_to_others(_: &Metadata) -> bool {
    false
}

/// Not known: see the head of this file.
pub fn is_open_to_all(_: &Metadata) -> bool {
    false
}

/// Not known: see the head of this file.
pub fn is_writable_for_others(_: &Metadata) -> bool {
    false
}

/// Changes nothing: the file is as private as its directory.
pub fn make_private(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Changes nothing: the file has the access control list of its directory.
pub fn set_mode(_: &File, _: u32) -> io::Result<()> {
    Ok(())
}

/// Creates a directory with the access control list of the one above it.
pub fn create_public_directory(path: &Path) -> io::Result<()> {
    fs::create_dir(path)
}

/// Changes nothing: the file has the access control list that it inherits from its directory, also if the replaced one had one of
/// its own.
pub fn inherit_access(_: &File, _: &Metadata, _: u32) -> Result<(), OwnerError> {
    Ok(())
}

/// Whether the path still names the opened file, as far as times and sizes show it.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let identity = |found: &Metadata| (found.creation_time(), found.last_write_time(), found.file_size());
    Ok(identity(&file.metadata()?) == identity(&fs::metadata(path)?))
}

/// Reads from the start of a file. Moves its cursor.
pub fn read_start(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    file.seek_read(buffer, 0)
}

/// Writes from the start of a file. Moves its cursor.
pub fn write_start(file: &File, mut content: &[u8]) -> io::Result<()> {
    let mut at = 0;
    while !content.is_empty() {
        let written = file.seek_write(content, at)?;
        content = content.get(written..).filter(|_| written > 0).ok_or(io::ErrorKind::WriteZero)?;
        at = at.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// Nothing to do: the file system writes the entries of a directory together with its journal.
pub fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Whether the system has no sockets for addresses of this family.
pub fn is_unknown_family(error: &io::Error) -> bool {
    error.raw_os_error() == Some(UNKNOWN_FAMILY)
}

/// Whether the process or the system has no handles or memory left for a socket.
pub fn is_exhausted(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| EXHAUSTED.contains(&code))
}

/// The machine, to tell whether a process ID of a shared file is one here.
pub fn machine() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

/// Ctrl-C in the console does not reach the process that the command starts.
pub fn own_process_group(command: &mut Command) -> &mut Command {
    command.creation_flags(NEW_PROCESS_GROUP)
}

#[cfg(test)]
mod tests {
    use std::os::windows::fs::symlink_file;

    use super::*;

    #[test]
    fn only_a_regular_file_is_private() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        let create = |name: &str| open_private(OpenOptions::new().write(true).create(true), &path(name));
        create_private_directory(&path("a/b")).unwrap();
        create_private_directory(&path("a/b")).unwrap();
        create("a/b/file").unwrap();
        create("a/b/file").unwrap();
        assert!(open_private(OpenOptions::new().write(true).create_new(true), &path("a/b/file")).is_err());
        assert!(create("a/b").is_err());
        // Only some users may make one.
        symlink_file(path("a/b/file"), path("link")).ok();
        if path("link").is_symlink() {
            assert_eq!(create("link").unwrap_err().to_string(), "is a symbolic link");
            open_input(&path("link")).unwrap();
        }
    }

    #[test]
    fn a_file_is_known_after_it_was_renamed_and_read_from_its_start() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        fs::write(path("file"), "content").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(path("file")).unwrap();
        assert!(is_at(&file, &path("file")).unwrap());
        let mut buffer = [0; 4];
        assert_eq!(read_start(&file, &mut buffer).unwrap(), 4);
        assert_eq!(&buffer, b"cont");
        write_start(&file, b"CON").unwrap();
        assert_eq!(fs::read_to_string(path("file")).unwrap(), "CONtent");
        fs::rename(path("file"), path("other")).unwrap();
        fs::write(path("file"), "another content").unwrap();
        assert!(!is_at(&file, &path("file")).unwrap() && is_at(&file, &path("other")).unwrap());
        sync_directory(home.path()).unwrap();
    }

    #[test]
    fn a_lock_is_of_one_handle_and_what_its_holder_wrote_is_read_after_it() {
        let home = tempfile::tempdir().unwrap();
        let open = || {
            let mut options = OpenOptions::new();
            open_private(options.read(true).write(true).create(true), &home.path().join("lock")).unwrap()
        };
        let (holder, waiting) = (open(), open());
        holder.try_lock().unwrap();
        write_start(&holder, b"holder").unwrap();
        assert!(matches!(waiting.try_lock(), Err(fs::TryLockError::WouldBlock)));
        drop(holder);
        waiting.try_lock().unwrap();
        let mut buffer = [0; 6];
        assert_eq!(read_start(&waiting, &mut buffer).unwrap(), 6);
        assert_eq!(&buffer, b"holder");
    }
}
