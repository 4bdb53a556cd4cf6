//! Settings of audit.

use portcullis_audit::policy::Policy;
use portcullis_audit::sink::{LogOptions, WebhookOptions};
use portcullis_http::client_tls::ClientTls;

use crate::authn::BearerToken;

/// Which requests of a cluster are audited, and where their events are stored. There is at least one backend.
#[derive(Debug, Clone)]
pub struct AuditSettings {
    /// The policy.
    pub policy: Policy,
    /// The log file.
    pub log: Option<LogOptions>,
    /// The webhook.
    pub webhook: Option<WebhookSettings>,
}

/// A webhook that receives events.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// How events reach it.
    pub options: WebhookOptions,
    /// The `https` URL.
    pub url: String,
    /// TLS: the trusted CAs and the client certificate.
    pub tls: ClientTls,
    /// The bearer token sent to the webhook.
    pub bearer_token: Option<BearerToken>,
}
