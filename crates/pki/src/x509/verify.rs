//! Path validation of the certificates of clients and servers, by the rules of Go's `crypto/x509`.
//!
//! kube-apiserver calls `Certificate.Verify` with the bundle as roots and the peer's other certificates as
//! intermediates: for a client with clientAuth as the only purpose, for a server with serverAuth and the name of its
//! host; this module implements that call. The order of the candidates and the limit on signature checks are Go's too,
//! since both can decide the outcome. One path is enough: kube-apiserver converts every chain of a client to a user, but
//! the user is the leaf's subject, which is the same in all of them.

use std::collections::HashSet;

use portcullis_go::time::format_utc;
use portcullis_system::clock::UnixTime;

use super::bundle::CaBundle;
use super::certificate::{Certificate, KEY_CERT_SIGN, ParseError};
use super::host_name::{self, HostNameError};
use super::signature::{PublicKey, SignatureError};
use super::{constraints, policy, time};

/// Limit on the signature checks of one verification.
// go: crypto/x509/verify.go, maxChainSignatureChecks
const MAX_SIGNATURE_CHECKS: usize = 100;

/// Why a chain is not trusted. The texts are Go's, as kube-apiserver logs them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// A certificate of the chain does not parse.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// The chain has more certificates than our limit; Go has no such limit.
    #[error("x509: too many certificates in the chain")]
    TooManyCertificates,
    /// A critical extension is not supported.
    #[error("x509: unhandled critical extension")]
    UnhandledCriticalExtension,
    /// The time is before notBefore.
    #[error("x509: certificate has expired or is not yet valid: current time {now} is before {limit}")]
    NotYetValid {
        /// The time of the verification.
        now: String,
        /// The notBefore time of the certificate.
        limit: String,
    },
    /// The time is after notAfter.
    #[error("x509: certificate has expired or is not yet valid: current time {now} is after {limit}")]
    Expired {
        /// The time of the verification.
        now: String,
        /// The notAfter time of the certificate.
        limit: String,
    },
    /// An intermediate is not a CA certificate.
    #[error("x509: certificate is not authorized to sign other certificates")]
    NotAuthorizedToSign,
    /// The parent must not sign certificates: not a CA, no basic constraints in version 3, or no keyCertSign.
    #[error("x509: invalid signature: parent certificate cannot sign this kind of certificate")]
    ParentCannotSign,
    /// The path exceeds the path length constraint of a CA.
    #[error("x509: too many intermediates for path length constraint")]
    TooManyIntermediates,
    /// A signature does not verify.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The server's certificate has another name than its host.
    #[error(transparent)]
    HostName(#[from] HostNameError),
    /// A certificate of the path is not valid for the purpose: authentication of clients, or of servers.
    #[error("x509: certificate specifies an incompatible key usage")]
    IncompatibleUsage,
    /// A name violates the name constraints of a CA.
    #[error("x509: a root or intermediate certificate is not authorized to sign for this name: {0}")]
    NameNotAllowed(String),
    /// Certificate policies, alone or with key usages, allow no path.
    #[error("x509: no valid chains built: {0}")]
    NoValidChains(String),
    /// The verification reached the limit on signature checks.
    #[error("x509: signature check attempts limit reached while verifying certificate chain")]
    SignatureLimit,
    /// No path to a root; with the first error and the candidate CA that caused it.
    #[error("x509: certificate signed by unknown authority{}", show_hint(.0.as_deref()))]
    UnknownAuthority(Option<Box<(Self, String)>>),
}

fn show_hint(hint: Option<&(VerifyError, String)>) -> String {
    hint.map_or_else(String::new, |(error, authority)| {
        let error = error.to_string();
        format!(
            " (possibly because of {error:?} while trying to verify candidate authority certificate {authority:?})"
        )
    })
}

/// Whose certificate is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerRole<'a> {
    /// A client's: it must be valid for clientAuth.
    Client,
    /// That of a client that is a pod: the same, and it may have a critical PodIdentity extension, which the caller reads.
    Pod,
    /// A server's: it must be valid for serverAuth, and have this name.
    Server {
        /// The DNS name or the IP address of the host.
        host: &'a str,
    },
}

impl PeerRole<'_> {
    /// The content of the purpose's OID, 1.3.6.1.5.5.7.3.{2,1}.
    fn purpose(self) -> &'static [u8] {
        match self {
            Self::Client | Self::Pod => &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02],
            Self::Server { .. } => &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01],
        }
    }
}

/// The position of a certificate in a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathPosition {
    Leaf,
    /// The leaf of a pod.
    PodLeaf,
    Intermediate,
    Root,
}

/// A path from a leaf to a trust anchor.
#[derive(Debug)]
pub struct VerifiedPath<'a> {
    /// The first second in which every certificate is valid.
    pub not_before: i64,
    /// The last second in which every certificate is valid.
    pub not_after: i64,
    /// The certificates, leaf first, trust anchor last. Each but the last was signed by the one after it.
    pub certificates: Vec<&'a Certificate>,
}

/// Finds a path from `leaf`, the certificate of a peer in this role, to `bundle`.
// threat: foreign-intermediates
// go: crypto/x509/verify.go, Verify
pub fn verify<'a>(
    role: PeerRole<'_>,
    bundle: &'a CaBundle,
    leaf: &'a Certificate,
    others: &'a [Certificate],
    now: UnixTime,
) -> Result<VerifiedPath<'a>, VerifyError> {
    let leaf_position = if role == PeerRole::Pod { PathPosition::PodLeaf } else { PathPosition::Leaf };
    check_place(leaf, leaf_position, &[], now)?;
    if let PeerRole::Server { host } = role {
        host_name::verify(leaf, host)?;
    }
    let mut search = PathSearch {
        purpose: role.purpose(),
        roots: bundle.certificates(),
        intermediates: distinct(others),
        now,
        signature_checks: 0,
        refused_usage: 0,
        refused_policies: 0,
        refused_name: None,
    };
    if bundle.contains(leaf) {
        // The leaf is a trust anchor: the path has no signature to check.
        if let Some(path) = search.accept(&[leaf]) {
            return Ok(path);
        }
        return Err(search.refusal().unwrap_or(VerifyError::UnknownAuthority(None)));
    }
    match search.extend(&mut vec![leaf]) {
        Ok(Some(path)) => Ok(path),
        Ok(None) => Err(search.refusal().unwrap_or(VerifyError::UnknownAuthority(None))),
        Err(error) => Err(search.refusal().unwrap_or(error)),
    }
}

/// The certificates without duplicates, in order.
fn distinct(certificates: &[Certificate]) -> Vec<&Certificate> {
    let mut seen = HashSet::new();
    certificates.iter().filter(|certificate| seen.insert(certificate.der.as_ref())).collect()
}

struct PathSearch<'a> {
    purpose: &'static [u8],
    roots: &'a [Certificate],
    intermediates: Vec<&'a Certificate>,
    now: UnixTime,
    signature_checks: usize,
    /// Paths that reached a root and were then rejected, by reason.
    refused_usage: usize,
    refused_policies: usize,
    refused_name: Option<String>,
}

impl<'a> PathSearch<'a> {
    /// Tries every possible issuer of the last certificate of `path`. `Ok(None)`: paths reached a root, but all were
    /// rejected.
    // go: crypto/x509/verify.go, buildChains
    fn extend(&mut self, path: &mut Vec<&'a Certificate>) -> Result<Option<VerifiedPath<'a>>, VerifyError> {
        let Some(child) = path.last().copied() else {
            return Ok(None);
        };
        let mut reached = false;
        let mut hint: Option<Box<(VerifyError, String)>> = None;
        // The error of the last candidate whose signature verified, if that candidate failed.
        let mut failure = None;
        let candidates = candidates(child, self.roots.iter())
            .into_iter()
            .map(|root| (PathPosition::Root, root))
            .chain(
                candidates(child, self.intermediates.iter().copied())
                    .into_iter()
                    .map(|intermediate| (PathPosition::Intermediate, intermediate)),
            )
            .collect::<Vec<_>>();

        for (place, candidate) in candidates {
            self.signature_checks += 1;
            if self.signature_checks > MAX_SIGNATURE_CHECKS {
                failure = Some(VerifyError::SignatureLimit);
                break;
            }
            if candidate.public_key == PublicKey::Unknown || is_repetition(candidate, path) {
                continue;
            }
            if let Err(error) = child.check_signature_from(candidate) {
                hint.get_or_insert_with(|| Box::new((error, candidate.label())));
                continue;
            }
            if let Err(error) = check_place(candidate, place, path, self.now) {
                hint.get_or_insert_with(|| Box::new((error.clone(), candidate.label())));
                failure = Some(error);
                continue;
            }
            failure = None;
            path.push(candidate);
            let outcome = match place {
                PathPosition::Root => Ok(self.accept(path)),
                _ => self.extend(path),
            };
            path.pop();
            match outcome {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => reached = true,
                Err(error) => {
                    let spent = error == VerifyError::SignatureLimit;
                    failure = Some(error);
                    if spent {
                        break;
                    }
                }
            }
        }
        if reached { Ok(None) } else { Err(failure.unwrap_or(VerifyError::UnknownAuthority(hint))) }
    }

    /// Checks a complete path, leaf first.
    fn accept(&mut self, path: &[&'a Certificate]) -> Option<VerifiedPath<'a>> {
        if !policy::chain_allowed(path) {
            self.refused_policies += 1;
            return None;
        }
        // Extended key usages nest: every certificate that has the extension must permit the purpose.
        // go: crypto/x509/verify.go, checkChainForKeyUsage
        if !path.iter().all(|one| one.extensions.extended_key_usage.permits(self.purpose)) {
            self.refused_usage += 1;
            return None;
        }
        if let Err(reason) = constraints::check_chain(path) {
            self.refused_name.get_or_insert(reason);
            return None;
        }
        let not_before = path.iter().map(|certificate| certificate.not_before).max()?;
        let not_after = path.iter().map(|certificate| certificate.not_after).min()?;
        Some(VerifiedPath { not_before, not_after, certificates: path.to_vec() })
    }

    /// Why complete paths were rejected, if there were any.
    fn refusal(&self) -> Option<VerifyError> {
        if let Some(reason) = &self.refused_name {
            return Some(VerifyError::NameNotAllowed(reason.clone()));
        }
        match (self.refused_usage, self.refused_policies) {
            (0, 0) => None,
            (_, 0) => Some(VerifyError::IncompatibleUsage),
            (0, policies) => {
                Some(VerifyError::NoValidChains(format!("{policies} candidate chains with invalid policies")))
            }
            (usage, policies) => Some(VerifyError::NoValidChains(format!(
                "{usage} candidate chains with incompatible key usage, {policies} candidate chains with invalid \
                 policies"
            ))),
        }
    }
}

/// The certificates with the issuer's name, likeliest first: matching key identifiers, then those missing on one side,
/// then different ones. A different identifier does not exclude a candidate.
// go: crypto/x509/cert_pool.go, findPotentialParents
fn candidates<'a>(child: &Certificate, pool: impl Iterator<Item = &'a Certificate>) -> Vec<&'a Certificate> {
    let wanted = &child.extensions.authority_key_id;
    let mut found: Vec<&Certificate> = pool.filter(|parent| parent.raw_subject == child.issuer).collect();
    found.sort_by_key(|parent| {
        let offered = &parent.extensions.subject_key_id;
        match (offered == wanted, offered.is_empty() != wanted.is_empty()) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        }
    });
    found
}

/// Whether the path already has a certificate with this name and key, which would make a loop.
// go: crypto/x509/verify.go, alreadyInChain
fn is_repetition(candidate: &Certificate, path: &[&Certificate]) -> bool {
    let own = candidate.extensions.alternative_names.as_ref();
    for certificate in path {
        if candidate.raw_subject != certificate.raw_subject || candidate.spki != certificate.spki {
            continue;
        }
        match (own, certificate.extensions.alternative_names.as_ref()) {
            (None, None) => return true,
            (Some(own), Some(other)) if own == other => return true,
            (Some(_), Some(_)) => {}
            _ => return false,
        }
    }
    false
}

/// Whether basic constraints and key usage let the key of a certificate sign what this usage is for.
// go: crypto/x509/x509.go, CheckSignatureFrom
pub(super) fn check_may_sign(parent: &Certificate, for_usage: u16) -> Result<(), VerifyError> {
    let may_sign = match parent.extensions.basic_constraints {
        Some(constraints) => constraints.is_ca,
        // Versions before 3 have no extensions, so no basic constraints.
        None => parent.version != 3,
    };
    let usage = parent.extensions.key_usage;
    if may_sign && (usage == 0 || usage & for_usage != 0) {
        Ok(())
    } else {
        Err(VerifyError::ParentCannotSign)
    }
}

impl Certificate {
    /// Checks that the key of `parent` has signed the certificate, and may sign certificates. Compares no names.
    // go: crypto/x509/x509.go, CheckSignatureFrom
    pub fn check_signature_from(&self, parent: &Self) -> Result<(), VerifyError> {
        check_may_sign(parent, KEY_CERT_SIGN)?;
        Ok(parent.public_key.verify(self.algorithm, &self.tbs, &self.signature)?)
    }
}

/// Checks whether a certificate may be at this position above `path`.
// go: crypto/x509/verify.go, isValid
fn check_place(
    certificate: &Certificate,
    place: PathPosition,
    path: &[&Certificate],
    now: UnixTime,
) -> Result<(), VerifyError> {
    let extensions = &certificate.extensions;
    // threat: pod-identity-extension
    let is_unhandled = match place {
        PathPosition::PodLeaf => extensions.unhandled_critical_of_pod,
        PathPosition::Leaf | PathPosition::Intermediate | PathPosition::Root => extensions.unhandled_critical,
    };
    if is_unhandled {
        return Err(VerifyError::UnhandledCriticalExtension);
    }
    let shown = || format_utc(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    if time::is_before(now, certificate.not_before) {
        return Err(VerifyError::NotYetValid { now: shown(), limit: format_utc(certificate.not_before) });
    }
    if time::is_after(now, certificate.not_after) {
        return Err(VerifyError::Expired { now: shown(), limit: format_utc(certificate.not_after) });
    }
    let constraints = extensions.basic_constraints;
    if place == PathPosition::Intermediate && !constraints.is_some_and(|constraints| constraints.is_ca) {
        return Err(VerifyError::NotAuthorizedToSign);
    }
    // Like Go and unlike RFC 5280, counts self-issued intermediates.
    let intermediates = u64::try_from(path.len().saturating_sub(1)).unwrap_or(u64::MAX);
    match constraints.and_then(|constraints| constraints.path_length) {
        Some(allowed) if !path.is_empty() && intermediates > allowed => {
            Err(VerifyError::TooManyIntermediates)
        }
        _ => Ok(()),
    }
}
