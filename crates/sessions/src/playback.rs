//! The text of a recording for the terminal of a reader. The session chose that text: it must not set the reader's
//! clipboard or title, print, or make the terminal answer as if the reader had typed.
//!
//! [`SafeText`] is a list of what passes; all else is dropped and counted:
//!
//! | passes | is dropped |
//! |---|---|
//! | printable characters | characters that a terminal obeys or hides: marks of direction, those without a width |
//! | CR, LF, tab, backspace, VT, FF, shifts of the character set (SO, SI) | other control characters, among them BEL and ENQ |
//! | colours and styles (SGR) | OSC (titles, clipboard 52, hyperlinks 8), DCS, APC, PM, SOS, each with its text |
//! | movement of the cursor, tabs, margins, scrolling | queries (DA, DSR, DECRQM, XTVERSION, …), to which terminals answer |
//! | erasing, inserting and deleting | window operations, printing, key and mouse modes |
//! | alternate screen, visibility of the cursor, wrapping | all other modes; a reset of the terminal |
//! | line drawing characters (`ESC ( 0`) | other character sets |
//!
//! Sequences are recognized in their 7-bit form (`ESC [`) and as C1 characters (U+009B).
//!
//! [`PlainText`] has no sequences at all, and [`Pace`] says when a player shows an event.
// ECMA-48; xterm, ctlseqs.txt
// threat: hostile-recording

mod pace;
mod plain;

pub use pace::Pace;
pub use plain::PlainText;

use portcullis_system::text::is_obeyed;

/// Attributes, character sets, wrapping, cursor and insert mode as they are usually. The margins are between a saved and a restored
/// cursor, since they move it to the first line.
const RESTORE: &str = "\x1b7\x1b[r\x1b8\x1b[0m\x1b(B\x1b)B\x0f\x1b[?7h\x1b[?25h\x1b[4l";
/// The same for text that was not filtered: ends a sequence; keypad, cursor keys, mouse, focus and paste.
const RESTORE_UNFILTERED: &str = "\x18\x1b>\x1b[?1l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?2004l";

/// The maximum length of a control sequence. A longer one is dropped.
const MAX_SEQUENCE: usize = 64;
/// The maximum number of digits of a parameter: a terminal repeats a character or scrolls as often as it says.
const MAX_DIGITS: usize = 4;
/// The same for the repetition of a character, which has no end at the edge of the screen.
const MAX_REPEAT_DIGITS: usize = 3;
/// The private modes that pass: origin, wrapping, the cursor's visibility, the alternate screen.
const PRIVATE_MODES: [&str; 6] = [ORIGIN, "7", "25", "47", "1047", "1049"];
const ORIGIN: &str = "6";
const ALTERNATE_SCREEN: [&str; 3] = ["47", "1047", "1049"];

const BEL: char = '\x07';
const SHIFT_OUT: char = '\x0e';
const SHIFT_IN: char = '\x0f';
const CAN: char = '\x18';
const SUB: char = '\x1a';
const ESC: char = '\x1b';

/// Filters the text of one output, which may be given in any pieces.
#[derive(Debug, Default)]
pub struct SafeText {
    state: State,
    dropped: u64,
    modes: ScreenModes,
}

/// The modes whose end moves the cursor, so that only a terminal that has them gets it.
#[derive(Debug, Clone, Copy, Default)]
struct ScreenModes {
    is_alternate: bool,
    is_origin: bool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Text,
    /// After ESC, with intermediate characters.
    Escape(String),
    /// After CSI.
    Sequence { text: String, is_too_long: bool },
    /// In OSC, DCS, APC, PM or SOS. BEL ends an OSC.
    Control { is_osc: bool },
}

impl SafeText {
    /// Appends the safe part of `text`.
    pub fn filter(&mut self, text: &str, safe: &mut String) {
        text.chars().for_each(|c| self.read(c, safe));
    }

    /// The number of characters and sequences that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The sequences that a player writes after this text to restore the terminal. `is_filtered` is whether the terminal got the
    /// safe text, and not the whole.
    pub fn restore(&self, is_filtered: bool) -> String {
        let ScreenModes { is_alternate, is_origin } = self.modes;
        let parts = [
            (!is_filtered, RESTORE_UNFILTERED),
            (is_alternate, "\x1b[?1049l"),
            (is_origin, "\x1b[?6l"),
            (true, RESTORE),
        ];
        parts.into_iter().filter_map(|(is_needed, text)| is_needed.then_some(text)).collect()
    }

    /// Whether the text is on the alternate screen, which its end takes away.
    pub fn is_on_alternate_screen(&self) -> bool {
        self.modes.is_alternate
    }

    fn read(&mut self, c: char, safe: &mut String) {
        // These end any sequence.
        // vt100.net/emu/dec_ansi_parser: "anywhere"
        match c {
            ESC => return self.begin(State::Escape(String::new())),
            '\u{9b}' => return self.begin(State::Sequence { text: String::new(), is_too_long: false }),
            '\u{9d}' => return self.begin(State::Control { is_osc: true }),
            '\u{90}' | '\u{98}' | '\u{9e}' | '\u{9f}' => return self.begin(State::Control { is_osc: false }),
            CAN | SUB => return self.begin(State::Text),
            '\u{80}'..='\u{9f}' => {
                self.begin(State::Text);
                // IND, NEL and RI move the cursor; ST ends what was dropped already.
                match c {
                    '\u{84}' => safe.push_str("\x1bD"),
                    '\u{85}' => safe.push_str("\x1bE"),
                    '\u{8d}' => safe.push_str("\x1bM"),
                    _ => self.dropped += 1,
                }
                return;
            }
            _ => {}
        }
        match &mut self.state {
            State::Text => self.character(c, safe),
            State::Control { is_osc } => {
                if c == BEL && *is_osc {
                    self.begin(State::Text);
                }
            }
            // A terminal obeys a control character within a sequence.
            State::Escape(_) | State::Sequence { .. } if c < ' ' => self.character(c, safe),
            State::Escape(intermediates) => match (intermediates.as_str(), c) {
                ("", '[') => self.state = State::Sequence { text: String::new(), is_too_long: false },
                ("", ']') => self.state = State::Control { is_osc: true },
                ("", 'P' | 'X' | '^' | '_') => self.state = State::Control { is_osc: false },
                (_, ' '..='/') if intermediates.len() < MAX_SEQUENCE => intermediates.push(c),
                _ => {
                    let is_safe = is_safe_escape(intermediates, c);
                    let intermediates = std::mem::take(intermediates);
                    self.state = State::Text;
                    if is_safe {
                        safe.extend([ESC]);
                        safe.push_str(&intermediates);
                        safe.push(c);
                    } else {
                        self.dropped += 1;
                    }
                }
            },
            State::Sequence { text, is_too_long } => match c {
                '\x20'..='\x3f' if text.len() < MAX_SEQUENCE => text.push(c),
                '\x20'..='\x3f' => *is_too_long = true,
                '\x40'..='\x7e' => {
                    let is_safe = !*is_too_long && is_safe_sequence(text, c);
                    let text = std::mem::take(text);
                    self.state = State::Text;
                    if is_safe {
                        self.modes.follow(&text, c);
                        safe.push_str("\x1b[");
                        safe.push_str(&text);
                        safe.push(c);
                    } else {
                        self.dropped += 1;
                    }
                }
                // No terminal takes it for a part of the sequence, but not all go on in the same way.
                _ => self.begin(State::Text),
            },
        }
    }

    /// Begins a state; a sequence that is not complete is dropped.
    fn begin(&mut self, state: State) {
        if !matches!(self.state, State::Text) {
            self.dropped += 1;
        }
        self.state = state;
    }

    fn character(&mut self, c: char, safe: &mut String) {
        let passes = matches!(c, '\x08'..='\x0d' | SHIFT_OUT | SHIFT_IN) || !is_obeyed(c);
        if passes {
            safe.push(c);
        } else {
            self.dropped += 1;
        }
    }
}

impl ScreenModes {
    fn follow(&mut self, parameters: &str, last: char) {
        let Some(modes) = parameters.strip_prefix('?').filter(|_| matches!(last, 'h' | 'l')) else { return };
        for mode in modes.split([';', ':']) {
            if ALTERNATE_SCREEN.contains(&mode) {
                self.is_alternate = last == 'h';
            } else if mode == ORIGIN {
                self.is_origin = last == 'h';
            }
        }
    }
}

/// Whether ESC with these characters moves the cursor, saves or restores it, or chooses ASCII or line drawing characters.
fn is_safe_escape(intermediates: &str, last: char) -> bool {
    match intermediates {
        "" => matches!(last, '7' | '8' | 'D' | 'E' | 'M'),
        "(" | ")" => matches!(last, 'B' | '0'),
        _ => false,
    }
}

/// Whether CSI with these parameters and this final character passes.
fn is_safe_sequence(parameters: &str, last: char) -> bool {
    let (private, numbers) = match parameters.strip_prefix('?') {
        Some(numbers) => (true, numbers),
        None => (false, parameters),
    };
    // Other private forms and intermediate characters make other functions of the same final character.
    if !numbers.chars().all(|c| c.is_ascii_digit() || matches!(c, ';' | ':')) {
        return false;
    }
    let mut each = numbers.split([';', ':']);
    let count = numbers.split(';').count();
    if private {
        return match last {
            'h' | 'l' => each.all(|mode| PRIVATE_MODES.contains(&mode)),
            'J' | 'K' => matches!(numbers, "" | "0" | "1" | "2"),
            _ => false,
        };
    }
    if !each.all(|number| number.len() <= MAX_DIGITS) || numbers.contains(':') && last != 'm' {
        return false;
    }
    match last {
        'm' => true,
        // The cursor: up, down, forward, back, lines, column, row, position, tabs. The margins.
        'A'..='I' | 'Z' | '`' | 'a' | 'd' | 'e' | 'f' | 'r' => count <= 2,
        // Erase. 3 is what the reader could scroll back to.
        'J' | 'K' => matches!(numbers, "" | "0" | "1" | "2"),
        // Repeat the last character.
        'b' => numbers.len() <= MAX_REPEAT_DIGITS,
        // Insert, delete. Scroll: with more parameters `T` tracks the mouse.
        '@' | 'L' | 'M' | 'P' | 'X' | 'S' | 'T' => count == 1,
        // With parameters they are other functions.
        's' | 'u' => numbers.is_empty(),
        // Insert mode.
        'h' | 'l' => numbers == "4",
        _ => false,
    }
}

#[cfg(test)]
mod tests;
