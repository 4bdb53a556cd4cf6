//! The error of one field, with Kubernetes' text, and its fix.
//!
//! Follows `pkg/util/validation/field/errors.go`.

use std::borrow::Cow;
use std::fmt;

use portcullis_go::quote::Quoted;

/// The error of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the field, such as `jwt[0].issuer.url`.
    pub field: String,
    /// The problem, without the path.
    pub body: String,
    /// How to fix it.
    pub fix: Cow<'static, str>,
    /// Whether the text begins with the path.
    names_field: bool,
}

impl FieldError {
    fn new(field: impl Into<String>, kind: &str, detail: &str) -> Self {
        let separator = if detail.is_empty() { "" } else { ": " };
        let body = format!("{kind}{separator}{detail}");
        Self { field: field.into(), body, fix: Cow::Borrowed(""), names_field: true }
    }

    /// An error whose text does not begin with the path of the field.
    pub fn plain(field: impl Into<String>, text: String) -> Self {
        Self { field: field.into(), body: text, fix: Cow::Borrowed(""), names_field: false }
    }

    /// A required value is missing.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "Required value", detail)
    }

    /// A unique value occurs twice.
    pub fn duplicate(field: impl Into<String>, value: &str) -> Self {
        Self::new(field, "Duplicate value", &Quoted(value).to_string()).fix("remove one of the two")
    }

    /// A string value is invalid.
    pub fn invalid(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::invalid_json(field, &Quoted(value).to_string(), detail)
    }

    /// A value of another type is invalid; `value` is its JSON.
    pub fn invalid_json(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::new(field, &format!("Invalid value: {value}"), detail)
    }

    /// A string value is not one of `supported`.
    pub fn not_supported(field: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        Self::not_supported_json(field, &Quoted(value).to_string(), supported)
    }

    /// A value of another type is not one of `supported`; `value` is its JSON.
    pub fn not_supported_json(field: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let names: Vec<String> = supported.iter().map(|name| Quoted(name).to_string()).collect();
        let detail = format!("supported values: {}", names.join(", "));
        Self::new(field, &format!("Unsupported value: {value}"), &detail)
            .fix(format!("give {}", supported.join(" or ")))
    }

    /// A list is too long.
    pub fn too_many(field: impl Into<String>, count: usize, most: usize) -> Self {
        Self::new(field, &format!("Too many: {count}"), &format!("must have at most {most} items"))
    }

    /// A text is too long.
    pub fn too_long(field: impl Into<String>, most: usize) -> Self {
        Self::new(field, "Too long", &format!("may not be more than {most} bytes"))
    }

    /// A value is not allowed together with another.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "Forbidden", detail)
    }

    /// Adds the fix.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<Cow<'static, str>>) -> Self {
        self.fix = fix.into();
        self
    }
}

/// A list of strings as `encoding/json` writes it.
pub fn json_strings(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| json_string(text)).collect();
    format!("[{}]", texts.join(","))
}

/// A string as `encoding/json` writes it: with `<`, `>`, `&` and line separators escaped.
// encoding/json: appendString, with escapeHTML
pub fn json_string(text: &str) -> String {
    let mut escaped = serde_json::Value::from(text).to_string();
    for special in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
        escaped = escaped.replace(special, &format!("\\u{:04x}", u32::from(special)));
    }
    escaped
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.names_field {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.body)
    }
}
