//! Types as structured-merge-diff has them: what kinds of values a type allows, and how the elements of its lists and maps relate.
//!
//! A named type is known by its number, so circles of references cost nothing; it is looked up when a value reaches it.

use std::sync::Arc;

use serde_json::Value;

/// What a scalar may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scalar {
    Numeric,
    String,
    Boolean,
    Untyped,
}

/// How the elements of a list or map relate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Relationship {
    /// They are one value.
    Atomic,
    /// Of lists alone: each has its own identity, which is its value or that of its keys.
    Associative,
    /// Each stands for itself.
    Separable,
}

/// The kinds of values that a type allows: one to three of them.
#[derive(Debug, Default)]
pub(crate) struct Atom {
    pub(crate) scalar: Option<Scalar>,
    pub(crate) list: Option<Box<List>>,
    pub(crate) map: Option<Box<Map>>,
}

#[derive(Debug)]
pub(crate) struct List {
    pub(crate) element: TypeRef,
    pub(crate) relationship: Relationship,
    pub(crate) keys: Box<[Arc<str>]>,
}

#[derive(Debug)]
pub(crate) struct Map {
    /// Sorted by name.
    pub(crate) fields: Box<[Field]>,
    /// The type of other fields; [`TypeRef::Nothing`] if there may be none.
    pub(crate) element: TypeRef,
    pub(crate) relationship: Relationship,
}

impl Map {
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        let at = self.fields.binary_search_by(|field| (*field.name).cmp(name)).ok()?;
        self.fields.get(at)
    }

    /// The type of a field, declared or not.
    pub(crate) fn type_of(&self, name: &str) -> &TypeRef {
        self.field(name).map_or(&self.element, |field| &field.kind)
    }
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: Arc<str>,
    pub(crate) kind: TypeRef,
    /// What identifies an element of a list that lacks this key.
    pub(crate) default: Option<Box<Value>>,
}

#[derive(Debug)]
pub(crate) enum TypeRef {
    Nothing,
    Inlined(Box<Atom>),
    /// A number of [`Types`], and the relationship that this use of the type sets.
    Named(usize, Option<Relationship>),
}

/// The named types.
#[derive(Debug, Default)]
pub(crate) struct Types(pub(crate) Vec<NamedType>);

/// A type that is referred to, and what it is if the document says so.
#[derive(Debug)]
pub(crate) struct NamedType {
    pub(crate) name: Arc<str>,
    pub(crate) atom: Option<Atom>,
}

/// A type where it is used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Resolved<'a> {
    pub(crate) scalar: Option<Scalar>,
    pub(crate) list: Option<(&'a List, Relationship)>,
    pub(crate) map: Option<(&'a Map, Relationship)>,
}

impl Types {
    /// The name of a type, for messages.
    pub(crate) fn name(&self, kind: &TypeRef) -> Option<&str> {
        match kind {
            TypeRef::Named(number, _) => Some(&self.0.get(*number)?.name),
            TypeRef::Nothing | TypeRef::Inlined(_) => None,
        }
    }

    /// What a type allows; `None` if the document has no such type.
    // structured-merge-diff: schema/elements.go, Resolve: a use of a type changes the relationship of its map, else of its list
    pub(crate) fn resolve<'a>(&'a self, kind: &'a TypeRef) -> Option<Resolved<'a>> {
        let (atom, changed) = match kind {
            TypeRef::Nothing => return Some(Resolved::default()),
            TypeRef::Inlined(atom) => (&**atom, None),
            TypeRef::Named(number, changed) => (self.0.get(*number)?.atom.as_ref()?, *changed),
        };
        let mut resolved = Resolved {
            scalar: atom.scalar,
            list: atom.list.as_deref().map(|list| (list, list.relationship)),
            map: atom.map.as_deref().map(|map| (map, map.relationship)),
        };
        if let Some(changed) = changed {
            match (&mut resolved.map, &mut resolved.list) {
                (Some((_, relationship)), _) | (None, Some((_, relationship))) => *relationship = changed,
                (None, None) => return None,
            }
        }
        Some(resolved)
    }
}

impl Resolved<'_> {
    /// Only the kind of the value, if the type allows it; else all kinds, and what follows will find the value wrong.
    // structured-merge-diff: typed/helpers.go, deduceAtom
    pub(crate) fn for_value(self, value: &Value) -> Self {
        match value {
            Value::Array(_) if self.list.is_some() => Self { list: self.list, ..Self::default() },
            Value::Object(_) if self.map.is_some() => Self { map: self.map, ..Self::default() },
            Value::Bool(_) | Value::Number(_) | Value::String(_) if self.scalar.is_some() => {
                Self { scalar: self.scalar, ..Self::default() }
            }
            _ => self,
        }
    }

    /// Whether two kinds of one type are the same.
    pub(crate) fn is_same_kind(self, other: Self) -> bool {
        let kinds = |kind: Self| (kind.scalar.is_some(), kind.list.is_some(), kind.map.is_some());
        kinds(self) == kinds(other)
    }
}

/// Bytes on the heap, approximately.
pub(crate) trait Size {
    fn size(&self) -> usize;
}

impl Size for Atom {
    fn size(&self) -> usize {
        let list = self.list.as_deref().map_or(0, |list| size_of::<List>() + list.size());
        list + self.map.as_deref().map_or(0, |map| size_of::<Map>() + map.size())
    }
}

impl Size for List {
    fn size(&self) -> usize {
        size_of_val(&*self.keys) + self.element.size()
    }
}

impl Size for Map {
    fn size(&self) -> usize {
        let fields = self.fields.iter().map(|field| {
            let default = field.default.as_deref();
            field.kind.size() + default.map_or(0, |default| size_of::<Value>() + default.size())
        });
        size_of_val(&*self.fields) + fields.sum::<usize>() + self.element.size()
    }
}

impl Size for TypeRef {
    fn size(&self) -> usize {
        match self {
            Self::Nothing | Self::Named(..) => 0,
            Self::Inlined(atom) => size_of::<Atom>() + atom.size(),
        }
    }
}

impl Size for Value {
    fn size(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) | Self::Number(_) => 0,
            Self::String(text) => text.capacity(),
            Self::Array(items) => {
                items.capacity() * size_of::<Self>() + items.iter().map(Self::size).sum::<usize>()
            }
            // An entry of a tree of them takes about twice its size.
            Self::Object(fields) => fields
                .iter()
                .map(|(name, value)| {
                    name.capacity() + 2 * (size_of::<String>() + size_of::<Self>()) + value.size()
                })
                .sum(),
        }
    }
}
