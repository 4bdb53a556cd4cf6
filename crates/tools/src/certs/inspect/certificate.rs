//! The facts and problems of single certificates and requests.

use std::net::IpAddr;

use portcullis_pki::issuance::profile::SYSTEM_MASTERS;
use portcullis_pki::issuance::request::CertificateRequest;
use portcullis_pki::x509::name::{CertificateSubject, NameDecoder};
use portcullis_system::clock::UnixTime;
use x509_parser::asn1_rs::Oid;
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{ExtendedKeyUsage, GeneralName, ParsedExtension, X509Extension};
use x509_parser::prelude::FromDer as _;

use super::super::super::terminal::when;
use super::super::{fingerprint, hex, serial};
use super::public_key::KeyDescription;
use super::{Fact, Facts, Findings};

/// Certificates that expire within this time get a warning, in seconds.
const EXPIRY_WARNING_SECONDS: u64 = 30 * 86_400;

const SIGNATURES: [(&str, &str); 11] = [
    ("1.2.840.113549.1.1.4", "MD5 with RSA"),
    ("1.2.840.113549.1.1.5", "SHA-1 with RSA"),
    ("1.2.840.10045.4.1", "SHA-1 with ECDSA"),
    ("1.2.840.113549.1.1.11", "SHA-256 with RSA"),
    ("1.2.840.113549.1.1.12", "SHA-384 with RSA"),
    ("1.2.840.113549.1.1.13", "SHA-512 with RSA"),
    ("1.2.840.10045.4.3.2", "SHA-256 with ECDSA"),
    ("1.2.840.113549.1.1.10", "RSA-PSS"),
    ("1.2.840.10045.4.3.3", "SHA-384 with ECDSA"),
    ("1.2.840.10045.4.3.4", "SHA-512 with ECDSA"),
    ("1.3.101.112", "Ed25519"),
];

/// The use that a certificate is inspected for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IntendedUse {
    Client,
    Server,
}

/// The facts of a certificate.
pub(super) fn facts(certificate: &X509Certificate<'_>, now: UnixTime) -> Facts {
    let mut facts: Facts = vec![
        ("subject", named(&certificate.subject().to_string()).into()),
        ("issuer", named(&certificate.issuer().to_string()).into()),
        ("serial", serial(certificate).into()),
        ("from", when(certificate.validity().not_before.timestamp(), now).into()),
        ("until", when(certificate.validity().not_after.timestamp(), now).into()),
        ("key", KeyDescription::of(certificate.public_key()).name.into()),
        ("signature", signature(certificate).into()),
    ];
    facts.extend(names(certificate.extensions().iter().map(X509Extension::parsed_extension)));
    if let Ok(Some(usage)) = certificate.key_usage() {
        facts.push(("key usage", several(&usage.value.to_string())));
    }
    if let Ok(Some(usage)) = certificate.extended_key_usage() {
        facts.push(("purpose", several(&purposes(usage.value))));
    }
    if certificate.is_ca() {
        let below = certificate.basic_constraints().ok().flatten();
        let below = below.and_then(|constraints| constraints.value.path_len_constraint);
        facts.push(("authority", Fact::Authority(below)));
    }
    let extensions = || certificate.extensions().iter().map(X509Extension::parsed_extension);
    facts.extend(extensions().filter_map(|extension| match extension {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(("key id", hex(id.0).into())),
        _ => None,
    }));
    facts.extend(extensions().filter_map(|extension| match extension {
        ParsedExtension::AuthorityKeyIdentifier(id) => {
            Some(("issuer's id", hex(id.key_identifier.as_ref()?.0).into()))
        }
        _ => None,
    }));
    facts.push(("SHA-256", fingerprint(certificate.as_raw()).into()));
    facts
}

/// Adds the problems of a certificate, for the intended use if known.
pub(super) fn judge(
    item: &str,
    certificate: &X509Certificate<'_>,
    wanted: Option<IntendedUse>,
    now: UnixTime,
    findings: &mut Findings,
) {
    let validity = certificate.validity();
    let (begin, end) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let moment = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if moment < begin {
        findings.error(item, format!("not yet valid: valid from {}; check the clock", when(begin, now)));
    } else if moment > end {
        findings.error(item, format!("expired {}; issue a new one", when(end, now)));
    } else if end.saturating_sub(moment) < i64::try_from(EXPIRY_WARNING_SECONDS).unwrap_or_default() {
        findings.warning(item, format!("expires soon: {}", when(end, now)));
    }
    if let Some(weakness) = KeyDescription::of(certificate.public_key()).weakness {
        findings.error(item, weakness);
    }
    let signature = signature(certificate);
    // Verifiers do not check the self-signature of a root.
    let is_root = certificate.subject() == certificate.issuer();
    if (signature.starts_with("SHA-1") || signature.starts_with("MD5")) && !is_root {
        findings.error(
            item,
            format!("signature algorithm {signature}, which Kubernetes no longer accepts; issue a new one"),
        );
    }
    let usage = certificate.extended_key_usage().ok().flatten().map(|usage| usage.value);
    let serves = |usage: &ExtendedKeyUsage<'_>| usage.server_auth || usage.any;
    let is_client = |usage: &ExtendedKeyUsage<'_>| usage.client_auth || usage.any;
    if certificate.is_ca() {
        authority(item, certificate, wanted, findings);
    } else {
        match (usage, wanted) {
            (None, _) => findings.warning(
                item,
                "no extended key usage: valid for clients and servers alike, and refused by some verifiers",
            ),
            (Some(usage), Some(IntendedUse::Client)) if !is_client(usage) => {
                findings.error(item, "not for clients: its extended key usage lacks clientAuth");
            }
            (Some(usage), Some(IntendedUse::Server)) if !serves(usage) => {
                findings.error(item, "not for servers: its extended key usage lacks serverAuth");
            }
            _ => {}
        }
        let for_servers =
            wanted == Some(IntendedUse::Server) || wanted.is_none() && usage.is_some_and(|u| u.server_auth);
        let has_names = certificate.subject_alternative_name().ok().flatten().is_some();
        if for_servers && !has_names {
            findings.error(
                item,
                "no subjectAltName: clients ignore the CommonName; issue a new one with --dns or --ip",
            );
        }
    }
    let for_clients =
        wanted == Some(IntendedUse::Client) || wanted.is_none() && usage.is_some_and(|u| u.client_auth);
    if for_clients && !certificate.is_ca() {
        // Parsed as the gateway and kube-apiserver do: x509-parser does not decode all string types of groups.
        let subject = CertificateSubject::parse(certificate.subject().as_raw(), NameDecoder::Certificate);
        let name = subject.map(|subject| subject.name).unwrap_or_default();
        if name.common_name.is_empty() {
            findings.error(item, "no CommonName: the client has no user name");
        }
        if name.organization.iter().any(|group| group == SYSTEM_MASTERS) {
            findings.warning(
                item,
                format!("in the group {SYSTEM_MASTERS}: full access, regardless of RBAC, until it expires"),
            );
        }
    }
}

fn authority(
    item: &str,
    certificate: &X509Certificate<'_>,
    wanted: Option<IntendedUse>,
    findings: &mut Findings,
) {
    if wanted.is_some() {
        findings.error(item, "a CA certificate in place of a leaf: its key can sign for any identity");
    }
    if certificate.key_usage().ok().flatten().is_some_and(|usage| !usage.value.key_cert_sign()) {
        findings
            .error(item, "a CA that may not sign: its key usage lacks keyCertSign; is the CA bit intended?");
    }
}

/// The facts of a request; adds its problems.
pub(super) fn request(item: &str, der: &[u8], findings: &mut Findings) -> Facts {
    let Ok((_, request)) = X509CertificationRequest::from_der(der) else {
        findings.error(item, "malformed certificate request");
        return Vec::new();
    };
    let info = &request.certification_request_info;
    let mut facts: Facts = vec![
        ("subject", named(&info.subject.to_string()).into()),
        ("key", KeyDescription::of(&info.subject_pki).name.into()),
    ];
    facts.extend(names(request.requested_extensions().into_iter().flatten()));
    for extension in request.requested_extensions().into_iter().flatten() {
        match extension {
            ParsedExtension::KeyUsage(usage) => facts.push(("asks for", usage.to_string().into())),
            ParsedExtension::ExtendedKeyUsage(usage) => facts.push(("asks for", purposes(usage).into())),
            ParsedExtension::BasicConstraints(constraints) if constraints.ca => {
                findings.warning(item, "requests a CA certificate, which is never signed");
            }
            _ => {}
        }
    }
    // The parser of `pki::issuance` decides: it is the one that signs.
    match CertificateRequest::from_der(der) {
        Ok(read) if read.subject().organization.iter().any(|group| group == SYSTEM_MASTERS) => {
            findings.warning(item, format!("requests the group {SYSTEM_MASTERS}, which has full access"));
        }
        Ok(_) => {}
        Err(error) => findings.error(item, error.to_string()),
    }
    facts
}

fn named(name: &str) -> String {
    if name.is_empty() { "(empty)".to_owned() } else { name.to_owned() }
}

fn several(list: &str) -> Fact {
    Fact::Several(list.split(", ").map(str::to_owned).collect())
}

fn signature(certificate: &X509Certificate<'_>) -> String {
    let id = certificate.signature_algorithm.algorithm.to_id_string();
    let known = SIGNATURES.iter().find(|(known, _)| *known == id);
    known.map_or_else(|| format!("of the algorithm {id}"), |(_, name)| (*name).to_owned())
}

fn names<'a>(extensions: impl Iterator<Item = &'a ParsedExtension<'a>>) -> Facts {
    let all = extensions.filter_map(|extension| match extension {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    all.flatten().map(|name| ("names", general_name(name).into())).collect()
}

fn general_name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => format!("DNS:{name}"),
        GeneralName::RFC822Name(name) => format!("email:{name}"),
        GeneralName::URI(uri) => format!("URI:{uri}"),
        GeneralName::IPAddress(octets) => {
            let v4 = <[u8; 4]>::try_from(*octets).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(*octets).map(IpAddr::from));
            address
                .map_or_else(|_| format!("IP of octets {}", hex(octets)), |address| format!("IP:{address}"))
        }
        other => other.to_string(),
    }
}

pub(in crate::certs) fn purposes(usage: &ExtendedKeyUsage<'_>) -> String {
    let known = [
        (usage.any, "any"),
        (usage.client_auth, "clientAuth"),
        (usage.server_auth, "serverAuth"),
        (usage.code_signing, "codeSigning"),
        (usage.email_protection, "emailProtection"),
        (usage.time_stamping, "timeStamping"),
        (usage.ocsp_signing, "OCSPSigning"),
    ];
    let known = known.into_iter().filter(|(given, _)| *given).map(|(_, name)| name.to_owned());
    known.chain(usage.other.iter().map(Oid::to_id_string)).collect::<Vec<_>>().join(", ")
}
