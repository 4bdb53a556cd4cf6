//! Percent-coding, by the rules of the Go server on the other side.
//!
//! Decoding follows `net/url` (`PathUnescape`, `QueryUnescape`): a `%` that is not followed by two hexadecimal digits
//! makes the whole text unreadable. Encoding is for extra keys, which travel in header *names*: the receiver lowers
//! the case of the name before it decodes, so capital letters must travel as escapes, and so must every byte that a
//! header name cannot hold.
//!
//! Text that decodes to something else than UTF-8 is given with U+FFFD in place of each bad byte. That is what
//! kube-apiserver itself makes of it wherever it leaves the process as JSON (reviews, audit), so a rule sees the same
//! text on both sides. It is a reading of the request, never what is forwarded: the target goes on byte for byte.

use std::borrow::Cow;

/// A percent sign without two hexadecimal digits behind it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid URL escape {}", crate::go::quote::Quoted(.0))]
pub struct BadEscape(String);

/// Where an escaped text stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In a path; `+` is a plus.
    Path,
    /// In a query; `+` is a blank.
    Query,
}

/// An extra key that is not UTF-8 once it is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key of an extra header is not UTF-8")]
pub struct KeyNotText;

/// Decodes a text. Without anything to decode it costs one look at each byte.
pub fn unescape(text: &str, mode: Mode) -> Result<Cow<'_, str>, BadEscape> {
    Ok(unescape_bytes(text, mode)?.map_or(Cow::Borrowed(text), |bytes| Cow::Owned(to_text(bytes))))
}

/// The bytes behind a text, unless they are those of the text itself.
// net/url: unescape
pub(crate) fn unescape_bytes(text: &str, mode: Mode) -> Result<Option<Vec<u8>>, BadEscape> {
    let plus = |byte: u8| byte == b'+' && mode == Mode::Query;
    if !text.as_bytes().contains(&b'%') && (mode == Mode::Path || !text.as_bytes().contains(&b'+')) {
        return Ok(None);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            decoded.push(if plus(byte) { b' ' } else { byte });
            continue;
        }
        let Some((&[high, low], after)) = rest.split_first_chunk() else {
            return Err(bad_escape(rest));
        };
        let (Some(high), Some(low)) = (hex_digit(high), hex_digit(low)) else {
            return Err(bad_escape(rest));
        };
        decoded.push(high << 4 | low);
        rest = after;
    }
    Ok(Some(decoded))
}

/// Decodes the path of a request target.
pub fn decode_path(raw: &str) -> Result<Cow<'_, str>, BadEscape> {
    unescape(raw, Mode::Path)
}

/// The key of an extra header, from what is behind the prefix in its name. A malformed escape leaves it as it is. A
/// key that is not UTF-8 is refused: it could not be passed on byte for byte.
// apiserver: headerrequest/requestheader.go, newExtra and unescapeExtraKey
pub fn decode_extra_key(name: &str) -> Result<String, KeyNotText> {
    let lower = name.to_ascii_lowercase();
    match unescape_bytes(&lower, Mode::Path) {
        Ok(Some(key)) => String::from_utf8(key).map_err(|_| KeyNotText),
        Ok(None) | Err(_) => Ok(lower),
    }
}

/// What to write behind the prefix in a header's name so that exactly `key` arrives.
// client-go: transport/round_trippers.go, headerKeyEscape — and capital letters, see the head of this file
pub fn encode_extra_key(key: &str) -> String {
    encode(key.as_bytes(), stays)
}

/// Writes each byte that does not stay as it is as `%XX`.
pub(crate) fn encode(bytes: &[u8], stays: impl Fn(u8) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if stays(*byte) {
            text.push(char::from(*byte));
        } else {
            text.push('%');
            text.extend(digits(*byte).map(|digit| digit.to_ascii_uppercase()));
        }
    }
    text
}

/// The name of an object as one segment of a path: `victim?x` must not become the path of `victim`.
///
/// A name that the path could carry only as another one is an error. No object has it.
// client-go: rest/request.go, Name, with apimachinery: pkg/api/validation/path/name.go, IsValidPathSegmentName
// threat: object-name-escape
// RFC 3986, section 3.3: what a segment may hold as it is
pub(crate) fn path_segment(name: &str) -> Result<String, InvalidName> {
    if name.is_empty() {
        return Err(InvalidName::Empty);
    }
    let problems: Vec<String> = match name {
        "." | ".." => vec![format!("may not be '{name}'")],
        _ => ["/", "%"]
            .iter()
            .filter(|c| name.contains(**c))
            .map(|c| format!("may not contain '{c}'"))
            .collect(),
    };
    if !problems.is_empty() {
        return Err(InvalidName::NotASegment { name: name.to_owned(), problems: problems.join(" ") });
    }
    Ok(encode(name.as_bytes(), |byte| byte.is_ascii_alphanumeric() || b"-._~:@".contains(&byte)))
}

/// Text that no object is named by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidName {
    /// There is no text.
    #[error("resource name may not be empty")]
    Empty,
    /// A path would not carry it as one segment.
    #[error("invalid resource name {name:?}: [{problems}]")]
    NotASegment {
        /// The text.
        name: String,
        /// What is wrong with it, in apimachinery's words.
        problems: String,
    },
}

/// Two digits for each octet, in lower case.
pub(crate) fn hex(octets: &[u8]) -> String {
    octets.iter().flat_map(|octet| digits(*octet)).collect()
}

fn digits(byte: u8) -> [char; 2] {
    [byte >> 4, byte & 0xf].map(|nibble| char::from_digit(nibble.into(), 16).unwrap_or_default())
}

/// Whether a byte may stand in a header name and is read back as itself.
fn stays(byte: u8) -> bool {
    matches!(
        byte,
        b'a'..=b'z'
            | b'0'..=b'9'
            | b'-' | b'_' | b'.' | b'~' | b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'^' | b'|' | b'`'
    )
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

fn bad_escape(after_percent: &[u8]) -> BadEscape {
    let shown = after_percent.get(..2).unwrap_or(after_percent);
    BadEscape(format!("%{}", to_text(shown.to_vec())))
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
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_as_go_decodes_them() {
        const CASES: &[(&str, Result<&str, &str>)] = &[
            ("/api/v1/pods", Ok("/api/v1/pods")),
            ("/%6civez", Ok("/livez")),
            ("/a%2Fb%2fc", Ok("/a/b/c")),
            ("/a+b", Ok("/a+b")),
            ("/%2520", Ok("/%20")),
            ("/%C3%A9", Ok("/é")),
            ("/%ff", Ok("/\u{fffd}")),
            ("/%e2%82", Ok("/\u{fffd}\u{fffd}")),
            ("/%00", Ok("/\0")),
            ("/%", Err("invalid URL escape \"%\"")),
            ("/%4", Err("invalid URL escape \"%4\"")),
            ("/%zz/a", Err("invalid URL escape \"%zz\"")),
            ("/%4g", Err("invalid URL escape \"%4g\"")),
        ];
        for (raw, expected) in CASES {
            let decoded = decode_path(raw).map(Cow::into_owned).map_err(|error| error.to_string());
            assert_eq!(decoded, expected.map(str::to_owned).map_err(str::to_owned), "{raw}");
        }
    }

    #[test]
    fn extra_keys_are_lowered_before_they_are_decoded() {
        const CASES: &[(&str, &str)] = &[
            ("Scopes", "scopes"),
            ("%4B", "K"),
            ("%4b", "K"),
            ("a%2Fb", "a/b"),
            ("a+b", "a+b"),
            ("%2520", "%20"),
            ("Bad%ZZ", "bad%zz"),
            ("", ""),
        ];
        for (name, key) in CASES {
            assert_eq!(decode_extra_key(name).as_deref(), Ok(*key), "{name}");
        }
        assert_eq!(decode_extra_key("a%ff"), Err(KeyNotText));
    }

    #[test]
    fn a_name_is_one_segment_of_a_path_or_an_error() {
        const CASES: &[(&str, Result<&str, &str>)] = &[
            ("node-csr-Ab_c-1", Ok("node-csr-Ab_c-1")),
            ("system:node", Ok("system:node")),
            ("victim?x", Ok("victim%3Fx")),
            ("victim#x", Ok("victim%23x")),
            ("a b", Ok("a%20b")),
            ("ä", Ok("%C3%A4")),
            ("...", Ok("...")),
            // URL parsers leave these out: it would be the path of "ab".
            ("a\nb", Ok("a%0Ab")),
            ("a\r\tb", Ok("a%0D%09b")),
            ("", Err("resource name may not be empty")),
            (".", Err("invalid resource name \".\": [may not be '.']")),
            ("..", Err("invalid resource name \"..\": [may not be '..']")),
            ("a/b", Err("invalid resource name \"a/b\": [may not contain '/']")),
            ("a%2fb", Err("invalid resource name \"a%2fb\": [may not contain '%']")),
            ("a/b%", Err("invalid resource name \"a/b%\": [may not contain '/' may not contain '%']")),
        ];
        for (name, expected) in CASES {
            let segment = path_segment(name).map_err(|error| error.to_string());
            assert_eq!(segment, expected.map(str::to_owned).map_err(str::to_owned), "{name}");
        }
    }

    #[test]
    fn extra_keys_are_escaped_for_header_names() {
        const CASES: &[(&str, &str)] = &[
            ("acme.io/foo", "acme.io%2Ffoo"),
            ("Key", "%4Bey"),
            ("a%b", "a%25b"),
            ("é", "%C3%A9"),
            ("-_.~!#$&'*+^|`", "-_.~!#$&'*+^|`"),
            ("a b\n", "a%20b%0A"),
        ];
        for (key, name) in CASES {
            assert_eq!(encode_extra_key(key), *name, "{key}");
        }
    }
}
