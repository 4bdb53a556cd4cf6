//! What must hold of everything that reads a stranger's bytes, whatever the bytes: one function for each reader, which
//! panics where its property does not hold. Internal, and no part of the library's surface.
//!
//! The targets in `fuzz/` call these functions with bytes of libFuzzer's making; `cargo test` calls them with the
//! committed corpus and with random inputs of the right shape (`tests`). Inputs are text that a person can write,
//! except for certificates and requests for them. What a function compares with is written for clearness alone, apart from the code.

mod certificates;
mod escape;
mod headers;
mod kubeconfig;
mod pem;
mod request;
mod requests;
#[cfg(test)]
mod tests;
mod token_csv;

pub use certificates::{pem_bundle, x509};
pub use escape::extra_key;
pub use headers::{credentials, forwarded_identity, wellformed};
pub use kubeconfig::kubeconfig;
pub use pem::pem;
pub use request::request_info;
pub use requests::csr;
pub use token_csv::token_csv;

/// The answer of an authenticator that has nobody to wait for.
fn ready(
    verdict: crate::authn::BoxFuture<'_, crate::authn::AuthnVerdict>,
) -> Option<crate::authn::AuthnVerdict> {
    futures_util::FutureExt::now_or_never(verdict)
}
