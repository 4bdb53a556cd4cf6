//! etcd, API servers that are configured in several ways, and gateways in front of them.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use http::{Method, Request};
use serde_json::json;
use testkit::now;
use testkit::pki::{Ca, Issued, Key, KeyKind, pem};
use testkit::real::{
    self, Programs, ServerProcess, SharedServers, Source, account_flags, certificate_user, eventually,
    free_ports, start_etcd,
};
use testkit::{BoxedBody, Gateway, Http1, full, tls_client};
use tokio::runtime::{Handle, Runtime};

pub(crate) const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
pub(crate) const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// How an API server is configured to read identities from headers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderFlags {
    Good,
    NoFrontProxies,
    OtherUserHeader,
    OtherGroupHeaders,
    NoUids,
}

/// The credential of a gateway at its API server.
pub(crate) enum Credential {
    /// A certificate with this common name, signed by this CA.
    Certificate { ca: &'static str, name: &'static str },
    /// A certificate that has expired.
    Expired,
    /// A valid certificate, without flags for the names of the server's identity headers.
    WithoutHeaderFlags,
    /// A token, for impersonation.
    Token(&'static str),
}

/// The certificate that the API servers accept for a front proxy.
pub(crate) const FRONT_PROXY: Credential = Credential::Certificate { ca: "inner", name: "front-proxy" };

/// The servers of one run. Each starts when the first test needs it.
pub(crate) struct RealServers {
    shared: SharedServers<Environment>,
    /// The one that is configured well, for all tests that need no other.
    server: OnceLock<Result<Arc<ApiServer>, String>>,
}

/// State that all servers share.
struct Environment {
    programs: Programs,
    dir: PathBuf,
    authorities: BTreeMap<&'static str, Ca>,
    alice: Issued,
    bob: Issued,
    etcd_port: u16,
    _etcd: ServerProcess,
}

/// A running kube-apiserver.
pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    _process: ServerProcess,
}

/// A running gateway; its log is JSON.
pub(crate) struct RealGateway {
    pub(crate) address: SocketAddr,
    log: PathBuf,
    process: Mutex<ServerProcess>,
    runtime: Handle,
}

impl RealServers {
    pub(crate) fn new(source: Source) -> Self {
        Self { shared: SharedServers::new("real", source), server: OnceLock::new() }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.shared.runtime()
    }

    fn environment(&self) -> Result<&Environment, String> {
        self.shared.get_or_start(|runtime, programs, dir| runtime.block_on(Environment::start(programs, dir)))
    }

    /// Stops all servers; keeps the logs if `keep_logs` is set.
    pub(crate) fn finish(self, keep_logs: bool) {
        drop(self.server);
        self.shared.finish(keep_logs);
    }

    pub(crate) fn alice(&self) -> &Issued {
        &self.environment().unwrap().alice
    }

    pub(crate) fn bob(&self) -> &Issued {
        &self.environment().unwrap().bob
    }

    /// A certificate of a user in at most one group.
    pub(crate) fn client(&self, user: &str, group: &str) -> Result<Issued, String> {
        let leaf = self.environment()?.authorities["clients"].leaf().cn(user);
        Ok(if group.is_empty() { leaf } else { leaf.org(group) }.issue())
    }

    /// The server with these flags. That of good ones is shared; the others are for one test alone, as each that runs takes a tenth
    /// of a core.
    pub(crate) fn server(&self, flags: HeaderFlags) -> Result<Arc<ApiServer>, String> {
        let start = || self.own_server(flags, flags.name()).map(Arc::new);
        if flags == HeaderFlags::Good { self.server.get_or_init(start).clone() } else { start() }
    }

    /// A server for a single test.
    pub(crate) fn own_server(&self, flags: HeaderFlags, name: &str) -> Result<ApiServer, String> {
        self.own_server_with(flags, name, &[])
    }

    /// The same with further flags.
    pub(crate) fn own_server_with(
        &self,
        flags: HeaderFlags,
        name: &str,
        more: &[&str],
    ) -> Result<ApiServer, String> {
        // What it creates after it is ready, and some tests need.
        const CREATED: [&str; 4] = [
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:basic-user",
            "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/extension-apiserver-authentication-reader",
            "/api/v1/namespaces/kube-system",
            "/api/v1/namespaces/default",
        ];
        let flags = self.environment()?.server_flags(flags, name, more);
        let started = self.environment()?.api_server(name).start(&flags, async |address| {
            for path in CREATED {
                if self.exists(address, path).await != Ok(true) {
                    return false;
                }
            }
            true
        });
        let (address, process) = self.runtime().block_on(started)?;
        Ok(ApiServer { address, _process: process })
    }

    /// Starts a server without waiting until it is ready.
    pub(crate) fn start_at(&self, flags: HeaderFlags, name: &str, port: u16) -> Result<ApiServer, String> {
        let environment = self.environment()?;
        let flags = environment.server_flags(flags, name, &[]);
        let process = environment.api_server(name).start_at(port, &flags)?;
        Ok(ApiServer { address: ([127, 0, 0, 1], port).into(), _process: process })
    }

    /// Whether the server has this object, from a direct request as administrator.
    pub(crate) async fn exists(&self, server: SocketAddr, path: &str) -> Result<bool, String> {
        let Some(mut client) = self.administrator(server).await else { return Ok(false) };
        Ok(client.get(path, &[]).await.status() == http::StatusCode::OK)
    }

    /// Creates an object as administrator.
    pub(crate) async fn create(&self, server: SocketAddr, path: &str, object: &str) -> Result<(), String> {
        let mut client = self.administrator(server).await.ok_or("the server does not accept connections")?;
        let created = client.send(post(path, object)).await.map_err(|error| error.to_string())?.status();
        if created.is_success() { Ok(()) } else { Err(format!("{path}: {created}")) }
    }

    /// A direct connection of an administrator.
    async fn administrator(&self, server: SocketAddr) -> Option<Http1> {
        let direct = Gateway::at(server, None);
        let stream = tokio::net::TcpStream::connect(server).await.ok()?;
        let alice = self.alice();
        let mut config = tls_client(rustls::DEFAULT_VERSIONS)
            .with_client_auth_cert(alice.chain.clone(), alice.key.clone_key())
            .unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = "localhost".try_into().unwrap();
        let connected = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        Some(direct.http1_over(connected.ok()?).await)
    }

    /// A file in the directory that all servers share.
    pub(crate) fn file(&self, name: &str) -> Result<PathBuf, String> {
        Ok(self.environment()?.dir.join(name))
    }

    pub(crate) fn etcd_port(&self) -> Result<u16, String> {
        Ok(self.environment()?.etcd_port)
    }

    pub(crate) fn programs(&self) -> Result<&Programs, String> {
        Ok(&self.environment()?.programs)
    }

    pub(crate) fn kubectl(&self) -> Result<&Path, String> {
        Ok(&self.programs()?.kubectl)
    }

    /// Starts a gateway without waiting until it is ready.
    pub(crate) fn gateway(
        &self,
        name: &str,
        server: SocketAddr,
        credential: &Credential,
    ) -> Result<RealGateway, String> {
        self.gateway_with(name, server, credential, &[])
    }

    /// Starts a gateway with further flags.
    pub(crate) fn gateway_with(
        &self,
        name: &str,
        server: SocketAddr,
        credential: &Credential,
        more: &[String],
    ) -> Result<RealGateway, String> {
        let name = format!("gateway {name}").replace(' ', "-");
        let kubeconfig = self.kubeconfig(&name, server, credential)?;
        let mut flags = vec![format!("--backend-kubeconfig={}", kubeconfig.display())];
        if !matches!(credential, Credential::WithoutHeaderFlags) {
            flags.extend(
                [
                    "--backend-requestheader-username-headers=X-Remote-User",
                    "--backend-requestheader-uid-headers=X-Remote-Uid",
                    "--backend-requestheader-group-headers=X-Remote-Group",
                    "--backend-requestheader-extra-headers-prefix=X-Remote-Extra-",
                ]
                .map(str::to_owned),
            );
        }
        if matches!(credential, Credential::Token(_)) {
            flags.push("--identity=impersonate".to_owned());
        }
        flags.extend_from_slice(more);
        self.start_gateway(&name, flags)
    }

    /// Starts a gateway that takes several servers for one cluster.
    pub(crate) fn gateway_of_several(
        &self,
        name: &str,
        servers: [SocketAddr; 2],
        credential: &Credential,
    ) -> Result<RealGateway, String> {
        let name = format!("gateway {name}").replace(' ', "-");
        let kubeconfig = self.kubeconfig(&name, servers[0], credential)?;
        let identity =
            if matches!(credential, Credential::Token(_)) { "impersonate" } else { "requestHeader" };
        let urls = servers.map(|server| format!("https://{server}"));
        let config = json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "GatewayConfiguration",
            "clusters": [{"name": "c", "kubeconfig": kubeconfig, "identity": identity, "endpoints": urls}],
        });
        let file = self.file(&format!("{name}.yaml"))?;
        fs::write(&file, config.to_string()).unwrap();
        self.start_gateway(&name, vec![format!("--config={}", file.display())])
    }

    /// Writes the kubeconfig of a gateway.
    pub(crate) fn kubeconfig(
        &self,
        name: &str,
        server: SocketAddr,
        credential: &Credential,
    ) -> Result<PathBuf, String> {
        let environment = self.environment()?;
        let file = |part: &str| environment.dir.join(format!("{name}-{part}"));
        let user = match credential {
            Credential::Token(token) => json!({"token": token}),
            Credential::Certificate { .. } | Credential::Expired | Credential::WithoutHeaderFlags => {
                let front = match credential {
                    Credential::Certificate { ca, name } => {
                        environment.authorities[ca].leaf().cn(name).issue()
                    }
                    Credential::WithoutHeaderFlags => {
                        environment.authorities["inner"].leaf().cn("front-proxy").issue()
                    }
                    _ => environment.authorities["inner"].leaf().cn("front-proxy").expired(now()).issue(),
                };
                fs::write(file("front.crt"), front.cert_pem()).unwrap();
                fs::write(file("front.key"), front.key_pem()).unwrap();
                certificate_user(&file("front.crt"), &file("front.key"))
            }
        };
        let kubeconfig = real::kubeconfig(server, &environment.dir.join("servers-ca.crt"), &user);
        fs::write(file("kubeconfig"), kubeconfig).unwrap();
        Ok(file("kubeconfig"))
    }

    fn start_gateway(&self, name: &str, more: Vec<String>) -> Result<RealGateway, String> {
        let [port] = free_ports()?;
        self.start_gateway_at(name, port, more)
    }

    /// Starts a gateway at this port, with further flags.
    pub(crate) fn start_gateway_at(
        &self,
        name: &str,
        port: u16,
        more: Vec<String>,
    ) -> Result<RealGateway, String> {
        let environment = self.environment()?;
        let shared = |name: &str| environment.dir.join(name).display().to_string();
        let mut flags = vec![
            "serve".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            "--metrics-bind-address=0".to_owned(),
            "--workers=1".to_owned(),
            "--logging-format=json".to_owned(),
            format!("--tls-cert-file={}", shared("server.crt")),
            format!("--tls-private-key-file={}", shared("server.key")),
            format!("--client-ca-file={}", shared("clients-ca.crt")),
        ];
        flags.extend(more);
        let program = Path::new(crate::PORTCULLIS);
        let process = ServerProcess::start(&environment.dir, name, program, &flags)?;
        let log = environment.dir.join(format!("{name}.log"));
        let runtime = self.runtime().handle().clone();
        Ok(RealGateway { address: ([127, 0, 0, 1], port).into(), log, process: Mutex::new(process), runtime })
    }
}

impl RealGateway {
    /// Waits for a line of the log with all these words.
    pub(crate) fn line_with(&self, words: &[&str]) -> Result<String, String> {
        let mut found = None;
        let waited = self.runtime.block_on(eventually("the line of the log", async || {
            self.process.lock().unwrap().check()?;
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            found = log.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned);
            Ok(found.is_some())
        }));
        waited.map_err(|error| format!("{words:?}: {error}\n{}", self.process.lock().unwrap().log_tail()))?;
        Ok(found.unwrap_or_default())
    }

    /// Whether the log already has a line with all these words.
    pub(crate) fn line_with_now(&self, words: &[&str]) -> bool {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().any(|line| words.iter().all(|word| line.contains(word)))
    }

    pub(crate) fn client(&self) -> Gateway {
        Gateway::at(self.address, None)
    }
}

impl HeaderFlags {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::NoFrontProxies => "no-front-proxies",
            Self::OtherUserHeader => "other-user-header",
            Self::OtherGroupHeaders => "other-group-headers",
            Self::NoUids => "no-uids",
        }
    }
}

impl Environment {
    fn api_server<'a>(&'a self, name: &'a str) -> real::ApiServer<'a> {
        let Self { programs, dir, etcd_port, .. } = self;
        real::ApiServer { programs, dir, name, etcd_port: *etcd_port }
    }

    fn server_flags(&self, flags: HeaderFlags, name: &str, more: &[&str]) -> Vec<String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let mut arguments = vec![
            format!("--etcd-prefix=/{name}"),
            "--authorization-mode=RBAC".to_owned(),
            format!("--client-ca-file={}", file("clients-ca.crt")),
            format!("--token-auth-file={}", file("tokens.csv")),
        ];
        arguments.extend(account_flags(&self.dir));
        let (user, group, extra) = match flags {
            HeaderFlags::OtherUserHeader => ("X-Other-User", "X-Remote-Group", "X-Remote-Extra-"),
            HeaderFlags::OtherGroupHeaders => ("X-Remote-User", "X-Other-Group", "X-Other-Extra-"),
            _ => ("X-Remote-User", "X-Remote-Group", "X-Remote-Extra-"),
        };
        if flags != HeaderFlags::NoFrontProxies {
            arguments.extend([
                format!("--requestheader-client-ca-file={}", file("inner-ca.crt")),
                "--requestheader-allowed-names=front-proxy".to_owned(),
                format!("--requestheader-username-headers={user}"),
                format!("--requestheader-group-headers={group}"),
                format!("--requestheader-extra-headers-prefix={extra}"),
            ]);
        }
        if flags != HeaderFlags::NoFrontProxies && flags != HeaderFlags::NoUids {
            arguments.push("--requestheader-uid-headers=X-Remote-Uid".to_owned());
        }
        arguments.extend(more.iter().map(ToString::to_string));
        arguments
    }

    async fn start(programs: Programs, dir: &Path) -> Result<Self, String> {
        let authorities: BTreeMap<_, _> = ["servers", "clients", "inner", "unknown"]
            .into_iter()
            .map(|name| (name, Ca::new(name)))
            .collect();
        let server = authorities["servers"].server(&["127.0.0.1", "localhost"]);
        let accounts = Key::generate(KeyKind::P256);
        for (name, content) in [
            ("servers-ca.crt", authorities["servers"].cert_pem()),
            ("clients-ca.crt", authorities["clients"].cert_pem()),
            ("clients-ca.key", authorities["clients"].key_pem()),
            ("inner-ca.crt", authorities["inner"].cert_pem()),
            ("server.crt", server.cert_pem()),
            ("server.key", server.key_pem()),
            ("sa.key", accounts.pem()),
            ("sa.pub", pem("PUBLIC KEY", &accounts.spki())),
            ("tokens.csv", "weak-token,weak,1\nstrong-token,strong,2,system:masters\n".to_owned()),
        ] {
            fs::write(dir.join(name), content).unwrap();
        }
        let (etcd_port, etcd) = start_etcd(&programs, dir).await?;
        let clients = &authorities["clients"];
        let alice = clients.leaf().cn("alice").org("system:masters").issue();
        let bob = clients.leaf().cn("bob").issue();
        Ok(Self { programs, dir: dir.to_owned(), authorities, alice, bob, etcd_port, _etcd: etcd })
    }
}

/// A POST request with a JSON body that accepts JSON.
pub(crate) fn post(path: &str, body: &str) -> Request<BoxedBody> {
    let request =
        Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    request.header("accept", "application/json").body(full(body.to_owned())).unwrap()
}
