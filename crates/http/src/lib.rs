//! HTTP for both sides of the gateway: bodies, headers, errors as `Status` objects, the transport, and an HTTPS client.
//!
//! Decides how identities are written and which headers are hop-by-hop. Must never leave an identity header of a client
//! beside the identity that it writes.

pub mod body;
pub mod client_tls;
pub mod connector;
pub mod held_texts;
pub mod hop_by_hop;
pub mod https_client;
pub mod identity;
pub mod identity_headers;
pub mod limits;
pub mod loop_detection;
pub mod peer;
pub mod proxy;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transport;
pub mod warning;
pub mod webhook;
