//! Parses a YAML document into plain values and the line of every key.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Spanned};

/// A document with the lines of its keys.
#[derive(Debug)]
pub struct YamlDocument {
    /// The document as a plain value.
    pub value: Value,
    /// The lines of its keys.
    pub lines: KeyLines,
}

/// The line of each value by its path, such as `clusters[1].name`.
#[derive(Debug, Default)]
pub struct KeyLines(BTreeMap<String, u64>);

impl KeyLines {
    /// The line of a path, or of the nearest enclosing value.
    pub fn of(&self, mut path: &str) -> u64 {
        loop {
            match self.0.get(path) {
                Some(line) => return *line,
                None if path.is_empty() => return 1,
                None => path = path.rsplit_once(['.', '[']).map_or("", |(around, _)| around),
            }
        }
    }
}

/// The limit of a document's values; that of a manifest is larger, since one may list thousands of webhooks.
const MAX_NODES: usize = 100_000;
/// The depth of a configuration.
const MAX_DEPTH: usize = 24;
/// That of an object: a `CustomResourceDefinition` has the schema of its objects.
const MAX_OBJECT_DEPTH: usize = 128;
/// Enough for it also in a build that is not optimised.
const OBJECT_STACK: usize = 64 << 20;
/// The limit of a manifest's values.
pub const MAX_MANIFEST_NODES: usize = 2_000_000;

/// Parses one document. Limits depth, size and repetition, so that a malicious document fails early.
pub fn parse(text: &[u8]) -> Result<YamlDocument, String> {
    parse_bounded(text, MAX_NODES)
}

/// The value of a YAML or JSON document, with limits of depth and size.
pub fn value(text: &[u8]) -> Result<Value, String> {
    parse(text).map(|document| document.value)
}

/// As [`value`], as programs read that take files of any origin: of a repeated key the last value counts.
pub fn last_value(text: &[u8]) -> Result<Value, String> {
    parse_with(text, (MAX_NODES, MAX_DEPTH), DuplicateKeyPolicy::LastWins).map(|document| document.value)
}

/// The value of an object of the API, or of a list of them, which may be deeper than a configuration.
pub fn object(text: &[u8]) -> Result<Value, String> {
    let parse = || {
        let limits = (MAX_MANIFEST_NODES, MAX_OBJECT_DEPTH);
        parse_with(text, limits, DuplicateKeyPolicy::Error).map(|document| document.value)
    };
    // The parser is recursive.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(OBJECT_STACK).spawn_scoped(scope, parse);
        let parsed = thread.ok().and_then(|thread| thread.join().ok());
        parsed.unwrap_or_else(|| Err("it cannot be read now".to_owned()))
    })
}

/// As [`parse`], with another limit of values.
pub fn parse_bounded(text: &[u8], max_nodes: usize) -> Result<YamlDocument, String> {
    parse_with(text, (max_nodes, MAX_DEPTH), DuplicateKeyPolicy::Error)
}

fn parse_with(
    text: &[u8],
    (max_nodes, max_depth): (usize, usize),
    duplicate_keys: DuplicateKeyPolicy,
) -> Result<YamlDocument, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: max_depth, max_nodes: max_nodes, max_events: max_nodes.saturating_mul(3) },
        duplicate_keys: duplicate_keys,
        merge_keys: MergeKeyPolicy::Error,
        with_snippet: false,
    };
    let node: Spanned<YamlNode> =
        serde_saphyr::from_slice_with_options(text, options).map_err(|error| describe(&error))?;
    let mut lines = BTreeMap::new();
    let value = flatten(node, "", &mut lines);
    Ok(YamlDocument { value, lines: KeyLines(lines) })
}

fn describe(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    let line = |error: &Error| error.location().map_or(1, |place| place.line());
    match error.without_snippet() {
        // The expansion of an alias exceeded the budget.
        Error::AliasError { error: inner, .. } if matches!(**inner, Error::Budget { .. }) => describe(inner),
        budget @ Error::Budget { .. } => {
            format!("line {}: the document is too deep or too large", line(budget))
        }
        other => other.render_with_formatter(&serde_saphyr::UserMessageFormatter),
    }
}

fn flatten(node: Spanned<YamlNode>, path: &str, lines: &mut BTreeMap<String, u64>) -> Value {
    lines.insert(path.to_owned(), node.referenced.line());
    match node.value {
        YamlNode::Scalar(value) => value,
        YamlNode::List(items) => {
            let items = items.into_iter().enumerate();
            items.map(|(index, item)| flatten(item, &format!("{path}[{index}]"), lines)).collect()
        }
        YamlNode::Map(entries) => {
            let mut map = Map::new();
            for (key, line, item) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let item = flatten(item, &path, lines);
                // The line of the key, not of the beginning of its value.
                lines.insert(path, line);
                map.insert(key, item);
            }
            Value::Object(map)
        }
    }
}

enum YamlNode {
    Scalar(Value),
    List(Vec<Spanned<Self>>),
    Map(Vec<(String, u64, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlNodeVisitor)
    }
}

struct YamlNodeVisitor;

impl<'de> Visitor<'de> for YamlNodeVisitor {
    type Value = YamlNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<YamlNode, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(YamlNode::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlNode, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, item)) = map.next_entry::<Spanned<String>, _>()? {
            entries.push((key.value, key.referenced.line(), item));
        }
        Ok(YamlNode::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Go's parser reads, and YAML 1.2 does not permit: D-yaml-manifests.
    #[test]
    fn what_only_another_parser_reads_is_refused_with_its_line() {
        for (text, line) in [
            ("a:\n- b: \"x\n  y\"\n", "line 3"),
            ("a: &a {b: c}\nd: {<<: *a}\n", "line 2"),
            ("a: \"it\\'s\"\n", "line 1"),
        ] {
            let error = value(text.as_bytes()).unwrap_err();
            assert!(error.contains(line), "{text}: {error}");
        }
    }

    #[test]
    fn objects_may_be_deeper_than_configurations() {
        let nested = |depth: usize| format!("{}1{}", "{a: ".repeat(depth), "}".repeat(depth));
        assert!(value(nested(25).as_bytes()).unwrap_err().contains("too deep"));
        assert!(object(nested(100).as_bytes()).is_ok());
        assert!(object(nested(200).as_bytes()).unwrap_err().contains("too deep"));
    }
}
