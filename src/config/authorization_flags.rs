//! The flags of the gateway's own authorization: kube-apiserver's, with its names and defaults. They have a cluster's
//! section of the configuration file, `authorization`.
#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]
// kubernetes: pkg/kubeapiserver/options/authorization.go

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

/// How the gateway authorizes requests before the backend does.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Authorization")]
pub struct AuthorizationFlags {
    /// Ordered list of the gateway's own authorizers, comma-separated: Webhook, AlwaysDeny, AlwaysAllow. AlwaysAllow
    /// leaves a request to the backend, which also authorizes every request that the gateway allows. Default:
    /// AlwaysAllow, if --authorization-config is not used.
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    pub authorization_mode: Vec<String>,
    /// File with the authorization webhook, in kubeconfig format; used with --authorization-mode=Webhook. The gateway
    /// sends it a SubjectAccessReview for each request.
    #[arg(long, value_name = "FILE")]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// The API version of the SubjectAccessReview sent to the webhook: v1 or v1beta1.
    #[arg(long, value_name = "VERSION", default_value = "v1beta1")]
    pub authorization_webhook_version: String,
    /// How long to cache responses of the webhook that authorize a request, such as 5m0s or 30s. 0s: not at all.
    #[arg(long, value_name = "DURATION", default_value = "5m0s")]
    #[serde(rename = "authorizationWebhookCacheAuthorizedTTL")]
    pub authorization_webhook_cache_authorized_ttl: String,
    /// How long to cache responses of the webhook that do not authorize a request, such as 30s. 0s: not at all.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    #[serde(rename = "authorizationWebhookCacheUnauthorizedTTL")]
    pub authorization_webhook_cache_unauthorized_ttl: String,
    /// File with an AuthorizationConfiguration (apiserver.config.k8s.io): the gateway's own authorizers in order, among
    /// them several webhooks with conditions. Mutually exclusive with --authorization-mode and the
    /// --authorization-webhook-* flags.
    #[arg(long, value_name = "FILE")]
    pub authorization_config: Option<PathBuf>,
}
