//! Untrusted text for people.

/// Replaces each control, bidirectional-formatting and invisible character by U+FFFD.
pub fn sanitized(text: &str) -> String {
    text.chars().map(|c| if is_obeyed(c) { '\u{fffd}' } else { c }).collect()
}

/// The first characters of a text; an ellipsis marks that others follow.
pub fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Whether a terminal or a browser obeys the character instead of showing it, or shows nothing, so that two names look alike. The
/// joiners U+200C and U+200D are letters' parts in some scripts.
pub fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_is_marked() {
        for hidden in ['\n', '\u{7f}', '\u{61c}', '\u{200b}', '\u{202e}', '\u{2060}', '\u{2069}', '\u{feff}']
        {
            assert_eq!(sanitized(&format!("a{hidden}b")), "a\u{fffd}b", "{hidden:?}");
        }
        assert_eq!(sanitized("می\u{200c}خواهم é 日本"), "می\u{200c}خواهم é 日本");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let cases = [("", ""), ("Zoë", "Zoë"), ("Zoës", "Zoë…"), ("日本語版", "日本語…")];
        for (text, expected) in cases {
            assert_eq!(shortened(text, 3), expected);
        }
    }
}
