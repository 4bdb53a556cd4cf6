//! Signing keys in PKCS#11 tokens.
//!
//! The gateway hashes the message, so the token needs only raw signature mechanisms, which every token has. After a
//! failed signature, opens a new session and retries once. Reads the PIN from its file for each login, and wipes it
//! afterwards. Never sends a rejected PIN twice, which could lock the token; remembers it as an HMAC.

mod uri;

use std::fmt;
use std::path::Path;
use std::sync::{LazyLock, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::{digest, hmac};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::Slot;
use portcullis_system::input_file;
use portcullis_system::sync::lock;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};
use x509_cert::der::asn1::{OctetStringRef, UintRef};
use x509_cert::der::{self, Decode as _, Encode as _, Sequence};

use super::{PrivateKeyError, SignError, Signer, SigningAlgorithm};
use crate::issuance::public_key;
use crate::x509::signature::{self, EllipticCurve};
use uri::Pkcs11Uri;

/// A private key in a PKCS#11 token, identified by an RFC 7512 URI.
pub struct Pkcs11Key {
    uri: Pkcs11Uri,
    module: Pkcs11,
    public: Vec<u8>,
    algorithm: SigningAlgorithm,
    /// The current session; `None` after it failed.
    open: Mutex<Option<TokenSession>>,
}

/// A logged-in session and the handle of its private key.
struct TokenSession {
    session: Session,
    key: ObjectHandle,
}

/// The loaded modules: a process may initialize each only once (PKCS#11 §5.4).
static MODULES: Mutex<Vec<(std::path::PathBuf, Pkcs11)>> = Mutex::new(Vec::new());

/// HMACs of the PINs that tokens have rejected: a token locks itself after a few failed logins.
static REFUSED_PINS: Mutex<Vec<(Pkcs11Uri, hmac::Tag)>> = Mutex::new(Vec::new());

/// The key of the HMACs. Keeps plaintext PINs out of core dumps; does not protect against a search of all PINs with the
/// key from memory.
static REFUSED_PINS_KEY: LazyLock<Option<hmac::Key>> =
    LazyLock::new(|| hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok());

impl fmt::Debug for Pkcs11Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenKey({:?}, {:?})", self.uri.token, self.uri.object)
    }
}

impl Pkcs11Key {
    /// Finds the private key and its public key in the token. Blocks.
    pub fn open(uri: &str) -> Result<Self, PrivateKeyError> {
        let uri = Pkcs11Uri::parse(uri)?;
        let module = module(&uri.module_path)?;
        let open = TokenSession::new(&module, &uri)?;
        let key = open.public_key(&uri)?;
        let algorithm = SigningAlgorithm::of(&key).ok_or_else(|| failed("the key cannot sign"))?;
        let public = public_key::encode(&key).map_err(|error| failed(&error.to_string()))?;
        Ok(Self { uri, module, public, algorithm, open: Mutex::new(Some(open)) })
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
        let mut open = lock(&self.open);
        if let Some(session) = open.as_ref()
            && let Ok(signature) = session.sign(algorithm, message)
        {
            return Ok(signature);
        }
        // The token was removed, its daemon restarted, or its session timed out. Closes the old session first, because
        // a token may allow only one.
        *open = None;
        let fresh = TokenSession::new(&self.module, &self.uri)
            .map_err(|error| SignError::Failed(error.to_string()))?;
        let signature =
            fresh.sign(algorithm, message).map_err(|error| SignError::Failed(one_line(&error)))?;
        *open = Some(fresh);
        Ok(signature)
    }
}

impl TokenSession {
    fn new(module: &Pkcs11, uri: &Pkcs11Uri) -> Result<Self, PrivateKeyError> {
        let slot = slot(module, uri)?;
        let session = module.open_ro_session(slot).map_err(|error| failed(&one_line(&error)))?;
        if let Some(file) = &uri.pin_source {
            let pin = pin(file)?;
            let token = Pkcs11Uri { object: None, id: None, ..uri.clone() };
            let mut refused = lock(&REFUSED_PINS);
            let key =
                REFUSED_PINS_KEY.as_ref().ok_or_else(|| failed("the random number generator failed"))?;
            let tag = hmac::sign(key, pin.expose_secret().as_bytes());
            if refused.iter().any(|(known, refused)| *known == token && refused.as_ref() == tag.as_ref()) {
                return Err(failed(&format!(
                    "login: the token rejected this PIN before; not retried, to avoid locking the token: correct {}",
                    file.display()
                )));
            }
            match session.login(UserType::User, Some(&pin)) {
                // A login applies to all sessions of the process with this token.
                Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => {}
                Err(error @ Error::Pkcs11(RvError::PinIncorrect, _)) => {
                    refused.push((token, tag));
                    return Err(failed(&format!("login: {}", one_line(&error))));
                }
                Err(error) => return Err(failed(&format!("login: {}", one_line(&error)))),
            }
        }
        let mut wanted = vec![Attribute::Class(ObjectClass::PRIVATE_KEY)];
        wanted.extend(named(uri));
        let key = one(&session, &wanted, "private key")?;
        Ok(Self { session, key })
    }

    /// The public key: for RSA from attributes of the private key, for ECDSA from a separate object.
    fn public_key(&self, uri: &Pkcs11Uri) -> Result<signature::PublicKey, PrivateKeyError> {
        match self.attributes(self.key, &[AttributeType::KeyType])?.as_slice() {
            [Attribute::KeyType(KeyType::RSA)] => {
                let found =
                    self.attributes(self.key, &[AttributeType::Modulus, AttributeType::PublicExponent])?;
                let [Attribute::Modulus(modulus), Attribute::PublicExponent(exponent)] = found.as_slice()
                else {
                    return Err(failed("the RSA key has no readable modulus and exponent"));
                };
                let trimmed =
                    |octets: &[u8]| octets.iter().copied().skip_while(|octet| *octet == 0).collect();
                Ok(signature::PublicKey::Rsa { modulus: trimmed(modulus), exponent: trimmed(exponent) })
            }
            [Attribute::KeyType(KeyType::EC)] => {
                let mut wanted = vec![Attribute::Class(ObjectClass::PUBLIC_KEY)];
                wanted.extend(named(uri));
                let public = one(&self.session, &wanted, "public key")?;
                let found = self.attributes(public, &[AttributeType::EcParams, AttributeType::EcPoint])?;
                let [Attribute::EcParams(parameters), Attribute::EcPoint(point)] = found.as_slice() else {
                    return Err(failed("the ECDSA key has no readable curve and point"));
                };
                let curve =
                    curve(parameters).ok_or_else(|| failed("the curve is not P-256, P-384 or P-521"))?;
                // PKCS#11 §6.3.3: an OCTET STRING with the point; some tokens return the bare point.
                let point = match <&OctetStringRef>::from_der(point) {
                    Ok(point) => point.as_bytes().to_vec(),
                    Err(_) => point.clone(),
                };
                Ok(signature::PublicKey::Ecdsa { curve, point })
            }
            _ => Err(failed("the key is neither RSA nor ECDSA")),
        }
    }

    fn attributes(
        &self,
        object: ObjectHandle,
        kinds: &[AttributeType],
    ) -> Result<Vec<Attribute>, PrivateKeyError> {
        self.session.get_attributes(object, kinds).map_err(|error| failed(&one_line(&error)))
    }

    fn sign(&self, algorithm: SigningAlgorithm, message: &[u8]) -> Result<Vec<u8>, Error> {
        let (mechanism, hash) = match algorithm {
            SigningAlgorithm::RsaSha256 => (Mechanism::RsaPkcs, &digest::SHA256),
            SigningAlgorithm::EcdsaSha256 => (Mechanism::Ecdsa, &digest::SHA256),
            SigningAlgorithm::EcdsaSha384 => (Mechanism::Ecdsa, &digest::SHA384),
            SigningAlgorithm::EcdsaSha512 => (Mechanism::Ecdsa, &digest::SHA512),
            SigningAlgorithm::Ed25519 => return Err(Error::NotSupported),
        };
        let hash = digest::digest(hash, message);
        if algorithm == SigningAlgorithm::RsaSha256 {
            let info = [SHA256_DIGEST_INFO, hash.as_ref()].concat();
            return self.session.sign(&mechanism, self.key, &info);
        }
        let raw = self.session.sign(&mechanism, self.key, hash.as_ref())?;
        ecdsa(&raw).map_err(|_| Error::InvalidValue)
    }
}

/// The `DigestInfo` prefix of a SHA-256 digest (RFC 8017 §9.2, note 1).
const SHA256_DIGEST_INFO: &[u8] = &[
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00,
    0x04, 0x20,
];

// RFC 5480 appendix A
#[derive(Sequence)]
struct EcdsaSignature<'a> {
    r: UintRef<'a>,
    s: UintRef<'a>,
}

/// Encodes a raw signature, `r || s`, as DER.
fn ecdsa(raw: &[u8]) -> Result<Vec<u8>, der::Error> {
    let (r, s) = raw.split_at_checked(raw.len() / 2).unwrap_or_default();
    EcdsaSignature { r: UintRef::new(r)?, s: UintRef::new(s)? }.to_der()
}

fn curve(parameters: &[u8]) -> Option<EllipticCurve> {
    match parameters {
        [6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07] => Some(EllipticCurve::P256),
        [6, 5, 0x2b, 0x81, 0x04, 0x00, 0x22] => Some(EllipticCurve::P384),
        [6, 5, 0x2b, 0x81, 0x04, 0x00, 0x23] => Some(EllipticCurve::P521),
        _ => None,
    }
}

/// Loads and initializes a module, once.
fn module(path: &Path) -> Result<Pkcs11, PrivateKeyError> {
    let mut modules = lock(&MODULES);
    if let Some((_, module)) = modules.iter().find(|(known, _)| known == path) {
        return Ok(module.clone());
    }
    let unusable = |error: Error| failed(&format!("module {}: {}", path.display(), one_line(&error)));
    let module = Pkcs11::new(path).map_err(unusable)?;
    match module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
        Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => {}
        Err(error) => return Err(unusable(error)),
    }
    modules.push((path.to_owned(), module.clone()));
    Ok(module)
}

/// The slot of the only token that matches the URI.
fn slot(module: &Pkcs11, uri: &Pkcs11Uri) -> Result<Slot, PrivateKeyError> {
    let broken = |error: Error| failed(&one_line(&error));
    let mut found = Vec::new();
    for slot in module.get_slots_with_initialized_token().map_err(broken)? {
        let token = module.get_token_info(slot).map_err(broken)?;
        let same = |wanted: &Option<String>, text: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == text.trim_end())
        };
        let fits = same(&uri.token, token.label())
            && same(&uri.serial, token.serial_number())
            && same(&uri.manufacturer, token.manufacturer_id())
            && same(&uri.model, token.model())
            && uri.slot_id.is_none_or(|id| id == slot.id());
        if fits {
            found.push(slot);
        }
    }
    match found.as_slice() {
        [slot] => Ok(*slot),
        [] => Err(failed("no token matches the URI")),
        several => Err(failed(&format!("{} tokens match the URI: add the serial", several.len()))),
    }
}

fn named(uri: &Pkcs11Uri) -> impl Iterator<Item = Attribute> {
    let label = uri.object.as_ref().map(|label| Attribute::Label(label.clone().into_bytes()));
    label.into_iter().chain(uri.id.clone().map(Attribute::Id))
}

/// The only object that matches a template.
fn one(session: &Session, wanted: &[Attribute], what: &str) -> Result<ObjectHandle, PrivateKeyError> {
    match session.find_objects(wanted).map_err(|error| failed(&one_line(&error)))?.as_slice() {
        [object] => Ok(*object),
        [] => Err(failed(&format!(
            "no {what} matches the URI (or the token hides it without a login: add pin-source)"
        ))),
        several => Err(failed(&format!("{} {what}s match the URI: add the id", several.len()))),
    }
}

/// Reads the PIN from its file, without trailing newlines.
fn pin(file: &Path) -> Result<SecretString, PrivateKeyError> {
    let unusable = |problem: String| failed(&format!("the PIN in {}: {problem}", file.display()));
    let content = input_file::read(file).map_err(|error| unusable(error.to_string()))?;
    // The decoder's error would quote a byte of the PIN.
    let text = String::from_utf8(content).map_err(|_| unusable("is not text in UTF-8".to_owned()))?;
    Ok(Zeroizing::new(text).trim_end_matches(['\r', '\n']).into())
}

fn failed(reason: &str) -> PrivateKeyError {
    PrivateKeyError::Failed(format!("the key in the PKCS#11 token cannot be used: {reason}"))
}

/// The error in one line; the texts of `cryptoki` explain every error code at length.
fn one_line(error: &Error) -> String {
    match error {
        Error::Pkcs11(code, function) => format!("{function:?} returned {code:?}"),
        other => other.to_string(),
    }
}
