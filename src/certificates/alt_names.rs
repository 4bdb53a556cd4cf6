//! Subject alternative names of the four kinds that Kubernetes signers carry over.

use std::net::IpAddr;

/// Alternative names, each kind in the order of the request, duplicates kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AltNames {
    /// DNS names, as written.
    pub dns: Vec<String>,
    /// Mailboxes, as written.
    pub emails: Vec<String>,
    /// Addresses; an IPv4 address that was written as an IPv6 one is an IPv4 address here.
    pub ips: Vec<IpAddr>,
    /// URIs, as Go's `net/url` writes them again.
    pub uris: Vec<String>,
}

impl AltNames {
    /// Whether there is no name at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
