//! Files on Unix: each has an owner, and mode bits for the others.

use std::fs::{self, DirBuilder, File, FileType, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    PermissionsExt as _, fchown,
};
use std::path::Path;

use rustix::fs::OFlags;

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

/// The name of a kind that is neither a regular file nor a directory, for errors.
pub fn special_kind(kind: FileType) -> &'static str {
    if kind.is_fifo() {
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

/// Whether the mode lets other users write to the file or directory.
pub fn is_writable_for_others(metadata: &Metadata) -> bool {
    metadata.mode() & 0o022 != 0
}

/// Leaves the file to the user alone.
pub fn make_private(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o600))
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
