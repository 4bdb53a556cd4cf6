//! JSON read as Go reads it, with Go's error texts.
//!
//! Reading differs from `serde_json`: bytes that are not UTF-8 and lone surrogates become U+FFFD, and values keep the
//! bytes that they were written with until something needs them. Patches depend on those bytes: `test` compares numbers and
//! strings as they are written.
//!
//! All functions but [`check`] expect a value that [`check`] has accepted; they never panic on others.
// go: encoding/json, scanner.go and decode.go

use std::ops::Range;

use serde_json::{Map, Number, Value};

use crate::quote::Quoted;

/// The deepest nesting that is read.
// go: scanner.go, maxNestingDepth
pub const MAX_NESTING: usize = 10_000;

const UNEXPECTED_END: &str = "unexpected end of JSON input";

/// A type of JSON value, as Go's errors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonType {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
    /// `"…"`
    String,
    /// A number, with or without fraction and exponent.
    Number,
    /// `true` or `false`.
    Bool,
    /// `null`
    Null,
}

impl JsonType {
    /// The type of a checked value.
    pub fn of(value: &[u8]) -> Self {
        match value.trim_ascii_start().first() {
            Some(b'{') => Self::Object,
            Some(b'[') => Self::Array,
            Some(b'"') => Self::String,
            Some(b't' | b'f') => Self::Bool,
            Some(b'n') => Self::Null,
            _ => Self::Number,
        }
    }

    /// The name in Go's errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Number => "number",
            Self::Bool => "bool",
            Self::Null => "null",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Rest,
}

/// Receives the parts of a value, in the order in which they are written.
trait Sink {
    /// An object or a list begins.
    fn open(&mut self, kind: JsonType);

    /// The key of the next member, with its quotes.
    fn key(&mut self, literal: &[u8]);

    /// A value that is neither an object nor a list.
    fn scalar(&mut self, literal: &[u8]) -> Result<(), String>;

    /// The object or the list that was opened last ends.
    fn close(&mut self);
}

/// For a text that is only checked.
struct NoSink;

impl Sink for NoSink {
    fn open(&mut self, _: JsonType) {}

    fn key(&mut self, _: &[u8]) {}

    fn scalar(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn close(&mut self) {}
}

/// Whether these bytes are one JSON value; Go's text if not.
// go: scanner.go, checkValid
pub fn check(data: &[u8]) -> Result<(), String> {
    walk(data, &mut NoSink)
}

/// Reads a value in one pass and without recursion, however deep it is. Fails with Go's text.
fn walk(data: &[u8], sink: &mut impl Sink) -> Result<(), String> {
    let mut open = Vec::new();
    let (mut at, mut expected) = (0, Expected::Value);
    loop {
        at = skip_space(data, at);
        let Some(&byte) = data.get(at) else {
            let complete = expected == Expected::Rest && open.is_empty();
            return if complete { Ok(()) } else { Err(UNEXPECTED_END.to_owned()) };
        };
        (at, expected) = match expected {
            Expected::Value | Expected::ValueOrEnd if matches!(byte, b'{' | b'[') => {
                (at + 1, open_nested(&mut open, byte, sink)?)
            }
            Expected::ValueOrEnd if byte == b']' => (at + 1, close_nested(&mut open, sink)),
            Expected::KeyOrEnd if byte == b'}' => (at + 1, close_nested(&mut open, sink)),
            Expected::Value | Expected::ValueOrEnd => {
                let end = check_scalar(data, at, byte)?;
                sink.scalar(data.get(at..end).unwrap_or_default())?;
                (end, Expected::Rest)
            }
            Expected::Key | Expected::KeyOrEnd => (read_key(data, at, byte, sink)?, Expected::Value),
            Expected::Rest => match next_in(open.last().copied(), byte)? {
                Some(next) => (at + 1, next),
                None => (at + 1, close_nested(&mut open, sink)),
            },
        };
    }
}

fn open_nested(open: &mut Vec<u8>, byte: u8, sink: &mut impl Sink) -> Result<Expected, String> {
    open.push(byte);
    if open.len() > MAX_NESTING {
        return Err(invalid(byte, "exceeded max depth"));
    }
    let is_object = byte == b'{';
    sink.open(if is_object { JsonType::Object } else { JsonType::Array });
    Ok(if is_object { Expected::KeyOrEnd } else { Expected::ValueOrEnd })
}

fn close_nested(open: &mut Vec<u8>, sink: &mut impl Sink) -> Expected {
    open.pop();
    sink.close();
    Expected::Rest
}

/// Reads a key and the colon behind it; returns the place after both.
fn read_key(data: &[u8], at: usize, byte: u8, sink: &mut impl Sink) -> Result<usize, String> {
    if byte != b'"' {
        return Err(invalid(byte, "looking for beginning of object key string"));
    }
    let end = check_string(data, at)?;
    sink.key(data.get(at..end).unwrap_or_default());
    let colon = skip_space(data, end);
    match data.get(colon) {
        Some(b':') => Ok(colon + 1),
        Some(&byte) => Err(invalid(byte, "after object key")),
        None => Err(UNEXPECTED_END.to_owned()),
    }
}

/// What comes after `byte`, which follows a value in this object or list; `None` if it ends that.
fn next_in(open: Option<u8>, byte: u8) -> Result<Option<Expected>, String> {
    match (open, byte) {
        (Some(b'{'), b',') => Ok(Some(Expected::Key)),
        (Some(b'['), b',') => Ok(Some(Expected::Value)),
        (Some(b'{'), b'}') | (Some(b'['), b']') => Ok(None),
        (Some(b'{'), _) => Err(invalid(byte, "after object key:value pair")),
        (Some(_), _) => Err(invalid(byte, "after array element")),
        (None, _) => Err(invalid(byte, "after top-level value")),
    }
}

fn skip_space(data: &[u8], mut at: usize) -> usize {
    while matches!(data.get(at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
        at += 1;
    }
    at
}

fn check_scalar(data: &[u8], at: usize, first: u8) -> Result<usize, String> {
    match first {
        b'"' => check_string(data, at),
        b'-' | b'0'..=b'9' => check_number(data, at),
        b't' => check_literal(data, at, "true"),
        b'f' => check_literal(data, at, "false"),
        b'n' => check_literal(data, at, "null"),
        _ => Err(invalid(first, "looking for beginning of value")),
    }
}

/// The byte at a place. After the end Go's scanner reads a blank.
fn byte_at(data: &[u8], at: usize) -> u8 {
    data.get(at).copied().unwrap_or(b' ')
}

fn check_literal(data: &[u8], at: usize, word: &str) -> Result<usize, String> {
    for (offset, expected) in word.bytes().enumerate() {
        let byte = byte_at(data, at + offset);
        if byte != expected {
            return Err(invalid(byte, &format!("in literal {word} (expecting '{}')", char::from(expected))));
        }
    }
    Ok(at + word.len())
}

fn check_number(data: &[u8], mut at: usize) -> Result<usize, String> {
    let digits = |mut at: usize| {
        while byte_at(data, at).is_ascii_digit() {
            at += 1;
        }
        at
    };
    let expect_digit = |at: usize, context: &str| {
        let byte = byte_at(data, at);
        if byte.is_ascii_digit() { Ok(()) } else { Err(invalid(byte, context)) }
    };
    if byte_at(data, at) == b'-' {
        at += 1;
    }
    expect_digit(at, "in numeric literal")?;
    at = if byte_at(data, at) == b'0' { at + 1 } else { digits(at) };
    if byte_at(data, at) == b'.' {
        expect_digit(at + 1, "after decimal point in numeric literal")?;
        at = digits(at + 1);
    }
    if matches!(byte_at(data, at), b'e' | b'E') {
        at += 1;
        if matches!(byte_at(data, at), b'+' | b'-') {
            at += 1;
        }
        expect_digit(at, "in exponent of numeric literal")?;
        at = digits(at);
    }
    Ok(at)
}

/// The place after a string.
fn check_string(data: &[u8], mut at: usize) -> Result<usize, String> {
    at += 1;
    loop {
        match data.get(at) {
            None => return Err(UNEXPECTED_END.to_owned()),
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => match byte_at(data, at + 1) {
                b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => at += 2,
                b'u' => {
                    let wrong = (2..6).map(|n| byte_at(data, at + n)).find(|byte| !byte.is_ascii_hexdigit());
                    if let Some(byte) = wrong {
                        return Err(invalid(byte, "in \\u hexadecimal character escape"));
                    }
                    at += 6;
                }
                byte => return Err(invalid(byte, "in string escape code")),
            },
            Some(&byte) if byte < 0x20 => return Err(invalid(byte, "in string literal")),
            Some(_) => at += 1,
        }
    }
}

fn invalid(byte: u8, context: &str) -> String {
    let shown = match byte {
        b'\'' => r"\'".to_owned(),
        b'"' => "\"".to_owned(),
        byte => {
            let quoted = Quoted(char::from(byte).to_string().as_str()).to_string();
            quoted.trim_matches('"').to_owned()
        }
    };
    format!("invalid character '{shown}' {context}")
}

/// The place after the value that begins here.
fn value_end(data: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_usize);
    loop {
        match data.get(at) {
            None => return at,
            Some(b'"') => at = string_end(data, at),
            Some(b'{' | b'[') => (at, depth) = (at + 1, depth + 1),
            Some(b'}' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n') if depth == 0 => return at,
            Some(b'}' | b']') => (at, depth) = (at + 1, depth - 1),
            Some(_) => {
                at += 1;
                continue;
            }
        }
        if depth == 0 {
            return at;
        }
    }
}

fn string_end(data: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    loop {
        match data.get(at) {
            None => return at,
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
        }
    }
}

/// The members of an object in their order, with repeated keys. Empty for other values.
pub fn members(data: &[u8]) -> Vec<(String, Range<usize>)> {
    let mut members = Vec::new();
    let mut at = skip_space(data, 0);
    if data.get(at) != Some(&b'{') {
        return members;
    }
    loop {
        // After `{` or `,`.
        let key = skip_space(data, at + 1);
        if data.get(key) != Some(&b'"') {
            return members;
        }
        let key_end = string_end(data, key);
        let start = skip_space(data, skip_space(data, key_end) + 1);
        let end = value_end(data, start);
        members.push((string(data.get(key..key_end).unwrap_or_default()), start..end));
        at = skip_space(data, end);
        if data.get(at) != Some(&b',') {
            return members;
        }
    }
}

/// The elements of an array. Empty for other values.
pub fn elements(data: &[u8]) -> Vec<Range<usize>> {
    let mut elements = Vec::new();
    let mut at = skip_space(data, 0);
    if data.get(at) != Some(&b'[') {
        return elements;
    }
    loop {
        let start = skip_space(data, at + 1);
        if matches!(data.get(start), None | Some(b']')) {
            return elements;
        }
        let end = value_end(data, start);
        elements.push(start..end);
        at = skip_space(data, end);
        if data.get(at) != Some(&b',') {
            return elements;
        }
    }
}

/// The text of a string.
// go: decode.go, unquoteBytes
pub fn string(literal: &[u8]) -> String {
    let inner = literal.strip_prefix(b"\"").unwrap_or(literal);
    let inner = inner.strip_suffix(b"\"").unwrap_or(inner);
    // Nearly all texts are characters without an escape.
    if let (false, Ok(text)) = (inner.contains(&b'\\'), std::str::from_utf8(inner)) {
        return text.to_owned();
    }
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        push_text(&mut text, rest.get(..at).unwrap_or_default());
        rest = rest.get(at + 1..).unwrap_or_default();
        let length = match rest.first() {
            Some(b'u') => push_escaped(&mut text, rest),
            Some(byte) => {
                text.push(match byte {
                    b'b' => '\u{8}',
                    b'f' => '\u{c}',
                    b'n' => '\n',
                    b'r' => '\r',
                    b't' => '\t',
                    other => char::from(*other),
                });
                1
            }
            None => 0,
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    push_text(&mut text, rest);
    text
}

/// Appends the character of `uXXXX` or `uXXXX\uXXXX`; returns the length of what was read.
fn push_escaped(text: &mut String, rest: &[u8]) -> usize {
    let unit = |start: usize| {
        let digits = std::str::from_utf8(rest.get(start..start + 4)?).ok()?;
        u16::from_str_radix(digits, 16).ok()
    };
    let first = unit(1).unwrap_or(0xfffd);
    if let Some(c) = char::from_u32(first.into()) {
        text.push(c);
        return 5;
    }
    let second = if rest.get(5..7) == Some(b"\\u".as_slice()) { unit(7) } else { None };
    if let Some(Ok(c)) = second.and_then(|second| char::decode_utf16([first, second]).next()) {
        text.push(c);
        return 11;
    }
    text.push(char::REPLACEMENT_CHARACTER);
    5
}

/// Appends text; Go replaces each byte that is not part of a character.
fn push_text(text: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
}

/// Decodes a value, as Kubernetes decodes objects without a type: numbers without fraction and exponent are integers. Reads in
/// one pass and without recursion, but dropping, cloning, comparing and encoding the value recurse: one of [`MAX_NESTING`] levels
/// needs a stack of [`STACK_SIZE`].
// sigs.k8s.io/json: UnmarshalCaseSensitivePreserveInts
pub fn decode(data: &[u8]) -> Result<Value, String> {
    let mut builder = Builder { open: Vec::new(), root: Value::Null };
    walk(data, &mut builder)?;
    Ok(builder.root)
}

/// The stack of a thread that works on values of [`MAX_NESTING`] levels. A level takes up to 4 KiB in a debug build.
pub const STACK_SIZE: usize = 64 << 20;

/// Builds a value of its parts.
struct Builder {
    open: Vec<OpenValue>,
    root: Value,
}

/// An object or a list whose end has not come.
enum OpenValue {
    Object(Map<String, Value>, String),
    Array(Vec<Value>),
}

impl Builder {
    fn add(&mut self, value: Value) {
        match self.open.last_mut() {
            None => self.root = value,
            Some(OpenValue::Object(fields, key)) => drop(fields.insert(std::mem::take(key), value)),
            Some(OpenValue::Array(items)) => items.push(value),
        }
    }
}

impl Sink for Builder {
    fn open(&mut self, kind: JsonType) {
        self.open.push(match kind {
            JsonType::Object => OpenValue::Object(Map::new(), String::new()),
            _ => OpenValue::Array(Vec::new()),
        });
    }

    fn key(&mut self, literal: &[u8]) {
        if let Some(OpenValue::Object(_, key)) = self.open.last_mut() {
            *key = string(literal);
        }
    }

    fn scalar(&mut self, literal: &[u8]) -> Result<(), String> {
        self.add(match JsonType::of(literal) {
            JsonType::String => Value::String(string(literal)),
            JsonType::Number => Value::Number(number(literal)?),
            JsonType::Bool => Value::Bool(literal.first() == Some(&b't')),
            _ => Value::Null,
        });
        Ok(())
    }

    fn close(&mut self) {
        match self.open.pop() {
            Some(OpenValue::Object(fields, _)) => self.add(Value::Object(fields)),
            Some(OpenValue::Array(mut items)) => {
                items.shrink_to_fit();
                self.add(Value::Array(items));
            }
            None => {}
        }
    }
}

/// What a text takes as a [`Value`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecodedSize {
    /// The memory of the value, in bytes: many times the text if that has many small objects.
    pub bytes: usize,
    /// The levels of objects and lists.
    pub nesting: usize,
}

impl DecodedSize {
    /// That of a text, without decoding it. Fails if [`decode`] does, except for numbers.
    pub fn of(text: &[u8]) -> Result<Self, String> {
        let mut measure = Measure::default();
        walk(text, &mut measure)?;
        Ok(measure.size)
    }
}

/// Adds up the memory of a value.
#[derive(Default)]
struct Measure {
    /// The entries of what is open.
    open: Vec<(JsonType, usize)>,
    size: DecodedSize,
}

/// The memory of one block of the allocator beside what is asked for.
const BLOCK: usize = 16;
/// The entries of a node of a map, and the least of one that is not alone.
// alloc: collections/btree/node.rs, CAPACITY and MIN_LEN_AFTER_SPLIT
const NODE_ENTRIES: usize = 11;
const MIN_NODE_ENTRIES: usize = 5;
const NODE: usize = NODE_ENTRIES * (size_of::<String>() + size_of::<Value>()) + 2 * BLOCK;

/// The memory of a string of this length, beside the string itself.
const fn text_size(length: usize) -> usize {
    if length == 0 { 0 } else { (length + BLOCK).next_multiple_of(BLOCK) }
}

/// The memory of a map with so many entries, beside the map itself and what its keys and values hold.
const fn map_size(entries: usize) -> usize {
    match entries {
        0 => 0,
        1..=NODE_ENTRIES => NODE,
        entries => (entries / MIN_NODE_ENTRIES + 1) * NODE,
    }
}

impl Measure {
    fn count_entry(&mut self) {
        if let Some((_, entries)) = self.open.last_mut() {
            *entries += 1;
        }
    }

    fn hold(&mut self, bytes: usize) {
        self.size.bytes = self.size.bytes.saturating_add(bytes);
    }
}

impl Sink for Measure {
    fn open(&mut self, kind: JsonType) {
        self.count_entry();
        self.open.push((kind, 0));
        self.size.nesting = self.size.nesting.max(self.open.len());
    }

    fn key(&mut self, literal: &[u8]) {
        self.hold(text_size(literal.len()));
    }

    fn scalar(&mut self, literal: &[u8]) -> Result<(), String> {
        self.count_entry();
        if literal.first() == Some(&b'"') {
            self.hold(text_size(literal.len() - 1));
        }
        Ok(())
    }

    fn close(&mut self) {
        match self.open.pop() {
            Some((JsonType::Object, entries)) => self.hold(map_size(entries)),
            Some((_, entries)) if entries > 0 => self.hold(entries * size_of::<Value>() + BLOCK),
            _ => {}
        }
    }
}

fn number(literal: &[u8]) -> Result<Number, String> {
    let text = std::str::from_utf8(literal).unwrap_or_default();
    if !text.contains(['.', 'e', 'E']) {
        if let Ok(number) = text.parse::<i64>() {
            return Ok(number.into());
        }
        // Larger ones are kept as they are; Go makes them floating-point numbers.
        if let Ok(number) = text.parse::<u64>() {
            return Ok(number.into());
        }
    }
    let number = text.parse::<f64>().ok().and_then(Number::from_f64);
    number.ok_or_else(|| format!("json: cannot unmarshal number {text} into Go value of type float64"))
}

#[cfg(test)]
mod tests;
