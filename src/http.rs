//! HTTP for both sides of the gateway: bodies, headers, errors as `Status` objects, the transport, and an HTTPS client.
//!
//! Decides how identities are written and which headers are hop-by-hop. Must never leave an identity header of a client
//! beside the identity that it writes.

pub(crate) mod body;
pub(crate) mod client_tls;
pub(crate) mod encoding;
pub(crate) mod hop_by_hop;
pub(crate) mod https_client;
pub(crate) mod identity_headers;
pub(crate) mod limits;
pub(crate) mod loop_detection;
pub(crate) mod peer;
pub(crate) mod status;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod transport;
pub(crate) mod warning;
pub(crate) mod webhook;
