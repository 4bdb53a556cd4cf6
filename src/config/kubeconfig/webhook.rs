//! The kubeconfig of a webhook: its URL, its CA, and the gateway's credential for it. The same rules for TLS and
//! credentials hold as for the backend.
// apiserver: pkg/util/webhook/webhook.go, LoadKubeconfig

use portcullis_http::client_tls::ClientTls;

use super::{ConfigError, Endpoint, InputReader, KubeconfigReader, Path};
use crate::authn::BearerToken;

use super::credential::ClientCredential;

/// The address of a webhook, and the gateway's credential for it.
#[derive(Debug)]
pub(in crate::config) struct WebhookServer {
    /// The URL, without a query.
    pub(in crate::config) url: String,
    pub(in crate::config) tls: ClientTls,
    pub(in crate::config) bearer_token: Option<BearerToken>,
}

/// Reads the current context of `file`. Errors go to `errors`; `None` means there were some.
pub(in crate::config) fn load_remote(
    key: &str,
    file: &Path,
    inputs: &mut InputReader,
    errors: &mut Vec<ConfigError>,
) -> Option<WebhookServer> {
    let mut reader = KubeconfigReader { key, file, before: errors.len(), inputs, errors };
    let remote = reader.remote();
    remote.filter(|_| !reader.failed())
}

impl KubeconfigReader<'_> {
    fn remote(&mut self) -> Option<WebhookServer> {
        let (cluster, user) = self.cluster_and_user(None)?;
        let address = self.address(&cluster);
        let roots = self.roots(&cluster);
        let ClientCredential { certificate, token } = self.credential(&cluster, &user)?;
        let (address, path) = address?;
        let Endpoint { address, server_name, .. } = self.endpoint(address, &cluster)?;
        Some(WebhookServer {
            url: format!("https://{address}{path}"),
            tls: ClientTls { roots: roots?, client_certificate: certificate, server_name: Some(server_name) },
            bearer_token: token,
        })
    }
}
