//! A session with a token, and the private key in it.

use aws_lc_rs::digest;
use cryptoki::error::Error;
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, SessionState, UserType};
use cryptoki::slot::Slot;
use portcullis_system::sync::lock;
use x509_cert::der::asn1::{OctetStringRef, UintRef};
use x509_cert::der::{self, Decode as _, Encode as _, Sequence};

use super::error::TokenError;
use super::module::Lease;
use super::pin;
use super::slots::{self, MAX_LISTED, attribute};
use super::uri::Pkcs11Uri;
use crate::issuance::signer::SigningAlgorithm;
use crate::x509::signature::{self, EllipticCurve};

/// A session and the handle of its private key.
pub(super) struct TokenSession {
    /// The initialization of the module that it belongs to.
    generation: u64,
    session: Session,
    key: ObjectHandle,
    /// The token wants a login for each signature (`CKA_ALWAYS_AUTHENTICATE`).
    authenticates_always: bool,
}

impl TokenSession {
    /// Finds the token, opens a session, logs in unless another key has, and finds the private key. Blocks.
    pub(super) fn open(lease: &Lease<'_>, uri: &Pkcs11Uri) -> Result<Self, TokenError> {
        let slot = slots::find(lease.library(), uri)?;
        let session = lease
            .library()
            .open_ro_session(slot)
            .map_err(|error| TokenError::of("opening a session", &error))?;
        if let Some(file) = &uri.pin_source {
            let _one_login = lock(&lease.module.logins);
            if !is_logged_in(&session) {
                pin::login(&session, uri, file, UserType::User)?;
            }
        }
        let key = private_key(&session, uri)?;
        let always = attributes(&session, key, &[AttributeType::AlwaysAuthenticate])?;
        let authenticates_always = always.contains(&Attribute::AlwaysAuthenticate(true));
        let open = Self { generation: lease.generation(), session, key, authenticates_always };
        if authenticates_always {
            open.check_login_for_each(lease, slot, uri)?;
        }
        Ok(open)
    }

    /// Whether the session is of the initialization in force.
    pub(super) fn is_of(&self, lease: &Lease<'_>) -> bool {
        self.generation == lease.generation()
    }

    /// Whether the token wants a login for each signature.
    pub(super) fn authenticates_always(&self) -> bool {
        self.authenticates_always
    }

    /// Ends the session, unless finalizing the module has: its handle may be another key's now.
    // threat: token-of-others
    pub(super) fn close(self, lease: &Lease<'_>) {
        if !self.is_of(lease) {
            std::mem::forget(self.session);
        }
    }

    /// Whether a signature with a login of its own is possible: only a mechanism that hashes takes its message in parts,
    /// which the wrapper of PKCS#11 needs to log in between.
    fn check_login_for_each(&self, lease: &Lease<'_>, slot: Slot, uri: &Pkcs11Uri) -> Result<(), TokenError> {
        const WANTS: &str = "the key wants a login for each signature (CKA_ALWAYS_AUTHENTICATE)";
        if uri.pin_source.is_none() {
            return Err(TokenError::refused(format!("{WANTS}: add pin-source=file:… to the URI")));
        }
        let mechanism = match self.key_type()? {
            KeyType::RSA => MechanismType::SHA256_RSA_PKCS,
            _ => MechanismType::ECDSA_SHA256,
        };
        lease.library().get_mechanism_info(slot, mechanism).map(drop).map_err(|error| {
            TokenError::refused(format!(
                "{WANTS}, which works by mechanisms that hash, and the token has no {mechanism}: use a key without \
                 CKA_ALWAYS_AUTHENTICATE ({})",
                super::error::one_line(&error)
            ))
        })
    }

    fn key_type(&self) -> Result<KeyType, TokenError> {
        match attributes(&self.session, self.key, &[AttributeType::KeyType])?.as_slice() {
            [Attribute::KeyType(kind @ (KeyType::RSA | KeyType::EC))] => Ok(*kind),
            _ => Err(TokenError::refused("the key is neither RSA nor ECDSA")),
        }
    }

    /// Whether the private key is of the kind and on the curve of an algorithm.
    pub(super) fn may_sign(&self, algorithm: SigningAlgorithm) -> Result<bool, TokenError> {
        let kind = self.key_type()?;
        let curve = match attributes(&self.session, self.key, &[AttributeType::EcParams])?.as_slice() {
            [Attribute::EcParams(parameters)] => curve(parameters),
            _ => None,
        };
        Ok(match algorithm {
            SigningAlgorithm::RsaSha256 => kind == KeyType::RSA,
            SigningAlgorithm::EcdsaSha256 => curve == Some(EllipticCurve::P256),
            SigningAlgorithm::EcdsaSha384 => curve == Some(EllipticCurve::P384),
            SigningAlgorithm::EcdsaSha512 => curve == Some(EllipticCurve::P521),
            SigningAlgorithm::Ed25519 => false,
        })
    }

    /// The public key, from attributes of the private key for RSA, and from a separate object for ECDSA; `None` if the
    /// token does not have it.
    pub(super) fn public_key(&self, uri: &Pkcs11Uri) -> Result<Option<signature::PublicKey>, TokenError> {
        let kind = self.key_type()?;
        let of_private = self.key_of(self.key, kind)?;
        if of_private.is_some() {
            return Ok(of_private);
        }
        let mut wanted = vec![Attribute::Class(ObjectClass::PUBLIC_KEY), Attribute::KeyType(kind)];
        wanted.extend(named(uri));
        match objects(&self.session, &wanted)?.as_slice() {
            [] => Ok(None),
            [public] => self.key_of(*public, kind),
            several => Err(TokenError::refused(several_message(&self.session, several, "public key", uri))),
        }
    }

    fn key_of(
        &self,
        object: ObjectHandle,
        kind: KeyType,
    ) -> Result<Option<signature::PublicKey>, TokenError> {
        let of_kind = match kind {
            KeyType::RSA => [AttributeType::Modulus, AttributeType::PublicExponent],
            _ => [AttributeType::EcParams, AttributeType::EcPoint],
        };
        Ok(match attributes(&self.session, object, &of_kind)?.as_slice() {
            [Attribute::Modulus(modulus), Attribute::PublicExponent(exponent)]
                if !modulus.is_empty() && !exponent.is_empty() =>
            {
                let trimmed =
                    |octets: &[u8]| octets.iter().copied().skip_while(|octet| *octet == 0).collect();
                Some(signature::PublicKey::Rsa { modulus: trimmed(modulus), exponent: trimmed(exponent) })
            }
            [Attribute::EcParams(parameters), Attribute::EcPoint(point)] if !point.is_empty() => {
                let curve = curve(parameters)
                    .ok_or_else(|| TokenError::refused("the curve is not P-256, P-384 or P-521"))?;
                // PKCS#11 §6.3.3: an OCTET STRING with the point; some tokens return the bare point.
                let point = match <&OctetStringRef>::from_der(point) {
                    Ok(point) => point.as_bytes().to_vec(),
                    Err(_) => point.clone(),
                };
                Some(signature::PublicKey::Ecdsa { curve, point })
            }
            _ => None,
        })
    }

    /// Signs a message; logs in for it if the key wants that. After a failure the session is not used any more.
    pub(super) fn sign(
        &self,
        uri: &Pkcs11Uri,
        algorithm: SigningAlgorithm,
        message: &[u8],
    ) -> Result<Vec<u8>, TokenError> {
        let signature = match &uri.pin_source {
            Some(file) if self.authenticates_always => {
                let failed = |error: Error| TokenError::of("signing", &error);
                self.session.sign_init(&hashing_mechanism(algorithm)?, self.key).map_err(failed)?;
                pin::login(&self.session, uri, file, UserType::ContextSpecific)?;
                self.session.sign_update(message).map_err(failed)?;
                self.session.sign_final()
            }
            _ => {
                let (mechanism, data) = hashed(algorithm, message)?;
                self.session.sign(&mechanism, self.key, &data)
            }
        };
        let signature = signature.map_err(|error| TokenError::of("signing", &error))?;
        if algorithm == SigningAlgorithm::RsaSha256 {
            return Ok(signature);
        }
        ecdsa(&signature).map_err(|_| TokenError::refused("the token returned a malformed signature"))
    }
}

fn is_logged_in(session: &Session) -> bool {
    let state = session.get_session_info().map(|info| info.session_state());
    matches!(state, Ok(SessionState::RoUser | SessionState::RwUser))
}

/// The only private key that matches the URI.
fn private_key(session: &Session, uri: &Pkcs11Uri) -> Result<ObjectHandle, TokenError> {
    let class = Attribute::Class(ObjectClass::PRIVATE_KEY);
    let wanted: Vec<_> = std::iter::once(class.clone()).chain(named(uri)).collect();
    match objects(session, &wanted)?.as_slice() {
        [object] => Ok(*object),
        [] => {
            let all = objects(session, &[class])?;
            let shown: Vec<_> = all.iter().take(MAX_LISTED + 1).map(|key| describe(session, *key)).collect();
            let (when, fix) = if uri.pin_source.is_some() {
                ("after the login", "")
            } else {
                (
                    "without a login",
                    ": tokens hide private keys without one: add pin-source=file:… to the URI",
                )
            };
            Err(TokenError::refused(format!(
                "no private key matches {}; {when} the token shows {}{fix}",
                uri.of_key(),
                slots::list(&shown, "none")
            )))
        }
        several => Err(TokenError::refused(several_message(session, several, "private key", uri))),
    }
}

fn several_message(session: &Session, several: &[ObjectHandle], what: &str, uri: &Pkcs11Uri) -> String {
    let several: Vec<_> =
        several.iter().take(MAX_LISTED + 1).map(|key| key_attributes(session, *key)).collect();
    let fix = slots::distinguishing(&several, |name| uri.has(name)).map_or_else(
        || "a URI cannot tell them apart: change the CKA_ID of one of them".to_owned(),
        |name| format!("add the {name} of one of them"),
    );
    let described: Vec<_> = several.iter().map(|attributes| join(attributes)).collect();
    format!("{} {what}s match {}: {}; {fix}", described.len(), uri.of_key(), slots::list(&described, ""))
}

/// The attributes of a URI that name a key, escaped as in a URI; empty if the key does not have one.
fn key_attributes(session: &Session, key: ObjectHandle) -> Vec<(&'static str, String)> {
    let kinds = [AttributeType::Id, AttributeType::Label];
    let found = attributes(session, key, &kinds).unwrap_or_default();
    let value = |name: &'static str, of: fn(&Attribute) -> Option<&Vec<u8>>| {
        let octets = found.iter().find_map(of).filter(|octets| !octets.is_empty());
        (name, octets.map(|octets| attribute(name, octets)).unwrap_or_default())
    };
    vec![
        value("id", |found| if let Attribute::Id(id) = found { Some(id) } else { None }),
        value("object", |found| if let Attribute::Label(label) = found { Some(label) } else { None }),
    ]
}

fn describe(session: &Session, key: ObjectHandle) -> String {
    join(&key_attributes(session, key))
}

fn join(attributes: &[(&'static str, String)]) -> String {
    let parts: Vec<&str> =
        attributes.iter().map(|(_, text)| text.as_str()).filter(|text| !text.is_empty()).collect();
    if parts.is_empty() { "a key without label and id".to_owned() } else { parts.join(";") }
}

fn named(uri: &Pkcs11Uri) -> impl Iterator<Item = Attribute> {
    let label = uri.object.as_ref().map(|label| Attribute::Label(label.clone().into_bytes()));
    label.into_iter().chain(uri.id.clone().map(Attribute::Id))
}

fn objects(session: &Session, wanted: &[Attribute]) -> Result<Vec<ObjectHandle>, TokenError> {
    session.find_objects(wanted).map_err(|error| TokenError::of("finding the key", &error))
}

fn attributes(
    session: &Session,
    object: ObjectHandle,
    kinds: &[AttributeType],
) -> Result<Vec<Attribute>, TokenError> {
    session.get_attributes(object, kinds).map_err(|error| TokenError::of("reading the key", &error))
}

/// The mechanism that signs a hash, and what it signs.
fn hashed(algorithm: SigningAlgorithm, message: &[u8]) -> Result<(Mechanism<'static>, Vec<u8>), TokenError> {
    let (mechanism, hash) = match algorithm {
        SigningAlgorithm::RsaSha256 => (Mechanism::RsaPkcs, &digest::SHA256),
        SigningAlgorithm::EcdsaSha256 => (Mechanism::Ecdsa, &digest::SHA256),
        SigningAlgorithm::EcdsaSha384 => (Mechanism::Ecdsa, &digest::SHA384),
        SigningAlgorithm::EcdsaSha512 => (Mechanism::Ecdsa, &digest::SHA512),
        SigningAlgorithm::Ed25519 => return Err(TokenError::refused("Ed25519 is not supported in tokens")),
    };
    let hash = digest::digest(hash, message);
    let prefix = if algorithm == SigningAlgorithm::RsaSha256 { SHA256_DIGEST_INFO } else { &[] };
    Ok((mechanism, [prefix, hash.as_ref()].concat()))
}

/// The mechanism that hashes the message, too.
fn hashing_mechanism(algorithm: SigningAlgorithm) -> Result<Mechanism<'static>, TokenError> {
    Ok(match algorithm {
        SigningAlgorithm::RsaSha256 => Mechanism::Sha256RsaPkcs,
        SigningAlgorithm::EcdsaSha256 => Mechanism::EcdsaSha256,
        SigningAlgorithm::EcdsaSha384 => Mechanism::EcdsaSha384,
        SigningAlgorithm::EcdsaSha512 => Mechanism::EcdsaSha512,
        SigningAlgorithm::Ed25519 => return Err(TokenError::refused("Ed25519 is not supported in tokens")),
    })
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
