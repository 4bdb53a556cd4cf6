//! Quoting as Go's `%q` does it, since messages of kube-apiserver are full of it and clients see them.
//!
//! Follows `strconv.Quote`. What counts as printable is decided by Rust's own tables: both sides leave out controls,
//! formats, surrogates, private use, unassigned characters and every blank but the space; only characters newer than
//! one side's Unicode version differ.

use std::fmt::{self, Write as _};

/// Shows a text in double quotes, escaped as Go's `%q` escapes it.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&QuotedBytes(self.0.as_bytes()), f)
    }
}

/// Shows bytes as [`Quoted`] shows a text: those that are not UTF-8 as `\x..`.
#[derive(Debug, Clone, Copy)]
pub struct QuotedBytes<'a>(pub &'a [u8]);

impl fmt::Display for QuotedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for chunk in self.0.utf8_chunks() {
            chunk.valid().chars().try_for_each(|c| write_escaped(f, c))?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        f.write_char('"')
    }
}

fn write_escaped(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    match c {
        '"' | '\\' => {
            f.write_char('\\')?;
            f.write_char(c)
        }
        ' '..='~' => f.write_char(c),
        '\u{7}' => f.write_str("\\a"),
        '\u{8}' => f.write_str("\\b"),
        '\u{c}' => f.write_str("\\f"),
        '\n' => f.write_str("\\n"),
        '\r' => f.write_str("\\r"),
        '\t' => f.write_str("\\t"),
        '\u{b}' => f.write_str("\\v"),
        '\0'..='\u{1f}' | '\u{7f}' => write!(f, "\\x{:02x}", u32::from(c)),
        c if is_printable(c) => f.write_char(c),
        '\0'..='\u{ffff}' => write!(f, "\\u{:04x}", u32::from(c)),
        _ => write!(f, "\\U{:08x}", u32::from(c)),
    }
}

/// Shows a list of texts as Go's `%q` does: each quoted, in brackets.
#[derive(Debug, Clone, Copy)]
pub struct QuotedList<'a, T>(pub &'a [T]);

impl<T: AsRef<str>> fmt::Display for QuotedList<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted: Vec<_> = self.0.iter().map(|text| Quoted(text.as_ref()).to_string()).collect();
        write!(f, "[{}]", quoted.join(" "))
    }
}

/// Whether Go prints the character unescaped.
pub fn is_printable(c: char) -> bool {
    // Except at the start of a text, Rust escapes exactly the characters that are not printable; combining marks stay.
    let mut text = [0; 5];
    text[0] = b'a';
    let Some(rest) = text.get_mut(1..) else {
        return false;
    };
    let end = 1 + c.encode_utf8(rest).len();
    text.get(..end)
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .is_some_and(|text| text.escape_debug().nth(1) == Some(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_go_does() {
        // The right side was printed by Go's fmt.Printf("%q").
        const CASES: &[(&str, &str)] = &[
            ("", r#""""#),
            ("alice", r#""alice""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1}\u{1f}\u{7f}", r#""\x00\x01\x1f\x7f""#),
            ("é日本😀", "\"é日本😀\""),
            ("e\u{301}", "\"e\u{301}\""),
            ("\u{301}", "\"\u{301}\""),
            ("\u{a0}\u{ad}\u{200b}\u{200c}\u{2028}\u{feff}", r#""\u00a0\u00ad\u200b\u200c\u2028\ufeff""#),
            ("\u{e000}\u{10ffff}\u{e0020}", r#""\ue000\U0010ffff\U000e0020""#),
            ("\u{fffd}", "\"\u{fffd}\""),
            ("\u{80}\u{9f}", r#""\u0080\u009f""#),
            ("'<>&", r#""'<>&""#),
        ];
        for (text, quoted) in CASES {
            assert_eq!(Quoted(text).to_string(), *quoted, "{text:?}");
        }
        assert_eq!(QuotedBytes(b"%\xf0\x9f\xc3\xa9\xff").to_string(), r#""%\xf0\x9fé\xff""#);
    }
}
