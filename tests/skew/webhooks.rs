//! One webhook of each kind: `stamp` sets an annotation, `deny` refuses objects with one label, and holds the object `held` until it is
//! let go.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use testkit::webhooks::{start_webhooks, write_static_manifests};
use testkit::{FakeBackend, Pki};
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
        let [released, held] = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
        let (releases, holds) = (Arc::clone(&released), Arc::clone(&held));
        let server = start_webhooks(&pki, move |webhook, request| {
            let (releases, holds) = (Arc::clone(&releases), Arc::clone(&holds));
            async move {
                if webhook == "deny" && request["object"]["metadata"]["name"] == HELD {
                    holds.add_permits(1);
                    releases.acquire().await.unwrap().forget();
                }
                answer(&webhook, &request)
            }
        })
        .await;
        Self { server, ca: pki.servers.cert_pem(), released, held }
    }

    /// The configurations as objects of the API, for objects of one namespace.
    pub(crate) fn objects(&self, namespace: &str) -> [(&'static str, Value); 2] {
        self.configurations("policies", namespace)
    }

    /// Writes the configurations as files of the gateway; the `admission` part of its configuration.
    pub(crate) fn write(&self, directory: &Path, namespace: &str) -> Value {
        let configurations =
            self.configurations("policies.static.k8s.io", namespace).map(|(_, configuration)| configuration);
        let file = write_static_manifests(directory, &configurations);
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
