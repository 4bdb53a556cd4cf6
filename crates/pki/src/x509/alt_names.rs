//! Subject alternative names, parsed as Go parses them.

use portcullis_go::url::Url;

use super::certificate::ParseError;
use super::der::{DerReader, tag};

/// The names of a subject alternative name extension, of the four kinds that Go parses.
#[derive(Debug, Clone, Default)]
pub struct SubjectAltNames {
    /// The DNS names.
    pub dns: Vec<String>,
    /// The e-mail addresses.
    pub emails: Vec<String>,
    /// Each URI as encoded, and as Go parses it.
    pub uris: Vec<(String, Url)>,
    /// Four or sixteen octets each.
    pub ips: Vec<Vec<u8>>,
}

impl SubjectAltNames {
    // go: crypto/x509/parser.go, parseSANExtension
    /// Parses the value of the extension.
    pub fn parse(mut der: DerReader<'_>) -> Result<Self, ParseError> {
        let mut names = Self::default();
        let mut list =
            der.enter(tag::SEQUENCE).ok_or(ParseError("x509: invalid subject alternative names"))?;
        while !list.is_empty() {
            let name = list.any().ok_or(ParseError("x509: invalid subject alternative name"))?;
            match name.tag {
                0x81 => names
                    .emails
                    .push(ia5(name.content).ok_or(ParseError("x509: SAN rfc822Name is malformed"))?),
                0x82 => {
                    names.dns.push(ia5(name.content).ok_or(ParseError("x509: SAN dNSName is malformed"))?);
                }
                0x86 => {
                    let text = ia5(name.content)
                        .ok_or(ParseError("x509: SAN uniformResourceIdentifier is malformed"))?;
                    let uri = Url::parse(&text).map_err(|_| ParseError("x509: cannot parse URI"))?;
                    if !domain_valid(&uri.host, false) {
                        return Err(ParseError("x509: cannot parse URI: invalid domain"));
                    }
                    names.uris.push((text, uri));
                }
                0x87 if matches!(name.content.len(), 4 | 16) => names.ips.push(name.content.to_vec()),
                0x87 => return Err(ParseError("x509: cannot parse IP address")),
                _ => {}
            }
        }
        Ok(names)
    }

    /// Whether the extension has no name of a known kind.
    pub fn is_empty(&self) -> bool {
        self.dns.is_empty() && self.emails.is_empty() && self.uris.is_empty() && self.ips.is_empty()
    }
}

/// Whether Go accepts a domain name: no trailing period, no empty label, printable characters.
// go: crypto/x509/parser.go, domainNameValid
pub(crate) fn domain_valid(domain: &str, constraint: bool) -> bool {
    if domain.is_empty() {
        return true;
    }
    if domain.ends_with('.') {
        return false;
    }
    let domain = if constraint { domain.strip_prefix('.').unwrap_or(domain) } else { domain };
    domain.split('.').all(|label| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_graphic()))
}

/// The text of an `IA5String`.
pub fn ia5(content: &[u8]) -> Option<String> {
    content.is_ascii().then(|| content.iter().copied().map(char::from).collect())
}
