//! A real API server with RBAC that accepts the gateway's front-proxy certificate, and kubectl as its administrator.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;
use testkit::go_tool::output_of;
use testkit::pki::{Ca, Key, KeyKind, pem};
use testkit::real::{
    ApiServer, IDENTITY_HEADERS, Programs, ServerProcess, SharedServers, Source, account_flags, start_etcd,
};
use tokio::runtime::Runtime;

/// The API server of a run, which starts when the first test needs it.
pub(crate) struct Cluster(SharedServers<Running>);

/// The running servers and their files.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    accounts: Arc<Key>,
    pub(crate) programs: Programs,
    pub(crate) dir: PathBuf,
    _servers: [ServerProcess; 2],
}

impl Cluster {
    pub(crate) fn new(target: &'static str, source: Source) -> Self {
        Self(SharedServers::new(target, source))
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.0.runtime()
    }

    /// Stops the servers; keeps their logs if `keep_logs` is set.
    pub(crate) fn finish(self, keep_logs: bool) {
        self.0.finish(keep_logs);
    }

    /// The servers, which the first call starts.
    pub(crate) fn running(&self) -> Result<&Running, String> {
        self.0.get_or_start(|runtime, programs, dir| runtime.block_on(Running::start(programs, dir)))
    }
}

impl Running {
    async fn start(programs: Programs, dir: &Path) -> Result<Self, String> {
        let accounts = write_pki(dir);
        let (etcd_port, etcd) = start_etcd(&programs, dir).await?;
        let flags = flags(dir);
        let api_server = ApiServer { programs: &programs, dir, name: "kube-apiserver", etcd_port };
        let started = api_server.start(&flags, async |address| {
            fs::write(dir.join("admin.kubeconfig"), kubeconfig(dir, address, "admin")).unwrap();
            let kubectl = |arguments: &[&str]| {
                let mut command = Command::new(&programs.kubectl);
                output_of(command.arg("--kubeconfig").arg(dir.join("admin.kubeconfig")).args(arguments))
            };
            // The last of the roles that a server makes at its start.
            kubectl(&["get", "clusterrolebinding", "system:basic-user"]).is_ok()
                && kubectl(&["get", "--raw", "/readyz"]).is_ok()
        });
        let (address, server) = started.await?;
        Ok(Self { address, accounts, programs, dir: dir.to_owned(), _servers: [server, etcd] })
    }

    /// Runs kubectl as administrator.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        output_of(self.kubectl_command().args(arguments))
    }

    /// A kubeconfig with the gateway's front-proxy certificate.
    pub(crate) fn front_proxy_kubeconfig(&self) -> String {
        self.kubeconfig_of("front")
    }

    /// A kubeconfig with the certificate `NAME.crt`.
    pub(crate) fn kubeconfig_of(&self, name: &str) -> String {
        kubeconfig(&self.dir, self.address, name)
    }

    /// A token without an expiry for a service account of `default`, as kube-controller-manager writes into secrets.
    pub(crate) fn legacy_token(&self, account: &str, uid: &str, secret: &str) -> String {
        let claims = json!({
            "iss": "kubernetes/serviceaccount",
            "sub": format!("system:serviceaccount:default:{account}"),
            "kubernetes.io/serviceaccount/namespace": "default",
            "kubernetes.io/serviceaccount/secret.name": secret,
            "kubernetes.io/serviceaccount/service-account.name": account,
            "kubernetes.io/serviceaccount/service-account.uid": uid,
        });
        let key = EncodingKey::from_ec_der(self.accounts.pkcs8().secret_der());
        jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &key).unwrap()
    }

    /// kubectl as administrator.
    pub(crate) fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.programs.kubectl);
        command.arg("--kubeconfig").arg(self.dir.join("admin.kubeconfig"));
        command
    }

    /// Creates or changes the objects of a manifest; unknown and duplicate fields are errors.
    pub(crate) fn apply(&self, name: &str, manifest: &str, more: &[&str]) -> Result<String, String> {
        let file = self.dir.join(format!("{name}.yaml"));
        fs::write(&file, manifest).map_err(|error| error.to_string())?;
        let mut command = self.kubectl_command();
        command.args(["apply", "--server-side", "--force-conflicts", "--validate=strict"]).args(more);
        output_of(command.arg("-f").arg(&file))
    }
}

/// Writes the authorities of the cluster as kubeadm does, in `pki`, and the files of the servers; returns the key of
/// service-account tokens.
fn write_pki(dir: &Path) -> Arc<Key> {
    let authorities: BTreeMap<_, _> =
        [("ca", Ca::new("kubernetes")), ("front-proxy-ca", Ca::new("front-proxy-ca"))].into();
    // kubeadm's certificate has these names, and no address of the loopback interface.
    let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1"];
    let server = authorities["ca"].server(&names);
    let admin = authorities["ca"].leaf().cn("admin").org("system:masters").issue();
    let alice = authorities["ca"].leaf().cn("alice").issue();
    // Of a gateway that impersonates.
    let own = authorities["ca"].leaf().cn("system:portcullis").issue();
    let front = authorities["front-proxy-ca"].leaf().cn("front-proxy-client").issue();
    let accounts = Key::generate(KeyKind::P256);
    fs::create_dir_all(dir.join("pki")).unwrap();
    for (name, ca) in &authorities {
        fs::write(dir.join(format!("pki/{name}.crt")), ca.cert_pem()).unwrap();
        fs::write(dir.join(format!("pki/{name}.key")), ca.key_pem()).unwrap();
    }
    for (name, content) in [
        ("server.crt", server.cert_pem()),
        ("server.key", server.key_pem()),
        ("admin.crt", admin.cert_pem()),
        ("admin.key", admin.key_pem()),
        ("alice.crt", alice.cert_pem()),
        ("alice.key", alice.key_pem()),
        ("own.crt", own.cert_pem()),
        ("own.key", own.key_pem()),
        ("front.crt", front.cert_pem()),
        ("front.key", front.key_pem()),
        ("sa.key", accounts.pem()),
        ("sa.pub", pem("PUBLIC KEY", &accounts.spki())),
    ] {
        fs::write(dir.join(name), content).unwrap();
    }
    accounts
}

/// A kubeconfig that contains the certificate `NAME.crt` and its key.
fn kubeconfig(dir: &Path, address: SocketAddr, name: &str) -> String {
    let data = |file: String| BASE64_STANDARD.encode(fs::read(dir.join(file)).unwrap());
    let cluster = json!({
        "server": format!("https://{address}"),
        "tls-server-name": "kubernetes.default.svc",
        "certificate-authority-data": data("pki/ca.crt".to_owned()),
    });
    let user = json!({
        "client-certificate-data": data(format!("{name}.crt")),
        "client-key-data": data(format!("{name}.key")),
    });
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    })
    .to_string()
}

/// kubeadm's flags as far as identities are concerned, and the header of UIDs.
fn flags(dir: &Path) -> Vec<String> {
    let file = |name: &str| dir.join(name).display().to_string();
    let mut flags = vec![
        "--authorization-mode=Node,RBAC".to_owned(),
        format!("--client-ca-file={}", file("pki/ca.crt")),
        format!("--requestheader-client-ca-file={}", file("pki/front-proxy-ca.crt")),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
    ];
    flags.extend(account_flags(dir));
    flags.extend(IDENTITY_HEADERS.map(str::to_owned));
    flags
}
