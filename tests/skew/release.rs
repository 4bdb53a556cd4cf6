//! A cluster of one release, with a gateway, and one with limits, in front of its API server.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::go_program::GoProgram;
use testkit::pki::{Ca, Issued};
use testkit::real::{
    KUBELET, Programs, Source, certificate_kubeconfig, eventually, newest_release, older_releases, program_of,
};
use testkit::replicas::{Layout, Replicas, Setup};
use testkit::{Gateway, full, text};

use crate::rows::ROWS;
use crate::table::Table;
use crate::webhooks::Webhooks;

/// The namespace whose objects the webhooks of the API server see.
pub(crate) const BY_SERVER: &str = "load-1";
/// The namespace whose objects the webhooks of the gateway see.
pub(crate) const BY_GATEWAY: &str = "load-2";
/// A user with a UID.
pub(crate) const TOKEN: &str = "dave-token";
/// The signer of `rbac-pod-certificates.yaml`.
pub(crate) const POD_SIGNER: &str = "example.com/workload";
const AUDIT_POLICY: &str =
    r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}"#;

pub(crate) struct Release {
    pub(crate) version: String,
    pub(crate) replicas: Replicas,
    pub(crate) webhooks: Webhooks,
    pub(crate) kubectls: Vec<(String, PathBuf)>,
    pub(crate) dir: TempDir,
}

/// The status of a response, and its body.
pub(crate) type Answer = (StatusCode, Value);

/// Starts the cluster, and tries each row.
pub(crate) fn run(source: &Source, version: &str, all: bool, table: &Table) -> Result<(), String> {
    let programs = source.programs()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut release = runtime.block_on(Release::start(&programs, version, all))?;
    let mut failures = Vec::new();
    for row in ROWS {
        match runtime.block_on((row.run)(&release)) {
            Ok(shown) => table.add(version, row.name, shown),
            Err(error) => {
                table.add(version, row.name, "**fails**".to_owned());
                failures.push(format!("{}: {error}", row.name));
            }
        }
    }
    if failures.is_empty() && std::env::var_os("PORTCULLIS_KEEP_TWIN").is_none() {
        return Ok(());
    }
    release.dir.disable_cleanup(true);
    let logs = format!("logs: {}", release.dir.path().display());
    eprintln!("{logs}");
    if failures.is_empty() { Ok(()) } else { Err(format!("{version}:\n{}\n{logs}", failures.join("\n"))) }
}

/// The flags with which a release serves requests of certificates for pods, where it does not by default.
fn serves_pod_requests(version: &str) -> Vec<String> {
    match PodRequestVersion::of(version) {
        Some(PodRequestVersion::V1Beta1) => vec![
            "--feature-gates=PodCertificateRequest=true".to_owned(),
            "--runtime-config=certificates.k8s.io/v1beta1/podcertificaterequests=true".to_owned(),
        ],
        Some(PodRequestVersion::V1) | None => Vec::new(),
    }
}

/// The minor version of a release.
fn minor(release: &str) -> u32 {
    release.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap()
}

/// The version of requests of certificates for pods.
#[derive(Clone, Copy)]
pub(crate) enum PodRequestVersion {
    V1Beta1,
    V1,
}

impl PodRequestVersion {
    /// The one that a release serves; none before 1.35.
    pub(crate) fn of(release: &str) -> Option<Self> {
        match minor(release) {
            ..35 => None,
            35..37 => Some(Self::V1Beta1),
            37.. => Some(Self::V1),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1 => "v1",
        }
    }
}

fn pod_signers() -> Value {
    json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "PodSignerProfiles",
        "signers": [{
            "signerName": POD_SIGNER, "certFile": "workloads.crt", "keyFile": "workloads.key",
            "usages": ["digital signature", "client auth"], "keyTypes": ["ECDSAP256"],
            "uris": "['spiffe://example.com/pod/' + pod.metadata.name]",
        }],
    })
}

/// The kube-apiserver of a release.
pub(crate) fn kube_apiserver(programs: &Programs, version: &str) -> Result<PathBuf, String> {
    if version == newest_release()? {
        Ok(programs.kube_apiserver.clone())
    } else {
        program_of(version, "kube-apiserver")
    }
}

pub(crate) fn directory() -> Result<TempDir, String> {
    tempfile::Builder::new().prefix("portcullis-skew-").tempdir().map_err(|error| error.to_string())
}

impl Release {
    async fn start(programs: &Programs, version: &str, all: bool) -> Result<Self, String> {
        let mut kubectls = vec![(newest_release()?, programs.kubectl.clone())];
        if all && let Some(oldest) = older_releases().into_iter().next() {
            kubectls.push((oldest.clone(), program_of(&oldest, "kubectl")?));
        }
        let dir = directory()?;
        let file = |name: &str| dir.path().join(name);
        let workloads = Ca::new("workloads");
        fs::write(file("workloads.crt"), workloads.cert_pem()).unwrap();
        fs::write(file("workloads.key"), workloads.key_pem()).unwrap();
        fs::write(file("pod-signers.json"), pod_signers().to_string()).unwrap();
        fs::write(file("tokens.csv"), format!("{TOKEN},dave,1234,\"staff\"\n")).unwrap();
        fs::write(file("audit-policy.json"), AUDIT_POLICY).unwrap();
        let setup = Setup {
            kube_apiservers: vec![kube_apiserver(programs, version)?],
            flags: vec![
                format!("--token-auth-file={}", file("tokens.csv").display()),
                "--enable-bootstrap-token-auth".to_owned(),
                format!("--audit-policy-file={}", file("audit-policy.json").display()),
                format!("--audit-log-path={}", file("server-audit.log").display()),
            ]
            .into_iter()
            .chain(serves_pod_requests(version))
            .collect(),
        };
        let layout = Layout { servers: 1, gateways: 2, goaway_chance: 0.0 };
        let replicas = Replicas::start_servers(layout, &setup, programs, dir.path()).await?;
        let webhooks = Webhooks::start().await;
        let mut release = Self { version: version.to_owned(), replicas, webhooks, kubectls, dir };
        for (resource, object) in release.webhooks.objects(BY_SERVER) {
            let path = format!("/apis/admissionregistration.k8s.io/v1/{resource}");
            release.create(&path, &object).await?;
        }
        apply_permissions(programs, &release.replicas, release.dir.path())?;
        let gateway = json!({
            "authentication": {"tokenAuthFile": "tokens.csv", "enableBootstrapTokenAuth": true},
            "audit": {"auditPolicyFile": "audit-policy.json", "auditLogPath": release.dir.path().join("gateway-audit.log")},
            "admission": release.webhooks.write(release.dir.path(), BY_GATEWAY),
            "clusters": [{"impersonation": "gateway"}],
        });
        let mut first = gateway.clone();
        first["clusters"][0]["controllerManager"] = json!({
            "controllers": ["csrsigning", "csrapproving", "podcertificaterequest-signing"],
            "podSignerProfiles": "pod-signers.json",
            "clusterSigningCertFile": "clients-ca.crt", "clusterSigningKeyFile": "clients-ca.key",
        });
        let mut limited = gateway;
        limited["limits"] = json!({"maxMutatingRequestsInflight": 1});
        limited["audit"]["auditLogPath"] = json!(release.dir.path().join("limited-audit.log"));
        release.replicas.add_gateway(Path::new(crate::PORTCULLIS), &first).await?;
        release.replicas.add_gateway(Path::new(crate::PORTCULLIS), &limited).await?;
        release.until_the_webhooks_are_asked().await?;
        Ok(release)
    }

    /// The API server itself.
    pub(crate) fn direct(&self) -> SocketAddr {
        self.replicas.servers[0].address
    }

    /// The API server, and the gateway before it.
    pub(crate) fn both(&self) -> [SocketAddr; 2] {
        [self.direct(), self.replicas.gateways[0].address]
    }

    /// The same request to both; the answer, if it is the same.
    pub(crate) async fn same(&self, call: &Call<'_>) -> Result<Answer, String> {
        let [server, gateway] = self.both();
        let (server, gateway) = (call.send(server).await, call.send(gateway).await);
        if server == gateway {
            Ok(server)
        } else {
            Err(format!("{}: not equal\nserver:  {server:?}\ngateway: {gateway:?}", call.path))
        }
    }

    /// Creates an object as administrator.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Result<(), String> {
        self.create_whole(path, object).await.map(drop)
    }

    /// Creates an object as administrator; the whole object.
    pub(crate) async fn create_whole(&self, path: &str, object: &Value) -> Result<Value, String> {
        let call = Call { identity: Some(self.replicas.user()), ..Call::post(path, object) };
        let (code, body) = call.send_whole(self.direct()).await;
        if code.is_success() { Ok(body) } else { Err(format!("{path}: {code} {body}")) }
    }

    /// The kubelet of the release.
    pub(crate) fn kubelet(&self) -> Result<PathBuf, String> {
        if self.version != newest_release()? {
            return program_of(&self.version, KUBELET);
        }
        let program = GoProgram::build("kubelet").ok_or("no Go to build the kubelet")?;
        Ok(program.path().to_owned())
    }

    /// The kubeconfig of the node `n1` for an address.
    pub(crate) fn node_kubeconfig(&self, address: SocketAddr) -> PathBuf {
        let issued = self.replicas.node("n1");
        let file = |name: &str| self.dir.path().join(name);
        fs::write(file("node.crt"), issued.cert_pem()).unwrap();
        fs::write(file("node.key"), issued.key_pem()).unwrap();
        let text = certificate_kubeconfig(address, &file("servers-ca.crt"), "node");
        fs::write(file("node.kubeconfig"), text).unwrap();
        file("node.kubeconfig")
    }

    pub(crate) fn minor(&self) -> u32 {
        minor(&self.version)
    }

    /// A role of these rules, for a user.
    pub(crate) async fn allow(&self, user: &str, rules: &Value) -> Result<(), String> {
        for (path, object) in role_of("User", user, rules) {
            self.create(path, &object).await?;
        }
        Ok(())
    }

    /// API servers follow their webhook configurations with a delay.
    async fn until_the_webhooks_are_asked(&self) -> Result<(), String> {
        eventually("the webhooks", async || {
            let probe = json!({"metadata": {"name": "probe", "labels": {"denied": "yes"}}});
            let path = format!("/api/v1/namespaces/{BY_SERVER}/configmaps?dryRun=All");
            let call = Call { identity: Some(self.replicas.user()), ..Call::post(&path, &probe) };
            Ok(call.send(self.direct()).await.0 == StatusCode::FORBIDDEN)
        })
        .await
    }
}

/// A `ClusterRole` and its binding, with the paths to which they are sent.
pub(crate) fn role_of(kind: &str, subject: &str, rules: &Value) -> [(&'static str, Value); 2] {
    let name = format!("skew-{subject}");
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": subject}],
    });
    [
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"metadata": {"name": name}, "rules": rules}),
        ),
        ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding),
    ]
}

/// Applies the permissions of the gateway as an administrator does, whose certificate and key it writes.
pub(crate) fn apply_permissions(programs: &Programs, replicas: &Replicas, dir: &Path) -> Result<(), String> {
    fs::write(dir.join("administrator.crt"), replicas.user().cert_pem()).unwrap();
    fs::write(dir.join("administrator.key"), replicas.user().key_pem()).unwrap();
    let kubeconfig = kubeconfig(replicas.servers[0].address, dir, "administrator");
    let deploy = testkit::paths::workspace_root().join("deploy");
    let mut kubectl = std::process::Command::new(&programs.kubectl);
    kubectl.env_clear().env("HOME", dir).arg("--kubeconfig").arg(kubeconfig).arg("apply");
    for file in
        ["rbac.yaml", "rbac-bootstrap-tokens.yaml", "rbac-controllers.yaml", "rbac-pod-certificates.yaml"]
    {
        kubectl.arg("-f").arg(deploy.join(file));
    }
    let output = kubectl.output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// The kubeconfig of the administrator for an address.
pub(crate) fn kubeconfig(address: SocketAddr, dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(format!("{name}-{}.kubeconfig", address.port()));
    let text = certificate_kubeconfig(address, &dir.join("servers-ca.crt"), "administrator");
    fs::write(&path, text).unwrap();
    path
}

/// A request of a client.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) identity: Option<&'a Issued>,
    pub(crate) headers: Vec<(&'a str, &'a str)>,
    pub(crate) body: String,
}

impl<'a> Call<'a> {
    pub(crate) fn get(path: &'a str) -> Self {
        Self { method: Method::GET, path, identity: None, headers: Vec::new(), body: String::new() }
    }

    pub(crate) fn post(path: &'a str, body: &Value) -> Self {
        Self { method: Method::POST, body: body.to_string(), ..Self::get(path) }
    }

    /// The status and the body, without what is never the same twice.
    pub(crate) async fn send(&self, address: SocketAddr) -> Answer {
        let (code, mut value) = self.send_whole(address).await;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
                metadata.remove(field);
            }
        }
        (code, value)
    }

    /// The status and the whole body.
    pub(crate) async fn send_whole(&self, address: SocketAddr) -> Answer {
        let mut request = Request::builder().method(self.method.clone()).uri(self.path);
        request = request.header("accept", "application/json").header("content-type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(*name, *value);
        }
        let mut client = Gateway::at(address, None).http1(self.identity).await;
        let response = client.send(request.body(full(self.body.clone())).unwrap()).await.unwrap();
        let code = response.status();
        let body = text(response).await;
        (code, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }
}
