//! Extra keys of a user, which are parts of header *names*.
//!
//! The receiver lowers the case of the name before it decodes it, so capital letters are escaped, and so is every byte
//! that a header name cannot contain.

use portcullis_go::url::{self, Part};

/// An extra key that is not UTF-8 once it is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key of an extra header is not UTF-8")]
pub struct KeyNotText;

/// Decodes the key of an extra header from the part of the header name after the prefix. With a malformed escape, that
/// part is the key. A key that is not UTF-8 is refused: it could not be forwarded byte for byte.
// apiserver: pkg/authentication/request/headerrequest/requestheader.go, newExtra and unescapeExtraKey
pub fn decode_extra_key(name: &str) -> Result<String, KeyNotText> {
    let lower = name.to_ascii_lowercase();
    match url::unescape_bytes(&lower, Part::Path) {
        Ok(Some(key)) => String::from_utf8(key).map_err(|_| KeyNotText),
        Ok(None) | Err(_) => Ok(lower),
    }
}

/// Encodes `key` for the part of a header name after the prefix.
// client-go: transport/round_trippers.go, headerKeyEscape — and capital letters, see the head of this file
pub fn encode_extra_key(key: &str) -> String {
    url::escape(key.as_bytes(), |byte| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.~!#$&'*+^|`".contains(&byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
