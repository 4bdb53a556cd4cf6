//! Three webhooks as clusters have them: `allow` allows every request, `stamp` sets an annotation on every object, and `deny` refuses
//! objects with one label. Every review is kept.

use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use testkit::webhooks::{start_webhooks, write_static_manifests};
use testkit::{FakeBackend, Pki};

/// The label that `deny` refuses.
pub(crate) const DENIED_LABEL: &str = "denied";
/// The annotation that `stamp` sets.
const STAMP: &str = "policies.example.com/stamped";

/// A request that a webhook has reviewed.
#[derive(Debug, Clone)]
pub(crate) struct Review {
    pub(crate) webhook: String,
    pub(crate) request: Value,
}

/// The webhooks of one side.
pub(crate) struct Webhooks {
    server: FakeBackend,
    ca: String,
    reviews: Arc<Mutex<Vec<Review>>>,
}

impl Webhooks {
    pub(crate) async fn start() -> Self {
        let pki = Pki::new();
        let reviews = Arc::<Mutex<Vec<Review>>>::default();
        let record = Arc::clone(&reviews);
        let server = start_webhooks(&pki, move |webhook, request| {
            let response = answer(&webhook, &request);
            record.lock().unwrap().push(Review { webhook, request });
            std::future::ready(response)
        })
        .await;
        Self { server, ca: pki.servers.cert_pem(), reviews }
    }

    /// All reviews so far.
    pub(crate) fn reviews(&self) -> Vec<Review> {
        self.reviews.lock().unwrap().clone()
    }

    /// The configurations as objects of the API.
    pub(crate) fn objects(&self) -> [Value; 2] {
        self.configurations("policies")
    }

    /// Writes the configurations as files of the gateway, and returns its flags.
    pub(crate) fn write(&self, directory: &Path) -> Vec<String> {
        let file = write_static_manifests(directory, &self.configurations("policies.static.k8s.io"));
        vec![
            format!("--admission-control-config-file={}", file.display()),
            "--admission-mode=pinnedDryRun".to_owned(),
        ]
    }

    fn configurations(&self, name: &str) -> [Value; 2] {
        let webhook = |webhook: &str, operations: &[&str], resources: &str| {
            json!({
                "name": format!("{webhook}.policies.example.com"),
                "clientConfig": {
                    "url": format!("https://{}/{webhook}", self.server.address),
                    "caBundle": BASE64_STANDARD.encode(&self.ca),
                },
                "rules": [{"operations": operations, "apiGroups": ["*"], "apiVersions": ["*"], "resources": [resources]}],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            })
        };
        let configuration = |kind: &str, webhooks: &[Value]| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": webhooks});
        let mutating = [webhook("stamp", &["CREATE", "UPDATE"], "*")];
        let validating = [webhook("allow", &["*"], "*/*"), webhook("deny", &["CREATE", "UPDATE"], "*/*")];
        [
            configuration("MutatingWebhookConfiguration", &mutating),
            configuration("ValidatingWebhookConfiguration", &validating),
        ]
    }
}

fn answer(webhook: &str, request: &Value) -> Value {
    let metadata = &request["object"]["metadata"];
    match webhook {
        "deny" if !metadata["labels"][DENIED_LABEL].is_null() => {
            let message = format!("the label {DENIED_LABEL} is not allowed");
            json!({"allowed": false, "status": {"code": 403, "reason": "Forbidden", "message": message}})
        }
        "stamp" if metadata["annotations"][STAMP].is_null() => {
            let operation = if metadata["annotations"].is_null() {
                json!({"op": "add", "path": "/metadata/annotations", "value": {STAMP: "yes"}})
            } else {
                let path = format!("/metadata/annotations/{}", STAMP.replace('/', "~1"));
                json!({"op": "add", "path": path, "value": "yes"})
            };
            let patch = BASE64_STANDARD.encode(json!([operation]).to_string());
            json!({"allowed": true, "patchType": "JSONPatch", "patch": patch})
        }
        _ => json!({"allowed": true}),
    }
}
