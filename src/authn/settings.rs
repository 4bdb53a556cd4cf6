//! Who clients may be, read and found to fit together.

use std::sync::Arc;

use super::Audience;
use super::anonymous::AnonymousAuth;
use super::oidc::settings::JwtAuthenticator;
use super::request_header::RequestHeaderNames;
use super::service_account::ServiceAccountSettings;
use super::static_token::StaticTokenAuthenticator;
use super::webhook::settings::WebhookSettings;
use crate::pki::x509::CaBundle;

/// Who clients may be: a method that is `None` is off. a snapshot turns this into a chain, which cannot be
/// empty.
#[derive(Debug, Clone, Default)]
pub struct Authentication {
    /// The CAs of client certificates.
    pub client_ca: Option<Arc<CaBundle>>,
    /// Front proxies that may assert identities.
    pub request_header: Option<RequestHeaderConfig>,
    /// The tokens of the token file.
    pub static_tokens: Option<Arc<StaticTokenAuthenticator>>,
    /// Whether bootstrap tokens are taken.
    pub bootstrap_tokens: bool,
    /// The service-account tokens that are taken.
    pub service_accounts: Option<ServiceAccountSettings>,
    /// The issuers of JSON Web Tokens.
    pub jwt: Vec<Arc<JwtAuthenticator>>,
    /// The webhook that is asked about every token nobody else knows.
    pub webhook: Option<Arc<WebhookSettings>>,
    /// Which requests are let in without a credential.
    pub anonymous: AnonymousAuth,
    /// The audiences of this API server.
    pub audiences: Vec<Audience>,
}

/// Front proxies that may assert identities.
#[derive(Debug, Clone)]
pub struct RequestHeaderConfig {
    /// The CAs of their certificates.
    pub ca: Arc<CaBundle>,
    /// The common names they may have; empty for any.
    pub allowed_names: Vec<String>,
    /// The headers they use.
    pub headers: RequestHeaderNames,
}
