//! Subject alternative names of the four kinds that Kubernetes signers copy; they drop every other kind.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use x509_cert::der::asn1::{Ia5String, OctetString};
use x509_cert::der::{self, Encode as _};
use x509_cert::ext::pkix::name::GeneralName;

use crate::x509::alt_names::SubjectAltNames;

/// Alternative names, each kind in the order of the request, with duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AltNames {
    /// DNS names, as in the request.
    pub dns: Vec<String>,
    /// Email addresses, as in the request.
    pub emails: Vec<String>,
    /// IP addresses; IPv4-mapped IPv6 addresses are converted to IPv4.
    pub ips: Vec<IpAddr>,
    /// URIs, as Go's `net/url` formats them.
    pub uris: Vec<String>,
}

impl AltNames {
    /// Whether the lists are all empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn from_names(names: SubjectAltNames) -> Self {
        Self {
            dns: names.dns,
            emails: names.emails,
            ips: names.ips.iter().filter_map(|octets| address(octets)).collect(),
            uris: names.uris.into_iter().map(|(_, uri)| uri.to_string()).collect(),
        }
    }

    /// The content of the extension: DNS names, email addresses, IP addresses, URIs.
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

/// Converts four octets, or sixteen; IPv4-mapped addresses become IPv4.
// go: net/ip.go, To4
fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(octets).ok()?;
    Some(IpAddr::from(Ipv6Addr::from(octets)).to_canonical())
}
