//! What a request asks for beyond the names and the key that the product's own signers take over. Another signer may
//! sign it, so the person who approves the request sees it.

use std::fmt::Write as _;

use x509_parser::asn1_rs::Oid;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::{ParsedCriAttribute, X509CriAttribute};
use x509_parser::extensions::{ParsedExtension, X509Extension};
use x509_parser::objects::{oid_registry, oid2sn};
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::AttributeTypeAndValue;

use super::super::hex;
use super::super::inspect::certificate::purposes;
use crate::x509::pem;

/// The attributes of a subject that survive, by the ends of their OIDs below 2.5.4: CN, serialNumber, C, L, ST, STREET,
/// O, OU and postalCode.
// go: crypto/x509/pkix, Name.FillFromRDNSequence
const SUBJECT_ATTRIBUTES: [&str; 9] =
    ["2.5.4.3", "2.5.4.5", "2.5.4.6", "2.5.4.7", "2.5.4.8", "2.5.4.9", "2.5.4.10", "2.5.4.11", "2.5.4.17"];
/// The longest value that is shown whole, in octets.
const MAX_SHOWN: usize = 64;

/// What else the request holds, a line for each part; whether a signer that copies it makes an authority.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) also: Vec<String>,
    pub(super) asks_for_authority: bool,
}

impl Contents {
    /// Of `spec.request`; nothing if it is no request at all.
    pub(super) fn of(request: &[u8]) -> Self {
        let mut contents = Self::default();
        let block = pem::blocks(request).into_iter().next();
        let Some(der) = block.map(|block| block.content) else { return contents };
        let Ok((_, request)) = X509CertificationRequest::from_der(&der) else { return contents };
        let info = &request.certification_request_info;
        let subject = info.subject.iter_attributes();
        contents.also.extend(subject.filter(|one| !survives(one)).map(|one| {
            let value = one.as_str().map_or_else(|_| octets(one.as_slice()), str::to_owned);
            format!("subject {}={value}", named(one.attr_type()))
        }));
        for attribute in info.attributes() {
            contents.attribute(attribute);
        }
        contents
    }

    fn attribute(&mut self, attribute: &X509CriAttribute<'_>) {
        match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(request) => {
                for extension in &request.extensions {
                    self.extension(extension);
                }
            }
            _ => self.also.push(format!("attribute {} {}", named(&attribute.oid), octets(attribute.value))),
        }
    }

    fn extension(&mut self, extension: &X509Extension<'_>) {
        let value = match extension.parsed_extension() {
            // These are shown as names.
            ParsedExtension::SubjectAlternativeName(_) => return,
            ParsedExtension::BasicConstraints(constraints) => {
                self.asks_for_authority |= constraints.ca;
                let mut value = format!("CA:{}", if constraints.ca { "TRUE" } else { "FALSE" });
                if let Some(below) = constraints.path_len_constraint {
                    let _infallible = write!(value, ", pathlen:{below}");
                }
                value
            }
            ParsedExtension::KeyUsage(usage) => {
                self.asks_for_authority |= usage.key_cert_sign();
                usage.to_string()
            }
            ParsedExtension::ExtendedKeyUsage(usage) => purposes(usage),
            _ => octets(extension.value),
        };
        let critical = if extension.critical { " critical" } else { "" };
        self.also.push(format!("extension {}{critical}: {value}", named(&extension.oid)));
    }
}

fn survives(attribute: &AttributeTypeAndValue<'_>) -> bool {
    SUBJECT_ATTRIBUTES.contains(&attribute.attr_type().to_id_string().as_str())
}

fn named(oid: &Oid<'_>) -> String {
    oid2sn(oid, oid_registry()).map_or_else(|_| oid.to_id_string(), str::to_owned)
}

fn octets(value: &[u8]) -> String {
    match value.get(..MAX_SHOWN) {
        Some(begin) if value.len() > MAX_SHOWN => format!("{}… ({} octets)", hex(begin), value.len()),
        _ => hex(value),
    }
}
