//! Certificate signing requests for tests.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use kube::core::ObjectMeta;
use portcullis_pki::issuance::profile::KUBELET_CLIENT;
use rcgen::{CertificateParams, DnType, KeyPair};

use super::{Condition, Csr};

/// The parameters of a kubelet's request.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) signer: &'static str,
    pub(super) common_name: &'static str,
    pub(super) organizations: &'static [&'static str],
    pub(super) requester: &'static str,
    pub(super) usages: Vec<&'static str>,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            signer: KUBELET_CLIENT,
            common_name: "system:node:foo",
            organizations: &["system:nodes"],
            requester: "system:node:foo",
            usages: vec!["digital signature", "client auth"],
        }
    }
}

impl Wanted {
    /// The pending request.
    pub(super) fn csr(&self) -> Csr {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, self.common_name);
        for organization in self.organizations {
            params.distinguished_name.push(DnType::OrganizationName, *organization);
        }
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        Csr {
            metadata: ObjectMeta {
                name: Some("csr".to_owned()),
                resource_version: Some("7".to_owned()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(request.into_bytes()),
                signer_name: self.signer.to_owned(),
                username: Some(self.requester.to_owned()),
                usages: Some(self.usages.iter().map(|&usage| usage.to_owned()).collect()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        }
    }
}

/// Adds true conditions of these types to a request.
pub(super) fn decided(csr: Csr, kinds: &[&str]) -> Csr {
    kinds.iter().fold(csr, |csr, kind| {
        let condition =
            Condition { type_: (*kind).to_owned(), status: "True".to_owned(), ..Condition::default() };
        super::with_condition(csr, condition)
    })
}

/// A log writer that captures its lines.
#[derive(Clone, Default)]
pub(crate) struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
