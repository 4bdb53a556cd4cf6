//! A YAML document as plain values, and the line of every key in it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Spanned};

/// A document, and where everything in it is.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) value: Value,
    pub(super) lines: Lines,
}

/// The line of each value by its path, such as `clusters[1].name`.
#[derive(Debug)]
pub(super) struct Lines(BTreeMap<String, u64>);

impl Lines {
    /// The line of a path, or of the nearest value around it.
    pub(super) fn of(&self, mut path: &str) -> u64 {
        loop {
            match self.0.get(path) {
                Some(line) => return *line,
                // Of the document as a whole.
                None if path.is_empty() => return 1,
                None => path = path.rsplit_once(['.', '[']).map_or("", |(around, _)| around),
            }
        }
    }
}

/// Reads one document. Nothing in a configuration is deep or repeated; what is, is refused before it costs anything.
pub(super) fn parse(text: &[u8]) -> Result<Document, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: 16, max_nodes: 100_000, max_events: 300_000 },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        with_snippet: false,
    };
    let node: Spanned<Node> =
        serde_saphyr::from_slice_with_options(text, options).map_err(|error| in_words(&error))?;
    let mut lines = BTreeMap::new();
    let value = flatten(node, "", &mut lines);
    Ok(Document { value, lines: Lines(lines) })
}

fn in_words(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    let line = |error: &Error| error.location().map_or(1, |place| place.line());
    match error.without_snippet() {
        // Expanding an alias went too far.
        Error::AliasError { error: inner, .. } if matches!(**inner, Error::Budget { .. }) => in_words(inner),
        budget @ Error::Budget { .. } => {
            format!("line {}: the document is too deep or too large", line(budget))
        }
        other => other.render_with_formatter(&serde_saphyr::UserMessageFormatter),
    }
}

fn flatten(node: Spanned<Node>, path: &str, lines: &mut BTreeMap<String, u64>) -> Value {
    lines.insert(path.to_owned(), node.referenced.line());
    match node.value {
        Node::Scalar(value) => value,
        Node::List(items) => {
            let items = items.into_iter().enumerate();
            items.map(|(index, item)| flatten(item, &format!("{path}[{index}]"), lines)).collect()
        }
        Node::Map(entries) => {
            let mut map = Map::new();
            for (key, line, item) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let item = flatten(item, &path, lines);
                // Where the key is, not where its value begins.
                lines.insert(path, line);
                map.insert(key, item);
            }
            Value::Object(map)
        }
    }
}

enum Node {
    Scalar(Value),
    List(Vec<Spanned<Self>>),
    Map(Vec<(String, u64, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, item)) = map.next_entry::<Spanned<String>, _>()? {
            entries.push((key.value, key.referenced.line(), item));
        }
        Ok(Node::Map(entries))
    }
}
