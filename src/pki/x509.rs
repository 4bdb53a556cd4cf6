//! X.509 parsing and path validation with the semantics of Go's `crypto/x509`.
//!
//! Must never accept a certificate that kube-apiserver rejects; comments mark the rules that are stricter than Go.
//! General-purpose libraries accept and reject different certificates than Go, hence a parser of our own.
//! Authentication (`authn`) and issuance (`pki::issuance`) share it, so that both parse a certificate alike.

pub(crate) mod alt_names;
pub(crate) mod bundle;
pub(crate) mod certificate;
pub(crate) mod constraints;
pub(crate) mod crl;
pub(crate) mod der;
pub(crate) mod key_pair;
pub(crate) mod name;
pub(crate) mod name_text;
mod policy;
pub(crate) mod signature;
pub(crate) mod time;
pub(crate) mod verify;

pub use bundle::{BundleError, CaBundle};
pub(crate) use certificate::ParseError;
pub(crate) use crl::Crl;
pub(crate) use key_pair::{CertificateKeyPair, KeyPairError};
pub(crate) use verify::VerifyError;
