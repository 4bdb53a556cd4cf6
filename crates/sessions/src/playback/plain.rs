//! The text of a recording without any control sequence, for a file or a search.

use super::{ESC, SafeText};

/// Makes lines of the text of one output, in the order in which it was written: not the screen, from which later text takes
/// earlier text away. Nothing printable is left out.
///
/// A carriage return alone, as of a progress bar, and a movement of the cursor to another line end a line.
#[derive(Debug, Default)]
pub struct PlainText {
    safe: SafeText,
    is_after_cr: bool,
    /// Whether the current line has text.
    has_text: bool,
}

impl PlainText {
    /// Appends the plain part of `text`, which may be given in any pieces.
    pub fn filter(&mut self, text: &str, plain: &mut String) {
        let mut safe = String::new();
        // Its sequences are whole ones.
        self.safe.filter(text, &mut safe);
        let mut chars = safe.chars();
        while let Some(c) = chars.next() {
            let is_after_cr = std::mem::take(&mut self.is_after_cr);
            match c {
                '\n' | '\x0b' | '\x0c' => self.end_line(plain),
                '\r' => self.is_after_cr = true,
                ESC => {
                    self.is_after_cr = is_after_cr;
                    if ends_line(&mut chars) {
                        self.break_line(plain);
                    }
                }
                c if c < ' ' && c != '\t' => self.is_after_cr = is_after_cr,
                c => {
                    // The terminal would write the next text over the line.
                    if is_after_cr {
                        self.break_line(plain);
                    }
                    self.has_text = true;
                    plain.push(c);
                }
            }
        }
    }

    /// Ends the last line, if it has text.
    pub fn finish(&mut self, plain: &mut String) {
        self.break_line(plain);
    }

    fn end_line(&mut self, plain: &mut String) {
        plain.push('\n');
        self.has_text = false;
    }

    fn break_line(&mut self, plain: &mut String) {
        if self.has_text {
            self.end_line(plain);
        }
    }
}

/// Reads the rest of a safe sequence; returns whether it moves the cursor to another line.
fn ends_line(chars: &mut std::str::Chars<'_>) -> bool {
    match chars.next() {
        Some('[') => {
            let last = chars.find(|c| matches!(c, '\x40'..='\x7e'));
            last.is_some_and(|last| matches!(last, 'A' | 'B' | 'E' | 'F' | 'H' | 'd' | 'e' | 'f'))
        }
        Some('(' | ')') => {
            chars.next();
            false
        }
        last => matches!(last, Some('8' | 'D' | 'E' | 'M')),
    }
}
