//! The lints themselves.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use x509_parser::asn1_rs::Oid;
use x509_parser::certificate::TbsCertificate;
use x509_parser::extensions::{ExtendedKeyUsage, GeneralName, ParsedExtension, X509Extension};
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Version;

use super::{ExpectedCertificate, Lint, LintError, extension, unencodable, want};
use crate::clock::UnixTime;
use crate::pki::issuance::subject::Subject;
use crate::pki::issuance::tbs::{self, EMPTY_NAME};
use crate::pki::issuance::validity::{BACKDATE, Validity};
use crate::pki::x509::certificate::Certificate;

const KEY_USAGE: &str = "2.5.29.15";
const ALT_NAMES: &str = "2.5.29.17";
const BASIC_CONSTRAINTS: &str = "2.5.29.19";
const AUTHORITY_KEY_ID: &str = "2.5.29.35";
const EXTENDED_KEY_USAGE: &str = "2.5.29.37";
/// Every extension a certificate may have, in its order.
// go: crypto/x509/x509.go, buildCertExtensions
const EXTENSIONS: [&str; 5] = [KEY_USAGE, EXTENDED_KEY_USAGE, BASIC_CONSTRAINTS, AUTHORITY_KEY_ID, ALT_NAMES];
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
    Lint { name: "life of the profile", citation: "kubernetes signer/signer.go", check: within_profile },
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
];

type Tbs<'a> = TbsCertificate<'a>;

fn version(tbs: &Tbs<'_>, _: &ExpectedCertificate<'_>) -> Result<(), String> {
    want(tbs.version == X509Version::V3, || format!("{}", tbs.version))
}

/// Positive, and at most 20 octets.
fn serial(tbs: &Tbs<'_>, _: &ExpectedCertificate<'_>) -> Result<(), String> {
    let octets = tbs.raw_serial();
    let positive =
        octets.first().is_some_and(|first| first & 0x80 == 0) && octets.iter().any(|octet| *octet != 0);
    want(positive && octets.len() <= 20, || tbs.raw_serial_as_string())
}

fn algorithm(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let oid = tbs.signature.algorithm.to_id_string();
    want(oid == expected.algorithm.oid().to_string(), || oid.clone())
}

fn issuer(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    want(tbs.issuer.as_raw() == expected.issuer, || tbs.issuer.to_string())
}

/// What was decided, with an end that is not before its beginning, and written as the year demands.
fn validity(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let span = (unix(tbs.validity.not_before), unix(tbs.validity.not_after));
    let decided = (Some(expected.validity.not_before), Some(expected.validity.not_after));
    let form = |time: ASN1Time| time.is_utctime() == (time.to_datetime().year() < 2050);
    want(
        span == decided && span.0 <= span.1 && form(tbs.validity.not_before) && form(tbs.validity.not_after),
        || format!("{} to {}", tbs.validity.not_before, tbs.validity.not_after),
    )
}

/// A certificate begins no earlier and ends no later than that of its authority.
fn within_authority(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let Validity { not_before, not_after } = expected.authority;
    let (begin, end) = (unix(tbs.validity.not_before), unix(tbs.validity.not_after));
    want(begin.is_some_and(|begin| begin >= not_before) && end.is_some_and(|end| end <= not_after), || {
        format!("{} to {}", tbs.validity.not_before, tbs.validity.not_after)
    })
}

/// A certificate lives no longer than its profile lets it, counted from when it was made.
fn within_profile(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let Some(longest) = expected.longest else { return Ok(()) };
    let (begin, end) = (unix(tbs.validity.not_before), unix(tbs.validity.not_after));
    let life = begin.zip(end).and_then(|(begin, end)| end.checked_sub(begin.saturating_add(BACKDATE)));
    // Both ends are cut to whole seconds.
    let longest = longest.saturating_add(Duration::from_secs(1));
    want(life.is_none_or(|life| life < longest), || format!("{life:?}"))
}

fn subject(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    want(tbs.subject.as_raw() == expected.subject, || tbs.subject.to_string())
}

fn public_key(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    want(tbs.subject_pki.raw == expected.spki, || "another key than the request's".to_owned())
}

fn unique_ids(tbs: &Tbs<'_>, _: &ExpectedCertificate<'_>) -> Result<(), String> {
    want(tbs.issuer_uid.is_none() && tbs.subject_uid.is_none(), || "there is one".to_owned())
}

/// The five that are known, each at most once and in their order.
fn extensions(tbs: &Tbs<'_>, _: &ExpectedCertificate<'_>) -> Result<(), String> {
    let found: Vec<String> = tbs.extensions().iter().map(|extension| extension.oid.to_id_string()).collect();
    let mut known = EXTENSIONS.iter();
    want(found.iter().all(|oid| known.any(|other| other == oid)), || found.join(" "))
}

/// There, critical, and no authority.
fn basic_constraints(tbs: &Tbs<'_>, _: &ExpectedCertificate<'_>) -> Result<(), String> {
    let extension = extension(tbs, BASIC_CONSTRAINTS).ok_or("there is none")?;
    let ParsedExtension::BasicConstraints(constraints) = extension.parsed_extension() else {
        return Err("it does not parse".to_owned());
    };
    let good = extension.critical && !constraints.ca && constraints.path_len_constraint.is_none();
    want(good, || format!("critical {}, {constraints:?}", extension.critical))
}

/// Critical, and the bits that were asked for; absent if none was.
fn key_usage(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let asked = expected.usages.key_usage();
    match (extension(tbs, KEY_USAGE), key_usage_bits(tbs)) {
        (None, 0) if asked == 0 => Ok(()),
        (Some(extension), bits) if bits != 0 && bits == asked && extension.critical => Ok(()),
        (_, bits) => Err(format!("{bits:#b}")),
    }
}

fn cert_sign(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    want(expected.cert_sign || key_usage_bits(tbs) & CERT_SIGN == 0, || "keyCertSign is set".to_owned())
}

/// Not critical, and the purposes that were asked for; absent if none was.
fn extended_key_usage(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let asked: BTreeSet<String> = expected.usages.extended().into_iter().map(str::to_owned).collect();
    let Some(extension) = extension(tbs, EXTENDED_KEY_USAGE) else {
        return want(asked.is_empty(), || "there is none".to_owned());
    };
    let ParsedExtension::ExtendedKeyUsage(usage) = extension.parsed_extension() else {
        return Err("it does not parse".to_owned());
    };
    let found = purposes(usage);
    want(!extension.critical && !asked.is_empty() && found == asked, || format!("{found:?}"))
}

/// Whatever was asked for, a profile with a list of usages signs no other.
fn usages_of_profile(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let Some(allowed) = &expected.allowed else { return Ok(()) };
    let bits = key_usage_bits(tbs);
    want(bits & !allowed.key_usage() == 0, || format!("key usage {bits:#b}"))?;
    let found = match extension(tbs, EXTENDED_KEY_USAGE).map(X509Extension::parsed_extension) {
        Some(ParsedExtension::ExtendedKeyUsage(usage)) => purposes(usage),
        // Who names no purpose is good for every one.
        _ => BTreeSet::from([ANY.to_owned()]),
    };
    want(found.iter().all(|oid| allowed.extended().contains(&oid.as_str())), || format!("{found:?}"))
}

/// The authority's key identifier and nothing else, not critical; absent if the authority has none, or is itself the
/// subject.
fn authority_key_id(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let wanted = if expected.subject == expected.issuer { &[] } else { expected.authority_key_id };
    let Some(extension) = extension(tbs, AUTHORITY_KEY_ID) else {
        return want(wanted.is_empty(), || "there is none".to_owned());
    };
    let ParsedExtension::AuthorityKeyIdentifier(id) = extension.parsed_extension() else {
        return Err("it does not parse".to_owned());
    };
    let same = id.key_identifier.as_ref().is_some_and(|id| !wanted.is_empty() && id.0 == wanted);
    let alone = id.authority_cert_issuer.is_none() && id.authority_cert_serial.is_none();
    want(same && alone && !extension.critical, || format!("critical {}, {id:?}", extension.critical))
}

/// The names of the request in the order of their kinds; critical exactly when there is no subject.
fn alt_names(tbs: &Tbs<'_>, expected: &ExpectedCertificate<'_>) -> Result<(), String> {
    let wanted = expected.alt_names;
    let Some(extension) = extension(tbs, ALT_NAMES) else {
        return want(wanted.is_empty(), || "there is none".to_owned());
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
    want(!wanted.is_empty() && names.general_names == wanted && extension.critical == critical, || {
        format!("critical {}, {:?}", extension.critical, names.general_names)
    })
}

/// Go, and so kube-apiserver, will read the certificate, and finds the user, the groups and the key that were judged: what
/// is encoded is compared with itself until then. The signature is not part of that.
pub(super) fn read_as_judged(
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
    let same_name = in_order(name) == in_order(expected.name) && read.subject.uids.is_empty();
    want(same_name && read.public_key == *expected.key.key(), || format!("{name}, {}", read.public_key))
        .map_err(|found| LintError {
            lint: "as judged",
            citation: "kubernetes authority/authority.go",
            found,
        })?;
    Ok(read)
}

/// The name with the values of each kind sorted: a SET has an order of its own.
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
