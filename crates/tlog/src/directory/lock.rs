//! The lock of a log. Only its writers may open the file: a user who can open it can hold the lock, and no certificate is issued.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use portcullis_system::platform::{is_at, is_open_to_others, open_private, set_mode};

use crate::error::LogError;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The result of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    Locked,
    /// Another process holds it.
    Held,
    /// It is locked, but the path names another file by now, which another process may have locked.
    Replaced,
}

/// Locks the file of a lock, which it creates.
// threat: unlogged-certificate
pub(super) fn lock(path: &Path, timeout: Duration) -> Result<File, LogError> {
    let failed = LogError::io(path);
    let mut file = open(path).map_err(&failed)?;
    let mut waited = Duration::ZERO;
    loop {
        match attempt(&file, path).map_err(&failed)? {
            Attempt::Locked => return Ok(file),
            Attempt::Held | Attempt::Replaced if waited >= timeout => {
                return Err(LogError::Locked { path: path.to_owned(), waited });
            }
            Attempt::Held => {}
            Attempt::Replaced => file = open(path).map_err(&failed)?,
        }
        std::thread::sleep(POLL_INTERVAL);
        waited += POLL_INTERVAL;
    }
}

/// Opens the file. One that others can open, such as one of a backup, is closed to them.
fn open(path: &Path) -> io::Result<File> {
    let file = open_private(OpenOptions::new().create(true).truncate(false).write(true), path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    if is_open_to_others(&metadata) {
        set_mode(&file, 0o600)?;
    }
    Ok(file)
}

fn attempt(file: &File, path: &Path) -> io::Result<Attempt> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Attempt::Held),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    match is_at(file, path) {
        Ok(true) => Ok(Attempt::Locked),
        Ok(false) => Ok(Attempt::Replaced),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Attempt::Replaced),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn no_other_user_can_open_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(".lock");
        drop(lock(&path, Duration::ZERO).unwrap());
        assert_eq!(mode(&path), 0o600);
        // As a backup may have restored it.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        drop(lock(&path, Duration::ZERO).unwrap());
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(".lock");
        symlink(directory.path().join("elsewhere"), &path).unwrap();
        assert!(matches!(lock(&path, Duration::ZERO), Err(LogError::Io { .. })));
        assert!(!directory.path().join("elsewhere").exists());
    }

    #[test]
    fn a_lock_on_a_file_that_was_deleted_or_replaced_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(".lock");
        // Opened, before the holder of the lock was gone with its file.
        let waiting = open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(attempt(&waiting, &path).unwrap(), Attempt::Replaced);
        let other = lock(&path, Duration::ZERO).unwrap();
        assert_eq!(attempt(&waiting, &path).unwrap(), Attempt::Replaced);
        assert!(matches!(lock(&path, Duration::ZERO), Err(LogError::Locked { .. })));
        drop(other);
        assert_eq!(attempt(&open(&path).unwrap(), &path).unwrap(), Attempt::Locked);
    }
}
