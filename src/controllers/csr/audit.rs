//! The audit trail of certificates: a log line before each write, and one with its result.
//!
//! The first line is on standard error before the certificate is sent to the API server, so that every certificate has
//! one, however the process ends. After a line `signing` without a second one, the certificate may be in the API.

use aws_lc_rs::digest;
use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use kube::ResourceExt as _;
use portcullis_go::hex::hex;
use portcullis_go::time;
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::issue::IssuedCertificate;
use tracing::{error, info, warn};

use super::{Csr, WriteOutcome, usages};

/// The audit record of a certificate that is being written.
pub(super) struct AuditLine<'a> {
    cluster: &'a str,
    csr: &'a Csr,
    issued: &'a IssuedCertificate,
    is_finished: bool,
}

// threat: unlogged-certificate
impl<'a> AuditLine<'a> {
    /// Writes the first line.
    pub(super) fn begin(
        cluster: &'a str,
        csr: &'a Csr,
        issued: &'a IssuedCertificate,
        names: &AltNames,
    ) -> Self {
        let line = Self { cluster, csr, issued, is_finished: false };
        info!(
            cluster,
            csr = csr.name_any(),
            uid = csr.uid().unwrap_or_default(),
            signer = csr.spec.signer_name,
            requester = requester(&csr.spec),
            subject = issued.subject().to_string(),
            names = listed(names),
            usages = usages(&csr.spec).join(", "),
            serial = issued.serial_hex(),
            sha256 = hex(digest::digest(&digest::SHA256, issued.der()).as_ref()),
            not_after = time::format_since_epoch(issued.not_after()),
            "signing"
        );
        line
    }

    /// Writes the second line.
    pub(super) fn end(mut self, written: WriteOutcome) {
        self.is_finished = true;
        let Self { cluster, csr, issued, .. } = &self;
        match written {
            WriteOutcome::Yes => info!(
                cluster,
                csr = csr.name_any(),
                uid = csr.uid().unwrap_or_default(),
                signer = csr.spec.signer_name,
                requester = requester(&csr.spec),
                subject = issued.subject().to_string(),
                serial = issued.serial_hex(),
                not_after = time::format_since_epoch(issued.not_after()),
                "certificate issued"
            ),
            WriteOutcome::No => warn!(
                cluster,
                csr = csr.name_any(),
                signer = csr.spec.signer_name,
                serial = issued.serial_hex(),
                "certificate not issued: it was not written to the request"
            ),
            WriteOutcome::Unknown => self.unknown("the API server has not answered"),
        }
    }

    fn unknown(&self, why: &str) {
        error!(
            cluster = self.cluster,
            csr = self.csr.name_any(),
            signer = self.csr.spec.signer_name,
            serial = self.issued.serial_hex(),
            "certificate may be issued, look at the request: {why}"
        );
    }
}

impl Drop for AuditLine<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.unknown("the controller stopped before the API server answered");
        }
    }
}

fn requester(spec: &CertificateSigningRequestSpec) -> &str {
    spec.username.as_deref().unwrap_or_default()
}

/// Alternative names, each with its kind.
fn listed(names: &AltNames) -> String {
    let AltNames { dns, emails, ips, uris } = names;
    let dns = dns.iter().map(|name| format!("DNS:{name}"));
    let emails = emails.iter().map(|name| format!("email:{name}"));
    let ips = ips.iter().map(|ip| format!("IP:{ip}"));
    let uris = uris.iter().map(|uri| format!("URI:{uri}"));
    dns.chain(emails).chain(ips).chain(uris).collect::<Vec<_>>().join(", ")
}
