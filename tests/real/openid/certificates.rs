//! `--client-certificate`: real kubectl gets a certificate with the token of the user, which the gateway's controllers
//! sign, and an administrator who approves, denies, or does nothing.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::paths::workspace_root;
use testkit::real::START_TIMEOUT;

use super::login::{AT_ONCE, LoginUser, all, text};
use super::provider::Provider;
use crate::servers::{ApiServer, HeaderFlags, RealServers};

/// The administrator of the cluster, directly at the API server.
struct Administrator<'a> {
    servers: &'a RealServers,
    server: &'a ApiServer,
}

impl Administrator<'_> {
    fn kubectl(&self, arguments: &[&str]) -> Result<Output, String> {
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        let output = Command::new(self.servers.kubectl()?)
            .env_clear()
            .env("HOME", home.path())
            .arg(format!("--server=https://{}", self.server.address))
            .arg(format!("--certificate-authority={}", self.servers.file("servers-ca.crt")?.display()))
            .arg("--token=strong-token")
            .args(arguments)
            .output();
        output.map_err(|error| error.to_string())
    }

    fn done(&self, arguments: &[&str]) -> Result<(), String> {
        let output = self.kubectl(arguments)?;
        if output.status.success() { Ok(()) } else { Err(format!("{arguments:?}: {}", text(&output))) }
    }

    fn requests(&self) -> Result<Vec<Value>, String> {
        let output = self.kubectl(&["get", "csr", "--output=json"])?;
        let list: Value = serde_json::from_slice(&output.stdout).map_err(|_| text(&output))?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// The name of the only request that waits for a decision.
    fn pending(&self) -> Result<Option<String>, String> {
        let is_pending = |request: &&Value| request["status"]["conditions"].is_null();
        let requests = self.requests()?;
        let pending: Vec<_> = requests.iter().filter(is_pending).collect();
        match pending.as_slice() {
            [] => Ok(None),
            [request] => Ok(request["metadata"]["name"].as_str().map(str::to_owned)),
            several => Err(format!("{} requests are pending", several.len())),
        }
    }

    /// Decides about the next request, while `work` runs.
    fn decide<T>(&self, decision: &str, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let decided = scope.spawn(|| {
                let started = Instant::now();
                loop {
                    if let Some(name) = self.pending()? {
                        return self.done(&["certificate", decision, &name]);
                    }
                    if is_over.load(Ordering::SeqCst) || started.elapsed() > START_TIMEOUT {
                        return Err("there was no request".to_owned());
                    }
                    thread::sleep(Duration::from_millis(50));
                }
            });
            let outcome = work();
            is_over.store(true, Ordering::SeqCst);
            decided.join().unwrap()?;
            outcome
        })
    }
}

/// Login by flags.
fn login(user: &LoginUser<'_>) -> Result<Output, String> {
    let mut command = user.login_with(&Provider::browser("alice")?)?;
    command.arg("--client-certificate").output().map_err(|error| error.to_string())
}

/// The kubeconfig that an administrator gives to users, for certificates that are waited for one second.
fn company_kubeconfig(servers: &RealServers, user: &LoginUser<'_>) -> Result<PathBuf, String> {
    let file = |name: &str| servers.file(name).map(|file| file.display().to_string());
    let authority = file("servers-ca.crt")?;
    let output = user.portcullis(&[
        "kubeconfig",
        &format!("--tls-cert-file={}", file("server.crt")?),
        &format!("--tls-private-key-file={}", file("server.key")?),
        &format!("--backend-kubeconfig={}", file("gateway-certificates-login-kubeconfig")?),
        &format!("--authentication-config={}", file("certificates-authentication.yaml")?),
        &format!("--server=https://{}", user.gateway.address),
        &format!("--certificate-authority={authority}"),
        &format!("--issuer-certificate-authority={authority}"),
        "--scope=offline_access,email,groups",
        "--prompt=consent",
        "--client-certificate",
        "--certificate-duration=1h",
        "--certificate-timeout=1s",
    ])?;
    let path = user.kubeconfig().parent().unwrap().with_file_name("company.kubeconfig");
    fs::write(&path, &output.stdout).map_err(|error| error.to_string())?;
    if output.status.success() { Ok(path) } else { Err(text(&output)) }
}

/// The user as `kubectl auth whoami` prints it.
fn user_info(output: &Output) -> Result<Value, String> {
    let review: Value = serde_json::from_slice(&output.stdout).map_err(|_| text(output))?;
    Ok(review["status"]["userInfo"].clone())
}

/// The file and content of the only cached certificate. The login that was refused left an entry without one, and the
/// order of a directory is any.
fn cached_certificate(user: &LoginUser<'_>) -> Result<(PathBuf, Value), String> {
    let files = user.cached().into_iter();
    let documents = files.map(|file| {
        let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        (file, document)
    });
    let mut certificates: Vec<_> = documents.filter(|(_, document)| document["issued"].is_object()).collect();
    match certificates.len() {
        1 => Ok(certificates.remove(0)),
        count => Err(format!("{count} certificates are cached, in {:?}", user.cached())),
    }
}

/// Lets the certificate expire, as time does.
fn expire(user: &LoginUser<'_>) -> Result<(), String> {
    let (file, mut document) = cached_certificate(user)?;
    document["issued"]["expiresAt"] = document["issued"]["receivedAt"].clone();
    fs::write(file, document.to_string()).map_err(|error| error.to_string())
}

fn expect(what: &str, holds: bool, found: impl std::fmt::Debug) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{what}: {found:?}")) }
}

pub(super) fn certificates_in_place_of_tokens(servers: &RealServers) -> Result<(), String> {
    let server = servers.server(HeaderFlags::Good)?;
    let signing = [
        "--controllers=csrsigning".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--cluster-signing-cert-file={}", servers.file("clients-ca.crt")?.display()),
        format!("--cluster-signing-key-file={}", servers.file("clients-ca.key")?.display()),
    ];
    let administrator = Administrator { servers, server: &server };
    let rules = workspace_root().join("deploy/rbac-controllers.yaml");
    administrator.done(&["apply", "--filename", &rules.display().to_string()])?;
    let user = LoginUser::with_flags(servers, "certificates", &signing)?;

    // Without the right to create requests, nothing is written. The rule of the message helps.
    let refused = login(&user)?;
    let message = text(&refused);
    expect("no right", !refused.status.success() && !user.kubeconfig().exists(), &message)?;
    let rule = message.lines().find(|line| line.contains("create clusterrole client-certificates"));
    let binding = message.lines().find(|line| line.contains("create clusterrolebinding client-certificates"));
    for line in [rule, binding] {
        let line = line.ok_or_else(|| message.clone())?.replace("GROUP", "company:developers");
        let arguments: Vec<&str> = line.split_whitespace().skip(1).collect();
        administrator.done(&arguments)?;
    }

    // Not approved in time: the kubeconfig is written, kubectl goes on with the same request.
    let company = company_kubeconfig(servers, &user)?;
    let browser = format!("--browser-command={}", Provider::browser("alice")?);
    let late =
        user.portcullis(&["login", "--all", "--yes", "--from", &company.display().to_string(), &browser])?;
    expect(
        "late login",
        late.status.success() && text(&late).contains("kubectl certificate approve"),
        text(&late),
    )?;
    let name = administrator.pending()?.ok_or("no request")?;
    let kubectl = user.whoami()?;
    let message = text(&kubectl);
    expect(
        "late kubectl",
        !kubectl.status.success() && message.contains(&format!("portcullis certs approve {name}")),
        message,
    )?;
    administrator.done(&["certificate", "approve", &name])?;
    // Its own deadline was for the message alone.
    change_timeout(&user)?;
    let approved = user.whoami()?;
    user.is_alice(&approved)?;
    expect("one request", administrator.requests()?.len() == 1, ())?;

    // The same user as with the token, by a certificate.
    let token = user.setup.provider.login("alice")?;
    let (_, review) = super::whoami(servers, &user.gateway, &token)?;
    let with_token = &review["status"]["userInfo"];
    let found = user_info(&approved)?;
    for field in ["username", "groups"] {
        expect(field, found[field] == with_token[field], (&found, with_token))?;
    }
    let credential_id = found["extra"]["authentication.kubernetes.io/credential-id"][0].to_string();
    expect("a certificate", credential_id.contains("X509SHA256="), credential_id)?;

    // The certificate is used when the token has expired, and neither a key nor a token is shown.
    user.expire();
    let before = user.grants()?;
    user.is_alice(&user.whoami()?)?;
    expect("no refresh", user.grants()? == before, user.grants())?;
    let (_, document) = cached_certificate(&user)?;
    let key = document["issued"]["key"].as_str().unwrap();
    let shown =
        [&late, &kubectl, &approved].map(text).concat() + &fs::read_to_string(user.kubeconfig()).unwrap();
    expect("no secret", !shown.contains(key) && !shown.contains("PRIVATE KEY"), ())?;

    // It expires: twenty kubectls cause one request.
    expire(&user)?;
    let kubectls = (0..AT_ONCE).map(|_| {
        let mut command = user.command(servers.kubectl()?);
        command.args(["auth", "whoami"]);
        Ok::<_, String>(command)
    });
    let kubectls = kubectls.collect::<Result<_, _>>()?;
    for output in administrator.decide("approve", || all(kubectls))? {
        user.is_alice(&output)?;
    }
    expect("twenty at once", administrator.requests()?.len() == 2, administrator.requests()?.len())?;

    // Denied.
    expire(&user)?;
    let denied = administrator.decide("deny", || user.whoami())?;
    let message = text(&denied);
    expect("denied", !denied.status.success() && message.contains("the request was denied"), message)?;

    // After the logout, nothing is left.
    let output = user.portcullis(&["logout"])?;
    expect("logout", output.status.success() && user.cached().is_empty(), text(&output))?;
    let refused = user.whoami()?;
    expect(
        "after the logout",
        !refused.status.success() && text(&refused).contains("no login is cached"),
        text(&refused),
    )
}

/// Gives kubectl three minutes for a certificate.
fn change_timeout(user: &LoginUser<'_>) -> Result<(), String> {
    let kubeconfig = fs::read_to_string(user.kubeconfig()).map_err(|error| error.to_string())?;
    let changed = kubeconfig.replace("--certificate-timeout=1000ms", "--certificate-timeout=180s");
    expect("the exec stanza", changed != kubeconfig, &kubeconfig)?;
    fs::write(user.kubeconfig(), changed).map_err(|error| error.to_string())
}
