//! Certificate requests (RFC 2986), encoded byte by byte like the certificates of `pki.rs`: unusual subjects, string
//! types, names and extensions, and mismatched signatures. The builder checks nothing.

use std::net::IpAddr;
use std::sync::Arc;

use crate::pki::{
    CN, Key, KeyKind, O, SigAlg, attribute, bits, boolean, integer, octets, oid, pem, seq, set, string, tlv,
};

/// pkcs-9-at-extensionRequest.
const EXTENSION_REQUEST: &str = "1.2.840.113549.1.9.14";
const SUBJECT_ALT_NAME: &str = "2.5.29.17";

/// A builder of a request.
#[derive(Debug, Clone)]
pub struct Csr {
    rdns: Vec<Vec<u8>>,
    raw_subject: Option<Vec<u8>>,
    key: Arc<Key>,
    raw_spki: Option<Vec<u8>>,
    sans: Vec<Vec<u8>>,
    critical_sans: bool,
    extensions: Vec<Vec<u8>>,
    attributes: Vec<Vec<u8>>,
    version: u64,
    algorithm: Option<SigAlg>,
    corrupt: bool,
}

impl Default for Csr {
    fn default() -> Self {
        Self::new()
    }
}

impl Csr {
    /// An empty request with a P-256 key that all such requests share.
    pub fn new() -> Self {
        Self {
            rdns: Vec::new(),
            raw_subject: None,
            key: Key::pooled(KeyKind::P256, 100),
            raw_spki: None,
            sans: Vec::new(),
            critical_sans: false,
            extensions: Vec::new(),
            attributes: Vec::new(),
            version: 0,
            algorithm: None,
            corrupt: false,
        }
    }

    /// A kubelet's request for its client certificate.
    pub fn node(name: &str) -> Self {
        Self::new().org("system:nodes").cn(&format!("system:node:{name}"))
    }

    /// A common name.
    pub fn cn(self, value: &str) -> Self {
        self.text(CN, value)
    }

    /// An organization.
    pub fn org(self, value: &str) -> Self {
        self.text(O, value)
    }

    /// An attribute of the subject in UTF-8.
    pub fn text(self, kind: &str, value: &str) -> Self {
        self.attr(kind, string::UTF8, value.as_bytes())
    }

    /// One more RDN with one attribute.
    pub fn attr(self, kind: &str, tag: u8, value: &[u8]) -> Self {
        self.rdn(&[attribute(kind, tag, value)])
    }

    /// One more RDN with these attributes in this order (see [`attribute`]).
    pub fn rdn(mut self, attributes: &[Vec<u8>]) -> Self {
        self.rdns.push(set(attributes));
        self
    }

    /// The whole encoded Name.
    pub fn raw_subject(mut self, name: Vec<u8>) -> Self {
        self.raw_subject = Some(name);
        self
    }

    /// A key of this kind, which such requests share.
    pub fn key(self, kind: KeyKind) -> Self {
        self.with_key(Key::pooled(kind, 100))
    }

    /// This key.
    pub fn with_key(mut self, key: Arc<Key>) -> Self {
        self.key = key;
        self
    }

    /// The encoded `SubjectPublicKeyInfo`, in place of the key's own.
    pub fn raw_spki(mut self, spki: Vec<u8>) -> Self {
        self.raw_spki = Some(spki);
        self
    }

    /// The signature algorithm, or only its label if the key cannot sign with it.
    pub fn sig(mut self, algorithm: SigAlg) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// A signature over other bytes.
    pub fn corrupt_signature(mut self) -> Self {
        self.corrupt = true;
        self
    }

    /// The version field; 0 is version 1.
    pub fn version(mut self, version: u64) -> Self {
        self.version = version;
        self
    }

    /// A general name by its context tag (RFC 5280 section 4.2.1.6).
    pub fn san(mut self, tag: u8, value: &[u8]) -> Self {
        self.sans.push(tlv(0x80 | tag, value));
        self
    }

    /// An encoded general name.
    pub fn raw_san(mut self, name: Vec<u8>) -> Self {
        self.sans.push(name);
        self
    }

    /// An email address.
    pub fn email(self, value: &str) -> Self {
        self.san(1, value.as_bytes())
    }

    /// A DNS name.
    pub fn dns(self, value: &str) -> Self {
        self.san(2, value.as_bytes())
    }

    /// A URI.
    pub fn uri(self, value: &str) -> Self {
        self.san(6, value.as_bytes())
    }

    /// An IP address.
    pub fn ip(self, value: &str) -> Self {
        match value.parse().expect("an address") {
            IpAddr::V4(ip) => self.san(7, &ip.octets()),
            IpAddr::V6(ip) => self.san(7, &ip.octets()),
        }
    }

    /// Marks the alternative names as critical.
    pub fn critical_sans(mut self) -> Self {
        self.critical_sans = true;
        self
    }

    /// One more requested extension.
    pub fn extension(mut self, id: &str, critical: bool, content: &[u8]) -> Self {
        self.extensions.push(extension(id, critical, content));
        self
    }

    /// One more attribute of the request beside the extensions: its type and the content of its SET.
    pub fn attribute(mut self, kind: &str, values: &[Vec<u8>]) -> Self {
        self.attributes.push(seq(&[oid(kind), set(values)]));
        self
    }

    /// The request in DER.
    pub fn der(&self) -> Vec<u8> {
        let subject = self.raw_subject.clone().unwrap_or_else(|| seq(&self.rdns));
        let mut extensions = self.extensions.clone();
        if !self.sans.is_empty() {
            extensions.push(extension(SUBJECT_ALT_NAME, self.critical_sans, &seq(&self.sans)));
        }
        let mut attributes = self.attributes.clone();
        if !extensions.is_empty() {
            attributes.push(seq(&[oid(EXTENSION_REQUEST), set(&[seq(&extensions)])]));
        }
        let spki = self.raw_spki.clone().unwrap_or_else(|| self.key.spki());
        let info = seq(&[integer(self.version), subject, spki, tlv(0xa0, &attributes.concat())]);
        let algorithm = self.algorithm.unwrap_or_else(|| self.key.default_algorithm());
        let signed: &[u8] = if self.corrupt { b"something else" } else { &info };
        let signature = self.key.sign(algorithm, signed);
        seq(&[info, algorithm.identifier(), bits(&signature)])
    }

    /// The request in PEM.
    pub fn pem(&self) -> String {
        pem("CERTIFICATE REQUEST", &self.der())
    }
}

fn extension(id: &str, critical: bool, content: &[u8]) -> Vec<u8> {
    seq(&[oid(id), if critical { boolean(true) } else { Vec::new() }, octets(content)])
}
