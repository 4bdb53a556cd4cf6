//! Private keys in memory, parsed from PEM or generated.

use std::fmt;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rand::{self, SystemRandom};
use aws_lc_rs::rsa::{self, KeySize};
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
};
use pkcs8::pkcs5::{pbes2, scrypt};
use pkcs8::{EncryptedPrivateKeyInfoRef, PrivateKeyInfoRef};
use portcullis_go::pem;
use portcullis_go::pem::encode_pem;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretSlice, SecretString};

use super::{KeyKind, PrivateKeyError, SignError, Signer, SigningAlgorithm};

/// A private key in memory.
pub struct PemKey {
    pair: SigningKeyPair,
    /// The key as PKCS#8.
    pkcs8: SecretSlice<u8>,
    public: Vec<u8>,
}

enum SigningKeyPair {
    Rsa(rsa::KeyPair),
    Ecdsa(SigningAlgorithm, EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// The supported curves, each with the algorithm of its keys.
const CURVES: [(SigningAlgorithm, &EcdsaSigningAlgorithm); 3] = [
    (SigningAlgorithm::EcdsaSha256, &signature::ECDSA_P256_SHA256_ASN1_SIGNING),
    (SigningAlgorithm::EcdsaSha384, &signature::ECDSA_P384_SHA384_ASN1_SIGNING),
    (SigningAlgorithm::EcdsaSha512, &signature::ECDSA_P521_SHA512_ASN1_SIGNING),
];

impl fmt::Debug for PemKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PemKey")
    }
}

impl PemKey {
    /// Parses the first private key of a PEM file, as PKCS#8, PKCS#1 or SEC 1. Skips other blocks.
    // go: crypto/tls/tls.go, X509KeyPair, parsePrivateKey
    pub fn from_pem(pem: &[u8]) -> Result<Self, PrivateKeyError> {
        let block = pem::private_key_block(pem).map_err(PrivateKeyError::NoKey)?;
        let encrypted = if block.headers {
            Some(PrivateKeyError::TraditionalEncryption)
        } else {
            (block.kind == b"ENCRYPTED PRIVATE KEY").then_some(PrivateKeyError::Encrypted)
        };
        // Go ignores headers, so a key with headers is encrypted only if it does not parse.
        Self::from_der(&Zeroizing::new(block.content)).map_err(|error| encrypted.unwrap_or(error))
    }

    /// Parses an encrypted PKCS#8 key (PBES2, RFC 8018).
    pub fn from_encrypted_pem(pem: &[u8], passphrase: &SecretString) -> Result<Self, PrivateKeyError> {
        let block = pem::private_key_block(pem).map_err(PrivateKeyError::NoKey)?;
        if block.headers {
            return Err(PrivateKeyError::TraditionalEncryption);
        }
        if block.kind != b"ENCRYPTED PRIVATE KEY" {
            return Err(PrivateKeyError::NotEncrypted);
        }
        let encrypted = EncryptedPrivateKeyInfoRef::try_from(block.content.as_slice())
            .map_err(|_| PrivateKeyError::Malformed)?;
        let key = encrypted.decrypt(passphrase.expose_secret()).map_err(|_| PrivateKeyError::Decrypt)?;
        Self::from_der(key.as_bytes())
    }

    /// Generates a key.
    pub fn generate(kind: KeyKind) -> Result<Self, PrivateKeyError> {
        let failed = |_| PrivateKeyError::Failed("the private key could not be generated".to_owned());
        let rsa = |size| rsa::KeyPair::generate(size).map(SigningKeyPair::Rsa);
        let ecdsa = |(algorithm, curve)| {
            EcdsaKeyPair::generate(curve).map(|pair| SigningKeyPair::Ecdsa(algorithm, pair))
        };
        let [p256, p384, p521] = CURVES;
        let pair = match kind {
            KeyKind::Rsa2048 => rsa(KeySize::Rsa2048),
            KeyKind::Rsa3072 => rsa(KeySize::Rsa3072),
            KeyKind::Rsa4096 => rsa(KeySize::Rsa4096),
            KeyKind::EcdsaP256 => ecdsa(p256),
            KeyKind::EcdsaP384 => ecdsa(p384),
            KeyKind::EcdsaP521 => ecdsa(p521),
            KeyKind::Ed25519 => Ed25519KeyPair::generate().map(SigningKeyPair::Ed25519),
        };
        Self::new(pair.map_err(failed)?)
    }

    /// Parses PKCS#8, PKCS#1 or SEC 1.
    fn from_der(der: &[u8]) -> Result<Self, PrivateKeyError> {
        if let Ok(pair) = rsa::KeyPair::from_pkcs8(der).or_else(|_| rsa::KeyPair::from_der(der)) {
            return Self::new(SigningKeyPair::Rsa(pair));
        }
        for (algorithm, curve) in CURVES {
            let pair = EcdsaKeyPair::from_pkcs8(curve, der)
                .or_else(|_| EcdsaKeyPair::from_private_key_der(curve, der));
            if let Ok(pair) = pair {
                return Self::new(SigningKeyPair::Ecdsa(algorithm, pair));
            }
        }
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| PrivateKeyError::Malformed)?;
        Self::new(SigningKeyPair::Ed25519(pair))
    }

    fn new(pair: SigningKeyPair) -> Result<Self, PrivateKeyError> {
        let failed = |_| PrivateKeyError::Failed("the private key cannot be encoded".to_owned());
        let (pkcs8, public) = match &pair {
            SigningKeyPair::Rsa(pair) => {
                let key: Pkcs8V1Der<'_> = pair.as_der().map_err(failed)?;
                (key.as_ref().to_vec(), spki(pair.public_key()).map_err(failed)?)
            }
            SigningKeyPair::Ecdsa(_, pair) => {
                let key = pair.to_pkcs8v1().map_err(failed)?;
                (key.as_ref().to_vec(), spki(pair.public_key()).map_err(failed)?)
            }
            SigningKeyPair::Ed25519(pair) => {
                let key = pair.to_pkcs8v1().map_err(failed)?;
                (key.as_ref().to_vec(), spki(pair.public_key()).map_err(failed)?)
            }
        };
        Ok(Self { pair, pkcs8: pkcs8.into(), public })
    }

    /// The algorithm by which the key signs.
    pub fn algorithm(&self) -> SigningAlgorithm {
        match &self.pair {
            SigningKeyPair::Rsa(_) => SigningAlgorithm::RsaSha256,
            SigningKeyPair::Ecdsa(algorithm, _) => *algorithm,
            SigningKeyPair::Ed25519(_) => SigningAlgorithm::Ed25519,
        }
    }

    /// The key as PKCS#8.
    pub fn to_pem(&self) -> SecretString {
        encode_pem("PRIVATE KEY", self.pkcs8.expose_secret()).into()
    }

    /// The key as encrypted PKCS#8: PBES2 with scrypt and AES-256-CBC.
    pub fn to_encrypted_pem(&self, passphrase: &SecretString) -> Result<SecretString, PrivateKeyError> {
        let failed = || PrivateKeyError::Failed("the private key could not be encrypted".to_owned());
        let (mut salt, mut iv) = ([0; 16], [0; 16]);
        rand::fill(&mut salt).map_err(|_| failed())?;
        rand::fill(&mut iv).map_err(|_| failed())?;
        // 16 MiB of memory: OpenSSL rejects parameters that need twice as much.
        let cost = scrypt::Params::new(14, 8, 1).map_err(|_| failed())?;
        let parameters =
            pbes2::Parameters::generate_scrypt_aes256cbc(cost, &salt, iv).map_err(|_| failed())?;
        let key = PrivateKeyInfoRef::try_from(self.pkcs8.expose_secret()).map_err(|_| failed())?;
        let encrypted =
            key.encrypt_with_params(parameters, passphrase.expose_secret()).map_err(|_| failed())?;
        Ok(encode_pem("ENCRYPTED PRIVATE KEY", encrypted.as_bytes()).into())
    }
}

impl Signer for PemKey {
    fn public_key(&self) -> &[u8] {
        &self.public
    }

    fn sign(&self, algorithm: SigningAlgorithm, message: &[u8]) -> Result<Vec<u8>, SignError> {
        if algorithm != self.algorithm() {
            return Err(SignError::Algorithm(algorithm));
        }
        let failed = |_| SignError::Failed("the private key failed to sign".to_owned());
        let random = SystemRandom::new();
        match &self.pair {
            SigningKeyPair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).map_err(failed)?;
                Ok(signature)
            }
            SigningKeyPair::Ecdsa(_, pair) => {
                Ok(pair.sign(&random, message).map_err(failed)?.as_ref().to_vec())
            }
            SigningKeyPair::Ed25519(pair) => Ok(pair.try_sign(message).map_err(failed)?.as_ref().to_vec()),
        }
    }
}

fn spki(key: &impl AsDer<PublicKeyX509Der<'static>>) -> Result<Vec<u8>, aws_lc_rs::error::Unspecified> {
    Ok(key.as_der()?.as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use secrecy::{ExposeSecret as _, SecretString};

    use super::PemKey;
    use crate::issuance::signer::{KeyKind, PrivateKeyError, Signer as _, SigningAlgorithm};
    use crate::issuance::testing::{KINDS, openssl};

    #[test]
    fn every_key_format_of_openssl_parses() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        for kind in KINDS {
            let key = PemKey::generate(kind).unwrap();
            let (pkcs8, traditional) = (path("pkcs8"), path("traditional"));
            std::fs::write(&pkcs8, key.to_pem().expose_secret()).unwrap();
            // Ed25519 keys have PKCS#8 as their only format.
            let form: &[&str] = if kind == KeyKind::Ed25519 { &[] } else { &["-traditional"] };
            openssl(&[&["pkey", "-in", &pkcs8, "-out", &traditional], form].concat());
            let text = std::fs::read_to_string(&traditional).unwrap();
            let first = match kind {
                KeyKind::Rsa2048 => "-----BEGIN RSA PRIVATE KEY-----",
                KeyKind::Ed25519 => "-----BEGIN PRIVATE KEY-----",
                _ => "-----BEGIN EC PRIVATE KEY-----",
            };
            assert!(text.starts_with(first), "{kind:?}");
            // `openssl ecparam -genkey` writes parameters before the key.
            let text = format!(
                "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{text}"
            );
            for pem in [key.to_pem().expose_secret(), text.as_str()] {
                assert_eq!(
                    PemKey::from_pem(pem.as_bytes()).unwrap().public_key(),
                    key.public_key(),
                    "{kind:?}"
                );
            }
            assert_eq!(format!("{key:?}"), "PemKey");
        }
    }

    #[test]
    fn keys_are_encrypted_for_openssl_and_by_it() {
        let passphrase = SecretString::from("correct horse");
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
        let pem = key.to_encrypted_pem(&passphrase).unwrap();
        let pem = pem.expose_secret();
        assert!(pem.starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----"));
        std::fs::write(path("ours"), pem).unwrap();
        openssl(&["pkey", "-in", &path("ours"), "-passin", "pass:correct horse", "-out", &path("plain")]);
        let plain = std::fs::read(path("plain")).unwrap();
        assert_eq!(PemKey::from_pem(&plain).unwrap().public_key(), key.public_key());
        let read = PemKey::from_encrypted_pem(pem.as_bytes(), &passphrase).unwrap();
        assert_eq!(read.public_key(), key.public_key());
        assert_eq!(PemKey::from_pem(pem.as_bytes()).unwrap_err(), PrivateKeyError::Encrypted);
        let wrong = PemKey::from_encrypted_pem(pem.as_bytes(), &"battery".into()).unwrap_err();
        assert_eq!(wrong, PrivateKeyError::Decrypt);
        let open = PemKey::from_encrypted_pem(&plain, &passphrase).unwrap_err();
        assert_eq!(open, PrivateKeyError::NotEncrypted);

        openssl(&[
            "pkcs8",
            "-topk8",
            "-v2",
            "aes-256-cbc",
            "-v2prf",
            "hmacWithSHA256",
            "-in",
            &path("plain"),
            "-passout",
            "pass:correct horse",
            "-out",
            &path("theirs"),
        ]);
        let theirs = std::fs::read(path("theirs")).unwrap();
        assert_eq!(PemKey::from_encrypted_pem(&theirs, &passphrase).unwrap().public_key(), key.public_key());
        // The legacy encryption with headers is not supported, but the error identifies the key as encrypted.
        let status = Command::new("openssl")
            .args([
                "ec",
                "-in",
                &path("plain"),
                "-aes256",
                "-passout",
                "pass:correct horse",
                "-out",
                &path("old"),
            ])
            .stderr(Stdio::null())
            .status();
        assert!(status.unwrap().success());
        let old = std::fs::read(path("old")).unwrap();
        let traditional = PrivateKeyError::TraditionalEncryption;
        assert_eq!(PemKey::from_pem(&old).unwrap_err(), traditional);
        assert_eq!(PemKey::from_encrypted_pem(&old, &passphrase).unwrap_err(), traditional);
        // The command that the error names, with its files, and the passphrases that it would ask for.
        let text = traditional.to_string();
        let command = text.rsplit(": openssl ").next().unwrap();
        let command = command.replace("NEW-KEY", &path("new")).replace("KEY", &path("old"));
        let passphrases = ["-passin", "pass:correct horse", "-passout", "pass:correct horse"];
        openssl(&command.split(' ').chain(passphrases).collect::<Vec<_>>());
        let new = std::fs::read(path("new")).unwrap();
        assert_eq!(PemKey::from_encrypted_pem(&new, &passphrase).unwrap().public_key(), key.public_key());
    }

    #[test]
    fn unusable_keys_give_the_errors_of_go() {
        let block = |kind: &str| format!("-----BEGIN {kind}-----\nMAA=\n-----END {kind}-----\n");
        let cases = [
            (String::new(), "tls: failed to find any PEM data in key input"),
            (
                block("CERTIFICATE"),
                "tls: found a certificate rather than a key in the PEM for the private key",
            ),
            (
                block("CERTIFICATE") + &block("PUBLIC KEY"),
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [CERTIFICATE PUBLIC KEY]",
            ),
            (block("PRIVATE KEY"), "tls: failed to parse private key"),
            (block("EC PRIVATE KEY"), "tls: failed to parse private key"),
        ];
        for (pem, want) in cases {
            assert_eq!(PemKey::from_pem(pem.as_bytes()).unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn a_key_signs_by_its_own_algorithm_alone() {
        for kind in KINDS {
            let key = PemKey::generate(kind).unwrap();
            for algorithm in [
                SigningAlgorithm::RsaSha256,
                SigningAlgorithm::EcdsaSha256,
                SigningAlgorithm::EcdsaSha384,
                SigningAlgorithm::EcdsaSha512,
                SigningAlgorithm::Ed25519,
            ] {
                let signed = key.sign(algorithm, b"message").is_ok();
                assert_eq!(signed, algorithm == key.algorithm(), "{kind:?} {algorithm:?}");
            }
        }
    }
}
