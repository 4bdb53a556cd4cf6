//! The values of mutations as JSON: the object to merge of an apply configuration, and the operations of a JSON patch (RFC 6902).
//!
//! An error of a conversion is none of the expression. Must never turn a value into JSON that the reference refuses: where it
//! merges a value that no schema accepts, the conversion fails.
// apiserver: pkg/admission/plugin/policy/mutating/patch/smd.go, json_patch.go

use std::sync::Arc;

use portcullis_go::base64;
use portcullis_go::quote::Quoted;
use serde_json::{Map, Number, Value as Json};

use super::evaluation::{COST_LIMIT, Halt};
use super::go_form::{Converter, GoValue, Unconverted};
use super::native::Native;
use super::value::{Datum, GoForm, MAX_DEPTH, MapKey, Message, MessageKind};

/// The largest integer that every reader of JSON reads as it is.
// cel-go: common/types/int.go — maxIntJSON
const MAX_SAFE: u64 = (1 << 53) - 1;

/// Why there is no JSON.
enum Fault {
    /// The value has none, or does not fit.
    Misfit(String),
    /// The evaluation ends.
    Halt(Halt),
}

impl From<Halt> for Fault {
    fn from(halt: Halt) -> Self {
        Self::Halt(halt)
    }
}

type Converted<T> = Result<T, Fault>;

fn misfit<T>(text: impl Into<String>) -> Converted<T> {
    Err(Fault::Misfit(text.into()))
}

/// The object that an apply configuration merges, or why there is none.
// applyConfigPatcher.Patch
pub(super) fn apply_configuration(value: &Datum) -> Result<Result<Json, String>, Halt> {
    split(Patcher::new().merged(value))
}

/// The operations of a JSON patch, or why there are none.
// jsonPatcher.evaluatePatchExpression
pub(super) fn json_patch(value: &Datum) -> Result<Result<Json, String>, Halt> {
    split(Patcher::new().operations(value))
}

fn split(converted: Converted<Json>) -> Result<Result<Json, String>, Halt> {
    match converted {
        Ok(json) => Ok(Ok(json)),
        Err(Fault::Misfit(text)) => Ok(Err(text)),
        Err(Fault::Halt(halt)) => Err(halt),
    }
}

/// Converts the value of one expression.
struct Patcher {
    /// What may still be converted: an element, or ten bytes, for each unit. What a value contains may be shared, and far larger
    /// when it is not.
    left: u64,
    /// Why an operation fails when it is applied: the reference quotes its texts as Go does, which is not always JSON.
    unreadable: Option<String>,
}

impl Patcher {
    fn new() -> Self {
        Self { left: COST_LIMIT, unreadable: None }
    }

    fn charge(&mut self, units: usize) -> Result<(), Halt> {
        let units = u64::try_from(units).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(units).ok_or(Halt::Cost)?;
        Ok(())
    }

    fn merged(&mut self, value: &Datum) -> Converted<Json> {
        let Datum::Message(object) = value else {
            let kind = value.type_name();
            return misfit(format!("unsupported return type from ApplyConfiguration expression: {kind}"));
        };
        self.check_names(object)?;
        match Converter(|elements| self.charge(elements)).fields(object) {
            Ok(fields) => self.plain(GoValue::Map(fields), 0),
            Err(Unconverted::Key(_)) => misfit("invalid return type: *dynamic.ObjectVal"),
            Err(Unconverted::Halt(halt)) => Err(halt.into()),
        }
    }

    fn operations(&mut self, value: &Datum) -> Converted<Json> {
        let Datum::List(list) = value else {
            return misfit("type mismatch: JSONPatchType.expression should evaluate to array");
        };
        self.charge(list.items.len())?;
        let operations = list.items.iter().map(|item| self.operation(item)).collect::<Converted<Vec<_>>>()?;
        self.unreadable.take().map_or(Ok(Json::Array(operations)), misfit)
    }

    fn operation(&mut self, item: &Datum) -> Converted<Json> {
        let operation = match item {
            Datum::Message(operation) if operation.kind == MessageKind::JsonPatch => operation,
            other => {
                let kind = other.type_name();
                let head = "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch";
                return misfit(format!(
                    "{head}: type conversion error from '{kind}' to '*mutation.JSONPatchVal'"
                ));
            }
        };
        let mut converted = Map::new();
        for name in ["op", "path", "from"] {
            let Some(Datum::String(text)) = operation.fields.get(name) else { continue };
            if name == "from" && text.is_empty() {
                continue;
            }
            self.charge(text.len() / 10)?;
            if !is_json(text) && self.unreadable.is_none() {
                self.unreadable = Some(format!(
                    "JSON Patch: {name} {} has a character that JSON quotes otherwise",
                    Quoted(text)
                ));
            }
            converted.insert(name.to_owned(), Json::String(text.to_string()));
        }
        if let Some(value) = operation.fields.get("value") {
            if let Datum::Message(object) = value
                && object.kind != MessageKind::JsonPatch
            {
                self.check_names(object)?;
            }
            let value = self.json(value, 0).map_err(|fault| match fault {
                Fault::Misfit(text) => Fault::Misfit(format!(
                    "JSONPath valueExpression evaluated to a type that could not marshal to JSON: {text}"
                )),
                halt @ Fault::Halt(_) => halt,
            })?;
            converted.insert("value".to_owned(), value);
        }
        Ok(Json::Object(converted))
    }

    /// Checks that objects are of the types that their places have.
    // ObjectVal.CheckTypeNamesMatchFieldPathNames
    fn check_names(&mut self, object: &Message) -> Converted<()> {
        let mut errors = Vec::new();
        self.check_fields(object, object.kind.name(), &mut errors)?;
        if errors.is_empty() { Ok(()) } else { misfit(format!("type mismatch: {}", errors.join("\n"))) }
    }

    fn check_fields(&mut self, object: &Message, path: &str, errors: &mut Vec<String>) -> Converted<()> {
        self.charge(object.fields.len())?;
        let name = object.kind.name();
        if name != path {
            errors.push(format!(
                "unexpected type name {}, expected {}, which matches field name path from root Object type",
                Quoted(name),
                Quoted(path)
            ));
        }
        for (field, value) in &object.fields {
            self.charge(1 + path.len() / 10)?;
            self.check_value(value, &format!("{path}.{field}"), errors)?;
        }
        Ok(())
    }

    fn check_value(&mut self, value: &Datum, path: &str, errors: &mut Vec<String>) -> Converted<()> {
        match value {
            Datum::Message(object) if object.kind != MessageKind::JsonPatch => {
                self.check_fields(object, path, errors)
            }
            _ => self.check_items(value, path, errors),
        }
    }

    /// The same of what is in a list or a map that an expression makes; what other ones hold is not checked.
    fn check_items(&mut self, value: &Datum, path: &str, errors: &mut Vec<String>) -> Converted<()> {
        match value {
            Datum::List(list) if list.form == GoForm::Values => {
                self.charge(list.items.len())?;
                list.items.iter().try_for_each(|item| self.check_value(item, path, errors))
            }
            Datum::Map(map) if map.form == GoForm::Values => {
                self.charge(map.entries.len())?;
                map.entries.values().try_for_each(|value| self.check_value(value, path, errors))
            }
            Datum::Optional(Some(held)) => self.check_items(held, path, errors),
            _ => Ok(()),
        }
    }

    /// A value of an operation.
    // cel-go: common/types — ConvertToNative, to structpb.Value
    fn json(&mut self, value: &Datum, depth: usize) -> Converted<Json> {
        let depth = deeper(depth)?;
        self.charge(1)?;
        match value {
            Datum::Null => Ok(Json::Null),
            Datum::Bool(value) => Ok(Json::Bool(*value)),
            Datum::Int(number) if number.unsigned_abs() > MAX_SAFE => Ok(Json::String(number.to_string())),
            Datum::Int(number) => Ok(Json::from(*number)),
            Datum::Uint(number) if *number > MAX_SAFE => Ok(Json::String(number.to_string())),
            Datum::Uint(number) => Ok(Json::from(*number)),
            Datum::Double(number) => double(*number),
            Datum::String(text) => self.text(text),
            Datum::Bytes(bytes) => self.bytes(bytes),
            Datum::Duration(duration) => Ok(Json::String(duration.shown())),
            Datum::Timestamp(time) => Ok(Json::String(time.shown())),
            Datum::List(list) if list.form == GoForm::Typed => {
                misfit("type conversion error from 'list(dyn)' to '*structpb.Value'")
            }
            Datum::Map(map) if map.form == GoForm::Typed => {
                misfit("type conversion error from 'map(dyn, dyn)' to '*structpb.Value'")
            }
            // The values of Go of its elements are converted back first.
            Datum::List(list) if list.form == GoForm::Sum => {
                let items = list.items.iter().map(|item| {
                    let item = Converter(|elements| self.charge(elements)).value(item)?;
                    self.json(&item.into_datum(), depth)
                });
                items.collect::<Converted<Vec<_>>>().map(Json::Array)
            }
            Datum::List(list) => {
                let items = list.items.iter().map(|item| self.json(item, depth));
                items.collect::<Converted<Vec<_>>>().map(Json::Array)
            }
            Datum::Map(map) => {
                let entries = map.entries.iter().map(|(key, value)| {
                    let key = text_key(key).or_else(misfit)?;
                    self.charge(key.len() / 10)?;
                    Ok((key.to_owned(), self.json(value, depth)?))
                });
                entries.collect::<Converted<Map<_, _>>>().map(Json::Object)
            }
            Datum::Optional(Some(held)) => self.json(held, depth),
            Datum::Optional(None) => misfit("optional.none() dereference"),
            Datum::Type(_) => misfit("type conversion not supported for 'type'"),
            Datum::Root(_) => {
                misfit(format!("type conversion error from '{}' to '*structpb.Value'", value.type_name()))
            }
            Datum::Native(native) => {
                let name = short_name(&**native);
                misfit(format!("type conversion error from '{name}' to '*structpb.Value'"))
            }
            Datum::Message(message) if message.kind == MessageKind::JsonPatch => {
                misfit("cannot convert to native type: *structpb.Value")
            }
            Datum::Message(object) => match Converter(|elements| self.charge(elements)).fields(object) {
                Ok(fields) => self.proto(GoValue::Map(fields), depth),
                Err(Unconverted::Key(text)) => misfit(text),
                Err(Unconverted::Halt(halt)) => Err(halt.into()),
            },
            Datum::Failed(text) => misfit(&**text),
        }
    }

    /// A field of an object in an operation. Every number is a double there.
    // protobuf: types/known/structpb — NewValue
    fn proto(&mut self, value: GoValue, depth: usize) -> Converted<Json> {
        let depth = deeper(depth)?;
        self.charge(1)?;
        match self.level(value)? {
            GoValue::Nil => Ok(Json::Null),
            GoValue::Scalar(Datum::Int(number)) => double(crate::number::double(i128::from(number))),
            GoValue::Other(Datum::Uint(number)) => double(crate::number::double(i128::from(number))),
            GoValue::Scalar(Datum::Double(number)) => double(number),
            GoValue::Scalar(Datum::Bool(value)) => Ok(Json::Bool(value)),
            GoValue::Scalar(Datum::String(text)) => self.text(&text),
            GoValue::Other(Datum::Bytes(bytes)) => self.bytes(&bytes),
            GoValue::List(items) => {
                let items = items.into_iter().map(|item| self.proto(item, depth));
                items.collect::<Converted<Vec<_>>>().map(Json::Array)
            }
            GoValue::Map(fields) => {
                let fields = fields.into_iter().map(|(name, value)| {
                    self.charge(name.len() / 10)?;
                    Ok((name.to_string(), self.proto(value, depth)?))
                });
                fields.collect::<Converted<Map<_, _>>>().map(Json::Object)
            }
            other @ (GoValue::Raw(_)
            | GoValue::Read(_)
            | GoValue::Scalar(_)
            | GoValue::Other(_)
            | GoValue::Error(_)) => misfit(format!("proto: invalid type: {other}")),
        }
    }

    /// A field of an object that is to be merged.
    fn plain(&mut self, value: GoValue, depth: usize) -> Converted<Json> {
        let depth = deeper(depth)?;
        self.charge(1)?;
        match self.level(value)? {
            GoValue::Nil => Ok(Json::Null),
            GoValue::Scalar(Datum::Int(number)) => Ok(Json::from(number)),
            GoValue::Scalar(Datum::Double(number)) => match Number::from_f64(number) {
                Some(number) => Ok(Json::Number(number)),
                None => unmergeable("a double that is not finite"),
            },
            GoValue::Scalar(Datum::Bool(value)) => Ok(Json::Bool(value)),
            GoValue::Scalar(Datum::String(text)) => self.text(&text),
            GoValue::List(items) => {
                let items = items.into_iter().map(|item| self.plain(item, depth));
                items.collect::<Converted<Vec<_>>>().map(Json::Array)
            }
            GoValue::Map(fields) => {
                let fields = fields.into_iter().map(|(name, value)| {
                    self.charge(name.len() / 10)?;
                    Ok((name.to_string(), self.plain(value, depth)?))
                });
                fields.collect::<Converted<Map<_, _>>>().map(Json::Object)
            }
            other @ (GoValue::Raw(_)
            | GoValue::Read(_)
            | GoValue::Scalar(_)
            | GoValue::Other(_)
            | GoValue::Error(_)) => unmergeable(&format!("a value of type {other}")),
        }
    }

    /// A value whose first level is no longer that of what was read from JSON.
    fn level(&mut self, value: GoValue) -> Converted<GoValue> {
        match value {
            GoValue::Raw(value) => self.read(&value, true),
            GoValue::Read(value) => self.read(&value, false),
            other => Ok(other),
        }
    }

    fn read(&mut self, value: &Datum, is_raw: bool) -> Converted<GoValue> {
        let next = |value: &Datum| match value {
            Datum::Null if is_raw => GoValue::Nil,
            Datum::List(_) | Datum::Map(_) if is_raw => GoValue::Raw(value.clone()),
            Datum::List(_) | Datum::Map(_) => GoValue::Read(value.clone()),
            Datum::Null => GoValue::Other(Datum::Null),
            scalar => GoValue::Scalar(scalar.clone()),
        };
        match value {
            Datum::List(list) => {
                self.charge(list.items.len())?;
                Ok(GoValue::List(list.items.iter().map(next).collect()))
            }
            Datum::Map(map) => {
                self.charge(map.entries.len())?;
                let entries = map.entries.iter().map(|(key, value)| match key {
                    MapKey::String(name) => Ok((Arc::clone(name), next(value))),
                    other => misfit(format!("a key of type {}", other.datum().type_name())),
                });
                entries.collect::<Converted<_>>().map(GoValue::Map)
            }
            other => Ok(next(other)),
        }
    }

    fn text(&mut self, text: &str) -> Converted<Json> {
        self.charge(text.len() / 10)?;
        Ok(Json::String(text.to_owned()))
    }

    fn bytes(&mut self, bytes: &[u8]) -> Converted<Json> {
        self.charge(bytes.len() / 10)?;
        Ok(Json::String(base64::encode(bytes)))
    }
}

fn deeper(depth: usize) -> Converted<usize> {
    if depth < MAX_DEPTH {
        Ok(depth + 1)
    } else {
        Err(Fault::Halt(Halt::Unsupported(format!("the value has more than {MAX_DEPTH} levels"))))
    }
}

/// The reference merges the value into the object, and no schema accepts it.
fn unmergeable<T>(what: &str) -> Converted<T> {
    misfit(format!(
        "error applying patch: failed to convert patch object to typed object: {what} is not one of JSON here"
    ))
}

/// A double as JSON writes it: a whole number has no fraction.
fn double(number: f64) -> Converted<Json> {
    let shown = match number {
        number if number.is_nan() => "NaN",
        f64::INFINITY => "+Inf",
        f64::NEG_INFINITY => "-Inf",
        _ => {
            let whole =
                crate::number::exact_int(number).filter(|whole| *whole != 0 || number.is_sign_positive());
            let number = whole.map(Number::from).or_else(|| Number::from_f64(number));
            return Ok(number.map_or(Json::Null, Json::Number));
        }
    };
    misfit(format!(
        "json: error calling MarshalJSON for type *structpb.Value: proto: google.protobuf.Value.number_value: \
         invalid {shown} value"
    ))
}

/// The name of a type of a library in the error of its conversion.
fn short_name(native: &dyn Native) -> &str {
    native.go_type().trim_start_matches('*').strip_prefix("cel.").unwrap_or_else(|| native.type_name())
}

/// The key of an entry, or the reference's error.
fn text_key(key: &MapKey) -> Result<&str, &'static str> {
    match key {
        MapKey::String(text) => Ok(text),
        MapKey::Int(_) => Err("unsupported type conversion from 'int' to string"),
        MapKey::Uint(_) => Err("unsupported type conversion from 'uint' to string"),
        MapKey::Bool(_) => Err("type conversion error from bool to 'string'"),
        MapKey::Double(_) => Err("type conversion error from Double to 'string'"),
        MapKey::Null => Err("type conversion error from 'null_type' to 'string'"),
    }
}

/// Whether the text is a text of JSON when Go quotes it.
fn is_json(text: &str) -> bool {
    let is_escaped = |character: char| {
        let quoted = Quoted(character.encode_utf8(&mut [0; 4])).to_string();
        ["\\a", "\\v", "\\x", "\\U"].iter().any(|escape| quoted.contains(escape))
    };
    !text.chars().filter(|character| !matches!(character, ' '..='~')).any(is_escaped)
}
