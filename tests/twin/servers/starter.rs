//! Starts the servers and waits until they are ready.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use rustls::RootCertStore;
use testkit::real::{
    ApiServer, IDENTITY_HEADERS, Programs, ServerProcess, eventually, free_ports, retry_on_collision,
};

use super::{Server, Side, kubeconfig, text};
use crate::admission::{self, Addresses};
use crate::audit;
use crate::authenticators::{self, Setting};
use crate::authorizers;
use crate::client::{self, Identity, Request, Target, Until, Version};
use crate::fixtures;
use crate::limits;
use crate::mint::Mint;

/// How long a server may take to fetch the keys of all issuers; it retries after ten seconds.
const ISSUER_TIMEOUT: Duration = Duration::from_secs(25);

/// The parameters to start a server.
pub(super) struct Starter<'a> {
    pub(super) programs: &'a Programs,
    pub(super) dir: &'a Path,
    pub(super) roots: Arc<RootCertStore>,
    pub(super) etcd_port: u16,
    pub(super) admin: Identity,
    pub(super) inner: Identity,
    pub(super) mint: &'a Mint,
    /// The CA of the webhooks.
    pub(super) webhook_ca: String,
    pub(super) addresses: Addresses,
}

impl Starter<'_> {
    /// Starts these sides, which must include the reference, and creates the fixtures. Returns the servers and the
    /// resource version at which all fixtures exist.
    pub(super) async fn all(
        &self,
        sides: &[Side],
        kubelet_port: u16,
    ) -> Result<(BTreeMap<Side, Result<Server, String>>, String), String> {
        // The first API server on an empty etcd creates what all need. Several at once race for it, and those that lose may
        // exit.
        let start = async |side: &Side| Ok::<_, String>((*side, self.apiserver(*side).await?));
        let mut servers = vec![start(&Side::Reference).await?];
        let others = sides.iter().filter(|side| !side.is_gateway() && **side != Side::Reference);
        servers.extend(try_join_all(others.map(start)).await?);
        let reference = &servers[0];
        let reference_address = reference.1.target.address;
        let resource_version = self.post_fixtures(&reference.1.target, kubelet_port).await?;
        for (side, server) in &servers {
            self.wait_for_rights(*side, server).await?;
            if side.setting() == Setting::Admission {
                self.wait_for_webhooks(*side, server).await?;
            }
        }
        let backend = servers.iter().find(|(side, _)| *side == Side::Backend);
        let backend = backend.map(|(_, server)| server.target.address);
        let mut running: BTreeMap<_, _> =
            servers.into_iter().map(|(side, server)| (side, Ok(server))).collect();
        if let Some(backend) = backend {
            // At once: some issuers never answer, and each gateway waits for them before it is ready.
            let gateways = sides.iter().filter(|side| side.is_gateway()).map(async |side| {
                let backend = if *side == Side::Impersonating { reference_address } else { backend };
                (*side, self.gateway(*side, backend).await)
            });
            running.extend(join_all(gateways).await);
        }
        for (side, server) in &running {
            if let (Ok(server), true) = (server, *side != Side::Backend) {
                self.wait_for_tokens(*side, server).await?;
            }
        }
        Ok((running, resource_version))
    }

    async fn apiserver(&self, side: Side) -> Result<Server, String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let mut flags = vec![
            "--requestheader-allowed-names=front-proxy".to_owned(),
            // Old resource versions must stay readable during the whole run.
            "--etcd-compaction-interval=0".to_owned(),
        ];
        flags.extend(IDENTITY_HEADERS.map(str::to_owned));
        flags.extend(authenticators::accounts(self.dir));
        flags.push(match side.setting() {
            Setting::Webhooks => authorizers::flag(self.dir),
            Setting::Config | Setting::Flags | Setting::Admission | Setting::Audit | Setting::Limits => {
                "--authorization-mode=Node,RBAC".to_owned()
            }
        });
        if side.setting() == Setting::Admission {
            flags.extend(admission::reference_flags(self.dir));
        } else {
            flags.push(admission::DISABLED.to_owned());
        }
        if side.setting() == Setting::Audit {
            flags.extend(audit::flags(self.dir, side));
        }
        if side.setting() == Setting::Limits {
            flags.extend(limits::FLAGS.map(str::to_owned));
            flags.push(limits::OF_REFERENCE.to_owned());
        }
        if side == Side::Backend {
            flags.push(format!("--requestheader-client-ca-file={}", file("inner-ca.crt")));
            flags.push(authenticators::AUDIENCES.to_owned());
        } else {
            flags.extend(authenticators::flags(self.dir, self.mint, side.setting()));
            flags.push(format!("--requestheader-client-ca-file={}", file("front-ca.crt")));
            flags.push(format!("--client-ca-file={}", file("client-ca.crt")));
            flags.push(format!("--token-auth-file={}", file("tokens.csv")));
        }
        let (programs, dir, etcd_port) = (self.programs, self.dir, self.etcd_port);
        let started =
            ApiServer { programs, dir, name: side.name(), etcd_port }.start(&flags, async |address| {
                let target = self.target(address.port());
                let there =
                    async |path| self.get(side, &target, "admin", "system:masters", path).await == 200;
                there("/readyz").await && there("/apis/rbac.authorization.k8s.io/v1/clusterroles/view").await
            });
        let (address, process) = started.await?;
        Ok(Server { target: self.target(address.port()), process: Mutex::new(Some(process)) })
    }

    async fn gateway(&self, side: Side, backend: SocketAddr) -> Result<Server, String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let impersonates = side == Side::Impersonating;
        let kubeconfig = kubeconfig(self.dir, backend, if impersonates { "gateway" } else { "inner" });
        let kubeconfig_file = file(&format!("{}.kubeconfig", side.name()));
        fs::write(&kubeconfig_file, kubeconfig).map_err(text)?;
        retry_on_collision(async || {
            let [port, metrics] = free_ports()?;
            let mut flags = vec![
                "serve".to_owned(),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={port}"),
                format!("--metrics-bind-address=127.0.0.1:{metrics}"),
                format!("--tls-cert-file={}", file("server.crt")),
                format!("--tls-private-key-file={}", file("server.key")),
                format!("--client-ca-file={}", file("client-ca.crt")),
                format!("--token-auth-file={}", file("tokens.csv")),
                format!("--requestheader-client-ca-file={}", file("front-ca.crt")),
                "--requestheader-allowed-names=front-proxy".to_owned(),
                format!("--backend-kubeconfig={kubeconfig_file}"),
                format!("--identity={}", if impersonates { "impersonate" } else { "requestHeader" }),
                // The gateway becomes ready before the fixtures grant it permissions.
                "--backend-requestheader-username-headers=X-Remote-User".to_owned(),
                "--backend-requestheader-uid-headers=X-Remote-Uid".to_owned(),
                "--backend-requestheader-group-headers=X-Remote-Group".to_owned(),
                "--backend-requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            ];
            // The release of the servers of KUBEBUILDER_ASSETS.
            if let Ok(release) = std::env::var("PORTCULLIS_TWIN_EMULATED_VERSION") {
                flags.push(format!("--emulated-version={release}"));
            }
            flags.extend(IDENTITY_HEADERS.map(str::to_owned));
            flags.extend(authenticators::accounts(self.dir));
            flags.extend(authenticators::flags(self.dir, self.mint, side.setting()));
            if side.setting() == Setting::Webhooks {
                flags.push(authorizers::flag(self.dir));
            }
            if side.setting() == Setting::Admission {
                flags.extend(admission::flags(self.dir));
            }
            if side.setting() == Setting::Audit {
                flags.extend(audit::flags(self.dir, side));
            }
            if side.setting() == Setting::Limits {
                flags.extend(limits::FLAGS.map(str::to_owned));
            }
            let program = Path::new(crate::PORTCULLIS);
            let mut process = ServerProcess::start(self.dir, side.name(), program, &flags)?;
            let target = self.target(port);
            eventually(side.name(), async || {
                process.check()?;
                Ok(self.get(side, &target, "admin", "system:masters", "/readyz").await == 200)
            })
            .await
            .map_err(|error| format!("{error}\n{}", process.log_tail()))?;
            Ok(Server { target, process: Mutex::new(Some(process)) })
        })
        .await
        .map_err(|error| format!("the {} does not start: {error}", side.name()))
    }

    /// Creates the fixtures and returns the resource version of the last.
    async fn post_fixtures(&self, reference: &Target, kubelet_port: u16) -> Result<String, String> {
        let mut last = String::new();
        let webhooks = admission::objects(&self.addresses, &self.webhook_ca);
        for (path, object) in fixtures::objects(kubelet_port).into_iter().chain(webhooks) {
            let (method, content): (_, &[u8]) = if path.ends_with("/status") {
                ("PATCH", b"application/merge-patch+json")
            } else if object.is_null() {
                ("DELETE", b"application/json")
            } else {
                ("POST", b"application/json")
            };
            let body = if object.is_null() { String::new() } else { self.mint.fill(&object.to_string()) };
            let request = Request {
                version: Version::H1,
                method: method.to_owned(),
                target: path.clone(),
                headers: vec![("Content-Type".to_owned(), content.to_vec())],
                body: Bytes::from(body),
                raw: None,
                frames: Vec::new(),
                until: Until::End,
            };
            // RBAC checks privilege escalation with its informers, which may not have the new roles yet.
            let mut answer = String::new();
            eventually("fixtures", async || {
                let sent = client::exchange(reference, Some(&self.admin), &request);
                let got = sent.await.map_err(|broken| broken.0)?;
                answer = String::from_utf8_lossy(&got.body).into_owned();
                match got.status {
                    200 | 201 => Ok(true),
                    403 => Ok(false),
                    // The server creates the system namespaces after its start.
                    404 if path.contains("/kube-system/") => Ok(false),
                    status => Err(format!("fixture for {path}: {status} {answer}")),
                }
            })
            .await?;
            let made: serde_json::Value = serde_json::from_str(&answer).map_err(text)?;
            if method == "POST" {
                let resource = path.rsplit('/').next().unwrap_or_default();
                let name = made["metadata"]["name"].as_str().unwrap_or_default();
                let uid = made["metadata"]["uid"].as_str().unwrap_or_default();
                self.mint.remember(&format!("{resource}/{name}"), uid);
            }
            if let Some(version) = made["metadata"]["resourceVersion"].as_str() {
                version.clone_into(&mut last);
            }
        }
        Ok(last)
    }

    /// Waits until the last binding of the fixtures is in effect on this server.
    async fn wait_for_rights(&self, side: Side, server: &Server) -> Result<(), String> {
        for (group, path) in [
            ("devs", "/api/v1/namespaces/twin-fixed/pods/placed"),
            ("viewers", "/api/v1/namespaces/twin/configmaps"),
            ("probers", "/livez/ping"),
        ] {
            let mut last = 0;
            eventually("", async || {
                last = self.get(side, &server.target, "someone", group, path).await;
                Ok(last == 200)
            })
            .await
            .map_err(|error| format!("{}: rights of {group} on {path}: {last}{error}", side.name()))?;
        }
        // The custom resource, and its document, by which the gateway knows that it has dry runs.
        for (path, text) in [
            ("/apis/twin.test/v1/namespaces/twin/widgets", "WidgetList"),
            ("/apis/twin.test/v2/namespaces/twin/widgets", "WidgetList"),
            ("/openapi/v3/apis/twin.test/v1", "/scale"),
            ("/openapi/v3/apis/twin.test/v2", "/scale"),
            // What other cases compare.
            ("/apis", "twin.test/v2"),
            ("/openapi/v2", "/apis/twin.test/v2"),
        ] {
            eventually(&format!("{} {path}", side.name()), async || {
                let sent =
                    self.send(side, &server.target, "admin", "system:masters", self.request("GET", path));
                Ok(sent.await.is_some_and(|answer| String::from_utf8_lossy(&answer.body).contains(text)))
            })
            .await?;
        }
        // The last binding grants impersonation; a SubjectAccessReview checks it.
        let review = r#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"user":"legacy-impersonator",
            "resourceAttributes":{"verb":"impersonate","resource":"users","name":"bob"}}}"#;
        eventually(&format!("{} rights", side.name()), async || {
            let mut request = self.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews");
            request.body = Bytes::from_static(review.as_bytes());
            request.headers.push(("Content-Type".to_owned(), b"application/json".to_vec()));
            let answer = self.send(side, &server.target, "admin", "system:masters", request).await;
            Ok(answer
                .is_some_and(|answer| String::from_utf8_lossy(&answer.body).contains(r#""allowed":true"#)))
        })
        .await
    }

    /// Waits until the server calls the admission webhooks.
    async fn wait_for_webhooks(&self, side: Side, server: &Server) -> Result<(), String> {
        let annotations = serde_json::json!({"asks": "v1=deny;"});
        let probe = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"generateName": "probe-", "annotations": annotations}});
        eventually(&format!("{} webhooks", side.name()), async || {
            let mut request = self.request("POST", "/api/v1/namespaces/twin/configmaps?dryRun=All");
            request.body = Bytes::from(probe.to_string());
            request.headers.push(("Content-Type".to_owned(), b"application/json".to_vec()));
            let answer = self.send(side, &server.target, "admin", "system:masters", request).await;
            Ok(answer
                .is_some_and(|answer| String::from_utf8_lossy(&answer.body).contains("denied the request")))
        })
        .await
    }

    /// Waits until the server accepts the probe tokens.
    async fn wait_for_tokens(&self, side: Side, server: &Server) -> Result<(), String> {
        let started = Instant::now();
        for probe in authenticators::probes(side.setting()) {
            let mut request = self.request("GET", "/api");
            let token = self.mint.mint(&probe, "", "");
            request.headers.push(("Authorization".to_owned(), format!("Bearer {token}").into_bytes()));
            eventually(side.name(), async || {
                let sent = client::exchange(&server.target, None, &request);
                let answer = sent.await.map_err(|broken| broken.0)?;
                // Not an error for the gateway: only the cases of such tokens fail then.
                match (answer.status, started.elapsed() > ISSUER_TIMEOUT) {
                    (200, _) => Ok(true),
                    (_, true) if side.is_gateway() => Ok(true),
                    (status, true) => Err(format!("it answers {status} to {}", probe.name())),
                    (_, false) => Ok(false),
                }
            })
            .await?;
        }
        Ok(())
    }

    fn target(&self, port: u16) -> Target {
        Target { address: SocketAddr::from(([127, 0, 0, 1], port)), roots: self.roots.clone() }
    }

    async fn get(&self, side: Side, target: &Target, user: &str, group: &str, path: &str) -> u16 {
        self.send(side, target, user, group, self.request("GET", path))
            .await
            .map_or(0, |answer| answer.status)
    }

    #[expect(clippy::unused_self, reason = "reads better beside `send`")]
    fn request(&self, method: &str, path: &str) -> Request {
        Request {
            version: Version::H1,
            method: method.to_owned(),
            target: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            raw: None,
            frames: Vec::new(),
            until: Until::End,
        }
    }

    /// Sends a request as a user: with the gateway's certificate to the backend, with impersonation by the
    /// administrator to other servers.
    async fn send(
        &self,
        side: Side,
        target: &Target,
        user: &str,
        group: &str,
        mut request: Request,
    ) -> Option<client::Answer> {
        let mut header = |name: &str, value: &str| {
            request.headers.push((name.to_owned(), value.as_bytes().to_vec()));
        };
        let identity = if side == Side::Backend {
            header("X-Remote-User", user);
            header("X-Remote-Group", group);
            &self.inner
        } else {
            if user != "admin" {
                header("Impersonate-User", user);
                header("Impersonate-Group", group);
            }
            &self.admin
        };
        client::exchange(target, Some(identity), &request).await.ok()
    }
}
