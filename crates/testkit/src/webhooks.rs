//! Admission webhooks of tests, and the files by which a gateway knows them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Response;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{FakeBackend, Pki, full};

/// Serves webhooks below the paths of their names. `respond` gets the name and the `request` of each `AdmissionReview`, and returns
/// the `response` without its UID.
pub async fn start_webhooks<F: Future<Output = Value> + Send>(
    pki: &Pki,
    respond: impl Fn(String, Value) -> F + Send + Sync + 'static,
) -> FakeBackend {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let respond = Arc::new(respond);
    FakeBackend::without_client_auth(pki, listener, move |request| {
        let respond = Arc::clone(&respond);
        Box::pin(async move {
            let webhook = request.uri().path().trim_start_matches('/').to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            let request = review["request"].take();
            let uid = request["uid"].clone();
            let mut response = respond(webhook, request).await;
            response["uid"] = uid;
            let review =
                json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            let mut response = Response::new(full(review.to_string()));
            response.headers_mut().insert("content-type", "application/json".parse().unwrap());
            response
        })
    })
}

/// Writes a `MutatingWebhookConfiguration` and a `ValidatingWebhookConfiguration` as static manifests below `directory`; the file for
/// `--admission-control-config-file`.
pub fn write_static_manifests(directory: &Path, configurations: &[Value; 2]) -> PathBuf {
    write_static_plugins(directory, "admission.json", configurations, &[])
}

/// The same with admission policies and their bindings, in a file of this name. A plugin of policies without any has no folder.
pub fn write_static_plugins(
    directory: &Path,
    name: &str,
    configurations: &[Value],
    policies: &[Value],
) -> PathBuf {
    let write = |plugin: &str, kind: &str, objects: &[Value]| {
        let folder = directory.join(plugin);
        fs::create_dir_all(&folder).unwrap();
        let manifest: Vec<String> = objects.iter().map(Value::to_string).collect();
        fs::write(folder.join("manifests.yaml"), manifest.join("\n---\n")).unwrap();
        json!({"name": plugin, "configuration": {"apiVersion": "apiserver.config.k8s.io/v1", "kind": kind,
            "staticManifestsDir": folder}})
    };
    let mut plugins = Vec::new();
    for configuration in configurations {
        let plugin =
            configuration["kind"].as_str().unwrap().replace("WebhookConfiguration", "AdmissionWebhook");
        plugins.push(write(&plugin, "WebhookAdmissionConfiguration", std::slice::from_ref(configuration)));
    }
    for plugin in ["MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"] {
        let of_plugin = |object: &&Value| object["kind"].as_str().unwrap().starts_with(plugin);
        let policies: Vec<Value> = policies.iter().filter(of_plugin).cloned().collect();
        if !policies.is_empty() {
            plugins.push(write(plugin, &format!("{plugin}Configuration"), &policies));
        }
    }
    let file = directory.join(name);
    let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins});
    fs::write(&file, configuration.to_string()).unwrap();
    file
}
