//! Properties of the parsers of untrusted bytes: one function per parser, which panics if a property is violated.
//! Internal, not part of the library's API.
//!
//! The targets in `fuzz/` call these functions with inputs of libFuzzer; `cargo test` calls them with the committed
//! corpus and with random structured inputs (`tests`). Inputs are readable text, except for certificates and
//! certificate requests. The models that results are compared with are written for clarity, and share no code with the
//! parsers.

mod certificates;
mod escape;
mod expressions;
mod headers;
mod kubeconfig;
mod pem;
mod proxy_header;
mod request;
mod requests;
mod revocation;
mod sessions;
#[cfg(test)]
mod tests;
mod token_csv;

pub use certificates::{pem_bundle, x509};
pub use escape::extra_key;
pub use expressions::{cel_expression, cel_values};
pub use headers::{credentials, forwarded_identity, wellformed};
pub use kubeconfig::kubeconfig;
pub use pem::pem;
pub use proxy_header::proxy_header;
pub use request::request_info;
pub use requests::csr;
pub use revocation::crls;
pub use sessions::{session_stream, session_text};
pub use token_csv::token_csv;

/// The time at which certificates and CRLs are verified, 2026-01-01T00:00:00Z.
const NOW: portcullis_system::clock::UnixTime = portcullis_system::clock::UnixTime::new(1_767_225_600, 0);

/// The verdict of an authenticator that never waits.
fn ready(
    verdict: crate::authn::BoxFuture<'_, crate::authn::AuthnVerdict>,
) -> Option<crate::authn::AuthnVerdict> {
    futures_util::FutureExt::now_or_never(verdict)
}
