//! The kubeconfig of a webhook: its URL, its CA, its proxy, and the gateway's credential for it. The same rules for TLS and
//! credentials hold as for the backend. An audit webhook may be on loopback without TLS: only this machine can read what is
//! sent. The other webhooks may not: a process that takes their port while they are down would get the tokens of users,
//! and decide who they are and what they may do.
// apiserver: pkg/util/webhook/webhook.go, LoadKubeconfig

use http::Uri;
use kube::config::{AuthInfo, Cluster};
use portcullis_http::client_tls::{ClientTls, PlainHttp, TrustedRoots};
use portcullis_http::proxy::ProxyChoice;

use super::{ConfigError, Endpoint, HostPort, InputReader, KubeconfigReader, Path, parse_server};
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
    plain_http: PlainHttp,
    inputs: &mut InputReader,
    errors: &mut Vec<ConfigError>,
) -> Option<WebhookServer> {
    let mut reader = KubeconfigReader { key, file, before: errors.len(), inputs, errors };
    let remote = reader.remote(plain_http);
    remote.filter(|_| !reader.failed())
}

impl KubeconfigReader<'_> {
    fn remote(&mut self, plain_http: PlainHttp) -> Option<WebhookServer> {
        let (cluster, user) = self.cluster_and_user(None)?;
        if let Some(url) = plain_url(cluster.server.as_deref().unwrap_or_default(), plain_http) {
            return self.plain_remote(url, &cluster, &user);
        }
        let address = self.address(&cluster);
        let proxy = ProxyChoice::of_kubeconfig(cluster.proxy_url.as_deref());
        let proxy = proxy.map_err(|error| format!("proxy-url: {error}"));
        let proxy = self.checked(proxy, "give http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT");
        let roots = self.roots(&cluster);
        let ClientCredential { certificate, token } = self.credential(&cluster, &user)?;
        let (address, path) = address?;
        let Endpoint { address, server_name, .. } = self.endpoint(address, &cluster)?;
        Some(WebhookServer {
            url: format!("https://{address}{path}"),
            tls: ClientTls {
                roots: roots?,
                client_certificate: certificate,
                server_name: Some(server_name),
                proxy: proxy?,
                plain_http: PlainHttp::Never,
            },
            bearer_token: token,
        })
    }

    /// A webhook on loopback without TLS, to which no credential is sent.
    fn plain_remote(&mut self, url: String, cluster: &Cluster, user: &AuthInfo) -> Option<WebhookServer> {
        let ClientCredential { certificate, token } = self.credential(cluster, user)?;
        if certificate.is_some() || token.is_some() {
            let fix = "remove the user of the context, or give https://HOST:PORT";
            self.report("a credential would be sent to an http:// server in clear text", fix);
            return None;
        }
        let tls =
            ClientTls { plain_http: PlainHttp::ToLoopback, ..ClientTls::trusting(TrustedRoots::none()) };
        Some(WebhookServer { url, tls, bearer_token: None })
    }
}

/// An `http://` URL on loopback, if it is one and permitted.
fn plain_url(server: &str, plain_http: PlainHttp) -> Option<String> {
    let rest = server.strip_prefix("http://")?;
    let (HostPort { host, .. }, path) = parse_server(&format!("https://{rest}")).ok()?;
    let port = server.parse::<Uri>().ok()?.port_u16().unwrap_or(80);
    plain_http.permits(&host).then(|| format!("http://{}{path}", HostPort { host, port }))
}
