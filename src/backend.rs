//! The API servers of one cluster: their endpoints, the connections to them, and the clients of the gateway's own.

pub(crate) mod client_certificate;
pub(crate) mod endpoint;
mod http2;
pub(crate) mod kube_client;
mod lanes;
pub(crate) mod pool;
pub(crate) mod pools;
pub(crate) mod probe;
pub mod settings;
mod shares;
pub(crate) mod sharing;
pub(crate) mod upstream;
