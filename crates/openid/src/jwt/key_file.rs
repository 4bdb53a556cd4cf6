//! PEM files of public keys for `--service-account-key-file`.
//!
//! Follows `client-go/util/keyutil/key.go`, `ParsePublicKeysPEM`: the parser ignores PEM block types and skips blocks
//! that are not keys. It accepts public keys (PKIX), certificates, and the public half of private keys: RSA in PKCS#1
//! or PKCS#8, ECDSA in SEC 1 only.

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, KeyPair as _,
};
use portcullis_go::pem;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::keys::{UnsupportedKey, VerificationKey};

/// Why a key file is rejected. Never quotes the content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// The file contains no usable key.
    // client-go: util/keyutil/key.go, ParsePublicKeysPEM
    #[error("data does not contain any valid RSA or ECDSA public keys")]
    NoKeys,
    /// The file contains a key that kube-apiserver may accept and this proxy does not support.
    #[error(transparent)]
    Unsupported(UnsupportedKey),
}

/// Parses every key in a file.
pub fn read(pem: &[u8]) -> Result<Vec<VerificationKey>, KeyFileError> {
    let mut keys = Vec::new();
    for block in pem::blocks(pem) {
        match parse_key(&block.content) {
            Ok(key) => keys.push(key),
            Err(UnsupportedKey::Unknown) => {}
            Err(unsupported @ (UnsupportedKey::RsaBits(_) | UnsupportedKey::RsaExponentBits(_))) => {
                return Err(KeyFileError::Unsupported(unsupported));
            }
        }
    }
    if keys.is_empty() { Err(KeyFileError::NoKeys) } else { Ok(keys) }
}

fn parse_key(der: &[u8]) -> Result<VerificationKey, UnsupportedKey> {
    if let Some(public) = public_half(der) {
        return VerificationKey::from_spki(public.as_ref());
    }
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => VerificationKey::from_spki(certificate.public_key().raw),
        _ => VerificationKey::from_spki(der),
    }
}

/// The public half of a private key.
fn public_half(der: &[u8]) -> Option<PublicKeyX509Der<'static>> {
    if let Ok(pair) = rsa::KeyPair::from_der(der).or_else(|_| rsa::KeyPair::from_pkcs8(der)) {
        return pair.public_key().as_der().ok();
    }
    let curves = [
        &ECDSA_P256_SHA256_FIXED_SIGNING,
        &ECDSA_P384_SHA384_FIXED_SIGNING,
        &ECDSA_P521_SHA512_FIXED_SIGNING,
    ];
    curves.into_iter().find_map(|curve| {
        let pair = EcdsaKeyPair::from_private_key_der(curve, der).ok()?;
        // kube-apiserver does not read ECDSA keys in PKCS#8: both must accept the same keys.
        let in_pkcs8 = EcdsaKeyPair::from_pkcs8(curve, der).is_ok();
        if in_pkcs8 { None } else { pair.public_key().as_der().ok() }
    })
}

#[cfg(test)]
mod tests;
