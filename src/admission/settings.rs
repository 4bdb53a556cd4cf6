//! Settings of the admission webhooks that the gateway calls, and of the policies that it evaluates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_admission::{Policies, PolicyScope, Webhook, WebhookKind, Webhooks};
use portcullis_http::client_tls::ClientTls;

use crate::authn::BearerToken;

/// The admission webhooks and policies of a cluster; at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionSettings {
    /// Which object they see.
    pub mode: AdmissionMode,
    /// The webhooks in the order of their calls.
    pub webhooks: Webhooks,
    /// The policies in the order of their evaluation.
    pub policies: Policies,
    /// How each of the webhooks is reached.
    pub connections: WebhookConnections,
    /// The names of webhooks that are called without effect on requests; each names at least one webhook.
    pub shadow: BTreeSet<String>,
    /// The names of policies that are evaluated without effect on requests; each names a policy.
    pub shadow_policies: BTreeSet<String>,
}

/// Which object webhooks and policies see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "camelCase")]
pub enum AdmissionMode {
    /// The object that the backend would store: the request is sent as a dry run first, and the real write is pinned to
    /// what the webhooks saw.
    PinnedDryRun,
    /// The object that the client sent, without the backend's defaults. Only CREATE and CONNECT.
    RequestLevel,
}

/// How webhooks are reached. Webhooks with the same server and credential share one [`WebhookConnection`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WebhookConnections {
    mutating: ByName,
    validating: ByName,
}

/// Connections by the names of configuration and webhook.
type ByName = BTreeMap<String, BTreeMap<String, Arc<WebhookConnection>>>;

/// How a webhook is reached.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookConnection {
    /// The URL as kube-apiserver's client requests it: `https`, with a clean path, without a query.
    // apiserver: pkg/util/webhook/client.go, hookClientConfig; client-go: rest/url_utils.go, DefaultVersionedAPIPath
    pub url: String,
    /// Whether HTTP/2 is offered. Only to this machine: one HTTP/2 connection would reach one of several replicas.
    // apiserver: pkg/util/webhook/client.go, isLocalHost
    pub http2: bool,
    /// TLS: the trusted CAs and the client certificate.
    pub tls: ClientTls,
    /// The bearer token sent to the webhook.
    pub bearer_token: Option<BearerToken>,
}

impl AdmissionSettings {
    /// Whether a webhook is called without effect on the request.
    pub fn is_shadow(&self, webhook: &Webhook) -> bool {
        self.shadow.contains(&webhook.name)
    }

    /// Whether a policy is evaluated without effect on the request.
    pub fn is_shadow_policy(&self, policy: &PolicyScope) -> bool {
        self.shadow_policies.contains(&policy.name)
    }

    /// Whether there is neither a webhook nor a policy.
    pub fn is_empty(&self) -> bool {
        let Self { webhooks, policies, .. } = self;
        webhooks.mutating.is_empty() && webhooks.validating.is_empty() && policies.is_empty()
    }
}

impl WebhookConnections {
    /// The connection of a webhook; there is one for each of [`AdmissionSettings::webhooks`].
    pub fn of(&self, webhook: &Webhook) -> Option<&Arc<WebhookConnection>> {
        let connections = match webhook.kind {
            WebhookKind::Mutating => &self.mutating,
            WebhookKind::Validating => &self.validating,
        };
        connections.get(&webhook.configuration)?.get(&webhook.name)
    }

    /// Adds the connection of a webhook.
    pub fn insert(&mut self, webhook: &Webhook, connection: Arc<WebhookConnection>) {
        let connections = match webhook.kind {
            WebhookKind::Mutating => &mut self.mutating,
            WebhookKind::Validating => &mut self.validating,
        };
        let of_configuration = connections.entry(webhook.configuration.clone()).or_default();
        of_configuration.insert(webhook.name.clone(), connection);
    }
}
