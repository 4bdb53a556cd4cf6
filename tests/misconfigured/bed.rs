//! etcd, API servers that are configured in several ways, and gateways in front of them.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use http::{Method, Request};

use crate::build::{self, Programs};
use crate::pki::{Ca, Issued, Key, KeyKind};
use crate::servers::{Process, free_ports};
use crate::support::{BoxedBody, Gateway, full, tls_client};

pub const PATIENCE: Duration = Duration::from_mins(2);
pub const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
pub const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// How an API server is configured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Good,
    NoFrontProxies,
    OtherUserHeader,
    OtherGroupHeaders,
    NoUids,
}

/// What the gateway has to show.
pub enum Given {
    /// A certificate.
    Front {
        ca: &'static str,
        name: &'static str,
    },
    Expired,
    /// A good certificate, and nothing about the headers that the server reads identities from.
    Unnamed,
    /// A token, for impersonation.
    Token(&'static str),
}

pub struct Bed {
    source: Mutex<Option<build::Source>>,
    pub runtime: tokio::runtime::Runtime,
    ground: OnceLock<Result<Ground, String>>,
    servers: Mutex<BTreeMap<Kind, Starting>>,
}

/// A server, once somebody has started it.
type Starting = Arc<OnceLock<Result<Arc<Server>, String>>>;

/// What all share.
struct Ground {
    programs: Programs,
    dir: PathBuf,
    authorities: BTreeMap<&'static str, Ca>,
    alice: Issued,
    bob: Issued,
    etcd_port: u16,
    _etcd: Process,
}

pub struct Server {
    pub address: SocketAddr,
    _process: Mutex<Process>,
}

/// A gateway; its log is JSON.
pub struct Running {
    pub address: SocketAddr,
    log: PathBuf,
    process: Mutex<Process>,
}

impl Bed {
    pub fn new(source: build::Source) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { source: Mutex::new(Some(source)), runtime, ground: OnceLock::new(), servers: Mutex::default() }
    }

    fn ground(&self) -> Result<&Ground, String> {
        let make = || {
            let programs = match self.source.lock().unwrap().take() {
                Some(build::Source::Present(programs)) => programs,
                Some(build::Source::Buildable(dir)) => build::build(&dir)?,
                _ => return Err("there are no servers".to_owned()),
            };
            Ground::start(programs)
        };
        self.ground.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    /// Ends everything; the logs stay if they may be wanted.
    pub fn finish(&self, keep: bool) {
        self.servers.lock().unwrap().clear();
        if let Some(Ok(ground)) = self.ground.get() {
            if keep {
                eprintln!("misconfigured: the logs are kept in {}", ground.dir.display());
            } else {
                fs::remove_dir_all(&ground.dir).ok();
            }
        }
    }

    pub fn alice(&self) -> &Issued {
        &self.ground().unwrap().alice
    }

    pub fn bob(&self) -> &Issued {
        &self.ground().unwrap().bob
    }

    /// The server of a kind, which is started when it is first asked for.
    pub fn server(&self, kind: Kind) -> Result<Arc<Server>, String> {
        let cell = Arc::clone(self.servers.lock().unwrap().entry(kind).or_default());
        cell.get_or_init(|| {
            let [port] = free_ports()?;
            let server = self.start_at(kind, kind.name(), port)?;
            // Its roles, too: some are asked about.
            let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:basic-user";
            eventually(kind.name(), || {
                Ok(self.runtime.block_on(self.exists(server.address, path)) == Ok(true))
            })?;
            Ok(Arc::new(server))
        })
        .clone()
    }

    /// Starts a server, and does not wait for it.
    pub fn start_at(&self, kind: Kind, name: &str, port: u16) -> Result<Server, String> {
        let ground = self.ground()?;
        let file = |name: &str| ground.dir.join(name).display().to_string();
        let mut flags = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", ground.etcd_port),
            format!("--etcd-prefix=/{name}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", file(name)),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            format!("--service-account-key-file={}", file("sa.pub")),
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--client-ca-file={}", file("clients-ca.crt")),
            format!("--token-auth-file={}", file("tokens.csv")),
        ];
        let (user, group, extra) = match kind {
            Kind::OtherUserHeader => ("X-Other-User", "X-Remote-Group", "X-Remote-Extra-"),
            Kind::OtherGroupHeaders => ("X-Remote-User", "X-Other-Group", "X-Other-Extra-"),
            _ => ("X-Remote-User", "X-Remote-Group", "X-Remote-Extra-"),
        };
        if kind != Kind::NoFrontProxies {
            flags.extend([
                format!("--requestheader-client-ca-file={}", file("inner-ca.crt")),
                "--requestheader-allowed-names=front-proxy".to_owned(),
                format!("--requestheader-username-headers={user}"),
                format!("--requestheader-group-headers={group}"),
                format!("--requestheader-extra-headers-prefix={extra}"),
            ]);
        }
        if kind != Kind::NoFrontProxies && kind != Kind::NoUids {
            flags.push("--requestheader-uid-headers=X-Remote-Uid".to_owned());
        }
        let process = Process::start(&ground.dir, name, &ground.programs.kube_apiserver, &flags)?;
        Ok(Server { address: ([127, 0, 0, 1], port).into(), _process: Mutex::new(process) })
    }

    /// Whether the server itself shows this to its administrator.
    pub async fn exists(&self, server: SocketAddr, path: &str) -> Result<bool, String> {
        let direct = Gateway { server: None, address: server, metrics: None, checked: true.into() };
        let Ok(stream) = tokio::net::TcpStream::connect(server).await else { return Ok(false) };
        let alice = self.alice();
        let mut config = tls_client(rustls::DEFAULT_VERSIONS)
            .with_client_auth_cert(alice.chain.clone(), alice.key.clone_key())
            .unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = "localhost".try_into().unwrap();
        let connected = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        let Ok(stream) = connected else { return Ok(false) };
        let answer = direct.http1_over(stream).await.get(path, &[]).await;
        Ok(answer.status() == http::StatusCode::OK)
    }

    /// A file that all share.
    pub fn file(&self, name: &str) -> Result<PathBuf, String> {
        Ok(self.ground()?.dir.join(name))
    }

    pub fn kubectl(&self) -> Result<&Path, String> {
        Ok(&self.ground()?.programs.kubectl)
    }

    /// A gateway, and does not wait for more than its start.
    pub fn gateway(&self, name: &str, server: SocketAddr, given: &Given) -> Result<Running, String> {
        self.gateway_with(name, server, given, &[])
    }

    /// A gateway with further flags.
    pub fn gateway_with(
        &self,
        name: &str,
        server: SocketAddr,
        given: &Given,
        more: &[String],
    ) -> Result<Running, String> {
        let ground = self.ground()?;
        let name = format!("gateway {name}").replace(' ', "-");
        let file = |part: &str| ground.dir.join(format!("{name}-{part}"));
        let user = match given {
            Given::Token(token) => serde_json::json!({"token": token}),
            Given::Front { .. } | Given::Expired | Given::Unnamed => {
                let front = match given {
                    Given::Front { ca, name } => ground.authorities[ca].leaf().cn(name).issue(),
                    Given::Unnamed => ground.authorities["inner"].leaf().cn("front-proxy").issue(),
                    _ => ground.authorities["inner"].leaf().cn("front-proxy").expired(now()).issue(),
                };
                fs::write(file("front.crt"), front.cert_pem()).unwrap();
                fs::write(file("front.key"), front.key_pem()).unwrap();
                serde_json::json!({"client-certificate": file("front.crt"), "client-key": file("front.key")})
            }
        };
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{server}"), "certificate-authority": ground.dir.join("servers-ca.crt")}}],
            "users": [{"name": "u", "user": user}],
        });
        fs::write(file("kubeconfig"), kubeconfig.to_string()).unwrap();
        let [port] = free_ports()?;
        let shared = |name: &str| ground.dir.join(name).display().to_string();
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
            format!("--backend-kubeconfig={}", file("kubeconfig").display()),
        ];
        if !matches!(given, Given::Unnamed) {
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
        if matches!(given, Given::Token(_)) {
            flags.push("--identity=impersonate".to_owned());
        }
        flags.extend_from_slice(more);
        let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
        let process = Process::start(&ground.dir, &name, program, &flags)?;
        let log = ground.dir.join(format!("{name}.log"));
        Ok(Running { address: ([127, 0, 0, 1], port).into(), log, process: Mutex::new(process) })
    }
}

impl Running {
    /// Waits for a line of the log with all these words.
    pub fn line_with(&self, words: &[&str]) -> Result<String, String> {
        let mut found = None;
        eventually("the line of the log", || {
            self.process.lock().unwrap().check()?;
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            found = log.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned);
            Ok(found.is_some())
        })
        .map_err(|error| format!("{words:?}: {error}\n{}", self.process.lock().unwrap().log_tail()))?;
        Ok(found.unwrap_or_default())
    }

    /// Whether there is a line with all these words by now.
    pub fn line_with_now(&self, words: &[&str]) -> bool {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().any(|line| words.iter().all(|word| line.contains(word)))
    }

    pub fn client(&self) -> Gateway {
        Gateway { server: None, address: self.address, metrics: None, checked: true.into() }
    }
}

impl Kind {
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

impl Ground {
    fn start(programs: Programs) -> Result<Self, String> {
        let dir = tempfile::Builder::new().prefix("portcullis-misconfigured-").tempdir().unwrap().keep();
        let authorities: BTreeMap<_, _> = ["servers", "clients", "inner", "unknown"]
            .into_iter()
            .map(|name| (name, Ca::new(name)))
            .collect();
        let server = authorities["servers"].server(&["127.0.0.1", "localhost"]);
        let accounts = Key::generate(KeyKind::P256);
        for (name, content) in [
            ("servers-ca.crt", authorities["servers"].cert_pem()),
            ("clients-ca.crt", authorities["clients"].cert_pem()),
            ("inner-ca.crt", authorities["inner"].cert_pem()),
            ("server.crt", server.cert_pem()),
            ("server.key", server.key_pem()),
            ("sa.key", accounts.pem()),
            ("sa.pub", crate::pki::pem("PUBLIC KEY", &accounts.spki())),
            ("tokens.csv", "weak-token,weak,1\nstrong-token,strong,2,system:masters\n".to_owned()),
        ] {
            fs::write(dir.join(name), content).unwrap();
        }
        let [client, peer] = free_ports()?;
        let (client_url, peer_url) =
            (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let flags = [
            format!("--data-dir={}", dir.join("etcd").display()),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=default={peer_url}"),
            // The data live as long as the run.
            "--unsafe-no-fsync".to_owned(),
        ];
        let mut etcd = Process::start(&dir, "etcd", &programs.etcd, flags)?;
        eventually("etcd", || {
            etcd.check()?;
            Ok(std::net::TcpStream::connect(("127.0.0.1", client)).is_ok())
        })?;
        let clients = &authorities["clients"];
        let alice = clients.leaf().cn("alice").org("system:masters").issue();
        let bob = clients.leaf().cn("bob").issue();
        Ok(Self { programs, dir, authorities, alice, bob, etcd_port: client, _etcd: etcd })
    }
}

pub fn post(path: &str, body: &str) -> Request<BoxedBody> {
    let request =
        Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    request.header("accept", "application/json").body(full(body.to_owned())).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "certificates are judged by the servers' real clock")]
fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap()
}

fn eventually(what: &str, mut holds: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let started = Instant::now();
    while !holds()? {
        if started.elapsed() > PATIENCE {
            return Err(format!("{what}: never"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
