//! The log of issued certificates, as the signing controllers use it: a certificate is in the log before the API server gets
//! it, or it is not issued, as the operator chooses.

use std::fmt;
use std::sync::Arc;

use clap::ValueEnum;
use portcullis_system::clock::UnixTime;
use portcullis_tlog::{CertificateLog, LogError};
use serde::Serialize;
use tracing::{debug, error};

use super::ControllerContext;
use super::settings::ControllerName;

/// The maximum length of a value of the details. Names of objects and accounts are shorter; a name of a user has no bound.
const MAX_DETAIL: usize = 1024;

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
    result: Result<u64, Unlogged>,
}

/// Whether a certificate may be issued.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LogVerdict {
    Issue,
    /// It may be once the log can be written again.
    Retry,
    /// It never may, for this reason, with any policy: the requester chooses the size of a certificate, and could choose not to be
    /// logged.
    Refuse(String),
}

/// Why a certificate is not in the log.
#[derive(Debug)]
enum Unlogged {
    /// The log cannot be written.
    Failed(String),
    /// The certificate is too large for it.
    TooLarge(String),
}

impl SigningLog {
    /// The log, and what happens if it cannot be written.
    pub fn new(log: Arc<CertificateLog>, policy: LogFailurePolicy) -> Self {
        Self { log, policy }
    }

    /// Appends a certificate. Blocks: it syncs files.
    pub(crate) fn append(&self, certificate: &[u8], details: &LogDetails<'_>, now: UnixTime) -> LogAttempt {
        let details = serde_json::to_string(&details.shortened()).unwrap_or_default();
        let result = self.log.append(certificate, &details, now).map_err(|error| match *error {
            LogError::TooLarge(_) => Unlogged::TooLarge(error.to_string()),
            _ => Unlogged::Failed(error.to_string()),
        });
        LogAttempt { policy: self.policy, result }
    }
}

impl LogDetails<'_> {
    /// With long values cut, so that they leave room for the certificate.
    fn shortened(&self) -> LogDetails<'_> {
        LogDetails {
            cluster: shortened(self.cluster),
            signer_name: shortened(self.signer_name),
            request: shortened(self.request),
            uid: shortened(self.uid),
            requester: shortened(self.requester),
        }
    }
}

fn shortened(value: &str) -> &str {
    value.get(..value.floor_char_boundary(MAX_DETAIL)).unwrap_or(value)
}

impl LogAttempt {
    /// Whether the certificate may be issued; logs that the log cannot be written once, until that has ended.
    // threat: unlogged-certificate
    pub(crate) fn verdict(self, context: &ControllerContext, controller: ControllerName) -> LogVerdict {
        let (cluster, alias) = (&*context.cluster, controller.alias());
        let cause = format!("{alias} logs certificates");
        let problem = match self.result {
            Ok(_) => {
                context.problems.ends(&cause);
                return LogVerdict::Issue;
            }
            Err(Unlogged::TooLarge(problem)) => return LogVerdict::Refuse(problem),
            Err(Unlogged::Failed(problem)) => problem,
        };
        context.metrics.controllers.log_errors.with_label_values(&[cluster, alias]).inc();
        let is_new = context.problems.begins(&cause);
        let text = match self.policy {
            LogFailurePolicy::Ignore => "certificates are issued without being logged",
            LogFailurePolicy::Fail => "no certificate is issued, will retry",
        };
        if is_new {
            error!(cluster, controller = alias, "{text}: certificate log: {problem}");
        } else {
            debug!(cluster, controller = alias, "certificate log: {problem}");
        }
        match self.policy {
            LogFailurePolicy::Ignore => LogVerdict::Issue,
            LogFailurePolicy::Fail => LogVerdict::Retry,
        }
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

#[cfg(test)]
mod tests {
    use portcullis_tlog::entry::LogEntry;
    use portcullis_tlog::verify::verified;
    use portcullis_tlog::{LogDirectory, certificate_log};

    use super::*;
    use crate::controllers::testing::FakeCluster;

    // The client of the context needs a runtime.
    #[tokio::test]
    async fn a_certificate_that_is_too_large_for_the_log_is_never_issued() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("log");
        certificate_log::create(&directory, "example.com/log").unwrap();
        let details =
            LogDetails { cluster: "c", signer_name: "s", request: "r", uid: "u", requester: "alice" };
        let context = FakeCluster::new().context();
        for policy in [LogFailurePolicy::Ignore, LogFailurePolicy::Fail] {
            let log = SigningLog::new(Arc::new(CertificateLog::open(&directory).unwrap()), policy);
            let verdict = |certificate: &[u8]| {
                let attempt = log.append(certificate, &details, UnixTime::ZERO);
                attempt.verdict(&context, ControllerName::CsrSigning)
            };
            let is_refused = || {
                let large = verdict(&vec![0; 65_536]);
                matches!(large, LogVerdict::Refuse(problem) if problem.contains("more than the 65535 of an entry"))
            };
            assert_eq!(verdict(b"small"), LogVerdict::Issue);
            assert!(is_refused());
            // On a full disk the policy decides.
            std::fs::rename(directory.join("tile"), directory.join("gone")).unwrap();
            let expected =
                if policy == LogFailurePolicy::Ignore { LogVerdict::Issue } else { LogVerdict::Retry };
            assert_eq!(verdict(b"small"), expected);
            assert!(is_refused());
            std::fs::remove_dir_all(directory.join("tile")).ok();
            std::fs::rename(directory.join("gone"), directory.join("tile")).unwrap();
        }
    }

    #[test]
    fn long_names_are_cut_and_the_others_kept() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("log");
        certificate_log::create(&directory, "example.com/log").unwrap();
        let log =
            SigningLog::new(Arc::new(CertificateLog::open(&directory).unwrap()), LogFailurePolicy::Fail);
        let name = format!("a{}", "ä".repeat(40_000));
        let details = LogDetails { cluster: "c", signer_name: "s", request: "r", uid: "u", requester: &name };
        log.append(&vec![0; 30_000], &details, UnixTime::ZERO).result.unwrap();
        let mut found = Vec::new();
        verified(&LogDirectory::new(&directory), log.log.verifier(), |_, entry| {
            found.push(LogEntry::decode(entry).unwrap().details);
            Ok(())
        })
        .unwrap();
        let requester = format!("a{}", "ä".repeat(511));
        let expected = format!(
            r#"{{"cluster":"c","signerName":"s","request":"r","uid":"u","requester":"{requester}"}}"#
        );
        assert_eq!(found, [expected]);
    }
}
