//! A `PodCertificateRequest`, of either version of the API.
//!
//! v1beta1 has a public key with a proof of possession beside the stub request that took their place; the API server
//! accepts exactly one of them.
// api: certificates/v1/types.go, certificates/v1beta1/types.go

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::Value;

use crate::controllers::csr::conditions::Conditions;
use crate::controllers::request_feed::RequestSummary;

/// The plural of the kind.
pub(super) const RESOURCE: &str = "podcertificaterequests";
/// The manifest that grants what the controller needs.
pub(super) const MANIFEST: &str = "deploy/rbac-pod-certificates.yaml";
/// The default of `spec.maxExpirationSeconds`, which the API server sets.
const DEFAULT_EXPIRATION: Duration = Duration::from_hours(24);

/// The parsed fields of a request in a list or a watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodRequestSummary {
    metadata: SummaryMetadata,
    spec: SummarySpec,
    status: Option<SummaryStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SummaryMetadata {
    name: String,
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SummarySpec {
    signer_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SummaryStatus {
    conditions: Conditions,
}

impl PodRequestSummary {
    /// Whether the request has no condition: each condition is final.
    pub(super) fn is_pending(&self) -> bool {
        self.status.as_ref().is_none_or(|status| !status.conditions.is_any)
    }
}

impl RequestSummary for PodRequestSummary {
    const RESOURCE: &'static str = RESOURCE;
    const MANIFEST: &'static str = MANIFEST;
    /// A namespace, a slash and a name.
    const MAX_NAME: usize = 63 + 1 + 253;

    fn signer_name(&self) -> &str {
        &self.spec.signer_name
    }

    fn key_text(&self) -> Cow<'_, str> {
        Cow::Owned(format!("{}/{}", self.metadata.namespace, self.metadata.name))
    }

    /// The namespace: kubelets create the requests for its pods.
    // threat: pod-request-flood
    fn requester(&self) -> &str {
        &self.metadata.namespace
    }
}

/// A request.
#[derive(Debug, Clone)]
pub(super) struct PodRequest {
    pub(super) metadata: RequestMetadata,
    pub(super) spec: RequestSpec,
    is_decided: bool,
    /// The whole object, without `managedFields`.
    pub(super) object: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RequestMetadata {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) resource_version: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RequestSpec {
    pub(super) signer_name: String,
    pub(super) pod_name: String,
    #[serde(rename = "podUID")]
    pub(super) pod_uid: String,
    pub(super) service_account_name: String,
    #[serde(rename = "serviceAccountUID")]
    pub(super) service_account_uid: String,
    pub(super) node_name: String,
    #[serde(rename = "nodeUID")]
    pub(super) node_uid: String,
    max_expiration_seconds: Option<u32>,
    #[serde(rename = "stubPKCS10Request")]
    pub(super) stub_request: Option<ByteString>,
    /// Only in v1beta1.
    #[serde(rename = "pkixPublicKey")]
    pub(super) pkix_public_key: Option<ByteString>,
    pub(super) unverified_user_annotations: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WholeRequest {
    metadata: RequestMetadata,
    spec: RequestSpec,
    status: Option<SummaryStatus>,
}

impl PodRequest {
    /// Reads an object.
    pub(super) fn parse(object: Value) -> serde_json::Result<Self> {
        let WholeRequest { metadata, spec, status } = WholeRequest::deserialize(&object)?;
        let is_decided = status.is_some_and(|status| status.conditions.is_any);
        Ok(Self { metadata, spec, is_decided, object })
    }

    /// Whether the request has a public key, as far as this version of the API shows it.
    pub(super) fn has_key(&self) -> bool {
        let keys = [&self.spec.stub_request, &self.spec.pkix_public_key];
        keys.into_iter().flatten().any(|key| !key.0.is_empty())
    }

    /// Takes the public key of the same request, as another version of the API shows it.
    pub(super) fn take_key(&mut self, other: Self) {
        if other.metadata.uid == self.metadata.uid {
            self.spec.pkix_public_key = other.spec.pkix_public_key;
        }
    }

    /// Whether the request has a condition, which is final.
    pub(super) fn is_decided(&self) -> bool {
        self.is_decided
    }
}

impl RequestSpec {
    /// The longest lifetime that the request permits.
    pub(super) fn max_expiration(&self) -> Duration {
        let seconds = self.max_expiration_seconds;
        seconds.map_or(DEFAULT_EXPIRATION, |seconds| Duration::from_secs(seconds.into()))
    }

    /// The keys of the annotations.
    pub(super) fn user_annotations(&self) -> impl Iterator<Item = &str> {
        self.unverified_user_annotations.iter().flat_map(BTreeMap::keys).map(String::as_str)
    }
}
