//! The types of objects for expressions, by the schemas that an API server publishes.
//!
//! Follows kube-apiserver: `pkg/cel/common/schemas.go`, `SchemaDeclType`, and `pkg/cel/openapi/resolver`. There, a schema that does
//! not say what a value is makes no field, so that a valid expression about it is wrong. Here such a value is
//! [anything](DeclaredType::Anything): one without a type, an object without properties, and one that keeps unknown fields. A schema
//! that refers to itself is an empty object there, and is looked up here when an expression gets to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use crate::document::openapi::{AdditionalProperties, Items, Schema, value};
use crate::document::walk::{Sink, walk};
use crate::document::{Kinds, Texts, kinds};
use crate::errors::{MAX_SIZE, SchemaError, TOO_MANY_TYPES};

/// The format of values that are integers or strings.
// apimachinery: pkg/util/intstr/intstr.go — OpenAPISchemaFormat
const INT_OR_STRING: &str = "int-or-string";

/// The most references on the way to a type. Each is one to a named schema that is nothing but a reference, a list or a map.
const MAX_REFERENCES: usize = 32;

/// The types of the kinds of a group and version.
#[derive(Debug, Clone)]
pub struct Declarations(Arc<Document>);

#[derive(Debug)]
struct Document {
    named: Vec<Node>,
    kinds: Kinds,
    size: usize,
}

/// A type.
#[derive(Debug, Clone)]
pub enum DeclaredType {
    /// Any value.
    Anything,
    /// A boolean.
    Bool,
    /// An integer.
    Int,
    /// A number.
    Double,
    /// A string.
    String,
    /// A string of the format `byte`.
    Bytes,
    /// A string of the format `duration`.
    Duration,
    /// A string of the format `date` or `date-time`.
    Timestamp,
    /// A list.
    List(Box<Self>),
    /// A map of strings to values.
    Map(Box<Self>),
    /// An object.
    Object(DeclaredObject),
}

/// An object with its fields.
#[derive(Debug, Clone)]
pub struct DeclaredObject {
    document: Declarations,
    fields: Arc<Fields>,
    /// Whether it has an `apiVersion`, a `kind` and `metadata` whatever its schema says.
    is_resource: bool,
}

/// A schema, as far as it matters here.
#[derive(Debug, Clone)]
enum Node {
    Anything,
    Bool,
    Int,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    List(Box<Self>),
    Map(Box<Self>),
    Object(Arc<Fields>),
    /// An object that is an object of the API by itself.
    Resource(Arc<Fields>),
    /// A schema of the document by its number.
    Named(usize),
}

/// The properties of an object, sorted by name.
#[derive(Debug, Default)]
struct Fields(Box<[(Arc<str>, Node)]>);

impl Declarations {
    /// Reads an OpenAPI v3 document, within the same bounds as [`Schemas::read`](crate::Schemas::read).
    pub fn read(document: &[u8]) -> Result<Self, SchemaError> {
        let mut reader = Reader::default();
        walk(document, &mut reader)?;
        Ok(Self(Arc::new(reader.finish())))
    }

    /// The type of the objects of a kind. `None` if the document has no such kind.
    pub fn of(&self, group: &str, version: &str, kind: &str) -> Option<DeclaredType> {
        let key = [group, version, kind].map(Arc::<str>::from);
        let number = self.0.kinds.get(&key)?;
        Some(match self.resolve(&Node::Named(*number), 0) {
            DeclaredType::Object(object) => {
                DeclaredType::Object(DeclaredObject { is_resource: true, ..object })
            }
            other => other,
        })
    }

    /// The groups, versions and kinds, sorted.
    pub fn kinds(&self) -> impl Iterator<Item = [&str; 3]> {
        self.0.kinds.keys().map(|[group, version, kind]| [&**group, &**version, &**kind])
    }

    /// How many bytes of memory the types take, approximately.
    pub fn size(&self) -> usize {
        self.0.size
    }

    fn resolve(&self, node: &Node, references: usize) -> DeclaredType {
        let object = |fields: &Arc<Fields>, is_resource| {
            let (document, fields) = (self.clone(), Arc::clone(fields));
            DeclaredType::Object(DeclaredObject { document, fields, is_resource })
        };
        match node {
            Node::Anything => DeclaredType::Anything,
            Node::Bool => DeclaredType::Bool,
            Node::Int => DeclaredType::Int,
            Node::Double => DeclaredType::Double,
            Node::String => DeclaredType::String,
            Node::Bytes => DeclaredType::Bytes,
            Node::Duration => DeclaredType::Duration,
            Node::Timestamp => DeclaredType::Timestamp,
            Node::List(element) => DeclaredType::List(Box::new(self.resolve(element, references))),
            Node::Map(element) => DeclaredType::Map(Box::new(self.resolve(element, references))),
            Node::Object(fields) => object(fields, false),
            Node::Resource(fields) => object(fields, true),
            Node::Named(number) => match self.0.named.get(*number) {
                Some(named) if references < MAX_REFERENCES => self.resolve(named, references + 1),
                _ => DeclaredType::Anything,
            },
        }
    }
}

impl DeclaredObject {
    /// The type of a field.
    pub fn field(&self, name: &str) -> Option<DeclaredType> {
        let declared = || Some(self.document.resolve(self.fields.get(name)?, 0));
        if !self.is_resource {
            return declared();
        }
        // apiserver: pkg/cel/common/schemas.go — WithTypeAndObjectMeta
        match name {
            "apiVersion" | "kind" => Some(DeclaredType::String),
            "metadata" => match declared() {
                Some(DeclaredType::Object(metadata)) if metadata.has_names() => {
                    Some(DeclaredType::Object(metadata))
                }
                Some(DeclaredType::Anything) => Some(DeclaredType::Anything),
                _ => Some(DeclaredType::Object(Self {
                    document: self.document.clone(),
                    fields: Arc::new(Fields::of_names()),
                    is_resource: false,
                })),
            },
            _ => declared(),
        }
    }

    /// The names of its fields, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.fields.0.iter().map(|(name, _)| name.to_string()).collect();
        if self.is_resource {
            names.extend(["apiVersion", "kind", "metadata"].map(str::to_owned));
            names.sort();
            names.dedup();
        }
        names
    }

    /// Whether this is the metadata of an object.
    fn has_names(&self) -> bool {
        Fields::NAMES.iter().all(|name| matches!(self.field(name), Some(DeclaredType::String)))
    }
}

impl Fields {
    /// The metadata that every object has.
    const NAMES: [&'static str; 2] = ["generateName", "name"];

    fn of_names() -> Self {
        Self(Self::NAMES.map(|name| (name.into(), Node::String)).into())
    }

    fn get(&self, name: &str) -> Option<&Node> {
        let at = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        self.0.get(at).map(|(_, node)| node)
    }
}

/// Turns schemas into types.
#[derive(Debug, Default)]
struct Reader {
    named: Vec<Option<Node>>,
    numbers: HashMap<Arc<str>, usize>,
    texts: Texts,
    kinds: BTreeMap<[Arc<str>; 3], usize>,
    /// Bytes of memory, without the texts.
    size: usize,
}

impl Sink for Reader {
    fn add(&mut self, name: &str, schema: Schema) -> Result<(), String> {
        let number = self.number(name);
        for kind in kinds(value(schema.kinds.as_deref()).as_ref()) {
            let kind = kind.map(|part| self.texts.shared(part));
            self.kinds.insert(kind, number);
        }
        let node = self.node(&schema);
        if self.size > MAX_SIZE {
            return Err(TOO_MANY_TYPES.to_owned());
        }
        match self.named.get_mut(number) {
            Some(named) if named.is_none() => *named = Some(node),
            _ => return Err(format!("duplicate schema {name}")),
        }
        Ok(())
    }
}

impl Reader {
    /// The number of a schema of the document, read or not yet.
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let name = self.texts.shared(name);
        let number = self.named.len();
        self.named.push(None);
        self.numbers.insert(name, number);
        number
    }

    fn node(&mut self, schema: &Schema) -> Node {
        if let Some(name) = schema.refers_to() {
            return Node::Named(self.number(name));
        }
        let format = schema.format.as_deref().unwrap_or_default();
        let keeps_unknown_fields =
            value(schema.preserve_unknown_fields.as_deref()) == Some(Value::Bool(true));
        if schema.int_or_string || format == INT_OR_STRING || keeps_unknown_fields {
            return Node::Anything;
        }
        match (schema.kind.as_deref().unwrap_or_default(), format) {
            ("array", _) => {
                let element = match &schema.items {
                    Some(Items::One(items)) => self.node(items),
                    Some(Items::Other) | None => Node::Anything,
                };
                self.size += size_of::<Node>();
                Node::List(Box::new(element))
            }
            ("object", _) => self.object(schema),
            ("string", "byte") => Node::Bytes,
            ("string", "duration") => Node::Duration,
            ("string", "date" | "date-time") => Node::Timestamp,
            ("string", _) => Node::String,
            ("boolean", _) => Node::Bool,
            ("number", _) => Node::Double,
            ("integer", _) => Node::Int,
            _ => Node::Anything,
        }
    }

    fn object(&mut self, schema: &Schema) -> Node {
        match &schema.additional_properties {
            Some(AdditionalProperties::Schema(element)) => {
                self.size += size_of::<Node>();
                return Node::Map(Box::new(self.node(element)));
            }
            Some(AdditionalProperties::Allowed(true)) => return Node::Anything,
            Some(AdditionalProperties::Allowed(false)) | None => {}
        }
        let properties = schema.properties.as_ref().map_or(&[][..], |properties| &properties.0);
        if properties.is_empty() {
            return Node::Anything;
        }
        let fields: Box<[(Arc<str>, Node)]> =
            properties.iter().map(|(name, schema)| (self.texts.shared(name), self.node(schema))).collect();
        // A shared value has two counters.
        self.size += size_of_val(&*fields) + size_of::<Fields>() + 2 * size_of::<usize>();
        let fields = Arc::new(Fields(fields));
        if schema.embedded_resource { Node::Resource(fields) } else { Node::Object(fields) }
    }

    fn finish(self) -> Document {
        // A tree of kinds takes about twice the size of its entries.
        let size = size_of::<Document>()
            + self.size
            + self.texts.size()
            + self.named.len() * size_of::<Node>()
            + self.kinds.len() * 2 * size_of::<([Arc<str>; 3], usize)>();
        let named = self.named.into_iter().map(|node| node.unwrap_or(Node::Anything)).collect();
        Document { named, kinds: self.kinds, size }
    }
}

#[cfg(test)]
mod tests;
