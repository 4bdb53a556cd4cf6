//! The test bed of one run: a directory, a PKI, etcd, the servers, the gateway.
//!
//! `reference` has every authenticator of the present stage; `second` is the same once more, for the harness to prove itself;
//! `backend` trusts only the request headers of the gateway's certificate; `gateway` is the real binary in front of `backend`.
//! All share one etcd, so they see the same objects. Everything starts in parallel, once, when the first case wants it.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustls::RootCertStore;

use crate::authenticators::{self, Setting};
use crate::build::{self, Programs};
use crate::client::{self, Identity, Request, Target, Until, Version};
use crate::fixtures;
use crate::kubelet::Kubelet;
use crate::mint::Mint;
use crate::outside::Outside;
use crate::people::{Authorities, TOKENS};
use crate::pki::Issued;
use crate::servers::{Process, free_ports};

/// How long a server may take to become ready, on a machine that is busy with the others.
const PATIENCE: Duration = Duration::from_mins(3);

/// How long all issuers may take to be found: another attempt comes after ten seconds.
const ISSUER_PATIENCE: Duration = Duration::from_secs(25);

/// The sides that a case can be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Reference,
    Second,
    Backend,
    Gateway,
    /// The same three with the authenticators of [`Setting::Flags`], before the same backend.
    FlagsReference,
    FlagsSecond,
    FlagsGateway,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Second => "second",
            Self::Backend => "backend",
            Self::Gateway => "gateway",
            Self::FlagsReference => "flags-reference",
            Self::FlagsSecond => "flags-second",
            Self::FlagsGateway => "flags-gateway",
        }
    }

    /// The side that has this set of authenticators.
    pub(crate) fn with(self, setting: Setting) -> Self {
        match (setting, self) {
            (Setting::Flags, Self::Reference) => Self::FlagsReference,
            (Setting::Flags, Self::Second) => Self::FlagsSecond,
            (Setting::Flags, Self::Gateway) => Self::FlagsGateway,
            (_, side) => side,
        }
    }

    fn setting(self) -> Setting {
        match self {
            Self::FlagsReference | Self::FlagsSecond | Self::FlagsGateway => Setting::Flags,
            _ => Setting::Config,
        }
    }

    fn is_gateway(self) -> bool {
        matches!(self, Self::Gateway | Self::FlagsGateway)
    }
}

/// The bed, which starts when it is first asked for.
#[derive(Debug)]
pub(crate) struct Lab {
    source: build::Source,
    wanted: Vec<Side>,
    pub(crate) runtime: tokio::runtime::Runtime,
    bed: OnceLock<Result<Bed, String>>,
    reported: AtomicBool,
}

/// The running bed.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) programs: Programs,
    pub(crate) dir: PathBuf,
    people: BTreeMap<&'static str, Issued>,
    identities: BTreeMap<&'static str, Identity>,
    sides: BTreeMap<Side, Result<Server, String>>,
    /// The resource version at which all fixtures exist, and nothing else of ours.
    pub(crate) resource_version: String,
    /// Started for the cases that need it.
    controllers: OnceLock<Result<Process, String>>,
    _etcd: Process,
    pub(crate) kubelet: Kubelet,
    pub(crate) outside: Outside,
}

/// One API server, or the gateway.
#[derive(Debug)]
struct Server {
    target: Target,
    process: Mutex<Option<Process>>,
}

impl Lab {
    pub(crate) fn new(source: build::Source, wanted: Vec<Side>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a tokio runtime");
        Self { source, wanted, runtime, bed: OnceLock::new(), reported: AtomicBool::new(false) }
    }

    /// Starts everything on the first call; the others wait for it.
    pub(crate) fn bed(&self) -> Result<&Bed, String> {
        self.bed.get_or_init(|| self.start()).as_ref().map_err(|error| {
            if self.reported.swap(true, Ordering::Relaxed) {
                "the test bed does not start; another test of this run says why".to_owned()
            } else {
                error.clone()
            }
        })
    }

    /// Ends the servers; the directory with their logs stays if it may be wanted.
    pub(crate) fn finish(self, keep: bool) {
        if let Some(Ok(bed)) = self.bed.into_inner() {
            let dir = bed.dir.clone();
            drop(bed);
            if keep {
                eprintln!("twin: the logs of the servers are kept in {}", dir.display());
            } else if let Err(error) = fs::remove_dir_all(&dir) {
                eprintln!("twin: cannot remove {}: {error}", dir.display());
            }
        }
    }

    fn start(&self) -> Result<Bed, String> {
        let programs = match &self.source {
            build::Source::Present(programs) => programs.clone(),
            build::Source::Buildable(dir) => build::build(dir)?,
            build::Source::Absent(why) => return Err(why.clone()),
        };
        let dir = tempfile::Builder::new()
            .prefix("portcullis-twin-")
            .tempdir()
            .map_err(|error| error.to_string())?
            .keep();
        Bed::start(programs, dir.clone(), &self.wanted, &self.runtime)
            .map_err(|error| format!("the test bed does not start: {error}\nlogs: {}", dir.display()))
    }
}

impl Bed {
    fn start(
        programs: Programs,
        dir: PathBuf,
        wanted: &[Side],
        runtime: &tokio::runtime::Runtime,
    ) -> Result<Self, String> {
        #[expect(clippy::disallowed_methods, reason = "certificates are judged by the servers' real clock")]
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_err(text)?;
        let now = i64::try_from(now.as_secs()).map_err(text)?;
        let authorities = Authorities::new();
        let people = authorities.people(now);
        let identities = people.iter().map(|(name, issued)| (*name, identity(issued))).collect();
        let local = authorities.server.server(&["127.0.0.1"]);
        let outside = Outside::start(runtime, &local)?;
        write_pki(&dir, &authorities).map_err(text)?;
        authenticators::write(&dir, &outside.mint, &authorities.server.cert_pem()).map_err(text)?;
        let mut roots = RootCertStore::empty();
        roots.add(authorities.server.cert.clone()).map_err(text)?;
        let roots = Arc::new(roots);

        let (etcd_port, etcd) = start_etcd(&programs, &dir, runtime)?;
        let kubelet = Kubelet::start(runtime, &local)?;
        let admin = identity(&authorities.client.leaf().cn("admin").org("system:masters").issue());
        let inner = identity(&authorities.inner.leaf().cn("front-proxy").issue());
        let mint = &outside.mint;
        let starter =
            Starter { programs: &programs, dir: &dir, roots, etcd_port, runtime, admin, inner, mint };

        let mut sides: Vec<Side> = wanted.to_vec();
        sides.push(Side::Reference);
        sides.sort_unstable();
        sides.dedup();
        let behind = wanted.iter().any(|side| side.is_gateway() || *side == Side::Backend);
        if behind && !sides.contains(&Side::Backend) {
            sides.push(Side::Backend);
        }
        let (sides, resource_version) = std::thread::scope(|scope| {
            let starting: Vec<_> = sides
                .iter()
                .filter(|side| !side.is_gateway())
                .map(|side| (*side, scope.spawn(|| starter.apiserver(*side))))
                .collect();
            let mut running = BTreeMap::new();
            for (side, thread) in starting {
                let server = thread.join().map_err(|_| "starting a server panicked".to_owned())??;
                running.insert(side, Ok(server));
            }
            let Some(Ok(reference)) = running.get(&Side::Reference) else {
                return Err("no reference".to_owned());
            };
            let resource_version = starter.post_fixtures(&reference.target, kubelet.port())?;
            for (side, server) in &running {
                if let Ok(server) = server {
                    starter.wait_for_rights(*side, server)?;
                }
            }
            if let Some(Ok(backend)) = running.get(&Side::Backend) {
                let backend = backend.target.address;
                for side in sides.iter().filter(|side| side.is_gateway()) {
                    running.insert(*side, starter.gateway(*side, backend));
                }
            }
            for (side, server) in &running {
                if let (Ok(server), true) = (server, *side != Side::Backend) {
                    starter.wait_for_issuers(*side, server)?;
                }
            }
            // From here on, who has kept the keys must ask again.
            outside.rotation.rotate();
            Ok((running, resource_version))
        })?;
        Ok(Self {
            programs,
            dir,
            people,
            identities,
            sides,
            resource_version,
            controllers: OnceLock::new(),
            _etcd: etcd,
            kubelet,
            outside,
        })
    }

    /// Where a side listens.
    pub(crate) fn target(&self, side: Side) -> Result<&Target, String> {
        match self.sides.get(&side) {
            Some(Ok(server)) => Ok(&server.target),
            Some(Err(why)) => Err(why.clone()),
            None => Err(format!("the {} was not started", side.name())),
        }
    }

    pub(crate) fn identity(&self, name: &str) -> Option<&Identity> {
        self.identities.get(name)
    }

    pub(crate) fn issued(&self, name: &str) -> Option<&Issued> {
        self.people.get(name)
    }

    /// Starts kube-controller-manager, with the two controllers that make namespaces whole and delete them.
    pub(crate) fn controllers(&self) -> Result<(), String> {
        let start = || {
            let side = if self.sides.contains_key(&Side::Gateway) { Side::Gateway } else { Side::Reference };
            let file = |name: &str| self.dir.join(name).display().to_string();
            let admin = self.issued("admin").ok_or("people.rs has no admin")?;
            fs::write(file("admin.crt"), admin.cert_pem()).map_err(text)?;
            fs::write(file("admin.key"), admin.key_pem()).map_err(text)?;
            let config =
                kubeconfig(&self.dir, self.target(side)?.address, "admin.crt", "admin.key").to_string();
            fs::write(file("controllers.kubeconfig"), config).map_err(text)?;
            let flags = [
                format!("--kubeconfig={}", file("controllers.kubeconfig")),
                "--controllers=namespace-controller,serviceaccount-controller".to_owned(),
                "--leader-elect=false".to_owned(),
                "--secure-port=0".to_owned(),
                "--kube-api-qps=1000".to_owned(),
                "--kube-api-burst=1000".to_owned(),
            ];
            let program = &self.programs.kube_controller_manager;
            Process::start(&self.dir, "controllers", program, flags)
        };
        self.controllers.get_or_init(start).as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// Ends a server that nobody needs any more.
    pub(crate) fn stop(&self, side: Side) {
        if let Some(Ok(server)) = self.sides.get(&side) {
            drop(server.process.lock().map(|mut process| process.take()));
        }
    }
}

/// What is needed to start a server.
struct Starter<'a> {
    programs: &'a Programs,
    dir: &'a Path,
    roots: Arc<RootCertStore>,
    etcd_port: u16,
    runtime: &'a tokio::runtime::Runtime,
    admin: Identity,
    inner: Identity,
    mint: &'a Mint,
}

impl Starter<'_> {
    fn apiserver(&self, side: Side) -> Result<Server, String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        retry_on_collision(|| {
            let [port] = free_ports()?;
            let mut flags = vec![
                format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
                format!("--secure-port={port}"),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--cert-dir={}", file(side.name())),
                format!("--tls-cert-file={}", file("server.crt")),
                format!("--tls-private-key-file={}", file("server.key")),
                "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
                "--authorization-mode=Node,RBAC".to_owned(),
                format!("--service-account-signing-key-file={}", file("sa.key")),
                "--requestheader-allowed-names=front-proxy".to_owned(),
                "--requestheader-username-headers=X-Remote-User".to_owned(),
                "--requestheader-uid-headers=X-Remote-Uid".to_owned(),
                "--requestheader-group-headers=X-Remote-Group".to_owned(),
                "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
                // Old resource versions must stay readable for as long as a run takes.
                "--etcd-compaction-interval=0".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
            ];
            flags.extend(authenticators::accounts(self.dir));
            if side == Side::Backend {
                flags.push(format!("--requestheader-client-ca-file={}", file("inner-ca.crt")));
                flags.push(authenticators::AUDIENCES.to_owned());
            } else {
                flags.extend(authenticators::flags(self.dir, self.mint, side.setting()));
                flags.push(format!("--requestheader-client-ca-file={}", file("front-ca.crt")));
                flags.push(format!("--client-ca-file={}", file("client-ca.crt")));
                flags.push(format!("--token-auth-file={}", file("tokens.csv")));
            }
            let mut process = Process::start(self.dir, side.name(), &self.programs.kube_apiserver, &flags)?;
            let target = self.target(port);
            self.eventually(side.name(), || {
                process.check()?;
                Ok(self.get(side, &target, "admin", "system:masters", "/readyz") == 200
                    && self.get(
                        side,
                        &target,
                        "admin",
                        "system:masters",
                        "/apis/rbac.authorization.k8s.io/v1/clusterroles/view",
                    ) == 200)
            })
            .map_err(|error| format!("{error}\n{}", process.log_tail()))?;
            Ok(Server { target, process: Mutex::new(Some(process)) })
        })
    }

    fn gateway(&self, side: Side, backend: SocketAddr) -> Result<Server, String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let kubeconfig = kubeconfig(self.dir, backend, "inner.crt", "inner.key");
        fs::write(file("backend.kubeconfig"), kubeconfig.to_string()).map_err(text)?;
        retry_on_collision(|| {
            let [port, metrics] = free_ports()?;
            let mut flags = vec![
                "serve".to_owned(),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={port}"),
                format!("--metrics-bind-address=127.0.0.1:{metrics}"),
                format!("--tls-cert-file={}", file("server.crt")),
                format!("--tls-private-key-file={}", file("server.key")),
                format!("--client-ca-file={}", file("client-ca.crt")),
                format!("--token-auth-file={}", file("tokens.csv")),
                format!("--requestheader-client-ca-file={}", file("front-ca.crt")),
                "--requestheader-allowed-names=front-proxy".to_owned(),
                "--requestheader-username-headers=X-Remote-User".to_owned(),
                "--requestheader-uid-headers=X-Remote-Uid".to_owned(),
                "--requestheader-group-headers=X-Remote-Group".to_owned(),
                "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
                format!("--backend-kubeconfig={}", file("backend.kubeconfig")),
            ];
            flags.extend(authenticators::accounts(self.dir));
            flags.extend(authenticators::flags(self.dir, self.mint, side.setting()));
            let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
            let mut process = Process::start(self.dir, side.name(), program, &flags)?;
            let target = self.target(port);
            self.eventually(side.name(), || {
                process.check()?;
                Ok(self.get(side, &target, "admin", "system:masters", "/readyz") == 200)
            })
            .map_err(|error| format!("{error}\n{}", process.log_tail()))?;
            Ok(Server { target, process: Mutex::new(Some(process)) })
        })
        .map_err(|error| format!("the {} does not start: {error}", side.name()))
    }

    /// Creates the fixtures and returns the resource version of the last.
    fn post_fixtures(&self, reference: &Target, kubelet_port: u16) -> Result<String, String> {
        let mut last = String::new();
        for (path, object) in fixtures::objects(kubelet_port) {
            let (method, content): (_, &[u8]) = if path.ends_with("/status") {
                ("PATCH", b"application/merge-patch+json")
            } else if object.is_null() {
                ("DELETE", b"application/json")
            } else {
                ("POST", b"application/json")
            };
            let body = if object.is_null() { String::new() } else { self.mint.fill(&object.to_string()) };
            let request = Request {
                version: Version::H1,
                method: method.to_owned(),
                target: path.clone(),
                headers: vec![("Content-Type".to_owned(), content.to_vec())],
                body: Bytes::from(body),
                raw: None,
                frames: Vec::new(),
                until: Until::End,
            };
            // RBAC checks escalation against its informers, which may lag a moment behind the roles just made.
            let mut answer = String::new();
            self.eventually("fixtures", || {
                let sent = client::exchange(reference, Some(&self.admin), &request);
                let got = self.runtime.block_on(sent).map_err(|broken| broken.0)?;
                answer = String::from_utf8_lossy(&got.body).into_owned();
                match got.status {
                    200 | 201 => Ok(true),
                    403 => Ok(false),
                    // The system's namespaces come after the server's start.
                    404 if path.contains("/kube-system/") => Ok(false),
                    status => Err(format!("fixture for {path}: {status} {answer}")),
                }
            })?;
            let made: serde_json::Value = serde_json::from_str(&answer).map_err(text)?;
            if method == "POST" {
                let resource = path.rsplit('/').next().unwrap_or_default();
                let name = made["metadata"]["name"].as_str().unwrap_or_default();
                let uid = made["metadata"]["uid"].as_str().unwrap_or_default();
                self.mint.remember(&format!("{resource}/{name}"), uid);
            }
            if let Some(version) = made["metadata"]["resourceVersion"].as_str() {
                version.clone_into(&mut last);
            }
        }
        Ok(last)
    }

    /// Until the last binding of the fixtures works on this server.
    fn wait_for_rights(&self, side: Side, server: &Server) -> Result<(), String> {
        for (group, path) in [
            ("devs", "/api/v1/namespaces/twin-fixed/pods/placed"),
            ("viewers", "/api/v1/namespaces/twin/configmaps"),
            ("probers", "/livez/ping"),
        ] {
            let mut last = 0;
            self.eventually("", || {
                last = self.get(side, &server.target, "someone", group, path);
                Ok(last == 200)
            })
            .map_err(|error| format!("{}: rights of {group} on {path}: {last}{error}", side.name()))?;
        }
        // The last binding is about impersonation; ask the server itself.
        let review = r#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"user":"legacy-impersonator",
            "resourceAttributes":{"verb":"impersonate","resource":"users","name":"bob"}}}"#;
        self.eventually(&format!("{} rights", side.name()), || {
            let mut request = self.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews");
            request.body = Bytes::from_static(review.as_bytes());
            request.headers.push(("Content-Type".to_owned(), b"application/json".to_vec()));
            let answer = self.send(side, &server.target, "admin", "system:masters", request);
            Ok(answer
                .is_some_and(|answer| String::from_utf8_lossy(&answer.body).contains(r#""allowed":true"#)))
        })
    }

    /// Until the server takes a token of every issuer that answers.
    fn wait_for_issuers(&self, side: Side, server: &Server) -> Result<(), String> {
        let started = Instant::now();
        for probe in authenticators::probes(side.setting()) {
            let mut request = self.request("GET", "/api");
            let token = self.mint.mint(&probe.clone().into(), "", "");
            request.headers.push(("Authorization".to_owned(), format!("Bearer {token}").into_bytes()));
            self.eventually(side.name(), || {
                let sent = client::exchange(&server.target, None, &request);
                let answer = self.runtime.block_on(sent).map_err(|broken| broken.0)?;
                // A gateway that does not find an issuer fails the cases of that issuer, and no others.
                match (answer.status, started.elapsed() > ISSUER_PATIENCE) {
                    (200, _) => Ok(true),
                    (_, true) if side.is_gateway() => Ok(true),
                    (status, true) => Err(format!("it answers {status} to a token of {}", probe.issuer())),
                    (_, false) => Ok(false),
                }
            })?;
        }
        Ok(())
    }

    fn target(&self, port: u16) -> Target {
        Target { address: SocketAddr::from(([127, 0, 0, 1], port)), roots: self.roots.clone() }
    }

    fn get(&self, side: Side, target: &Target, user: &str, group: &str, path: &str) -> u16 {
        self.send(side, target, user, group, self.request("GET", path)).map_or(0, |answer| answer.status)
    }

    #[expect(clippy::unused_self, reason = "reads better beside `send`")]
    fn request(&self, method: &str, path: &str) -> Request {
        Request {
            version: Version::H1,
            method: method.to_owned(),
            target: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            raw: None,
            frames: Vec::new(),
            until: Until::End,
        }
    }

    /// As this user: by the gateway's certificate on the backend, elsewhere as admin who impersonates.
    fn send(
        &self,
        side: Side,
        target: &Target,
        user: &str,
        group: &str,
        mut request: Request,
    ) -> Option<client::Answer> {
        let mut header = |name: &str, value: &str| {
            request.headers.push((name.to_owned(), value.as_bytes().to_vec()));
        };
        let identity = if side == Side::Backend {
            header("X-Remote-User", user);
            header("X-Remote-Group", group);
            &self.inner
        } else {
            if user != "admin" {
                header("Impersonate-User", user);
                header("Impersonate-Group", group);
            }
            &self.admin
        };
        self.runtime.block_on(client::exchange(target, Some(identity), &request)).ok()
    }

    fn eventually(
        &self,
        what: &str,
        mut condition: impl FnMut() -> Result<bool, String>,
    ) -> Result<(), String> {
        eventually(self.runtime, what, &mut condition)
    }
}

/// For somebody with a certificate in the bed's directory.
fn kubeconfig(dir: &Path, server: SocketAddr, certificate: &str, key: &str) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": format!("https://{server}"), "certificate-authority": dir.join("server-ca.crt")}}],
        "users": [{"name": "u", "user": {
            "client-certificate": dir.join(certificate), "client-key": dir.join(key)}}],
    })
}

/// Asks again and again until the condition holds, fails for good, or patience ends.
fn eventually(
    runtime: &tokio::runtime::Runtime,
    what: &str,
    condition: &mut dyn FnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let started = Instant::now();
    while !condition()? {
        if started.elapsed() > PATIENCE {
            return Err(format!("{what}: not ready after {} s", PATIENCE.as_secs()));
        }
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(50)).await });
    }
    Ok(())
}

/// Another process may take a port between our choice and the server's bind.
fn retry_on_collision<T>(mut start: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let mut result = start();
    for _ in 0..3 {
        match &result {
            Err(error) if error.to_lowercase().contains("address already in use") => result = start(),
            _ => break,
        }
    }
    result
}

fn start_etcd(
    programs: &Programs,
    dir: &Path,
    runtime: &tokio::runtime::Runtime,
) -> Result<(u16, Process), String> {
    retry_on_collision(|| {
        let [client, peer] = free_ports()?;
        let (client_url, peer_url) =
            (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut process = Process::start(
            dir,
            "etcd",
            &programs.etcd,
            [
                format!("--data-dir={}", dir.join("etcd").display()),
                format!("--listen-client-urls={client_url}"),
                format!("--advertise-client-urls={client_url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster=default={peer_url}"),
                // The data live as long as the run.
                "--unsafe-no-fsync".to_owned(),
            ],
        )?;
        eventually(runtime, "etcd", &mut || {
            process.check()?;
            Ok(std::net::TcpStream::connect(("127.0.0.1", client)).is_ok())
        })
        .map_err(|error| format!("{error}\n{}", process.log_tail()))?;
        Ok((client, process))
    })
}

fn write_pki(dir: &Path, authorities: &Authorities) -> std::io::Result<()> {
    let server = authorities.server.server(&["127.0.0.1", "localhost"]);
    let inner = authorities.inner.leaf().cn("front-proxy").issue();
    for (name, content) in [
        ("server-ca.crt", authorities.server.cert_pem()),
        ("client-ca.crt", authorities.client.cert_pem()),
        ("front-ca.crt", authorities.front.cert_pem()),
        ("inner-ca.crt", authorities.inner.cert_pem()),
        ("server.crt", server.cert_pem()),
        ("server.key", server.key_pem()),
        ("inner.crt", inner.cert_pem()),
        ("inner.key", inner.key_pem()),
        ("tokens.csv", TOKENS.to_owned()),
    ] {
        fs::write(dir.join(name), content)?;
    }
    Ok(())
}

fn identity(issued: &Issued) -> Identity {
    let chain = issued.chain.iter().map(|certificate| certificate.to_vec()).collect();
    Identity::new(chain, &issued.key)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
