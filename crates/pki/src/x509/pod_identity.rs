//! The X.509 extension PodIdentity: the pod, the service account and the node that a client certificate is bound to.
//!
//! The form is that of KEP-4317 (kubernetes/enhancements, `keps/sig-auth/4317-pod-certificates/README.md`), where Go's
//! `encoding/asn1` defines the encoding. No release of Kubernetes has code for it: the signer
//! `kubernetes.io/kube-apiserver-client-pod` is unimplemented in 1.37. Stricter than Go in one point: elements after the
//! last known one are an error. Must never yield an identity with a part that is empty or could be read in two ways.

use portcullis_kubernetes::names::{is_dns_label, is_dns_subdomain};
use portcullis_kubernetes::service_account;
use x509_cert::der::asn1::Utf8StringRef;
use x509_cert::der::{self, Encode as _, Sequence};

use super::certificate::Certificate;
use super::der::{DerReader, tag};

/// 1.3.6.1.4.1.57683.1, below the number that is registered for the Kubernetes project.
pub const POD_IDENTITY: &str = "1.3.6.1.4.1.57683.1";
/// The content of the encoded identifier.
pub(super) const POD_IDENTITY_OID: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x01];

/// The maximum length of a UID.
// kubernetes: pkg/apis/certificates/validation/validation.go, ValidatePodCertificateRequest
const MAX_UID: usize = 128;

/// The content of the extension.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodIdentity {
    /// The namespace of the pod and of its service account.
    pub namespace: String,
    /// The UID of the namespace.
    pub namespace_uid: String,
    /// The name of the service account.
    pub service_account_name: String,
    /// The UID of the service account.
    pub service_account_uid: String,
    /// The name of the pod.
    pub pod_name: String,
    /// The UID of the pod.
    pub pod_uid: String,
    /// The name of the node on which the pod runs.
    pub node_name: String,
    /// The UID of the node.
    pub node_uid: String,
}

/// Why a certificate has no usable pod identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodIdentityError {
    /// There is no extension.
    #[error("the certificate has no PodIdentity extension ({POD_IDENTITY})")]
    Absent,
    /// The extension is not the encoding of an identity.
    #[error("the PodIdentity extension does not parse: {0}")]
    Malformed(&'static str),
    /// A part is empty, or is not a name or a UID of Kubernetes.
    #[error("the PodIdentity extension has an invalid {0}")]
    Part(&'static str),
    /// The subject is not that of the service account.
    #[error(
        "the subject of the certificate is not that of the service account in the PodIdentity extension: {0}"
    )]
    Subject(&'static str),
    /// The certificate has alternative names.
    #[error("a certificate with a PodIdentity extension must not have a subjectAltName")]
    AlternativeNames,
}

// keps/sig-auth/4317-pod-certificates/README.md, "X.509 PodIdentity Extension"
#[derive(Sequence)]
struct PodIdentitySequence<'a> {
    #[asn1(context_specific = "0", tag_mode = "IMPLICIT")]
    namespace: Utf8StringRef<'a>,
    #[asn1(context_specific = "1", tag_mode = "IMPLICIT")]
    namespace_uid: Utf8StringRef<'a>,
    #[asn1(context_specific = "2", tag_mode = "IMPLICIT")]
    service_account_name: Utf8StringRef<'a>,
    #[asn1(context_specific = "3", tag_mode = "IMPLICIT")]
    service_account_uid: Utf8StringRef<'a>,
    #[asn1(context_specific = "4", tag_mode = "IMPLICIT")]
    pod_name: Utf8StringRef<'a>,
    #[asn1(context_specific = "5", tag_mode = "IMPLICIT")]
    pod_uid: Utf8StringRef<'a>,
    #[asn1(context_specific = "6", tag_mode = "IMPLICIT")]
    node_name: Utf8StringRef<'a>,
    #[asn1(context_specific = "7", tag_mode = "IMPLICIT")]
    node_uid: Utf8StringRef<'a>,
}

impl PodIdentity {
    /// Decodes the extension as Go's `encoding/asn1` does. The parts may be empty; [`Self::check`] refuses that.
    pub fn parse(content: &[u8]) -> Result<Self, PodIdentityError> {
        const MALFORMED: PodIdentityError =
            PodIdentityError::Malformed("it is not the SEQUENCE of eight UTF8Strings");
        let mut outer = DerReader::new(content);
        let mut fields = outer.enter(tag::SEQUENCE).ok_or(MALFORMED)?;
        if !outer.is_empty() {
            return Err(PodIdentityError::Malformed("there is data after it"));
        }
        let mut identity = Self::default();
        for (number, part) in (0..).zip(identity.parts_mut()) {
            let octets = fields.read(tag::context(number)).ok_or(MALFORMED)?;
            let text =
                std::str::from_utf8(octets).map_err(|_| PodIdentityError::Malformed("it is not UTF-8"))?;
            text.clone_into(part);
        }
        // threat: pod-identity-extension
        if !fields.is_empty() {
            return Err(PodIdentityError::Malformed("it has more elements than are known"));
        }
        Ok(identity)
    }

    /// Encodes the extension.
    pub fn to_der(&self) -> Result<Vec<u8>, der::Error> {
        PodIdentitySequence {
            namespace: Utf8StringRef::new(&self.namespace)?,
            namespace_uid: Utf8StringRef::new(&self.namespace_uid)?,
            service_account_name: Utf8StringRef::new(&self.service_account_name)?,
            service_account_uid: Utf8StringRef::new(&self.service_account_uid)?,
            pod_name: Utf8StringRef::new(&self.pod_name)?,
            pod_uid: Utf8StringRef::new(&self.pod_uid)?,
            node_name: Utf8StringRef::new(&self.node_name)?,
            node_uid: Utf8StringRef::new(&self.node_uid)?,
        }
        .to_der()
    }

    /// Checks that each part is a name or a UID of Kubernetes.
    // threat: pod-identity-extension
    pub fn check(&self) -> Result<(), PodIdentityError> {
        let parts = [
            ("namespace", is_dns_label(&self.namespace)),
            ("namespaceUID", is_uid(&self.namespace_uid)),
            ("serviceAccountName", is_dns_subdomain(&self.service_account_name)),
            ("serviceAccountUID", is_uid(&self.service_account_uid)),
            ("podName", is_dns_subdomain(&self.pod_name)),
            ("podUID", is_uid(&self.pod_uid)),
            ("nodeName", is_dns_subdomain(&self.node_name)),
            ("nodeUID", is_uid(&self.node_uid)),
        ];
        parts
            .iter()
            .find(|(_, is_valid)| !is_valid)
            .map_or(Ok(()), |(part, _)| Err(PodIdentityError::Part(part)))
    }

    /// The user name of the service account: the common name of the certificate.
    pub fn user_name(&self) -> String {
        service_account::name(&self.namespace, &self.service_account_name)
    }

    /// The groups of the service account: the organizations of the certificate.
    pub fn groups(&self) -> Vec<String> {
        service_account::groups(&self.namespace)
    }

    /// The identity in a certificate of a pod, with all checks of its form. Who signed the certificate is the caller's concern.
    // threat: pod-identity-extension
    pub fn of_certificate(certificate: &Certificate) -> Result<Self, PodIdentityError> {
        let extensions = &certificate.extensions;
        let identity = Self::parse(extensions.pod_identity.as_deref().ok_or(PodIdentityError::Absent)?)?;
        identity.check()?;
        identity.check_subject(certificate)?;
        if extensions.alternative_names.is_some() {
            return Err(PodIdentityError::AlternativeNames);
        }
        Ok(identity)
    }

    /// Checks that the subject has the name and the groups of the service account, and nothing else.
    fn check_subject(&self, certificate: &Certificate) -> Result<(), PodIdentityError> {
        let problem = |problem| Err(PodIdentityError::Subject(problem));
        let name = &certificate.subject.name;
        if name.common_name != self.user_name() {
            return problem("the CommonName is another");
        }
        // DER sorts a SET.
        let sorted = |mut names: Vec<String>| {
            names.sort_unstable();
            names
        };
        let (found, expected) = (sorted(name.organization.clone()), sorted(self.groups()));
        if found != expected {
            return problem("the Organizations are not its groups");
        }
        // Also a second CommonName, of which Go reads the last one, and a UID.
        if attribute_count(&certificate.raw_subject) != Some(1 + expected.len()) {
            return problem("it has further attributes");
        }
        Ok(())
    }

    /// The parts, in the order of the encoding.
    fn parts_mut(&mut self) -> [&mut String; 8] {
        [
            &mut self.namespace,
            &mut self.namespace_uid,
            &mut self.service_account_name,
            &mut self.service_account_uid,
            &mut self.pod_name,
            &mut self.pod_uid,
            &mut self.node_name,
            &mut self.node_uid,
        ]
    }
}

/// The number of attributes in an encoded Name.
fn attribute_count(name: &[u8]) -> Option<usize> {
    let mut rdns = DerReader::new(name).enter(tag::SEQUENCE)?;
    let mut count = 0;
    while !rdns.is_empty() {
        let mut set = rdns.enter(tag::SET)?;
        while !set.is_empty() {
            set.any()?;
            count += 1;
        }
    }
    Some(count)
}

/// Whether the text can be a UID: visible ASCII, as the API server makes them.
fn is_uid(text: &str) -> bool {
    (1..=MAX_UID).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests;
