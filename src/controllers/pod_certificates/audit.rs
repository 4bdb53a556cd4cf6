//! The audit trail of the certificates of pods: a log line before each write, and one with its result, as for certificate
//! signing requests.

use aws_lc_rs::digest;
use portcullis_go::hex::hex;
use portcullis_go::time::format_since_epoch;
use tracing::{error, info, warn};

use super::decision::PodCertificate;
use super::request::PodRequest;
use crate::controllers::csr::WriteOutcome;

/// The audit record of a certificate that is being written.
pub(super) struct PodAuditLine<'a> {
    cluster: &'a str,
    request: &'a PodRequest,
    certificate: &'a PodCertificate,
    is_finished: bool,
}

// threat: unlogged-certificate
impl<'a> PodAuditLine<'a> {
    /// Writes the first line.
    pub(super) fn begin(cluster: &'a str, request: &'a PodRequest, certificate: &'a PodCertificate) -> Self {
        let PodCertificate { issued, names, .. } = certificate;
        let spec = &request.spec;
        let names = names.alt_names();
        let dns = names.dns.iter().map(|name| format!("DNS:{name}"));
        let uris = names.uris.iter().map(|uri| format!("URI:{uri}"));
        info!(
            cluster,
            request = item(request),
            uid = request.metadata.uid,
            signer = spec.signer_name,
            pod = spec.pod_name,
            pod_uid = spec.pod_uid,
            service_account = spec.service_account_name,
            node = spec.node_name,
            subject = issued.subject().to_string(),
            names = dns.chain(uris).collect::<Vec<_>>().join(", "),
            serial = issued.serial_hex(),
            sha256 = hex(digest::digest(&digest::SHA256, issued.der()).as_ref()),
            not_after = format_since_epoch(issued.not_after()),
            "signing"
        );
        Self { cluster, request, certificate, is_finished: false }
    }

    /// Writes the second line.
    pub(super) fn end(mut self, written: WriteOutcome) {
        self.is_finished = true;
        let Self { cluster, request, certificate, .. } = &self;
        let (signer, issued) = (&*request.spec.signer_name, &certificate.issued);
        match written {
            WriteOutcome::Yes => info!(
                cluster,
                request = item(request),
                signer,
                pod = request.spec.pod_name,
                subject = issued.subject().to_string(),
                serial = issued.serial_hex(),
                not_after = format_since_epoch(issued.not_after()),
                "certificate issued"
            ),
            WriteOutcome::No => warn!(
                cluster,
                request = item(request),
                signer,
                serial = issued.serial_hex(),
                "certificate not issued: it was not written to the request"
            ),
            WriteOutcome::Unknown => self.unknown("the API server has not answered"),
        }
    }

    fn unknown(&self, why: &str) {
        error!(
            cluster = self.cluster,
            request = item(self.request),
            signer = self.request.spec.signer_name,
            serial = self.certificate.issued.serial_hex(),
            "certificate may be issued, look at the request: {why}"
        );
    }
}

impl Drop for PodAuditLine<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.unknown("the controller stopped before the API server answered");
        }
    }
}

/// The namespace and the name.
fn item(request: &PodRequest) -> String {
    format!("{}/{}", request.metadata.namespace, request.metadata.name)
}
