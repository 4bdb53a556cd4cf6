//! Waits until a request is signed, denied, failed or deleted.

use std::pin::pin;

use futures_util::StreamExt as _;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Error, watch_object};

use super::super::super::cluster::ClusterClient;
use super::super::progress::Spinner;
use super::{conditions, has, issued};

/// The end of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// The certificates, PEM.
    Issued(Vec<u8>),
    /// Denied or failed, with the reason.
    Never(String),
    Deleted,
}

/// The error of a watch that a retry cannot fix.
pub(super) fn refused_for_good(error: &Error) -> Option<&kube::Error> {
    match error {
        Error::InitialListFailed(error) | Error::WatchStartFailed(error) | Error::WatchFailed(error) => {
            match error {
                kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404 | 405) => Some(error),
                _ => None,
            }
        }
        Error::WatchError(_) | Error::NoResourceVersion => None,
    }
}

/// Waits for the end of the request with this name and UID. Fails if the watch fails.
// client-go: util/certificate/csr/csr.go, WaitForCertificate
pub(crate) async fn outcome(
    cluster: &ClusterClient,
    api: Api<CertificateSigningRequest>,
    name: &str,
    uid: Option<&str>,
    spinner: &Spinner,
) -> Result<RequestOutcome, String> {
    let mut changes = pin!(watch_object(api, &selector_value(name)).default_backoff());
    while let Some(change) = changes.next().await {
        let request = match change {
            Ok(request) => request,
            Err(error) => {
                if let Some(error) = refused_for_good(&error) {
                    return Err(cluster.refusal(&format!("watch {name}"), error));
                }
                spinner.set_message(&format!("{error}; retrying"));
                continue;
            }
        };
        let is_it = |request: &CertificateSigningRequest| {
            super::name(request) == name && (uid.is_none() || request.metadata.uid.as_deref() == uid)
        };
        let Some(request) = request.filter(is_it) else {
            return Ok(RequestOutcome::Deleted);
        };
        if let Some(outcome) = ended(&request) {
            return Ok(outcome);
        }
        spinner.set_message(&if has(&request, "Approved") {
            format!("{name} is approved; waiting for {} to sign it", request.spec.signer_name)
        } else {
            format!("waiting for approval of {name}")
        });
    }
    Err(format!("the watch of {name} ended"))
}

/// Escapes a value for a field selector.
// apimachinery: pkg/fields/selector.go, EscapeValue
fn selector_value(value: &str) -> String {
    let escaped = |c| if matches!(c, '\\' | ',' | '=') { vec!['\\', c] } else { vec![c] };
    value.chars().flat_map(escaped).collect()
}

/// The outcome, if the request has ended.
fn ended(request: &CertificateSigningRequest) -> Option<RequestOutcome> {
    let found = |kind: &str| conditions(request).find(|condition| condition.type_ == kind);
    for (kind, words) in [("Denied", "the request was denied"), ("Failed", "the signer refused the request")]
    {
        if let Some(condition) = found(kind) {
            let told = [&condition.reason, &condition.message].into_iter().flatten();
            let told: Vec<&str> = told.map(String::as_str).filter(|text| !text.is_empty()).collect();
            return Some(RequestOutcome::Never(format!("{words}: {}", told.join(": "))));
        }
    }
    // Ignores a certificate on an unapproved request: no signer issued it for this request.
    issued(request)
        .filter(|_| has(request, "Approved"))
        .map(|certificate| RequestOutcome::Issued(certificate.to_vec()))
}
