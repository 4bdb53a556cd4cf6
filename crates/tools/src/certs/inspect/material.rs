//! Parses certificates, requests and keys from files, and checks whether they belong together.

use portcullis_go::pem;
use portcullis_pki::issuance::limits::purpose_name;
use portcullis_pki::issuance::request::{CertificateRequest, RequestError};
use portcullis_pki::issuance::signer::{PemKey, PrivateKeyError, Signer as _};
use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::constraints;
use portcullis_system::clock::UnixTime;
use secrecy::SecretString;
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::error::X509Error;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::certificate::{self, IntendedUse};
use super::public_key::KeyDescription;
use super::{Facts, Findings, InspectedItem};

/// One object of a file.
#[derive(Debug)]
pub(super) struct FilePart {
    pub(super) name: String,
    content: PartContent,
}

#[derive(Debug)]
enum PartContent {
    Certificate(Vec<u8>),
    /// With the error of the PEM encoding around it, if any.
    Request(Vec<u8>, Option<RequestError>),
    /// The public key of a private key, in DER.
    Key(Result<Vec<u8>, PrivateKeyError>),
    Other(String),
}

impl FilePart {
    /// Whether it is a private key.
    pub(super) fn is_key(&self) -> bool {
        matches!(self.content, PartContent::Key(_))
    }
}

/// The objects of a file; empty if it is neither PEM nor DER of a known type.
pub(super) fn pieces(name: &str, bytes: &[u8], passphrase: Option<&SecretString>) -> Vec<FilePart> {
    let piece = |content| vec![FilePart { name: name.to_owned(), content }];
    if X509Certificate::from_der(bytes).is_ok() {
        return piece(PartContent::Certificate(bytes.to_vec()));
    }
    if X509CertificationRequest::from_der(bytes).is_ok() {
        return piece(PartContent::Request(bytes.to_vec(), None));
    }
    // A kubeconfig may contain PEM, too, but not at the beginning of a line.
    let begins = bytes.split(|octet| *octet == b'\n').filter(|line| line.starts_with(b"-----BEGIN")).count();
    let blocks = pem::blocks(bytes);
    if begins == 0 && blocks.is_empty() {
        return Vec::new();
    }
    let broken = begins.saturating_sub(blocks.len());
    let mut pieces: Vec<FilePart> = Vec::new();
    let mut push = |content| pieces.push(FilePart { name: name.to_owned(), content });
    for block in blocks {
        let label = String::from_utf8_lossy(&block.kind).into_owned();
        push(match label.as_str() {
            "CERTIFICATE" => PartContent::Certificate(block.content),
            "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST" => {
                PartContent::Request(block.content, unfit_armour(bytes))
            }
            // Parses the whole file: EC PARAMETERS may precede the key.
            label if label.ends_with("PRIVATE KEY") => PartContent::Key(public_part(bytes, passphrase)),
            "EC PARAMETERS" => continue,
            _ => PartContent::Other(label),
        });
    }
    for _ in 0..broken {
        push(PartContent::Other("a malformed PEM block".to_owned()));
    }
    let all = pieces.len();
    if all > 1 {
        for (place, piece) in pieces.iter_mut().enumerate() {
            piece.name = format!("{name} ({} of {all})", place + 1);
        }
    }
    pieces
}

/// The error of a PEM file whose request no signer accepts, regardless of its contents.
fn unfit_armour(pem: &[u8]) -> Option<RequestError> {
    let error = CertificateRequest::from_pem_file(pem).err();
    error.filter(|error| matches!(error, RequestError::NotPem | RequestError::NotBare))
}

fn public_part(pem: &[u8], passphrase: Option<&SecretString>) -> Result<Vec<u8>, PrivateKeyError> {
    let key = match (PemKey::from_pem(pem), passphrase) {
        (Err(PrivateKeyError::Encrypted), Some(passphrase)) => PemKey::from_encrypted_pem(pem, passphrase),
        (read, _) => read,
    };
    key.map(|key| key.public_key().to_vec())
}

/// Inspects objects that belong together; `wanted` is the intended use of the first certificate, if known.
pub(super) fn inspect(
    pieces: &[FilePart],
    wanted: Option<IntendedUse>,
    now: UnixTime,
    findings: &mut Findings,
) {
    let has_key = pieces.iter().any(|piece| matches!(piece.content, PartContent::Key(_)));
    let mut certificates = Vec::new();
    let mut keys = Vec::new();
    let mut requests = Vec::new();
    for piece in pieces {
        let (kind, facts) = match &piece.content {
            PartContent::Certificate(der) => {
                if let Ok((_, read)) = X509Certificate::from_der(der) {
                    let wanted = wanted.filter(|_| certificates.is_empty());
                    certificate::judge(&piece.name, &read, wanted, now, findings);
                    let facts = certificate::facts(&read, now);
                    certificates.push((piece, read));
                    ("certificate", facts)
                } else {
                    findings.error(&piece.name, "malformed certificate");
                    ("certificate", Vec::new())
                }
            }
            PartContent::Request(der, unfit) => {
                if let Some(error) = unfit {
                    findings.error(&piece.name, error.to_string());
                }
                requests.push((piece, der));
                ("request", certificate::request(&piece.name, der, findings))
            }
            PartContent::Key(key) => {
                let facts = of_key(&piece.name, key, findings);
                keys.extend(key.as_ref().ok().map(|public| (piece, public)));
                ("private key", facts)
            }
            PartContent::Other(label) => ("other", vec![("type", label.as_str().into())]),
        };
        findings.items.push(InspectedItem { kind, name: piece.name.clone(), facts });
    }
    fit(&certificates, &requests, &keys, findings);
    chain(&certificates, has_key || wanted.is_some(), findings);
}

fn of_key(item: &str, key: &Result<Vec<u8>, PrivateKeyError>, findings: &mut Findings) -> Facts {
    let public = match key {
        Ok(public) => public,
        Err(PrivateKeyError::Encrypted) => {
            findings.warning(
                item,
                "encrypted, and therefore not matched; give the passphrase with --passphrase-file",
            );
            return vec![("key", "encrypted; its type is unknown without the passphrase".into())];
        }
        Err(error) => {
            findings.error(item, error.to_string());
            return Vec::new();
        }
    };
    let Ok((_, public)) = SubjectPublicKeyInfo::from_der(public) else { return Vec::new() };
    let known = KeyDescription::of(&public);
    if let Some(weakness) = known.weakness {
        findings.error(item, weakness);
    }
    vec![("key", known.name.into())]
}

/// Checks that each key matches a certificate or request beside it.
fn fit(
    certificates: &[(&FilePart, X509Certificate<'_>)],
    requests: &[(&FilePart, &Vec<u8>)],
    keys: &[(&FilePart, &Vec<u8>)],
    findings: &mut Findings,
) {
    let requested = |der: &[u8], public: &[u8]| {
        let request = X509CertificationRequest::from_der(der).ok();
        request.is_some_and(|(_, request)| request.certification_request_info.subject_pki.raw == public)
    };
    for (piece, public) in keys {
        let fits = certificates.iter().any(|(_, other)| other.public_key().raw == public.as_slice())
            || requests.iter().any(|(_, der)| requested(der, public));
        let alone = certificates.is_empty() && requests.is_empty();
        if !(fits || alone) {
            findings.error(&piece.name, "the key does not match the certificate");
        }
    }
}

/// Checks that each certificate is signed by the next one, if the first is a leaf.
fn chain(certificates: &[(&FilePart, X509Certificate<'_>)], as_leaf: bool, findings: &mut Findings) {
    let Some((_, first)) = certificates.first() else { return };
    // A CA bundle has no order.
    if first.is_ca() && !as_leaf {
        return;
    }
    for pair in certificates.windows(2) {
        let [(piece, certificate), (above, issuer)] = pair else { continue };
        // Files given together may contain unrelated leaves.
        if !issuer.is_ca() {
            continue;
        }
        if certificate.issuer() != issuer.subject() {
            findings.error(
                &piece.name,
                format!("incomplete chain: the next certificate, {}, is not its issuer", above.name),
            );
            return;
        } else if is_false(certificate, issuer) {
            findings.error(
                &piece.name,
                format!(
                    "not signed by the next certificate, {}, which has the name of its issuer",
                    above.name
                ),
            );
            return;
        }
    }
    limits(certificates, findings);
}

/// Checks the constraints of the CAs in a chain: purposes, path length and names.
// go: crypto/x509/verify.go, isValid, checkChainForKeyUsage; constraints.go, checkChainConstraints
fn limits(certificates: &[(&FilePart, X509Certificate<'_>)], findings: &mut Findings) {
    // Files given together may contain several leaves; the chain follows the first.
    let above = certificates.iter().skip(1).take_while(|(_, certificate)| certificate.is_ca());
    let chain: Vec<_> = certificates.first().into_iter().chain(above).collect();
    let read = chain.iter().map(|(_, certificate)| Certificate::parse(certificate.as_raw().to_vec().into()));
    let Ok(read) = read.collect::<Result<Vec<_>, _>>() else { return };
    let Some((leaf, authorities)) = read.split_first() else { return };
    for (place, (authority, (piece, _))) in authorities.iter().zip(chain.iter().skip(1)).enumerate() {
        let allowed = &authority.extensions.extended_key_usage;
        let missing = leaf.extensions.extended_key_usage.purposes.iter().find(|oid| !allowed.permits(oid));
        if let Some(purpose) = missing {
            findings.error(
                &piece.name,
                format!(
                    "this CA does not allow {}, which the leaf is for: verifiers refuse the chain",
                    purpose_name(purpose)
                ),
            );
        }
        let below = authority.extensions.basic_constraints.and_then(|constraints| constraints.path_length);
        if below.is_some_and(|below| u64::try_from(place).unwrap_or(u64::MAX) > below) {
            findings.error(
                &piece.name,
                format!("too many CAs below this one: its path length is {}", below.unwrap_or_default()),
            );
        }
    }
    if let (Err(problem), Some((piece, _))) =
        (constraints::check_chain(&read.iter().collect::<Vec<_>>()), chain.first())
    {
        findings.error(&piece.name, format!("a CA may not sign for its names: {problem}"));
    }
}

/// Whether the signature is invalid. P-521 signatures, which the parser cannot check, pass.
fn is_false(certificate: &X509Certificate<'_>, issuer: &X509Certificate<'_>) -> bool {
    let verified = certificate.verify_signature(Some(issuer.public_key()));
    matches!(verified, Err(X509Error::SignatureVerificationError))
}
