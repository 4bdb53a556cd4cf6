//! What commands print for people, when a stranger may have written it.

/// The text with a mark instead of each character that a terminal would obey.
pub(super) fn harmless(text: &str) -> String {
    let is_obeyed = |c: char| {
        c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_obeyed(c) { '\u{fffd}' } else { c }).collect()
}
