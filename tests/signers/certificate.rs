//! Compares issued certificates: all octets of the `TBSCertificate` except the serial number and the times, and the
//! encoding and distance of the times. Also checks each certificate: the signature, the serial number, and `notBefore`.

use std::fmt::Write as _;

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use testkit::pki::{Ca, SigAlg, pem};

/// Seconds from `notBefore` to the signing (kube-controller-manager: pkg/controller/certificates/signer/signer.go).
const BACKDATE: i64 = 300;

/// A certificate without the parts that differ between two signings, as lines of `name: value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub(crate) lines: Vec<(String, String)>,
    pub(crate) issuer: Vec<u8>,
    pub(crate) spki: Vec<u8>,
    pub(crate) der: Vec<u8>,
}

/// One DER element.
pub(crate) struct Element<'a> {
    tag: u8,
    pub(crate) content: &'a [u8],
    whole: &'a [u8],
}

fn next<'a>(input: &mut &'a [u8]) -> Option<Element<'a>> {
    let start: &'a [u8] = input;
    let (&tag, rest) = start.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (octets, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        (octets.iter().fold(0, |len, octet| len << 8 | usize::from(*octet)), rest)
    };
    let (content, rest) = rest.split_at_checked(len)?;
    *input = rest;
    Some(Element { tag, content, whole: &start[..start.len() - rest.len()] })
}

/// A sequence of elements.
pub(crate) fn all(mut input: &[u8]) -> Option<Vec<Element<'_>>> {
    let mut elements = Vec::new();
    while !input.is_empty() {
        elements.push(next(&mut input)?);
    }
    Some(elements)
}

/// The Unix time of a UTCTime or GeneralizedTime in the form of RFC 5280 section 4.1.2.5.
fn seconds(time: &Element<'_>) -> Option<i64> {
    let text = std::str::from_utf8(time.content).ok()?.strip_suffix('Z')?;
    let text = match (time.tag, text.len()) {
        (0x17, 12) => format!("{}{text}", if text < "5" { "20" } else { "19" }),
        (0x18, 14) => text.to_owned(),
        _ => return None,
    };
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * month + 2) / 5 + day - 1;
    Some((days - 719_468) * 86_400 + number(8, 10)? * 3600 + number(10, 12)? * 60 + number(12, 14)?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Hexadecimal, followed by the printable characters.
fn dump(bytes: &[u8]) -> String {
    let text: String = bytes
        .iter()
        .map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' })
        .collect();
    format!("{} \"{text}\"", hex(bytes))
}

impl Certificate {
    /// Parses the certificate of a status, base64 of PEM. `signed` are Unix times before and after the signing.
    pub(crate) fn read(status: &str, ca: &Ca, signed: (i64, i64)) -> Result<Self, String> {
        let text = STANDARD.decode(status).map_err(|error| error.to_string())?;
        let text = String::from_utf8(text).map_err(|error| error.to_string())?;
        let body: String = text
            .strip_prefix("-----BEGIN CERTIFICATE-----\n")
            .and_then(|rest| rest.strip_suffix("\n-----END CERTIFICATE-----\n"))
            .ok_or_else(|| format!("not one PEM block: {text}"))?
            .lines()
            .collect();
        let der = STANDARD.decode(body).map_err(|error| format!("{error}: {text}"))?;
        if pem("CERTIFICATE", &der) != text {
            return Err(format!("PEM is written otherwise: {text}"));
        }
        Self::parse(&der, ca, signed)?.ok_or_else(|| format!("not the DER of a certificate: {text}"))
    }

    fn parse(der: &[u8], ca: &Ca, signed: (i64, i64)) -> Result<Option<Self>, String> {
        let mut lines = Vec::new();
        let mut line = |name: &str, value: String| lines.push((name.to_owned(), value));
        let parse = || {
            let [certificate] = <[_; 1]>::try_from(all(der)?).ok()?;
            let [tbs, algorithm, signature] = <[_; 3]>::try_from(all(certificate.content)?).ok()?;
            let [version, serial, inner, issuer, validity, subject, spki, extensions] =
                <[_; 8]>::try_from(all(tbs.content)?).ok()?;
            let [from, to] = <[_; 2]>::try_from(all(validity.content)?).ok()?;
            Some((
                tbs, algorithm, signature, version, serial, inner, issuer, from, to, subject, spki,
                extensions,
            ))
        };
        let Some((
            tbs,
            algorithm,
            signature,
            version,
            serial,
            inner,
            issuer,
            from,
            to,
            subject,
            spki,
            extensions,
        )) = parse()
        else {
            return Ok(None);
        };
        verify(ca, algorithm.whole, tbs.whole, signature.content.get(1..).unwrap_or_default())?;
        // RFC 5280 section 4.1.2.2: positive, at most twenty octets.
        let fits = (1..=20).contains(&serial.content.len())
            && serial.content.first().is_some_and(|byte| *byte < 0x80);
        if serial.tag != 0x02 || !fits || serial.content.iter().all(|byte| *byte == 0) {
            return Err(format!("the serial number {}", hex(serial.whole)));
        }
        let (Some(begins), Some(ends)) = (seconds(&from), seconds(&to)) else {
            return Err(format!("the times {} {}", dump(from.whole), dump(to.whole)));
        };
        if !(signed.0 - BACKDATE..=signed.1 - BACKDATE).contains(&begins) {
            return Err(format!("signed within {signed:?} it begins {begins}, not five minutes earlier"));
        }
        line("version", dump(version.whole));
        line("signature algorithm", dump(inner.whole));
        line("issuer", dump(issuer.whole));
        line("not before", format!("five minutes before, tag {:02x}", from.tag));
        let authority_ends = authority_end(ca);
        if Some(ends) == authority_ends {
            line("not after", format!("where the authority ends, tag {:02x}", to.tag));
        } else {
            line("not after", format!("{} s later, tag {:02x}", ends - begins, to.tag));
        }
        line("subject", dump(subject.whole));
        line("public key", hex(spki.whole));
        let Some(list) = all(extensions.content).and_then(|mut list| all(list.pop()?.content)) else {
            return Ok(None);
        };
        for extension in list {
            line("extension", dump(extension.whole));
        }
        line("outer algorithm", dump(algorithm.whole));
        let (issuer, spki, der) = (issuer.whole.to_vec(), spki.whole.to_vec(), der.to_vec());
        Ok(Some(Self { lines, issuer, spki, der }))
    }
}

fn authority_end(ca: &Ca) -> Option<i64> {
    let certificate = all(&ca.cert)?.pop()?;
    let tbs = all(certificate.content)?.into_iter().next()?;
    let validity = all(tbs.content)?.into_iter().nth(4)?;
    seconds(&all(validity.content)?.pop()?)
}

fn verify(ca: &Ca, algorithm: &[u8], message: &[u8], signed: &[u8]) -> Result<(), String> {
    let known: [(SigAlg, &dyn VerificationAlgorithm); 5] = [
        (SigAlg::RsaSha256, &signature::RSA_PKCS1_2048_8192_SHA256),
        (SigAlg::EcdsaSha256, &signature::ECDSA_P256_SHA256_ASN1),
        (SigAlg::EcdsaSha384, &signature::ECDSA_P384_SHA384_ASN1),
        (SigAlg::EcdsaSha512, &signature::ECDSA_P521_SHA512_ASN1),
        (SigAlg::Ed25519, &signature::ED25519),
    ];
    let Some((_, verification)) = known.into_iter().find(|(known, _)| known.identifier() == algorithm) else {
        return Err(format!("the signature algorithm {}", hex(algorithm)));
    };
    UnparsedPublicKey::new(verification, ca.key.public())
        .verify(message, signed)
        .map_err(|_| "the signature is not that of the authority".to_owned())
}
