//! Issuing certificates: what a signer may sign, and the one way to a signature.
//!
//! A request is parsed and its own signature checked (`request`), a profile says whether it may have what it asks for
//! (`profile`), the to-be-signed certificate is built, parsed back by another reader and judged by every lint
//! (`lint`), and so is what verifiers will let its authority sign for (`limits`); only what passed all of that is a
//! [`issue::Prepared`], which [`authority::Authority::issue`] takes by value. A certificate that breaks a rule is
//! therefore impossible to sign, whatever a caller does. Authorities themselves are made from an operator's flags, not
//! from a request (`ca`).
//!
//! The rules are kube-controller-manager's: `pkg/controller/certificates/{signer,authority}`.

pub mod alt_names;
pub mod authority;
pub(crate) mod ca;
pub mod dns;
pub mod issue;
pub mod limits;
pub mod lint;
mod name_pattern;
mod pattern;
pub mod profile;
pub mod public_key;
pub mod request;
pub mod signer;
mod signer_name;
pub mod subject;
mod tbs;
pub mod usage;
pub mod validity;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
