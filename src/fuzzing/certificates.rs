//! Certificates: verification accepts only certificates that the CA in `authority/` has signed. Its keys were
//! discarded, so any other accepted certificate has a forged signature. The contents of a bundle do not depend on its
//! line ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use portcullis_go::pem;
use portcullis_http::identity::Identity;
use portcullis_pki::x509::{BundleError, CaBundle, ParseError, VerifyError};
use portcullis_system::clock::UnixTime;
use rustls_pki_types::CertificateDer;

use super::{NOW, ready};
use crate::authn::request_header::{RequestHeaderAuthenticator, RequestHeaderNames};
use crate::authn::trace::AuthnTrace;
use crate::authn::x509::{FrontProxyVerifier, PodIdentities, UnverifiedChain, parse_chain_for_handshake};
use crate::authn::{AuthnInput, AuthnVerdict, ConnInfo, RequestAuthenticator as _};
use crate::request::credentials::Credentials;

/// An empty PEM block, which separates two texts.
const END: &[u8] = b"\n-----BEGIN X-----\n-----END X-----\n";

/// The roots, as a PEM file. `cargo test --test it -- --ignored makes_a_new_authority` creates new ones.
const ROOTS: &[u8] = include_bytes!("authority/roots");
/// Every client certificate that the roots or the intermediate have signed and that is valid at [`NOW`].
const SIGNED: [&[u8]; 6] = [
    include_bytes!("authority/root.der"),
    include_bytes!("authority/middle.der"),
    include_bytes!("authority/alice.der"),
    include_bytes!("authority/bob.der"),
    include_bytes!("authority/carol.der"),
    include_bytes!("authority/dave.der"),
];

/// The input is the chain of a client: concatenated DER certificates, leaf first.
pub fn x509(data: &[u8]) {
    let Some(bundle) = roots() else { return };
    let certificates = elements(data);
    let ders: Vec<_> = certificates.iter().map(|der| CertificateDer::from(der.to_vec())).collect();
    let chain = UnverifiedChain::new(ders.clone());
    let verdict = chain.verify(bundle, NOW);

    // The handshake and the verification agree about malformed certificates.
    if let Some((leaf, others)) = ders.split_first() {
        let in_handshake = parse_chain_for_handshake(leaf, others);
        let kind_of_key = |error: &ParseError| error.to_string().starts_with("tls: ");
        let unread = in_handshake.as_ref().is_err_and(|error| !kind_of_key(error));
        let malformed = matches!(verdict, Err(VerifyError::Malformed(_)));
        let many = matches!(verdict, Err(VerifyError::TooManyCertificates));
        assert!(many || !unread || malformed, "{in_handshake:?}, {verdict:?}");
        assert!(!malformed || in_handshake.is_err(), "{verdict:?}");
    }
    let Ok(verified) = verdict else { return };
    let signed = certificates.first().and_then(|leaf| signed_part(leaf));
    let known = SIGNED.iter().any(|known| signed_part(known) == signed);
    assert!(signed.is_some() && known, "accepted a certificate with a forged signature: {verified:?}");
    // The verdict is valid in the reported period only.
    let (from, until) = (verified.valid_from(), verified.valid_until());
    let tick = UnixTime::from_nanos(1);
    assert!(from <= NOW && NOW <= until, "{verified:?}");
    assert!(chain.verify(bundle, from).is_ok() && chain.verify(bundle, until).is_ok(), "{verified:?}");
    assert!(chain.verify(bundle, from.saturating_sub(tick)).is_err(), "{verified:?}");
    assert!(chain.verify(bundle, until.saturating_add(tick)).is_err(), "{verified:?}");
}

/// The input is a CA bundle.
pub fn pem_bundle(data: &[u8]) {
    let found = CaBundle::from_pem(data);
    let blocks = data.windows(BEGIN.len()).filter(|window| *window == BEGIN).count();
    let known = roots();
    match &found {
        Ok(bundle) => {
            let subjects = bundle.subjects();
            assert!((1..=blocks).contains(&subjects.len()), "{} subjects of {blocks}", subjects.len());
            assert!(bundle.shares_certificate_with(bundle));
        }
        Err(BundleError::NoCertificates) => {}
        Err(BundleError::Malformed(_)) => assert!(blocks > 0, "{found:?}"),
    }
    // A line ends in LF or CRLF; a second carriage return is part of the line.
    if data.contains(&b'\r') {
        return;
    }
    let windows: Vec<u8> = data.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(b"\r\n".as_slice());
    assert_eq!(content(&CaBundle::from_pem(&windows)), content(&found));
    // Go stops reading at an END line that it takes for a header.
    if pem::blocks(&[data, END].concat()).last().is_none_or(|last| last.kind != b"X") {
        return;
    }
    // A repeated bundle has the same contents, unless the first copy ends within a block. A valid certificate before or
    // after other data is part of the bundle, or the bundle is invalid.
    let twice = CaBundle::from_pem(&[data, data].join(END));
    assert_eq!(content(&twice), content(&found));
    for text in [[ROOTS, data].join(END), [data, ROOTS].join(END)] {
        let both = CaBundle::from_pem(&text);
        match (&both, &found) {
            (Ok(both), _) => {
                assert!(known.is_some_and(|known| both.shares_certificate_with(known)));
                let kept = found.as_ref().is_ok_and(|found| both.shares_certificate_with(found));
                assert!(kept || matches!(found, Err(BundleError::NoCertificates)));
            }
            (Err(both), Err(alone)) => assert_eq!(both, alone),
            (Err(both), Ok(_)) => assert_eq!(Some(both), None),
        }
    }
}

const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// The contents of a bundle, for comparison.
fn content(bundle: &Result<CaBundle, BundleError>) -> Result<Vec<u8>, &BundleError> {
    bundle
        .as_ref()
        .map(|bundle| bundle.subjects().iter().flat_map(|subject| subject.as_ref().to_vec()).collect())
}

/// The identity from the headers of a front proxy.
pub(super) fn front_proxy(credentials: &Credentials) -> Option<Identity> {
    static AUTHENTICATOR: OnceLock<Option<(RequestHeaderAuthenticator, ConnInfo)>> = OnceLock::new();
    let make = || {
        let names = |name: &str| [name.to_owned()];
        let names = RequestHeaderNames::new(
            &names("X-Remote-User"),
            &names("X-Remote-Uid"),
            &names("X-Remote-Group"),
            &names("X-Remote-Extra-"),
        );
        let verifier = FrontProxyVerifier::new(
            Arc::new(roots()?.clone()),
            vec!["alice".to_owned()],
            PodIdentities::Ignored,
        );
        let alice = CertificateDer::from(include_bytes!("authority/alice.der").to_vec());
        Some((RequestHeaderAuthenticator::new(verifier, names.ok()?), connection(vec![alice])))
    };
    let (authenticator, conn) = AUTHENTICATOR.get_or_init(make).as_ref()?;
    let verdict = judge(conn, credentials, |input| ready(authenticator.authenticate(input)))?;
    Some(verdict.ok()??.user)
}

/// Authenticates a request on a connection without a client certificate.
pub(super) fn authenticate_without_certificate(
    ask: impl FnOnce(&AuthnInput<'_>) -> Option<AuthnVerdict>,
) -> Option<AuthnVerdict> {
    judge(&connection(Vec::new()), &Credentials::default(), ask)
}

fn judge(
    conn: &ConnInfo,
    credentials: &Credentials,
    ask: impl FnOnce(&AuthnInput<'_>) -> Option<AuthnVerdict>,
) -> Option<AuthnVerdict> {
    let trace = AuthnTrace::default();
    ask(&AuthnInput { conn, credentials, path: "/", audiences: &[], generation: 1, now: NOW, trace: &trace })
}

fn connection(chain: Vec<CertificateDer<'static>>) -> ConnInfo {
    ConnInfo::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), None, UnverifiedChain::new(chain))
}

fn roots() -> Option<&'static CaBundle> {
    static ROOTS_READ: OnceLock<Option<CaBundle>> = OnceLock::new();
    let roots = ROOTS_READ.get_or_init(|| CaBundle::from_pem(ROOTS).ok()).as_ref();
    assert!(roots.is_some(), "the committed authority cannot be read");
    roots
}

/// Splits data into DER elements; the last part may be malformed.
fn elements(mut data: &[u8]) -> Vec<&[u8]> {
    let mut elements = Vec::new();
    while !data.is_empty() {
        let (element, rest) = cut(data).map_or((data, &[][..]), |(_, element, rest)| (element, rest));
        elements.push(element);
        data = rest;
    }
    elements
}

/// The part of a certificate or CRL that its issuer signs: the first element within.
pub(super) fn signed_part(certificate: &[u8]) -> Option<&[u8]> {
    let (content, _, _) = cut(certificate)?;
    cut(content).map(|(_, element, _)| element)
}

/// The content of the first DER element, the element, and the remaining data.
fn cut(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (first, more) = match data.get(1..)? {
        [short @ 0..=0x7f, ..] => (2, usize::from(*short)),
        [0x81, length, ..] => (3, usize::from(*length)),
        [0x82, high, low, ..] => (4, usize::from(*high) << 8 | usize::from(*low)),
        _ => return None,
    };
    let (element, rest) = data.split_at_checked(first + more)?;
    Some((element.get(first..)?, element, rest))
}
