//! Doubles as `golang.org/x/text/message` prints them in English.

/// The precision that the reference prints doubles with, unless a clause has its own.
pub(super) const DEFAULT_PRECISION: i64 = 6;

/// Doubles have no more digits after the point than this.
const FRACTION_DIGITS: usize = 1_100;

/// What the reference prints for a precision of too many digits.
const NO_VERB: &str = "%!(NOVERB)";

/// `%f`. The reference stores the precision as eight bits for the zeros to append, and as sixteen for the digits to
/// round to, of which negative ones do not round.
// x/text: message/print.go — initDecimal
pub(super) fn fixed(value: f64, precision: i64) -> String {
    if is_too_large(precision) {
        return NO_VERB.to_owned();
    }
    if let Some(special) = special(value) {
        return special;
    }
    let zeros = usize::try_from(precision.rem_euclid(1 << 8)).unwrap_or(0);
    let rounded = usize::try_from(precision.rem_euclid(1 << 16)).unwrap_or(0);
    let digits = if rounded < 1 << 15 {
        format!("{:.*}", rounded.min(FRACTION_DIGITS), value.abs())
    } else {
        format!("{}", value.abs())
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let fraction = format!("{:0<zeros$}", fraction.trim_end_matches('0'));
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{}{point}{fraction}", sign(value), grouped(whole))
}

/// `%e`, always with six digits after the point: what a clause says is the width to fill with spaces. Returns the number
/// of spaces and the number.
// cel-go: ext/formatting.go — Scientific; x/text: message/print.go — initScientific
pub(super) fn scientific(value: f64, width: i64) -> (usize, String) {
    if is_too_large(width) {
        return (0, NO_VERB.to_owned());
    }
    let text = special(value).unwrap_or_else(|| {
        let digits = format!("{:.6e}", value.abs());
        let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
        let (minus, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ("\u{207b}", exponent),
            None => ("", exponent),
        };
        let exponent: String = format!("{exponent:0>2}").chars().map(superscript).collect();
        format!("{}{mantissa}\u{d7}10{minus}{exponent}", sign(value))
    });
    let width = usize::try_from(width.rem_euclid(1 << 16)).unwrap_or(0);
    (width.saturating_sub(text.chars().count()), text)
}

/// The reference reads the number back, and gives up where it has more than seven digits.
// x/text: internal/format/parser.go — parsenum
fn is_too_large(number: i64) -> bool {
    number / 10 > 1_000_000
}

fn special(value: f64) -> Option<String> {
    if value.is_nan() {
        return Some("NaN".to_owned());
    }
    value.is_infinite().then(|| format!("{}\u{221e}", sign(value)))
}

/// The sign; zero has none.
fn sign(value: f64) -> &'static str {
    if value < 0.0 { "-" } else { "" }
}

/// Digits with a comma before every three.
fn grouped(digits: &str) -> String {
    let mut grouped = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn superscript(digit: char) -> char {
    match digit {
        '1' => '\u{b9}',
        '2' => '\u{b2}',
        '3' => '\u{b3}',
        other => other.to_digit(10).and_then(|digit| char::from_u32(0x2070 + digit)).unwrap_or(other),
    }
}
