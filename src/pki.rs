//! X.509: reading and verifying certificates, issuing them, bootstrap tokens.

pub mod bootstrap_tokens;
pub mod issuance;
pub mod x509;
