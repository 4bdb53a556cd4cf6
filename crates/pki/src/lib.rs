//! Public-key infrastructure: X.509 parsing and path validation, certificate issuance, bootstrap tokens.
//!
//! Decides which certificates are valid and which certificates a signer issues. Must never accept a certificate that
//! kube-apiserver rejects, issue one that breaks its profile, or show a private key or token.

pub mod bootstrap_tokens;
pub mod issuance;
pub mod revocation;
pub mod x509;
