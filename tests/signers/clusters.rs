//! The clusters of one run: a directory, a PKI, etcd, and clusters that share only the signing CAs.
//!
//! Each cluster is an API server with its own prefix in etcd: `reference` and `second` with kube-controller-manager,
//! `gateway` with the controllers of the gateway's binary, `bare` without controllers.

mod authorities;
mod starter;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::real::{self, Programs, ServerProcess, SharedServers, Source, start_etcd};
use tokio::runtime::Runtime;

pub(crate) use authorities::Authorities;
pub(crate) use starter::{CONTROLLERS, DURATION, Gateway, Starter, plain_http};

use crate::client::{Api, text};

/// The clusters on which a case can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Reference,
    Second,
    Gateway,
    Bare,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Second => "second",
            Self::Gateway => "gateway",
            Self::Bare => "bare",
        }
    }
}

/// The clusters, which start when the first test needs them.
pub(crate) struct SharedClusters {
    shared: SharedServers<Clusters>,
    wanted: Vec<Side>,
}

/// The running clusters.
pub(crate) struct Clusters {
    pub(crate) programs: Programs,
    pub(crate) dir: PathBuf,
    pub(crate) authorities: Authorities,
    etcd: SocketAddr,
    sides: BTreeMap<Side, Result<Cluster, String>>,
    _etcd: ServerProcess,
}

/// An API server and its controllers.
pub(crate) struct Cluster {
    pub(crate) side: Side,
    pub(crate) server: SocketAddr,
    /// A client of the API server with administrator rights.
    pub(crate) api: Api,
    /// The address of the gateway, on the side that has one.
    pub(crate) gateway: Option<SocketAddr>,
    /// The log of the controllers.
    pub(crate) log: PathBuf,
    /// Serializes the cases of the ConfigMap cluster-info.
    pub(crate) info: tokio::sync::Mutex<()>,
    /// Locked for writing by cases that replace a signing CA; true while a CA is replaced.
    pub(crate) signing: tokio::sync::RwLock<bool>,
    controllers: Mutex<Option<ServerProcess>>,
    _server: ServerProcess,
}

impl SharedClusters {
    pub(crate) fn new(source: Source, wanted: Vec<Side>) -> Self {
        Self { shared: SharedServers::new("signers", source), wanted }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.shared.runtime()
    }

    /// Starts everything on the first call; the others wait for it.
    pub(crate) fn clusters(&self) -> Result<&Clusters, String> {
        self.shared.get_or_start(|runtime, programs, dir| {
            runtime.block_on(Clusters::start(programs, dir.to_owned(), &self.wanted))
        })
    }

    /// Stops the servers; keeps the directory with their logs if `keep_logs` is set.
    pub(crate) fn finish(self, keep_logs: bool) {
        self.shared.finish(keep_logs);
    }
}

impl Clusters {
    async fn start(programs: Programs, dir: PathBuf, wanted: &[Side]) -> Result<Self, String> {
        let authorities = Authorities::new();
        authorities.write(&dir).map_err(text)?;
        // The replicas use the files of the side without controllers, which are never replaced.
        for side in [Side::Reference, Side::Second, Side::Gateway, Side::Bare] {
            authorities.write_signing(&dir, side).map_err(text)?;
        }
        let (etcd_port, etcd) = start_etcd(&programs, &dir).await?;
        let starter = Starter { programs: &programs, dir: &dir, authorities: &authorities, etcd_port };
        let mut clusters = BTreeMap::new();
        let mut sides = vec![Side::Reference];
        sides.extend(wanted);
        sides.sort_unstable();
        sides.dedup();
        let starting = sides.iter().map(|side| starter.cluster(*side));
        for (side, cluster) in sides.iter().zip(futures_util::future::join_all(starting).await) {
            if *side == Side::Reference {
                clusters.insert(*side, Ok(cluster?));
            } else {
                clusters.insert(*side, cluster);
            }
        }
        let etcd_address = ([127, 0, 0, 1], etcd_port).into();
        Ok(Self { programs, dir, authorities, etcd: etcd_address, sides: clusters, _etcd: etcd })
    }

    pub(crate) fn cluster(&self, side: Side) -> Result<&Cluster, String> {
        match self.sides.get(&side) {
            Some(Ok(cluster)) => Ok(cluster),
            Some(Err(why)) => Err(why.clone()),
            None => Err(format!("the {} was not started", side.name())),
        }
    }

    pub(crate) fn starter(&self) -> Starter<'_> {
        let (programs, dir, authorities) = (&self.programs, &self.dir, &self.authorities);
        Starter { programs, dir, authorities, etcd_port: self.etcd.port() }
    }

    /// Writes a request to etcd without the API server's validation.
    pub(crate) async fn store(&self, side: Side, name: &str, object: &Value) -> Result<(), String> {
        let key = format!("/{}/certificatesigningrequests/{name}", side.name());
        let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(object.to_string())});
        plain_http(self.etcd, "/v3/kv/put", Some(&body)).await.map(drop)
    }
}

impl Cluster {
    /// Returns an error with the end of the log if the controllers have exited.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.controllers.lock().unwrap().as_mut().map_or(Ok(()), ServerProcess::check)
    }

    /// The files of a signer's CA on this side.
    pub(crate) fn signing_files(&self, dir: &Path, flag: &str) -> (PathBuf, PathBuf) {
        authorities::signing_files(dir, self.side, flag)
    }
}

/// The kubeconfig of a user whose certificate is in the directory of the run.
pub(crate) fn kubeconfig(dir: &Path, server: SocketAddr, name: &str) -> String {
    real::certificate_kubeconfig(server, &dir.join("servers-ca.crt"), name)
}

/// A number that is unique in this run.
pub(crate) fn unique() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
