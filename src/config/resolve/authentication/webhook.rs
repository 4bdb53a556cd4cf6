//! Resolves the token authentication webhook.
// kubernetes: pkg/kubeapiserver/options/authentication.go, WebHookAuthenticationOptions

use std::sync::Arc;

use portcullis_http::client_tls::PlainHttp;

use super::ConfigResolver;
use crate::authn::webhook::settings::{TokenReviewVersion, WebhookSettings};
use crate::config::error::ConfigError;
use crate::config::flags::AuthenticationFlags;
use crate::config::kubeconfig::{WebhookServer, load_remote};
use crate::config::sections::MergedSection;

const FILE: &str = "authentication-token-webhook-config-file";
const TTL: &str = "authentication-token-webhook-cache-ttl";
const VERSION: &str = "authentication-token-webhook-version";

impl ConfigResolver<'_> {
    pub(super) fn webhook(
        &mut self,
        given: &MergedSection<AuthenticationFlags>,
    ) -> Option<Arc<WebhookSettings>> {
        let flags = &given.values;
        let ttl_key = given.key(TTL);
        let cache_ttl = self.duration(&ttl_key, &flags.authentication_token_webhook_cache_ttl);
        let Some(file) = &flags.authentication_token_webhook_config_file else {
            // As kube-apiserver, checks the version only with a webhook.
            for flag in [TTL, VERSION].into_iter().filter(|flag| given.is_given(flag)) {
                self.warn_of_no_effect(given, flag, FILE);
            }
            return None;
        };
        let version =
            TokenReviewVersion::parse(&flags.authentication_token_webhook_version).map_err(|error| {
                ConfigError::new(given.key(VERSION), error.to_string())
                    .fix("give the TokenReview version of the webhook")
            });
        let version = self.ok(version);
        let place = given.place(FILE);
        let remote =
            load_remote(&place.key, &place.path(file), PlainHttp::Never, self.inputs, &mut self.errors);
        let WebhookServer { url, tls, bearer_token } = remote?;
        Some(Arc::new(WebhookSettings { url, tls, bearer_token, version: version?, cache_ttl: cache_ttl? }))
    }
}
