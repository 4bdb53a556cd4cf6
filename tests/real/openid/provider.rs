//! The OpenID provider: `oidc-provider` under Node.js, installed once below cargo's target directory.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use serde_json::{Value, json};
use testkit::paths::{cache_dir, temporary_dir, workspace_root};

const FILES: [&str; 4] = ["package.json", "package-lock.json", "provider.mjs", "browser.mjs"];

/// The reason why the provider cannot be installed, if any.
pub(crate) fn absent() -> Option<String> {
    ["node", "npm"].into_iter().find_map(|program| {
        let run = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        (!run.is_ok_and(|status| status.success())).then(|| format!("{program} is not installed"))
    })
}

/// Installs the provider, unless an earlier run has. An existing directory is complete.
pub(crate) fn install() -> Result<PathBuf, String> {
    let own = workspace_root().join("tests/real/openid/provider");
    let files = FILES.map(|file| own.join(file));
    let dir = cache_dir("openid-provider", files.iter().map(PathBuf::as_path));
    if dir.exists() {
        return Ok(dir);
    }
    eprintln!("real: installing the OpenID provider with npm (once, some seconds)");
    let partial = tempfile::tempdir_in(temporary_dir()).map_err(|error| error.to_string())?;
    for file in FILES {
        fs::copy(own.join(file), partial.path().join(file)).map_err(|error| error.to_string())?;
    }
    let npm = Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"])
        .current_dir(partial.path())
        .output()
        .map_err(|error| error.to_string())?;
    if !npm.status.success() {
        return Err(format!("npm ci failed: {}", String::from_utf8_lossy(&npm.stderr)));
    }
    match fs::rename(partial.keep(), &dir) {
        // A concurrent run has installed it.
        Err(_) if dir.exists() => Ok(dir),
        renamed => renamed.map(|()| dir).map_err(|error| error.to_string()),
    }
}

/// A running provider, which is stopped when this is dropped.
pub(crate) struct Provider {
    pub(crate) issuer: String,
    child: Child,
    lines: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Provider {
    pub(crate) fn start(certificate: &Path, key: &Path, log: &Path) -> Result<Self, String> {
        let log = fs::File::create(log).map_err(|error| error.to_string())?;
        let mut child = Command::new("node")
            .arg(install()?.join("provider.mjs"))
            .args([certificate, key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|error| error.to_string())?;
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let ready = next(&mut output)?;
        let issuer = ready["issuer"].as_str().ok_or_else(|| format!("no issuer: {ready}"))?.to_owned();
        Ok(Self { issuer, child, lines: Mutex::new((input, output)) })
    }

    fn command(&self, command: &Value) -> Result<Value, String> {
        let mut lines = self.lines.lock().unwrap();
        writeln!(lines.0, "{command}").map_err(|error| error.to_string())?;
        let answer = next(&mut lines.1)?;
        match answer["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer),
        }
    }

    /// The ID token of a new login.
    pub(crate) fn login(&self, user: &str) -> Result<String, String> {
        let answer = self.command(&json!({"do": "login", "user": user}))?;
        answer["idToken"].as_str().map(str::to_owned).ok_or_else(|| format!("no token: {answer}"))
    }

    /// Starts to sign with a new key.
    pub(crate) fn rotate(&self) -> Result<(), String> {
        self.command(&json!({"do": "rotate"})).map(drop)
    }

    /// Stops publishing all keys except the signing key.
    pub(crate) fn forget(&self) -> Result<(), String> {
        self.command(&json!({"do": "forget"})).map(drop)
    }

    /// How many tokens were granted for this grant type.
    pub(crate) fn grants(&self, grant_type: &str) -> Result<u64, String> {
        Ok(self.command(&json!({"do": "grants"}))?[grant_type].as_u64().unwrap_or_default())
    }

    /// Revokes every refresh token.
    pub(crate) fn revoke(&self) -> Result<(), String> {
        self.command(&json!({"do": "revoke"})).map(drop)
    }

    /// A user enters the code of the device flow.
    pub(crate) fn enter(&self, user: &str, code: &str) -> Result<(), String> {
        self.command(&json!({"do": "enter", "user": user, "code": code})).map(drop)
    }

    /// A program that opens a URL in the browser of a user, who logs in.
    pub(crate) fn browser(user: &str) -> Result<String, String> {
        Ok(format!("node {} {user}", install()?.join("browser.mjs").display()))
    }

    /// The number of key fetches.
    pub(crate) fn key_fetches(&self) -> Result<u64, String> {
        Ok(self.command(&json!({"do": "fetches"}))?["keys"].as_u64().unwrap_or_default())
    }
}

fn next(output: &mut BufReader<ChildStdout>) -> Result<Value, String> {
    let mut line = String::new();
    output.read_line(&mut line).map_err(|error| error.to_string())?;
    serde_json::from_str(&line).map_err(|error| format!("the provider printed {line:?}: {error}"))
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
