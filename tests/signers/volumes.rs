//! Kubernetes' own kubelet, which works through the gateway, with a pod whose volume has a certificate and the CAs of its signer.
//! Its containers and mounts are kubemark's; requests and files are real (`tests/go/{kubelet,podcertificates}`).

use std::fs;
use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::real::{ServerProcess, eventually, free_ports, retry_on_collision};

use crate::client::{Api, text};
use crate::clusters::{Clusters, kubeconfig};
use crate::pod_certificates::{NODE_RESTRICTION, PodCluster, REQUESTS, SIGNER};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// The volumes of a pod, and the CAs beside its certificate.
const SOURCES: &str = r#"[
    {"podCertificate": {"signerName": "example.com/workload", "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem"}},
    {"podCertificate": {"signerName": "example.com/workload", "keyType": "ED25519", "keyPath": "tls.key",
        "certificateChainPath": "tls.crt"}},
    {"clusterTrustBundle": {"signerName": "example.com/workload", "labelSelector": {}, "path": "ca.crt"}}]"#;

/// A kubelet of the node `n1`.
struct Kubelet {
    /// A directory of its own choice.
    root: PathBuf,
    process: ServerProcess,
}

impl Kubelet {
    async fn start(
        clusters: &Clusters,
        name: &str,
        config: &Path,
        program: &GoProgram,
    ) -> Result<Self, String> {
        retry_on_collision(async || {
            let [port] = free_ports()?;
            let arguments = [
                "--morph=kubelet".to_owned(),
                "--name=n1".to_owned(),
                format!("--kubeconfig={}", config.display()),
                format!("--kubelet-port={port}"),
                "--kubelet-read-only-port=0".to_owned(),
                "--use-host-image-service=false".to_owned(),
            ];
            let mut process = ServerProcess::start(&clusters.dir, name, program.path(), arguments)?;
            let mut root = None;
            let is_ready = eventually(name, async || {
                process.check()?;
                let log = fs::read_to_string(process.log()).map_err(text)?;
                let after = log.split_once("] Using ").and_then(|(_, rest)| rest.split_once(" as root dir"));
                root = after.map(|(root, _)| PathBuf::from(root));
                Ok(root.is_some() && log.contains("Successfully registered node"))
            });
            is_ready.await.map_err(|error| format!("{error}\n{}", process.log_tail()))?;
            Ok(Self { root: root.clone().ok_or("no directory")?, process })
        })
        .await
    }

    /// A file of the pod's volume, once the kubelet has written it.
    async fn file(&mut self, pod: &Value, name: &str) -> Result<String, String> {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let end = format!("pods/{uid}/volumes/kubernetes.io~projected/identity/{name}");
        let mut content = None;
        let written = eventually(name, async || {
            self.process.check()?;
            content = fs::read_to_string(self.root.join(&end)).ok();
            Ok(content.is_some())
        });
        written.await.map_err(|error| format!("{error}\n{}", self.process.log_tail()))?;
        content.ok_or_else(|| format!("{name} is gone"))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).ok();
    }
}

/// The files appear, and a new kubelet, which knows nothing of the former one's, requests others.
pub(crate) async fn written(clusters: &Clusters) -> Result<(), String> {
    let Some(program) = GoProgram::build("kubelet") else { return Ok(()) };
    let cluster = PodCluster::start(clusters, "pods-kubelet", &[NODE_RESTRICTION], 1).await?;
    grant_bundles(&cluster.api).await?;
    let config = node_config(clusters, &cluster, "kubelet-n1")?;
    let pod = cluster.create(&pod("web")).await?;

    let mut kubelet = Kubelet::start(clusters, "kubelet-first", &config, &program).await?;
    let first = kubelet.file(&pod, "bundle.pem").await?;
    is_good(&first, &kubelet.file(&pod, "ca.crt").await?).await?;
    let apart = [kubelet.file(&pod, "tls.key").await?, kubelet.file(&pod, "tls.crt").await?].concat();
    is_good(&apart, &kubelet.file(&pod, "ca.crt").await?).await?;
    drop(kubelet);

    let mut kubelet = Kubelet::start(clusters, "kubelet-second", &config, &program).await?;
    let second = kubelet.file(&pod, "bundle.pem").await?;
    is_good(&second, &kubelet.file(&pod, "ca.crt").await?).await?;
    if first == second { Err("the same certificate again".to_owned()) } else { Ok(()) }
}

/// The kubelet's manager renews a certificate by the times that the gateway has chosen.
pub(crate) async fn renewed(clusters: &Clusters) -> Result<(), String> {
    let Some(program) = GoProgram::build("podcertificates") else { return Ok(()) };
    let cluster = PodCluster::start(clusters, "pods-renewed", &[NODE_RESTRICTION], 1).await?;
    let config = node_config(clusters, &cluster, "renewing-n1")?.display().to_string();
    let pod = cluster.create(&pod("web")).await?;
    let arguments = [&*config, "n1", "default", "web"];
    let mut process = ServerProcess::start(&clusters.dir, "renewing", program.path(), arguments)?;
    let mut printed = String::new();
    eventually("two keys", async || {
        printed = fs::read_to_string(process.log()).map_err(text)?;
        let ended = process.has_ended();
        if ended && printed.matches("BEGIN PRIVATE KEY").count() < 2 {
            return Err(process.log_tail());
        }
        Ok(ended)
    })
    .await?;
    let of_first = printed.rfind("-----BEGIN PRIVATE KEY").unwrap_or_default();
    for bundle in [&printed[..of_first], &printed[of_first..]] {
        is_good(bundle, &cluster.ca.cert_pem()).await?;
    }
    let list = cluster.api.get(REQUESTS).await?.ok()?;
    let of_pod = |object: &&Value| object["spec"]["podUID"] == pod["metadata"]["uid"];
    let issued = list["items"].as_array().into_iter().flatten().filter(of_pod);
    let issued = issued.filter(|object| object["status"]["conditions"][0]["type"] == "Issued").count();
    if issued >= 2 { Ok(()) } else { Err(format!("{issued} requests have a certificate: {list}")) }
}

fn pod(name: &str) -> Value {
    let sources: Value = serde_json::from_str(SOURCES).unwrap_or_default();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {
            "nodeName": "n1", "serviceAccountName": "web", "automountServiceAccountToken": false,
            "containers": [{"name": "web", "image": "example.com/web",
                "volumeMounts": [{"name": "identity", "mountPath": "/run/identity"}]}],
            "volumes": [{"name": "identity", "projected": {"sources": sources}}],
        },
    })
}

/// The kubeconfig of the node, whose server is the gateway.
fn node_config(clusters: &Clusters, cluster: &PodCluster, name: &str) -> Result<PathBuf, String> {
    let issued = clusters.authorities.clients.leaf().cn("system:node:n1").org("system:nodes").issue();
    let file = |end: &str| clusters.dir.join(format!("{name}.{end}"));
    fs::write(file("crt"), issued.cert_pem()).map_err(text)?;
    fs::write(file("key"), issued.key_pem()).map_err(text)?;
    let gateway = cluster.gateways.first().ok_or("no gateway")?.address;
    fs::write(file("kubeconfig"), kubeconfig(&clusters.dir, gateway, name)).map_err(text)?;
    Ok(file("kubeconfig"))
}

/// A TLS client that trusts the CAs accepts a server with the key and the certificate.
async fn is_good(bundle: &str, cas: &str) -> Result<(), String> {
    let key = PrivateKeyDer::from_pem_slice(bundle.as_bytes()).map_err(text)?;
    let certificate = CertificateDer::from_pem_slice(bundle.as_bytes()).map_err(text)?;
    let ca = CertificateDer::from_pem_slice(cas.as_bytes()).map_err(text)?;
    crate::kubelet::handshake(&certificate, key, &ca, "web.default.svc").await
}

/// Grants what `deploy/rbac-controllers.yaml` leaves to the operator: bundles of the signer.
async fn grant_bundles(api: &Api) -> Result<(), String> {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "attest-workload"},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": [SIGNER], "verbs": ["attest"]}]});
    api.post(&format!("{RBAC}/clusterroles"), &role).await?.ok()?;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "attest-workload"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "attest-workload"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:portcullis"}]});
    api.post(&format!("{RBAC}/clusterrolebindings"), &binding).await?.ok().map(drop)
}
