//! What is wrong, as kube-apiserver words it, and within bounds: an object has as many faults as fields.

use std::fmt;

/// The most bytes of faults that are kept beside the first; the rest is counted.
const MAX_BYTES: usize = 1 << 20;

/// The deepest nesting of values that are merged. The reference has no bound but that of Go for JSON, 10,000 levels: a caller that may ignore
/// other errors must not ignore [`MergeError::TooDeep`].
pub const MAX_DEPTH: usize = 256;

/// The most memory that the types of a document take, approximately, in bytes. Those of Kubernetes' core take 2 MiB.
pub const MAX_SIZE: usize = 16 << 20;
pub(crate) const TOO_MANY_TYPES: &str = "the types of the OpenAPI document take more than 16 MiB";

/// The document is none that values can be merged by.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// It is not JSON, or not an OpenAPI v3 document.
    #[error("failed to unmarshal schema: {0}")]
    Syntax(#[from] serde_json::Error),
    /// It has more members than are read.
    #[error("the OpenAPI document has more than 250,000 members")]
    TooLarge,
    /// A schema in it is not structural.
    #[error("failed to create type converter: failed to convert models to schema: {0}")]
    NotStructural(String),
}

/// The patch cannot be merged into the object. All but the last are kube-apiserver's texts.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The patch is of another group, version and kind than the object.
    #[error("patch ({patch}) and original object ({original}) are not of the same gvk")]
    OtherKind {
        /// The group, version and kind of the patch.
        patch: String,
        /// Those of the object.
        original: String,
    },
    /// The patch does not conform to its schema.
    #[error("failed to convert patch object to typed object: {0}")]
    Patch(Faults),
    /// The patch sets an atomic list or map: it would remove what it leaves out.
    #[error("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {0}")]
    Atomic(String),
    /// The object does not conform to its schema.
    #[error("failed to convert original object to typed object: {0}")]
    Original(Faults),
    /// The two do not go together.
    #[error("failed to merge patch: {0}")]
    Merge(Faults),
    /// The result is no object.
    #[error("failed to convert typed object to object: failed to convert value to unstructured for type {0}")]
    NoObject(&'static str),
    /// A value is nested deeper than [`MAX_DEPTH`].
    #[error("the {0} is nested too deeply")]
    TooDeep(&'static str),
}

/// A fault of a value, and where it is.
#[derive(Debug, Clone, PartialEq)]
struct Fault {
    path: String,
    message: String,
}

/// Faults, in the order in which they are found: fields by name, elements of lists as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Faults {
    found: Vec<Fault>,
    bytes: usize,
    /// How many were left out.
    omitted: usize,
}

impl Faults {
    pub(crate) const NONE: Self = Self { found: Vec::new(), bytes: 0, omitted: 0 };

    /// One fault of the value itself.
    pub(crate) fn one(message: String) -> Self {
        Self { bytes: message.len(), found: vec![Fault { path: String::new(), message }], omitted: 0 }
    }

    /// There is no schema for a group, version and kind.
    pub(crate) fn no_type(kind: &dyn fmt::Display) -> Self {
        Self::one(format!("no corresponding type for {kind}"))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Adds the faults of another value.
    pub(crate) fn append(&mut self, other: Self) {
        self.found.extend(other.found);
        self.bytes += other.bytes;
        self.omitted += other.omitted;
        self.shorten(0);
    }

    /// Says that the value is found at this element of a path.
    pub(crate) fn within(mut self, element: &dyn fmt::Display) -> Self {
        if self.is_empty() {
            return self;
        }
        let element = element.to_string();
        self.shorten(element.len());
        for fault in &mut self.found {
            fault.path.insert_str(0, &element);
        }
        self.bytes += element.len() * self.found.len();
        self
    }

    /// Leaves the last ones out until there is room for so many bytes more in each of the others.
    fn shorten(&mut self, more: usize) {
        while self.found.len() > 1 && self.bytes + more * self.found.len() > MAX_BYTES {
            let last = self.found.pop();
            self.bytes -= last.map_or(0, |last| last.path.len() + last.message.len());
            self.omitted += 1;
        }
    }
}

// structured-merge-diff: typed/helpers.go, ValidationErrors.Error
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ([only], 0) = (&*self.found, self.omitted) {
            return write!(f, "{only}");
        }
        f.write_str("errors:")?;
        self.found.iter().try_for_each(|fault| write!(f, "\n  {fault}"))?;
        match self.omitted {
            0 => Ok(()),
            omitted => write!(f, "\n  and {omitted} more"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.path {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}
