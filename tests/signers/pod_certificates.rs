//! The controller that signs certificates of pods, at a real API server: kube-controller-manager has none to compare with.
//!
//! The API server validates what the controller writes: the key, the times, and that a request is decided once.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::pki::{Ca, Issued, Key, KeyKind};
use testkit::real::{ServerProcess, account_flags, eventually};

use crate::client::{Api, Person, text};
use crate::clusters::{Clusters, Gateway, Starter, plain_http};
use crate::kubelet::handshake;

/// The signer of the manifest, and one that the gateway may not sign for.
pub(crate) const SIGNER: &str = "example.com/workload";
const FORBIDDEN: &str = "example.com/forbidden";
const V1: &str = "/apis/certificates.k8s.io/v1";
const V1_BETA_1: &str = "/apis/certificates.k8s.io/v1beta1";
const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const REQUESTS: &str = "/apis/certificates.k8s.io/v1/namespaces/default/podcertificaterequests";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// As kubeadm sets it; admission of requests by nodes.
pub(crate) const NODE_RESTRICTION: &str = "--enable-admission-plugins=NodeRestriction";

/// A cluster with a node, a service account, pods, and gateways that sign for it.
pub(crate) struct PodCluster {
    pub(crate) server: SocketAddr,
    pub(crate) api: Api,
    pub(crate) ca: Ca,
    pub(crate) gateways: Vec<Gateway>,
    log: std::path::PathBuf,
    node: Value,
    account: Value,
    _server: ServerProcess,
}

impl PodCluster {
    pub(crate) async fn start(
        clusters: &Clusters,
        name: &str,
        more: &[&str],
        gateways: usize,
    ) -> Result<Self, String> {
        Self::start_with(clusters, name, more, gateways, write_profiles).await
    }

    /// The same with other signers, whose file the function writes.
    pub(crate) async fn start_with(
        clusters: &Clusters,
        name: &str,
        more: &[&str],
        gateways: usize,
        profiles: fn(&Starter<'_>, &str, &Ca) -> Result<String, String>,
    ) -> Result<Self, String> {
        let starter = clusters.starter();
        let (server, process) = starter.apiserver_with(name, more).await?;
        let api = Api::new(server, &clusters.authorities.servers, Some(&clusters.authorities.admin));
        starter.grant(&api).await?;
        let ca = Ca::new("workloads");
        let profiles = profiles(&starter, name, &ca)?;
        let created = async |path: &str, object: Value| api.post(path, &object).await?.ok();
        let node = created("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await?;
        created("/api/v1/nodes", json!({"metadata": {"name": "n2"}})).await?;
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let account = created(accounts, json!({"metadata": {"name": "web"}})).await?;
        created(accounts, json!({"metadata": {"name": "other"}})).await?;
        let mut running = Vec::new();
        for number in 0..gateways {
            let flags = [
                "--leader-elect=false".to_owned(),
                "--controllers=podcertificaterequest-signing,clustertrustbundle-publishing".to_owned(),
                format!("--pod-signer-profiles={profiles}"),
            ];
            running.push(starter.gateway(&format!("{name}-{number}"), server, &flags).await?);
        }
        let log = clusters.dir.join(format!("{name}-0.log"));
        Ok(Self { server, api, ca, gateways: running, log, node, account, _server: process })
    }

    /// Creates a pod on the node, with a certificate in a volume.
    async fn pod(&self, name: &str, labels: Value) -> Result<Value, String> {
        let source = json!({"podCertificate":
            {"signerName": SIGNER, "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem"}});
        let pod = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "nodeName": "n1", "serviceAccountName": "web", "automountServiceAccountToken": false,
                "containers": [{"name": "web", "image": "example.com/web"}],
                "volumes": [{"name": "credentials", "projected": {"sources": [source]}}],
            },
        });
        self.create(&pod).await
    }

    pub(crate) async fn create(&self, pod: &Value) -> Result<Value, String> {
        // The admission of service accounts learns of them with a delay.
        let mut created = Value::Null;
        eventually("the creation of a pod", async || {
            let answer = self.api.post(PODS, pod).await?;
            let is_created = answer.status == 201;
            created = answer.body;
            Ok(is_created)
        })
        .await?;
        Ok(created)
    }

    /// A token of the service account that is bound to a pod.
    pub(crate) async fn bound_token(&self, pod: &Value) -> Result<String, String> {
        let bound = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": pod["metadata"]["uid"]}}});
        let path = "/api/v1/namespaces/default/serviceaccounts/web/token";
        let answer = self.api.post(path, &bound).await?.ok()?;
        answer["status"]["token"].as_str().map(str::to_owned).ok_or_else(|| answer.to_string())
    }

    /// A request for a pod, as its kubelet writes it.
    fn request(&self, name: &str, pod: &Value, key: &Arc<Key>) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {
                "signerName": SIGNER,
                "podName": pod["metadata"]["name"], "podUID": pod["metadata"]["uid"],
                "serviceAccountName": "web", "serviceAccountUID": self.account["metadata"]["uid"],
                "nodeName": "n1", "nodeUID": self.node["metadata"]["uid"],
                "stubPKCS10Request": STANDARD.encode(Csr::new().with_key(Arc::clone(key)).der()),
            },
        })
    }

    /// The request once it is decided.
    async fn decided(&self, version: &str, name: &str) -> Result<Value, String> {
        let is_decided = |object: Option<&Value>| {
            object.is_some_and(|object| !object["status"]["conditions"].as_array().is_none_or(Vec::is_empty))
        };
        let decided = self.api.until(&requests(version), name, is_decided).await?;
        decided.ok_or_else(|| format!("{name} is gone"))
    }

    /// Checks an issued certificate as its users do: a TLS client that trusts the CA accepts it for its DNS name.
    async fn is_good(&self, object: &Value, key: &Key) -> Result<(), String> {
        let status = &object["status"];
        let chain = status["certificateChain"].as_str().unwrap_or_default();
        let certificate = CertificateDer::from_pem_slice(chain.as_bytes()).map_err(text)?;
        handshake(&certificate, key.pkcs8(), &self.ca.cert, "web.default.svc").await?;
        match handshake(&certificate, key.pkcs8(), &self.ca.cert, "other.default.svc").await {
            Ok(()) => Err("the certificate is valid for another name".to_owned()),
            Err(_) => Ok(()),
        }
    }
}

fn requests(version: &str) -> String {
    format!("{version}/namespaces/default/podcertificaterequests")
}

/// The signers of the gateways.
fn write_profiles(starter: &Starter<'_>, name: &str, ca: &Ca) -> Result<String, String> {
    let file = |end: &str| starter.dir.join(format!("{name}-{end}"));
    fs::write(file("ca.crt"), ca.cert_pem()).map_err(text)?;
    fs::write(file("ca.key"), ca.key_pem()).map_err(text)?;
    let mut profiles = "apiVersion: portcullis.dev/v1alpha1\nkind: PodSignerProfiles\nsigners:\n".to_owned();
    for signer in [SIGNER, FORBIDDEN] {
        write!(
            profiles,
            "- signerName: {signer}
  certFile: {name}-ca.crt
  keyFile: {name}-ca.key
  usages: [digital signature, client auth, server auth]
  keyTypes: [ECDSAP256, ED25519, RSA3072]
  userAnnotations: [example.com/purpose]
  rules:
  - expression: \"'app' in pod.metadata.labels && namespaceObject.metadata.name == 'default'\"
    message: label the pod with app
  uris: >-
    ['spiffe://example.com/ns/' + request.metadata.namespace + '/sa/' + serviceAccount.metadata.name]
  dnsNames: \"[pod.metadata.labels.app + '.' + request.metadata.namespace + '.svc']\"
"
        )
        .map_err(text)?;
    }
    let path = file("signers.yaml");
    fs::write(&path, profiles).map_err(text)?;
    Ok(path.display().to_string())
}

/// A decision: the changed fields of the request, the condition, and a part of its message.
struct Row {
    name: &'static str,
    pod: &'static str,
    key: KeyKind,
    changes: fn(&Others) -> Value,
    expected: &'static str,
    message: &'static str,
}

/// Objects of the cluster that a request may name wrongly.
struct Others {
    node: Value,
    account: Value,
}

const fn row(
    name: &'static str,
    pod: &'static str,
    changes: fn(&Others) -> Value,
    expected: &'static str,
    message: &'static str,
) -> Row {
    Row { name, pod, key: KeyKind::P256, changes, expected, message }
}

const ROWS: &[Row] = &[
    row("issued", "web", |_| json!({}), "Issued Issued", "serial number "),
    row("shortest", "web", |_| json!({"maxExpirationSeconds": 3600}), "Issued Issued", ""),
    row("longest", "web", |_| json!({"maxExpirationSeconds": 7_862_400}), "Issued Issued", ""),
    Row { key: KeyKind::Ed25519, ..row("ed25519", "web", |_| json!({}), "Issued Issued", "") },
    Row { key: KeyKind::Rsa3072, ..row("rsa", "web", |_| json!({}), "Issued Issued", "") },
    row(
        "annotated",
        "web",
        |_| json!({"unverifiedUserAnnotations": {"example.com/purpose": "x"}}),
        "Issued Issued",
        "",
    ),
    row(
        "no-pod",
        "web",
        |_| json!({"podName": "absent"}),
        "Denied PodNotFound",
        "pod default/absent does not exist",
    ),
    row(
        "other-pod",
        "web",
        |_| json!({"podUID": "u"}),
        "Denied PodNotFound",
        "not \"u\": it was deleted and created again",
    ),
    row("ended-pod", "ended", |_| json!({}), "Denied PodTerminated", "its phase is Succeeded"),
    row(
        "other-node",
        "web",
        |others| json!({"nodeName": "n2", "nodeUID": others.node["metadata"]["uid"]}),
        "Denied NodeMismatch",
        "pod default/web runs on node \"n1\", not on \"n2\"",
    ),
    row("node-uid", "web", |_| json!({"nodeUID": "u"}), "Denied NodeNotFound", "node n1 has UID"),
    row(
        "other-account",
        "web",
        |others| json!({"serviceAccountName": "other", "serviceAccountUID": others.account["metadata"]["uid"]}),
        "Denied ServiceAccountMismatch",
        "runs as service account \"web\", not as \"other\"",
    ),
    row(
        "account-uid",
        "web",
        |_| json!({"serviceAccountUID": "u"}),
        "Denied ServiceAccountNotFound",
        "default/web has UID",
    ),
    Row {
        key: KeyKind::P384,
        ..row(
            "key-type",
            "web",
            |_| json!({}),
            "Denied UnsupportedKeyType",
            "this signer accepts ED25519, ECDSAP256, RSA3072",
        )
    },
    row(
        "annotation",
        "web",
        |_| json!({"unverifiedUserAnnotations": {"example.com/other": "x"}}),
        "Denied InvalidUnverifiedUserAnnotations",
        "\"example.com/other\" is not known: this signer accepts example.com/purpose",
    ),
    row("rule", "plain", |_| json!({}), "Denied NotPermitted", "label the pod with app"),
    row(
        "invalid-name",
        "odd",
        |_| json!({}),
        "Failed InvalidName",
        "DNS name \"a_b.default.svc\" is not allowed",
    ),
];

/// Each kind of decision.
pub(crate) async fn decisions(clusters: &Clusters) -> Result<(), String> {
    let cluster = PodCluster::start(clusters, "pods", &[], 1).await?;
    let web = cluster.pod("web", json!({"app": "web"})).await?;
    let plain = cluster.pod("plain", json!({"tier": "x"})).await?;
    let odd = cluster.pod("odd", json!({"app": "a_b"})).await?;
    let mut ended = cluster.pod("ended", json!({"app": "web"})).await?;
    ended["status"]["phase"] = json!("Succeeded");
    cluster.api.put(&format!("{PODS}/ended/status"), &ended).await?.ok()?;
    let others = Others {
        node: cluster.api.get("/api/v1/nodes/n2").await?.ok()?,
        account: cluster.api.get("/api/v1/namespaces/default/serviceaccounts/other").await?.ok()?,
    };
    let mut wrong = String::new();
    for Row { name, pod, key, changes, expected, message } in ROWS {
        let pod = [&web, &plain, &odd, &ended].into_iter().find(|object| object["metadata"]["name"] == **pod);
        let key = Key::generate(*key);
        let mut request = cluster.request(name, pod.ok_or("no such pod")?, &key);
        for (field, value) in changes(&others).as_object().into_iter().flatten() {
            request["spec"][field] = value.clone();
        }
        cluster.api.post(&requests(V1), &request).await?.ok().map_err(|error| format!("{name}: {error}"))?;
        let object = cluster.decided(V1, name).await?;
        let condition = &object["status"]["conditions"][0];
        let field = |field: &str| condition[field].as_str().unwrap_or_default();
        let found = format!("{} {}", field("type"), field("reason"));
        if found != **expected || !field("message").contains(message) {
            writeln!(wrong, "{name}: {condition}").map_err(text)?;
        }
        if found.starts_with("Issued") {
            let good = cluster.is_good(&object, &key).await;
            good.err().map_or(Ok(()), |error| writeln!(wrong, "{name}: {error}")).map_err(text)?;
        } else if !object["status"]["certificateChain"].is_null() {
            writeln!(wrong, "{name}: has a certificate").map_err(text)?;
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    // The gateway counts a write after its answer.
    eventually("the counts of certificates and refusals", async || {
        let metrics = plain_http(cluster.gateways[0].metrics, "/metrics", None).await?;
        let count = |name: &str, count: usize| {
            metrics.contains(&format!("{name}{{cluster=\"backend\",signer=\"{SIGNER}\"}} {count}\n"))
        };
        Ok(count("portcullis_certificates_signed_total", 6)
            && count("portcullis_certificates_refused_total", 11))
    })
    .await
}

/// A node requests a certificate for its pod, as a kubelet does, and another for it once the pod is gone.
pub(crate) async fn node(clusters: &Clusters) -> Result<(), String> {
    let cluster = PodCluster::start(clusters, "pods-node", &[NODE_RESTRICTION], 1).await?;
    let pod = cluster.pod("web", json!({"app": "web"})).await?;
    let key = Key::generate(KeyKind::P256);
    let request = cluster.request("first", &pod, &key);
    let kubelet = Person::node("n1");
    // The admission of nodes learns of the pod with a delay.
    eventually("the creation of a request by its node", async || {
        let answer = cluster.api.send(Some(&kubelet), Method::POST, &requests(V1), Some(&request)).await?;
        Ok(answer.status == 201)
    })
    .await?;
    let object = cluster.decided(V1, "first").await?;
    cluster.is_good(&object, &key).await?;
    cluster.api.delete(&format!("{PODS}/web?gracePeriodSeconds=0")).await?.ok()?;
    // The administrator, whose requests no admission checks.
    let request = cluster.request("second", &pod, &key);
    cluster.api.post(&requests(V1), &request).await?.ok()?;
    let object = cluster.decided(V1, "second").await?;
    if object["status"]["conditions"][0]["reason"] == "PodNotFound" {
        Ok(())
    } else {
        Err(object.to_string())
    }
}

/// The walk-through of `docs/pod-certificates.md`: its signer signs for its pod, in a namespace with its label.
pub(crate) async fn page(clusters: &Clusters) -> Result<(), String> {
    let started = PodCluster::start_with(clusters, "pods-page", &[NODE_RESTRICTION], 1, write_signer_of_page);
    let cluster = started.await?;
    let mut pod: Value = serde_saphyr::from_str(&of_page("kind: Pod\n")?).map_err(text)?;
    pod["spec"]["nodeName"] = json!("n1");
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    let pod = cluster.create(&pod).await?;
    let signer = pod["spec"]["volumes"][0]["projected"]["sources"][0]["podCertificate"]["signerName"].clone();
    let key = Key::generate(KeyKind::P256);
    let labels = json!({"metadata": {"labels": {"example.com/workload-certificates": "true"}}});
    for (name, expected) in [("unlabelled", "NotPermitted"), ("labelled", "Issued")] {
        if name == "labelled" {
            cluster.api.patch("/api/v1/namespaces/default", &labels).await?.ok()?;
        }
        let mut request = cluster.request(name, &pod, &key);
        request["spec"]["signerName"] = signer.clone();
        eventually("the creation of a request by its node", async || {
            let kubelet = Person::node("n1");
            let path = requests(V1);
            let sent = cluster.api.send(Some(&kubelet), Method::POST, &path, Some(&request)).await?;
            Ok(sent.status == 201)
        })
        .await?;
        let object = cluster.decided(V1, name).await?;
        let condition = &object["status"]["conditions"][0];
        if condition["reason"] != expected {
            return Err(format!("{name}: {condition}"));
        }
        if name == "unlabelled"
            && condition["message"] != "label the namespace with example.com/workload-certificates=true"
        {
            return Err(format!("another message: {condition}"));
        }
        let chain = object["status"]["certificateChain"].as_str().unwrap_or_default();
        if name == "labelled" {
            let leaf = CertificateDer::from_pem_slice(chain.as_bytes()).map_err(text)?;
            let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).map_err(text)?;
            let names = leaf.subject_alternative_name().map_err(text)?.ok_or("no names")?;
            let names = format!("{:?}", names.value.general_names);
            if names != "[URI(\"spiffe://example.com/ns/default/sa/web\")]" {
                return Err(names);
            }
            if !chain.trim_end().ends_with("-----END CERTIFICATE-----") {
                return Err(chain.to_owned());
            }
        }
    }
    Ok(())
}

/// The YAML of the page that contains this text.
fn of_page(part: &str) -> Result<String, String> {
    let page = include_str!("../../docs/pod-certificates.md");
    let blocks = page.split("```yaml\n").skip(1).filter_map(|block| block.split("```").next());
    let found = blocks.into_iter().find(|block| block.contains(part));
    found.map(str::to_owned).ok_or_else(|| format!("the page has no {part}"))
}

/// Runs the first command of the page, and writes its file.
fn write_signer_of_page(starter: &Starter<'_>, name: &str, _: &Ca) -> Result<String, String> {
    let dir = starter.dir.join(name);
    fs::create_dir_all(&dir).map_err(text)?;
    let made = std::process::Command::new(crate::PORTCULLIS)
        .args(["certs", "init", "--dir", "certs/workload", "--name", "workload"])
        .current_dir(&dir)
        .output()
        .map_err(text)?;
    if !made.status.success() {
        return Err(String::from_utf8_lossy(&made.stderr).into_owned());
    }
    let path = dir.join("certs/workload.yaml");
    fs::write(&path, of_page("kind: PodSignerProfiles\n")?).map_err(text)?;
    Ok(path.display().to_string())
}

/// Two gateways without leader election sign the same requests: each gets one certificate.
pub(crate) async fn racing(clusters: &Clusters) -> Result<(), String> {
    const REQUESTS: usize = 100;
    let cluster = PodCluster::start(clusters, "pods-racing", &[], 2).await?;
    let pod = cluster.pod("web", json!({"app": "web"})).await?;
    let key = Key::generate(KeyKind::P256);
    for number in 0..REQUESTS {
        let request = cluster.request(&format!("r-{number}"), &pod, &key);
        cluster.api.post(&requests(V1), &request).await?.ok()?;
    }
    for number in 0..REQUESTS {
        let object = cluster.decided(V1, &format!("r-{number}")).await?;
        if object["status"]["certificateChain"].is_null() {
            return Err(object.to_string());
        }
    }
    // The loser of the last race may still be writing.
    let sum = async |name: &str| {
        let mut sum = 0.0;
        for gateway in &cluster.gateways {
            let metrics = plain_http(gateway.metrics, "/metrics", None).await?;
            let values = metrics.lines().filter(|line| line.starts_with(name));
            sum += values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
        }
        Ok::<_, String>(sum)
    };
    eventually("a write by each request's winner", async || {
        Ok(sum("portcullis_certificates_signed_total{").await? >= 100.0)
    })
    .await?;
    let (signed, conflicts) = (
        sum("portcullis_certificates_signed_total{").await?,
        sum("portcullis_status_conflicts_total{").await?,
    );
    if signed > 100.0 || conflicts == 0.0 {
        return Err(format!("{signed} certificates, {conflicts} conflicts"));
    }
    Ok(())
}

/// A v1beta1 request as kubelets of 1.35 write it: a key and a proof of possession.
fn older(cluster: &PodCluster, name: &str, pod: &Value, key: &Arc<Key>) -> Value {
    let mut request = cluster.request(name, pod, key);
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let proof = key.sign(key.default_algorithm(), uid.as_bytes());
    if let Some(spec) = request["spec"].as_object_mut() {
        spec.remove("stubPKCS10Request");
        spec.insert("pkixPublicKey".to_owned(), STANDARD.encode(key.spki()).into());
        spec.insert("proofOfPossession".to_owned(), STANDARD.encode(proof).into());
    }
    request
}

/// An API server of 1.36, as far as 1.37 emulates it, serves v1beta1 alone; requests have either form.
pub(crate) async fn older_version(clusters: &Clusters) -> Result<(), String> {
    let flags = [
        "--emulated-version=1.36",
        "--feature-gates=PodCertificateRequest=true",
        "--runtime-config=certificates.k8s.io/v1beta1/podcertificaterequests=true",
        // The authorizer of nodes follows v1, and is never ready.
        "--authorization-mode=RBAC",
    ];
    let cluster = PodCluster::start(clusters, "pods-older", &flags, 1).await?;
    let absent = cluster.api.get(&requests(V1)).await?.status;
    if absent != 404 {
        return Err(format!("v1 is served: {absent}"));
    }
    let pod = cluster.pod("web", json!({"app": "web"})).await?;
    let key = Key::generate(KeyKind::P256);
    let of = [cluster.request("stub", &pod, &key), older(&cluster, "key", &pod, &key)];
    for (name, request) in ["stub", "key"].into_iter().zip(of) {
        cluster.api.post(&requests(V1_BETA_1), &request).await?.ok()?;
        let object = cluster.decided(V1_BETA_1, name).await?;
        cluster.is_good(&object, &key).await.map_err(|error| format!("{name}: {error}: {object}"))?;
    }
    Ok(())
}

/// Where both versions are served, v1 does not show the key of an older kubelet's request.
pub(crate) async fn key_of_older_version(clusters: &Clusters) -> Result<(), String> {
    let flags = ["--runtime-config=certificates.k8s.io/v1beta1/podcertificaterequests=true"];
    let cluster = PodCluster::start(clusters, "pods-both", &flags, 1).await?;
    let pod = cluster.pod("web", json!({"app": "web"})).await?;
    let key = Key::generate(KeyKind::P256);
    cluster.api.post(&requests(V1_BETA_1), &older(&cluster, "key", &pod, &key)).await?.ok()?;
    let object = cluster.decided(V1, "key").await?;
    if !object["spec"]["pkixPublicKey"].is_null() {
        return Err(format!("v1 has the key: {object}"));
    }
    cluster.is_good(&object, &key).await.map_err(|error| format!("{error}: {object}"))
}

/// A signer that RBAC does not grant: the log has the rule to add, and other signers' requests are not delayed.
pub(crate) async fn missing_permission(clusters: &Clusters) -> Result<(), String> {
    let cluster = PodCluster::start(clusters, "pods-forbidden", &[], 1).await?;
    let pod = cluster.pod("web", json!({"app": "web"})).await?;
    let key = Key::generate(KeyKind::P256);
    let mut request = cluster.request("forbidden", &pod, &key);
    request["spec"]["signerName"] = json!(FORBIDDEN);
    cluster.api.post(&requests(V1), &request).await?.ok()?;
    eventually("a line in the log", async || {
        let log = String::from_utf8_lossy(&fs::read(&cluster.log).map_err(text)?).into_owned();
        Ok(log.contains("resources: [signers], resourceNames: [example.com/forbidden], verbs: [sign]}"))
    })
    .await?;
    cluster.api.post(&requests(V1), &cluster.request("good", &pod, &key)).await?.ok()?;
    cluster.is_good(&cluster.decided(V1, "good").await?, &key).await?;
    // Not a user of the API server: its CA signs for pods alone.
    let certificate = cluster.ca.leaf().cn("system:admin").issue();
    let api = Api::new(cluster.server, &clusters.authorities.servers, Some(&certificate));
    let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let status = api.post(REVIEWS, &review).await?.status;
    if status == 401 { Ok(()) } else { Err(format!("the CA of pods is trusted: {status}")) }
}

/// A signer whose certificates are those of the service account, with an index and a CRL.
fn write_identity_profiles(starter: &Starter<'_>, name: &str, ca: &Ca) -> Result<String, String> {
    write_profiles_with("Critical", starter, name, ca)
}

/// The same, with certificates that API servers accept, too.
pub(crate) fn write_noncritical_profiles(
    starter: &Starter<'_>,
    name: &str,
    ca: &Ca,
) -> Result<String, String> {
    write_profiles_with("NonCritical", starter, name, ca)
}

fn write_profiles_with(identity: &str, starter: &Starter<'_>, name: &str, ca: &Ca) -> Result<String, String> {
    let file = |end: &str| starter.dir.join(format!("{name}-{end}"));
    fs::write(file("ca.crt"), ca.cert_pem()).map_err(text)?;
    fs::write(file("ca.key"), ca.key_pem()).map_err(text)?;
    let profiles = format!(
        "apiVersion: portcullis.dev/v1alpha1
kind: PodSignerProfiles
signers:
- signerName: {SIGNER}
  certFile: {name}-ca.crt
  keyFile: {name}-ca.key
  usages: [digital signature, client auth]
  podIdentity: {identity}
  indexFile: {name}-ca.index.jsonl
  crlFile: {name}.crl
"
    );
    fs::write(file("signers.yaml"), profiles).map_err(text)?;
    Ok(file("signers.yaml").display().to_string())
}

/// The user info of a client, without the ID of its credential; its status if it is refused.
pub(crate) async fn user_info(api: &Api) -> Result<Result<Value, u16>, String> {
    let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let answer = api.post(REVIEWS, &review).await?;
    if answer.status != 201 {
        return Ok(Err(answer.status.as_u16()));
    }
    let mut user = answer.body["status"]["userInfo"].clone();
    let extra = user["extra"].as_object_mut().ok_or("no extra")?;
    extra.remove("authentication.kubernetes.io/credential-id").ok_or("no ID of the credential")?;
    Ok(Ok(user))
}

/// A gateway that signs for the pods of a cluster, and knows them by these certificates and by their tokens.
pub(crate) async fn gateway_of_pods(
    clusters: &Clusters,
    cluster: &PodCluster,
    name: &str,
) -> Result<Gateway, String> {
    let starter = clusters.starter();
    let file = |name: &str| starter.dir.join(name).display().to_string();
    let flags = [
        "--leader-elect=false".to_owned(),
        "--controllers=podcertificaterequest-signing,clustertrustbundle-publishing".to_owned(),
        format!("--pod-signer-profiles={}", file(&format!("{name}-signers.yaml"))),
        format!("--pod-client-ca-file={}", file(&format!("{name}-ca.crt"))),
    ];
    let accounts = account_flags(starter.dir);
    let accounts = accounts.iter().filter(|flag| {
        flag.starts_with("--service-account-issuer=") || flag.starts_with("--service-account-key-file=")
    });
    let flags: Vec<String> = flags.into_iter().chain(accounts.cloned()).collect();
    starter.gateway(name, cluster.server, &flags).await
}

/// A pod authenticates at the gateway with its certificate: as the user of a token that is bound to the pod, as long as the pod
/// exists, and at nothing else. Then the certificate is in the CRL.
pub(crate) async fn api_client(clusters: &Clusters) -> Result<(), String> {
    const NAME: &str = "pods-client";
    let cluster = PodCluster::start_with(clusters, NAME, &[], 0, write_identity_profiles).await?;
    let starter = clusters.starter();
    let gateway = gateway_of_pods(clusters, &cluster, NAME).await?;
    let pod = cluster.pod("web", json!({"app": "web"})).await?;
    let key = Key::generate(KeyKind::P256);
    cluster.api.post(&requests(V1), &cluster.request("client", &pod, &key)).await?.ok()?;
    let object = cluster.decided(V1, "client").await?;
    let chain = object["status"]["certificateChain"].as_str().unwrap_or_default();
    let leaf =
        CertificateDer::from_pem_slice(chain.as_bytes()).map_err(|error| format!("{error}: {object}"))?;
    let certificate = Issued { chain: vec![leaf.clone()], key: key.pkcs8(), private: Arc::clone(&key) };
    let servers = &clusters.authorities.servers;
    let by_certificate = Api::new(gateway.address, servers, Some(&certificate));
    let token = cluster.bound_token(&pod).await?;
    let by_token = Api::new(gateway.address, servers, None).with_token(&token);
    let direct = Api::new(cluster.server, servers, None).with_token(&token);
    let expected = user_info(&direct).await?;
    let [of_token, of_certificate] = [user_info(&by_token).await?, user_info(&by_certificate).await?];
    if expected != of_token || expected != of_certificate {
        return Err(format!(
            "the API server: {expected:?}\ntoken: {of_token:?}\ncertificate: {of_certificate:?}"
        ));
    }
    let extra = expected.map_err(|status| format!("refused: {status}"))?["extra"].clone();
    let keys: Vec<&String> = extra.as_object().into_iter().flatten().map(|(key, _)| key).collect();
    if keys.len() != 4 {
        return Err(format!("not the extra values of a pod: {keys:?}"));
    }
    // The same names and extension by another CA, and the API server, which does not know the extension.
    let (_, read) = x509_parser::parse_x509_certificate(&leaf).map_err(text)?;
    let identity = read.extensions().iter().find(|one| one.oid.to_id_string() == "1.3.6.1.4.1.57683.1");
    let identity = identity.ok_or("no extension")?.value.to_vec();
    let other =
        Ca::new("workloads").leaf().org("system:serviceaccounts").org("system:serviceaccounts:default");
    let other =
        other.cn("system:serviceaccount:default:web").extension("1.3.6.1.4.1.57683.1", true, identity);
    let other = Api::new(gateway.address, servers, Some(&other.issue()));
    let at_server = Api::new(cluster.server, servers, Some(&certificate));
    for (name, api) in [("another CA", &other), ("the API server", &at_server)] {
        let found = user_info(api).await?;
        if found != Err(401) {
            return Err(format!("{name}: {found:?}"));
        }
    }
    // A pod of the same name is another pod.
    cluster.api.delete(&format!("{PODS}/web?gracePeriodSeconds=0")).await?.ok()?;
    cluster.pod("web", json!({"app": "web"})).await?;
    for (name, api) in [("the token", &by_token), ("the certificate", &by_certificate)] {
        eventually(name, async || Ok(user_info(api).await? == Err(401))).await?;
    }
    let crl = starter.dir.join(format!("{NAME}.crl"));
    eventually("the certificate in the CRL", async || {
        let Ok(content) = fs::read(&crl) else { return Ok(false) };
        let (_, block) = x509_parser::pem::parse_x509_pem(&content).map_err(text)?;
        let (_, list) = x509_parser::parse_x509_crl(&block.contents).map_err(text)?;
        let found = list.iter_revoked_certificates().any(|entry| entry.raw_serial() == read.raw_serial());
        Ok(found)
    })
    .await
}
