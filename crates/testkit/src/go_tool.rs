//! Programs of other projects that tests call, such as helm: built once with Go from a module of this repository that pins
//! their version, into a directory of cargo's target directory that is named after the module's files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use crate::paths;

/// A program and the module that names it in a `tool` line.
#[derive(Debug, Clone, Copy)]
pub struct GoTool {
    /// The program's name.
    pub name: &'static str,
    /// The directory of its `go.mod`, from the root of the workspace.
    pub module: &'static str,
    /// Further flags of `go build`.
    pub flags: &'static [&'static str],
}

/// Helm, with the version of Kubernetes that it renders for and its own, which it prints.
pub const HELM: GoTool = GoTool { name: "helm", module: "tests/deploy/helm", flags: &["-ldflags=-s -w"] };

impl GoTool {
    /// Why the program cannot be built, if it cannot.
    pub fn absent(&self) -> Option<String> {
        let runs = Command::new("go").arg("version").output().is_ok_and(|output| output.status.success());
        (!runs).then(|| format!("Go is not installed, which builds {}", self.name))
    }

    /// The program's path; it is built first where that is necessary.
    pub fn path(&self) -> Result<PathBuf, String> {
        let module = paths::workspace_root().join(self.module);
        let dir = paths::cache_dir(self.name, [&*module.join("go.mod"), &*module.join("go.sum")]);
        let program = dir.join(self.name);
        fs::create_dir_all(paths::target_dir()).map_err(|error| error.to_string())?;
        let lock = File::create(dir.with_extension("lock")).map_err(|error| error.to_string())?;
        lock.lock().map_err(|error| error.to_string())?;
        if !program.is_file() {
            self.build(&module, &dir)?;
        }
        program.is_file().then_some(program).ok_or_else(|| format!("go made no {}", self.name))
    }

    fn build(&self, module: &Path, dir: &Path) -> Result<(), String> {
        let started = Instant::now();
        eprintln!("tests: building {} with Go (once, about two minutes)", self.name);
        let partial = dir.with_extension("partial");
        fs::create_dir_all(&partial).map_err(|error| error.to_string())?;
        let built = Command::new("go")
            .args(["build", "-buildvcs=false", "-trimpath"])
            .args(self.flags)
            .arg("-o")
            .arg(format!("{}/", partial.display()))
            .arg("tool")
            .current_dir(module)
            .env("CGO_ENABLED", "0")
            .env("GOWORK", "off")
            .output()
            .map_err(|error| format!("cannot start go: {error}"))?;
        if !built.status.success() {
            return Err(format!("{} does not build:\n{}", self.name, String::from_utf8_lossy(&built.stderr)));
        }
        fs::rename(&partial, dir).map_err(|error| error.to_string())?;
        eprintln!("tests: {} is built ({} s)", self.name, started.elapsed().as_secs());
        Ok(())
    }

    /// Runs the program in the root of the workspace; the error has its output.
    pub fn run<S: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<String, String> {
        let mut command = Command::new(self.path()?);
        output_of(command.args(arguments).current_dir(paths::workspace_root()))
    }
}

/// The standard output of a command; the error has everything that it printed.
pub fn output_of(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } =
        command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    if status.success() {
        Ok(stdout.into_owned())
    } else {
        Err(format!("{command:?}: {status}\n{stdout}{stderr}"))
    }
}
