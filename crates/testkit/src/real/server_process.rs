//! Child processes that never outlive the test run: they end on drop, on a panic, on Ctrl-C and even when the test is
//! killed.
//!
//! Each runs under a small shell that holds the read end of a pipe of this process. When the pipe closes, for whatever
//! reason, the shell kills its child. `PR_SET_PDEATHSIG` would need unsafe code, which this crate forbids.

use std::ffi::OsStr;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Runs `$@` in the background without our pipe, kills it when the pipe closes, and exits with its exit code.
/// Writes the process id to a file. Removes the data of the server after its end, however this process ended.
const GUARD: &str = r#"exec 3<&0
"$@" </dev/null 3<&- &
server=$!
echo "$server" >"$PID_FILE"
( read -r _ <&3; kill -KILL "$server" 2>/dev/null ) >/dev/null 2>&1 &
exec 3<&-
wait "$server"
code=$?
[ -z "$DATA" ] || rm -rf "$DATA"
exit "$code""#;

/// A running server with its log file.
#[derive(Debug)]
pub struct ServerProcess {
    name: String,
    child: Child,
    pipe: Option<ChildStdin>,
    log: PathBuf,
    pid_file: PathBuf,
}

impl ServerProcess {
    /// Starts `program` with its output in `<dir>/<name>.log`.
    pub fn start<S: AsRef<OsStr>>(
        dir: &Path,
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Self, String> {
        Self::start_with_data(dir, name, program, arguments, None)
    }

    /// The same, with a directory of data that is removed when the server has ended. A kept log needs no hundred MiB beside it.
    pub fn start_with_data<S: AsRef<OsStr>>(
        dir: &Path,
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
        data: Option<&Path>,
    ) -> Result<Self, String> {
        let log = dir.join(format!("{name}.log"));
        let pid_file = dir.join(format!("{name}.pid"));
        // It may have the number of an earlier process of this name.
        std::fs::remove_file(&pid_file).ok();
        let output = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        let mut child = Command::new("/bin/sh")
            .args(["-c", GUARD, name])
            .arg(program)
            .args(arguments)
            .env("PID_FILE", &pid_file)
            .env("DATA", data.unwrap_or(Path::new("")))
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            // A separate process group: Ctrl-C reaches only this process, whose end closes the pipe and thus stops the
            // servers.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let pipe = child.stdin.take();
        Ok(Self { name: name.to_owned(), child, pipe, log, pid_file })
    }

    /// Sends a signal to the server itself.
    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        let text = std::fs::read_to_string(&self.pid_file).map_err(|error| error.to_string())?;
        let id = text.trim().parse().ok().and_then(Pid::from_raw).ok_or("the process id is not known yet")?;
        kill_process(id, signal).map_err(|error| format!("{}: {error}", self.name))
    }

    /// Whether the server has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The path of the log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// An error with the end of the log when the server has ended by itself.
    pub fn check(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("{} ended ({status}):\n{}", self.name, self.log_tail())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The last lines of the log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines.iter().skip(lines.len().saturating_sub(15)).copied().collect::<Vec<_>>();
        format!("{}\n(log: {})", tail.join("\n"), self.log.display())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.pipe.take());
        self.child.wait().ok();
    }
}

/// Distinct ports that were free a moment ago. Another process may bind one before the server does, so callers retry.
pub fn free_ports<const N: usize>() -> Result<[u16; N], String> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
        *port = listener.local_addr().map_err(|error| error.to_string())?.port();
        held.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_a_server_is_removed_and_its_log_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("wal"), "written").unwrap();
        let start = |name, data| {
            ServerProcess::start_with_data(dir.path(), name, Path::new("/bin/sleep"), ["60"], data).unwrap()
        };
        drop(start("without", None));
        assert!(data.exists());
        let server = start("with", Some(data.as_path()));
        assert!(data.exists());
        drop(server);
        assert!(!data.exists());
        assert!(dir.path().join("with.log").exists());
    }
}
