//! The kubeconfigs that users download: the same as `portcullis kubeconfig` prints. They have no secret: kubectl asks
//! `portcullis credential` for a token, which logs the user in.
// client-go: tools/clientcmd/api/v1/types.go, Config

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::PageInForce;
use super::clusters::ClusterAddress;

/// A kubeconfig of these clusters, of which the first is the current context.
pub(super) fn render(in_force: &PageInForce, clusters: &[(String, ClusterAddress)]) -> Option<String> {
    let settings = &in_force.settings.kubeconfig;
    let user = user(in_force);
    let user_name = |name: &str| format!("{name}-login");
    let named = |list: &str, key: &str, content: &dyn Fn(&str, &ClusterAddress) -> (String, Value)| {
        let entries = clusters.iter().map(|(name, address)| {
            let (name, content) = content(name, address);
            json!({"name": name, key: content})
        });
        (list.to_owned(), Value::Array(entries.collect()))
    };
    let cluster = |name: &str, address: &ClusterAddress| {
        let mut cluster = json!({"server": address.url()});
        if let (Some(ca), Some(entry)) = (&settings.api_ca, cluster.as_object_mut()) {
            entry.insert("certificate-authority-data".to_owned(), json!(STANDARD.encode(ca)));
        }
        (name.to_owned(), cluster)
    };
    let context =
        |name: &str, _: &ClusterAddress| (name.to_owned(), json!({"cluster": name, "user": user_name(name)}));
    let mut document = serde_json::Map::from_iter([
        ("apiVersion".to_owned(), json!("v1")),
        ("kind".to_owned(), json!("Config")),
        named("clusters", "cluster", &cluster),
        named("users", "user", &|name, _| (user_name(name), user.clone())),
        named("contexts", "context", &context),
    ]);
    if let Some((first, _)) = clusters.first() {
        document.insert("current-context".to_owned(), json!(first));
    }
    serde_saphyr::to_string(&document).ok()
}

/// The user, whose exec plugin is `portcullis credential`.
fn user(in_force: &PageInForce) -> Value {
    let settings = &in_force.settings.kubeconfig;
    let mut arguments = vec![
        "credential".to_owned(),
        format!("--issuer={}", in_force.settings.client.issuer),
        format!("--client-id={}", settings.client_id),
    ];
    if let Some(ca) = &settings.issuer_ca {
        arguments.push(format!("--issuer-certificate-authority-data={}", STANDARD.encode(ca)));
    }
    if !settings.scopes.is_empty() {
        arguments.push(format!("--scope={}", settings.scopes.join(",")));
    }
    json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "portcullis",
        "args": arguments,
        "env": null,
        "installHint": "Install portcullis and put it into your PATH: kubectl asks it for your login.",
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": true,
    }})
}

/// The name of a download, which a header can carry.
pub(super) fn file_name(cluster: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    format!("{}.kubeconfig", cluster.trim_start_matches('.').chars().map(plain).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// YAML 1.1, which kubectl reads, has more words and numbers than YAML 1.2.
    // yaml.org/type: bool, int, float, null, timestamp
    #[test]
    fn a_name_that_yaml_reads_as_something_else_is_quoted() {
        for name in [
            "no",
            "on",
            "off",
            "yes",
            "y",
            "n",
            "true",
            "null",
            "012",
            "1e3",
            "0x1f",
            "0b1",
            "7",
            "2026-01-02",
            "1",
        ] {
            let text = serde_saphyr::to_string(&json!({"name": name})).unwrap();
            assert!(text.contains(&format!("\"{name}\"")) || text.contains(&format!("'{name}'")), "{text}");
        }
    }
}
