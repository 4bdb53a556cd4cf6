//! Resolved authentication settings of one cluster.

use std::sync::Arc;

use portcullis_pki::x509::CaBundle;
use rustls::DistinguishedName;

use super::Audience;
use super::anonymous::AnonymousAuth;
use super::oidc::settings::JwtAuthenticator;
use super::request_header::RequestHeaderNames;
use super::revocation::RevocationSettings;
use super::service_account::ServiceAccountSettings;
use super::static_token::StaticTokenAuthenticator;
use super::webhook::settings::WebhookSettings;

/// Authentication methods of a cluster; `None` disables one. At least one must be enabled for
/// [`AuthnChain`](super::chain::AuthnChain).
#[derive(Debug, Clone, Default)]
pub struct Authentication {
    /// The CAs of client certificates.
    pub client_ca: Option<Arc<CaBundle>>,
    /// The CAs of the client certificates of pods.
    pub pod_client_ca: Option<Arc<CaBundle>>,
    /// Front proxies that may assert users in request headers.
    pub request_header: Option<RequestHeaderConfig>,
    /// The tokens of `--token-auth-file`.
    pub static_tokens: Option<Arc<StaticTokenAuthenticator>>,
    /// Whether bootstrap tokens are accepted.
    pub bootstrap_tokens: bool,
    /// Validation of service-account tokens.
    pub service_accounts: Option<ServiceAccountSettings>,
    /// The issuers of JSON Web Tokens.
    pub jwt: Vec<Arc<JwtAuthenticator>>,
    /// The webhook for tokens that no other authenticator accepts.
    pub webhook: Option<Arc<WebhookSettings>>,
    /// Which requests are accepted without a credential.
    pub anonymous: AnonymousAuth,
    /// What revokes credentials.
    pub revocation: RevocationSettings,
    /// The audiences of the API server.
    pub audiences: Vec<Audience>,
    /// Whether long-running responses end with the credential that opened them.
    pub ends_streams: bool,
}

impl Authentication {
    /// The names of the CAs of client certificates, those of front proxies and pods included. A CA may be named twice.
    pub(crate) fn client_ca_names(&self) -> impl Iterator<Item = DistinguishedName> {
        let front_proxies = self.request_header.as_ref().map(|request_header| &request_header.ca);
        self.client_ca.iter().chain(&self.pod_client_ca).chain(front_proxies).flat_map(|ca| ca.subjects())
    }
}

/// Front proxies that may assert users in request headers.
#[derive(Debug, Clone)]
pub struct RequestHeaderConfig {
    /// The CAs of their certificates.
    pub ca: Arc<CaBundle>,
    /// The allowed common names; empty allows any.
    pub allowed_names: Vec<String>,
    /// The names of their headers.
    pub headers: RequestHeaderNames,
}
