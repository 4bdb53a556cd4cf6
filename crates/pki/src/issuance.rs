//! Certificate issuance: decides which requests a signer signs. Must never sign a certificate that breaks a rule.
//!
//! `request` parses a certificate request and verifies its signature, `profile` checks it and its usages against the
//! rules of the signer, `validity` sets its dates, `tbs` builds the to-be-signed certificate, `lint` parses that with another parser and runs every lint, and
//! `limits` checks it against the extensions of the CA certificate. Only a certificate that passed all checks becomes
//! an [`issue::PreparedCertificate`], which [`authority::CertificateAuthority::issue`] takes by value. No caller can
//! therefore get a request signed unchecked. CA certificates themselves are made from an operator's flags, not from a
//! request (`ca`). Certificates of pods have no request with names either (`pod`).
//!
//! The rules are kube-controller-manager's: `pkg/controller/certificates/{signer,authority}`.

pub mod alt_names;
pub mod authority;
pub mod ca;
pub mod crl;
pub mod dns;
pub mod issue;
pub mod limits;
pub mod lint;
mod name_pattern;
mod pattern;
pub mod pod;
pub mod profile;
pub mod public_key;
pub mod request;
pub mod signer;
mod signer_name;
pub mod subject;
mod tbs;
pub mod usage;
pub mod validity;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
