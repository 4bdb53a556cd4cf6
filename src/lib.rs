//! Portcullis: an authenticating and admitting front proxy for Kubernetes-style API servers.

pub mod authn;
pub mod clock;
#[cfg(feature = "dev")]
pub mod dev;
pub mod request;
pub mod status;
pub mod user;
