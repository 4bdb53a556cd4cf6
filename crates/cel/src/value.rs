//! The values of expressions.
//!
//! Values of a token or a user are marked `escaped`: field and index selection in them, at any depth, accepts keys with
//! the escapes of Kubernetes (`a__dot__b` for `a.b`). The elements of an iteration lose the mark, as in the reference.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::native::{Native, unconvertible};
use super::number;
use super::time::{Duration, Timestamp};

/// The most levels of the values of variables, and of what an expression of a mutation gives. The reference has no bound but that of Go for
/// JSON, 10,000 levels.
pub(super) const MAX_DEPTH: usize = 250;

/// A value.
#[derive(Debug, Clone)]
pub(super) enum Datum {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    List(ListValue),
    Map(MapValue),
    Optional(Option<Arc<Self>>),
    Duration(Duration),
    Timestamp(Timestamp),
    /// The name of a type.
    Type(Arc<str>),
    /// The variable `claims` or `user`.
    Root(Arc<RootVariable>),
    /// A value of a library.
    Native(Arc<dyn Native>),
    /// An object that an expression makes for a patch.
    Message(Arc<Message>),
    /// An error in an optional, or taken from one into a list or a map: using it fails.
    Failed(Arc<str>),
}

/// How numbers of JSON are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// Every number is a double, as in Go's `encoding/json`.
    Doubles,
    /// A number without fraction and exponent that fits is an integer, as in Kubernetes' objects.
    Integers,
}

#[derive(Debug, Clone)]
pub(super) struct ListValue {
    pub(super) items: Arc<Vec<Datum>>,
    pub(super) escaped: bool,
    pub(super) form: GoForm,
}

#[derive(Debug, Clone)]
pub(super) struct MapValue {
    pub(super) entries: Arc<BTreeMap<MapKey, Datum>>,
    pub(super) escaped: bool,
    /// `Values`, `Plain` or `Typed`.
    pub(super) form: GoForm,
}

/// How the reference holds a list or a map. What patches make of one depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoForm {
    /// As values of CEL: what an expression makes.
    Values,
    /// As values of Go: what is read from JSON.
    Plain,
    /// As a value of a type of Go, which has no JSON of its own: what is in variables other than objects.
    Typed,
    /// As the two lists of a sum.
    Sum,
    /// As strings of Go: the result of a string function, which the reference's authenticator does not accept as a list of strings.
    Texts,
}

/// An object that an expression makes: `Object.spec{replicas: 1}`.
// apiserver: pkg/cel/mutation
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: MessageKind,
    pub(super) fields: BTreeMap<Arc<str>, Datum>,
}

/// The type of such an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// `Object`, or a path of fields from it.
    Object(Arc<str>),
    /// `JSONPatch`. Its texts are present, and empty if they were not given.
    JsonPatch,
}

/// The variable of an expression: a map, which most functions do not accept as one.
#[derive(Debug)]
pub(super) struct RootVariable {
    pub(super) type_name: &'static str,
    pub(super) fields: BTreeMap<String, Datum>,
}

/// A map key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MapKey {
    Null,
    Bool(bool),
    Double(DoubleKey),
    Int(i64),
    Uint(u64),
    String(Arc<str>),
}

/// The type of the operations of JSON patches.
pub(super) const JSON_PATCH: &str = "JSONPatch";

/// The bits of a double that is a key: zeros of both signs are one key, and NaNs are told apart by their payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct DoubleKey(u64);

/// The payload of the first NaN of a map, and the last there may be.
const NANS: RangeInclusive<u64> = 0x7ff8_0000_0000_0000..=0x7fff_ffff_ffff_ffff;

impl DoubleKey {
    fn new(number: f64) -> Self {
        Self(if number.is_nan() { *NANS.start() } else { number.to_bits() })
    }

    fn number(self) -> f64 {
        f64::from_bits(self.0)
    }

    fn ordinal(self) -> u64 {
        if self.number() == 0.0 { 0 } else { self.0 }
    }
}

impl PartialEq for DoubleKey {
    fn eq(&self, other: &Self) -> bool {
        self.ordinal() == other.ordinal()
    }
}

impl Eq for DoubleKey {}

impl PartialOrd for DoubleKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DoubleKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ordinal().cmp(&other.ordinal())
    }
}

impl Datum {
    pub(super) fn string(text: &str) -> Self {
        Self::String(text.into())
    }

    pub(super) fn list(items: Vec<Self>) -> Self {
        Self::listed(items, GoForm::Values)
    }

    pub(super) fn listed(items: Vec<Self>, form: GoForm) -> Self {
        Self::List(ListValue { items: Arc::new(items), escaped: false, form })
    }

    /// The list that a string function returns.
    pub(super) fn strings<'a>(items: impl IntoIterator<Item = &'a str>) -> Self {
        let items = items.into_iter().map(Self::string).collect();
        Self::listed(items, GoForm::Texts)
    }

    pub(super) fn map(entries: BTreeMap<MapKey, Self>) -> Self {
        Self::mapped(entries, GoForm::Values)
    }

    pub(super) fn mapped(entries: BTreeMap<MapKey, Self>, form: GoForm) -> Self {
        Self::Map(MapValue { entries: Arc::new(entries), escaped: false, form })
    }

    /// Converts JSON as CEL's type adapter does, with all that it contains in this form.
    pub(super) fn from_json(value: &serde_json::Value, numbers: Numbers, form: GoForm) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(value) => Self::Bool(*value),
            serde_json::Value::Number(value) => match value.as_i64() {
                Some(integer) if numbers == Numbers::Integers => Self::Int(integer),
                _ => Self::Double(value.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(value) => Self::string(value),
            serde_json::Value::Array(values) => {
                let items = values.iter().map(|value| Self::from_json(value, numbers, form));
                Self::listed(items.collect(), form)
            }
            serde_json::Value::Object(fields) => {
                let entry = |(key, value): (&String, _)| {
                    (MapKey::from(key.as_str()), Self::from_json(value, numbers, form))
                };
                Self::mapped(fields.iter().map(entry).collect(), form)
            }
        }
    }

    /// Marks the value as escaped.
    pub(super) fn escaped(self) -> Self {
        match self {
            Self::List(list) => Self::List(ListValue { escaped: true, ..list }),
            Self::Map(map) => Self::Map(MapValue { escaped: true, ..map }),
            other => other,
        }
    }

    /// Removes the mark.
    pub(super) fn unescaped(self) -> Self {
        match self {
            Self::List(list) => Self::List(ListValue { escaped: false, ..list }),
            Self::Map(map) => Self::Map(MapValue { escaped: false, ..map }),
            other => other,
        }
    }

    pub(super) fn type_name(&self) -> &str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Type(_) => "type",
            Self::Root(root) => root.type_name,
            Self::Native(native) => native.type_name(),
            Self::Message(message) => message.kind.name(),
            Self::Failed(_) => "error",
        }
    }

    /// The content of an optional that a selection or a conditional starts from. The reference converts it to a value of Go
    /// and back: an optional in it is opened too, and becomes `null` if it is empty; the name of a type becomes a string, and
    /// a value of most libraries an error.
    // cel-go: interpreter/attributes.go — applyQualifiers
    pub(super) fn opened(self) -> Self {
        let mut inner = self;
        while let Self::Optional(held) = inner {
            inner = held.map_or(Self::Null, Arc::unwrap_or_clone);
        }
        match inner {
            Self::Type(name) => Self::String(name),
            Self::Root(_) => Self::Failed("no such overload".into()),
            Self::Native(native) => match native.go_round_trip() {
                Ok(()) => Self::Native(native),
                Err(text) => Self::Failed(text.into()),
            },
            Self::Failed(text) => Self::Failed(unconvertible("*errors.errorString", &text).into()),
            inner => inner.unescaped(),
        }
    }

    /// The name of the type in Go, which some error texts of the reference contain.
    pub(super) fn go_type(&self) -> &'static str {
        match self {
            Self::Null => "types.Null",
            Self::Bool(_) => "types.Bool",
            Self::Int(_) => "types.Int",
            Self::Uint(_) => "types.Uint",
            Self::Double(_) => "types.Double",
            Self::String(_) => "types.String",
            Self::Bytes(_) => "types.Bytes",
            Self::List(list) if list.escaped => "*oidc.unescapeLister",
            Self::List(_) => "*types.baseList",
            Self::Map(map) if map.escaped => "*oidc.unescapeMapper",
            Self::Map(_) => "*types.baseMap",
            Self::Optional(_) => "*types.Optional",
            Self::Duration(_) => "types.Duration",
            Self::Timestamp(_) => "types.Timestamp",
            Self::Type(_) => "*types.Type",
            Self::Root(_) => "*lazy.MapValue",
            Self::Native(native) => native.go_type(),
            Self::Message(message) => message.kind.go_type(),
            Self::Failed(_) => "*types.Err",
        }
    }

    /// The value as error messages print it.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Uint(value) => value.to_string(),
            Self::Double(value) => number::text(*value),
            Self::String(value) => value.to_string(),
            other => other.type_name().to_owned(),
        }
    }

    /// Whether the type of the value is that of an index.
    pub(super) fn is_index(&self) -> bool {
        matches!(self, Self::Bool(_) | Self::Int(_) | Self::Uint(_) | Self::Double(_) | Self::String(_))
    }

    /// A value of a library.
    pub(super) fn of_native(value: impl Native) -> Self {
        Self::Native(Arc::new(value))
    }

    /// The value of a library, if it is of this type.
    pub(super) fn native<T: Native>(&self) -> Option<&T> {
        match self {
            Self::Native(native) => native.downcast(),
            _ => None,
        }
    }

    /// The number of elements or bytes.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::List(list) => list.items.len(),
            Self::Map(map) => map.entries.len(),
            _ => 1,
        }
    }
}

impl MessageKind {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Object(name) => name,
            Self::JsonPatch => JSON_PATCH,
        }
    }

    fn go_type(&self) -> &'static str {
        match self {
            Self::Object(_) => "*dynamic.ObjectVal",
            Self::JsonPatch => "*mutation.JSONPatchVal",
        }
    }
}

impl ListValue {
    /// The element that index selection finds.
    pub(super) fn get(&self, index: usize) -> Option<Datum> {
        self.items.get(index).map(|item| self.taken(item))
    }

    /// An element with the escaped mark.
    pub(super) fn taken(&self, item: &Datum) -> Datum {
        if self.escaped { item.clone().escaped() } else { item.clone() }
    }

    /// All elements for another list, with the escaped mark.
    pub(super) fn scattered(&self) -> impl Iterator<Item = Datum> + '_ {
        self.items.iter().map(|item| self.taken(item))
    }
}

impl MapValue {
    /// The value that selection finds, with unescaped keys.
    pub(super) fn find(&self, key: &Datum) -> Option<Datum> {
        if !self.escaped {
            return self.raw(key).cloned();
        }
        let found = match key {
            Datum::String(text) => match unescape(text) {
                Some(name) => self.entries.get(&MapKey::from(name.as_str())),
                None => self.raw(key),
            },
            _ => self.raw(key),
        };
        found.cloned().map(Datum::escaped)
    }

    /// The value of a literal key; a number finds an equal key of any numeric type.
    pub(super) fn raw(&self, key: &Datum) -> Option<&Datum> {
        MapKey::candidates(key).into_iter().flatten().find_map(|key| self.entries.get(&key))
    }
}

impl RootVariable {
    pub(super) fn find(&self, name: &str) -> Option<Datum> {
        self.fields.get(unescape(name)?.as_str()).cloned().map(Datum::escaped)
    }
}

impl From<&str> for MapKey {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl MapKey {
    pub(super) fn datum(&self) -> Datum {
        match self {
            Self::Null => Datum::Null,
            Self::Bool(value) => Datum::Bool(*value),
            Self::Double(key) => Datum::Double(key.number()),
            Self::Int(value) => Datum::Int(*value),
            Self::Uint(value) => Datum::Uint(*value),
            Self::String(value) => Datum::String(Arc::clone(value)),
        }
    }

    /// The key of a value in a map literal.
    pub(super) fn exact(value: &Datum) -> Option<Self> {
        Some(match value {
            Datum::Null => Self::Null,
            Datum::Bool(value) => Self::Bool(*value),
            Datum::Double(value) => Self::Double(DoubleKey::new(*value)),
            Datum::Int(value) => Self::Int(*value),
            Datum::Uint(value) => Self::Uint(*value),
            Datum::String(value) => Self::String(Arc::clone(value)),
            _ => return None,
        })
    }

    /// The key for a new entry: one of its own for each NaN, as no NaN equals another.
    pub(super) fn new_in(map: &BTreeMap<Self, Datum>, value: &Datum) -> Option<Self> {
        let key = Self::exact(value)?;
        if !key.is_nan() {
            return Some(key);
        }
        let nans = Self::Double(DoubleKey(*NANS.start()))..=Self::Double(DoubleKey(*NANS.end()));
        match map.range(nans).next_back() {
            Some((Self::Double(last), _)) => Some(Self::Double(DoubleKey(last.0.saturating_add(1)))),
            _ => Some(key),
        }
    }

    /// Whether no lookup finds the key.
    pub(super) fn is_nan(&self) -> bool {
        matches!(self, Self::Double(key) if key.number().is_nan())
    }

    /// The keys that are equal to a value.
    pub(super) fn candidates(value: &Datum) -> [Option<Self>; 3] {
        let exact = Self::exact(value);
        match value {
            Datum::Double(number) if number.is_nan() => [None, None, None],
            Datum::Int(number) => [exact, u64::try_from(*number).ok().map(Self::Uint), None],
            Datum::Uint(number) => [exact, i64::try_from(*number).ok().map(Self::Int), None],
            Datum::Double(number) => [
                exact,
                number::exact_int(*number).map(Self::Int),
                number::exact_uint(*number).map(Self::Uint),
            ],
            _ => [exact, None, None],
        }
    }
}

/// The reserved words of CEL; a field with such a name is written `__name__`.
pub(super) const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether a text is an identifier of CEL.
// kubernetes: pkg/apis/admissionregistration/validation/validation.go — isCELIdentifier
pub fn is_identifier(text: &str) -> bool {
    let mut letters = text.bytes();
    letters.next().is_some_and(|first| first == b'_' || first.is_ascii_alphabetic())
        && letters.all(|letter| letter == b'_' || letter.is_ascii_alphanumeric())
        && !RESERVED.contains(&text)
}

/// Reverts the escapes of Kubernetes; `None` for an invalid escape between double underscores.
// apiserver: pkg/cel/escaping.go — Unescape
pub(super) fn unescape(name: &str) -> Option<String> {
    let mut plain = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(start) = rest.find("__") {
        let (before, from) = rest.split_at(start);
        // An escape is `__name__`, without underscores in the name. The last two of more than two underscores open it.
        let run = from.len() - from.trim_start_matches('_').len();
        let (kept, after) = from.split_at(run);
        let word_length = after.find('_').unwrap_or(after.len());
        let (word, tail) = after.split_at(word_length);
        plain.push_str(before);
        let Some(tail) = tail.strip_prefix("__").filter(|_| !word.is_empty()) else {
            plain.push_str(kept);
            plain.push_str(word);
            rest = tail;
            continue;
        };
        plain.push_str(kept.get(2..).unwrap_or_default());
        match word {
            "underscores" => plain.push_str("__"),
            "dot" => plain.push('.'),
            "dash" => plain.push('-'),
            "slash" => plain.push('/'),
            reserved if RESERVED.contains(&reserved) && name.len() == reserved.len() + 4 => {
                plain.push_str(reserved);
            }
            _ => return None,
        }
        rest = tail;
    }
    plain.push_str(rest);
    Some(plain)
}

/// The name of a field in expressions; `None` if they cannot name it.
// apiserver: pkg/cel/escaping.go — Escape
pub(super) fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let is_known = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-' | '/');
    let escaped = || {
        let name = name.replace("__", "__underscores__");
        name.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
    };
    name.chars().all(is_known).then(escaped)
}
