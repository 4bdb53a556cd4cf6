//! HTTP as client, gateway and backend share it.

pub(crate) mod body;
pub mod client_tls;
pub(crate) mod hop_by_hop;
pub mod https_client;
pub(crate) mod identity_headers;
pub(crate) mod limits;
pub mod status;
pub(crate) mod transport;
