//! The authorization webhooks of [`Setting::Webhooks`](crate::authenticators::Setting), equal for the reference, the
//! second reference and the gateway. Their answers are in the requests: `outside/authorization.rs`.
//!
//! The reference has no RBAC there, and the backend allows members of [`AUTHORIZED`] everything, so that the webhooks alone
//! decide on both sides.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The group to which the fixtures give every right.
pub(crate) const AUTHORIZED: &str = "authorized";

/// The flag of all three servers.
pub(crate) fn flag(dir: &Path) -> String {
    format!("--authorization-config={}", file(dir, "authorization.json").display())
}

/// Writes the configuration. `address` is that of the webhooks.
pub(crate) fn write(dir: &Path, address: &str) -> std::io::Result<()> {
    for name in ["first", "second", "last"] {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "webhook",
            "contexts": [{"name": "webhook", "context": {"cluster": "webhook", "user": "webhook"}}],
            "clusters": [{"name": "webhook", "cluster": {
                "server": format!("{address}/authorization/{name}"), "certificate-authority": dir.join("server-ca.crt")}}],
            "users": [{"name": "webhook", "user": {}}],
        });
        fs::write(file(dir, &format!("{name}.kubeconfig")), kubeconfig.to_string())?;
    }
    let webhook = |name: &str, mut webhook: Value| {
        webhook["timeout"] = json!("3s");
        webhook["matchConditionSubjectAccessReviewVersion"] = json!("v1");
        let kubeconfig = file(dir, &format!("{name}.kubeconfig"));
        webhook["connectionInfo"] = json!({"type": "KubeConfigFile", "kubeConfigFile": kubeconfig});
        json!({"type": "Webhook", "name": name, "webhook": webhook})
    };
    // A condition that fails for one path, and another that is false for one name.
    let conditions = |name: &str| {
        json!([
            {"expression": format!("!has(request.nonResourceAttributes) || \
                !request.nonResourceAttributes.path.startsWith('/{name}-fails') || request.resourceAttributes.name == ''")},
            {"expression": format!("!has(request.resourceAttributes) || \
                !request.resourceAttributes.name.contains('skip-{name}')")},
            {"expression": "!('nowebhook' in request.groups) && request.user != 'system:apiserver'"},
        ])
    };
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [
            webhook("first", json!({"subjectAccessReviewVersion": "v1", "failurePolicy": "NoOpinion",
                "matchConditions": conditions("first")})),
            webhook("second", json!({"subjectAccessReviewVersion": "v1beta1", "failurePolicy": "Deny",
                "cacheAuthorizedRequests": false, "cacheUnauthorizedRequests": false,
                "matchConditions": conditions("second")})),
            webhook("last", json!({"subjectAccessReviewVersion": "v1", "failurePolicy": "NoOpinion"})),
        ],
    });
    fs::write(file(dir, "authorization.json"), configuration.to_string())
}

/// An absolute path, which the configuration requires.
fn file(dir: &Path, name: &str) -> PathBuf {
    std::path::absolute(dir.join(name)).expect("a path")
}
