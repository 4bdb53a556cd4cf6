//! Untrusted text for people.

/// Replaces each control and bidirectional-formatting character by U+FFFD.
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

/// Whether a terminal or a browser obeys the character instead of showing it.
pub fn is_obeyed(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let cases = [("", ""), ("Zoë", "Zoë"), ("Zoës", "Zoë…"), ("日本語版", "日本語…")];
        for (text, expected) in cases {
            assert_eq!(shortened(text, 3), expected);
        }
    }
}
