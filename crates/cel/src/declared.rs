//! Types that are declared outside of this crate: those of an object, by the schema that an API server publishes.

use std::fmt;
use std::sync::Arc;

/// A declared type.
#[derive(Debug, Clone)]
pub enum Declared {
    /// Any value: no expression is wrong about it.
    Anything,
    /// A boolean.
    Bool,
    /// An integer.
    Int,
    /// A number.
    Double,
    /// A string.
    String,
    /// A string that expressions see as bytes.
    Bytes,
    /// A string that expressions see as a duration.
    Duration,
    /// A string that expressions see as a timestamp.
    Timestamp,
    /// A list of such elements.
    List(Box<Self>),
    /// A map of strings to such values.
    Map(Box<Self>),
    /// An object.
    Object(Arc<dyn ObjectFields>),
}

/// The fields of an object. A type may have a field of its own type, so that they are only asked for when an expression selects one.
pub trait ObjectFields: fmt::Debug + Send + Sync {
    /// The type of a field, by the name that it has in JSON.
    fn field(&self, name: &str) -> Option<Declared>;

    /// The names of the fields, in JSON.
    fn names(&self) -> Vec<String>;
}
