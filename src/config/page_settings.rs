//! The validated settings of the page.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use portcullis_openid::provider::OpenIdClientSettings;
use portcullis_pki::x509::CertificateKeyPair;
use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;
use secrecy::SecretBox;

use crate::listener::settings::ProxyProtocol;

/// The page: its listener, its host name, its client at the provider, and how users reach the API.
#[derive(Debug)]
pub struct PageSettings {
    /// The configuration keys of its URL and of its issuer.
    pub(crate) keys: [String; 2],
    /// The address to listen on.
    pub(crate) address: SocketAddr,
    /// The origin, `https://HOST[:PORT]`, in lower case and without the default port.
    pub(crate) origin: String,
    /// The serving certificate and its key.
    pub(crate) certificate: CertificateKeyPair,
    /// The cipher suites and key exchange groups to offer: those of the API.
    pub(crate) crypto: Arc<CryptoProvider>,
    /// The TLS versions to offer: those of the API.
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
    /// The load balancers that name their clients in a PROXY protocol header.
    pub(crate) proxy_protocol: Option<Arc<ProxyProtocol>>,
    /// The page's client at the provider.
    pub(crate) client: OpenIdClientSettings,
    /// The key of the cookies; `None`: a random one.
    pub(crate) cookie_key: Option<CookieKey>,
    /// What kubeconfigs are made of.
    pub(crate) kubeconfig: KubeconfigSettings,
}

/// What the kubeconfigs of users are made of.
#[derive(Debug)]
pub(crate) struct KubeconfigSettings {
    /// The host and port of the API, of `https://HOST[:PORT]`.
    pub(crate) api_authority: String,
    /// The CAs of the API's serving certificate, PEM.
    pub(crate) api_ca: Option<String>,
    /// The client with which users log in.
    pub(crate) client_id: String,
    /// The CAs of the provider, PEM.
    pub(crate) issuer_ca: Option<String>,
    /// The scopes beside `openid`; empty: the default ones.
    pub(crate) scopes: Vec<String>,
}

/// The key of the cookies.
pub(crate) struct CookieKey(pub(crate) SecretBox<[u8; 32]>);

impl fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKey")
    }
}

impl PageSettings {
    /// The host and port of the origin, as a browser sends them in `Host`.
    pub(crate) fn authority(&self) -> &str {
        self.origin.strip_prefix("https://").unwrap_or_default()
    }

    /// The host name of the origin.
    pub(crate) fn host(&self) -> &str {
        let authority = self.authority();
        authority.split_once(':').map_or(authority, |(host, _)| host)
    }
}
