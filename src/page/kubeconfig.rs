//! The kubeconfigs that users download: the same as `portcullis kubeconfig` prints. They have no secret: kubectl asks
//! `portcullis credential` for a token, which logs the user in.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_tools::login::{KubeconfigFile, KubeconfigTarget, exec_user};
use serde_json::{Map, Value, json};

use super::PageInForce;
use crate::cluster::address::ClusterAddress;

/// A kubeconfig of these clusters, of which the first is the current context.
pub(super) fn render(in_force: &PageInForce, clusters: &[(String, ClusterAddress)]) -> Option<String> {
    let authorities = in_force.settings.kubeconfig.api_ca.as_ref();
    let user = user(in_force);
    let mut file = KubeconfigFile::new();
    for (name, address) in clusters {
        let mut cluster = Map::from_iter([("server".to_owned(), json!(address.url()))]);
        cluster.extend(
            authorities.map(|pem| ("certificate-authority-data".to_owned(), json!(STANDARD.encode(pem)))),
        );
        let target = KubeconfigTarget {
            context: name.clone(),
            cluster_name: name.clone(),
            cluster: Value::Object(cluster),
            user_name: format!("{name}-login"),
            user: user.clone(),
        };
        file.merge(&target, true).ok()?;
    }
    if let Some((first, _)) = clusters.first() {
        file.set_current_context(first);
    }
    file.to_yaml().ok()
}

/// The user, whose exec plugin is `portcullis credential`.
fn user(in_force: &PageInForce) -> Value {
    let settings = &in_force.settings.kubeconfig;
    let mut arguments = vec![
        format!("--issuer={}", in_force.settings.client.issuer),
        format!("--client-id={}", settings.client_id),
    ];
    if let Some(ca) = &settings.issuer_ca {
        arguments.push(format!("--issuer-certificate-authority-data={}", STANDARD.encode(ca)));
    }
    if !settings.scopes.is_empty() {
        arguments.push(format!("--scope={}", settings.scopes.join(",")));
    }
    exec_user("portcullis", &arguments)
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
