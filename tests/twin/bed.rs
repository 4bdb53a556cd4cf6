//! The test bed of one run: a directory, a PKI, etcd, the servers, the gateway.
//!
//! `reference` has every authenticator of the present stage; `second` is the same once more, for the harness to prove itself;
//! `backend` trusts only the request headers of the gateway's certificate; `gateway` is the real binary in front of `backend`.
//! All share one etcd, so they see the same objects. Everything starts in parallel, once, when the first case wants it.

mod starter;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustls::RootCertStore;

use crate::authenticators::{self, Setting};
use crate::build::{self, Programs};
use crate::client::{Identity, Target};
use crate::kubelet::Kubelet;
use crate::outside::Outside;
use crate::people::{Authorities, TOKENS};
use crate::pki::Issued;
use crate::servers::Process;
use starter::{Starter, start_etcd};

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
                    starter.wait_for_tokens(*side, server)?;
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
