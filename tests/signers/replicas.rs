//! Two replicas in front of one API server, killed and restarted in turn while requests are approved.
//!
//! At the end, each request has one certificate, for its own key, which never changed after the first write. Gateways share a
//! certificate log: it has each certificate that was ever in the API, and is one log, however they were killed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::now;
use testkit::pki::{Key, KeyKind};
use testkit::real::ServerProcess;

use crate::case::{CLIENT, CSRS};
use crate::certificate::Certificate;
use crate::client::Api;
use crate::clusters::{CONTROLLERS, Clusters, DURATION, Gateway, Side, Starter, plain_http};
use testkit::real::eventually;

/// The controllers under test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControllerKind {
    Gateways,
    ControllerManagers,
}

/// Short leases, but longer than the latency of a busy API server.
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

/// The events of a watch.
#[derive(Default)]
struct CertificateHistory {
    /// The successive certificates of each request, without repetition.
    seen: BTreeMap<String, Vec<String>>,
    /// Why the watch was last restarted.
    ended: String,
}

type SharedHistory = Arc<Mutex<CertificateHistory>>;

struct CertificateWatch {
    history: SharedHistory,
    task: tokio::task::JoinHandle<()>,
}

struct ReplicaCluster<'a> {
    starter: Starter<'a>,
    name: &'static str,
    server: SocketAddr,
    api: Api,
    controllers: ControllerKind,
    _server: ServerProcess,
}

impl<'a> ReplicaCluster<'a> {
    async fn new(
        clusters: &'a Clusters,
        name: &'static str,
        controllers: ControllerKind,
    ) -> Result<Self, String> {
        let starter = clusters.starter();
        let (server, process) = starter.apiserver(name).await?;
        let api = Api::new(server, &clusters.authorities.servers, Some(&clusters.authorities.admin));
        starter.grant(&api).await?;
        let cluster = Self { starter, name, server, api, controllers, _server: process };
        if controllers == ControllerKind::Gateways {
            certs_log(&["init", "--origin", "example.com/log"], &cluster.log())?;
        }
        Ok(cluster)
    }

    /// The log that the gateways share.
    fn log(&self) -> PathBuf {
        self.starter.dir.join(format!("{}-log", self.name))
    }

    /// Fails unless the log has each of these certificates, and is a continuation of what it was.
    fn check_log(&self, history: &SharedHistory, earlier: &Path) -> Result<(), String> {
        if self.controllers != ControllerKind::Gateways {
            return Ok(());
        }
        certs_log(&["verify", "--since", &earlier.display().to_string()], &self.log())?;
        let listed = certs_log(&["monitor", "--output", "json"], &self.log())?;
        let listed: Value = serde_json::from_str(&listed).map_err(|error| error.to_string())?;
        let logged: BTreeSet<&str> =
            listed.as_array().into_iter().flatten().filter_map(|row| row["sha256"].as_str()).collect();
        let seen = &history.lock().unwrap().seen;
        let missing: Vec<&String> = seen
            .iter()
            .filter(|(_, certificates)| {
                !certificates.iter().all(|certificate| logged.contains(fingerprint(certificate).as_str()))
            })
            .map(|(name, _)| name)
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("of {} certificates these are not in the log: {missing:?}", seen.len()))
        }
    }

    /// A copy of the log's checkpoint.
    fn checkpoint(&self) -> Result<PathBuf, String> {
        let copy = self.starter.dir.join(format!("{}-checkpoint", self.name));
        if self.controllers == ControllerKind::Gateways {
            std::fs::copy(self.log().join("checkpoint"), &copy).map_err(|error| error.to_string())?;
        }
        Ok(copy)
    }

    async fn replica(&self, number: usize, election: &[&str]) -> Result<Replica, String> {
        let mut flags: Vec<String> = election.iter().map(|flag| (*flag).to_owned()).collect();
        flags.extend([CONTROLLERS.to_owned(), DURATION.to_owned()]);
        flags.extend(self.starter.signing_flags(Side::Bare));
        if self.controllers == ControllerKind::Gateways {
            flags.push(format!("--certificate-log={}", self.log().display()));
        }
        let name = format!("{}-{number}", self.name);
        Ok(match self.controllers {
            ControllerKind::Gateways => {
                Replica::Gateway(self.starter.gateway(&name, self.server, &flags).await?)
            }
            ControllerKind::ControllerManagers => Replica::ControllerManager {
                _process: self.starter.controller_manager(&name, self.server, &flags)?,
            },
        })
    }

    /// Starts a watch of all requests.
    fn watch(&self) -> CertificateWatch {
        let history = SharedHistory::default();
        let (api, record) = (self.api.clone(), Arc::clone(&history));
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
                // A server that has just started closes the first watches. The next watch begins with all existing
                // objects.
                let ended = ended.await.err().unwrap_or_default();
                record.lock().unwrap().ended = ended;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        CertificateWatch { history, task }
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

/// The output of `portcullis certs log`.
fn certs_log(arguments: &[&str], log: &Path) -> Result<String, String> {
    let mut command = Command::new(crate::PORTCULLIS);
    command.args(["certs", "log"]).args(arguments).arg("--dir").arg(log);
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return String::from_utf8(output.stdout).map_err(|error| error.to_string());
    }
    Err(format!("certs log {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The SHA-256 of a certificate of the API: PEM in base64.
fn fingerprint(certificate: &str) -> String {
    let pem = STANDARD.decode(certificate).unwrap_or_default();
    let pem = String::from_utf8_lossy(&pem).into_owned();
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = STANDARD.decode(body).unwrap_or_default();
    portcullis_go::hex::hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &der).as_ref())
}

/// Runs `each` for all items, sixteen at a time.
async fn for_all<T, U>(
    items: impl IntoIterator<Item = T>,
    each: impl AsyncFn(T) -> Result<U, String>,
) -> Result<Vec<U>, String> {
    stream::iter(items).map(|item| each(item)).buffer_unordered(16).try_collect().await
}

impl CertificateWatch {
    /// Waits until every request has a certificate.
    async fn all(&self, keys: &BTreeMap<String, Arc<Key>>) -> Result<(), String> {
        let missing = || {
            let record = self.history.lock().unwrap();
            let missing = keys.keys().filter(|name| record.seen.get(*name).is_none_or(Vec::is_empty));
            (missing.cloned().collect::<Vec<_>>(), record.ended.clone())
        };
        let all = eventually("all certificates", async || Ok(missing().0.is_empty())).await;
        all.map_err(|error| {
            format!("{error}; requests without certificate, and why the watch last ended: {:?}", missing())
        })
    }
}

impl Drop for CertificateWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn judge(
    clusters: &Clusters,
    history: &SharedHistory,
    keys: &BTreeMap<String, Arc<Key>>,
    since: i64,
) -> Result<(), String> {
    let ca = &clusters.authorities.signing(CLIENT).ok_or("no authority")?.ca;
    let seen = &history.lock().unwrap().seen;
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
                wrong.push(format!("{name} had {} successive certificates", several.len()));
            }
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{} of {}: {:?}", wrong.len(), keys.len(), &wrong[..wrong.len().min(5)]))
    }
}

/// 500 requests in ten waves. With each wave, one of the two replicas is killed, which may be the leader or not.
pub(crate) async fn killed(
    clusters: &Clusters,
    name: &'static str,
    controllers: ControllerKind,
) -> Result<(), String> {
    const WAVES: usize = 10;
    const WAVE: usize = 50;
    let cluster = ReplicaCluster::new(clusters, name, controllers).await?;
    let since = now();
    let watched = cluster.watch();
    let mut replicas =
        [Some(cluster.replica(0, &ELECTION).await?), Some(cluster.replica(1, &ELECTION).await?)];
    let keys: BTreeMap<String, Arc<Key>> =
        (0..WAVES * WAVE).map(|number| (format!("r-{number:03}"), Key::generate(KeyKind::P256))).collect();
    let names: Vec<&String> = keys.keys().collect();
    let mut earlier = cluster.checkpoint()?;
    for (wave, names) in names.chunks(WAVE).enumerate() {
        let objects = for_all(names, async |name: &&String| cluster.create(name, &keys[*name]).await).await?;
        let approving = for_all(objects, async |object| cluster.approve(object).await);
        let killing = async {
            // Once the signing of this wave has begun.
            if wave % 3 != 0 {
                cluster.signed(names[0]).await?;
            }
            drop(replicas[wave % 2].take());
            replicas[wave % 2] = Some(cluster.replica(wave % 2, &ELECTION).await?);
            if wave == WAVES / 2 {
                earlier = cluster.checkpoint()?;
            }
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
        return Err(format!("the leader changed only {changes} times"));
    }
    cluster.check_log(&watched.history, &earlier)?;
    judge(clusters, &watched.history, &keys, since)
}

/// Two replicas without leader election, which both sign: conflicts are counted, and no certificate is overwritten.
pub(crate) async fn racing(
    clusters: &Clusters,
    name: &'static str,
    controllers: ControllerKind,
) -> Result<(), String> {
    let cluster = ReplicaCluster::new(clusters, name, controllers).await?;
    let since = now();
    let watched = cluster.watch();
    let election = ["--leader-elect=false"];
    let replicas = [cluster.replica(0, &election).await?, cluster.replica(1, &election).await?];
    let earlier = cluster.checkpoint()?;
    let keys: BTreeMap<String, Arc<Key>> =
        (0..200).map(|number| (format!("r-{number:03}"), Key::generate(KeyKind::P256))).collect();
    let objects =
        for_all(&keys, async |(name, key): (&String, &Arc<Key>)| cluster.create(name, key).await).await?;
    for_all(objects, async |object| cluster.approve(object).await).await?;
    watched.all(&keys).await?;
    // The last conflicting write may still be in progress.
    let conflicts = async || {
        let mut sum = 0.0;
        for replica in &replicas {
            if let Replica::Gateway(gateway) = replica {
                let text = plain_http(gateway.metrics, "/metrics", None).await?;
                sum += text
                    .lines()
                    .filter(|line| line.starts_with("portcullis_status_conflicts_total{"))
                    .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                    .sum::<f64>();
            }
        }
        Ok::<_, String>(sum)
    };
    if controllers == ControllerKind::Gateways {
        eventually("a conflict", async || Ok(conflicts().await? > 0.0)).await?;
    }
    cluster.check_log(&watched.history, &earlier)?;
    judge(clusters, &watched.history, &keys, since)
}
