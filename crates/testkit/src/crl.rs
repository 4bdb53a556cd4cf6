//! Certificate revocation lists at the level of DER, like the certificates of [`pki`](crate::pki). The builder checks
//! nothing.

use crate::pki::{Ca, SigAlg, bits, boolean, integer, octets, oid, pem, seq, time, tlv};

/// A builder of a CRL: version 2, number 1, from 2026-01-01 to 2099-01-01.
#[derive(Debug, Clone)]
pub struct CrlBuilder {
    ca: Ca,
    issuer: Vec<u8>,
    version: Option<Vec<u8>>,
    this_update: Vec<u8>,
    next_update: Option<Vec<u8>>,
    entries: Vec<Vec<u8>>,
    empty_list: bool,
    number: Option<Vec<u8>>,
    akid: bool,
    extra: Vec<(String, bool, Vec<u8>)>,
    algorithm: Option<SigAlg>,
    outer: Option<Vec<u8>>,
    corrupt: bool,
}

fn extension(id: &str, critical: bool, content: &[u8]) -> Vec<u8> {
    seq(&[oid(id), if critical { boolean(true) } else { Vec::new() }, octets(content)])
}

/// The INTEGER of a certificate's serial number.
pub fn serial_of(certificate: &[u8]) -> Vec<u8> {
    // Certificate, TBSCertificate, then [0] version of five octets.
    let inner = content(content(certificate));
    let inner = if inner[0] == 0xa0 { &inner[2 + usize::from(inner[1])..] } else { inner };
    inner[..2 + usize::from(inner[1])].to_vec()
}

fn content(element: &[u8]) -> &[u8] {
    match element[1] {
        short @ 0..0x80 => &element[2..2 + usize::from(short)],
        long => &element[2 + usize::from(long & 0x7f)..],
    }
}

impl CrlBuilder {
    /// The empty CRL of a CA.
    pub fn new(ca: &Ca) -> Self {
        Self {
            ca: ca.clone(),
            issuer: ca.subject.clone(),
            version: Some(integer(1)),
            this_update: time(1_767_225_600),
            next_update: Some(time(crate::pki::NOT_AFTER)),
            entries: Vec::new(),
            empty_list: false,
            number: Some(integer(1)),
            akid: true,
            extra: Vec::new(),
            algorithm: None,
            outer: None,
            corrupt: false,
        }
    }

    /// Revokes a certificate.
    pub fn revoke(self, certificate: &[u8]) -> Self {
        let serial = serial_of(certificate);
        self.entry(serial, &[])
    }

    /// Revokes a certificate for a reason.
    pub fn revoke_for(self, certificate: &[u8], reason: u8) -> Self {
        let serial = serial_of(certificate);
        self.entry(serial, &[("2.5.29.21", false, vec![0x0a, 1, reason])])
    }

    /// An entry: an encoded serial number, and extensions.
    pub fn entry(mut self, serial: Vec<u8>, extensions: &[(&str, bool, Vec<u8>)]) -> Self {
        let list: Vec<_> =
            extensions.iter().map(|(id, critical, content)| extension(id, *critical, content)).collect();
        let extensions = if list.is_empty() { Vec::new() } else { seq(&list) };
        self.entries.push(seq(&[serial, time(1_767_225_600), extensions]));
        self
    }

    /// An encoded entry.
    pub fn raw_entry(mut self, entry: Vec<u8>) -> Self {
        self.entries.push(entry);
        self
    }

    /// A list of revoked certificates that is present and empty.
    pub fn empty_list(mut self) -> Self {
        self.empty_list = true;
        self
    }

    /// The CRL number; `None` for none.
    pub fn number(mut self, number: Option<u64>) -> Self {
        self.number = number.map(integer);
        self
    }

    /// The content of the CRL number extension.
    pub fn raw_number(mut self, content: Vec<u8>) -> Self {
        self.number = Some(content);
        self
    }

    /// thisUpdate and nextUpdate, in seconds since 1970.
    pub fn times(mut self, this_update: i64, next_update: Option<i64>) -> Self {
        self.this_update = time(this_update);
        self.next_update = next_update.map(time);
        self
    }

    /// thisUpdate and nextUpdate as encoded elements.
    pub fn raw_times(mut self, this_update: Vec<u8>, next_update: Option<Vec<u8>>) -> Self {
        self.this_update = this_update;
        self.next_update = next_update;
        self
    }

    /// The encoded version; `None` for version 1.
    pub fn version(mut self, version: Option<Vec<u8>>) -> Self {
        self.version = version;
        self
    }

    /// Another encoded issuer.
    pub fn issuer(mut self, issuer: Vec<u8>) -> Self {
        self.issuer = issuer;
        self
    }

    /// Without an authority key identifier.
    pub fn no_akid(mut self) -> Self {
        self.akid = false;
        self
    }

    /// One more extension.
    pub fn extension(mut self, id: &str, critical: bool, content: Vec<u8>) -> Self {
        self.extra.push((id.to_owned(), critical, content));
        self
    }

    /// The signature algorithm, or only its label if the key cannot sign with it.
    pub fn sig(mut self, algorithm: SigAlg) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// The encoded `AlgorithmIdentifier` outside of the signed part.
    pub fn outer_algorithm(mut self, identifier: Vec<u8>) -> Self {
        self.outer = Some(identifier);
        self
    }

    /// A signature over other bytes.
    pub fn corrupt_signature(mut self) -> Self {
        self.corrupt = true;
        self
    }

    /// The CRL.
    pub fn der(self) -> Vec<u8> {
        let algorithm = self.algorithm.unwrap_or_else(|| self.ca.key.default_algorithm());
        let mut extensions = Vec::new();
        if let (true, Some(skid)) = (self.akid, &self.ca.skid) {
            extensions.push(extension("2.5.29.35", false, &seq(&[tlv(0x80, skid)])));
        }
        extensions.extend(self.number.iter().map(|number| extension("2.5.29.20", false, number)));
        extensions.extend(self.extra.iter().map(|(id, critical, content)| extension(id, *critical, content)));
        let mut parts: Vec<Vec<u8>> = self.version.into_iter().collect();
        parts.extend([algorithm.identifier(), self.issuer, self.this_update]);
        parts.extend(self.next_update);
        if self.empty_list || !self.entries.is_empty() {
            parts.push(seq(&self.entries));
        }
        if !extensions.is_empty() {
            parts.push(tlv(0xa0, &seq(&extensions)));
        }
        let tbs = seq(&parts);
        let signed: &[u8] = if self.corrupt { b"something else" } else { &tbs };
        let signature = self.ca.key.sign(algorithm, signed);
        seq(&[tbs.clone(), self.outer.unwrap_or_else(|| algorithm.identifier()), bits(&signature)])
    }

    /// The CRL in PEM.
    pub fn pem(self) -> String {
        pem("X509 CRL", &self.der())
    }
}
