//! Untrusted text for people.

/// Replaces each control and bidirectional-formatting character by U+FFFD.
pub fn sanitized(text: &str) -> String {
    text.chars().map(|c| if is_obeyed(c) { '\u{fffd}' } else { c }).collect()
}

/// Whether a terminal or a browser obeys the character instead of showing it.
pub fn is_obeyed(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
