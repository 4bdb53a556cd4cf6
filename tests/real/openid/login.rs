//! A user from an empty home directory to kubectl: `portcullis login`, the exec plugin under a real kubectl, and
//! `portcullis logout`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::provider::Provider;
use super::{ProviderSetup, RealServers};
use crate::servers::RealGateway;

/// A user with a home directory, and a gateway that knows the user's provider.
pub(super) struct LoginUser<'a> {
    servers: &'a RealServers,
    pub(super) setup: ProviderSetup<'a>,
    pub(super) gateway: RealGateway,
    home: TempDir,
}

impl<'a> LoginUser<'a> {
    fn new(servers: &'a RealServers, name: &'static str) -> Result<Self, String> {
        Self::with_flags(servers, name, &[])
    }

    /// A user of a gateway with further flags.
    pub(super) fn with_flags(
        servers: &'a RealServers,
        name: &'static str,
        more: &[String],
    ) -> Result<Self, String> {
        let setup = ProviderSetup::new(servers, name)?;
        let file = format!("--authentication-config={}", setup.configuration(&[&setup.provider])?.display());
        let gateway = setup.gateway("login", &[std::slice::from_ref(&file), more].concat())?;
        setup.until_known(&gateway, &setup.provider.login("alice")?)?;
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Self { servers, setup, gateway, home })
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.home.path().join(".kube/config")
    }

    /// A program with an environment of the user alone.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("HOME", self.home.path()).env("PATH", std::env::var_os("PATH").unwrap());
        command
    }

    pub(super) fn portcullis(&self, arguments: &[&str]) -> Result<Output, String> {
        let output = self.command(Path::new(crate::PORTCULLIS)).args(arguments).output();
        output.map_err(|error| error.to_string())
    }

    fn login(&self, user: &str) -> Result<Output, String> {
        let output = self.login_with(&Provider::browser(user)?)?.output();
        output.map_err(|error| error.to_string())
    }

    pub(super) fn login_with(&self, browser: &str) -> Result<Command, String> {
        let server = format!("--server=https://{}", self.gateway.address);
        let authority = self.servers.file("servers-ca.crt")?.display().to_string();
        let mut command = self.command(Path::new(crate::PORTCULLIS));
        command.args([
            "login",
            &server,
            "--name=gateway",
            &format!("--certificate-authority={authority}"),
            &format!("--issuer={}", self.setup.provider.issuer),
            &format!("--issuer-certificate-authority={authority}"),
            "--client-id=kubernetes",
            "--scope=offline_access,email,groups",
            // This provider gives a refresh token only with consent: OpenID Connect Core 1.0, section 11.
            "--prompt=consent",
            &format!("--browser-command={browser}"),
        ]);
        Ok(command)
    }

    /// Ctrl-C while the browser shows the provider's page: nothing is left but the lock file.
    fn interrupt_a_login(&self) -> Result<(), String> {
        use std::io::BufRead as _;
        use std::process::Stdio;

        let mut child =
            self.login_with("true")?.stderr(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        lines.find(|line| line.contains("log in with the browser")).ok_or("no URL is shown")?;
        let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        let ended = child.wait().map_err(|error| error.to_string())?;
        if !killed.is_ok_and(|killed| killed.success()) || ended.code() != Some(130) {
            return Err(format!("Ctrl-C: {ended}"));
        }
        let files = fs::read_dir(self.home.path().join(".cache/portcullis/login")).unwrap();
        let names: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        let only_lock =
            names.iter().all(|file| file.extension().is_some_and(|extension| extension == "lock"));
        if !only_lock || self.home.path().join(".kube").exists() {
            return Err(format!("Ctrl-C leaves {names:?}"));
        }
        Ok(())
    }

    /// `kubectl auth whoami`, not on a terminal.
    pub(super) fn whoami(&self) -> Result<Output, String> {
        let output = self.command(self.servers.kubectl()?).args(["auth", "whoami", "--output=json"]).output();
        output.map_err(|error| error.to_string())
    }

    /// The same on a terminal.
    fn whoami_on_a_terminal(&self) -> Result<Command, String> {
        let mut command = self.command(Path::new("script"));
        let kubectl = format!("{} auth whoami", self.servers.kubectl()?.display());
        command.args(["--quiet", "--return", "--command", &kubectl, "/dev/null"]);
        Ok(command)
    }

    /// The files with tokens.
    pub(super) fn cached(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.home.path().join(".cache/portcullis/login")).unwrap();
        let files = files.map(|file| file.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|extension| extension == "json")).collect()
    }

    /// Lets the cached ID token expire, as time does.
    pub(super) fn expire(&self) {
        for file in self.cached() {
            let mut tokens: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            if tokens["receivedAt"].is_null() {
                continue; // a certificate
            }
            tokens["expiresAt"] = tokens["receivedAt"].clone();
            fs::write(&file, tokens.to_string()).unwrap();
        }
    }

    pub(super) fn grants(&self) -> Result<(u64, u64), String> {
        let provider = &self.setup.provider;
        // One login was made without a browser, by `new`.
        Ok((provider.grants("authorization_code")? - 1, provider.grants("refresh_token")?))
    }

    fn expect_grants(&self, when: &str, expected: (u64, u64)) -> Result<(), String> {
        let grants = self.grants()?;
        if grants == expected { Ok(()) } else { Err(format!("{when}: (logins, refreshes) {grants:?}")) }
    }

    pub(super) fn is_alice(&self, output: &Output) -> Result<(), String> {
        let name = format!("{}#alice", self.setup.provider.issuer);
        let text = text(output);
        if output.status.success() && text.contains(&name) && text.contains("company:team-alice") {
            Ok(())
        } else {
            Err(text)
        }
    }
}

pub(super) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// Runs all at the same time.
pub(super) fn all(commands: Vec<Command>) -> Result<Vec<Output>, String> {
    let started = commands.into_iter().map(|mut command| {
        use std::process::Stdio;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    });
    let started: Vec<_> = started.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let outputs =
        started.into_iter().map(|child| child.wait_with_output().map_err(|error| error.to_string()));
    outputs.collect()
}

pub(super) const AT_ONCE: usize = 20;

pub(super) fn from_an_empty_home_to_kubectl(servers: &RealServers) -> Result<(), String> {
    let user = LoginUser::new(servers, "login")?;
    user.interrupt_a_login()?;
    let output = user.login("alice")?;
    user.is_alice(&output)?;
    user.expect_grants("login", (1, 0))?;
    let kubeconfig = fs::read_to_string(user.kubeconfig()).map_err(|error| error.to_string())?;
    let tokens: Value = serde_json::from_slice(&fs::read(&user.cached()[0]).unwrap()).unwrap();
    for secret in ["token", "refreshToken"] {
        let secret = tokens[secret].as_str().unwrap();
        if kubeconfig.contains(secret) || text(&output).contains(secret) {
            return Err("a token is shown or written to the kubeconfig".to_owned());
        }
    }
    // kubectl needs no terminal and no login.
    for _ in 0..2 {
        user.is_alice(&user.whoami()?)?;
    }
    user.expect_grants("kubectl", (1, 0))?;
    // The token has expired: many at once refresh it once.
    user.expire();
    let kubectls = (0..AT_ONCE).map(|_| {
        let mut command = user.command(servers.kubectl()?);
        command.args(["auth", "whoami"]);
        Ok::<_, String>(command)
    });
    for output in all(kubectls.collect::<Result<_, _>>()?)? {
        user.is_alice(&output)?;
    }
    user.expect_grants("twenty at once", (1, 1))
}

/// Two contexts of one cache entry, with different arguments, while another program changes the kubeconfig.
pub(super) fn contexts_of_one_login(servers: &RealServers) -> Result<(), String> {
    let user = LoginUser::new(servers, "contexts")?;
    let authority = fs::read(servers.file("servers-ca.crt")?).map_err(|error| error.to_string())?;
    let authority = STANDARD.encode(authority);
    let entry = |name: &str, timeout: &str| {
        let arguments = [
            "credential".to_owned(),
            format!("--issuer={}", user.setup.provider.issuer),
            format!("--issuer-certificate-authority-data={authority}"),
            "--client-id=kubernetes".to_owned(),
            "--scope=offline_access,email,groups".to_owned(),
            "--prompt=consent".to_owned(),
            format!("--login-timeout={timeout}"),
        ];
        json!({"name": name, "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1",
            "command": "portcullis", "args": arguments, "interactiveMode": "IfAvailable"}}})
    };
    let context = |name: &str| json!({"name": name, "context": {"cluster": "gateway", "user": name}});
    let cluster = json!({"server": format!("https://{}", user.gateway.address), "certificate-authority-data": authority});
    let company = json!({"apiVersion": "v1", "kind": "Config",
        "clusters": [{"name": "gateway", "cluster": cluster}],
        "users": [entry("one", "4m"), entry("two", "3m")], "contexts": [context("one"), context("two")]});
    let path = user.home.path().join("company.kubeconfig");
    let browser = user.home.path().join("browser");
    let script = format!(
        "#!/bin/sh\n{} config set-context another --cluster=other --user=other >/dev/null\nexec {} \"$@\"\n",
        servers.kubectl()?.display(),
        Provider::browser("alice")?
    );
    fs::write(&path, company.to_string()).map_err(|error| error.to_string())?;
    fs::write(&browser, script).map_err(|error| error.to_string())?;
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o700)).map_err(|error| error.to_string())?;
    let output = user.portcullis(&[
        "login",
        "--all",
        "--yes",
        &format!("--from={}", path.display()),
        &format!("--browser-command={}", browser.display()),
    ])?;
    user.is_alice(&output)?;
    user.expect_grants("two contexts", (1, 0))?;
    let contexts =
        user.command(servers.kubectl()?).args(["config", "get-contexts", "--output=name"]).output();
    let contexts = contexts.map_err(|error| error.to_string())?;
    if contexts.stdout != b"another\none\ntwo\n" {
        return Err(text(&contexts));
    }
    Ok(())
}

pub(super) fn a_revoked_login_and_a_new_one(servers: &RealServers) -> Result<(), String> {
    let user = LoginUser::new(servers, "revoked-login")?;
    user.is_alice(&user.login("alice")?)?;
    user.setup.provider.revoke()?;
    user.expire();
    let refused = user.whoami()?;
    let message = text(&refused);
    if refused.status.success()
        || !message.contains("the provider no longer accepts this login")
        || !message.contains("fix: run `portcullis login`")
    {
        return Err(message);
    }
    // On a terminal kubectl allows a login; of twenty, one opens the browser.
    let kubectls = (0..AT_ONCE).map(|_| user.whoami_on_a_terminal()).collect::<Result<_, _>>()?;
    for output in all(kubectls)? {
        user.is_alice(&output)?;
    }
    user.expect_grants("after the new login", (2, 0))?;
    let output = user.portcullis(&["logout"])?;
    if !output.status.success() || !user.cached().is_empty() {
        return Err(format!("logout: {}", text(&output)));
    }
    let refused = user.whoami()?;
    if refused.status.success() || !text(&refused).contains("no login is cached") {
        return Err(text(&refused));
    }
    Ok(())
}

pub(super) fn a_device_code_and_a_user_who_may_not(servers: &RealServers) -> Result<(), String> {
    use std::io::BufRead as _;

    let user = LoginUser::new(servers, "device-login")?;
    // Bob lacks the claim that the cluster requires: nothing is written.
    let refused = user.login("bob")?;
    if refused.status.success()
        || !text(&refused).contains("does not accept the token")
        || user.kubeconfig().exists()
    {
        return Err(text(&refused));
    }
    user.is_alice(&user.login("alice")?)?;
    let mut login = user.command(Path::new(crate::PORTCULLIS));
    login
        .args(["login", "--flow=device"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = login.spawn().map_err(|error| error.to_string())?;
    let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.contains("enter the code")).ok_or("no code is shown")?;
    let code = lines.next().ok_or("no code is shown")?;
    user.setup.provider.enter("alice", code.trim())?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    user.is_alice(&output)?;
    user.is_alice(&user.whoami()?)?;
    let granted = user.setup.provider.grants("urn:ietf:params:oauth:grant-type:device_code")?;
    if granted == 1 { Ok(()) } else { Err(format!("{granted} device codes were granted")) }
}
