//! Signing keys in PKCS#11 tokens.
//!
//! The gateway hashes the message, so the token needs only raw signature mechanisms, which every token has; those that hash
//! are for keys that want a login for each signature. A failed signature is tried again in a new session, then with the
//! module initialized again: tokens are removed, their daemons restart, and another process may take one for a moment. A
//! PIN that the token has rejected is never sent twice.

mod error;
mod module;
mod pin;
mod session;
mod slots;
mod uri;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_system::sync::lock;

use super::{PrivateKeyError, SignError, Signer, SigningAlgorithm};
use crate::issuance::public_key::{self, StrongPublicKey};
use error::TokenError;
use module::TokenModule;
use session::TokenSession;
use uri::Pkcs11Uri;

/// The pauses before the attempts after the first: the module is initialized again for each.
const RETRY_PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

/// Signed to find out whether a key belongs to a certificate, where the token does not have the public key. No certificate
/// and no CRL begins like this.
const PROOF: &[u8] = b"portcullis: does this private key belong to the certificate of the CA?";

/// A private key in a PKCS#11 token, identified by an RFC 7512 URI.
pub struct Pkcs11Key {
    uri: Pkcs11Uri,
    module: Arc<TokenModule>,
    public: Vec<u8>,
    algorithm: SigningAlgorithm,
    open: Mutex<OpenKey>,
}

/// What is known of the key in the token.
#[derive(Default)]
struct OpenKey {
    /// `None` before the first use and after a failure.
    session: Option<TokenSession>,
    /// Whether the key in the token is the one of `public`.
    is_checked: bool,
    /// Why the last attempt failed.
    problem: Option<String>,
}

impl fmt::Debug for Pkcs11Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenKey({:?}, {:?})", self.uri.token, self.uri.object)
    }
}

impl Drop for Pkcs11Key {
    fn drop(&mut self) {
        let lease = self.module.any_lease();
        if let Some(session) = lock(&self.open).session.take() {
            session.close(&lease);
        }
    }
}

impl Pkcs11Key {
    /// Finds the private key in the token. The public key is the token's; where the token does not have it, that of the CA
    /// certificate, `expected`, an encoded `SubjectPublicKeyInfo`. Blocks.
    pub fn open(uri: &str, expected: Option<&[u8]>) -> Result<Self, PrivateKeyError> {
        let uri = Pkcs11Uri::parse(uri)?;
        let module = TokenModule::load(&uri.module_path)?;
        let (open, public) = retried(&module, |generation| {
            let lease = module.lease()?;
            *generation = lease.generation();
            let session = TokenSession::open(&lease, &uri)?;
            let public = match (session.public_key(&uri)?, expected) {
                (Some(key), _) => encoded(&key)?,
                (None, Some(expected)) => {
                    prove(&session, &uri, expected)?;
                    expected.to_vec()
                }
                (None, None) => {
                    return Err(TokenError::refused(format!(
                        "the token has no public key of {}: only a certificate could tell it",
                        uri.of_key()
                    )));
                }
            };
            check_login_for_each(&session, &uri, &public)?;
            Ok((session, public))
        })?;
        let algorithm = algorithm(&public)?;
        let open = OpenKey { session: Some(open), is_checked: true, problem: None };
        Ok(Self { uri, module, public, algorithm, open: Mutex::new(open) })
    }

    /// The key of a certificate, in a token that is absent now: `problem` says why.
    pub fn absent(uri: &str, expected: &[u8], problem: &PrivateKeyError) -> Result<Self, PrivateKeyError> {
        let uri = Pkcs11Uri::parse(uri)?;
        let module = TokenModule::load(&uri.module_path)?;
        let algorithm = algorithm(expected)?;
        let open = OpenKey { problem: Some(problem.to_string()), ..OpenKey::default() };
        Ok(Self { uri, module, public: expected.to_vec(), algorithm, open: Mutex::new(open) })
    }

    /// Calls `work` with a session, which is opened if necessary, and again if it fails.
    fn with_session<T>(
        &self,
        work: impl Fn(&TokenSession) -> Result<T, TokenError>,
    ) -> Result<T, PrivateKeyError> {
        let mut open = lock(&self.open);
        let done = retried(&self.module, |generation| {
            let lease = self.module.lease()?;
            *generation = lease.generation();
            if let Some(held) = open.session.take() {
                if held.is_of(&lease)
                    && let Ok(done) = work(&held)
                {
                    open.session = Some(held);
                    return Ok(done);
                }
                // The token was removed, its daemon restarted, or its session timed out. Closes the old session first,
                // because a token may allow only one.
                held.close(&lease);
            }
            let fresh = TokenSession::open(&lease, &self.uri)?;
            if !open.is_checked {
                self.check(&fresh)?;
                open.is_checked = true;
            }
            let done = work(&fresh)?;
            open.session = Some(fresh);
            Ok(done)
        });
        let done = done.map_err(PrivateKeyError::from);
        open.problem = done.as_ref().err().map(ToString::to_string);
        done
    }

    /// Checks that the key in a token that was absent is the one of the certificate.
    fn check(&self, session: &TokenSession) -> Result<(), TokenError> {
        check_login_for_each(session, &self.uri, &self.public)?;
        let Some(key) = session.public_key(&self.uri)? else {
            return prove(session, &self.uri, &self.public);
        };
        let parsed = |spki: &[u8]| StrongPublicKey::from_spki(spki).ok();
        let (own, expected) = (parsed(&encoded(&key)?), parsed(&self.public));
        if own.is_some() && own == expected { Ok(()) } else { Err(not_of_certificate(&self.uri)) }
    }
}

impl Signer for Pkcs11Key {
    fn public_key(&self) -> &[u8] {
        &self.public
    }

    fn sign(&self, algorithm: SigningAlgorithm, message: &[u8]) -> Result<Vec<u8>, SignError> {
        if algorithm != self.algorithm {
            return Err(SignError::Algorithm(algorithm));
        }
        self.with_session(|session| session.sign(&self.uri, algorithm, message))
            .map_err(|error| SignError::Failed(error.to_string()))
    }

    fn token_problem(&self) -> Option<Result<(), String>> {
        // A signature in progress may take any time: what came before it is shown then.
        let open = self.open.try_lock().ok();
        Some(open.and_then(|open| open.problem.clone()).map_or(Ok(()), Err))
    }

    fn look_again(&self) {
        if matches!(self.token_problem(), Some(Err(_))) {
            // Recorded in the key.
            self.with_session(|_| Ok(())).ok();
        }
    }
}

/// Calls `attempt`, and again with the module initialized again while the failure may pass, for a bounded time. `attempt`
/// says which initialization it used.
fn retried<T>(
    module: &TokenModule,
    mut attempt: impl FnMut(&mut u64) -> Result<T, TokenError>,
) -> Result<T, TokenError> {
    let mut generation = module.generation();
    let mut outcome = attempt(&mut generation);
    for pause in RETRY_PAUSES {
        if !outcome.as_ref().is_err_and(TokenError::may_pass) {
            break;
        }
        std::thread::sleep(pause);
        if !module.initialize_again(generation) {
            return outcome;
        }
        outcome = attempt(&mut generation);
    }
    module.note(!outcome.as_ref().is_err_and(TokenError::may_pass));
    outcome
}

fn algorithm(spki: &[u8]) -> Result<SigningAlgorithm, PrivateKeyError> {
    let key = StrongPublicKey::from_spki(spki).map_err(|error| TokenError::refused(error.to_string()))?;
    let algorithm =
        SigningAlgorithm::of(key.key()).filter(|algorithm| *algorithm != SigningAlgorithm::Ed25519);
    algorithm.ok_or_else(|| TokenError::refused("the key is neither RSA nor ECDSA").into())
}

fn encoded(key: &crate::x509::signature::PublicKey) -> Result<Vec<u8>, TokenError> {
    public_key::encode(key).map_err(|error| TokenError::refused(error.to_string()))
}

/// Checks by a signature that the token signs by the calls that a login for each signature needs.
fn check_login_for_each(session: &TokenSession, uri: &Pkcs11Uri, public: &[u8]) -> Result<(), TokenError> {
    if !session.authenticates_always() {
        return Ok(());
    }
    prove(session, uri, public).map_err(|error| {
        if error.may_pass() {
            return error;
        }
        // tpm2-pkcs11: C_SignFinal ends the hash also where it is only asked for the length of the signature.
        TokenError::refused(format!(
            "the key wants a login for each signature (CKA_ALWAYS_AUTHENTICATE), and a test signature has failed: {error}; use a \
             key without CKA_ALWAYS_AUTHENTICATE"
        ))
    })
}

/// Checks by a signature that the key in the token belongs to a certificate.
fn prove(session: &TokenSession, uri: &Pkcs11Uri, expected: &[u8]) -> Result<(), TokenError> {
    let key = StrongPublicKey::from_spki(expected).map_err(|error| TokenError::refused(error.to_string()))?;
    let algorithm = SigningAlgorithm::of(key.key()).ok_or_else(|| not_of_certificate(uri))?;
    if !session.may_sign(algorithm)? {
        return Err(not_of_certificate(uri));
    }
    let signature = session.sign(uri, algorithm, PROOF)?;
    key.key().verify(algorithm.verified_as(), PROOF, &signature).map_err(|_| not_of_certificate(uri))
}

fn not_of_certificate(uri: &Pkcs11Uri) -> TokenError {
    TokenError::refused(format!("the private key {} does not belong to the CA certificate", uri.of_key()))
}
