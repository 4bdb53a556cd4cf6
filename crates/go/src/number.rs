//! Whole numbers as Go's `strconv.Atoi` reads them, including its error texts.

use crate::quote::Quoted;

/// Why a text is not a whole number, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("strconv.Atoi: parsing {}: {}", Quoted(.text), if *.range { "value out of range" } else { "invalid syntax" })]
pub struct NumberError {
    text: String,
    range: bool,
}

/// Reads a decimal number of 64 bits, with or without a sign.
// strconv: Atoi, ParseInt
pub fn atoi(text: &str) -> Result<i64, NumberError> {
    let failed = |range| NumberError { text: text.to_owned(), range };
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() {
        return Err(failed(false));
    }
    let mut count: u64 = 0;
    for byte in digits.bytes() {
        if !byte.is_ascii_digit() {
            return Err(failed(false));
        }
        // As in Go, a number beyond 64 bits takes precedence over what follows it.
        let next = count.checked_mul(10).and_then(|count| count.checked_add(u64::from(byte - b'0')));
        count = next.ok_or_else(|| failed(true))?;
    }
    let count = if text.starts_with('-') { 0_i64.checked_sub_unsigned(count) } else { count.try_into().ok() };
    count.ok_or_else(|| failed(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        // Expected values are Go's output.
        const CASES: &[(&str, Result<i64, &str>)] = &[
            ("0", Ok(0)),
            ("+5", Ok(5)),
            ("-07", Ok(-7)),
            ("9223372036854775807", Ok(i64::MAX)),
            ("-9223372036854775808", Ok(i64::MIN)),
            (
                "9223372036854775808",
                Err(r#"strconv.Atoi: parsing "9223372036854775808": value out of range"#),
            ),
            (
                "-9223372036854775809",
                Err(r#"strconv.Atoi: parsing "-9223372036854775809": value out of range"#),
            ),
            ("9999999999999999999x", Err(r#"strconv.Atoi: parsing "9999999999999999999x": invalid syntax"#)),
            (
                "99999999999999999999x",
                Err(r#"strconv.Atoi: parsing "99999999999999999999x": value out of range"#),
            ),
            ("", Err(r#"strconv.Atoi: parsing "": invalid syntax"#)),
            ("-", Err(r#"strconv.Atoi: parsing "-": invalid syntax"#)),
            ("1_0", Err(r#"strconv.Atoi: parsing "1_0": invalid syntax"#)),
            (" 1", Err(r#"strconv.Atoi: parsing " 1": invalid syntax"#)),
            ("\u{e9}", Err("strconv.Atoi: parsing \"\u{e9}\": invalid syntax")),
        ];
        for (text, expected) in CASES {
            let found = atoi(text).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{text:?}");
        }
    }
}
