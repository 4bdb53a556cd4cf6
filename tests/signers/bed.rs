//! The test bed of one run: a directory, a PKI, etcd, and clusters that have nothing in common but the signing authorities.
//!
//! Each cluster is an API server with a prefix of its own in etcd: `reference` and `second` with kube-controller-manager,
//! `gateway` with the controllers of the real binary in front of it, `bare` with none.

mod authorities;
mod starter;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

pub use authorities::Authorities;
pub use starter::{CONTROLLERS, DURATION, Gateway, Starter, eventually, plainly};

use crate::build::{self, Programs};
use crate::client::{Api, text};
use crate::servers::Process;

/// The clusters that a case can be played on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Reference,
    Second,
    Gateway,
    Bare,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Second => "second",
            Self::Gateway => "gateway",
            Self::Bare => "bare",
        }
    }
}

/// The bed, which starts when it is first asked for.
pub struct Lab {
    source: build::Source,
    wanted: Vec<Side>,
    pub runtime: tokio::runtime::Runtime,
    bed: OnceLock<Result<Bed, String>>,
    reported: AtomicBool,
}

/// The running bed.
pub struct Bed {
    pub programs: Programs,
    pub dir: PathBuf,
    pub authorities: Authorities,
    etcd: SocketAddr,
    clusters: BTreeMap<Side, Result<Cluster, String>>,
    _etcd: Process,
}

/// One API server and what controls it.
pub struct Cluster {
    pub side: Side,
    pub server: SocketAddr,
    /// The API server itself, as administrator.
    pub api: Api,
    /// Where the gateway listens, on the side that has one.
    pub gateway: Option<SocketAddr>,
    /// The log of the controllers.
    pub log: PathBuf,
    /// There is one cluster-info, so its cases come one after the other.
    pub info: tokio::sync::Mutex<()>,
    /// Written by cases that exchange a signing authority; whether another than the usual one is there.
    pub signing: tokio::sync::RwLock<bool>,
    controllers: Mutex<Option<Process>>,
    _server: Process,
}

impl Lab {
    pub fn new(source: build::Source, wanted: Vec<Side>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { source, wanted, runtime, bed: OnceLock::new(), reported: AtomicBool::new(false) }
    }

    /// Starts everything on the first call; the others wait for it.
    pub fn bed(&self) -> Result<&Bed, String> {
        self.bed.get_or_init(|| self.start()).as_ref().map_err(|error| {
            if self.reported.swap(true, Ordering::Relaxed) {
                "the test bed does not start; another test of this run says why".to_owned()
            } else {
                error.clone()
            }
        })
    }

    fn start(&self) -> Result<Bed, String> {
        let programs = match &self.source {
            build::Source::Present(programs) => programs.clone(),
            build::Source::Buildable(dir) => build::build(dir)?,
            build::Source::Absent(why) => return Err(why.clone()),
        };
        let dir = tempfile::Builder::new().prefix("portcullis-signers-").tempdir().map_err(text)?.keep();
        self.runtime
            .block_on(Bed::start(programs, dir.clone(), &self.wanted))
            .map_err(|error| format!("the test bed does not start: {error}\nlogs: {}", dir.display()))
    }

    /// Ends the servers; the directory with their logs stays if it may be wanted.
    pub fn finish(self, keep: bool) {
        if let Some(Ok(bed)) = self.bed.into_inner() {
            let dir = bed.dir.clone();
            drop(bed);
            if keep {
                eprintln!("signers: the logs of the servers are kept in {}", dir.display());
            } else if let Err(error) = fs::remove_dir_all(&dir) {
                eprintln!("signers: cannot remove {}: {error}", dir.display());
            }
        }
    }
}

impl Bed {
    async fn start(programs: Programs, dir: PathBuf, wanted: &[Side]) -> Result<Self, String> {
        let authorities = Authorities::new();
        authorities.write(&dir).map_err(text)?;
        // Of the side without controllers, too: those files are never exchanged, and serve the replicas.
        for side in [Side::Reference, Side::Second, Side::Gateway, Side::Bare] {
            authorities.write_signing(&dir, side).map_err(text)?;
        }
        let (etcd_port, etcd) = starter::etcd(&programs, &dir).await?;
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
        Ok(Self { programs, dir, authorities, etcd: etcd_address, clusters, _etcd: etcd })
    }

    pub fn cluster(&self, side: Side) -> Result<&Cluster, String> {
        match self.clusters.get(&side) {
            Some(Ok(cluster)) => Ok(cluster),
            Some(Err(why)) => Err(why.clone()),
            None => Err(format!("the {} was not started", side.name())),
        }
    }

    pub fn starter(&self) -> Starter<'_> {
        let (programs, dir, authorities) = (&self.programs, &self.dir, &self.authorities);
        Starter { programs, dir, authorities, etcd_port: self.etcd.port() }
    }

    /// Stores a request as it is, past the API server and its checks.
    pub async fn store(&self, side: Side, name: &str, object: &Value) -> Result<(), String> {
        let key = format!("/{}/certificatesigningrequests/{name}", side.name());
        let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(object.to_string())});
        plainly(self.etcd, "/v3/kv/put", Some(&body)).await.map(drop)
    }
}

impl Cluster {
    /// An error with the end of the log when the controllers have ended by themselves.
    pub fn check(&self) -> Result<(), String> {
        self.controllers.lock().unwrap().as_mut().map_or(Ok(()), Process::check)
    }

    /// Ends the controllers.
    pub fn stop_controllers(&self) {
        drop(self.controllers.lock().unwrap().take());
    }

    /// The files of a signer's authority on this side.
    pub fn signing_files(&self, dir: &Path, flag: &str) -> (PathBuf, PathBuf) {
        authorities::signing_files(dir, self.side, flag)
    }
}

/// For somebody with a certificate in the bed's directory.
pub fn kubeconfig(dir: &Path, server: SocketAddr, certificate: &str, key: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": format!("https://{server}"), "certificate-authority": dir.join("servers-ca.crt")}}],
        "users": [{"name": "u", "user": {
            "client-certificate": dir.join(certificate), "client-key": dir.join(key)}}],
    })
}

/// A number that no other caller of this run has.
pub fn unique() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What many tests of a run share.
pub type SharedLab = Arc<Lab>;
