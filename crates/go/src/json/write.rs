//! JSON as Go's `encoding/json` writes it, except for the newline that Go's `Encoder` appends.
// go: encoding/json, encode.go and indent.go

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::octets::{Octets, octets};

/// Encodes a value. Its maps must have strings as keys, or the encoding ends there.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_into(&mut bytes, value);
    bytes
}

/// Appends the encoding of a value, with the limits of [`encode`].
pub(crate) fn encode_into(out: &mut Vec<u8>, value: &impl Serialize) {
    // Writing to memory cannot fail.
    let _always_ok = value.serialize(&mut Serializer::with_formatter(out, GoFormatter));
}

/// Appends a string, with the escapes of [`GoFormatter`], in one pass: for values whose keys are written as constants.
// go: encode.go, appendString
pub fn string_into(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escaped_into(out, text);
    out.push(b'"');
}

/// Appends a string without its quotes.
pub fn escaped_into(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    // Nearly every string is plain.
    if PLAIN.has_all_of(rest) {
        out.extend_from_slice(rest);
        return;
    }
    while let Some(at) = rest.iter().position(|byte| is_escaped(*byte)) {
        let (plain, tail) = rest.split_at_checked(at).unwrap_or((rest, &[]));
        out.extend_from_slice(plain);
        rest = write_escaped(out, tail);
    }
    out.extend_from_slice(rest);
}

/// The bytes that need no escape.
static PLAIN: Octets = octets!(|byte| !is_escaped(byte));

/// Whether a byte of a string may have to be escaped.
const fn is_escaped(byte: u8) -> bool {
    // 0xe2 begins U+2028 and U+2029.
    byte < b' ' || matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&' | 0xe2)
}

/// Writes the first character of `text`, for which [`is_escaped`] holds; returns what comes after it.
fn write_escaped<'a>(out: &mut Vec<u8>, text: &'a [u8]) -> &'a [u8] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let (byte, tail) = match text {
        [0xe2, 0x80, last @ (0xa8 | 0xa9), tail @ ..] => {
            out.extend_from_slice(if *last == 0xa8 { b"\\u2028" } else { b"\\u2029" });
            return tail;
        }
        [byte, tail @ ..] => (*byte, tail),
        [] => return text,
    };
    match byte {
        0xe2 => out.push(byte),
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        0x08 => out.extend_from_slice(b"\\b"),
        0x0c => out.extend_from_slice(b"\\f"),
        _ => {
            let digit = |value: u8| HEX.get(usize::from(value)).copied().unwrap_or(b'0');
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(&[digit(byte >> 4), digit(byte & 0xf)]);
        }
    }
    tail
}

/// Appends a valid JSON value without blanks, and with the escapes of [`GoFormatter`].
// go: indent.go, appendCompact
pub fn compact_into(out: &mut Vec<u8>, value: &[u8]) {
    out.reserve(value.len());
    // Writing to memory cannot fail.
    let _always_ok = write_compact(out, value);
}

/// Writes runs of bytes at once: most values are compact already.
fn write_compact<W: ?Sized + io::Write>(writer: &mut W, value: &[u8]) -> io::Result<()> {
    let (mut rest, mut in_string) = (value, false);
    loop {
        let at = rest.iter().position(|byte| is_special(*byte, in_string)).unwrap_or(rest.len());
        let (plain, tail) = rest.split_at_checked(at).unwrap_or((rest, &[]));
        writer.write_all(plain)?;
        rest = match tail {
            [] => return Ok(()),
            [b'"', tail @ ..] => {
                in_string = !in_string;
                writer.write_all(b"\"")?;
                tail
            }
            [b'\\', escaped, tail @ ..] => {
                writer.write_all(&[b'\\', *escaped])?;
                tail
            }
            [0xe2, 0x80, last @ (0xa8 | 0xa9), tail @ ..] => {
                write!(writer, "\\u202{}", last - 0xa0)?;
                tail
            }
            [byte @ (b'<' | b'>' | b'&'), tail @ ..] => {
                write!(writer, "\\u{byte:04x}")?;
                tail
            }
            [b' ' | b'\t' | b'\r' | b'\n', tail @ ..] if !in_string => tail,
            [byte, tail @ ..] => {
                writer.write_all(&[*byte])?;
                tail
            }
        };
    }
}

/// Whether a byte may have to be written in another way.
fn is_special(byte: u8, in_string: bool) -> bool {
    match byte {
        b'"' | b'<' | b'>' | b'&' | 0xe2 | b'\\' => true,
        b' ' | b'\t' | b'\r' | b'\n' => !in_string,
        _ => false,
    }
}

/// Escapes the characters that could end an HTML element, compacts embedded JSON, and gives floating-point numbers Go's
/// form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GoFormatter;

impl Formatter for GoFormatter {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (plain, tail) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let mut characters = tail.chars();
            if let Some(c) = characters.next() {
                write!(writer, "\\u{:04x}", u32::from(c))?;
            }
            rest = characters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }

    fn write_raw_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        write_compact(writer, fragment.as_bytes())
    }

    // go: encode.go, floatEncoder
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let size = value.abs();
        if size == 0.0 || (1e-6..1e21).contains(&size) {
            return write!(writer, "{value}");
        }
        let text = format!("{value:e}");
        match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => write!(writer, "{digits}e+{exponent}"),
            _ => writer.write_all(text.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_json_is_compacted_and_escaped_as_by_go() {
        // The right side was printed by Go: json.Marshal(json.RawMessage(…)).
        const CASES: &[(&str, &str)] = &[
            (" { \"a\" : [ 1 , 2.50 , -0 ] }\r\n\t", r#"{"a":[1,2.50,-0]}"#),
            (r#""a  b\" <c> & \u003c \\""#, r#""a  b\" \u003cc\u003e \u0026 \u003c \\""#),
            ("[\"\u{2028}\u{2029}\u{2027}\u{e9}\u{2500}\"]", "[\"\\u2028\\u2029\u{2027}\u{e9}\u{2500}\"]"),
            ("\"\\\\\" ", r#""\\""#),
        ];
        for (value, expected) in CASES {
            let mut out = Vec::new();
            compact_into(&mut out, value.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), *expected, "{value:?}");
        }
    }

    #[test]
    fn one_byte_that_is_escaped_is_found_at_any_place() {
        for length in 1..20 {
            for (at, byte) in (0..length).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
                for others in [b' ', b'!', 0x7f, 0xff] {
                    let mut text = vec![others; length];
                    text[at] = byte;
                    assert_eq!(PLAIN.has_all_of(&text), !is_escaped(byte), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn strings_are_escaped_as_in_other_values() {
        for first in (0..=u32::from(u16::MAX)).filter_map(char::from_u32) {
            let text = format!("a{first}\u{2027}{first}\"");
            let mut out = Vec::new();
            string_into(&mut out, &text);
            assert_eq!(String::from_utf8(out), String::from_utf8(encode(&text)), "{text:?}");
        }
    }

    #[test]
    fn no_bytes_panic() {
        for value in [&b"\""[..], b"\"\\", b"\xe2", b"\xe2\x80", b"< \xff"] {
            compact_into(&mut Vec::new(), value);
        }
    }
}
