//! The flags of client certificates, which the exec stanza of a kubeconfig has too.

use std::time::Duration;

use clap::Args;
use portcullis_pki::issuance::profile::KUBE_APISERVER_CLIENT;

use super::LoginError;
use crate::certs::flags::life;
use crate::token::duration;

/// A day: stolen keys and removed groups count no longer, and an approver is asked once a day.
const DEFAULT_DURATION: Duration = Duration::from_hours(24);
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(5);
// kubernetes: pkg/apis/certificates/validation/validation.go, validateCertificateSigningRequest
const MIN_DURATION: Duration = Duration::from_mins(10);

/// A client certificate in place of the token.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(in crate::login) struct CertificateFlags {
    /// Use a client certificate for the same user instead of the token: create a CertificateSigningRequest with the
    /// token, wait for approval, and cache the certificate with its key.
    #[arg(long, help_heading = "Client certificate")]
    pub(super) client_certificate: bool,
    /// The signer of the client certificate.
    #[arg(
        long,
        value_name = "SIGNER",
        default_value = KUBE_APISERVER_CLIENT,
        requires = "client_certificate",
        help_heading = "Client certificate"
    )]
    signer_name: String,
    /// The validity to request, at least 10m; the signer may reduce it.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = life,
        default_value = "24h",
        requires = "client_certificate",
        help_heading = "Client certificate"
    )]
    certificate_duration: Duration,
    /// How long to wait for the client certificate; the next command goes on with the same request.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration,
        default_value = "5m",
        requires = "client_certificate",
        help_heading = "Client certificate"
    )]
    certificate_timeout: Duration,
}

/// The validated settings of a client certificate.
#[derive(Debug, Clone)]
pub struct CertificateSettings {
    pub(in crate::login) signer_name: String,
    pub(in crate::login) expiration_seconds: i32,
    pub(in crate::login) timeout: Duration,
}

impl CertificateFlags {
    /// The settings; `None`: the token is the credential.
    pub(super) fn settings(&self) -> Result<Option<CertificateSettings>, LoginError> {
        if !self.client_certificate {
            return Ok(None);
        }
        let problem = |problem: &str| Err(LoginError::usage(&format!("--certificate-duration: {problem}")));
        if self.certificate_duration < MIN_DURATION {
            return problem("must be at least 10m, the least that Kubernetes accepts");
        }
        let Ok(expiration_seconds) = i32::try_from(self.certificate_duration.as_secs()) else {
            return problem("must be at most 68 years");
        };
        Ok(Some(CertificateSettings {
            signer_name: self.signer_name.clone(),
            expiration_seconds,
            timeout: self.certificate_timeout,
        }))
    }

    /// Replaces the flags by those that were given to `login`.
    pub(super) fn with_login_of(&mut self, given: &Self) {
        self.client_certificate |= given.client_certificate;
        if given.signer_name != KUBE_APISERVER_CLIENT {
            self.signer_name.clone_from(&given.signer_name);
        }
        if given.certificate_duration != DEFAULT_DURATION {
            self.certificate_duration = given.certificate_duration;
        }
        if given.certificate_timeout != DEFAULT_TIMEOUT {
            self.certificate_timeout = given.certificate_timeout;
        }
    }

    /// The arguments with these flags.
    pub(super) fn arguments(&self) -> Vec<String> {
        if !self.client_certificate {
            return Vec::new();
        }
        let mut arguments = vec!["--client-certificate".to_owned()];
        if self.signer_name != KUBE_APISERVER_CLIENT {
            arguments.push(format!("--signer-name={}", self.signer_name));
        }
        if self.certificate_duration != DEFAULT_DURATION {
            arguments.push(format!("--certificate-duration={}s", self.certificate_duration.as_secs()));
        }
        if self.certificate_timeout != DEFAULT_TIMEOUT {
            arguments.push(format!("--certificate-timeout={}ms", self.certificate_timeout.as_millis()));
        }
        arguments
    }
}
