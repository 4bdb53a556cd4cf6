//! Programs of older releases of Kubernetes, built once with Go from a module that `tests/go/releases/module` writes.
//!
//! `tests/go/releases/kubernetes.txt` pins the releases. Each program has a directory of its own in cargo's target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::programs::{build_one, ldflags, note};
use crate::built_once::{build_once, has_go};
use crate::paths;

/// The kubelet of `tests/go/kubelet`, of which [`program_of`] builds that of a release, too.
pub const KUBELET: &str = "hollow-kubelet";

/// The pinned versions, such as `v1.34.4`, from the oldest to the newest.
pub fn older_releases() -> Vec<String> {
    let text = fs::read_to_string(releases().join("kubernetes.txt")).unwrap_or_default();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Why programs of older releases cannot be built, if they cannot.
pub fn without_go() -> Option<String> {
    (!has_go()).then(|| "Go is not installed, which builds the older releases of kube-apiserver".to_owned())
}

/// A program of a pinned release, such as `kube-apiserver`, which is built first if that is necessary.
///
/// # Errors
/// It cannot be built.
pub fn program_of(version: &str, name: &str) -> Result<PathBuf, String> {
    let mut sources = vec![releases().join("module")];
    sources.extend((name == KUBELET).then(kubelet_source));
    let directory = paths::cache_dir(&format!("{name}-{version}"), sources.iter().map(PathBuf::as_path));
    let program = directory.join(name);
    let build = |partial: &Path| build(version, name, partial);
    build_once(&directory, &format!("{name} {version}"), || program.is_file(), build)?;
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
    let package = if name == KUBELET {
        copy_kubelet(partial).map_err(|error| format!("{}: {error}", kubelet_source().display()))?
    } else {
        format!("k8s.io/kubernetes/cmd/{name}")
    };
    // The sums of what the archive of Kubernetes itself has in `staging` are not in its go.sum.
    build_one(&package, partial, &["-mod=mod"], &ldflags(version), partial)?;
    note(&format!("{name} {version} is built ({} s)", started.elapsed().as_secs()));
    Ok(())
}

fn kubelet_source() -> PathBuf {
    paths::go_module().join("kubelet/main.go")
}

/// Puts the kubelet's source into the module of a release; the path of its package there.
fn copy_kubelet(module: &Path) -> std::io::Result<String> {
    let package = format!("./source/{KUBELET}");
    let directory = module.join(&package);
    fs::create_dir_all(&directory)?;
    fs::copy(kubelet_source(), directory.join("main.go"))?;
    Ok(package)
}

fn releases() -> PathBuf {
    paths::go_module().join("releases")
}
