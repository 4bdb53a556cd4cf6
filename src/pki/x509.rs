//! X.509 as Go's `crypto/x509` reads and verifies it: certificates, names, keys, signatures and chains.
//!
//! Shared by who judges certificates (`authn`) and who issues them (`certificates`), so that both read one way.
//! General libraries accept and refuse other certificates than kube-apiserver does; hence a reader of our own.

pub(crate) mod alt_names;
pub(crate) mod bundle;
pub(crate) mod certificate;
pub(crate) mod constraints;
pub(crate) mod der;
pub(crate) mod key_pair;
pub(crate) mod name;
mod policy;
pub(crate) mod signature;
pub(crate) mod time;
pub(crate) mod verify;

pub use bundle::{BundleError, CaBundle};
pub use certificate::ParseError;
pub use key_pair::{CertificateKeyPair, KeyPairError};
pub use signature::SignatureError;
pub use verify::VerifyError;
