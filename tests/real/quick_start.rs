//! Replays quick starts of README.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::paths::workspace_root;
use testkit::transcript;

use crate::servers::RealServers;

/// A directory with the files of the repository that the commands name, in `parent`.
pub(crate) fn directory(parent: &Path) -> Result<PathBuf, String> {
    let directory = parent.join("quick-start");
    fs::create_dir_all(directory.join("bin")).map_err(|error| error.to_string())?;
    std::os::unix::fs::symlink(workspace_root().join("deploy"), directory.join("deploy"))
        .map_err(|error| error.to_string())?;
    Ok(directory)
}

/// The variables of the commands: the programs are in the path, and the home directory is empty.
pub(crate) fn environment(
    servers: &RealServers,
    directory: &Path,
) -> Result<Vec<(&'static str, String)>, String> {
    let programs = directory.join("bin");
    for (name, program) in [("portcullis", Path::new(crate::PORTCULLIS)), ("kubectl", servers.kubectl()?)] {
        std::os::unix::fs::symlink(program, programs.join(name)).map_err(|error| error.to_string())?;
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    Ok(vec![("PATH", path), ("HOME", directory.display().to_string())])
}

/// Runs the blocks of a kind, of which there are this many commands, with the names of the page replaced.
pub(crate) fn replay(
    kind: &str,
    commands: usize,
    directory: &Path,
    names: &[(&str, String)],
    environment: &[(&'static str, String)],
) -> Result<(), String> {
    let page = workspace_root().join("README.md");
    let played = transcript::replay_as(&page, &[kind], directory, names, |command: &mut Command| {
        command.env_clear().envs(environment.iter().cloned());
    })?;
    if played == commands { Ok(()) } else { Err(format!("{played} commands of {kind}")) }
}
