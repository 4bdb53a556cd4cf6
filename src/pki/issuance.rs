//! Certificate issuance: decides which requests a signer signs. Must never sign a certificate that breaks a rule.
//!
//! `request` parses a certificate request and verifies its signature, `profile` checks it and its usages against the
//! rules of the signer, `tbs` builds the to-be-signed certificate, `lint` parses that with another parser and runs every lint, and
//! `limits` checks it against the extensions of the CA certificate. Only a certificate that passed all checks becomes
//! an [`issue::PreparedCertificate`], which [`authority::CertificateAuthority::issue`] takes by value. No caller can
//! therefore get a request signed unchecked. CA certificates themselves are made from an operator's flags, not from a
//! request (`ca`).
//!
//! The rules are kube-controller-manager's: `pkg/controller/certificates/{signer,authority}`.

pub(crate) mod alt_names;
pub(crate) mod authority;
pub(crate) mod ca;
pub(crate) mod crl;
pub(crate) mod dns;
pub(crate) mod issue;
pub(crate) mod limits;
pub(crate) mod lint;
mod name_pattern;
mod pattern;
pub(crate) mod profile;
pub(crate) mod public_key;
pub(crate) mod request;
pub(crate) mod signer;
mod signer_name;
pub(crate) mod subject;
mod tbs;
pub(crate) mod usage;
pub(crate) mod validity;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
