//! Objects as Go reads them into structures and writes them again, by tables of their fields: with zero values, without fields that a
//! structure does not have, with quantities and times as their types print them.
//!
//! In a decoded value, a field that is absent is nil, or has the zero value of a type that is not a pointer; the zero time is `null`.
// go: encoding/json, decode.go and encode.go; sigs.k8s.io/json: UnmarshalCaseSensitivePreserveInts

use std::ops::Range;

use portcullis_cel::{QuantityError, canonical_quantity};
use portcullis_go::json::raw::{self, JsonType};
use portcullis_go::json::{encode, string_into};
use portcullis_go::time::Time;
use serde_json::{Map, Value, json};

/// Go's zero time, in seconds since 1970.
// go: time/time.go, Time.IsZero
const ZERO_TIME: i64 = -62_135_596_800;

/// A type of Go.
#[derive(Debug)]
pub(super) enum Type {
    Text,
    Bool,
    Int32,
    Int64,
    /// `resource.Quantity`
    Quantity,
    /// `metav1.Time`
    Time,
    /// Any value, which stays as it is.
    Raw,
    /// `map[string]string`
    Texts,
    List(&'static Self),
    Struct(&'static [Field]),
}

/// A field of a structure.
#[derive(Debug)]
pub(super) struct Field {
    name: &'static str,
    of: Type,
    kind: FieldKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldKind {
    /// Its zero value is written.
    Always,
    /// With `omitempty` or `omitzero`.
    OmittedIfEmpty,
    /// A pointer, with `omitempty`.
    Pointer,
}

/// The names of fields in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// Those of the tags.
    Exact,
    /// The same in capital and small letters, as `encoding/json` reads them.
    Folded,
    /// Those of the fields in Go, of a type without tags: all are written, nil as `null`.
    OfGo,
}

/// Why a value is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undecoded {
    /// A field has another type, or is out of its range.
    Mismatch,
    /// Go reads it, and this does not: a quantity of very many digits.
    Unsupported,
}

impl Field {
    pub(super) const fn always(name: &'static str, of: Type) -> Self {
        Self { name, of, kind: FieldKind::Always }
    }

    pub(super) const fn omitted_if_empty(name: &'static str, of: Type) -> Self {
        Self { name, of, kind: FieldKind::OmittedIfEmpty }
    }

    pub(super) const fn pointer(name: &'static str, of: Type) -> Self {
        Self { name, of, kind: FieldKind::Pointer }
    }

    fn is_called(&self, name: &str, names: Names) -> bool {
        match names {
            Names::Exact => self.name == name,
            Names::Folded | Names::OfGo => name.chars().map(folded).eq(self.name.chars().map(folded)),
        }
    }

    /// Reads the field of a structure. A `null` changes no text, no number and no structure that is not a pointer.
    fn decode(&self, json: &[u8], names: Names, fields: &mut Map<String, Value>) -> Result<(), Undecoded> {
        if JsonType::of(json) == JsonType::Null {
            let is_kept =
                matches!(self.of, Type::Text | Type::Bool | Type::Int32 | Type::Int64 | Type::Struct(_));
            if self.kind == FieldKind::Pointer || !is_kept {
                fields.remove(self.name);
            }
            return Ok(());
        }
        let value = self.of.decode_over(json, names, fields.remove(self.name))?;
        if self.kind == FieldKind::Pointer || !is_zero(&value) {
            fields.insert(self.name.to_owned(), value);
        }
        Ok(())
    }
}

/// A letter as `encoding/json` compares names that are written in ASCII.
// go: encoding/json, fold.go
fn folded(letter: char) -> char {
    match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    }
}

/// Whether a field that is not a pointer has its zero value. Empty lists and maps are not nil.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(_) | Value::Object(_) => false,
    }
}

impl Type {
    /// Reads a value of valid JSON.
    pub(super) fn decode(&self, json: &[u8], names: Names) -> Result<Value, Undecoded> {
        if JsonType::of(json) == JsonType::Null {
            Ok(Value::Null)
        } else {
            self.decode_over(json, names, None)
        }
    }

    /// Reads a value that is not `null` into one that is there: Go merges structures that a text repeats.
    fn decode_over(&self, json: &[u8], names: Names, old: Option<Value>) -> Result<Value, Undecoded> {
        let json = json.trim_ascii();
        match (self, JsonType::of(json)) {
            (Self::Text, JsonType::String) => Ok(raw::string(json).into()),
            (Self::Bool, JsonType::Bool) => Ok((json == b"true").into()),
            (Self::Int32, JsonType::Number) => integer::<i32>(json),
            (Self::Int64, JsonType::Number) => integer::<i64>(json),
            (Self::Quantity, _) => quantity(json),
            (Self::Time, JsonType::String) => time(&raw::string(json)),
            (Self::Raw, _) => raw::decode(json).map_err(|_| Undecoded::Unsupported),
            (Self::Texts, JsonType::Object) => texts(json, old),
            // Go merges a list that a text repeats into the memory of the one before, of which more may be left than its items.
            (Self::List(_), JsonType::Array) if old.is_some() => Err(Undecoded::Unsupported),
            (Self::List(of), JsonType::Array) => of.decode_list(json, names),
            (Self::Struct(fields), JsonType::Object) => {
                let mut decoded = object(old);
                for (name, range) in raw::members(json) {
                    if let Some(field) = fields.iter().find(|field| field.is_called(&name, names)) {
                        field.decode(part(json, range), names, &mut decoded)?;
                    }
                }
                Ok(decoded.into())
            }
            _ => Err(Undecoded::Mismatch),
        }
    }

    fn decode_list(&self, json: &[u8], names: Names) -> Result<Value, Undecoded> {
        let items = raw::elements(json).into_iter().map(|range| {
            let json = part(json, range);
            match JsonType::of(json) {
                JsonType::Null => Ok(self.zero()),
                _ => self.decode_over(json, names, None),
            }
        });
        items.collect::<Result<Vec<_>, _>>().map(Value::Array)
    }

    fn zero(&self) -> Value {
        match self {
            Self::Text => "".into(),
            Self::Bool => false.into(),
            Self::Int32 | Self::Int64 => 0.into(),
            Self::Quantity => "0".into(),
            Self::Struct(_) => json!({}),
            Self::Time | Self::Raw | Self::Texts | Self::List(_) => Value::Null,
        }
    }

    /// Writes a decoded value; the zero one, if there is none.
    pub(super) fn encode(&self, value: Option<&Value>, names: Names, out: &mut Vec<u8>) {
        match (self, value) {
            (Self::Struct(fields), value) => {
                out.push(b'{');
                for field in *fields {
                    field.encode(value.and_then(|value| value.get(field.name)), names, out);
                }
                if out.last() == Some(&b',') {
                    out.pop();
                }
                out.push(b'}');
            }
            (Self::List(of), Some(Value::Array(items))) => {
                out.push(b'[');
                for (place, item) in items.iter().enumerate() {
                    if place > 0 {
                        out.push(b',');
                    }
                    of.encode(Some(item), names, out);
                }
                out.push(b']');
            }
            (_, Some(value)) => out.extend(encode(value)),
            (_, None) => out.extend(encode(&self.zero())),
        }
    }

    /// Whether a value has no field that the type does not have.
    pub(super) fn has_all_fields_of(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Struct(fields), Value::Object(values)) => values.iter().all(|(name, value)| {
                let field = fields.iter().find(|field| field.name == name);
                field.is_some_and(|field| field.of.has_all_fields_of(value))
            }),
            (Self::List(of), Value::Array(items)) => items.iter().all(|item| of.has_all_fields_of(item)),
            _ => true,
        }
    }

    /// The same of valid JSON whose fields have these names.
    pub(super) fn has_all_fields_in(&self, json: &[u8], names: Names) -> bool {
        let json = json.trim_ascii();
        match (self, JsonType::of(json)) {
            (Self::Struct(fields), JsonType::Object) => {
                raw::members(json).into_iter().all(|(name, range)| {
                    let field = fields.iter().find(|field| field.is_called(&name, names));
                    field.is_some_and(|field| field.of.has_all_fields_in(part(json, range), names))
                })
            }
            (Self::List(of), JsonType::Array) => {
                raw::elements(json).into_iter().all(|range| of.has_all_fields_in(part(json, range), names))
            }
            _ => true,
        }
    }
}

impl Field {
    /// Writes the field of a structure, and a comma.
    fn encode(&self, value: Option<&Value>, names: Names, out: &mut Vec<u8>) {
        let is_empty = match value {
            None => true,
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(fields)) => matches!(self.of, Type::Texts) && fields.is_empty(),
            Some(_) => false,
        };
        match (names, self.kind) {
            (Names::OfGo, _) | (_, FieldKind::Always) => {}
            (_, FieldKind::OmittedIfEmpty) if is_empty => return,
            (_, FieldKind::Pointer) if value.is_none() => return,
            (_, FieldKind::OmittedIfEmpty | FieldKind::Pointer) => {}
        }
        if names == Names::OfGo {
            string_into(out, &exported(self.name));
        } else {
            string_into(out, self.name);
        }
        out.push(b':');
        match value {
            None if self.kind == FieldKind::Pointer => out.extend(b"null"),
            value => self.of.encode(value, names, out),
        }
        out.push(b',');
    }
}

/// The name of a field in Go whose tag has this name.
fn exported(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

fn part(json: &[u8], range: Range<usize>) -> &[u8] {
    json.get(range).unwrap_or_default()
}

fn object(old: Option<Value>) -> Map<String, Value> {
    if let Some(Value::Object(fields)) = old { fields } else { Map::new() }
}

fn integer<N: TryFrom<i64> + Into<Value>>(json: &[u8]) -> Result<Value, Undecoded> {
    let digits = std::str::from_utf8(json).ok().and_then(|text| text.parse::<i64>().ok());
    let number = digits.and_then(|number| N::try_from(number).ok());
    number.map(Into::into).ok_or(Undecoded::Mismatch)
}

// apimachinery: pkg/api/resource/quantity.go, UnmarshalJSON, which reads no escapes
fn quantity(json: &[u8]) -> Result<Value, Undecoded> {
    let inner = json.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(json);
    let text = std::str::from_utf8(inner).map_err(|_| Undecoded::Mismatch)?.trim();
    match canonical_quantity(text) {
        Ok(canonical) => Ok(canonical.into()),
        Err(QuantityError::TooLarge) => Err(Undecoded::Unsupported),
        Err(QuantityError::Invalid) => Err(Undecoded::Mismatch),
    }
}

// apimachinery: pkg/apis/meta/v1/time.go, UnmarshalJSON and MarshalJSON
fn time(text: &str) -> Result<Value, Undecoded> {
    let time = Time::parse_rfc3339(text).ok_or(Undecoded::Mismatch)?;
    if time.seconds == ZERO_TIME && time.nanoseconds == 0 {
        return Ok(Value::Null);
    }
    Ok(Time { offset: 0, ..time }.in_whole_seconds().into())
}

fn texts(json: &[u8], old: Option<Value>) -> Result<Value, Undecoded> {
    let mut decoded = object(old);
    for (name, range) in raw::members(json) {
        let json = part(json, range);
        let text = match JsonType::of(json) {
            JsonType::String => raw::string(json.trim_ascii()),
            JsonType::Null => String::new(),
            _ => return Err(Undecoded::Mismatch),
        };
        decoded.insert(name, text.into());
    }
    Ok(decoded.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Type = Type::Struct(&[
        Field::always("size", Type::Int32),
        Field::omitted_if_empty("kinds", Type::Texts),
        Field::pointer(
            "part",
            Type::Struct(&[Field::always("a", Type::Text), Field::pointer("b", Type::Bool)]),
        ),
        Field::always("times", Type::List(&Type::Time)),
        Field::omitted_if_empty("value", Type::Quantity),
    ]);

    fn again(json: &str, read: Names, written: Names) -> Option<String> {
        let value = OF.decode(json.as_bytes(), read).ok()?;
        let mut out = Vec::new();
        OF.encode(Some(&value), written, &mut out);
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn values_are_written_as_their_types_write_them() {
        for (json, expected) in [
            (r#"{"Size":1,"else":2}"#, r#"{"size":0,"times":null}"#),
            (
                r#"{"size":7,"kinds":{"b":null,"a":"x"},"times":[]}"#,
                r#"{"size":7,"kinds":{"a":"x","b":""},"times":[]}"#,
            ),
            (
                r#"{"part":{},"kinds":{},"value":" 1024Ki"}"#,
                r#"{"size":0,"part":{"a":""},"times":null,"value":"1Mi"}"#,
            ),
            (
                r#"{"times":["2026-01-02T03:04:05.6+01:00","0001-01-01T00:00:00Z",null]}"#,
                r#"{"size":0,"times":["2026-01-02T02:04:05Z",null,null]}"#,
            ),
        ] {
            assert_eq!(again(json, Names::Exact, Names::Exact).as_deref(), Some(expected), "{json}");
        }
        for json in
            [r#"{"size":2147483648}"#, r#"{"size":1.0}"#, r#"{"part":[]}"#, r#"{"kinds":{"a":1}}"#, "[]"]
        {
            assert_eq!(again(json, Names::Exact, Names::Exact), None, "{json}");
        }
    }

    #[test]
    fn names_may_be_in_other_letters_and_repeated() {
        for (json, expected) in [
            (
                r#"{"SIZE":1,"\u017fIze":null}"#,
                r#"{"Size":1,"Kinds":null,"Part":null,"Times":null,"Value":"0"}"#,
            ),
            (
                r#"{"part":{"a":"x","B":true},"PART":{"a":"y"}}"#,
                r#"{"Size":0,"Kinds":null,"Part":{"A":"y","B":true},"Times":null,"Value":"0"}"#,
            ),
            (r#"{"part":{},"PART":null}"#, r#"{"Size":0,"Kinds":null,"Part":null,"Times":null,"Value":"0"}"#),
        ] {
            assert_eq!(again(json, Names::Folded, Names::OfGo).as_deref(), Some(expected), "{json}");
        }
    }
}
