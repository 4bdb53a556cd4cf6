//! URLs as Go's `net/url` parses and prints them: whole URLs, escapes, and query strings.
//!
//! Text that does not decode to UTF-8 has U+FFFD in place of each invalid byte, as in the JSON that kube-apiserver writes
//! (reviews, audit), so a rule sees the same text on both sides. Only decisions use the decoded text; the target is
//! forwarded byte for byte.

use std::borrow::Cow;
use std::fmt;

use super::hex;
use super::netip::{self, ParseError};
use super::octets::{Octets, octets};
use super::quote::{Quoted, QuotedBytes};

pub mod query;

/// An error of the URL parser, with Go's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// A percent sign that two hexadecimal digits do not follow, or an octet that may not be escaped here.
    #[error("invalid URL escape {}", QuotedBytes(.0))]
    Escape(Vec<u8>),
    /// A character that a host cannot contain.
    #[error("invalid character {} in host name", Quoted(.0))]
    HostCharacter(String),
    /// The text after the host is not a port.
    #[error("invalid port {} after host", Quoted(.0))]
    Port(String),
    /// The text in brackets is not an IPv6 address.
    #[error("invalid host: {0}")]
    Address(ParseError),
    /// Any other error.
    #[error("{0}")]
    Form(&'static str),
    /// An error, with the URL.
    #[error("parse {}: {problem}", Quoted(.url))]
    Parse {
        /// The URL, as far as it was parsed.
        url: String,
        /// The error.
        problem: Box<Self>,
    },
}

/// A part of a URL with rules of its own about escapes.
// Go: net/url/url.go, encoding
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The path; `+` is a plus.
    Path,
    /// A key or a value of the query; `+` is a blank.
    Query,
    /// User or password.
    User,
    /// The host with its port.
    Host,
    /// The zone of an IPv6 address, with its percent sign.
    Zone,
    /// The fragment.
    Fragment,
}

/// Whether RFC 3986, section 2.2, has it among the `sub-delims`.
const fn is_delimiter(byte: u8) -> bool {
    matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=')
}

impl Part {
    /// Whether Go's encoder leaves an octet unescaped.
    // Go: net/url/gen_encoding_table.go, shouldEscape
    const fn keeps(self, byte: u8) -> bool {
        let is_unreserved = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
        is_unreserved
            || match self {
                Self::Path => matches!(byte, b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'@'),
                Self::Query => false,
                Self::User => matches!(byte, b'$' | b'&' | b'+' | b',' | b';' | b'='),
                Self::Host | Self::Zone => {
                    is_delimiter(byte) || matches!(byte, b':' | b'[' | b']' | b'<' | b'>' | b'"')
                }
                Self::Fragment => {
                    (is_delimiter(byte) && byte != b'\'') || matches!(byte, b'/' | b':' | b'?' | b'@')
                }
            }
    }

    /// Whether the octet that an escape stands for may be escaped in this part.
    fn takes_escaped(self, byte: u8) -> bool {
        match self {
            Self::Host => byte >= 0x80 || byte == b'%',
            Self::Zone => byte == b'%' || byte == b' ' || Self::Host.keeps(byte),
            _ => true,
        }
    }

    /// A decodable text as Go prints it: unchanged if valid, else decoded and encoded again.
    // Go: net/url/url.go, EscapedPath, EscapedFragment, validEncoded
    fn rewrite(self, text: &str) -> Cow<'_, str> {
        let is_valid = match self {
            // Of each request that is audited.
            Self::Path => {
                static VALID: Octets = octets!(|byte| Part::Path.is_valid(byte));
                VALID.has_all_of(text.as_bytes())
            }
            _ => text.bytes().all(|byte| self.is_valid(byte)),
        };
        if is_valid { Cow::Borrowed(text) } else { Cow::Owned(self.encode(text)) }
    }

    /// Whether an octet is valid in an encoded text.
    // Go: net/url/url.go, validEncoded
    const fn is_valid(self, byte: u8) -> bool {
        self.keeps(byte) || is_delimiter(byte) || matches!(byte, b':' | b'@' | b'[' | b']' | b'%')
    }

    /// Decodes a text and encodes it by Go's rule.
    fn encode(self, text: &str) -> String {
        let decoded = unescape_bytes(text, self).ok().flatten();
        escape(decoded.as_deref().unwrap_or(text.as_bytes()), |byte| self.keeps(byte))
    }
}

/// Decodes a text. Without anything to decode it costs one look at each byte.
pub fn unescape(text: &str, part: Part) -> Result<Cow<'_, str>, UrlError> {
    Ok(unescape_bytes(text, part)?.map_or(Cow::Borrowed(text), |bytes| Cow::Owned(to_text(bytes))))
}

/// Decodes the path of a request target.
pub fn decode_path(raw: &str) -> Result<Cow<'_, str>, UrlError> {
    unescape(raw, Part::Path)
}

/// The bytes behind a text, unless they are those of the text itself.
// Go: net/url/url.go, unescape
pub fn unescape_bytes(text: &str, part: Part) -> Result<Option<Vec<u8>>, UrlError> {
    let is_host = matches!(part, Part::Host | Part::Zone);
    let is_blank = |byte: u8| byte == b'+' && part == Part::Query;
    if !is_host && !text.bytes().any(|byte| byte == b'%' || is_blank(byte)) {
        return Ok(None);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        decoded.push(match byte {
            b'%' => {
                let octet = escaped_octet(rest).filter(|octet| part.takes_escaped(*octet));
                let Some(octet) = octet else {
                    let shown = rest.get(..2).unwrap_or(rest);
                    return Err(UrlError::Escape([b"%", shown].concat()));
                };
                rest = rest.get(2..).unwrap_or_default();
                octet
            }
            byte if is_blank(byte) => b' ',
            byte if is_host && byte.is_ascii() && !part.keeps(byte) => {
                return Err(UrlError::HostCharacter(char::from(byte).to_string()));
            }
            byte => byte,
        });
    }
    Ok(Some(decoded))
}

fn escaped_octet(after_percent: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let &[high, low] = after_percent.first_chunk()?;
    Some(digit(high)? << 4 | digit(low)?)
}

/// Escapes each byte for which `stays` is false as `%XX`.
pub fn escape(bytes: &[u8], stays: impl Fn(u8) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if stays(*byte) {
            text.push(char::from(*byte));
        } else {
            text.push('%');
            text.extend(hex::digits(*byte).map(|digit| digit.to_ascii_uppercase()));
        }
    }
    text
}

/// A decodable path as Go prints it: unchanged if valid, else decoded and escaped again.
// Go: net/url/url.go, EscapedPath
pub fn escaped_path(raw: &str) -> Cow<'_, str> {
    // `*`, the target of OPTIONS, is the one target that is not a path.
    if raw == "%2A" { Cow::Borrowed("*") } else { Part::Path.rewrite(raw) }
}

/// A URL that Go parses; `Display` writes it as Go writes it again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Url {
    /// In lower case; empty if absent.
    pub scheme: String,
    /// The text after the scheme if no slash follows it: `urn:…`, `mailto:…`.
    opaque: String,
    /// User and password as Go writes them again.
    pub user: Option<String>,
    /// The host with its port, decoded; empty if absent.
    pub host: String,
    /// Whether there is a scheme and a path, and no authority between them.
    omits_host: bool,
    /// As it was written.
    path: String,
    /// As it was written; empty if the URL ends with the question mark.
    pub query: Option<String>,
    /// As it was written.
    pub fragment: String,
}

impl Url {
    /// Parses a URL; the error has Go's text.
    // Go: net/url/url.go, Parse
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
        let wrong = |url: &str, problem| UrlError::Parse { url: url.to_owned(), problem: Box::new(problem) };
        let parsed = Self::without_fragment(rest, false).map_err(|problem| wrong(rest, problem))?;
        unescape_bytes(fragment, Part::Fragment).map_err(|problem| wrong(url, problem))?;
        Ok(Self { fragment: fragment.to_owned(), ..parsed })
    }

    /// Checks the target of a request: an absolute URL or an absolute path, in which a `#` begins no fragment.
    // Go: net/url/url.go, ParseRequestURI
    pub fn check_request_uri(url: &str) -> Result<(), UrlError> {
        let wrong = |problem| UrlError::Parse { url: url.to_owned(), problem: Box::new(problem) };
        Self::without_fragment(url, true).map(drop).map_err(wrong)
    }

    /// The path as Go prints it.
    pub fn escaped_path(&self) -> Cow<'_, str> {
        escaped_path(&self.path)
    }

    /// The host without its port and without brackets.
    // Go: net/url/url.go, Hostname
    pub fn hostname(&self) -> &str {
        let (host, _) = self.split_port();
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The port, empty if absent.
    // Go: net/url/url.go, Port
    pub fn port(&self) -> &str {
        self.split_port().1
    }

    fn split_port(&self) -> (&str, &str) {
        let split = self.host.rsplit_once(':');
        split.filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit())).unwrap_or((&self.host, ""))
    }

    // Go: net/url/url.go, parse
    fn without_fragment(url: &str, via_request: bool) -> Result<Self, UrlError> {
        if url.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err(UrlError::Form("net/url: invalid control character in URL"));
        }
        if via_request && url.is_empty() {
            return Err(UrlError::Form("empty url"));
        }
        if url == "*" {
            return Ok(Self { path: url.to_owned(), ..Self::default() });
        }
        let (scheme, rest) = split_scheme(url)?;
        let mut parsed = Self { scheme: scheme.to_ascii_lowercase(), ..Self::default() };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        parsed.query = query.map(str::to_owned);
        if !rest.starts_with('/') {
            if !scheme.is_empty() {
                rest.clone_into(&mut parsed.opaque);
                return Ok(parsed);
            }
            if via_request {
                return Err(UrlError::Form("invalid URI for request"));
            }
            if has_colon_in_first_segment(rest) {
                return Err(UrlError::Form("first path segment in URL cannot contain colon"));
            }
        }
        let authority = rest
            .strip_prefix("//")
            .filter(|_| !scheme.is_empty() || !via_request && !rest.starts_with("///"));
        let path = if let Some(authority) = authority {
            let slash = authority.find('/').unwrap_or(authority.len());
            let (authority, path) = authority.split_at_checked(slash).unwrap_or((authority, ""));
            parsed.read_authority(authority)?;
            path
        } else {
            parsed.omits_host = !scheme.is_empty();
            rest
        };
        unescape_bytes(path, Part::Path)?;
        path.clone_into(&mut parsed.path);
        Ok(parsed)
    }

    // Go: net/url/url.go, parseAuthority
    fn read_authority(&mut self, authority: &str) -> Result<(), UrlError> {
        let (user, host) =
            authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        self.host = parse_host(&self.scheme, host)?;
        let Some(user) = user else { return Ok(()) };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
        if !user.bytes().all(allowed) {
            return Err(UrlError::Form("net/url: invalid userinfo"));
        }
        let parts = user.splitn(2, ':');
        let written = parts.map(|part| unescape_bytes(part, Part::User).map(|_| Part::User.encode(part)));
        self.user = Some(written.collect::<Result<Vec<_>, _>>()?.join(":"));
        Ok(())
    }
}

// Go: net/url/url.go, URL.String
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, opaque, user, host, omits_host, path, query, fragment } = self;
        if !scheme.is_empty() {
            write!(f, "{scheme}:")?;
        }
        if opaque.is_empty() {
            let has_authority = !host.is_empty() || user.is_some();
            if has_authority || !scheme.is_empty() && !omits_host && !path.is_empty() {
                f.write_str("//")?;
            }
            if let Some(user) = user {
                write!(f, "{user}@")?;
            }
            f.write_str(&escape(host.as_bytes(), |byte| Part::Host.keeps(byte)))?;
            let path = escaped_path(path);
            if scheme.is_empty() && !has_authority && has_colon_in_first_segment(&path) {
                f.write_str("./")?;
            }
            f.write_str(&path)?;
        } else {
            f.write_str(opaque)?;
        }
        if let Some(query) = query {
            write!(f, "?{query}")?;
        }
        if !fragment.is_empty() {
            write!(f, "#{}", Part::Fragment.rewrite(fragment))?;
        }
        Ok(())
    }
}

fn has_colon_in_first_segment(path: &str) -> bool {
    path.split('/').next().is_some_and(|segment| segment.contains(':'))
}

// Go: net/url/url.go, getScheme
fn split_scheme(url: &str) -> Result<(&str, &str), UrlError> {
    let length = url.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    match length.and_then(|length| url.split_at_checked(length)) {
        Some(("", rest)) if rest.starts_with(':') => Err(UrlError::Form("missing protocol scheme")),
        Some((scheme, rest)) if scheme.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            Ok(rest.strip_prefix(':').map_or(("", url), |rest| (scheme, rest)))
        }
        _ => Ok(("", url)),
    }
}

// Go: net/url/url.go, parseHost
fn parse_host(scheme: &str, host: &str) -> Result<String, UrlError> {
    let decode = |text: &str, part| unescape(text, part).map(Cow::into_owned);
    match host.rfind('[') {
        Some(0) => {
            let (inside, port) = host.rsplit_once(']').ok_or(UrlError::Form("missing ']' in host"))?;
            check_port(port)?;
            let inside = inside.strip_prefix('[').unwrap_or(inside);
            let zone = inside.find("%25").unwrap_or(inside.len());
            let (address, zone) = inside.split_at_checked(zone).unwrap_or((inside, ""));
            let (address, zone) = (decode(address, Part::Host)?, decode(zone, Part::Zone)?);
            let parsed = netip::parse_addr(&format!("{address}{zone}")).map_err(UrlError::Address)?;
            if parsed.address.is_ipv4() {
                return Err(UrlError::Form("invalid IP-literal"));
            }
            return Ok(format!("[{address}{zone}]{port}"));
        }
        Some(_) => return Err(UrlError::Form("invalid IP-literal")),
        None => {}
    }
    let colon = if matches!(scheme, "http" | "https") { host.find(':') } else { host.rfind(':') };
    if let Some((_, port)) = colon.and_then(|colon| host.split_at_checked(colon)) {
        check_port(port)?;
    }
    decode(host, Part::Host)
}

// Go: net/url/url.go, validOptionalPort
fn check_port(port: &str) -> Result<(), UrlError> {
    let digits = port.strip_prefix(':');
    if port.is_empty() || digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
        return Ok(());
    }
    Err(UrlError::Port(port.to_owned()))
}

/// Why a name cannot be a segment of a path.
// apimachinery: pkg/api/validate/content/path.go, IsPathSegmentName
pub fn path_segment_problems(name: &str) -> Vec<String> {
    match name {
        "." | ".." => vec![format!("may not be '{name}'")],
        _ => ["/", "%"]
            .iter()
            .filter(|c| name.contains(**c))
            .map(|c| format!("may not contain '{c}'"))
            .collect(),
    }
}

/// The name of an object as one segment of a path: `victim?x` must not become the path of `victim`.
///
/// A name that cannot be one path segment is an error. No object has such a name.
// client-go: rest/request.go, Name, with apimachinery: pkg/api/validation/path/name.go, IsValidPathSegmentName
// threat: object-name-escape
// RFC 3986, section 3.3: the characters of a segment
pub fn path_segment(name: &str) -> Result<String, InvalidName> {
    if name.is_empty() {
        return Err(InvalidName::Empty);
    }
    let problems = path_segment_problems(name);
    if !problems.is_empty() {
        return Err(InvalidName::NotASegment { name: name.to_owned(), problems: problems.join(" ") });
    }
    Ok(escape(name.as_bytes(), |byte| byte.is_ascii_alphanumeric() || b"-._~:@".contains(&byte)))
}

/// A text that cannot be the name of an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Empty.
    #[error("resource name may not be empty")]
    Empty,
    /// It is not one path segment.
    #[error("invalid resource name {name:?}: [{problems}]")]
    NotASegment {
        /// The text.
        name: String,
        /// The problems, with apimachinery's texts.
        problems: String,
    },
}

/// One U+FFFD for each byte that is not part of a character, as Go counts them.
fn to_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let mut text = String::with_capacity(error.as_bytes().len());
        for chunk in error.as_bytes().utf8_chunks() {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
        }
        text
    })
}

#[cfg(test)]
mod tests;
