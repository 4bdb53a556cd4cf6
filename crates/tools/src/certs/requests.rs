//! CertificateSigningRequests in a cluster: reading, decoding and printing of the objects. An approver must see
//! everything that another signer could sign.

mod contents;
pub(super) mod create;
pub(super) mod decide;
pub(super) mod list;
pub(crate) mod wait;
pub(super) mod watch;

use std::collections::{BTreeMap, BTreeSet};

use contents::UnshownContents;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::ObjectMeta;
use portcullis_go::url::path_segment;
use portcullis_pki::issuance::request::CertificateRequest;
use portcullis_system::clock::UnixTime;
use serde::Serialize;

use super::super::cluster::{ClusterClient, ClusterFlags};
use super::super::terminal::age;
use super::error::CommandError;
use super::signing::in_words;
use crate::output::runtime;

const NONE: &str = "<none>";
/// With this annotation cert-manager issues a CA certificate.
// cert-manager: pkg/apis/experimental/v1alpha1/types.go, CertificateSigningRequestIsCAAnnotationKey
const IS_CA: &str = "experimental.cert-manager.io/request-is-ca";

/// The contents of a new request.
#[derive(Debug)]
pub(crate) struct NewRequest<'a> {
    /// `None`: the API server generates it.
    pub(crate) name: Option<&'a str>,
    pub(crate) request: &'a CertificateRequest,
    pub(crate) signer_name: &'a str,
    pub(crate) expiration_seconds: Option<i32>,
    pub(crate) usages: Vec<String>,
}

impl NewRequest<'_> {
    /// The object to create.
    pub(crate) fn object(self) -> CertificateSigningRequest {
        CertificateSigningRequest {
            metadata: ObjectMeta {
                name: self.name.map(str::to_owned),
                generate_name: self.name.is_none().then(|| "portcullis-".to_owned()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(self.request.to_pem().into_bytes()),
                signer_name: self.signer_name.to_owned(),
                expiration_seconds: self.expiration_seconds,
                usages: Some(self.usages),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        }
    }
}

/// The usages of a client certificate.
pub(crate) fn client_usages() -> Vec<String> {
    ["digital signature", "client auth"].map(str::to_owned).to_vec()
}

/// A request: the columns of `kubectl get csr`, and the contents of the PKCS#10 request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestRow {
    name: String,
    age: String,
    signer_name: String,
    requestor: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    requestor_uid: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    requestor_groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    requestor_extra: BTreeMap<String, Vec<String>>,
    requested_duration: String,
    condition: String,
    usages: Vec<String>,
    /// Some signers interpret annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    /// The PKCS#10 request, or its parse error.
    #[serde(flatten)]
    asks: RequestedContent,
    /// Parts that `asks` does not show, and that another signer may copy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also_asks_for: Vec<String>,
    /// Parts in which another signer may read more than is shown.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    not_shown: BTreeSet<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    asks_for_authority: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    messages: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum RequestedContent {
    #[serde(rename_all = "camelCase")]
    Request {
        subject: String,
        alt_names: Vec<String>,
        key: String,
    },
    Unreadable(String),
}

impl RequestRow {
    fn of(request: &CertificateSigningRequest, now: UnixTime) -> Self {
        let spec = &request.spec;
        let seconds = |timestamp: Timestamp| u64::try_from(timestamp.as_second()).unwrap_or_default();
        let created = request.metadata.creation_timestamp.as_ref().map(|time| seconds(time.0));
        let read = CertificateRequest::from_pem(&spec.request.0);
        let UnshownContents { also, not_shown, asks_for_authority } =
            UnshownContents::of(&spec.request.0, read.as_ref().ok());
        let annotations = request.metadata.annotations.clone().unwrap_or_default();
        let is_annotated = annotations.get(IS_CA).is_some_and(|value| value == "true");
        let asks = match read {
            Ok(request) => RequestedContent::Request {
                subject: request.subject().to_string(),
                alt_names: in_words(request.alt_names()),
                key: request.public_key().to_string(),
            },
            Err(error) => RequestedContent::Unreadable(error.to_string()),
        };
        let duration = spec.expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let message = |condition: &CertificateSigningRequestCondition| {
            let text = [&condition.reason, &condition.message];
            let text: Vec<&str> = text.into_iter().flatten().map(String::as_str).collect();
            format!("{}: {}", condition.type_, text.join(": "))
        };
        Self {
            name: name(request).to_owned(),
            age: created.map_or("<unknown>".to_owned(), |created| age(now.as_secs().saturating_sub(created))),
            signer_name: spec.signer_name.clone(),
            requestor: spec.username.clone().unwrap_or_default(),
            requestor_uid: spec.uid.clone().filter(|uid| !uid.is_empty()),
            requestor_groups: spec.groups.clone().unwrap_or_default(),
            requestor_extra: spec.extra.clone().unwrap_or_default(),
            requested_duration: duration.map_or(NONE.to_owned(), age),
            condition: condition(request),
            usages: spec.usages.clone().unwrap_or_default(),
            annotations,
            asks,
            also_asks_for: also,
            not_shown,
            asks_for_authority: asks_for_authority || is_annotated,
            messages: conditions(request).map(message).collect(),
        }
    }

    /// The columns of `kubectl get csr`.
    // kubernetes: pkg/printers/internalversion/printers.go, printCertificateSigningRequest
    fn cells(&self) -> [String; 6] {
        [&self.name, &self.age, &self.signer_name, &self.requestor, &self.requested_duration, &self.condition]
            .map(Clone::clone)
    }
}

const HEADING: [&str; 6] = ["NAME", "AGE", "SIGNERNAME", "REQUESTOR", "REQUESTEDDURATION", "CONDITION"];

fn name(request: &CertificateSigningRequest) -> &str {
    request.metadata.name.as_deref().unwrap_or_default()
}

fn conditions(
    request: &CertificateSigningRequest,
) -> impl Iterator<Item = &CertificateSigningRequestCondition> {
    request.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    conditions(request).any(|condition| condition.type_ == kind)
}

/// The certificate, once issued.
fn issued(request: &CertificateSigningRequest) -> Option<&[u8]> {
    let ByteString(certificate) = request.status.as_ref()?.certificate.as_ref()?;
    Some(certificate.as_slice()).filter(|certificate| !certificate.is_empty())
}

// kubernetes: pkg/printers/internalversion/printers.go, extractCSRStatus
fn condition(request: &CertificateSigningRequest) -> String {
    let decided = match (has(request, "Denied"), has(request, "Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    };
    let failed = has(request, "Failed").then_some("Failed");
    let issued = issued(request).map(|_| "Issued");
    [Some(decided), failed, issued].into_iter().flatten().collect::<Vec<_>>().join(",")
}

/// The name of a request, validated as a path segment.
#[derive(Debug, Clone)]
struct RequestName {
    name: String,
    segment: String,
}

impl RequestName {
    fn parse(name: &str) -> Result<Self, CommandError> {
        let segment = path_segment(name).map_err(|error| CommandError::Usage(error.to_string()))?;
        Ok(Self { name: name.to_owned(), segment })
    }

    /// Fails if the API server returned an object of another name.
    // threat: object-name-escape
    fn check(&self, answer: CertificateSigningRequest) -> Result<CertificateSigningRequest, CommandError> {
        if name(&answer) == self.name {
            return Ok(answer);
        }
        let problem = format!("the API server answered with certificatesigningrequest {:?}", name(&answer));
        Err(CommandError::about(format!("{:?}", self.name), problem))
    }
}

/// Reads one request.
async fn read(
    cluster: &ClusterClient,
    api: &Api<CertificateSigningRequest>,
    name: &RequestName,
) -> Result<CertificateSigningRequest, CommandError> {
    let doing = format!("read certificate signing request {}", name.name);
    name.check(cluster.ask(&doing, api.get(&name.segment)).await.map_err(CommandError::Failed)?)
}

/// Runs a command against a cluster.
fn with_cluster<T>(
    flags: &ClusterFlags,
    command: impl AsyncFnOnce(&ClusterClient, Api<CertificateSigningRequest>) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let failed = |error: &dyn std::fmt::Display| CommandError::Failed(error.to_string());
    let runtime = runtime().map_err(|error| failed(&error))?;
    runtime.block_on(async {
        let cluster = flags.connect().await.map_err(|error| failed(&error))?;
        let api = Api::all(cluster.client.clone());
        command(&cluster, api).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn with(conditions: &[&str], certificate: &str) -> CertificateSigningRequest {
        let conditions: Vec<Value> =
            conditions.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"request": "", "signerName": "example.com/a"},
            "status": {"conditions": conditions, "certificate": certificate},
        }))
        .unwrap()
    }

    #[test]
    fn conditions_read_as_kubectl_shows_them() {
        let cases: [(&[&str], &str, &str); 7] = [
            (&[], "", "Pending"),
            (&["Approved"], "", "Approved"),
            (&["Approved"], "YQ==", "Approved,Issued"),
            (&["Failed", "Approved"], "", "Approved,Failed"),
            (&["Denied"], "", "Denied"),
            (&["Approved", "Denied"], "", "Denied"),
            (&["Failed"], "", "Pending,Failed"),
        ];
        for (conditions, certificate, expected) in cases {
            assert_eq!(condition(&with(conditions, certificate)), expected, "{conditions:?}");
        }
    }
}
