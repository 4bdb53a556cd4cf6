//! Finds or builds the real programs: kube-apiserver, etcd, kubectl, kube-controller-manager, kube-scheduler.
//!
//! `KUBEBUILDER_ASSETS` takes precedence; otherwise they are built once with Go from `tests/go/go.mod` into a directory
//! of cargo's target directory, named after the hash of `go.mod` and `go.sum`. A file lock prevents concurrent builds,
//! and a finished build is renamed into place, so an existing directory is complete.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::built_once::{build_once, has_go};
use crate::paths;

/// The paths of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `kube-apiserver`.
    pub kube_apiserver: PathBuf,
    /// `etcd`.
    pub etcd: PathBuf,
    /// `kubectl`.
    pub kubectl: PathBuf,
    /// `kube-controller-manager`, which may be absent from `KUBEBUILDER_ASSETS`.
    pub kube_controller_manager: PathBuf,
    /// `kube-scheduler`, which may be absent from `KUBEBUILDER_ASSETS`.
    pub kube_scheduler: PathBuf,
}

/// The origin of the programs. Finding it is cheap, unlike building.
#[derive(Clone, Debug)]
pub enum Source {
    /// They exist.
    Present(Programs),
    /// They can be built with Go into this directory.
    Buildable(PathBuf),
    /// They are absent and cannot be built, for this reason.
    Absent(String),
}

impl Source {
    /// Looks for the programs without building them.
    pub fn find() -> Self {
        if let Some(dir) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|dir| !dir.is_empty()) {
            let programs = programs_in(Path::new(&dir), "etcd");
            return match missing(&programs) {
                None => Self::Present(programs),
                Some(path) => {
                    Self::Absent(format!("KUBEBUILDER_ASSETS is set, but there is no {}", path.display()))
                }
            };
        }
        let module = paths::go_module();
        let dir = paths::cache_dir("backend", [&*module.join("go.mod"), &*module.join("go.sum")]);
        let programs = programs_in(&dir, "server");
        if missing(&programs).is_none() {
            return Self::Present(programs);
        }
        if has_go() {
            Self::Buildable(dir)
        } else {
            Self::Absent("Go is not installed, and KUBEBUILDER_ASSETS is not set".to_owned())
        }
    }

    /// Why the programs are absent, if they are.
    pub fn absent(&self) -> Option<String> {
        match self {
            Self::Present(_) | Self::Buildable(_) => None,
            Self::Absent(reason) => Some(reason.clone()),
        }
    }

    /// The programs, built first where that is necessary.
    pub fn programs(&self) -> Result<Programs, String> {
        match self {
            Self::Present(programs) => Ok(programs.clone()),
            Self::Buildable(dir) => build(dir),
            Self::Absent(reason) => Err(reason.clone()),
        }
    }

    /// Why kube-controller-manager is absent, if the other programs exist without it.
    pub fn without_controllers(&self) -> Option<String> {
        self.without("kube-controller-manager", |programs| &programs.kube_controller_manager)
    }

    /// Why kube-scheduler is absent, if the other programs exist without it.
    pub fn without_scheduler(&self) -> Option<String> {
        self.without("kube-scheduler", |programs| &programs.kube_scheduler)
    }

    fn without(&self, name: &str, path: fn(&Programs) -> &Path) -> Option<String> {
        let Self::Present(programs) = self else { return None };
        let absent = !path(programs).is_file();
        absent.then(|| format!("there is no {name} among KUBEBUILDER_ASSETS"))
    }
}

/// Builds into `dir`, unless another process has just done so.
fn build(dir: &Path) -> Result<Programs, String> {
    let programs = programs_in(dir, "server");
    build_once(dir, "the real servers", || missing(&programs).is_none(), compile)?;
    Ok(programs)
}

fn compile(partial: &Path) -> Result<(), String> {
    let module = paths::go_module();
    let started = Instant::now();
    let go_mod = fs::read_to_string(module.join("go.mod")).map_err(|error| error.to_string())?;
    let packages = tools(&go_mod);
    let names: Vec<&str> = packages.iter().map(|package| name(package)).collect();
    note(&format!("building {} with Go, once: about five minutes on two processors", names.join(", ")));
    for (number, package) in packages.iter().enumerate() {
        let begun = Instant::now();
        build_one(package, &module, &[], &ldflags(&version(&go_mod)?), partial)?;
        let (number, all, seconds) = (number + 1, packages.len(), begun.elapsed().as_secs());
        note(&format!("{number} of {all}: {} is built ({seconds} s)", name(package)));
    }
    note(&format!("the real servers are built ({} s)", started.elapsed().as_secs()));
    Ok(())
}

/// The packages of the `tool` lines.
fn tools(go_mod: &str) -> Vec<&str> {
    let block = go_mod.split_once("\ntool (\n").map_or("", |(_, rest)| rest);
    block.split_once("\n)").map_or("", |(block, _)| block).lines().map(str::trim).collect()
}

/// The name of the program of a package.
fn name(package: &str) -> &str {
    if package.starts_with("go.etcd.io/") { "etcd" } else { package.rsplit('/').next().unwrap_or(package) }
}

/// Builds a program into the directory `partial`.
pub(super) fn build_one(
    package: &str,
    module: &Path,
    more: &[&str],
    ldflags: &str,
    partial: &Path,
) -> Result<(), String> {
    let mut child = Command::new("go")
        .args(["build", "-v", "-buildvcs=false", "-trimpath"])
        .args(more)
        .arg(format!("-ldflags={ldflags}"))
        .arg("-o")
        .arg(format!("{}/", partial.display()))
        .arg(package)
        .current_dir(module)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start go: {error}"))?;
    let mut progress = Progress::new(name(package));
    let mut tail = Vec::new();
    if let Some(output) = child.stderr.take() {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            progress.step();
            tail.push(line);
            if tail.len() > 40 {
                tail.remove(0);
            }
        }
    }
    progress.end();
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("go build failed ({status}); its last lines:\n{}", tail.join("\n")))
    }
}

/// The version of Kubernetes that a `go.mod` requires.
fn version(go_mod: &str) -> Result<String, String> {
    let mut lines = go_mod.lines().map(|line| line.trim().trim_start_matches("require ").trim_start());
    let rest = lines.find_map(|line| line.strip_prefix("k8s.io/kubernetes "));
    let rest = rest.ok_or("tests/go/go.mod does not require k8s.io/kubernetes")?;
    Ok(rest.split_whitespace().next().unwrap_or_default().to_owned())
}

/// The version of Kubernetes of the programs that are built here.
pub fn newest_release() -> Result<String, String> {
    version(&fs::read_to_string(paths::go_module().join("go.mod")).map_err(|error| error.to_string())?)
}

/// The version flags; without them, the servers report the version `v0.0.0-master+$Format:%H$`.
pub(super) fn ldflags(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let mut flags = "-s -w".to_owned();
    for (name, value) in [
        ("k8s.io/component-base/version.gitVersion", version),
        ("k8s.io/component-base/version.gitMajor", major),
        ("k8s.io/component-base/version.gitMinor", minor),
        ("k8s.io/component-base/version.gitTreeState", "clean"),
        ("k8s.io/client-go/pkg/version.gitVersion", version),
    ] {
        let _ = write!(flags, " -X {name}={value}");
    }
    flags
}

fn programs_in(dir: &Path, etcd: &str) -> Programs {
    Programs {
        kube_apiserver: dir.join("kube-apiserver"),
        etcd: dir.join(etcd),
        kubectl: dir.join("kubectl"),
        kube_controller_manager: dir.join("kube-controller-manager"),
        kube_scheduler: dir.join("kube-scheduler"),
    }
}

fn missing(programs: &Programs) -> Option<&Path> {
    [&programs.kube_apiserver, &programs.etcd, &programs.kubectl]
        .into_iter()
        .map(PathBuf::as_path)
        .find(|path| !path.is_file())
}

/// Prints a line, also within a test whose output is captured.
pub(crate) fn note(text: &str) {
    writeln!(std::io::stderr(), "tests: {text}").ok();
}

/// Progress output: on a terminal one line that is updated, elsewhere a line every half minute.
struct Progress<'a> {
    program: &'a str,
    started: Instant,
    terminal: bool,
    packages: usize,
    shown: Option<Instant>,
}

impl<'a> Progress<'a> {
    fn new(program: &'a str) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { program, started: Instant::now(), terminal, packages: 0, shown: None }
    }

    fn step(&mut self) {
        self.packages += 1;
        let every = if self.terminal { Duration::from_millis(250) } else { Duration::from_secs(30) };
        if self.shown.unwrap_or(self.started).elapsed() < every {
            return;
        }
        self.shown = Some(Instant::now());
        let seconds = self.started.elapsed().as_secs();
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        let text = format!("{}: {} packages, {minutes}:{seconds:02}", self.program, self.packages);
        if self.terminal {
            write!(std::io::stderr(), "\r\x1b[2Ktests: {text}").ok();
        } else {
            note(&text);
        }
    }

    fn end(&self) {
        if self.terminal {
            write!(std::io::stderr(), "\r\x1b[2K").ok();
        }
    }
}
