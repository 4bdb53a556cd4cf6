//! The rules of a gateway for an `AuthorizationConfiguration`, beside kube-apiserver's: only authorizers that narrow
//! access, since the backend authorizes every request after the gateway. Authorizers that only the backend has are errors,
//! unless they are left to it; then [`super::chain`] says which of the others the gateway asks.

use super::AuthorizationConfiguration;
use crate::config::apiserver_config::field::FieldError;

/// The modes by which only the backend can decide: it has their policies.
pub(crate) const BACKEND_MODES: [&str; 3] = ["ABAC", "Node", "RBAC"];

/// The errors of authorizers that kube-apiserver may have, or accepts in the file, but not a gateway. Those of the
/// backend are no errors if `leaves_to_backend`.
pub(in crate::config) fn problems(
    configuration: &AuthorizationConfiguration,
    leaves_to_backend: bool,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, authorizer) in configuration.authorizers.iter().enumerate() {
        let field = |name: &str| format!("authorizers[{index}].{name}");
        let mode = authorizer.mode.as_str();
        if BACKEND_MODES.contains(&mode) && !leaves_to_backend {
            let problem = format!("the backend decides by {mode}, after the gateway");
            let fix = "give one authorizer with type: AlwaysAllow and name: alwaysallow in place of those of the backend, or \
                       give --ignore-unknown-apiserver-flags";
            errors.push(FieldError::forbidden(field("type"), &problem).fix(fix));
        }
        let connection = authorizer.webhook.as_ref().map(|webhook| webhook.connection_info.mode.as_str());
        if mode == "Webhook" && connection == Some("InClusterConfig") {
            let problem = "InClusterConfig is not supported, as in kube-apiserver";
            let fix = "give type: KubeConfigFile, and kubeConfigFile: the absolute path of the webhook's kubeconfig";
            errors.push(FieldError::forbidden(field("connectionInfo.type"), problem).fix(fix));
        }
    }
    errors
}
