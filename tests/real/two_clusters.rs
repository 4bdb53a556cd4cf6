//! API servers of two clusters that the configuration takes for one: only one of the clusters gets requests.

use http::StatusCode;
use libtest_mimic::Trial;
use serde_json::json;
use testkit::{status, text};

use crate::Test;
use crate::servers::{Credential, FRONT_PROXY, HeaderFlags, REVIEW, REVIEWS, RealServers, post};

const ROLE_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings";
const READER: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/extension-apiserver-authentication-reader";
const KUBE_SYSTEM: &str = "/api/v1/namespaces/kube-system";
const DEFAULT: &str = "/api/v1/namespaces/default";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub(crate) fn trials(trial: &impl Fn(&str, Test) -> Trial) -> Vec<Trial> {
    vec![
        trial(
            "compared by the ConfigMap",
            Box::new(|servers| one_is_refused(servers, "by-map", &FRONT_PROXY)),
        ),
        trial(
            "compared by kube-system",
            Box::new(|servers| one_is_refused(servers, "by-namespace", &Credential::Token("strong-token"))),
        ),
    ]
}

/// The servers share one etcd process, but no data: each has a prefix of its own, and so objects with other UIDs.
fn one_is_refused(servers: &RealServers, name: &str, credential: &Credential) -> Result<(), String> {
    let [first, second] = ["first", "second"].map(|number| format!("{name}-{number}"));
    let first = servers.own_server(HeaderFlags::Good, &first)?;
    let second = servers.own_server(HeaderFlags::Good, &second)?;
    let runtime = servers.runtime();
    for server in [&first, &second] {
        runtime.block_on(async {
            for path in [READER, KUBE_SYSTEM, DEFAULT] {
                testkit::real::eventually(path, async || servers.exists(server.address, path).await).await?;
            }
            servers.create(server.address, ROLE_BINDINGS, &reader_binding()).await
        })?;
    }
    let gateway = servers.gateway_of_several(name, [first.address, second.address], credential)?;
    let refused = gateway.line_with(&["the endpoint belongs to another cluster"])?;
    // Usually the second one, unless its roles were loaded sooner.
    let is_second = refused.contains(&second.address.to_string());
    let (used, unused) = if is_second { (&first, &second) } else { (&second, &first) };
    gateway.line_with(&["self-check passed", &used.address.to_string()])?;
    runtime.block_on(async {
        let mut client = gateway.client().http1(Some(servers.alice())).await;
        let reviewed = client.send(post(REVIEWS, REVIEW)).await.unwrap();
        if reviewed.status() != StatusCode::CREATED {
            return Err(text(reviewed).await);
        }
        for number in 0..20 {
            let map = json!({"metadata": {"name": format!("map-{number}")}}).to_string();
            let (code, body) = status(client.send(post(CONFIG_MAPS, &map)).await.unwrap()).await;
            if code != StatusCode::CREATED {
                return Err(format!("{code} {body}"));
            }
            let path = format!("{CONFIG_MAPS}/map-{number}");
            let stored =
                (servers.exists(used.address, &path).await?, servers.exists(unused.address, &path).await?);
            if stored != (true, false) {
                return Err(format!("{path}: in the used and the other cluster: {stored:?}"));
            }
        }
        Ok(())
    })
}

/// Lets the gateway read the names of the identity headers.
fn reader_binding() -> String {
    let binding = json!({
        "metadata": {"name": "portcullis-authentication-reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "extension-apiserver-authentication-reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:portcullis"}],
    });
    binding.to_string()
}
