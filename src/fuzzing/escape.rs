//! Percent-encoding: decoding equals a model of Go's, and extra keys round-trip.

use std::borrow::Cow;

use http::HeaderName;

use portcullis_go::url::{Part, unescape};
use portcullis_kubernetes::extra_key::{KeyNotText, decode_extra_key, encode_extra_key};

/// The input is used as an extra key, and as an escaped text.
pub fn extra_key(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    arrives_as_sent(&text);
    for part in [Part::Path, Part::Query] {
        assert_eq!(
            unescape(&text, part).ok().map(Cow::into_owned),
            model(&text, part == Part::Query).map(|bytes| one_mark_per_byte(&bytes)),
            "{part:?} {text:?}"
        );
    }
    let lower = text.to_ascii_lowercase();
    let key = String::from_utf8(model(&lower, false).unwrap_or_else(|| lower.clone().into_bytes()));
    assert_eq!(decode_extra_key(&text), key.map_err(|_| KeyNotText), "{text:?}");
}

/// Extra keys are sent as header names, which receivers convert to lower case before they decode them.
fn arrives_as_sent(key: &str) {
    let name = encode_extra_key(key);
    assert!(name.len() > 1000 || HeaderName::try_from(format!("x-remote-extra-{name}")).is_ok(), "{name}");
    for name in [name.to_ascii_lowercase(), name] {
        assert_eq!(decode_extra_key(&name).as_deref(), Ok(key), "{name}");
    }
}

/// Go's decoding of an escaped text; `None` if a `%` is not followed by two hexadecimal digits.
// net/url: unescape
pub(super) fn model(text: &str, plus_is_blank: bool) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'+' if plus_is_blank => b' ',
            byte => byte,
        });
    }
    Some(decoded)
}

/// Replaces each byte of invalid UTF-8 by U+FFFD, as Go's JSON does.
pub(super) fn one_mark_per_byte(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while !bytes.is_empty() {
        let whole = (1..=4).find_map(|length| {
            let (first, rest) = bytes.split_at_checked(length)?;
            Some((std::str::from_utf8(first).ok()?, rest))
        });
        let (character, rest) = whole.unwrap_or(("\u{fffd}", bytes.get(1..).unwrap_or_default()));
        text.push_str(character);
        bytes = rest;
    }
    text
}
