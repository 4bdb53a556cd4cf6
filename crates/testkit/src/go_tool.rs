//! Programs of other projects that tests call, such as helm: built once with Go from a module of this repository that pins
//! their version, into a directory of cargo's target directory that is named after the module's files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use crate::built_once::{build_once, has_go};
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
        (!has_go()).then(|| format!("Go is not installed, which builds {}", self.name))
    }

    /// The program's path; it is built first where that is necessary.
    pub fn path(&self) -> Result<PathBuf, String> {
        let module = paths::workspace_root().join(self.module);
        let dir = paths::cache_dir(self.name, [&*module.join("go.mod"), &*module.join("go.sum")]);
        let program = dir.join(self.name);
        build_once(&dir, self.name, || program.is_file(), |partial| self.build(&module, partial))?;
        Ok(program)
    }

    fn build(&self, module: &Path, partial: &Path) -> Result<(), String> {
        let started = Instant::now();
        eprintln!("tests: building {} with Go (once, about two minutes)", self.name);
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
