//! The page of the clusters in headless Chromium, with a real OpenID provider and a real kube-apiserver: logins, what
//! users see, downloads that kubectl uses, accessibility, and scripts on the API's origin.
//!
//! `PORTCULLIS_PICTURES=docs/pictures cargo test --test real -- page::` replaces the pictures of the documentation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use serde_json::{Value, json};
use testkit::paths::{cache_dir, temporary_dir, workspace_root};
use testkit::real::free_ports;

use crate::openid::Provider;
use crate::servers::{FRONT_PROXY, HeaderFlags, RealGateway, RealServers};

const FILES: [&str; 3] = ["package.json", "package-lock.json", "browser.mjs"];
const ORIGIN: &str = "https://clusters.company.test";

/// The tests of this group.
pub(crate) fn trials(trial: &dyn Fn(&str, crate::Test) -> Trial) -> Vec<Trial> {
    vec![
        trial("from the login to kubectl", Box::new(from_the_login_to_kubectl)),
        trial("without scripts, and by the keyboard alone", Box::new(without_scripts_and_by_the_keyboard)),
        trial(
            "a script on the API's origin gets nothing",
            Box::new(a_script_on_the_apis_origin_gets_nothing),
        ),
        trial("light and dark, wide and narrow", Box::new(light_and_dark)),
    ]
}

/// The reason why there is no browser, if any.
pub(crate) fn absent() -> Option<String> {
    crate::openid::absent().or_else(|| match chromium() {
        Some(_) => None,
        None => {
            Some("chromium is not installed; apt-get install --no-install-recommends chromium".to_owned())
        }
    })
}

fn chromium() -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories)
        .map(|directory| directory.join("chromium"))
        .find(|file| file.is_file())
}

/// Installs the program that drives the browser, unless an earlier run has. An existing directory is complete.
fn install() -> Result<PathBuf, String> {
    let own = workspace_root().join("tests/real/page/browser");
    let files = FILES.map(|file| own.join(file));
    let dir = cache_dir("page-browser", files.iter().map(PathBuf::as_path));
    if dir.exists() {
        return Ok(dir);
    }
    eprintln!("real: installing playwright-core with npm (once, some seconds)");
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

/// A gateway with a page, in front of a real server that stands for several clusters.
struct PageSetup {
    _provider: Provider,
    gateway: RealGateway,
    page_port: u16,
    directory: tempfile::TempDir,
}

impl PageSetup {
    fn new(servers: &RealServers, name: &str) -> Result<Self, String> {
        let log = servers.file(&format!("{name}-provider.log"))?;
        let provider = Provider::start(&servers.file("server.crt")?, &servers.file("server.key")?, &log)?;
        let server = servers.server(HeaderFlags::Good)?;
        let kubeconfig = servers.kubeconfig(name, server.address, &FRONT_PROXY)?;
        let [away, page_port, port] = free_ports()?;
        let nobody =
            servers.kubeconfig(&format!("{name}-away"), ([127, 0, 0, 1], away).into(), &FRONT_PROXY)?;
        let headers = json!({
            "requestheaderUsernameHeaders": ["X-Remote-User"], "requestheaderUIDHeaders": ["X-Remote-Uid"],
            "requestheaderGroupHeaders": ["X-Remote-Group"], "requestheaderExtraHeadersPrefix": ["X-Remote-Extra-"],
        });
        let cluster = |name: &str, kubeconfig: &Path, routes: Value, authentication: &Path| {
            let mut cluster = json!({"name": name, "kubeconfig": kubeconfig, "match": routes,
                "authentication": {"authenticationConfig": authentication}});
            cluster.as_object_mut().unwrap().extend(headers.as_object().unwrap().clone());
            cluster
        };
        let alices = authentication(servers, name, &provider, "alice")?;
        let admins = authentication(servers, name, &provider, "admin")?;
        let config = json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "GatewayConfiguration",
            "clusters": [
                cluster("prod", &kubeconfig, json!({"serverNames": ["prod.api.company.test"]}), &alices),
                cluster("staging", &kubeconfig, json!({"pathPrefix": "/clusters/staging"}), &alices),
                cluster("vault", &kubeconfig, json!({"pathPrefix": "/clusters/vault"}), &admins),
                cluster("away", &nobody, json!({"pathPrefix": "/clusters/away"}), &alices),
            ],
            "page": {
                "bindAddress": format!("127.0.0.1:{page_port}"),
                "url": ORIGIN,
                "tlsCertFile": servers.file("server.crt")?,
                "tlsPrivateKeyFile": servers.file("server.key")?,
                "oidcIssuerURL": provider.issuer,
                "oidcClientID": "page",
                "oidcCAFile": servers.file("servers-ca.crt")?,
                "oidcScopes": ["email", "groups", "offline_access"],
                "apiServerURL": format!("https://localhost:{port}"),
                "apiServerCAFile": servers.file("servers-ca.crt")?,
                "kubeconfigClientID": "kubernetes",
            },
        });
        let file = servers.file(&format!("{name}-gateway.yaml"))?;
        fs::write(&file, config.to_string()).map_err(|error| error.to_string())?;
        let gateway = servers.start_gateway_at(name, port, vec![format!("--config={}", file.display())])?;
        for cluster in ["prod", "staging", "vault"] {
            gateway.line_with(&["self-check passed", &format!("\"{cluster}\"")])?;
        }
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Self { _provider: provider, gateway, page_port, directory })
    }

    /// Plays scenes in the browser. Pictures are written to `pictures`.
    fn play(&self, pictures: &Path, scenes: &[&str]) -> Result<(), String> {
        let plan = json!({
            "page": self.page_port, "api": self.gateway.address.port(), "chromium": chromium(),
            "downloads": self.directory.path(), "pictures": pictures, "scenes": scenes,
        });
        let output = Command::new("node")
            .arg(install()?.join("browser.mjs"))
            .arg(plan.to_string())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let text = [output.stdout, output.stderr].concat();
        Err(String::from_utf8_lossy(&text).into_owned())
    }
}

/// A configuration that accepts one user of the provider.
fn authentication(
    servers: &RealServers,
    name: &str,
    provider: &Provider,
    user: &str,
) -> Result<PathBuf, String> {
    let authorities =
        fs::read_to_string(servers.file("servers-ca.crt")?).map_err(|error| error.to_string())?;
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {
                "url": provider.issuer,
                "certificateAuthority": authorities,
                "audiences": ["page", "kubernetes"],
                "audienceMatchPolicy": "MatchAny",
            },
            "claimValidationRules": [{"claim": "email", "requiredValue": format!("{user}@example.com")}],
            "claimMappings": {
                "username": {"claim": "sub", "prefix": "company:"},
                "groups": {"claim": "groups", "prefix": "company:"},
            },
        }],
    });
    let file = servers.file(&format!("{name}-{user}-authentication.yaml"))?;
    fs::write(&file, configuration.to_string()).map_err(|error| error.to_string())?;
    Ok(file)
}

fn from_the_login_to_kubectl(servers: &RealServers) -> Result<(), String> {
    let setup = PageSetup::new(servers, "page")?;
    setup.play(
        setup.directory.path(),
        &["sign in, clusters, kubeconfig, sign out", "a user whom no cluster lets in"],
    )?;
    let all = fs::read_to_string(setup.directory.path().join("clusters.kubeconfig")).unwrap();
    for secret in ["eyJ", "token:", "client-key-data", "password"] {
        if all.contains(secret) {
            return Err(format!("{secret} is in the kubeconfig:\n{all}"));
        }
    }
    for part in ["https://prod.api.company.test:", "/clusters/staging", "--client-id=kubernetes"] {
        if !all.contains(part) {
            return Err(format!("{part} is not in the kubeconfig:\n{all}"));
        }
    }
    // The log knows neither codes nor tokens.
    for secret in ["code=", "eyJ"] {
        if setup.gateway.line_with_now(&[secret]) {
            return Err(format!("the log has {secret}"));
        }
    }
    // kubectl with the download as it is: the exec plugin logs in with the browser of the environment.
    let kubeconfig = setup.directory.path().join("staging.kubeconfig");
    let programs = setup.directory.path().join("bin");
    fs::create_dir(&programs).map_err(|error| error.to_string())?;
    std::os::unix::fs::symlink(crate::PORTCULLIS, programs.join("portcullis"))
        .map_err(|error| error.to_string())?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&path))).unwrap();
    let whoami =
        format!("{} --kubeconfig {} auth whoami", servers.kubectl()?.display(), kubeconfig.display());
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &whoami, "/dev/null"])
        .env_clear()
        .env("HOME", setup.directory.path())
        .env("PATH", paths)
        .env("BROWSER", Provider::browser("alice")?)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() && text.contains("company:alice") && text.contains("company:team-alice") {
        Ok(())
    } else {
        Err(format!("kubectl: {text}"))
    }
}

fn without_scripts_and_by_the_keyboard(servers: &RealServers) -> Result<(), String> {
    let setup = PageSetup::new(servers, "page-plain")?;
    setup.play(setup.directory.path(), &["without scripts", "by the keyboard alone"])
}

fn a_script_on_the_apis_origin_gets_nothing(servers: &RealServers) -> Result<(), String> {
    let setup = PageSetup::new(servers, "page-script")?;
    setup.play(setup.directory.path(), &["a script of an application behind the API"])
}

fn light_and_dark(servers: &RealServers) -> Result<(), String> {
    let setup = PageSetup::new(servers, "page-pictures")?;
    let pictures = std::env::var_os("PORTCULLIS_PICTURES").map(|given| workspace_root().join(given));
    setup.play(pictures.as_deref().unwrap_or(setup.directory.path()), &["pictures"])
}
