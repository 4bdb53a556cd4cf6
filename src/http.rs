//! HTTP as client, gateway and backend share it.

pub(crate) mod body;
pub mod client_tls;
pub(crate) mod encoding;
pub(crate) mod hop_by_hop;
pub mod https_client;
pub(crate) mod identity_headers;
pub mod status;
pub(crate) mod transport;
