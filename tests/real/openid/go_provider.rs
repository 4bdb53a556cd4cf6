//! OpenID providers in Go (`tests/go/zitadel`, `tests/go/dex`), a gateway that knows them, and a user with an empty home
//! directory.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::go_program::GoProgram;
use testkit::real::START_TIMEOUT;

use super::login::{all, text};
use crate::servers::{FRONT_PROXY, HeaderFlags, RealGateway, RealServers};

const AT_ONCE: usize = 20;

/// A running provider, which ends with its standard input. The same program is a browser in which the user logs in.
struct GoProvider {
    program: PathBuf,
    issuers: Vec<String>,
    child: Child,
}

impl GoProvider {
    fn start(servers: &RealServers, name: &str) -> Result<Self, String> {
        let program = GoProgram::build(name).ok_or("Go is not installed")?.path().to_owned();
        let log =
            fs::File::create(servers.file(&format!("{name}.log"))?).map_err(|error| error.to_string())?;
        let mut child = Command::new(&program)
            .arg("serve")
            .args([servers.file("server.crt")?, servers.file("server.key")?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).map_err(|error| error.to_string())?;
        let ready: Value = serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}"))?;
        let issuers = serde_json::from_value(ready["issuers"].clone()).map_err(|error| error.to_string())?;
        Ok(Self { program, issuers, child })
    }
}

impl Drop for GoProvider {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The user of a provider.
pub(super) struct ProviderUser<'a> {
    servers: &'a RealServers,
    provider: GoProvider,
    gateway: RealGateway,
    home: TempDir,
    user_name: String,
}

impl<'a> ProviderUser<'a> {
    /// Starts the program of this name. `claim` is the claim of the user name, and its value.
    pub(super) fn new(
        servers: &'a RealServers,
        name: &str,
        (claim, value): (&str, &str),
    ) -> Result<Self, String> {
        let provider = GoProvider::start(servers, name)?;
        let authorities =
            fs::read_to_string(servers.file("servers-ca.crt")?).map_err(|error| error.to_string())?;
        let issuers = provider.issuers.iter().map(|issuer| {
            json!({
                "issuer": {"url": issuer, "certificateAuthority": authorities, "audiences": ["kubernetes"]},
                "claimMappings": {"username": {"claim": claim, "prefix": format!("{name}:")}},
            })
        });
        let configuration = json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthenticationConfiguration",
            "jwt": issuers.collect::<Vec<_>>(),
        });
        let file = servers.file(&format!("{name}-authentication.yaml"))?;
        fs::write(&file, configuration.to_string()).map_err(|error| error.to_string())?;
        let server = servers.server(HeaderFlags::Good)?;
        let flags = [format!("--authentication-config={}", file.display())];
        let gateway = servers.gateway_with(name, server.address, &FRONT_PROXY, &flags)?;
        gateway.line_with(&["self-check passed"])?;
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Self { servers, provider, gateway, home, user_name: format!("{name}:{value}") })
    }

    /// The issuer of this index in the program's list.
    pub(super) fn issuer(&self, index: usize) -> Result<&str, String> {
        self.provider.issuers.get(index).map(String::as_str).ok_or_else(|| "no such issuer".to_owned())
    }

    /// A program without a terminal and without a browser.
    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("HOME", self.home.path()).env("PATH", std::env::var_os("PATH").unwrap());
        command.args(arguments);
        command
    }

    /// `portcullis` with the user's browser.
    pub(super) fn portcullis(&self, arguments: &[&str]) -> Result<Output, String> {
        let mut command = self.command(Path::new(crate::PORTCULLIS), arguments);
        command.env("BROWSER", self.browser()).output().map_err(|error| error.to_string())
    }

    fn browser(&self) -> String {
        format!("{} browse", self.provider.program.display())
    }

    /// Opens a page in the user's browser, and logs in there.
    pub(super) fn browse(&self, url: &str) -> Result<(), String> {
        let output = self.command(&self.provider.program, &["browse", url]).output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() { Ok(()) } else { Err(format!("{url}: {}", text(&output))) }
    }

    /// `portcullis` without a browser, to be started.
    pub(super) fn portcullis_without_browser(&self, arguments: &[&str]) -> Command {
        self.command(Path::new(crate::PORTCULLIS), arguments)
    }

    /// Logs in with further flags, and names cluster and context. The gateway fetches the keys of an issuer in the background,
    /// and a token that it refuses writes nothing.
    pub(super) fn login(&self, issuer: &str, name: &str, more: &[&str]) -> Result<(), String> {
        let authority = self.servers.file("servers-ca.crt")?.display().to_string();
        let arguments = [
            "login".to_owned(),
            format!("--server=https://{}", self.gateway.address),
            format!("--name={name}"),
            format!("--certificate-authority={authority}"),
            format!("--issuer={issuer}"),
            format!("--issuer-certificate-authority={authority}"),
            "--client-id=kubernetes".to_owned(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let started = Instant::now();
        loop {
            let output = self.portcullis(&arguments)?;
            let is_early = text(&output).contains("does not accept the token");
            if !is_early || started.elapsed() > START_TIMEOUT {
                return self.expect_user("login", &output);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// `kubectl auth whoami` without a terminal and without a browser.
    fn whoami(&self) -> Result<Command, String> {
        Ok(self.command(self.servers.kubectl()?, &["auth", "whoami"]))
    }

    /// kubectl has a credential, and needs neither a terminal nor a browser for it.
    pub(super) fn expect_credential(&self, when: &str) -> Result<(), String> {
        let output = self.whoami()?.output().map_err(|error| error.to_string())?;
        self.expect_user(when, &output)
    }

    /// kubectl has no credential, says these words and how to log in.
    pub(super) fn expect_no_credential(&self, words: &str) -> Result<(), String> {
        let output = self.whoami()?.output().map_err(|error| error.to_string())?;
        let text = text(&output);
        let is_refused =
            !output.status.success() && text.contains(words) && text.contains("run `portcullis login`");
        if is_refused { Ok(()) } else { Err(format!("{words:?} is expected: {text}")) }
    }

    /// kubectl on a terminal, where the plugin may ask the user.
    pub(super) fn expect_login_on_a_terminal(&self, when: &str) -> Result<(), String> {
        let kubectl = format!("{} auth whoami", self.servers.kubectl()?.display());
        let mut script =
            self.command(Path::new("script"), &["--quiet", "--return", "--command", &kubectl, "/dev/null"]);
        let output = script.env("BROWSER", self.browser()).output().map_err(|error| error.to_string())?;
        self.expect_user(when, &output)
    }

    /// Many kubectls refresh at the same time with a refresh token that the provider accepts once, and replaces.
    pub(super) fn expect_rotation(&self, issuer: &str) -> Result<(), String> {
        let before = self.refresh_token(issuer)?;
        self.expire(issuer, None)?;
        for output in all((0..AT_ONCE).map(|_| self.whoami()).collect::<Result<_, _>>()?)? {
            self.expect_user("refresh", &output)?;
        }
        if self.refresh_token(issuer)? == before {
            return Err("the refresh token was not replaced".to_owned());
        }
        Ok(())
    }

    /// The cache file of an issuer, and the tokens in it.
    fn cached(&self, issuer: &str) -> Result<(PathBuf, Value), String> {
        let directory = self.home.path().join(".cache/portcullis/login");
        let files = fs::read_dir(directory).map_err(|error| error.to_string())?;
        let files = files.map(|file| file.unwrap().path());
        for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "json")) {
            let tokens = fs::read(&file).map_err(|error| error.to_string())?;
            let tokens: Value = serde_json::from_slice(&tokens).map_err(|error| error.to_string())?;
            if tokens["issuer"] == issuer {
                return Ok((file, tokens));
            }
        }
        Err("nothing is cached".to_owned())
    }

    pub(super) fn refresh_token(&self, issuer: &str) -> Result<Value, String> {
        Ok(self.cached(issuer)?.1["refreshToken"].clone())
    }

    /// Lets the cached ID token expire, as time does. Another refresh token may take the place of the cached one.
    pub(super) fn expire(&self, issuer: &str, refresh_token: Option<&Value>) -> Result<(), String> {
        let (file, mut tokens) = self.cached(issuer)?;
        tokens["expiresAt"] = tokens["receivedAt"].clone();
        if let Some(refresh_token) = refresh_token {
            tokens["refreshToken"] = refresh_token.clone();
        }
        fs::write(&file, tokens.to_string()).map_err(|error| error.to_string())
    }

    /// Logs out, after which nothing of the issuer is cached.
    pub(super) fn logout(&self, issuer: &str) -> Result<(), String> {
        let output = self.portcullis(&["logout"])?;
        if !output.status.success() || self.cached(issuer).is_ok() {
            return Err(format!("logout: {}", text(&output)));
        }
        Ok(())
    }

    /// Fails unless the output is that of the user.
    pub(super) fn expect_user(&self, when: &str, output: &Output) -> Result<(), String> {
        let text = text(output);
        let is_user = output.status.success() && text.contains(&self.user_name);
        if is_user { Ok(()) } else { Err(format!("{when}: {text}")) }
    }
}
