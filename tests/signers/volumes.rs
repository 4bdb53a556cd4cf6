//! Kubernetes' own kubelet, which works through the gateway, with a pod whose volume has a certificate and the CAs of its signer.
//! Its containers and mounts are kubemark's; requests and files are real (`tests/go/{kubelet,podcertificates}`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::real::{Kubelet, ServerProcess, eventually};

use crate::client::{Api, text};
use crate::clusters::{Clusters, Gateway, kubeconfig};
use crate::pod_certificates::{
    NODE_RESTRICTION, PodCluster, REQUESTS, SIGNER, gateway_of_pods, user_info, write_noncritical_profiles,
};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

const VOLUME: &str = "identity";

/// The sources of a pod's volume, and the CAs beside its certificate.
const SOURCES: &str = r#"[
    {"podCertificate": {"signerName": "example.com/workload", "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem"}},
    {"podCertificate": {"signerName": "example.com/workload", "keyType": "ED25519", "keyPath": "tls.key",
        "certificateChainPath": "tls.crt"}},
    {"clusterTrustBundle": {"signerName": "example.com/workload", "labelSelector": {}, "path": "ca.crt"}}]"#;

/// Starts a kubelet of the node `n1`.
async fn start_kubelet(
    clusters: &Clusters,
    name: &str,
    config: &Path,
    program: &GoProgram,
) -> Result<Kubelet, String> {
    Kubelet::start((&clusters.dir, name), program.path(), ("n1", config), &[]).await
}

/// The files appear, and a new kubelet, which knows nothing of the former one's, requests others.
pub(crate) async fn written(clusters: &Clusters) -> Result<(), String> {
    let Some(program) = GoProgram::build("kubelet") else { return Ok(()) };
    let cluster = PodCluster::start(clusters, "pods-kubelet", &[NODE_RESTRICTION], 1).await?;
    grant_bundles(&cluster.api).await?;
    let config = node_config(clusters, &cluster, "kubelet-n1")?;
    let pod = cluster.create(&pod("web")).await?;

    let mut kubelet = start_kubelet(clusters, "kubelet-first", &config, &program).await?;
    let first = kubelet.file(&pod, VOLUME, "bundle.pem").await?;
    is_good(&first, &kubelet.file(&pod, VOLUME, "ca.crt").await?).await?;
    let apart =
        [kubelet.file(&pod, VOLUME, "tls.key").await?, kubelet.file(&pod, VOLUME, "tls.crt").await?].concat();
    is_good(&apart, &kubelet.file(&pod, VOLUME, "ca.crt").await?).await?;
    drop(kubelet);

    let mut kubelet = start_kubelet(clusters, "kubelet-second", &config, &program).await?;
    let second = kubelet.file(&pod, VOLUME, "bundle.pem").await?;
    is_good(&second, &kubelet.file(&pod, VOLUME, "ca.crt").await?).await?;
    if first == second { Err("the same certificate again".to_owned()) } else { Ok(()) }
}

/// A client in the pod, with the files of its volume: at the gateway it is the user of a token that is bound to the pod, and at an API
/// server with the CA among its own the service account. Once the pod is gone, the gateway refuses it.
pub(crate) async fn used(clusters: &Clusters) -> Result<(), String> {
    const NAME: &str = "pods-volume-client";
    let Some(program) = GoProgram::build("kubelet") else { return Ok(()) };
    // The API server reads the file again when it changes; the CA of the pods is not there yet.
    let cas = clusters.dir.join(format!("{NAME}-clients.crt"));
    let clients_ca = fs::read_to_string(clusters.dir.join("clients-ca.crt")).map_err(text)?;
    fs::write(&cas, &clients_ca).map_err(text)?;
    let cas_flag = format!("--client-ca-file={}", cas.display());
    let flags = [NODE_RESTRICTION, &cas_flag];
    let mut cluster = PodCluster::start_with(clusters, NAME, &flags, 0, write_noncritical_profiles).await?;
    fs::write(&cas, format!("{clients_ca}{}", cluster.ca.cert_pem())).map_err(text)?;
    cluster.gateways.push(gateway_of_pods(clusters, &cluster, NAME).await?);
    grant_bundles(&cluster.api).await?;
    let config = node_config(clusters, &cluster, &format!("{NAME}-n1"))?;
    let pod = cluster.create(&pod("web")).await?;
    let mut kubelet = start_kubelet(clusters, &format!("{NAME}-kubelet"), &config, &program).await?;
    let bundle = kubelet.file(&pod, VOLUME, "bundle.pem").await?;

    let servers = &clusters.authorities.servers;
    let at = |address| Ok::<_, String>(Api::with_identity(address, servers, Some(identity(&bundle)?)));
    let [at_gateway, at_server] = [at(cluster.gateways[0].address)?, at(cluster.server)?];
    let token = cluster.bound_token(&pod).await?;
    let expected = user_info(&Api::new(cluster.server, servers, None).with_token(&token)).await?;
    let found = user_info(&at_gateway).await?;
    if expected.is_err() || found != expected {
        return Err(format!("the token: {expected:?}\nthe certificate: {found:?}"));
    }
    let file = clusters.dir.join(format!("{NAME}.pem"));
    fs::write(&file, &bundle).map_err(text)?;
    let explain = || explained(&cluster.gateways[0], &file);
    let mut explanation = explain()?;
    if let Some(extra) = explanation["user"]["extra"].as_object_mut() {
        extra.remove("authentication.kubernetes.io/credential-id");
    }
    if explanation["authenticator"] != "pod-certificate"
        || expected.as_ref().ok() != Some(&explanation["user"])
    {
        return Err(format!("the token: {expected:?}\nexplained: {explanation}"));
    }
    let mut found = Err(0);
    eventually("the CA at the API server", async || {
        found = user_info(&at_server).await?;
        Ok(found.is_ok())
    })
    .await?;
    let names = |user: &Value| [user["username"].clone(), user["groups"].clone()];
    if found.as_ref().map(names) != expected.as_ref().map(names) {
        return Err(format!("the token: {expected:?}\nat the API server: {found:?}"));
    }
    cluster.api.delete("/api/v1/namespaces/default/pods/web?gracePeriodSeconds=0").await?.ok()?;
    eventually("the end of the pod", async || Ok(user_info(&at_gateway).await? == Err(401))).await?;
    let explanation = explain()?;
    let why = explanation["reasons"].to_string();
    if explanation["authenticated"] == false && why.contains("pod") {
        Ok(())
    } else {
        Err(explanation.to_string())
    }
}

/// What `portcullis explain` says of the certificate in a file, with the settings of a gateway.
fn explained(gateway: &Gateway, certificate: &Path) -> Result<Value, String> {
    let mut command = Command::new(crate::PORTCULLIS);
    command.arg("explain").args(&gateway.flags).args(["--output=json", "--certificate"]).arg(certificate);
    let output = command.output().map_err(text)?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
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
                "volumeMounts": [{"name": VOLUME, "mountPath": "/run/identity"}]}],
            "volumes": [{"name": VOLUME, "projected": {"sources": sources}}],
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

/// The certificate of a bundle with its chain, and its key.
fn identity(bundle: &str) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let key = PrivateKeyDer::from_pem_slice(bundle.as_bytes()).map_err(text)?;
    let chain = CertificateDer::pem_slice_iter(bundle.as_bytes()).collect::<Result<_, _>>().map_err(text)?;
    Ok((chain, key))
}

/// A TLS client that trusts the CAs accepts a server with the key and the certificate.
async fn is_good(bundle: &str, cas: &str) -> Result<(), String> {
    let (chain, key) = identity(bundle)?;
    let certificate = chain.first().ok_or("no certificate")?;
    let ca = CertificateDer::from_pem_slice(cas.as_bytes()).map_err(text)?;
    crate::kubelet::handshake(certificate, key, &ca, "web.default.svc").await
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
