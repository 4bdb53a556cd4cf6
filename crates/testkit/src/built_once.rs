//! Programs that tests build with Go: once, into a directory that is complete if it exists.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::real::note;

/// Whether there is a `go`.
pub(crate) fn has_go() -> bool {
    let version = Command::new("go").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Unless `is_built`, calls `build` with an empty directory, and renames that to `directory`. A file lock prevents concurrent
/// builds of several test runs.
pub(crate) fn build_once(
    directory: &Path,
    what: &str,
    is_built: impl Fn() -> bool,
    build: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    fs::create_dir_all(directory.parent().ok_or("the directory has no parent")?).map_err(text)?;
    let lock = File::create(beside(directory, "lock")).map_err(text)?;
    if lock.try_lock().is_err() {
        note(&format!("another test run is building {what}; waiting for it"));
        lock.lock().map_err(text)?;
    }
    if is_built() {
        return Ok(());
    }
    let partial = beside(directory, "partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(text)?;
    }
    fs::create_dir_all(&partial).map_err(text)?;
    build(&partial)?;
    fs::rename(&partial, directory).map_err(text)?;
    if is_built() { Ok(()) } else { Err(format!("go has ended well, but {what} is not there")) }
}

/// `DIRECTORY.EXTENSION`; the name of a directory may have a version with dots.
fn beside(directory: &Path, extension: &str) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}
