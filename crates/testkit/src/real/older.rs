//! Programs of older releases of Kubernetes, built once with Go from a module that `tests/go/releases/module` writes.
//!
//! `tests/go/releases/kubernetes.txt` pins the releases. Each program has a directory of its own in cargo's target directory; as
//! with the newest release, a file lock prevents concurrent builds, and a finished build is renamed into place.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::programs::{build_one, ldflags, note};
use crate::paths;

/// The pinned versions, such as `v1.34.4`, from the oldest to the newest.
pub fn older_releases() -> Vec<String> {
    let text = fs::read_to_string(releases().join("kubernetes.txt")).unwrap_or_default();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Why programs of older releases cannot be built, if they cannot.
pub fn without_go() -> Option<String> {
    let status = Command::new("go").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = status.is_ok_and(|status| status.success());
    (!is_there).then(|| "Go is not installed, which builds the older releases of kube-apiserver".to_owned())
}

/// A program of a pinned release, such as `kube-apiserver`, which is built first if that is necessary.
///
/// # Errors
/// It cannot be built.
pub fn program_of(version: &str, name: &str) -> Result<PathBuf, String> {
    let text = |error: std::io::Error| error.to_string();
    let dir = paths::cache_dir(&format!("{name}-{version}"), [&*releases().join("module")]);
    let program = dir.join(name);
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(paths::target_dir()).map_err(text)?;
    let lock = File::create(paths::target_dir().join(format!("{name}-{version}.lock"))).map_err(text)?;
    if lock.try_lock().is_err() {
        note(&format!("another test run is building {name} {version}; waiting for it"));
        lock.lock().map_err(text)?;
    }
    if !program.is_file() {
        let partial = paths::target_dir().join(format!("{name}-{version}.partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(text)?;
        }
        build(version, name, &partial)?;
        fs::rename(&partial, &dir).map_err(text)?;
    }
    Ok(program)
}

fn build(version: &str, name: &str, partial: &Path) -> Result<(), String> {
    let started = Instant::now();
    note(&format!("building {name} {version} with Go, once: about four minutes on two processors"));
    let written = Command::new(releases().join("module"))
        .args([version.as_ref(), partial.as_os_str()])
        .output()
        .map_err(|error| format!("tests/go/releases/module: {error}"))?;
    if !written.status.success() {
        return Err(format!("tests/go/releases/module: {}", String::from_utf8_lossy(&written.stderr)));
    }
    // The sums of what the archive of Kubernetes itself has in `staging` are not in its go.sum.
    let package = format!("k8s.io/kubernetes/cmd/{name}");
    build_one(&package, partial, &["-mod=mod"], &ldflags(version), partial)?;
    note(&format!("{name} {version} is built ({} s)", started.elapsed().as_secs()));
    Ok(())
}

fn releases() -> PathBuf {
    paths::go_module().join("releases")
}
