//! Starts the servers and waits until they are ready.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use testkit::real::{
    ApiServer, IDENTITY_HEADERS, Programs, ServerProcess, account_flags, eventually, free_ports,
    retry_on_collision,
};

use super::authorities::{Authorities, SIGNERS, signing_files};
use super::{Cluster, Side, kubeconfig};
use crate::client::{Api, text};

/// The controllers, by their names in kube-controller-manager.
pub(crate) const CONTROLLERS: &str = "--controllers=certificatesigningrequest-signing-controller,\
    certificatesigningrequest-approving-controller,certificatesigningrequest-cleaner-controller,\
    token-cleaner-controller,bootstrap-signer-controller";

/// Thirty years, so that some certificates expire after 2049 and need GeneralizedTime.
pub(crate) const DURATION: &str = "--cluster-signing-duration=262800h";

/// The manifests of the gateway and its controllers.
const DEPLOYED: [&str; 4] = [
    include_str!("../../../deploy/rbac.yaml"),
    include_str!("../../../deploy/rbac-controllers.yaml"),
    include_str!("../../../deploy/rbac-bootstrap.yaml"),
    include_str!("../../../deploy/rbac-pod-certificates.yaml"),
];

/// The parameters to start a server.
pub(crate) struct Starter<'a> {
    pub(crate) programs: &'a Programs,
    pub(crate) dir: &'a Path,
    pub(crate) authorities: &'a Authorities,
    pub(crate) etcd_port: u16,
}

/// A running gateway.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) process: ServerProcess,
    /// Those of `serve`, for other commands.
    pub(crate) flags: Vec<String>,
}

impl Starter<'_> {
    pub(crate) async fn cluster(&self, side: Side) -> Result<Cluster, String> {
        let (server, process) = self.apiserver(side.name()).await?;
        let api = Api::new(server, &self.authorities.servers, Some(&self.authorities.admin));
        self.grant(&api).await?;
        let mut cluster = Cluster {
            side,
            server,
            api,
            gateway: None,
            log: self.dir.join(format!("{}-controllers.log", side.name())),
            info: tokio::sync::Mutex::default(),
            signing: tokio::sync::RwLock::default(),
            controllers: Mutex::default(),
            _server: process,
        };
        let controllers = match side {
            Side::Bare => None,
            Side::Reference | Side::Second => {
                let mut flags =
                    vec!["--leader-elect=false".to_owned(), CONTROLLERS.to_owned(), DURATION.to_owned()];
                flags.extend(self.signing_flags(side));
                Some(self.controller_manager(&format!("{}-controllers", side.name()), server, &flags)?)
            }
            Side::Gateway => {
                let mut flags =
                    vec!["--leader-elect=false".to_owned(), CONTROLLERS.to_owned(), DURATION.to_owned()];
                flags.extend(self.signing_flags(side));
                let gateway = self.gateway("gateway-controllers", server, &flags).await?;
                cluster.gateway = Some(gateway.address);
                Some(gateway.process)
            }
        };
        cluster.controllers = Mutex::new(controllers);
        Ok(cluster)
    }

    /// An API server with its own prefix in etcd.
    pub(crate) async fn apiserver(&self, name: &str) -> Result<(SocketAddr, ServerProcess), String> {
        self.apiserver_with(name, &[]).await
    }

    /// The same with further flags, which replace those of the same name.
    pub(crate) async fn apiserver_with(
        &self,
        name: &str,
        more: &[&str],
    ) -> Result<(SocketAddr, ServerProcess), String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let mut flags = vec![
            format!("--etcd-prefix=/{name}"),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-bootstrap-token-auth".to_owned(),
            "--enable-priority-and-fairness=false".to_owned(),
            format!("--client-ca-file={}", file("clients-ca.crt")),
            format!("--requestheader-client-ca-file={}", file("inner-ca.crt")),
            "--requestheader-allowed-names=front-proxy".to_owned(),
        ];
        flags.extend(account_flags(self.dir));
        flags.extend(IDENTITY_HEADERS.map(str::to_owned));
        let name_of = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        flags.retain(|flag| !more.iter().any(|other| name_of(other) == name_of(flag)));
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let (programs, dir, etcd_port) = (self.programs, self.dir, self.etcd_port);
        let started = ApiServer { programs, dir, name, etcd_port }.start(&flags, async |address| {
            let api = Api::new(address, &self.authorities.servers, Some(&self.authorities.admin));
            let there = async |path| api.get(path).await.is_ok_and(|answer| answer.status == 200);
            there("/readyz").await
                && there("/apis/rbac.authorization.k8s.io/v1/clusterroles/view").await
                && there("/api/v1/namespaces/kube-public").await
        });
        started.await
    }

    pub(crate) fn controller_manager(
        &self,
        name: &str,
        server: SocketAddr,
        more: &[String],
    ) -> Result<ServerProcess, String> {
        let config = self.dir.join(format!("{name}.kubeconfig"));
        fs::write(&config, kubeconfig(self.dir, server, "admin")).map_err(text)?;
        let mut flags = vec![
            format!("--kubeconfig={}", config.display()),
            "--use-service-account-credentials=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--kube-api-qps=1000".to_owned(),
            "--kube-api-burst=1000".to_owned(),
        ];
        flags.extend_from_slice(more);
        ServerProcess::start(self.dir, name, &self.programs.kube_controller_manager, flags)
    }

    pub(crate) fn signing_flags(&self, side: Side) -> Vec<String> {
        SIGNERS
            .iter()
            .flat_map(|(_, flag, _)| {
                let (certificate, key) = signing_files(self.dir, side, flag);
                [
                    format!("--cluster-signing-{flag}-cert-file={}", certificate.display()),
                    format!("--cluster-signing-{flag}-key-file={}", key.display()),
                ]
            })
            .collect()
    }

    /// The gateway's binary. `flags` select the controllers.
    pub(crate) async fn gateway(
        &self,
        name: &str,
        server: SocketAddr,
        more: &[String],
    ) -> Result<Gateway, String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let config = self.dir.join(format!("{name}.kubeconfig"));
        fs::write(&config, kubeconfig(self.dir, server, "front")).map_err(text)?;
        retry_on_collision(async || {
            let [port, metrics] = free_ports()?;
            let mut flags = vec![
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={port}"),
                format!("--metrics-bind-address=127.0.0.1:{metrics}"),
                "--workers=1".to_owned(),
                format!("--tls-cert-file={}", file("server.crt")),
                format!("--tls-private-key-file={}", file("server.key")),
                format!("--client-ca-file={}", file("clients-ca.crt")),
                "--enable-bootstrap-token-auth".to_owned(),
                format!("--backend-kubeconfig={}", config.display()),
            ];
            flags.extend_from_slice(more);
            let program = Path::new(crate::PORTCULLIS);
            let serve = ["serve"].into_iter().chain(flags.iter().map(String::as_str));
            let mut process = ServerProcess::start(self.dir, name, program, serve)?;
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let api = Api::new(address, &self.authorities.servers, Some(&self.authorities.admin));
            eventually(name, async || {
                process.check()?;
                Ok(api.get("/readyz").await.is_ok_and(|answer| answer.status == 200))
            })
            .await
            .map_err(|error| format!("{error}\n{}", process.log_tail()))?;
            Ok(Gateway { address, metrics: ([127, 0, 0, 1], metrics).into(), process, flags })
        })
        .await
    }

    /// Grants the permissions that the cases need, and waits until they are in effect.
    pub(crate) async fn grant(&self, api: &Api) -> Result<(), String> {
        const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
        let csrs = "system:certificates.k8s.io:certificatesigningrequests";
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "requester"},
            "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
                "verbs": ["create", "get", "list", "watch"]}],
        });
        api.post(&format!("{RBAC}/clusterroles"), &role).await?.ok()?;
        let rights = [
            ("requester", "Group", "system:authenticated", "requester".to_owned()),
            ("nodeclient", "Group", "system:bootstrappers", format!("{csrs}:nodeclient")),
            ("selfnodeclient", "Group", "system:nodes", format!("{csrs}:selfnodeclient")),
            ("may-node", "Group", "may-node", format!("{csrs}:nodeclient")),
            ("may-self", "Group", "may-self", format!("{csrs}:selfnodeclient")),
            ("may-both", "Group", "may-both", format!("{csrs}:selfnodeclient")),
            ("may-both-2", "Group", "may-both", format!("{csrs}:nodeclient")),
            ("user-may-node", "User", "may-node-by-name", format!("{csrs}:nodeclient")),
        ];
        for (name, kind, subject, role) in &rights {
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": subject}],
            });
            api.post(&format!("{RBAC}/clusterrolebindings"), &binding).await?.ok()?;
        }
        // The gateway gets the permissions of the deployed manifests.
        for document in DEPLOYED.iter().flat_map(|file| file.split("\n---\n")) {
            let object: Value = serde_saphyr::from_str(document).map_err(text)?;
            let plural = format!("{}s", object["kind"].as_str().unwrap_or_default().to_lowercase());
            let path = match object["metadata"]["namespace"].as_str() {
                Some(namespace) => format!("{RBAC}/namespaces/{namespace}/{plural}"),
                None => format!("{RBAC}/{plural}"),
            };
            api.post(&path, &object).await?.ok()?;
        }
        // The permission that was created last.
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": "system:portcullis",
            "resourceAttributes": {"namespace": "kube-public", "verb": "update", "resource": "configmaps", "name": "cluster-info"},
        }});
        eventually("rights", async || {
            let answer =
                api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await?.ok()?;
            Ok(answer["status"]["allowed"] == true)
        })
        .await
    }
}

/// Sends a request without TLS: POST with a body, otherwise GET. Returns the body of a successful response.
pub(crate) async fn plain_http(
    address: SocketAddr,
    path: &str,
    body: Option<&Value>,
) -> Result<String, String> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = http::Request::builder()
        .method(if body.is_some() { "POST" } else { "GET" })
        .uri(format!("http://{address}{path}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.map(Value::to_string).unwrap_or_default())))
        .map_err(text)?;
    let answer = client.request(request).await.map_err(text)?;
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(text)?.to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    if status == 200 { Ok(body) } else { Err(format!("{path}: {status} {body}")) }
}
