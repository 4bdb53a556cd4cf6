//! Where the key of an authority is, and how it signs.

use std::fmt;

use secrecy::SecretString;

/// Something that signs with one private key. Signing blocks: callers in async code use a blocking thread.
pub trait Signer: Send + Sync + fmt::Debug {
    /// The encoded `SubjectPublicKeyInfo` of the key.
    fn public_key(&self) -> &[u8];

    /// Signs a message: the hash is computed here as the algorithm says. ECDSA signatures are DER.
    fn sign(&self, algorithm: SignatureAlgorithm, message: &[u8]) -> Result<Vec<u8>, SignError>;
}

/// How an authority signs; its key decides.
// go: crypto/x509/x509.go, signingParamsForKey
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureAlgorithm {
    /// PKCS#1 v1.5 with SHA-256.
    RsaSha256,
    /// P-256.
    EcdsaSha256,
    /// P-384.
    EcdsaSha384,
    /// P-521.
    EcdsaSha512,
    /// Ed25519.
    Ed25519,
}

/// The key could not sign.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The key is of another kind than the algorithm.
    #[error("the key cannot sign by {0:?}")]
    Algorithm(SignatureAlgorithm),
    /// The key's holder failed.
    #[error("failed to sign certificate: {0}")]
    Failed(String),
}

/// The kinds of keys that are made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// RSA of 2048 bits.
    Rsa2048,
    /// RSA of 3072 bits.
    Rsa3072,
    /// RSA of 4096 bits.
    Rsa4096,
    /// ECDSA on P-256.
    EcdsaP256,
    /// ECDSA on P-384.
    EcdsaP384,
    /// ECDSA on P-521.
    EcdsaP521,
    /// Ed25519.
    Ed25519,
}

/// Why bytes are no private key that can be used. Never shows any of the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There is no private key in the PEM.
    // client-go: util/keyutil/key.go, ParsePrivateKeyPEM
    #[error("data does not contain a valid RSA or ECDSA private key")]
    NoKey,
    /// The key is encrypted and there is no passphrase.
    #[error("the private key is encrypted: give its passphrase")]
    Encrypted,
    /// The passphrase is wrong, or the encryption is one that is not read here.
    #[error("the private key cannot be decrypted: the passphrase is wrong, or the encryption is not PBES2")]
    Decrypt,
    /// The key is of a kind that is not used here.
    #[error("{0}")]
    Unsupported(String),
    /// A key could not be made or written.
    #[error("{0}")]
    Failed(String),
}

/// A private key in memory, read from PEM or made here.
pub struct PemKey {
    public: Vec<u8>,
}

impl fmt::Debug for PemKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PemKey")
    }
}

impl PemKey {
    /// Reads PKCS#8, PKCS#1 or SEC1; other blocks are passed over.
    pub fn from_pem(_pem: &[u8]) -> Result<Self, KeyError> {
        Err(KeyError::NoKey)
    }

    /// Reads an encrypted PKCS#8 key (PBES2).
    pub fn from_encrypted_pem(_pem: &[u8], _passphrase: &SecretString) -> Result<Self, KeyError> {
        Err(KeyError::NoKey)
    }

    /// Makes a key.
    pub fn generate(kind: KeyKind) -> Result<Self, KeyError> {
        Err(KeyError::Failed(format!("{kind:?}")))
    }

    /// The key as PKCS#8.
    pub fn to_pem(&self) -> SecretString {
        SecretString::default()
    }

    /// The key as encrypted PKCS#8: PBES2 with scrypt and AES-256-CBC.
    pub fn to_encrypted_pem(&self, _passphrase: &SecretString) -> Result<SecretString, KeyError> {
        Err(KeyError::NoKey)
    }
}

impl Signer for PemKey {
    fn public_key(&self) -> &[u8] {
        &self.public
    }

    fn sign(&self, algorithm: SignatureAlgorithm, _message: &[u8]) -> Result<Vec<u8>, SignError> {
        Err(SignError::Algorithm(algorithm))
    }
}
