//! Decodes claims as kube-apiserver's JSON library does: `null` is the zero value of the expected type, and a date may
//! be a number in a string.
// Go: encoding/json; github.com/coreos/go-oidc, oidc.go: audience, jsonTime

use serde_json::{Map, Number, Value};

/// The claims of an ID token.
pub(super) type IdTokenClaims = Map<String, Value>;

/// Why a claim cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClaimError {
    /// The claim is absent.
    #[error("claim not present")]
    Absent,
    /// The claim has another type.
    #[error("json: cannot unmarshal {found} into Go value of type {wanted}")]
    Type {
        /// The type of the claim.
        found: &'static str,
        /// The expected type.
        wanted: &'static str,
    },
    /// The claim is not a number.
    #[error("json: invalid number literal, trying to unmarshal a text into Number")]
    Number,
}

/// Returns a required claim.
pub(super) fn present<'a>(claims: &'a IdTokenClaims, name: &str) -> Result<&'a Value, ClaimError> {
    claims.get(name).ok_or(ClaimError::Absent)
}

/// Decodes a string.
pub(super) fn text(value: &Value) -> Result<&str, ClaimError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Null => Ok(""),
        other => Err(mismatch(other, "string")),
    }
}

/// Decodes a boolean.
pub(super) fn boolean(value: &Value) -> Result<bool, ClaimError> {
    match value {
        Value::Bool(value) => Ok(*value),
        Value::Null => Ok(false),
        other => Err(mismatch(other, "bool")),
    }
}

/// Decodes a string or a list of strings.
// apiserver: plugin/pkg/authenticator/token/oidc/oidc.go, stringOrArray
pub(super) fn texts(value: &Value) -> Result<Vec<String>, ClaimError> {
    let read = |value| text(value).map(str::to_owned);
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) => {
            values.iter().map(read).collect::<Result<_, _>>().map_err(|_| mismatch(value, "string"))
        }
        one => read(one).map(|text| vec![text]),
    }
}

/// Decodes the audiences: a string, where `null` is the empty string, or a list of strings.
pub(super) fn audiences(value: &Value) -> Result<Vec<String>, ClaimError> {
    match value {
        Value::Null => Ok(vec![String::new()]),
        Value::Array(values) => values.iter().map(|value| text(value).map(str::to_owned)).collect(),
        Value::String(text) => Ok(vec![text.clone()]),
        other => Err(mismatch(other, "[]string")),
    }
}

/// Decodes a date, in seconds since 1970.
pub(super) fn seconds(value: &Value) -> Result<i64, ClaimError> {
    match value {
        Value::Number(number) => Ok(whole(number)),
        // The whole string must be a number, without white space around it.
        Value::String(text) => match serde_json::from_str::<Number>(text) {
            Ok(number) if text.trim() == text => Ok(whole(&number)),
            _ => Err(ClaimError::Number),
        },
        Value::Null => Err(ClaimError::Number),
        other => Err(mismatch(other, "json.Number")),
    }
}

/// Truncates fractions. A number that does not fit 64 bits becomes `i64::MIN`, as Go converts it on amd64.
fn whole(number: &Number) -> i64 {
    let fraction = || number.as_f64().filter(|value| (-9.3e18..9.223_372_036_854_775e18).contains(value));
    #[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "in range, or saturates low")]
    let cut = |value: f64| value as i64;
    number.as_i64().or_else(|| fraction().map(cut)).unwrap_or(i64::MIN)
}

fn mismatch(found: &Value, wanted: &'static str) -> ClaimError {
    ClaimError::Type { found: kind(found), wanted }
}

/// The JSON type of a value, as the errors name it.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dates_are_numbers_or_strings_of_numbers() {
        let cases = [
            (json!(1_700_000_000), Ok(1_700_000_000)),
            (json!(-5), Ok(-5)),
            (json!(1.9), Ok(1)),
            (json!(-1.9), Ok(-1)),
            (json!(1.7e9), Ok(1_700_000_000)),
            (json!(1e300), Ok(i64::MIN)),
            (json!(u64::MAX), Ok(i64::MIN)),
            (json!(i64::MAX), Ok(i64::MAX)),
            (json!("1700000000"), Ok(1_700_000_000)),
            (json!("1.7e9"), Ok(1_700_000_000)),
            (json!(""), Err(ClaimError::Number)),
            (json!(" 5"), Err(ClaimError::Number)),
            (json!("5 "), Err(ClaimError::Number)),
            (json!("+5"), Err(ClaimError::Number)),
            (json!("0x10"), Err(ClaimError::Number)),
            (json!("NaN"), Err(ClaimError::Number)),
            (json!(null), Err(ClaimError::Number)),
            (json!(true), Err(ClaimError::Type { found: "bool", wanted: "json.Number" })),
            (json!([5]), Err(ClaimError::Type { found: "array", wanted: "json.Number" })),
        ];
        for (value, expected) in cases {
            assert_eq!(seconds(&value), expected, "{value}");
        }
    }

    #[test]
    fn null_is_the_zero_value() {
        assert_eq!(text(&json!(null)), Ok(""));
        assert_eq!(boolean(&json!(null)), Ok(false));
        assert_eq!(texts(&json!(null)), Ok(vec![]));
        assert_eq!(texts(&json!(["a", null])), Ok(vec!["a".to_owned(), String::new()]));
        assert_eq!(audiences(&json!(null)), Ok(vec![String::new()]));
    }

    #[test]
    fn other_types_are_refused() {
        let error = |found, wanted| ClaimError::Type { found, wanted };
        assert_eq!(text(&json!(5)).unwrap_err(), error("number", "string"));
        assert_eq!(boolean(&json!("true")).unwrap_err(), error("string", "bool"));
        assert_eq!(texts(&json!(["a", 5])).unwrap_err(), error("array", "string"));
        assert_eq!(texts(&json!({"a": "b"})).unwrap_err(), error("object", "string"));
        assert_eq!(audiences(&json!(["a", 5])).unwrap_err(), error("number", "string"));
        assert_eq!(audiences(&json!(5)).unwrap_err(), error("number", "[]string"));
        assert_eq!(present(&IdTokenClaims::new(), "sub").unwrap_err(), ClaimError::Absent);
    }
}
