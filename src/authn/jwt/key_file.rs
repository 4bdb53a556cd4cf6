//! Files of keys, as `--service-account-key-file` names them.
//!
//! Follows `client-go/util/keyutil/key.go`, `ParsePublicKeysPEM`: what a block is called does not matter, and a block
//! that is no key is passed over. Taken are public keys (PKIX), certificates, and private keys, of which the public half
//! is used: RSA in PKCS#1 or PKCS#8, ECDSA in SEC 1 alone.

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, KeyPair as _,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::keys::{PublicKey, UnfitKey};
use crate::go::pem;

/// Why a file has no keys. Says nothing of what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// There is no key in it that could be used.
    // client-go: util/keyutil/key.go, ParsePublicKeysPEM
    #[error("data does not contain any valid RSA or ECDSA public keys")]
    NoKeys,
    /// There is one that kube-apiserver may take and that is not verified with here.
    #[error(transparent)]
    Unfit(UnfitKey),
}

/// Reads every key of a file.
pub fn read(pem: &[u8]) -> Result<Vec<PublicKey>, KeyFileError> {
    let mut keys = Vec::new();
    for block in pem::blocks(pem) {
        match key(&block.content) {
            Ok(key) => keys.push(key),
            Err(UnfitKey::Unknown) => {}
            Err(unfit @ UnfitKey::RsaBits(_)) => return Err(KeyFileError::Unfit(unfit)),
        }
    }
    if keys.is_empty() { Err(KeyFileError::NoKeys) } else { Ok(keys) }
}

fn key(der: &[u8]) -> Result<PublicKey, UnfitKey> {
    if let Some(public) = public_half(der) {
        return PublicKey::from_spki(public.as_ref());
    }
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => PublicKey::from_spki(certificate.public_key().raw),
        _ => PublicKey::from_spki(der),
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
        // kube-apiserver does not read them: what verifies there is to verify here, and nothing else.
        let in_pkcs8 = EcdsaKeyPair::from_pkcs8(curve, der).is_ok();
        if in_pkcs8 { None } else { pair.public_key().as_der().ok() }
    })
}

#[cfg(test)]
mod tests;
