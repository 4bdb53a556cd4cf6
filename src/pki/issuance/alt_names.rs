//! Subject alternative names of the four kinds that Kubernetes signers carry over; every other kind is dropped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use x509_cert::der::asn1::{Ia5String, OctetString};
use x509_cert::der::{self, Encode as _};
use x509_cert::ext::pkix::name::GeneralName;

use crate::pki::x509::alt_names::Names;

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

    pub(super) fn from_names(names: Names) -> Self {
        Self {
            dns: names.dns,
            emails: names.emails,
            ips: names.ips.iter().filter_map(|octets| address(octets)).collect(),
            uris: names.uris.into_iter().map(|(_, uri)| uri.to_string()).collect(),
        }
    }

    /// The content of the extension: DNS names, mailboxes, addresses, URIs.
    // go: crypto/x509/x509.go, marshalSANs
    pub(super) fn to_der(&self) -> Result<Vec<u8>, der::Error> {
        let mut names = Vec::new();
        for name in &self.dns {
            names.push(GeneralName::DnsName(Ia5String::new(name)?));
        }
        for name in &self.emails {
            names.push(GeneralName::Rfc822Name(Ia5String::new(name)?));
        }
        for ip in &self.ips {
            let octets = match ip.to_canonical() {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            names.push(GeneralName::IpAddress(OctetString::new(octets)?));
        }
        for name in &self.uris {
            names.push(GeneralName::UniformResourceIdentifier(Ia5String::new(name)?));
        }
        names.to_der()
    }
}

/// Four octets, or sixteen, of which the IPv4-mapped ones are an IPv4 address.
// go: net/ip.go, To4
fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(octets).ok()?;
    Some(IpAddr::from(Ipv6Addr::from(octets)).to_canonical())
}
