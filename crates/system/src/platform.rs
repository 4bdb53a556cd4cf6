//! What differs between the systems of people's machines: Linux, macOS and Windows. The commands call these functions and
//! name no system themselves.
//!
//! | what | Unix | Windows |
//! |---|---|---|
//! | a file of the user alone | mode 0600, in a directory of mode 0700 | the access control list that it inherits: in the user's profile, that of the user, the administrators and the system |
//! | who owns a file, who else can use it | checked | not checked: that needs calls without a safe interface |
//! | a symbolic link instead of a private file | not followed | opened, and refused |
//! | a locked file | others can read it | others cannot read it |
//! | the user who has opened a connection | on Linux | not known |
//!
//! So on Windows a directory outside of the user's profile is as private as its owner has made it.
// threat: stolen-login-cache

mod peers;
mod places;
mod programs;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::io;

pub use peers::{PeerUser, peer_user};
pub use places::{CACHE_VARIABLES, LIST_SEPARATOR, cache_home, real_path, user_home};
pub use programs::{has_display, is_named, is_one_argument, url_opener};
#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;

#[cfg(not(any(unix, windows)))]
compile_error!("portcullis knows the files of Unix and of Windows, and not those of this system");

/// The kinds of systems that differ in where things are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    /// Linux and the BSDs, as the XDG Base Directory Specification describes them.
    Xdg,
    MacOs,
    Windows,
}

impl System {
    /// That of this build. The rules of the others are compiled everywhere, and tested.
    const THIS: Self = if cfg!(windows) {
        Self::Windows
    } else if cfg!(target_os = "macos") {
        Self::MacOs
    } else {
        Self::Xdg
    };
}

/// A new file could not be given the owner of the file that it replaces.
#[derive(Debug)]
pub struct OwnerError {
    /// The uid of that owner.
    pub owner: u32,
    /// The system's error.
    pub source: io::Error,
}
