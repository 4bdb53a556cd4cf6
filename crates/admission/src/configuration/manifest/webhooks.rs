//! The webhooks of a folder.

use std::collections::BTreeMap;

use portcullis_go::quote::Quoted;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::strict::DecodeError;
use serde_json::Value;

use super::{Folder, FolderContent, Manifests, Place};
use crate::configuration::WebhookConfiguration;
use crate::{Webhook, WebhookKind};

const SERVICE_FIX: &str = "give clientConfig.url with an address that the gateway reaches: it does not resolve the \
                           Services of a cluster; or register the webhook in the cluster itself";

/// The webhooks of a folder.
#[derive(Debug)]
pub struct WebhooksOfFolder {
    kind: WebhookKind,
    /// The files of the names.
    names: BTreeMap<String, String>,
    /// The webhooks by configuration: in byte order of the names.
    configurations: BTreeMap<String, Vec<Webhook>>,
}

impl Manifests<WebhooksOfFolder> {
    /// No webhooks yet. `kind` is that of the plugin; the rules are those of `release`.
    pub fn webhooks(kind: WebhookKind, release: Release) -> Self {
        let (names, configurations) = (BTreeMap::new(), BTreeMap::new());
        Self::of(WebhooksOfFolder { kind, names, configurations }, release)
    }
}

impl FolderContent for WebhooksOfFolder {
    type Item = Webhook;

    fn kinds(&self) -> &'static [&'static str] {
        match self.kind {
            WebhookKind::Mutating => &["MutatingWebhookConfiguration"],
            WebhookKind::Validating => &["ValidatingWebhookConfiguration"],
        }
    }

    fn accept(&mut self, kind: &str, object: &Value, place: Place<'_>, folder: &mut Folder) {
        let configuration = match WebhookConfiguration::decode(self.kind, object) {
            Ok(configuration) => configuration,
            Err(DecodeError { field, problem, fix }) => {
                return folder.undecodable(place, &field, &problem, fix);
            }
        };
        let before = folder.errors.len();
        let name = configuration.name();
        let webhooks = configuration.webhooks(&mut folder.context).unwrap_or_else(|errors| {
            folder.invalid(place, (kind, name), errors);
            Vec::new()
        });
        folder.name(place, name, &mut self.names);
        client_configs(&configuration, place, folder);
        if folder.errors.len() == before {
            for warning in configuration.warnings(folder.release) {
                folder.warn(place, warning);
            }
            self.configurations.insert(name.to_owned(), webhooks);
        }
    }

    fn finish(self, _: &mut Folder) -> Vec<Webhook> {
        self.configurations.into_values().flatten().collect()
    }
}

// ValidateWebhookClientConfig
fn client_configs(configuration: &WebhookConfiguration, place: Place<'_>, folder: &mut Folder) {
    for (index, webhook) in configuration.wire.webhooks.iter().enumerate() {
        let of = format!(
            "webhook {} in {} (file {})",
            Quoted(&webhook.name),
            Quoted(configuration.name()),
            Quoted(place.file)
        );
        // A missing URL is an error of validation.
        if webhook.client_config.service.is_some() {
            let problem = format!(
                "{of}: clientConfig.service is not supported for static manifests; use clientConfig.url instead"
            );
            let field = format!("webhooks[{index}].clientConfig.service");
            folder.other(place, &field, problem, SERVICE_FIX);
        }
    }
}
