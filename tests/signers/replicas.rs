//! Replicas that die: two of them before one API server, killed and started again in turn while requests are approved.
//!
//! In the end each request has one certificate, for its own key, that never changed since it was written.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::pki::{Key, KeyKind};
use testkit::real::ServerProcess;

use crate::case::{CLIENT, CSRS, now};
use crate::certificate::Certificate;
use crate::client::Api;
use crate::clusters::{CONTROLLERS, Clusters, DURATION, Gateway, Side, Starter, plainly};
use testkit::real::eventually;

/// Who signs in this test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Gateways,
    ControllerManagers,
}

/// How soon a dead leader's place is taken: no sooner than a busy API server answers.
const ELECTION: [&str; 4] = [
    "--leader-elect=true",
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=4s",
    "--leader-elect-retry-period=500ms",
];

enum Replica {
    Gateway(Gateway),
    ControllerManager { _process: ServerProcess },
}

/// What a watch has told.
#[derive(Default)]
struct Record {
    /// The certificates that each request was seen with, in order and without repetition.
    seen: BTreeMap<String, Vec<String>>,
    /// Why it was last begun again.
    ended: String,
}

type Seen = Arc<Mutex<Record>>;

struct Watched {
    seen: Seen,
    task: tokio::task::JoinHandle<()>,
}

struct ReplicaCluster<'a> {
    starter: Starter<'a>,
    name: &'static str,
    server: SocketAddr,
    api: Api,
    who: Who,
    _server: ServerProcess,
}

impl<'a> ReplicaCluster<'a> {
    async fn new(clusters: &'a Clusters, name: &'static str, who: Who) -> Result<Self, String> {
        let starter = clusters.starter();
        let (server, process) = starter.apiserver(name).await?;
        let api = Api::new(server, &clusters.authorities.servers, Some(&clusters.authorities.admin));
        starter.grant(&api).await?;
        Ok(Self { starter, name, server, api, who, _server: process })
    }

    async fn replica(&self, number: usize, election: &[&str]) -> Result<Replica, String> {
        let mut flags: Vec<String> = election.iter().map(|flag| (*flag).to_owned()).collect();
        flags.extend([CONTROLLERS.to_owned(), DURATION.to_owned()]);
        flags.extend(self.starter.signing_flags(Side::Bare));
        let name = format!("{}-{number}", self.name);
        Ok(match self.who {
            Who::Gateways => Replica::Gateway(self.starter.gateway(&name, self.server, &flags).await?),
            Who::ControllerManagers => Replica::ControllerManager {
                _process: self.starter.controller_manager(&name, self.server, &flags)?,
            },
        })
    }

    /// Watches every request, from before the first.
    fn watch(&self) -> Watched {
        let seen = Seen::default();
        let (api, record) = (self.api.clone(), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            let path = format!("{CSRS}?watch=1");
            loop {
                let ended = api.watch::<()>(&path, |kind, object| {
                    let mut record = record.lock().unwrap();
                    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                    let certificate = object["status"]["certificate"].as_str().unwrap_or_default();
                    let versions: &mut Vec<String> = record.seen.entry(name).or_default();
                    if kind == "DELETED" {
                        versions.push("deleted".to_owned());
                    } else if versions.last().map_or("", String::as_str) != certificate {
                        versions.push(certificate.to_owned());
                    }
                    None
                });
                // A server that has just begun ends the first watches. The next tells of all that is there.
                let ended = ended.await.err().unwrap_or_default();
                record.lock().unwrap().ended = ended;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        Watched { seen, task }
    }

    async fn create(&self, name: &str, key: &Arc<Key>) -> Result<Value, String> {
        let csr = Csr::new().cn(name).with_key(Arc::clone(key));
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"request": STANDARD.encode(csr.pem()), "signerName": CLIENT, "usages": ["client auth"]},
        });
        self.api.post(CSRS, &object).await?.ok()
    }

    async fn approve(&self, mut object: Value) -> Result<(), String> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        object["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]});
        self.api.put(&format!("{CSRS}/{name}/approval"), &object).await?.ok().map(drop)
    }

    async fn signed(&self, name: &str) -> Result<(), String> {
        self.api.until(CSRS, name, crate::case::is_signed).await.map(drop)
    }
}

/// Sixteen at a time.
async fn all<T, U>(
    items: impl IntoIterator<Item = T>,
    each: impl AsyncFn(T) -> Result<U, String>,
) -> Result<Vec<U>, String> {
    stream::iter(items).map(|item| each(item)).buffer_unordered(16).try_collect().await
}

impl Watched {
    /// Until it has told of every certificate.
    async fn all(&self, keys: &BTreeMap<String, Arc<Key>>) -> Result<(), String> {
        let lacking = || {
            let record = self.seen.lock().unwrap();
            let lacking = keys.keys().filter(|name| record.seen.get(*name).is_none_or(Vec::is_empty));
            (lacking.cloned().collect::<Vec<_>>(), record.ended.clone())
        };
        let all = eventually("all certificates", async || Ok(lacking().0.is_empty())).await;
        all.map_err(|error| format!("{error}; lacking, and why the watch last ended: {:?}", lacking()))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn judge(
    clusters: &Clusters,
    seen: &Seen,
    keys: &BTreeMap<String, Arc<Key>>,
    since: i64,
) -> Result<(), String> {
    let ca = &clusters.authorities.signing(CLIENT).ok_or("no authority")?.ca;
    let seen = &seen.lock().unwrap().seen;
    let mut wrong = Vec::new();
    for (name, key) in keys {
        match seen.get(name).map(Vec::as_slice) {
            Some([certificate]) => match Certificate::read(certificate, ca, (since, now())) {
                Ok(certificate) if certificate.spki == key.spki() => {}
                Ok(_) => wrong.push(format!("{name} has a certificate for another key")),
                Err(error) => wrong.push(format!("{name}: {error}")),
            },
            Some([]) | None => wrong.push(format!("{name} has no certificate")),
            Some(several) => {
                wrong.push(format!("{name} had {} certificates, one after the other", several.len()));
            }
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{} of {}: {:?}", wrong.len(), keys.len(), &wrong[..wrong.len().min(5)]))
    }
}

/// 500 requests in ten waves; with each wave one of the two replicas is killed while the other or none leads.
pub(crate) async fn killed(clusters: &Clusters, name: &'static str, who: Who) -> Result<(), String> {
    const WAVES: usize = 10;
    const WAVE: usize = 50;
    let cluster = ReplicaCluster::new(clusters, name, who).await?;
    let since = now();
    let watched = cluster.watch();
    let mut replicas =
        [Some(cluster.replica(0, &ELECTION).await?), Some(cluster.replica(1, &ELECTION).await?)];
    let keys: BTreeMap<String, Arc<Key>> =
        (0..WAVES * WAVE).map(|number| (format!("r-{number:03}"), Key::generate(KeyKind::P256))).collect();
    let names: Vec<&String> = keys.keys().collect();
    for (wave, names) in names.chunks(WAVE).enumerate() {
        let objects = all(names, async |name: &&String| cluster.create(name, &keys[*name]).await).await?;
        let approving = all(objects, async |object| cluster.approve(object).await);
        let killing = async {
            // As soon as this wave is being signed; every second time it is the leader that dies.
            if wave % 3 != 0 {
                cluster.signed(names[0]).await?;
            }
            drop(replicas[wave % 2].take());
            replicas[wave % 2] = Some(cluster.replica(wave % 2, &ELECTION).await?);
            Ok(Vec::<()>::new())
        };
        futures_util::future::try_join(approving, killing).await?;
    }
    watched.all(&keys).await?;
    let leases = cluster.api.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases").await?.ok()?;
    let leases = leases["items"].as_array().into_iter().flatten();
    let changes =
        leases.filter_map(|lease| lease["spec"]["leaseTransitions"].as_u64()).max().unwrap_or_default();
    if changes < 2 {
        return Err(format!("the leader changed {changes} times: this shows too little"));
    }
    judge(clusters, &watched.seen, &keys, since)
}

/// Two that both sign, because nothing elects one: races are lost, and counted, and no certificate is written twice.
pub(crate) async fn racing(clusters: &Clusters, name: &'static str, who: Who) -> Result<(), String> {
    let cluster = ReplicaCluster::new(clusters, name, who).await?;
    let since = now();
    let watched = cluster.watch();
    let election = ["--leader-elect=false"];
    let replicas = [cluster.replica(0, &election).await?, cluster.replica(1, &election).await?];
    let keys: BTreeMap<String, Arc<Key>> =
        (0..200).map(|number| (format!("r-{number:03}"), Key::generate(KeyKind::P256))).collect();
    let objects =
        all(&keys, async |(name, key): (&String, &Arc<Key>)| cluster.create(name, key).await).await?;
    all(objects, async |object| cluster.approve(object).await).await?;
    watched.all(&keys).await?;
    // The loser of the last race may still be about to write.
    let lost = async || {
        let mut lost = 0.0;
        for replica in &replicas {
            if let Replica::Gateway(gateway) = replica {
                let text = plainly(gateway.metrics, "/metrics", None).await?;
                lost += text
                    .lines()
                    .filter(|line| line.starts_with("portcullis_status_conflicts_total{"))
                    .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                    .sum::<f64>();
            }
        }
        Ok::<_, String>(lost)
    };
    if who == Who::Gateways {
        eventually("a lost race", async || Ok(lost().await? > 0.0)).await?;
    }
    judge(clusters, &watched.seen, &keys, since)
}
