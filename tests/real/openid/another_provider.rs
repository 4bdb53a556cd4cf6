//! A login with a provider of another make: the OpenID library of ZITADEL (`tests/go/zitadel`). Unlike `oidc-provider`, it
//! replaces the refresh token with each use, and its ID tokens have other claims.

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

/// The subject of the one user.
const SUBJECT: &str = "id-of-alice";
const AT_ONCE: usize = 20;

/// A running provider, which ends with its standard input.
struct Zitadel {
    program: PathBuf,
    issuer: String,
    child: Child,
}

impl Zitadel {
    fn start(servers: &RealServers) -> Result<Self, String> {
        let program = GoProgram::build("zitadel").ok_or("Go is not installed")?.path().to_owned();
        let log = fs::File::create(servers.file("zitadel.log")?).map_err(|error| error.to_string())?;
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
        let issuer = ready["issuer"].as_str().ok_or("no issuer")?.to_owned();
        Ok(Self { program, issuer, child })
    }
}

impl Drop for Zitadel {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A gateway that knows the provider, and a user with an empty home directory.
struct Setup<'a> {
    servers: &'a RealServers,
    provider: Zitadel,
    gateway: RealGateway,
    home: TempDir,
}

impl<'a> Setup<'a> {
    fn new(servers: &'a RealServers) -> Result<Self, String> {
        let provider = Zitadel::start(servers)?;
        let authorities =
            fs::read_to_string(servers.file("servers-ca.crt")?).map_err(|error| error.to_string())?;
        let configuration = json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": {"url": provider.issuer, "certificateAuthority": authorities, "audiences": ["kubernetes"]},
                "claimMappings": {"username": {"claim": "sub", "prefix": "zitadel:"}},
            }],
        });
        let file = servers.file("zitadel-authentication.yaml")?;
        fs::write(&file, configuration.to_string()).map_err(|error| error.to_string())?;
        let server = servers.server(HeaderFlags::Good)?;
        let flags = [format!("--authentication-config={}", file.display())];
        let gateway = servers.gateway_with("zitadel", server.address, &FRONT_PROXY, &flags)?;
        gateway.line_with(&["self-check passed"])?;
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Self { servers, provider, gateway, home })
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("HOME", self.home.path()).env("PATH", std::env::var_os("PATH").unwrap());
        command.args(arguments);
        command
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Result<Output, String> {
        self.command(program, arguments).output().map_err(|error| error.to_string())
    }

    /// Logs in. The gateway fetches the keys of an issuer in the background, and a token that it refuses writes nothing.
    fn login(&self) -> Result<Output, String> {
        let authority = self.servers.file("servers-ca.crt")?.display().to_string();
        let arguments = [
            "login".to_owned(),
            format!("--server=https://{}", self.gateway.address),
            "--name=gateway".to_owned(),
            format!("--certificate-authority={authority}"),
            format!("--issuer={}", self.provider.issuer),
            format!("--issuer-certificate-authority={authority}"),
            "--client-id=kubernetes".to_owned(),
            format!("--browser-command={} browse", self.provider.program.display()),
        ];
        let arguments = arguments.each_ref().map(String::as_str);
        let started = Instant::now();
        loop {
            let output = self.run(Path::new(crate::PORTCULLIS), &arguments)?;
            let is_early = text(&output).contains("does not accept the token");
            if !is_early || started.elapsed() > START_TIMEOUT {
                return Ok(output);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn cached(&self) -> Result<(PathBuf, Value), String> {
        let directory = self.home.path().join(".cache/portcullis/login");
        let files = fs::read_dir(directory).map_err(|error| error.to_string())?;
        let mut files = files.map(|file| file.unwrap().path());
        let file = files.find(|file| file.extension().is_some_and(|extension| extension == "json"));
        let file = file.ok_or("nothing is cached")?;
        let tokens = fs::read(&file).map_err(|error| error.to_string())?;
        Ok((file, serde_json::from_slice(&tokens).map_err(|error| error.to_string())?))
    }
}

/// Fails unless the output is that of the user.
fn expect_user(when: &str, output: &Output) -> Result<(), String> {
    let text = text(output);
    let is_user = output.status.success() && text.contains(&format!("zitadel:{SUBJECT}"));
    if is_user { Ok(()) } else { Err(format!("{when}: {text}")) }
}

pub(super) fn a_login_with_a_provider_of_another_make(servers: &RealServers) -> Result<(), String> {
    let setup = Setup::new(servers)?;
    expect_user("login", &setup.login()?)?;
    let kubectl = servers.kubectl()?;
    let whoami = ["auth", "whoami"];
    expect_user("kubectl", &setup.run(kubectl, &whoami)?)?;
    // The provider accepts a refresh token once: a second refresh with it would fail.
    for round in 0..3 {
        let (file, mut tokens) = setup.cached()?;
        let before = tokens["refreshToken"].clone();
        tokens["expiresAt"] = tokens["receivedAt"].clone();
        fs::write(&file, tokens.to_string()).map_err(|error| error.to_string())?;
        for output in all((0..AT_ONCE).map(|_| setup.command(kubectl, &whoami)).collect())? {
            expect_user(&format!("refresh {round}"), &output)?;
        }
        if setup.cached()?.1["refreshToken"] == before {
            return Err("the refresh token was not replaced".to_owned());
        }
    }
    let refresh_token = setup.cached()?.1["refreshToken"].clone();
    let output = setup.run(Path::new(crate::PORTCULLIS), &["logout"])?;
    if !output.status.success() || setup.cached().is_ok() {
        return Err(format!("logout: {}", text(&output)));
    }
    // A copy of the token is worth nothing.
    expect_user("a login after the logout", &setup.login()?)?;
    let (file, mut tokens) = setup.cached()?;
    tokens["refreshToken"] = refresh_token;
    tokens["expiresAt"] = tokens["receivedAt"].clone();
    fs::write(&file, tokens.to_string()).map_err(|error| error.to_string())?;
    let refused = setup.run(kubectl, &whoami)?;
    if refused.status.success() || !text(&refused).contains("run `portcullis login`") {
        return Err(format!("a revoked refresh token: {}", text(&refused)));
    }
    Ok(())
}
