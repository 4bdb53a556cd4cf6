//! The servers of one run: a directory, a PKI, etcd, kube-apiservers, the gateway.
//!
//! `reference` has all authenticators; `second` is equal, for tests of the harness; `backend` trusts only request
//! headers of the gateway's certificate; `gateway` is the gateway in front of `backend`. All share one etcd, so they
//! have the same objects. The servers start in parallel when the first case needs them.

mod starter;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use rustls::RootCertStore;
use testkit::pki::Issued;
use testkit::real::{self, Programs, ServerProcess, SharedServers, Source, start_etcd};
use testkit::{go_program::GoProgram, now};
use tokio::runtime::Runtime;

use crate::admission::{self, Addresses};
use crate::audit::{self, AuditLogs};
use crate::authenticators::{self, Setting};
use crate::authorizers;
use crate::client::{Identity, Target};
use crate::kubelet::Kubelet;
use crate::outside::Outside;
use crate::people::{Authorities, TOKENS};
use starter::Starter;

/// The servers to which a case can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Reference,
    Second,
    Backend,
    Gateway,
    /// The gateway with `--identity=impersonate`, in front of the reference.
    Impersonating,
    /// The same servers with the authenticators of [`Setting::Flags`], and the same backend.
    FlagsReference,
    FlagsSecond,
    FlagsGateway,
    /// The same servers with the authorization webhooks of [`Setting::Webhooks`], and the same backend.
    WebhooksReference,
    WebhooksSecond,
    WebhooksGateway,
    /// The same servers with the admission webhooks of [`Setting::Admission`], and the same backend.
    AdmissionReference,
    AdmissionSecond,
    AdmissionGateway,
    /// The same servers with the audit of [`Setting::Audit`], and the same backend.
    AuditReference,
    AuditSecond,
    AuditGateway,
    /// The same servers with the limits of [`Setting::Limits`], and the same backend.
    LimitsReference,
    LimitsSecond,
    LimitsGateway,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Second => "second",
            Self::Backend => "backend",
            Self::Gateway => "gateway",
            Self::Impersonating => "impersonating",
            Self::FlagsReference => "flags-reference",
            Self::FlagsSecond => "flags-second",
            Self::FlagsGateway => "flags-gateway",
            Self::WebhooksReference => "webhooks-reference",
            Self::WebhooksSecond => "webhooks-second",
            Self::WebhooksGateway => "webhooks-gateway",
            Self::AdmissionReference => "admission-reference",
            Self::AdmissionSecond => "admission-second",
            Self::AdmissionGateway => "admission-gateway",
            Self::AuditReference => "audit-reference",
            Self::AuditSecond => "audit-second",
            Self::AuditGateway => "audit-gateway",
            Self::LimitsReference => "limits-reference",
            Self::LimitsSecond => "limits-second",
            Self::LimitsGateway => "limits-gateway",
        }
    }

    /// The corresponding side with this set of authenticators.
    pub(crate) fn with(self, setting: Setting) -> Self {
        match (setting, self) {
            (Setting::Flags, Self::Reference) => Self::FlagsReference,
            (Setting::Flags, Self::Second) => Self::FlagsSecond,
            (Setting::Flags, Self::Gateway) => Self::FlagsGateway,
            (Setting::Webhooks, Self::Reference) => Self::WebhooksReference,
            (Setting::Webhooks, Self::Second) => Self::WebhooksSecond,
            (Setting::Webhooks, Self::Gateway) => Self::WebhooksGateway,
            (Setting::Admission, Self::Reference) => Self::AdmissionReference,
            (Setting::Admission, Self::Second) => Self::AdmissionSecond,
            (Setting::Admission, Self::Gateway) => Self::AdmissionGateway,
            (Setting::Audit, Self::Reference) => Self::AuditReference,
            (Setting::Audit, Self::Second) => Self::AuditSecond,
            (Setting::Audit, Self::Gateway) => Self::AuditGateway,
            (Setting::Limits, Self::Reference) => Self::LimitsReference,
            (Setting::Limits, Self::Second) => Self::LimitsSecond,
            (Setting::Limits, Self::Gateway) => Self::LimitsGateway,
            (_, side) => side,
        }
    }

    fn setting(self) -> Setting {
        match self {
            Self::FlagsReference | Self::FlagsSecond | Self::FlagsGateway => Setting::Flags,
            Self::WebhooksReference | Self::WebhooksSecond | Self::WebhooksGateway => Setting::Webhooks,
            Self::AdmissionReference | Self::AdmissionSecond | Self::AdmissionGateway => Setting::Admission,
            Self::AuditReference | Self::AuditSecond | Self::AuditGateway => Setting::Audit,
            Self::LimitsReference | Self::LimitsSecond | Self::LimitsGateway => Setting::Limits,
            _ => Setting::Config,
        }
    }

    pub(crate) fn is_gateway(self) -> bool {
        matches!(
            self,
            Self::Gateway
                | Self::Impersonating
                | Self::FlagsGateway
                | Self::WebhooksGateway
                | Self::AdmissionGateway
                | Self::AuditGateway
                | Self::LimitsGateway
        )
    }
}

/// The servers, which start when the first test needs them.
#[derive(Debug)]
pub(crate) struct SharedTwin {
    shared: SharedServers<TwinServers>,
    wanted: Vec<Side>,
}

/// The running servers.
#[derive(Debug)]
pub(crate) struct TwinServers {
    pub(crate) programs: Programs,
    pub(crate) dir: PathBuf,
    people: BTreeMap<&'static str, Issued>,
    identities: BTreeMap<&'static str, Identity>,
    sides: BTreeMap<Side, Result<Server, String>>,
    /// The resource version at which all fixtures exist, and no objects of cases.
    pub(crate) resource_version: String,
    /// kube-controller-manager, started for the cases that need it.
    controllers: OnceLock<Result<ServerProcess, String>>,
    _etcd: ServerProcess,
    _agnhost: Option<ServerProcess>,
    pub(crate) kubelet: Kubelet,
    pub(crate) outside: Outside,
    /// The audit events of the servers of [`Setting::Audit`].
    pub(crate) audit: AuditLogs,
}

/// One API server, or the gateway.
#[derive(Debug)]
struct Server {
    target: Target,
    process: Mutex<Option<ServerProcess>>,
}

impl SharedTwin {
    pub(crate) fn new(source: Source, wanted: Vec<Side>) -> Self {
        Self { shared: SharedServers::new("twin", source), wanted }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.shared.runtime()
    }

    /// Starts everything on the first call; the others wait for it.
    pub(crate) fn servers(&self) -> Result<&TwinServers, String> {
        self.shared.get_or_start(|runtime, programs, dir| {
            TwinServers::start(programs, dir.to_owned(), &self.wanted, runtime)
        })
    }

    /// Stops the servers; keeps the directory with their logs if `keep_logs` is set.
    pub(crate) fn finish(self, keep_logs: bool) {
        self.shared.finish(keep_logs);
    }
}

impl TwinServers {
    fn start(programs: Programs, dir: PathBuf, wanted: &[Side], runtime: &Runtime) -> Result<Self, String> {
        let authorities = Authorities::new();
        let people = authorities.people(now());
        let identities = people.iter().map(|(name, issued)| (*name, identity(issued))).collect();
        let local = authorities.server.server(&["127.0.0.1"]);
        let outside = Outside::start(runtime, &local)?;
        write_pki(&dir, &authorities).map_err(text)?;
        authenticators::write(&dir, &outside.mint, &authorities.server.cert_pem()).map_err(text)?;
        authorizers::write(&dir, &outside.mint.issuer).map_err(text)?;
        let wants_admission = wanted.iter().any(|side| side.setting() == Setting::Admission);
        let agnhost = if wants_admission { Some(runtime.block_on(start_agnhost(&dir))?) } else { None };
        let addresses = Addresses {
            webhooks: outside.mint.issuer.clone(),
            agnhost: agnhost
                .as_ref()
                .map_or_else(|| "https://127.0.0.1:1".to_owned(), |(_, address)| address.clone()),
        };
        admission::write(&dir, &addresses, &authorities.server.cert_pem()).map_err(text)?;
        audit::write(&dir).map_err(text)?;
        let mut roots = RootCertStore::empty();
        roots.add(authorities.server.cert.clone()).map_err(text)?;
        let roots = Arc::new(roots);

        let (etcd_port, etcd) = runtime.block_on(start_etcd(&programs, &dir))?;
        let kubelet = Kubelet::start(runtime, &local)?;
        let admin = identity(&authorities.client.leaf().cn("admin").org("system:masters").issue());
        let inner = identity(&authorities.inner.leaf().cn("front-proxy").issue());
        let mint = &outside.mint;
        let webhook_ca = authorities.server.cert_pem();
        let starter = Starter {
            programs: &programs,
            dir: &dir,
            roots,
            etcd_port,
            admin,
            inner,
            mint,
            webhook_ca,
            addresses,
        };

        let mut sides: Vec<Side> = wanted.to_vec();
        sides.push(Side::Reference);
        sides.sort_unstable();
        sides.dedup();
        let behind = wanted.iter().any(|side| side.is_gateway() || *side == Side::Backend);
        if behind && !sides.contains(&Side::Backend) {
            sides.push(Side::Backend);
        }
        let (sides, resource_version) = runtime.block_on(starter.all(&sides, kubelet.port()))?;
        // From here on, servers with cached keys must fetch them again.
        outside.rotation.rotate();
        Ok(Self {
            programs,
            audit: AuditLogs::new(&dir),
            dir,
            people,
            identities,
            sides,
            resource_version,
            controllers: OnceLock::new(),
            _etcd: etcd,
            _agnhost: agnhost.map(|(process, _)| process),
            kubelet,
            outside,
        })
    }

    /// The address of a side.
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

    /// Starts kube-controller-manager with the controllers that complete and delete namespaces.
    pub(crate) fn controllers(&self) -> Result<(), String> {
        let start = || {
            let side = if self.sides.contains_key(&Side::Gateway) { Side::Gateway } else { Side::Reference };
            let file = |name: &str| self.dir.join(name).display().to_string();
            let admin = self.issued("admin").ok_or("people.rs has no admin")?;
            fs::write(file("admin.crt"), admin.cert_pem()).map_err(text)?;
            fs::write(file("admin.key"), admin.key_pem()).map_err(text)?;
            let config = kubeconfig(&self.dir, self.target(side)?.address, "admin");
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
            ServerProcess::start(&self.dir, "controllers", program, flags)
        };
        self.controllers.get_or_init(start).as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// Stops a server that no further test needs.
    pub(crate) fn stop(&self, side: Side) {
        if let Some(Ok(server)) = self.sides.get(&side) {
            drop(server.process.lock().map(|mut process| process.take()));
        }
    }
}

/// Starts the webhook of Kubernetes' end-to-end tests; its address.
async fn start_agnhost(dir: &Path) -> Result<(ServerProcess, String), String> {
    let program = GoProgram::build("webhook").ok_or("there is no Go here")?;
    let file = |name: &str| dir.join(name).display().to_string();
    real::retry_on_collision(async || {
        let [port] = real::free_ports()?;
        let flags = [
            format!("--port={port}"),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
        ];
        let mut process = ServerProcess::start(dir, "agnhost", program.path(), &flags)?;
        real::eventually("agnhost", async || {
            process.check()?;
            Ok(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok())
        })
        .await?;
        Ok((process, format!("https://127.0.0.1:{port}")))
    })
    .await
}

/// The kubeconfig of a user whose certificate is in the directory of the run.
fn kubeconfig(dir: &Path, server: SocketAddr, name: &str) -> String {
    real::certificate_kubeconfig(server, &dir.join("server-ca.crt"), name)
}

fn write_pki(dir: &Path, authorities: &Authorities) -> std::io::Result<()> {
    let server = authorities.server.server(&["127.0.0.1", "localhost"]);
    let inner = authorities.inner.leaf().cn("front-proxy").issue();
    let gateway = authorities.client.leaf().cn("gateway").org("system:masters").issue();
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
        ("gateway.crt", gateway.cert_pem()),
        ("gateway.key", gateway.key_pem()),
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
