//! One webhook of each kind: `stamp` sets an annotation, `deny` refuses objects with one label, and holds the object `held` until it is
//! let go.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Response;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use testkit::{FakeBackend, Pki, full};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// The object that is held.
pub(crate) const HELD: &str = "held";

pub(crate) struct Webhooks {
    server: FakeBackend,
    ca: String,
    /// Has a permit for each object that is let go.
    pub(crate) released: Arc<Semaphore>,
    /// Has a permit for each object that is held.
    pub(crate) held: Arc<Semaphore>,
}

impl Webhooks {
    pub(crate) async fn start() -> Self {
        let pki = Pki::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let [released, held] = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
        let (releases, holds) = (Arc::clone(&released), Arc::clone(&held));
        let server = FakeBackend::without_client_auth(&pki, listener, move |request| {
            let (releases, holds) = (Arc::clone(&releases), Arc::clone(&holds));
            Box::pin(async move {
                let webhook = request.uri().path().trim_start_matches('/').to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let review: Value = serde_json::from_slice(&body).unwrap();
                let request = &review["request"];
                if webhook == "deny" && request["object"]["metadata"]["name"] == HELD {
                    holds.add_permits(1);
                    releases.acquire().await.unwrap().forget();
                }
                let mut response = answer(&webhook, request);
                response["uid"] = request["uid"].clone();
                let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
                let mut answer = Response::new(full(review.to_string()));
                answer.headers_mut().insert("content-type", "application/json".parse().unwrap());
                answer
            })
        });
        Self { server, ca: pki.servers.cert_pem(), released, held }
    }

    /// The configurations as objects of the API, for objects of one namespace.
    pub(crate) fn objects(&self, namespace: &str) -> [(&'static str, Value); 2] {
        self.configurations("policies", namespace)
    }

    /// Writes the configurations as files of the gateway; the `admission` part of its configuration.
    pub(crate) fn write(&self, directory: &Path, namespace: &str) -> Value {
        let plugins = ["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"]
            .into_iter()
            .zip(self.configurations("policies.static.k8s.io", namespace))
            .map(|(plugin, (_, configuration))| {
                let folder = directory.join(plugin);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("webhooks.json"), configuration.to_string()).unwrap();
                json!({"name": plugin, "configuration": {"apiVersion": "apiserver.config.k8s.io/v1",
                    "kind": "WebhookAdmissionConfiguration", "staticManifestsDir": folder}})
            })
            .collect::<Value>();
        let file = directory.join("admission.json");
        let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins});
        fs::write(&file, configuration.to_string()).unwrap();
        json!({"admissionControlConfigFile": file, "mode": "pinnedDryRun"})
    }

    fn configurations(&self, name: &str, namespace: &str) -> [(&'static str, Value); 2] {
        let configuration = |kind: &str, webhook: &str| {
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": [{
                "name": format!("{webhook}.policies.example.com"),
                "clientConfig": {
                    "url": format!("https://{}/{webhook}", self.server.address),
                    "caBundle": BASE64_STANDARD.encode(&self.ca),
                },
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
                "matchConditions": [{"name": "namespace", "expression": format!("request.namespace == '{namespace}'")}],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }]})
        };
        [
            ("mutatingwebhookconfigurations", configuration("MutatingWebhookConfiguration", "stamp")),
            ("validatingwebhookconfigurations", configuration("ValidatingWebhookConfiguration", "deny")),
        ]
    }
}

fn answer(webhook: &str, request: &Value) -> Value {
    if webhook == "stamp" {
        let patch = json!([{"op": "add", "path": "/metadata/annotations", "value": {"stamped": "yes"}}]);
        let patch = BASE64_STANDARD.encode(patch.to_string());
        return json!({"allowed": true, "patchType": "JSONPatch", "patch": patch});
    }
    if request["object"]["metadata"]["labels"]["denied"].is_null() {
        return json!({"allowed": true});
    }
    json!({"allowed": false, "status": {"code": 403, "reason": "Forbidden", "message": "the label is not allowed"}})
}
