//! The clauses of a format: `%s`, `%.2f`.

use portcullis_go::number::atoi;

/// How a clause prints its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    String,
    Decimal,
    Fixed,
    Scientific,
    Binary,
    /// With the letters in lower or upper case.
    Hex(Case),
    Octal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    Lower,
    Upper,
}

/// One clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clause {
    pub(super) verb: Verb,
    /// Any verb may have one; not all heed it.
    pub(super) precision: Option<i64>,
}

impl Verb {
    /// The error for a value of a wrong type.
    pub(super) fn mismatch(self, given: &str) -> String {
        let rule = match self {
            Self::String => {
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, \
                 durations, and timestamps"
            }
            Self::Decimal => "decimal clause can only be used on integers",
            Self::Fixed => "fixed-point clause can only be used on doubles",
            Self::Scientific => "scientific clause can only be used on doubles",
            Self::Binary => "only integers and bools can be formatted as binary",
            Self::Hex(_) => "only integers, byte buffers, and strings can be formatted as hex",
            Self::Octal => "octal clause can only be used on integers",
        };
        format!("error during formatting: {rule}, was given {given}")
    }
}

/// Reads a clause after its `%`; returns it with the rest of the format.
pub(super) fn read(text: &str) -> Result<(Clause, &str), String> {
    let unreadable = |reason: String| format!("could not parse formatting clause: {reason}");
    if text.is_empty() {
        return Err("unexpected end of string".to_owned());
    }
    let (precision, text) = match text.strip_prefix('.') {
        Some(text) => {
            let (precision, rest) = precision(text)
                .map_err(|reason| unreadable(format!("error while parsing precision: {reason}")))?;
            (Some(precision), rest)
        }
        None => (None, text),
    };
    let verb = match text.bytes().next().unwrap_or_default() {
        b's' => Verb::String,
        b'd' => Verb::Decimal,
        b'f' => Verb::Fixed,
        b'e' => Verb::Scientific,
        b'b' => Verb::Binary,
        b'x' => Verb::Hex(Case::Lower),
        b'X' => Verb::Hex(Case::Upper),
        b'o' => Verb::Octal,
        // The reference shows the byte as a character.
        other => {
            return Err(unreadable(format!("unrecognized formatting clause \"{}\"", char::from(other))));
        }
    };
    Ok((Clause { verb, precision }, text.get(1..).unwrap_or_default()))
}

fn precision(text: &str) -> Result<(i64, &str), String> {
    let end = text.find(|character: char| !character.is_ascii_digit());
    let Some((digits, rest)) = end.and_then(|end| text.split_at_checked(end)) else {
        return Err("could not find end of precision specifier".to_owned());
    };
    match atoi(digits) {
        Ok(precision) => Ok((precision, rest)),
        Err(error) => Err(format!("error while converting precision to integer: {error}")),
    }
}
