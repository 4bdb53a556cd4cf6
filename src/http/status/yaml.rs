//! Strings as kube-apiserver's YAML encoder writes them: which are quoted, how, and where long ones are folded.
//!
//! Follows `go.yaml.in/yaml/v2` (`encode.go`, `resolve.go`, `emitterc.go`), which kube-apiserver uses through
//! `sigs.k8s.io/yaml`. Names and messages can hold anything a client sent; whatever it is, the result reads back as
//! the same string and never as another key. (The characters U+007F to U+009F are escaped; upstream's detour through
//! a YAML parser loses them or fails.)

use serde_json::Value;

/// Lines are folded at the first blank after this column.
const BEST_WIDTH: usize = 80;
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A YAML text in the making.
#[derive(Debug, Default)]
pub(super) struct Yaml {
    out: String,
    column: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    SingleQuoted,
    DoubleQuoted,
    Literal,
}

/// Objects, lists of text, text and truth values as kube-apiserver writes them.
pub(crate) fn of_value(value: &Value) -> String {
    let mut yaml = Yaml::default();
    yaml.value(0, value);
    yaml.raw("\n");
    yaml.finish()
}

impl Yaml {
    /// Writes a value, objects and lists on lines of their own.
    fn value(&mut self, indent: usize, value: &Value) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (key, value) in fields {
                    self.line(indent);
                    self.string(indent + 2, key);
                    let nested = value.as_object().is_some_and(|fields| !fields.is_empty());
                    let listed = value.as_array().is_some_and(|items| !items.is_empty());
                    self.raw(if nested || listed { ":" } else { ": " });
                    self.value(if listed { indent } else { indent + 2 }, value);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for item in items {
                    self.line(indent);
                    self.raw("- ");
                    self.value(indent + 2, item);
                }
            }
            Value::String(text) => self.string(indent, text),
            other => self.raw(&other.to_string()),
        }
    }

    /// Ends the text.
    pub(super) fn finish(self) -> String {
        self.out
    }

    /// Writes text that needs no care, such as keys and numbers.
    pub(super) fn raw(&mut self, text: &str) {
        text.chars().for_each(|c| self.put(c));
    }

    /// Starts a line, unless one was just started.
    pub(super) fn line(&mut self, indent: usize) {
        if self.column > 0 {
            self.put('\n');
        }
        for _ in 0..indent {
            self.put(' ');
        }
    }

    /// Writes a string as the value of a key whose line is indented by `indent` minus two.
    pub(super) fn string(&mut self, indent: usize, text: &str) {
        match style(text) {
            Style::Plain => self.folded(indent, text, false),
            Style::SingleQuoted => {
                self.put('\'');
                self.folded(indent, text, true);
                self.put('\'');
            }
            Style::DoubleQuoted => self.double_quoted(indent, text),
            Style::Literal => self.literal(indent, text),
        }
    }

    fn put(&mut self, c: char) {
        self.out.push(c);
        self.column = if is_break(c) { 0 } else { self.column + 1 };
    }

    fn folded(&mut self, indent: usize, text: &str, quoted: bool) {
        let (mut spaces, mut breaks) = (false, false);
        let mut chars = text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let next = chars.peek().map(|(_, c)| *c);
            if c == ' ' {
                let inside = !quoted || at > 0 && next.is_some();
                if !spaces && self.column > BEST_WIDTH && inside && next != Some(' ') {
                    self.line(indent);
                } else {
                    self.put(c);
                }
                spaces = true;
            } else if is_break(c) {
                self.put(c);
                breaks = true;
            } else {
                if breaks {
                    self.line(indent);
                }
                if c == '\'' && quoted {
                    self.put(c);
                }
                self.put(c);
                (spaces, breaks) = (false, false);
            }
        }
    }

    fn double_quoted(&mut self, indent: usize, text: &str) {
        // The encoder looks for a byte order mark at the start of the text whichever character it is at.
        let all_escaped = text.starts_with(BYTE_ORDER_MARK);
        self.put('"');
        let mut spaces = false;
        let mut chars = text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let next = chars.peek().map(|(_, c)| *c);
            if all_escaped || !is_printable(c) || is_break(c) || c == '"' || c == '\\' {
                self.escaped(c);
                spaces = false;
            } else if c == ' ' {
                if !spaces && self.column > BEST_WIDTH && at > 0 && next.is_some() {
                    self.line(indent);
                    if next == Some(' ') {
                        self.put('\\');
                    }
                } else {
                    self.put(c);
                }
                spaces = true;
            } else {
                self.put(c);
                spaces = false;
            }
        }
        self.put('"');
    }

    fn escaped(&mut self, c: char) {
        self.put('\\');
        let short = match c {
            '\0' => '0',
            '\u{7}' => 'a',
            '\u{8}' => 'b',
            '\t' => 't',
            '\n' => 'n',
            '\u{b}' => 'v',
            '\u{c}' => 'f',
            '\r' => 'r',
            '\u{1b}' => 'e',
            '"' | '\\' => c,
            '\u{85}' => 'N',
            '\u{a0}' => '_',
            '\u{2028}' => 'L',
            '\u{2029}' => 'P',
            _ => {
                let code = u32::from(c);
                return match code {
                    0..=0xff => self.raw(&format!("x{code:02X}")),
                    0x100..=0xffff => self.raw(&format!("u{code:04X}")),
                    _ => self.raw(&format!("U{code:08X}")),
                };
            }
        };
        self.put(short);
    }

    fn literal(&mut self, indent: usize, text: &str) {
        self.put('|');
        if text.starts_with(|c| c == ' ' || is_break(c)) {
            self.put('2');
        }
        let mut from_end = text.chars().rev();
        match (from_end.next().is_some_and(is_break), from_end.next()) {
            (false, _) => self.put('-'),
            (true, None) => self.put('+'),
            (true, Some(c)) if is_break(c) => self.put('+'),
            (true, Some(_)) => {}
        }
        self.put('\n');
        let mut breaks = true;
        for c in text.chars() {
            if is_break(c) {
                self.put(c);
                breaks = true;
            } else {
                if breaks {
                    self.line(indent);
                    breaks = false;
                }
                self.put(c);
            }
        }
    }
}

// yaml: emitterc.go, yaml_emitter_analyze_scalar and yaml_emitter_select_scalar_style
fn style(text: &str) -> Style {
    let mut indicators = text.starts_with("---") || text.starts_with("...");
    let (mut breaks, mut special) = (false, false);
    let (mut break_space, mut space_break) = (false, false);
    let mut previous = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let blank_follows = chars.peek().is_none_or(|c| matches!(c, ' ' | '\t'));
        indicators |= match (previous, c) {
            (
                None,
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@'
                | '`',
            ) => true,
            (None, '?' | '-') | (_, ':') => blank_follows,
            (Some(before), '#') => is_break(before) || matches!(before, ' ' | '\t' | '\0'),
            _ => false,
        };
        special |= !is_printable(c);
        breaks |= is_break(c);
        break_space |= c == ' ' && previous.is_some_and(is_break);
        space_break |= is_break(c) && previous == Some(' ');
        previous = Some(c);
    }
    let edge = |c: char| c == ' ' || is_break(c);
    let edges = text.starts_with(edge) || text.ends_with(edge);

    let single_quoted_allowed = !break_space && !space_break && !special;
    let literal_allowed = !text.ends_with(' ') && !space_break && !special;
    if text.contains('\n') {
        if literal_allowed { Style::Literal } else { Style::DoubleQuoted }
    } else if is_other_type(text) {
        Style::DoubleQuoted
    } else if !indicators && !edges && !breaks && single_quoted_allowed {
        Style::Plain
    } else if single_quoted_allowed {
        Style::SingleQuoted
    } else {
        Style::DoubleQuoted
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

// yaml: yamlprivateh.go, is_printable — nothing beyond the basic plane counts
fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{fffd}') && c != BYTE_ORDER_MARK
}

/// Whether the text, unquoted, would be read as something else than a string.
// yaml: resolve.go, resolve; encode.go, isBase60Float
fn is_other_type(text: &str) -> bool {
    const WORDS: [&str; 36] = [
        "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", "n", "N", "no", "No", "NO",
        "false", "False", "FALSE", "off", "Off", "OFF", "", "~", "null", "Null", "NULL", ".nan", ".NaN",
        ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF",
    ];
    const NEGATIVE_INFINITY: [&str; 3] = ["-.inf", "-.Inf", "-.INF"];
    if WORDS.contains(&text) || NEGATIVE_INFINITY.contains(&text) {
        return true;
    }
    match text.bytes().next() {
        Some(b'.') => text.parse::<f64>().is_ok(),
        Some(b'0'..=b'9' | b'+' | b'-') => {
            is_timestamp(text) || is_number(&text.replace('_', "")) || is_base_60(text)
        }
        _ => false,
    }
}

fn is_number(text: &str) -> bool {
    let negative = text.starts_with('-');
    let signed = text.starts_with(['+', '-']);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = if let Some(body) = lower.strip_prefix("0x") {
        (16, body)
    } else if let Some(body) = lower.strip_prefix("0o") {
        (8, body)
    } else if let Some(body) = lower.strip_prefix("0b") {
        (2, body)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, lower.get(1..).unwrap_or_default())
    } else {
        (10, lower.as_str())
    };
    let integer = !body.starts_with(['+', '-'])
        && u64::from_str_radix(body, radix).is_ok_and(|magnitude| match (signed, negative) {
            (false, _) => true,
            (true, false) => i64::try_from(magnitude).is_ok(),
            (true, true) => magnitude <= i64::MIN.unsigned_abs(),
        });
    integer || is_float(digits)
}

/// A decimal float, the sign already taken off.
fn is_float(digits: &str) -> bool {
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (digits, None),
    };
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        None => !mantissa.is_empty() && all_digits(mantissa),
        Some((whole, fraction)) => {
            all_digits(whole) && all_digits(fraction) && !(whole.is_empty() && fraction.is_empty())
        }
    };
    let exponent_fits = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && all_digits(exponent)
    });
    // Out of range is no float to the encoder.
    mantissa_fits && exponent_fits && digits.parse::<f64>().is_ok_and(f64::is_finite)
}

fn is_base_60(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (text, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = text.split(':');
    let digit_or_underscore = |byte: u8| byte.is_ascii_digit() || byte == b'_';
    let first = parts.next().unwrap_or_default();
    let mut rest = parts.peekable();
    first.starts_with(|c: char| c.is_ascii_digit())
        && first.bytes().all(digit_or_underscore)
        && fraction.bytes().all(digit_or_underscore)
        && rest.peek().is_some()
        && rest.all(|part| match part.as_bytes() {
            [one] => one.is_ascii_digit(),
            [ten, one] => (b'0'..=b'5').contains(ten) && one.is_ascii_digit(),
            _ => false,
        })
}

/// A date, or a date and a time, in the forms the encoder knows.
fn is_timestamp(text: &str) -> bool {
    let Some((date, time)) = split_date(text) else {
        return false;
    };
    let mut parts = date.splitn(3, '-');
    let (Some(year), Some(month), Some(day)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let (Some(month), Some(day)) = (small_number(month), small_number(day)) else {
        return false;
    };
    let Ok(year) = year.parse::<u32>() else {
        return false;
    };
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let last = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    if year > 9999 || !(1..=last).contains(&day) || date.find('-') != Some(4) {
        return false;
    }
    let Some(time) = time else { return true };
    let (zoned, clock) = match time.as_bytes().first() {
        Some(b'T' | b't') => (true, time.get(1..).unwrap_or_default()),
        _ => (false, time.get(1..).unwrap_or_default()),
    };
    let clock = if !zoned {
        clock
    } else if let Some(clock) = clock.strip_suffix('Z') {
        clock
    } else {
        let Some(at) = clock.rfind(['+', '-']) else {
            return false;
        };
        let (clock, zone) = clock.split_at(at);
        let numbers = zone.get(1..).and_then(|zone| zone.split_once(':'));
        if !numbers.is_some_and(|(hours, minutes)| {
            hours.len() == 2 && minutes.len() == 2 && below(hours, 25) && below(minutes, 61)
        }) {
            return false;
        }
        clock
    };
    let (clock, fraction) = clock.split_once(['.', ',']).unwrap_or((clock, "0"));
    let mut parts = clock.split(':');
    let (Some(hours), Some(minutes), Some(seconds), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    // Hours are two digits, minutes and seconds may be one.
    hours.len() == 2
        && below(hours, 24)
        && below(minutes, 60)
        && below(seconds, 60)
        && !fraction.is_empty()
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
}

fn split_date(text: &str) -> Option<(&str, Option<&str>)> {
    if !text.is_ascii() {
        return None;
    }
    match text.find(['T', 't', ' ']) {
        Some(at) => Some((text.get(..at)?, Some(text.get(at..)?))),
        None => Some((text, None)),
    }
}

fn small_number(text: &str) -> Option<u32> {
    let fits = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if fits { text.parse().ok() } else { None }
}

fn below(text: &str, limit: u32) -> bool {
    small_number(text).is_some_and(|number| number < limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_written_as_the_encoder_of_kube_apiserver_writes_them() {
        // The right side was printed by sigs.k8s.io/yaml v1.6.0 for {"m": <left side>}.
        let words = "word ".repeat(40);
        let long = "w".repeat(200);
        let long_out = format!("m: {long}\n");
        let cases: &[(&str, &str)] = &[
            ("Unauthorized", "m: Unauthorized\n"),
            ("a: b", "m: 'a: b'\n"),
            ("true", "m: \"true\"\n"),
            ("~", "m: \"~\"\n"),
            ("123", "m: \"123\"\n"),
            ("1.5", "m: \"1.5\"\n"),
            ("", "m: \"\"\n"),
            ("a'b", "m: a'b\n"),
            ("a\"b", "m: a\"b\n"),
            ("- x", "m: '- x'\n"),
            ("it's: \"q\"", "m: 'it''s: \"q\"'\n"),
            ("x\ny", "m: |-\n  x\n  y\n"),
            ("x\ny\n", "m: |\n  x\n  y\n"),
            ("trail ", "m: 'trail '\n"),
            ("# c", "m: '# c'\n"),
            ("a #b", "m: 'a #b'\n"),
            ("a#b", "m: a#b\n"),
            ("é", "m: é\n"),
            ("\u{2028}", "m: '\u{2028}'\n"),
            ("tab\tx", "m: \"tab\\tx\"\n"),
            ("\u{1}", "m: \"\\x01\"\n"),
            ("@x", "m: '@x'\n"),
            ("?x", "m: ?x\n"),
            ("? x", "m: '? x'\n"),
            ("-x", "m: -x\n"),
            ("- ", "m: '- '\n"),
            ("]x", "m: ']x'\n"),
            ("x]", "m: x]\n"),
            ("x: ", "m: 'x: '\n"),
            ("x:", "m: 'x:'\n"),
            (":x", "m: :x\n"),
            (
                &words,
                "m: 'word word word word word word word word word word word word word word word word\n  \
                 word word word word word word word word word word word word word word word word\n  \
                 word word word word word word word word '\n",
            ),
            (&long, &long_out),
            ("0x1f", "m: \"0x1f\"\n"),
            ("0o7", "m: \"0o7\"\n"),
            ("1e3", "m: \"1e3\"\n"),
            (".5", "m: \".5\"\n"),
            ("1_000", "m: \"1_000\"\n"),
            ("yes", "m: \"yes\"\n"),
            ("n", "m: \"n\"\n"),
            ("2001-01-01", "m: \"2001-01-01\"\n"),
            ("2001-13-01", "m: 2001-13-01\n"),
            ("2001-02-29", "m: 2001-02-29\n"),
            ("2001-1-1T01:02:03Z", "m: \"2001-1-1T01:02:03Z\"\n"),
            ("2001-1-1 01:2:3", "m: \"2001-1-1 01:2:3\"\n"),
            ("2001-1-1T01:02:03", "m: 2001-1-1T01:02:03\n"),
            ("=", "m: =\n"),
            ("<<", "m: <<\n"),
            ("-.inf", "m: \"-.inf\"\n"),
            ("+1", "m: \"+1\"\n"),
            ("0b1", "m: \"0b1\"\n"),
            ("1e999", "m: 1e999\n"),
            ("18446744073709551615", "m: \"18446744073709551615\"\n"),
            ("\u{1f600}", "m: \"\\U0001F600\"\n"),
            ("\u{feff}", "m: \"\\uFEFF\"\n"),
            ("a\\b", "m: a\\b\n"),
            ("'q'", "m: '''q'''\n"),
            ("a, b", "m: a, b\n"),
            ("---", "m: '---'\n"),
            ("--- a", "m: '--- a'\n"),
            ("\r", "m: \"\\r\"\n"),
            (" lead", "m: ' lead'\n"),
            (" \n x", "m: \" \\n x\"\n"),
            ("\nx", "m: |2-\n\n  x\n"),
            ("a\n\nb", "m: |-\n  a\n\n  b\n"),
            ("a\n", "m: |\n  a\n"),
            ("  a\nb", "m: |2-\n    a\n  b\n"),
            ("1:30", "m: \"1:30\"\n"),
            ("190:20:30", "m: \"190:20:30\"\n"),
            ("1:a", "m: 1:a\n"),
            ("0777", "m: \"0777\"\n"),
            ("089", "m: \"089\"\n"),
            ("1.", "m: \"1.\"\n"),
            ("-", "m: '-'\n"),
            ("+", "m: +\n"),
            ("--", "m: --\n"),
            ("-1", "m: \"-1\"\n"),
            ("1e", "m: 1e\n"),
            ("oFF", "m: oFF\n"),
        ];
        for (text, expected) in cases {
            let mut yaml = Yaml::default();
            yaml.raw("m: ");
            yaml.string(2, text);
            yaml.line(0);
            assert_eq!(yaml.finish(), *expected, "{text:?}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let mut yaml = Yaml::default();
        yaml.string(2, "\u{7f}\u{85}\u{9f}");
        assert_eq!(yaml.finish(), "\"\\x7F\\N\\x9F\"");
    }
}
