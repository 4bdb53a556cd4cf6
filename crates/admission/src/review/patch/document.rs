//! A JSON document while it is patched. Values are parsed when a path leads through them, and keep their text.
// gopkg.in/evanphx/json-patch.v4: patch.go, lazyNode, partialDoc and partialArray

use std::collections::BTreeMap;

use bytes::Bytes;
use portcullis_go::json::raw::{self as json, JsonType};
use portcullis_go::number::atoi;

use super::{MAX_COPIED_SIZE, MAX_PATCHED_SIZE, PANIC};

/// The nesting of values that are written or compared. It is more than that of objects, so that only patches whose result is
/// refused anyway fail by it.
const MAX_NESTING: usize = 2 * json::MAX_OBJECT_NESTING;

const TOO_DEEP: &str = "exceeded max depth";

/// A value of a document: `None` for its `null`s.
pub(super) type Slot = Option<NodeId>;

/// The place of a value in the list of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeId(usize);

#[derive(Debug)]
struct Node {
    /// The text that it was read from; `None` for the root, and for a `null` of a patch.
    raw: Option<Bytes>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// Not yet parsed.
    Raw,
    Object(BTreeMap<String, Slot>),
    /// A copied `null` that is used as an object: it has no members, and Go panics when one is set.
    NullObject,
    Array(Vec<Slot>),
}

static NULL_NODE: Node = Node { raw: None, content: Content::Raw };

/// A value that is compared: of the document, or of the patch, where `None` is its `null`.
#[derive(Debug, Clone)]
pub(super) enum Compared {
    Node(NodeId),
    Text(Option<Bytes>),
}

/// A value that is compared, one level deep.
enum Shape {
    Scalar(Option<Bytes>),
    Object(BTreeMap<String, Option<Compared>>),
    Array(Vec<Option<Compared>>),
}

/// A document that is patched. Its values are in one list, so that dropping a deep one needs no recursion.
#[derive(Debug)]
pub(super) struct Document {
    nodes: Vec<Node>,
    pub(super) root: NodeId,
    copied: usize,
}

impl Document {
    pub(super) fn new(text: &Bytes) -> Result<Self, String> {
        json::check(text)?;
        let mut document = Self { nodes: Vec::new(), root: NodeId(0), copied: 0 };
        match JsonType::of(text) {
            JsonType::Null => document.root = document.insert(None, Content::NullObject),
            _ if document.set_root(text) => {}
            other => {
                let other = other.name();
                return Err(format!(
                    "json: cannot unmarshal {other} into Go value of type jsonpatch.partialDoc"
                ));
            }
        }
        Ok(document)
    }

    /// Replaces the whole document, by an object or a list; false for other values.
    pub(super) fn set_root(&mut self, text: &Bytes) -> bool {
        let Some(content) = self.parse(text) else { return false };
        self.root = self.insert(None, content);
        true
    }

    /// The value of an operation.
    pub(super) fn value(&mut self, value: Option<&Option<Bytes>>) -> Slot {
        value.map(|value| self.insert(value.clone(), Content::Raw))
    }

    fn insert(&mut self, raw: Option<Bytes>, content: Content) -> NodeId {
        self.nodes.push(Node { raw, content });
        NodeId(self.nodes.len() - 1)
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(id.0).unwrap_or(&NULL_NODE)
    }

    fn content_mut(&mut self, id: NodeId) -> Option<&mut Content> {
        self.nodes.get_mut(id.0).map(|node| &mut node.content)
    }

    fn parse(&mut self, text: &Bytes) -> Option<Content> {
        let mut slot = |range| {
            let text: Bytes = text.slice(range);
            (JsonType::of(&text) != JsonType::Null).then(|| self.insert(Some(text), Content::Raw))
        };
        match JsonType::of(text) {
            JsonType::Object => {
                let members = json::members(text).into_iter();
                Some(Content::Object(members.map(|(key, range)| (key, slot(range))).collect()))
            }
            JsonType::Array => Some(Content::Array(json::elements(text).into_iter().map(slot).collect())),
            _ => None,
        }
    }

    /// The container and the key that a path leads to.
    pub(super) fn find(&mut self, path: &str) -> Option<(NodeId, String)> {
        // A path that does not begin with a slash loses its first part.
        let (_, path) = path.split_once('/')?;
        let (parents, key) =
            path.rsplit_once('/').map_or((None, path), |(parents, key)| (Some(parents), key));
        let mut container = self.root;
        for part in parents.into_iter().flat_map(|parents| parents.split('/')) {
            container = self.member(container, &decode_key(part)).ok()??;
            let raw = self.node(container).raw.clone()?;
            if !matches!(self.node(container).content, Content::Raw) {
                continue;
            }
            let content = match JsonType::of(&raw) {
                JsonType::Null => Content::NullObject,
                _ => self.parse(&raw)?,
            };
            if let Some(place) = self.content_mut(container) {
                *place = content;
            }
        }
        Some((container, decode_key(key)))
    }

    /// The member of a container; `None` also for a member of an object that does not exist.
    pub(super) fn member(&self, container: NodeId, key: &str) -> Result<Slot, String> {
        match &self.node(container).content {
            Content::Object(members) => Ok(members.get(key).copied().flatten()),
            Content::NullObject | Content::Raw => Ok(None),
            Content::Array(items) => {
                let index = index(key, items.len())?;
                items.get(index).copied().ok_or_else(|| bad_index(key))
            }
        }
    }

    /// Sets a member; a list's element must exist.
    pub(super) fn set_member(&mut self, container: NodeId, key: String, value: Slot) -> Result<(), String> {
        match self.content_mut(container) {
            Some(Content::Object(members)) => drop(members.insert(key, value)),
            Some(Content::Array(items)) => {
                let index = index(&key, items.len())?;
                *items.get_mut(index).ok_or_else(|| bad_index(&key))? = value;
            }
            Some(Content::NullObject | Content::Raw) | None => return Err(PANIC.to_owned()),
        }
        Ok(())
    }

    /// Sets a member of an object, or inserts an element into a list.
    pub(super) fn add_member(&mut self, container: NodeId, key: String, value: Slot) -> Result<(), String> {
        let Some(Content::Array(items)) = self.content_mut(container) else {
            return self.set_member(container, key, value);
        };
        if key == "-" {
            items.push(value);
            return Ok(());
        }
        if let Err(error) = atoi(&key) {
            return Err(format!("value was not a proper array index: '{key}': {error}"));
        }
        let index = index(&key, items.len() + 1)?;
        items.insert(index, value);
        Ok(())
    }

    pub(super) fn remove_member(&mut self, container: NodeId, key: &str) -> Result<(), String> {
        let missing = || format!("Unable to remove nonexistent key: {key}: missing value");
        match self.content_mut(container) {
            Some(Content::Array(items)) => {
                let index = index(key, items.len())?;
                items.remove(index);
                Ok(())
            }
            Some(Content::Object(members)) => members.remove(key).map(drop).ok_or_else(missing),
            Some(Content::NullObject | Content::Raw) | None => Err(missing()),
        }
    }

    /// A copy of a value, within the limit of copies.
    pub(super) fn copied_value(&mut self, value: Slot) -> Result<Slot, String> {
        let Some(value) = value else { return Ok(None) };
        let mut text = Vec::new();
        self.write(&mut text, value, 0, MAX_PATCHED_SIZE)?;
        self.copied += text.len();
        if self.copied > MAX_COPIED_SIZE {
            return Err(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {MAX_COPIED_SIZE}",
                self.copied
            ));
        }
        Ok(Some(self.insert(Some(text.into()), Content::Raw)))
    }

    /// The text of the document.
    pub(super) fn into_text(self) -> Result<Vec<u8>, String> {
        let mut text = Vec::new();
        self.write(&mut text, self.root, 0, MAX_PATCHED_SIZE)?;
        Ok(text)
    }

    fn write(&self, out: &mut Vec<u8>, id: NodeId, depth: usize, limit: usize) -> Result<(), String> {
        if depth > MAX_NESTING {
            return Err(TOO_DEEP.to_owned());
        }
        let slot = |out: &mut Vec<u8>, slot: Slot| {
            if let Some(id) = slot {
                return self.write(out, id, depth + 1, limit);
            }
            out.extend_from_slice(b"null");
            Ok(())
        };
        let node = self.node(id);
        match &node.content {
            Content::Raw => portcullis_go::json::compact_into(out, node.raw.as_deref().unwrap_or(b"null")),
            Content::NullObject => out.extend_from_slice(b"null"),
            Content::Object(members) => {
                out.push(b'{');
                for (position, (key, value)) in members.iter().enumerate() {
                    if position > 0 {
                        out.push(b',');
                    }
                    out.extend(portcullis_go::json::encode(key));
                    out.push(b':');
                    slot(out, *value)?;
                }
                out.push(b'}');
            }
            Content::Array(items) => {
                out.push(b'[');
                for (position, value) in items.iter().enumerate() {
                    if position > 0 {
                        out.push(b',');
                    }
                    slot(out, *value)?;
                }
                out.push(b']');
            }
        }
        if out.len() > limit {
            return Err(format!("the patched object is larger than {limit} bytes"));
        }
        Ok(())
    }

    /// Whether two values are equal: scalars if they are written alike.
    pub(super) fn equal(&self, left: &Compared, right: &Compared) -> Result<bool, String> {
        self.equal_at(left, right, 0)
    }

    fn equal_at(&self, left: &Compared, right: &Compared, depth: usize) -> Result<bool, String> {
        if depth > MAX_NESTING {
            return Err(TOO_DEEP.to_owned());
        }
        match (self.shape(left), self.shape(right)) {
            (Shape::Scalar(left), Shape::Scalar(right)) => Ok(left == right),
            (Shape::Object(left), Shape::Object(right)) => {
                if left.len() != right.len() {
                    return Ok(false);
                }
                for (key, left) in &left {
                    let equal = match (left, right.get(key)) {
                        (None, Some(None)) => true,
                        (Some(left), Some(Some(right))) => self.equal_at(left, right, depth + 1)?,
                        _ => false,
                    };
                    if !equal {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Shape::Array(left), Shape::Array(right)) => {
                if left.len() != right.len() {
                    return Ok(false);
                }
                for pair in left.iter().zip(&right) {
                    let (Some(left), Some(right)) = pair else { return Err(PANIC.to_owned()) };
                    if !self.equal_at(left, right, depth + 1)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn shape(&self, value: &Compared) -> Shape {
        let node = |slot: &Slot| slot.map(Compared::Node);
        let raw = match value {
            Compared::Text(text) => text,
            Compared::Node(id) => match &self.node(*id).content {
                Content::Raw => &self.node(*id).raw,
                Content::NullObject => return Shape::Object(BTreeMap::new()),
                Content::Object(members) => {
                    return Shape::Object(
                        members.iter().map(|(key, slot)| (key.clone(), node(slot))).collect(),
                    );
                }
                Content::Array(items) => return Shape::Array(items.iter().map(node).collect()),
            },
        };
        let Some(text) = raw else { return Shape::Scalar(None) };
        let part = |range| {
            let part: Bytes = text.slice(range);
            (JsonType::of(&part) != JsonType::Null).then_some(Compared::Text(Some(part)))
        };
        match JsonType::of(text) {
            JsonType::Object => {
                let members = json::members(text).into_iter();
                Shape::Object(members.map(|(key, range)| (key, part(range))).collect())
            }
            JsonType::Array => Shape::Array(json::elements(text).into_iter().map(part).collect()),
            // A copied null.
            JsonType::Null => Shape::Object(BTreeMap::new()),
            _ => Shape::Scalar(Some(text.clone())),
        }
    }
}

/// The index that a key names: below `length`, or negative and counted from it.
fn index(key: &str, length: usize) -> Result<usize, String> {
    let number = atoi(key).map_err(|error| error.to_string())?;
    let index = match usize::try_from(number) {
        Ok(index) => Some(index).filter(|index| *index < length),
        Err(_) => usize::try_from(number.unsigned_abs()).ok().and_then(|back| length.checked_sub(back)),
    };
    index.ok_or_else(|| format!("Unable to access invalid index: {number}: invalid index referenced"))
}

fn bad_index(key: &str) -> String {
    format!("Unable to access invalid index: {key}: invalid index referenced")
}

/// The key that a part of a path names.
fn decode_key(part: &str) -> String {
    let mut key = String::with_capacity(part.len());
    let mut rest = part;
    while let Some((plain, tail)) = rest.split_once('~') {
        key.push_str(plain);
        let (c, length) = match tail.as_bytes().first() {
            Some(b'0') => ('~', 1),
            Some(b'1') => ('/', 1),
            _ => ('~', 0),
        };
        key.push(c);
        rest = tail.get(length..).unwrap_or_default();
    }
    key.push_str(rest);
    key
}
