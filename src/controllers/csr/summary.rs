//! The fields of a certificate signing request that a feed parses.

use std::borrow::Cow;

use portcullis_kubernetes::service_account;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::conditions::Conditions;
use crate::controllers::request_feed::RequestSummary;

/// The parsed fields of a request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::controllers) struct CsrSummary {
    metadata: SummaryMetadata,
    spec: SummarySpec,
    status: Option<SummaryStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SummaryMetadata {
    name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SummarySpec {
    signer_name: String,
    username: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SummaryStatus {
    certificate: Option<IgnoredAny>,
    conditions: Conditions,
}

impl CsrSummary {
    /// Whether the request has a certificate.
    pub(in crate::controllers) fn is_issued(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.certificate.is_some())
    }

    pub(in crate::controllers) fn conditions(&self) -> Conditions {
        self.status.as_ref().map(|status| status.conditions).unwrap_or_default()
    }
}

impl RequestSummary for CsrSummary {
    const RESOURCE: &'static str = "certificatesigningrequests";
    const MANIFEST: &'static str = "deploy/rbac-controllers.yaml";
    /// The API has no limit for requests, but kubelets keep to the limit of other objects.
    const MAX_NAME: usize = 253;

    fn signer_name(&self) -> &str {
        &self.spec.signer_name
    }

    fn key_text(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.metadata.name)
    }

    /// The user, or the namespace of a service account.
    fn requester(&self) -> &str {
        let username = &self.spec.username;
        service_account::namespace_prefix(username).unwrap_or(username)
    }
}
