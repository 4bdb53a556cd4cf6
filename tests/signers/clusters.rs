//! The clusters of one run: a directory, a PKI, etcd, and clusters that have nothing in common but the signing authorities.
//!
//! Each cluster is an API server with a prefix of its own in etcd: `reference` and `second` with kube-controller-manager,
//! `gateway` with the controllers of the real binary in front of it, `bare` with none.

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
use testkit::real::{self, Programs, ServerProcess, SharedServers, Source, certificate_user, start_etcd};
use tokio::runtime::Runtime;

pub(crate) use authorities::Authorities;
pub(crate) use starter::{CONTROLLERS, DURATION, Gateway, Starter, plainly};

use crate::client::{Api, text};

/// The clusters that a case can be played on.
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

/// One API server and what controls it.
pub(crate) struct Cluster {
    pub(crate) side: Side,
    pub(crate) server: SocketAddr,
    /// The API server itself, as administrator.
    pub(crate) api: Api,
    /// Where the gateway listens, on the side that has one.
    pub(crate) gateway: Option<SocketAddr>,
    /// The log of the controllers.
    pub(crate) log: PathBuf,
    /// There is one cluster-info, so its cases come one after the other.
    pub(crate) info: tokio::sync::Mutex<()>,
    /// Written by cases that exchange a signing authority; whether another than the usual one is there.
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

    /// Ends the servers; the directory with their logs stays if it may be wanted.
    pub(crate) fn finish(self, keep_logs: bool) {
        self.shared.finish(keep_logs);
    }
}

impl Clusters {
    async fn start(programs: Programs, dir: PathBuf, wanted: &[Side]) -> Result<Self, String> {
        let authorities = Authorities::new();
        authorities.write(&dir).map_err(text)?;
        // Of the side without controllers, too: those files are never exchanged, and serve the replicas.
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

    /// Stores a request as it is, past the API server and its checks.
    pub(crate) async fn store(&self, side: Side, name: &str, object: &Value) -> Result<(), String> {
        let key = format!("/{}/certificatesigningrequests/{name}", side.name());
        let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(object.to_string())});
        plainly(self.etcd, "/v3/kv/put", Some(&body)).await.map(drop)
    }
}

impl Cluster {
    /// An error with the end of the log when the controllers have ended by themselves.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.controllers.lock().unwrap().as_mut().map_or(Ok(()), ServerProcess::check)
    }

    /// The files of a signer's authority on this side.
    pub(crate) fn signing_files(&self, dir: &Path, flag: &str) -> (PathBuf, PathBuf) {
        authorities::signing_files(dir, self.side, flag)
    }
}

/// The kubeconfig of a user whose certificate is in the directory of the run.
pub(crate) fn kubeconfig(dir: &Path, server: SocketAddr, name: &str) -> String {
    let user = certificate_user(&dir.join(format!("{name}.crt")), &dir.join(format!("{name}.key")));
    real::kubeconfig(server, &dir.join("servers-ca.crt"), &user)
}

/// A number that no other caller of this run has.
pub(crate) fn unique() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
