//! A JSON document while it is patched. Values are parsed when a path leads through them, and keep their text.
// gopkg.in/evanphx/json-patch.v4: patch.go, lazyNode, partialDoc and partialArray

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use bytes::Bytes;
use portcullis_go::json::raw::{self as json, JsonType};
use portcullis_go::number::atoi;

use super::steps::Steps;
use super::{MAX_COPIED_SIZE, MAX_PATCHED_SIZE, PANIC};

/// The nesting of values that are written or compared: that of objects, so that only patches whose result is refused anyway fail
/// by it. Writing and comparing recurse, on a thread with a stack for it.
const MAX_NESTING: usize = json::MAX_NESTING;
/// What each operation costs beside what it reads and moves, in steps.
const STEPS_PER_OPERATION: usize = 256;

const TOO_DEEP: &str = "exceeded max depth";
pub(super) const TOO_LARGE: &str = "the patched object is larger than 9437184 bytes";

/// A value of a document: `None` for its `null`s.
pub(super) type Slot = Option<NodeId>;

/// The place of a value in the list of nodes, counted from one. A list of a document has one for each item, so it is short: an
/// insertion moves those behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeId(NonZeroU32);

impl NodeId {
    const FIRST: Self = Self(NonZeroU32::MIN);

    fn index(self) -> usize {
        usize::try_from(self.0.get()).unwrap_or(usize::MAX) - 1
    }
}

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
    steps: Steps,
}

impl Document {
    pub(super) fn new(text: &Bytes, steps: Steps) -> Result<Self, String> {
        json::check(text)?;
        let mut document = Self { nodes: Vec::new(), root: NodeId::FIRST, copied: 0, steps };
        match JsonType::of(text) {
            JsonType::Null => document.root = document.insert(None, Content::NullObject)?,
            _ if document.set_root(text)? => {}
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
    pub(super) fn set_root(&mut self, text: &Bytes) -> Result<bool, String> {
        let Some(content) = self.parse(text)? else { return Ok(false) };
        self.root = self.insert(None, content)?;
        Ok(true)
    }

    /// The value of an operation.
    pub(super) fn value(&mut self, value: Option<&Option<Bytes>>) -> Result<Slot, String> {
        self.steps.take(STEPS_PER_OPERATION)?;
        value.map(|value| self.insert(value.clone(), Content::Raw)).transpose()
    }

    fn insert(&mut self, raw: Option<Bytes>, content: Content) -> Result<NodeId, String> {
        self.nodes.push(Node { raw, content });
        let number = u32::try_from(self.nodes.len()).ok().and_then(NonZeroU32::new);
        number.map(NodeId).ok_or_else(|| TOO_LARGE.to_owned())
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(id.index()).unwrap_or(&NULL_NODE)
    }

    fn content_mut(&mut self, id: NodeId) -> Option<&mut Content> {
        self.nodes.get_mut(id.index()).map(|node| &mut node.content)
    }

    fn parse(&mut self, text: &Bytes) -> Result<Option<Content>, String> {
        self.steps.take(text.len())?;
        let mut slot = |range| {
            let text: Bytes = text.slice(range);
            let is_null = JsonType::of(&text) == JsonType::Null;
            if is_null { Ok(None) } else { self.insert(Some(text), Content::Raw).map(Some) }
        };
        Ok(match JsonType::of(text) {
            JsonType::Object => {
                let members = json::members(text).into_iter();
                let members = members.map(|(key, range)| Ok((key, slot(range)?)));
                Some(Content::Object(members.collect::<Result<_, String>>()?))
            }
            JsonType::Array => {
                let items = json::elements(text).into_iter().map(slot);
                Some(Content::Array(items.collect::<Result<_, String>>()?))
            }
            _ => None,
        })
    }

    /// The container and the key that a path leads to.
    pub(super) fn find(&mut self, path: &str) -> Result<Option<(NodeId, String)>, String> {
        self.steps.take(STEPS_PER_OPERATION + path.len())?;
        // A path that does not begin with a slash loses its first part.
        let Some((_, path)) = path.split_once('/') else { return Ok(None) };
        let (parents, key) =
            path.rsplit_once('/').map_or((None, path), |(parents, key)| (Some(parents), key));
        let mut container = self.root;
        for part in parents.into_iter().flat_map(|parents| parents.split('/')) {
            let Ok(Some(member)) = self.member(container, &decode_key(part)) else { return Ok(None) };
            if !self.unfold(member)? {
                return Ok(None);
            }
            container = member;
        }
        Ok(Some((container, decode_key(key))))
    }

    /// Parses a value that a path leads through; false if it has no members.
    fn unfold(&mut self, id: NodeId) -> Result<bool, String> {
        let node = self.node(id);
        let Some(raw) = node.raw.clone() else { return Ok(false) };
        if !matches!(node.content, Content::Raw) {
            return Ok(true);
        }
        let content = match JsonType::of(&raw) {
            JsonType::Null => Some(Content::NullObject),
            _ => self.parse(&raw)?,
        };
        let Some(content) = content else { return Ok(false) };
        if let Some(place) = self.content_mut(id) {
            *place = content;
        }
        Ok(true)
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
        self.move_items(container)?;
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

    /// Counts an insertion into a list, or a removal from it.
    fn move_items(&mut self, container: NodeId) -> Result<(), String> {
        match &self.node(container).content {
            Content::Array(items) => self.steps.take(items.len() * size_of::<Slot>()),
            _ => Ok(()),
        }
    }

    pub(super) fn remove_member(&mut self, container: NodeId, key: &str) -> Result<(), String> {
        self.move_items(container)?;
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
        self.write(&mut text, value, 0)?;
        self.steps.take(text.len())?;
        self.copied += text.len();
        if self.copied > MAX_COPIED_SIZE {
            return Err(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {MAX_COPIED_SIZE}",
                self.copied
            ));
        }
        self.insert(Some(text.into()), Content::Raw).map(Some)
    }

    /// The text of the document.
    pub(super) fn into_text(self) -> Result<Vec<u8>, String> {
        let mut text = Vec::new();
        self.write(&mut text, self.root, 0)?;
        Ok(text)
    }

    fn write(&self, out: &mut Vec<u8>, id: NodeId, depth: usize) -> Result<(), String> {
        if depth > MAX_NESTING {
            return Err(TOO_DEEP.to_owned());
        }
        let slot = |out: &mut Vec<u8>, slot: Slot| {
            if let Some(id) = slot {
                return self.write(out, id, depth + 1);
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
        if out.len() > MAX_PATCHED_SIZE {
            return Err(TOO_LARGE.to_owned());
        }
        Ok(())
    }

    /// Whether two values are equal: scalars if they are written alike.
    pub(super) fn equal(&mut self, left: &Compared, right: &Compared) -> Result<bool, String> {
        self.equal_at(left, right, 0)
    }

    fn equal_at(&mut self, left: &Compared, right: &Compared, depth: usize) -> Result<bool, String> {
        if depth > MAX_NESTING {
            return Err(TOO_DEEP.to_owned());
        }
        match (self.shape(left)?, self.shape(right)?) {
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

    /// A value one level deep: each level is read again, as upstream does.
    fn shape(&mut self, value: &Compared) -> Result<Shape, String> {
        self.steps.take(match value {
            Compared::Text(text) => text.as_ref().map_or(0, Bytes::len),
            Compared::Node(id) => self.node(*id).raw.as_ref().map_or(STEPS_PER_OPERATION, Bytes::len),
        })?;
        Ok(self.shape_of(value))
    }

    fn shape_of(&self, value: &Compared) -> Shape {
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
