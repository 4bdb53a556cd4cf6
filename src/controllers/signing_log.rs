//! The log of issued certificates, as the signing controllers use it: a certificate is in the log before the API server gets
//! it, or it is not issued, as the operator chooses.

use std::fmt;
use std::sync::Arc;

use clap::ValueEnum;
use portcullis_system::clock::UnixTime;
use portcullis_tlog::CertificateLog;
use serde::Serialize;
use tracing::{debug, error};

use super::ControllerContext;
use super::settings::ControllerName;

/// What happens to a certificate that cannot be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum LogFailurePolicy {
    /// It is not issued.
    Fail,
    /// It is issued.
    Ignore,
}

/// The log of a cluster's signers.
#[derive(Clone)]
pub struct SigningLog {
    log: Arc<CertificateLog>,
    policy: LogFailurePolicy,
}

/// What the log has of a certificate beside itself. Names are untrusted text.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LogDetails<'a> {
    /// The cluster.
    pub(crate) cluster: &'a str,
    /// The name of the signer.
    pub(crate) signer_name: &'a str,
    /// The name and the UID of the request.
    pub(crate) request: &'a str,
    pub(crate) uid: &'a str,
    /// The user whose request it is, or the service account of the pod.
    pub(crate) requester: &'a str,
}

/// The attempt to log a certificate.
#[must_use = "the certificate may not be issued"]
#[derive(Debug)]
pub(crate) struct LogAttempt {
    policy: LogFailurePolicy,
    result: Result<u64, String>,
}

impl SigningLog {
    /// The log, and what happens if it cannot be written.
    pub fn new(log: Arc<CertificateLog>, policy: LogFailurePolicy) -> Self {
        Self { log, policy }
    }

    /// Appends a certificate. Blocks: it syncs files.
    pub(crate) fn append(&self, certificate: &[u8], details: &LogDetails<'_>, now: UnixTime) -> LogAttempt {
        let details = serde_json::to_string(details).unwrap_or_default();
        let result = self.log.append(certificate, &details, now).map_err(|error| error.to_string());
        LogAttempt { policy: self.policy, result }
    }
}

impl LogAttempt {
    /// Whether the certificate may be issued; logs a failure once, until it has ended.
    // threat: unlogged-certificate
    pub(crate) fn permits(self, context: &ControllerContext, controller: ControllerName) -> bool {
        let (cluster, alias) = (&*context.cluster, controller.alias());
        let cause = format!("{alias} logs certificates");
        let Err(problem) = self.result else {
            context.problems.ends(&cause);
            return true;
        };
        context.metrics.controllers.log_errors.with_label_values(&[cluster, alias]).inc();
        let is_new = context.problems.begins(&cause);
        match self.policy {
            LogFailurePolicy::Fail if is_new => {
                error!(
                    cluster,
                    controller = alias,
                    "no certificate is issued, will retry: certificate log: {problem}"
                );
            }
            LogFailurePolicy::Ignore if is_new => {
                error!(
                    cluster,
                    controller = alias,
                    "certificates are issued without being logged: certificate log: {problem}"
                );
            }
            LogFailurePolicy::Fail | LogFailurePolicy::Ignore => {
                debug!(cluster, controller = alias, "certificate log: {problem}");
            }
        }
        self.policy == LogFailurePolicy::Ignore
    }
}

impl PartialEq for SigningLog {
    fn eq(&self, other: &Self) -> bool {
        self.log.path() == other.log.path()
            && self.log.verifier() == other.log.verifier()
            && self.policy == other.policy
    }
}

impl Eq for SigningLog {}

impl fmt::Debug for SigningLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningLog").field("path", &self.log.path()).finish_non_exhaustive()
    }
}
