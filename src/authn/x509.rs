//! Client certificates: verifies chains, derives the user from the subject, and memoizes verdicts per connection.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/request/x509`. The TLS handshake proves possession of the leaf's key
//! and nothing else; the chain is verified per request against the CA bundle of that request, so removing a CA also
//! affects open connections. Parser and path builder follow Go's rules (`verify`), because general libraries accept and
//! refuse other chains than kube-apiserver does.
//!
//! An unverified chain must never yield a subject: only [`UnverifiedChain::verify`] does. Which attribute of the subject is the
//! UID is in `crates/pki/src/x509/name.rs`.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use aws_lc_rs::digest;
use portcullis_go::hex::hex;
use portcullis_go::quote::Quoted;
use portcullis_go::time;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::user::{CREDENTIAL_ID_KEY, UserInfo};
use portcullis_pki::revocation::path::CertificatePath;
use portcullis_pki::x509::certificate::{self, Certificate};
use portcullis_pki::x509::name::CertificateSubject;
use portcullis_pki::x509::pod_identity::{PodIdentity, PodIdentityError};
use portcullis_pki::x509::verify::{self, PeerRole};
use portcullis_pki::x509::{CaBundle, ParseError, VerifyError, bundle};
use portcullis_system::clock::UnixTime;
use portcullis_system::sync::lock;
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};

use crate::authn::trace::{Check, StepOutcome};
use crate::authn::{
    Authenticated, AuthnError, AuthnInput, AuthnMethod, AuthnVerdict, BoxFuture, RequestAuthenticator,
};

/// Maximum length of a client's chain. Go limits only the size of the message.
const MAX_CERTIFICATES: usize = 100;

/// Parses a client's leaf certificate with the checks of kube-apiserver's TLS stack. Returns the public key for the
/// proof of possession; trust is decided later, per request.
// go: crypto/tls/handshake_server.go, processCertsFromClient
pub fn parse_for_handshake(
    certificate: &CertificateDer<'_>,
) -> Result<SubjectPublicKeyInfoDer<'static>, ParseError> {
    let certificate = Certificate::parse(certificate.clone().into_owned())?;
    if !certificate.public_key.usable_in_tls() {
        return Err(ParseError("tls: client certificate contains an unsupported public key"));
    }
    Ok(SubjectPublicKeyInfoDer::from(certificate.spki))
}

/// [`parse_for_handshake`] for a whole chain: a certificate that does not parse ends the handshake, at any position.
pub fn parse_chain_for_handshake(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<SubjectPublicKeyInfoDer<'static>, ParseError> {
    let key = parse_for_handshake(end_entity)?;
    for intermediate in intermediates {
        let parsed = Certificate::parse(intermediate.clone().into_owned())?;
        if !parsed.public_key.allowed_in_tls() {
            return Err(ParseError("tls: client sent certificate containing RSA key larger than 8192 bits"));
        }
    }
    Ok(key)
}

/// The certificates of a client, leaf first. Only possession of the leaf's key is proven.
#[derive(Debug, Default)]
pub struct UnverifiedChain(Vec<CertificateDer<'static>>);

impl UnverifiedChain {
    /// The certificates in the client's order; empty for a client without certificate.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self(certificates)
    }

    fn leaf(&self) -> Option<Certificate> {
        Certificate::parse(self.0.first()?.clone()).ok()
    }

    /// Whether the client presented no certificate.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the leaf has a PodIdentity extension. It proves nothing until the chain is verified.
    pub fn claims_pod(&self) -> bool {
        self.leaf().is_some_and(|leaf| leaf.extensions.pod_identity.is_some())
    }

    /// The common name of the leaf. It proves nothing until the chain is verified.
    pub fn leaf_common_name(&self) -> Option<String> {
        Some(self.leaf()?.subject.name.common_name)
    }

    /// `notAfter` of the leaf, for the metric of remaining lifetimes, which kube-apiserver observes before it verifies
    /// the chain.
    pub fn leaf_not_after(&self) -> Option<i64> {
        Some(self.leaf()?.not_after)
    }
}

/// A chain that leads to a trusted CA. Holds the subject but not the certificates, because a connection may keep it for
/// hours.
#[derive(Debug)]
pub struct VerifiedChain {
    subject: CertificateSubject,
    path: Arc<CertificatePath>,
    sha256: String,
    serial: String,
    valid_from: UnixTime,
    valid_until: UnixTime,
    user: OnceLock<Result<Option<Identity>, SubjectError>>,
    /// Whether the leaf has a PodIdentity extension, of whatever content.
    claims_pod: bool,
    pod: Option<VerifiedPod>,
}

/// What the leaf of a pod says of it.
#[derive(Debug)]
struct VerifiedPod {
    identity: Result<PodIdentity, PodIdentityError>,
    user: OnceLock<Identity>,
}

/// Whose certificate a chain is. Part of the verdict: one CA may be that of users in one cluster and of pods in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainOwner {
    /// A user or a front proxy.
    User,
    /// A pod.
    Pod,
}

/// Why a verified subject cannot become a user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// The subject has several UID attributes.
    #[error("expected 1 UID, but found multiple: [{0}]")]
    SeveralUids(String),
    /// The UID attribute is empty.
    #[error("UID cannot be an empty string")]
    EmptyUid,
}

impl VerifiedChain {
    /// The last common name of the subject; empty if there is none.
    pub fn common_name(&self) -> &str {
        &self.subject.name.common_name
    }

    /// The organizations of the subject, in order and with duplicates.
    pub fn organizations(&self) -> &[String] {
        &self.subject.name.organization
    }

    /// The UID of the subject, if present.
    // apiserver: pkg/authentication/request/x509/x509.go, parseUIDFromCert
    pub fn uid(&self) -> Result<Option<&str>, SubjectError> {
        match self.subject.uids.as_slice() {
            [] => Ok(None),
            [uid] if uid.is_empty() => Err(SubjectError::EmptyUid),
            [uid] => Ok(Some(uid)),
            uids => Err(SubjectError::SeveralUids(uids.join(" "))),
        }
    }

    /// The certificates, by which revocations name them.
    pub(crate) fn path(&self) -> &Arc<CertificatePath> {
        &self.path
    }

    /// SHA-256 of the leaf in lower-case hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Serial number of the leaf in decimal.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// The first instant at which every certificate of the chain is valid.
    pub fn valid_from(&self) -> UnixTime {
        self.valid_from
    }

    /// The last instant at which every certificate of the chain is valid.
    pub fn valid_until(&self) -> UnixTime {
        self.valid_until
    }

    /// The subject as a user, with the group `system:authenticated`; `None` for a subject without a common name.
    // apiserver: pkg/authentication/request/x509/x509.go, CommonNameUserConversion
    pub fn user(&self) -> Result<Option<Identity>, SubjectError> {
        let convert = || {
            if self.common_name().is_empty() {
                return Ok(None);
            }
            let mut user = UserInfo::named(self.common_name());
            user.uid = self.uid()?.map(str::to_owned);
            user.groups = self.organizations().to_vec();
            let credential = format!("X509SHA256={}", self.sha256());
            user.extra = BTreeMap::from([(CREDENTIAL_ID_KEY.to_owned(), vec![credential])]);
            Ok(Some(user.in_authenticated_group().into()))
        };
        self.user.get_or_init(convert).clone()
    }

    /// The pod to which the certificate is bound; an error for a chain that was not verified as that of a pod.
    pub(crate) fn pod_identity(&self) -> Result<&PodIdentity, PodIdentityError> {
        let pod = self.pod.as_ref().ok_or(PodIdentityError::Absent)?;
        pod.identity.as_ref().map_err(Clone::clone)
    }

    /// The user of a pod's certificate, which is made once.
    pub(crate) fn pod_user(&self, make: impl FnOnce() -> UserInfo) -> Identity {
        match &self.pod {
            Some(pod) => pod.user.get_or_init(|| make().into()).clone(),
            None => make().into(),
        }
    }
}

impl UnverifiedChain {
    /// Verifies the chain as kube-apiserver does with `authorities` as `--client-ca-file`.
    pub fn verify(&self, authorities: &CaBundle, now: UnixTime) -> Result<VerifiedChain, VerifyError> {
        self.verdict(ChainOwner::User, authorities, now).verdict
    }

    fn verdict(&self, owner: ChainOwner, authorities: &CaBundle, now: UnixTime) -> ChainVerdict {
        let always =
            |verdict| ChainVerdict { verdict, leaf: None, from: UnixTime::ZERO, until: UnixTime::MAX };
        let parsed = match parse_all(self) {
            Ok(parsed) => parsed,
            Err(error) => return always(Err(error)),
        };
        let Some((leaf, others)) = parsed.split_first() else {
            return always(Err(VerifyError::UnknownAuthority(None)));
        };
        let role = match owner {
            ChainOwner::User => PeerRole::Client,
            ChainOwner::Pod => PeerRole::Pod,
        };
        match verify::verify(role, authorities, leaf, others, now) {
            Ok(path) => {
                let (from, until) = (instant(path.not_before), instant(path.not_after));
                let chain = VerifiedChain {
                    subject: leaf.subject.clone(),
                    path: Arc::new(CertificatePath::of(&path.certificates)),
                    sha256: hex(digest::digest(&digest::SHA256, &leaf.der).as_ref()),
                    serial: certificate::decimal(&leaf.serial),
                    valid_from: from,
                    valid_until: until,
                    user: OnceLock::new(),
                    claims_pod: leaf.extensions.pod_identity.is_some(),
                    pod: (owner == ChainOwner::Pod).then(|| VerifiedPod {
                        identity: PodIdentity::of_certificate(leaf),
                        user: OnceLock::new(),
                    }),
                };
                ChainVerdict { verdict: Ok(chain), leaf: None, from, until }
            }
            Err(error) => {
                let (from, until) = unchanged_span(now, parsed.iter().chain(authorities.certificates()));
                let is_stranger = matches!(error, VerifyError::UnknownAuthority(_));
                let is_bad_pod = !is_stranger && leaf.extensions.pod_identity.is_some();
                let leaf = RefusedLeaf { identifier: identifier(leaf), is_bad_pod };
                ChainVerdict { verdict: Err(error), leaf: Some(leaf), from, until }
            }
        }
    }
}

fn parse_all(chain: &UnverifiedChain) -> Result<Vec<Certificate>, VerifyError> {
    if chain.0.len() > MAX_CERTIFICATES {
        return Err(VerifyError::TooManyCertificates);
    }
    Ok(chain.0.iter().cloned().map(Certificate::parse).collect::<Result<_, _>>()?)
}

/// The octets of a key identifier in a log line; a client may present any number.
const MAX_PRINTED_KEY_ID: usize = 64;

/// Identifies a certificate in the log as kube-apiserver does.
// apiserver: pkg/authentication/request/x509/x509.go, certificateIdentifier
fn identifier(leaf: &Certificate) -> String {
    let colons = |octets: &[u8]| {
        let shown = octets.get(..MAX_PRINTED_KEY_ID).unwrap_or(octets);
        let pairs: Vec<String> = shown.iter().map(|octet| format!("{octet:02X}")).collect();
        let cut = if shown.len() < octets.len() { "…" } else { "" };
        pairs.join(":") + cut
    };
    format!(
        "SN={}, SKID={}, AKID={}",
        certificate::decimal(&leaf.serial),
        colons(&leaf.extensions.subject_key_id),
        colons(&leaf.extensions.authority_key_id)
    )
}

/// A verdict and the time span in which another verification would return the same.
struct ChainVerdict {
    verdict: Result<VerifiedChain, VerifyError>,
    /// The leaf of a refused chain.
    leaf: Option<RefusedLeaf>,
    from: UnixTime,
    until: UnixTime,
}

fn instant(seconds: i64) -> UnixTime {
    UnixTime::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// The time span around `now` in which no certificate becomes valid or expires: a refusal cannot change within it.
fn unchanged_span<'a>(now: UnixTime, all: impl Iterator<Item = &'a Certificate>) -> (UnixTime, UnixTime) {
    let tick = UnixTime::from_nanos(1);
    let (mut from, mut until) = (UnixTime::ZERO, UnixTime::MAX);
    for certificate in all {
        let (first, last) = (instant(certificate.not_before), instant(certificate.not_after));
        if now < first {
            until = until.min(first.saturating_sub(tick));
        } else {
            from = from.max(first);
        }
        if now > last {
            from = from.max(last.saturating_add(tick));
        } else {
            until = until.min(last);
        }
    }
    (from, until)
}

/// Memoizes verdicts on one connection's chain, so that its requests do not repeat the signature checks.
///
/// A verdict holds for one generation of the configuration, one bundle, and the time span in which it cannot change.
// threat: revoked-on-open-connection
#[derive(Debug, Default)]
pub struct VerdictMemo(Mutex<Vec<MemoizedVerdict>>);

#[derive(Debug)]
struct MemoizedVerdict {
    generation: u64,
    owner: ChainOwner,
    bundle: bundle::BundleFingerprint,
    from: UnixTime,
    until: UnixTime,
    verdict: Result<Arc<VerifiedChain>, Arc<ChainRefusal>>,
}

/// Why a chain was refused, and its leaf, if it parses. Kept as text: a user's chain is refused as a front
/// proxy's with every request of its connection.
#[derive(Debug)]
pub(super) struct ChainRefusal {
    error: String,
    check: Check,
    leaf: Option<RefusedLeaf>,
}

/// The leaf of a chain that was refused.
#[derive(Debug)]
struct RefusedLeaf {
    /// The log's identifier.
    identifier: String,
    /// Whether it has a PodIdentity extension, and is refused for another reason than its CA, such as its end.
    is_bad_pod: bool,
}

impl ChainRefusal {
    /// Whether this is the reason to tell, and not that no CA of users has signed the certificate.
    pub(super) fn is_of_pod(&self) -> bool {
        self.leaf.as_ref().is_some_and(|leaf| leaf.is_bad_pod)
    }

    /// The error of an authenticator by this name, with its step.
    pub(super) fn of(&self, authenticator: &str, input: &AuthnInput<'_>) -> AuthnError {
        input.trace.step(authenticator, self.check.clone(), StepOutcome::Failed, || self.error.clone());
        let leaf = self.leaf.as_ref().map_or("that does not parse", |leaf| &leaf.identifier);
        AuthnError::Invalid(format!("verifying certificate {leaf} failed: {}", self.error))
    }
}

impl VerdictMemo {
    /// Maximum number of verdicts: more than the bundles of one generation that a connection encounters.
    const CAPACITY: usize = 24;

    // threat: pod-identity-extension
    pub(super) fn verify(
        &self,
        input: &AuthnInput<'_>,
        owner: ChainOwner,
        bundle: &CaBundle,
    ) -> Result<Arc<VerifiedChain>, Arc<ChainRefusal>> {
        let (generation, now, fingerprint) = (input.generation, input.now, bundle.fingerprint());
        let current = |one: &MemoizedVerdict| {
            let is_of_bundle = one.bundle == fingerprint && one.owner == owner;
            one.generation == generation && is_of_bundle && one.from <= now && now <= one.until
        };
        if let Some(known) = self.lock().iter().find(|one| current(one)) {
            return known.verdict.clone();
        }
        // Verify without the lock: two requests may do the same work, but neither waits for the other.
        let ChainVerdict { verdict, leaf, from, until } = input.conn.peer_chain.verdict(owner, bundle, now);
        let verdict = verdict.map(Arc::new).map_err(|error| {
            Arc::new(ChainRefusal { error: error.to_string(), check: Check::of_chain(&error), leaf })
        });
        let remembered =
            MemoizedVerdict { generation, owner, bundle: fingerprint, from, until, verdict: verdict.clone() };
        let mut known = self.lock();
        known.retain(|one| one.generation == generation && (one.bundle != fingerprint || one.owner != owner));
        if known.len() >= Self::CAPACITY {
            known.remove(0);
        }
        known.push(remembered);
        verdict
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<MemoizedVerdict>> {
        lock(&self.0)
    }
}

/// Whether users and front proxies may have certificates with a PodIdentity extension.
///
/// The client chooses the intermediates, and so which of several CAs its chain leads to. Where pods authenticate by such certificates,
/// one must not become a user's, whose objects no check looks for.
// threat: pod-certificate-as-user
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodIdentities {
    /// As kube-apiserver does: the extension means nothing.
    Ignored,
    /// In clusters with a CA of pods.
    Refused,
}

impl PodIdentities {
    fn check(self, chain: &VerifiedChain) -> Result<(), AuthnError> {
        if self == Self::Refused && chain.claims_pod {
            const PROBLEM: &str = "it has a PodIdentity extension, and its chain leads to no CA of pods";
            return Err(AuthnError::Invalid(format!("certificate of a pod refused: {PROBLEM}")));
        }
        Ok(())
    }
}

/// Authenticates by client certificate: the common name is the user, the organizations are the groups.
#[derive(Debug)]
pub(crate) struct X509Authenticator {
    bundle: Arc<CaBundle>,
    pods: PodIdentities,
}

impl X509Authenticator {
    /// Trusts the CAs in `bundle` for users.
    pub(crate) fn new(bundle: Arc<CaBundle>, pods: PodIdentities) -> Self {
        Self { bundle, pods }
    }

    /// The verdict on the certificate of a request.
    pub(super) fn judge(&self, input: &AuthnInput<'_>) -> AuthnVerdict {
        if input.conn.peer_chain.is_empty() {
            return Ok(None);
        }
        let step = |check: Check, outcome, detail: &dyn Fn() -> String| {
            input.trace.step(self.name(), check, outcome, detail);
        };
        let verdict = input.conn.verdicts.verify(input, ChainOwner::User, &self.bundle);
        let chain = verdict.map_err(|refusal| refusal.of(self.name(), input))?;
        if let Err(error) = self.pods.check(&chain) {
            step(Check::Other("pod identity"), StepOutcome::Failed, &|| error.to_string());
            return Err(error);
        }
        step(Check::Chain, StepOutcome::Passed, &|| {
            "signed by a client CA, valid for client authentication".to_owned()
        });
        step(Check::Other("validity"), StepOutcome::Passed, &|| {
            format!(
                "{} to {}",
                time::format_since_epoch(chain.valid_from()),
                time::format_since_epoch(chain.valid_until())
            )
        });
        let named =
            if chain.common_name().is_empty() { StepOutcome::NotApplicable } else { StepOutcome::Passed };
        step(Check::Other("subject CN"), named, &|| Quoted(chain.common_name()).to_string());
        for organization in chain.organizations() {
            step(Check::Other("subject O"), StepOutcome::Passed, &|| Quoted(organization).to_string());
        }
        if let Err(error) = chain.uid() {
            step(Check::Other("subject UID"), StepOutcome::Failed, &|| error.to_string());
        }
        let user = chain.user().map_err(|error| AuthnError::Invalid(error.to_string()))?;
        // No audiences: a certificate is valid for all of them.
        Ok(user.map(|user| Authenticated {
            user,
            audiences: Vec::new(),
            method: AuthnMethod::X509,
            certificates: Some(Arc::clone(chain.path())),
            expires: None,
        }))
    }
}

impl RequestAuthenticator for X509Authenticator {
    fn name(&self) -> &'static str {
        AuthnMethod::X509.name()
    }

    fn authenticate<'a>(&'a self, input: &'a AuthnInput<'a>) -> BoxFuture<'a, AuthnVerdict> {
        let verdict = self.judge(input);
        Box::pin(async move { verdict })
    }
}

/// Recognizes front proxies by a certificate from their own CA.
// apiserver: pkg/authentication/request/x509/x509.go, Verifier
#[derive(Debug)]
pub(crate) struct FrontProxyVerifier {
    bundle: Arc<CaBundle>,
    allowed_names: Vec<String>,
    pods: PodIdentities,
}

impl FrontProxyVerifier {
    /// Trusts the CAs in `bundle` for clients whose common name is in `allowed_names`; an empty list allows every name.
    pub(crate) fn new(bundle: Arc<CaBundle>, allowed_names: Vec<String>, pods: PodIdentities) -> Self {
        Self { bundle, allowed_names, pods }
    }

    /// The chain of a front proxy: `None` for a client without certificate, an error for a certificate that is not a
    /// front proxy's.
    pub(crate) fn verify(&self, input: &AuthnInput<'_>) -> Result<Option<Arc<VerifiedChain>>, AuthnError> {
        if input.conn.peer_chain.is_empty() {
            return Ok(None);
        }
        let chain = input
            .conn
            .verdicts
            .verify(input, ChainOwner::User, &self.bundle)
            .map_err(|refusal| AuthnError::Invalid(refusal.error.clone()))?;
        self.pods.check(&chain)?;
        let name = chain.common_name();
        if self.allowed_names.is_empty() || self.allowed_names.iter().any(|allowed| allowed == name) {
            return Ok(Some(chain));
        }
        Err(AuthnError::Invalid(format!("x509: subject with cn={name} is not in the allowed list")))
    }
}
