//! The lint rules.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use portcullis_system::clock::UnixTime;
use rustls_pki_types::CertificateDer;
use x509_parser::asn1_rs::Oid;
use x509_parser::certificate::TbsCertificate;
use x509_parser::extensions::{ExtendedKeyUsage, GeneralName, ParsedExtension, X509Extension};
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Version;

use super::{ExpectedCertificate, Lint, LintError, ensure, extension, unencodable};
use crate::issuance::subject::Subject;
use crate::issuance::tbs::{self, EMPTY_NAME};
use crate::issuance::validity::Validity;
use crate::x509::certificate::Certificate;
use crate::x509::pod_identity::{POD_IDENTITY, PodIdentity};

const KEY_USAGE: &str = "2.5.29.15";
const ALT_NAMES: &str = "2.5.29.17";
const BASIC_CONSTRAINTS: &str = "2.5.29.19";
const AUTHORITY_KEY_ID: &str = "2.5.29.35";
const EXTENDED_KEY_USAGE: &str = "2.5.29.37";
/// Every allowed extension, in order.
// go: crypto/x509/x509.go, buildCertExtensions
const EXTENSIONS: [&str; 6] =
    [KEY_USAGE, EXTENDED_KEY_USAGE, BASIC_CONSTRAINTS, AUTHORITY_KEY_ID, ALT_NAMES, POD_IDENTITY];
/// anyExtendedKeyUsage
const ANY: &str = "2.5.29.37.0";
/// keyCertSign
const CERT_SIGN: u16 = 1 << 5;

pub(super) const LINTS: &[Lint] = &[
    Lint { name: "version", citation: "RFC 5280 §4.1.2.1", check: version },
    Lint { name: "serial number", citation: "RFC 5280 §4.1.2.2", check: serial },
    Lint { name: "signature algorithm", citation: "RFC 5280 §4.1.2.3", check: algorithm },
    Lint { name: "issuer", citation: "RFC 5280 §4.1.2.4", check: issuer },
    Lint { name: "validity", citation: "RFC 5280 §4.1.2.5", check: validity },
    Lint {
        name: "validity of the authority",
        citation: "kubernetes authority/policies.go",
        check: within_authority,
    },
    Lint { name: "lifetime of the profile", citation: "kubernetes signer/signer.go", check: within_profile },
    Lint { name: "subject", citation: "RFC 5280 §4.1.2.6", check: subject },
    Lint { name: "public key", citation: "RFC 5280 §4.1.2.7", check: public_key },
    Lint { name: "unique identifiers", citation: "RFC 5280 §4.1.2.8", check: unique_ids },
    Lint { name: "extensions", citation: "kubernetes authority/authority.go", check: extensions },
    Lint { name: "basic constraints", citation: "RFC 5280 §4.2.1.9", check: basic_constraints },
    Lint { name: "key usage", citation: "RFC 5280 §4.2.1.3", check: key_usage },
    Lint { name: "cert sign without an authority", citation: "RFC 5280 §4.2.1.9", check: cert_sign },
    Lint { name: "extended key usage", citation: "RFC 5280 §4.2.1.12", check: extended_key_usage },
    Lint { name: "usages of the profile", citation: "kubernetes signer/signer.go", check: usages_of_profile },
    Lint { name: "authority key identifier", citation: "RFC 5280 §4.2.1.1", check: authority_key_id },
    Lint { name: "subject alternative name", citation: "RFC 5280 §4.2.1.6", check: alt_names },
    Lint { name: "pod identity", citation: "KEP-4317", check: pod_identity },
];

type Tbs<'a> = TbsCertificate<'a>;

fn version(tbs: &Tbs<'_>, _: &ExpectedCertificate<'_>) -> Result<(), String> {
    ensure(tbs.version == X509Version::V3, || format!("{}", tbs.version))
}

/// The serial number must be positive, with at most 20 octets.
fn serial(tbs: &Tbs<'_>, _: &ExpectedCertificate<'_>) -> Result<(), String> {
    let octets = tbs.raw_serial();
    let positive =
        octets.first().is_some_and(|first| first & 0x80 == 0) && octets.iter().any(|octet| *octet != 0);
    ensure(positive && octets.len() <= 20, || tbs.raw_serial_as_string())
}

fn algorithm(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let oid = tbs.signature.algorithm.to_id_string();
    ensure(oid == expected.algorithm.oid().to_string(), || oid.clone())
}

fn issuer(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    ensure(tbs.issuer.as_raw() == expected.issuer, || tbs.issuer.to_string())
}

/// The validity must be the computed one, must not end before it begins, and must have the encoding of its year.
fn validity(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let span = (unix(tbs.validity.not_before), unix(tbs.validity.not_after));
    let decided = (Some(expected.validity.not_before), Some(expected.validity.not_after));
    let form = |time: ASN1Time| time.is_utctime() == (time.to_datetime().year() < 2050);
    ensure(
        span == decided && span.0 <= span.1 && form(tbs.validity.not_before) && form(tbs.validity.not_after),
        || format!("{} to {}", tbs.validity.not_before, tbs.validity.not_after),
    )
}

/// The validity must be within that of the CA certificate.
fn within_authority(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let Validity { not_before, not_after } = expected.authority;
    let (begin, end) = (unix(tbs.validity.not_before), unix(tbs.validity.not_after));
    ensure(begin.is_some_and(|begin| begin >= not_before) && end.is_some_and(|end| end <= not_after), || {
        format!("{} to {}", tbs.validity.not_before, tbs.validity.not_after)
    })
}

/// The lifetime, without what counts as backdate, must not exceed the maximum of the profile.
fn within_profile(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let Some(max) = expected.max_lifetime else { return Ok(()) };
    let (begin, end) = (unix(tbs.validity.not_before), unix(tbs.validity.not_after));
    let lifetime =
        begin.zip(end).and_then(|(begin, end)| end.checked_sub(begin.saturating_add(expected.backdate)));
    // Both ends are truncated to whole seconds.
    let max = max.saturating_add(Duration::from_secs(1));
    ensure(lifetime.is_none_or(|lifetime| lifetime < max), || format!("{lifetime:?}"))
}

fn subject(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    ensure(tbs.subject.as_raw() == expected.subject, || tbs.subject.to_string())
}

fn public_key(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    ensure(tbs.subject_pki.raw == expected.spki, || "not the key of the request".to_owned())
}

fn unique_ids(tbs: &Tbs<'_>, _: &ExpectedCertificate<'_>) -> Result<(), String> {
    ensure(tbs.issuer_uid.is_none() && tbs.subject_uid.is_none(), || "present".to_owned())
}

/// Only the known extensions, each at most once, in order.
fn extensions(tbs: &Tbs<'_>, _: &ExpectedCertificate<'_>) -> Result<(), String> {
    let found: Vec<String> = tbs.extensions().iter().map(|extension| extension.oid.to_id_string()).collect();
    let mut known = EXTENSIONS.iter();
    ensure(found.iter().all(|oid| known.any(|other| other == oid)), || found.join(" "))
}

/// Basic constraints must be present and critical, and must not have the CA bit.
fn basic_constraints(tbs: &Tbs<'_>, _: &ExpectedCertificate<'_>) -> Result<(), String> {
    let extension = extension(tbs, BASIC_CONSTRAINTS).ok_or("absent")?;
    let ParsedExtension::BasicConstraints(constraints) = extension.parsed_extension() else {
        return Err("it does not parse".to_owned());
    };
    let good = extension.critical && !constraints.ca && constraints.path_len_constraint.is_none();
    ensure(good, || format!("critical {}, {constraints:?}", extension.critical))
}

/// Key usage must be critical and have the requested bits; absent if none was requested.
fn key_usage(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let asked = expected.usages.key_usage();
    match (extension(tbs, KEY_USAGE), key_usage_bits(tbs)) {
        (None, 0) if asked == 0 => Ok(()),
        (Some(extension), bits) if bits != 0 && bits == asked && extension.critical => Ok(()),
        (_, bits) => Err(format!("{bits:#b}")),
    }
}

fn cert_sign(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    ensure(expected.cert_sign || key_usage_bits(tbs) & CERT_SIGN == 0, || "keyCertSign is set".to_owned())
}

/// Extended key usage must be non-critical and have the requested purposes; absent if none was requested.
fn extended_key_usage(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let asked: BTreeSet<String> = expected.usages.extended().into_iter().map(str::to_owned).collect();
    let Some(extension) = extension(tbs, EXTENDED_KEY_USAGE) else {
        return ensure(asked.is_empty(), || "absent".to_owned());
    };
    let ParsedExtension::ExtendedKeyUsage(usage) = extension.parsed_extension() else {
        return Err("it does not parse".to_owned());
    };
    let found = purposes(usage);
    ensure(!extension.critical && !asked.is_empty() && found == asked, || format!("{found:?}"))
}

/// The certificate must not have usages beyond those of the profile, even if requested.
fn usages_of_profile(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let Some(allowed) = &expected.allowed else { return Ok(()) };
    let bits = key_usage_bits(tbs);
    ensure(bits & !allowed.key_usage() == 0, || format!("key usage {bits:#b}"))?;
    let found = match extension(tbs, EXTENDED_KEY_USAGE).map(X509Extension::parsed_extension) {
        Some(ParsedExtension::ExtendedKeyUsage(usage)) => purposes(usage),
        // A certificate without extended key usage is valid for every purpose.
        _ => BTreeSet::from([ANY.to_owned()]),
    };
    ensure(found.iter().all(|oid| allowed.extended().contains(&oid.as_str())), || format!("{found:?}"))
}

/// The authority key identifier must be non-critical and have the key identifier of the CA only; absent if the CA has
/// none, or if the subject is the CA's name.
fn authority_key_id(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let wanted = if expected.subject == expected.issuer { &[] } else { expected.authority_key_id };
    let Some(extension) = extension(tbs, AUTHORITY_KEY_ID) else {
        return ensure(wanted.is_empty(), || "absent".to_owned());
    };
    let ParsedExtension::AuthorityKeyIdentifier(id) = extension.parsed_extension() else {
        return Err("it does not parse".to_owned());
    };
    let same = id.key_identifier.as_ref().is_some_and(|id| !wanted.is_empty() && id.0 == wanted);
    let alone = id.authority_cert_issuer.is_none() && id.authority_cert_serial.is_none();
    ensure(same && alone && !extension.critical, || format!("critical {}, {id:?}", extension.critical))
}

/// The names must be those of the request, ordered by kind; critical if and only if the subject is empty.
fn alt_names(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let wanted = expected.alt_names;
    let Some(extension) = extension(tbs, ALT_NAMES) else {
        return ensure(wanted.is_empty(), || "absent".to_owned());
    };
    let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
        return Err("it does not parse".to_owned());
    };
    let ip = |ip: &IpAddr| match ip.to_canonical() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let ips: Vec<Vec<u8>> = wanted.ips.iter().map(ip).collect();
    let wanted: Vec<GeneralName<'_>> = (wanted.dns.iter().map(|name| GeneralName::DNSName(name)))
        .chain(wanted.emails.iter().map(|name| GeneralName::RFC822Name(name)))
        .chain(ips.iter().map(|ip| GeneralName::IPAddress(ip)))
        .chain(wanted.uris.iter().map(|name| GeneralName::URI(name)))
        .collect();
    let critical = tbs.subject.as_raw() == EMPTY_NAME;
    ensure(!wanted.is_empty() && names.general_names == wanted && extension.critical == critical, || {
        format!("critical {}, {:?}", extension.critical, names.general_names)
    })
}

/// The pod identity must be the expected one, which the gateway reads back with all its checks; absent if none is expected.
// threat: pod-identity-extension
fn pod_identity(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    match (extension(tbs, POD_IDENTITY), expected.pod_identity) {
        (None, None) => Ok(()),
        (Some(extension), Some((identity, is_critical))) => {
            let read = PodIdentity::parse(extension.value).map_err(|error| error.to_string())?;
            ensure(read == *identity && extension.critical == is_critical, || {
                format!("critical {}, {read:?}", extension.critical)
            })
        }
        (found, _) => Err(if found.is_some() { "present" } else { "absent" }.to_owned()),
    }
}

/// Go, and so kube-apiserver, must parse the certificate and find the user, the groups and the key that the profile
/// checked. The other lints compare encodings, and would miss an encoder that loses a value. Ignores the signature.
pub(super) fn check_identity(
    encoded: &[u8],
    expected: &ExpectedCertificate<'_>,
) -> Result<Certificate, LintError> {
    let algorithm = expected.algorithm.identifier().map_err(unencodable)?;
    let whole = tbs::signed(encoded, algorithm, &[]).map_err(unencodable)?;
    let read = Certificate::parse(CertificateDer::from(whole)).map_err(|error| LintError {
        lint: "readable",
        citation: "go crypto/x509/parser.go",
        found: error.to_string(),
    })?;
    let name = &read.subject.name;
    if expected.pod_identity.is_some() {
        PodIdentity::of_certificate(&read).map_err(|error| LintError {
            lint: "pod identity",
            citation: "KEP-4317",
            found: error.to_string(),
        })?;
    }
    let same_name = in_order(name) == in_order(expected.name) && read.subject.uids.is_empty();
    ensure(same_name && read.public_key == *expected.key.key(), || format!("{name}, {}", read.public_key))
        .map_err(|found| LintError {
            lint: "identity",
            citation: "kubernetes authority/authority.go",
            found,
        })?;
    Ok(read)
}

/// The name with the values of each attribute sorted: DER sorts a SET.
fn in_order(name: &Subject) -> Subject {
    let mut name = name.clone();
    let lists = [
        &mut name.country,
        &mut name.province,
        &mut name.locality,
        &mut name.street_address,
        &mut name.postal_code,
        &mut name.organization,
        &mut name.organizational_unit,
    ];
    for list in lists {
        list.sort_unstable();
    }
    name
}

fn key_usage_bits(tbs: &Tbs<'_>) -> u16 {
    match extension(tbs, KEY_USAGE).map(X509Extension::parsed_extension) {
        Some(ParsedExtension::KeyUsage(usage)) => usage.flags,
        _ => 0,
    }
}

fn purposes(usage: &ExtendedKeyUsage<'_>) -> BTreeSet<String> {
    let known = [
        (usage.any, ANY),
        (usage.server_auth, "1.3.6.1.5.5.7.3.1"),
        (usage.client_auth, "1.3.6.1.5.5.7.3.2"),
        (usage.code_signing, "1.3.6.1.5.5.7.3.3"),
        (usage.email_protection, "1.3.6.1.5.5.7.3.4"),
        (usage.time_stamping, "1.3.6.1.5.5.7.3.8"),
        (usage.ocsp_signing, "1.3.6.1.5.5.7.3.9"),
    ];
    let known = known.into_iter().filter(|(there, _)| *there).map(|(_, oid)| oid.to_owned());
    known.chain(usage.other.iter().map(Oid::to_id_string)).collect()
}

fn unix(time: ASN1Time) -> Option<UnixTime> {
    u64::try_from(time.timestamp()).ok().map(UnixTime::from_secs)
}
