//! X.509 parsing and path validation with the semantics of Go's `crypto/x509`.
//!
//! Must never accept a certificate that kube-apiserver rejects; comments mark the rules that are stricter than Go.
//! General-purpose libraries accept and reject different certificates than Go, hence a parser of our own.
//! Authentication (`authn`) and issuance (`pki::issuance`) share it, so that both parse a certificate alike.

pub mod alt_names;
pub mod bundle;
pub mod certificate;
pub mod constraints;
pub mod crl;
pub mod der;
pub mod handshake;
pub mod host_name;
pub mod key_pair;
pub mod name;
pub mod name_text;
pub mod pod_identity;
mod policy;
pub mod server;
pub mod signature;
pub mod time;
pub mod verify;

pub use bundle::{BundleError, CaBundle};
pub use certificate::ParseError;
pub use crl::{Crl, CrlError};
pub use key_pair::{CertificateKeyPair, KeyPairError};
pub use server::ServerCertError;
pub use verify::VerifyError;
