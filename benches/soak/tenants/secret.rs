//! The Secret by which a tenant configures its cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use testkit::Pki;

/// The data of a Secret, as text.
pub(crate) type SecretText = BTreeMap<String, String>;

/// A cluster of these API servers, with authorities of its own and static `tokens`, as in a token file.
pub(crate) fn secret(pki: &Pki, endpoints: &[SocketAddr], tokens: &str) -> SecretText {
    let urls: Vec<String> = endpoints.iter().map(|address| format!("'https://{address}'")).collect();
    let cluster = format!(
        "apiVersion: portcullis.dev/v1alpha1\nkind: ClusterConfiguration\n\
         authentication: {{tokenAuthFile: tokens}}\nendpoints: [{}]\n",
        urls.join(", ")
    );
    [("kubeconfig", kubeconfig(pki, endpoints[0])), ("cluster", cluster), ("tokens", tokens.to_owned())]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
}

/// A kubeconfig with everything in it.
fn kubeconfig(pki: &Pki, endpoint: SocketAddr) -> String {
    let front = pki.front.leaf().cn("portcullis").issue();
    let [authority, cert, key] =
        [pki.servers.cert_pem(), front.cert_pem(), front.key_pem()].map(|pem| BASE64_STANDARD.encode(pem));
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: b, cluster: {{server: 'https://{endpoint}', certificate-authority-data: {authority}, \
         tls-server-name: backend.test}}}}]\n\
         users: [{{name: u, user: {{client-certificate-data: {cert}, client-key-data: {key}}}}}]\n\
         contexts: [{{name: c, context: {{cluster: b, user: u}}}}]\n"
    )
}
