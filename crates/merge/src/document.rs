//! Reads a document: the schemas of OpenAPI v3, turned into types.
//!
//! Follows kube-openapi: `pkg/schemaconv/openapi.go` and the parts of `smd.go` that it uses. What the conversion does not look at,
//! such as descriptions, patterns and enumerations, is skipped while it is read, and not checked.

pub(crate) mod openapi;
pub(crate) mod walk;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use crate::errors::{MAX_SIZE, SchemaError, TOO_MANY_TYPES};
use crate::schema::{Atom, Field, List, Map, NamedType, Relationship, Scalar, Size as _, TypeRef, Types};
use crate::text::{Plain, Syntax};

use self::openapi::{AdditionalProperties, Items, MAX_DEFAULT, Schema, value};
use self::walk::{Sink, walk};

/// The most bytes of problems of a document that are told.
const MAX_PROBLEMS: usize = 64 << 10;

/// The most keys that identify an element of a list. Real lists have at most three; each element costs this many look-ups.
const MAX_KEYS: usize = 64;

/// Types that are not what their schemas say.
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";

/// Anything, as one value.
const UNTYPED: &str = "__untyped_atomic_";
/// Anything; its maps are merged, its lists are not.
const DEDUCED: &str = "__untyped_deduced_";

/// What was read.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) types: Types,
    pub(crate) kinds: Kinds,
    /// Bytes in memory, approximately.
    pub(crate) size: usize,
}

/// The numbers of types, by group, version and kind.
pub(crate) type Kinds = BTreeMap<[Arc<str>; 3], usize>;

pub(crate) fn read(document: &[u8]) -> Result<Contents, SchemaError> {
    let mut reader = Reader::new();
    walk(document, &mut reader)?;
    reader.finish()
}

impl Sink for Reader {
    fn add(&mut self, name: &str, schema: Schema) -> Result<(), String> {
        self.convert(name, &schema)
    }
}

/// Texts that occur again and again, each once.
#[derive(Debug, Default)]
pub(crate) struct Texts(HashSet<Arc<str>>);

impl Texts {
    /// The text, as it was seen first.
    pub(crate) fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.0.insert(text.clone());
        text
    }

    /// Bytes of memory, approximately: a shared text has two counters.
    pub(crate) fn size(&self) -> usize {
        self.0.iter().map(|text| text.len() + 2 * size_of::<usize>()).sum()
    }
}

/// Where a schema is.
#[derive(Debug, Clone, Copy)]
struct At<'a> {
    name: &'a str,
    depth: usize,
    /// Whether this schema or one around it keeps fields that it does not declare.
    keeps_unknown_fields: bool,
}

/// Turns schemas into types.
struct Reader {
    types: Types,
    numbers: HashMap<Arc<str>, usize>,
    texts: Texts,
    kinds: Kinds,
    problems: Vec<String>,
    problem_bytes: usize,
    untyped: usize,
    deduced: usize,
    /// Types without a name that many schemas have: one for each kind of scalar.
    scalars: [(Scalar, usize); 4],
    /// Bytes of the types so far, without the texts.
    size: usize,
}

impl Reader {
    fn new() -> Self {
        let scalars = [Scalar::Numeric, Scalar::String, Scalar::Boolean, Scalar::Untyped];
        let mut reader = Self {
            types: Types::default(),
            numbers: HashMap::new(),
            texts: Texts::default(),
            kinds: Kinds::new(),
            problems: Vec::new(),
            problem_bytes: 0,
            untyped: 0,
            deduced: 0,
            scalars: [(Scalar::Untyped, 0); 4],
            size: 0,
        };
        for (number, scalar) in scalars.into_iter().enumerate() {
            let atom = Some(Atom { scalar: Some(scalar), ..Atom::default() });
            reader.types.0.push(NamedType { name: "inlined type".into(), atom });
            if let Some(common) = reader.scalars.get_mut(number) {
                *common = (scalar, number);
            }
        }
        reader.untyped = reader.number(UNTYPED);
        reader.deduced = reader.number(DEDUCED);
        reader
    }

    /// The number of a named type, defined or not yet.
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let name = self.texts.shared(name);
        let number = self.types.0.len();
        self.types.0.push(NamedType { name: name.clone(), atom: None });
        self.numbers.insert(name, number);
        number
    }

    fn define(&mut self, number: usize, atom: Atom) {
        if let Some(named) = self.types.0.get_mut(number) {
            named.atom = Some(atom);
        }
    }

    fn report(&mut self, at: At<'_>, problem: &str) {
        if self.problem_bytes < MAX_PROBLEMS {
            let problem = format!("{}{}: {problem}", "inlined in ".repeat(at.depth), at.name);
            self.problem_bytes += problem.len();
            self.problems.push(problem);
        }
    }

    /// Adds a schema of the document.
    fn convert(&mut self, name: &str, schema: &Schema) -> Result<(), String> {
        let number = self.number(name);
        if self.types.0.get(number).is_some_and(|named| named.atom.is_some()) {
            return Err(format!("duplicate schema {name}"));
        }
        for kind in kinds(value(schema.kinds.as_deref()).as_ref()) {
            let kind = kind.map(|part| self.texts.shared(part));
            self.kinds.insert(kind, number);
        }
        // A schema that is only a reference is no type.
        if !schema.reference().is_empty() {
            return Ok(());
        }
        let atom = match name {
            QUANTITY => Atom { scalar: Some(Scalar::Untyped), ..Atom::default() },
            RAW_EXTENSION => self.anything(self.untyped, Relationship::Atomic),
            _ => self.atom(schema, At { name, depth: 0, keeps_unknown_fields: false }),
        };
        self.size += size_of::<NamedType>() + atom.size();
        if self.size > MAX_SIZE {
            return Err(TOO_MANY_TYPES.to_owned());
        }
        self.define(number, atom);
        Ok(())
    }

    fn finish(mut self) -> Result<Contents, SchemaError> {
        if !self.problems.is_empty() {
            return Err(SchemaError::NotStructural(self.problems.join("\n")));
        }
        let untyped = self.anything(self.untyped, Relationship::Atomic);
        self.define(self.untyped, untyped);
        let deduced = self.anything(self.deduced, Relationship::Separable);
        self.define(self.deduced, deduced);
        self.types.0.shrink_to_fit();
        let types = self.types.0.iter().map(|named| named.atom.as_ref().map_or(0, Atom::size));
        // A tree of kinds takes about twice the size of its entries.
        let size = types.sum::<usize>()
            + size_of_val(&*self.types.0)
            + self.texts.size()
            + self.kinds.len() * 2 * size_of::<([Arc<str>; 3], usize)>();
        Ok(Contents { types: self.types, kinds: self.kinds, size })
    }

    /// A type for any value, whose maps have values of this type.
    fn anything(&self, value: usize, relationship: Relationship) -> Atom {
        let (element, keys) = (TypeRef::Named(self.untyped, None), Box::default());
        Atom {
            scalar: Some(Scalar::Untyped),
            list: Some(Box::new(List { element, relationship: Relationship::Atomic, keys })),
            map: Some(Box::new(Map {
                fields: Box::default(),
                element: TypeRef::Named(value, None),
                relationship,
            })),
        }
    }

    fn atom(&mut self, schema: &Schema, mut at: At<'_>) -> Atom {
        if value(schema.preserve_unknown_fields.as_deref()) == Some(Value::Bool(true)) {
            at.keeps_unknown_fields = true;
        }
        match schema.kind.as_deref().unwrap_or_default() {
            "" => Atom {
                scalar: Some(Scalar::Untyped),
                list: Some(Box::new(self.list(schema, at))),
                map: Some(Box::new(self.map(schema, at))),
            },
            "object" => Atom { map: Some(Box::new(self.map(schema, at))), ..Atom::default() },
            "array" => Atom { list: Some(Box::new(self.list(schema, at))), ..Atom::default() },
            other => {
                let scalar = scalar(other, schema.format.as_deref().unwrap_or_default());
                if scalar.is_none() {
                    self.report(at, &format!("unrecognized type: '{other}'"));
                }
                Atom { scalar, ..Atom::default() }
            }
        }
    }

    /// The type of a schema in another one.
    fn type_ref(&mut self, schema: &Schema, at: At<'_>) -> TypeRef {
        if let Some(name) = schema.type_name() {
            let relationship = self.map_relationship(schema, at);
            return TypeRef::Named(self.number(name), relationship);
        }
        if schema.says_nothing() {
            return TypeRef::Named(self.deduced, None);
        }
        let atom = self.atom(schema, At { depth: at.depth + 1, ..at });
        if let Atom { scalar: Some(scalar), list: None, map: None } = atom
            && let Some((_, number)) = self.scalars.iter().find(|(common, _)| *common == scalar)
        {
            return TypeRef::Named(*number, None);
        }
        TypeRef::Inlined(Box::new(atom))
    }

    fn map(&mut self, schema: &Schema, at: At<'_>) -> Map {
        let properties = schema.properties.as_ref().map_or(&[][..], |properties| &properties.0);
        let fields: Vec<Field> = properties
            .iter()
            .map(|(name, schema)| Field {
                name: self.texts.shared(name),
                kind: self.type_ref(schema, at),
                default: value(schema.default.as_deref())
                    .filter(|default| !default.is_null() && default.size() <= MAX_DEFAULT)
                    .map(Box::new),
            })
            .collect();
        let element = match &schema.additional_properties {
            Some(AdditionalProperties::Schema(schema)) => self.type_ref(schema, at),
            Some(AdditionalProperties::Allowed(true)) => TypeRef::Named(self.deduced, None),
            None if at.keeps_unknown_fields || fields.is_empty() => TypeRef::Named(self.deduced, None),
            Some(AdditionalProperties::Allowed(false)) | None => TypeRef::Nothing,
        };
        let relationship = self.map_relationship(schema, at).unwrap_or(Relationship::Separable);
        Map { fields: fields.into(), element, relationship }
    }

    fn map_relationship(&mut self, schema: &Schema, at: At<'_>) -> Option<Relationship> {
        match value(schema.map_type.as_deref())? {
            Value::String(kind) if kind == "atomic" => Some(Relationship::Atomic),
            Value::String(kind) if kind == "granular" => Some(Relationship::Separable),
            other => {
                self.report(at, &format!("unknown map type {}", Plain(&other)));
                None
            }
        }
    }

    fn list(&mut self, schema: &Schema, at: At<'_>) -> List {
        let (relationship, keys) = match list_relationship(schema) {
            Ok((_, keys)) if keys.len() > MAX_KEYS => {
                self.report(at, &format!("more than {MAX_KEYS} map keys"));
                (Relationship::Atomic, Vec::new())
            }
            Ok(known) => known,
            Err(problem) => {
                self.report(at, &problem);
                (Relationship::Atomic, Vec::new())
            }
        };
        let keys = keys.iter().map(|key| self.texts.shared(key)).collect();
        let element = match &schema.items {
            Some(Items::One(schema)) => self.type_ref(schema, at),
            Some(Items::Other) => {
                self.report(at, "structural schema arrays must have exactly one member subtype");
                TypeRef::Nothing
            }
            None => {
                if schema.kind.as_deref().is_some_and(|kind| !kind.is_empty()) {
                    self.report(at, "`items` must be specified on arrays");
                }
                TypeRef::Named(self.untyped, None)
            }
        };
        List { element, relationship, keys }
    }
}

/// What a scalar of OpenAPI may be.
fn scalar(kind: &str, format: &str) -> Option<Scalar> {
    match (kind, format) {
        ("integer" | "number", _) => Some(Scalar::Numeric),
        ("boolean", _) => Some(Scalar::Boolean),
        ("string", "" | "byte") => Some(Scalar::String),
        ("string", _) => Some(Scalar::Untyped),
        _ => None,
    }
}

/// How the elements of a list relate, and the keys that identify them.
fn list_relationship(schema: &Schema) -> Result<(Relationship, Vec<String>), String> {
    if let Some(kind) = value(schema.list_type.as_deref()) {
        return match kind.as_str() {
            Some("atomic") => Ok((Relationship::Atomic, Vec::new())),
            Some("set") => Ok((Relationship::Associative, Vec::new())),
            Some("map") => match value(schema.list_map_keys.as_deref()) {
                None => Err("missing map keys".to_owned()),
                Some(Value::Array(keys)) => {
                    let keys = keys.iter().filter_map(Value::as_str).map(str::to_owned);
                    Ok((Relationship::Associative, keys.collect()))
                }
                Some(other) => Err(uninterpreted("map keys", &other)),
            },
            _ => Err(format!("unknown list type {}", Plain(&kind))),
        };
    }
    let Some(strategy) = value(schema.patch_strategy.as_deref()) else {
        return Ok((Relationship::Atomic, Vec::new()));
    };
    match strategy.as_str() {
        Some("merge" | "merge,retainKeys") => match value(schema.patch_merge_key.as_deref()) {
            None => Ok((Relationship::Associative, Vec::new())),
            Some(Value::String(key)) => Ok((Relationship::Associative, vec![key])),
            Some(other) => Err(uninterpreted("merge key", &other)),
        },
        Some("retainKeys") => Ok((Relationship::Atomic, Vec::new())),
        _ => Err(format!("unknown patch strategy {}", Plain(&strategy))),
    }
}

fn uninterpreted(what: &str, value: &Value) -> String {
    match value {
        Value::Null => format!("uninterpreted {what}: <nil>"),
        _ => format!("uninterpreted {what}: {}", Syntax(value)),
    }
}

/// The groups, versions and kinds that an extension names.
pub(crate) fn kinds(extension: Option<&Value>) -> impl Iterator<Item = [&str; 3]> {
    let listed = extension.and_then(Value::as_array).into_iter().flatten();
    let kinds = listed.filter_map(|entry| {
        let part = |name| entry.get(name)?.as_str();
        Some([part("group")?, part("version")?, part("kind")?])
    });
    kinds.filter(|[.., kind]| !kind.is_empty())
}
