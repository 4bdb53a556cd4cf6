//! The kubeconfig of a webhook: a server at any path, and what it is shown. As for the backend, what would make the
//! connection less than it should be is refused.
// apiserver: pkg/util/webhook/webhook.go, LoadKubeconfig

use super::{ConfigError, Endpoint, Inputs, Path, Reader};
use crate::authn::BearerToken;
use crate::http::client_tls::Tls;

use super::credential::Credential;

/// Where a webhook is, how it is known, and what it is shown.
#[derive(Debug)]
pub(in crate::config) struct Remote {
    /// Without a query.
    pub(in crate::config) url: String,
    pub(in crate::config) tls: Tls,
    pub(in crate::config) bearer_token: Option<BearerToken>,
}

/// Reads the current context of `file`. Errors go to `errors`; `None` means there were some.
pub(in crate::config) fn load_remote(
    key: &str,
    file: &Path,
    inputs: &mut Inputs,
    errors: &mut Vec<ConfigError>,
) -> Option<Remote> {
    let mut reader = Reader { key, file, before: errors.len(), inputs, errors };
    let remote = reader.remote();
    remote.filter(|_| !reader.failed())
}

impl Reader<'_> {
    fn remote(&mut self) -> Option<Remote> {
        let (cluster, user) = self.parties(None)?;
        let address = self.address(&cluster);
        let roots = self.roots(&cluster);
        let Credential { certificate, token } = self.credential(&cluster, &user)?;
        let (address, path) = address?;
        let Endpoint { address, server_name } = self.endpoint(address, &cluster)?;
        Some(Remote {
            url: format!("https://{address}{path}"),
            tls: Tls { roots: roots?, client_certificate: certificate, server_name: Some(server_name) },
            bearer_token: token,
        })
    }
}
