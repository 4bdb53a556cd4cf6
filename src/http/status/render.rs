//! From a [`Status`] to a response: which encoding the client takes, and the bytes of each.
//!
//! Follows `k8s.io/apiserver/pkg/endpoints/handlers/{negotiation,responsewriters}` with the serializers of
//! `apimachinery/pkg/runtime/serializer`: JSON is the default, an `Accept` that fits nothing never changes the code.
//! Sets the headers that belong to the body, `Retry-After` and `X-Content-Type-Options`; everything that belongs to
//! every response (`Audit-Id`, `Cache-Control`, …) is the pipeline's.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;
use http::Response;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::yaml::Yaml;
use super::{Details, Form, Status};
use crate::go::query;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const YAML: HeaderValue = HeaderValue::from_static("application/yaml");
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// What decides how an answer is written.
#[derive(Debug, Clone, Default)]
pub struct Negotiation<'a> {
    /// The first `Accept` header; empty when there is none.
    pub accept: Cow<'a, str>,
    /// The raw query of the request.
    pub query: Option<&'a str>,
    /// The first `User-Agent` header; empty when there is none.
    pub user_agent: Cow<'a, str>,
}

impl<'a> Negotiation<'a> {
    /// Takes what decides from a request.
    pub fn of(headers: &'a HeaderMap, query: Option<&'a str>) -> Self {
        let first = |name: HeaderName| {
            headers.get(name).map_or(Cow::Borrowed(""), |value| String::from_utf8_lossy(value.as_bytes()))
        };
        Self { accept: first(header::ACCEPT), query, user_agent: first(header::USER_AGENT) }
    }

    // apiserver: negotiation/negotiate.go, NegotiateOutputMediaType
    fn encoding(&self) -> Encoding {
        if self.accept.is_empty() {
            return if self.human() { Encoding::PrettyJson } else { Encoding::Json };
        }
        match best(&self.accept) {
            Some((clause, Encoding::Json)) if clause.pretty || self.human() => Encoding::PrettyJson,
            Some((_, encoding)) => encoding,
            None => Encoding::RawJson,
        }
    }

    /// Whether a person is to read the answer.
    // apiserver: negotiation/negotiate.go, isPrettyPrint
    fn human(&self) -> bool {
        if let Some(raw) = self.query
            && raw.contains("pretty")
        {
            let value = query::first(raw, "pretty").unwrap_or_default();
            if !value.is_empty() {
                return matches!(&*value, "1" | "t" | "T" | "TRUE" | "true" | "True");
            }
        }
        ["curl", "Wget", "Mozilla/5.0"].iter().any(|agent| self.user_agent.starts_with(agent))
    }
}

/// The encodings kube-apiserver offers, in its order, by the subtype of `application/`.
// apimachinery: pkg/runtime/serializer/codec_factory.go
const OFFERED: [(&str, Encoding); 3] =
    [("json", Encoding::Json), ("yaml", Encoding::Yaml), ("vnd.kubernetes.protobuf", Encoding::Protobuf)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// One line and a newline.
    Json,
    /// Indented, no newline at the end; what people get.
    PrettyJson,
    /// The same bytes, for a client that accepts nothing we have.
    RawJson,
    Yaml,
    Protobuf,
}

/// Writes an answer.
pub fn render(status: &Status, negotiation: &Negotiation<'_>) -> Response<Bytes> {
    let (body, content_type) = match status.form {
        Form::Negotiated => match negotiation.encoding() {
            Encoding::Json => (format!("{}\n", json(status, true, Layout::Compact)).into(), JSON),
            Encoding::PrettyJson | Encoding::RawJson => (json(status, true, Layout::Indented).into(), JSON),
            Encoding::Yaml => (yaml(status).into(), YAML),
            Encoding::Protobuf => (protobuf(status).into(), PROTOBUF),
        },
        Form::PlainJson => (format!("{}\n\n", json(status, true, Layout::Compact)).into(), JSON),
        Form::Untyped => (format!("{}\n", json(status, false, Layout::Compact)).into(), TEXT),
        Form::Text => (format!("{}\n", status.message).into(), TEXT),
    };
    let body: Bytes = body;
    let mut response = Response::new(body);
    *response.status_mut() = status.code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    if status.nosniff || status.form == Form::Text {
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    }
    if let Some(seconds) = status.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// One clause of an `Accept` header, as far as it matters to an error.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Clause<'a> {
    main: &'a str,
    sub: &'a str,
    quality: f64,
    pretty: bool,
    stream: bool,
    /// False if a parameter asks for what an error cannot be: another kind, another server version.
    allowed: bool,
}

impl Clause<'_> {
    /// Not an order: a clause without a wildcard comes before one with, whatever their qualities.
    // goautoneg: acceptSlice.Less
    fn before(&self, other: &Self) -> bool {
        self.quality > other.quality
            || self.main != "*" && other.main == "*"
            || self.sub != "*" && other.sub == "*"
    }

    /// What we offer that the clause takes.
    fn encoding(&self) -> Option<Encoding> {
        if !self.allowed {
            return None;
        }
        OFFERED
            .into_iter()
            .find(|(subtype, encoding)| {
                let fits = match (self.main, self.sub) {
                    ("*" | "application", "*") => true,
                    ("application", sub) => sub == *subtype,
                    _ => false,
                };
                // A watch can be asked for in JSON and protobuf only; YAML has no stream.
                fits && !(self.stream && *encoding == Encoding::Yaml)
            })
            .map(|(_, encoding)| encoding)
    }
}

/// More clauses than this are not sorted by insertion in Go.
const MOST_INSERTED: usize = 12;

/// The first clause of an `Accept` header that we can answer, in Go's order. Malformed clauses are left out; a quality
/// of zero is a quality like another.
// goautoneg: ParseAccept; apiserver: negotiation/negotiate.go, NegotiateMediaTypeOptions
fn best(header: &str) -> Option<(Clause<'_>, Encoding)> {
    let clauses = || header.split(',').filter_map(parse_clause);
    let mut few: Vec<_> = clauses().take(MOST_INSERTED + 1).collect();
    if few.len() > MOST_INSERTED {
        // Go's result depends on its sorting algorithm here. We take the best by quality, wildcards last, the earliest
        // of equals; without a list, since anybody can send a long header.
        return clauses().filter_map(|clause| clause.encoding().map(|encoding| (clause, encoding))).min_by(
            |(a, _), (b, _)| {
                let wild = |clause: &Clause<'_>| (clause.main == "*", clause.sub == "*");
                b.quality.total_cmp(&a.quality).then_with(|| wild(a).cmp(&wild(b)))
            },
        );
    }
    // Since the relation is not an order, the steps of the sorting are the result.
    for end in 1..few.len() {
        let mut at = end;
        while at > 0
            && let (Some(this), Some(before)) = (few.get(at), few.get(at - 1))
            && this.before(before)
        {
            few.swap(at, at - 1);
            at -= 1;
        }
    }
    few.into_iter().find_map(|clause| clause.encoding().map(|encoding| (clause, encoding)))
}

fn parse_clause(clause: &str) -> Option<Clause<'_>> {
    let clause = clause.trim_matches(' ');
    let (media_type, parameters) = clause.split_once(';').unwrap_or((clause, ""));
    let (main, rest) = media_type.split_once('/').unwrap_or((media_type, ""));
    let main = main.trim_matches(' ');
    let sub = if rest.is_empty() {
        // "*" alone means everything; any other type needs a subtype.
        (main == "*").then_some("*")?
    } else {
        let (sub, rest) = rest.split_once('/').unwrap_or((rest, ""));
        if !rest.is_empty() {
            return None;
        }
        sub.trim_matches(' ')
    };
    let mut quality = 1.0;
    let mut last = Parameters::default();
    for parameter in parameters.split(';') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let (value, rest) = value.split_once('=').unwrap_or((value, ""));
        if value.is_empty() || !rest.is_empty() {
            continue;
        }
        match name.trim_matches(' ') {
            "q" => quality = value.parse::<f32>().map_or(0.0, f64::from),
            "as" | "g" | "v" => last.converts = true,
            "stream" => last.stream = value.trim_matches(' '),
            "sv" => last.server_version = value.trim_matches(' '),
            "pretty" => last.pretty = value.trim_matches(' '),
            _ => {}
        }
    }
    Some(Clause {
        main,
        sub,
        quality,
        pretty: last.pretty == "1",
        stream: !last.stream.is_empty(),
        allowed: !last.converts && last.server_version.is_empty() && matches!(last.stream, "" | "watch"),
    })
}

/// The parameters of a clause; of a repeated one the last counts.
// apiserver: negotiation/negotiate.go, acceptMediaTypeOptions
#[derive(Default)]
struct Parameters<'a> {
    converts: bool,
    stream: &'a str,
    server_version: &'a str,
    pretty: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Compact,
    Indented,
}

/// Writes the Status as Go does: the fields in the order of the struct, empty ones left out.
fn json(status: &Status, typed: bool, layout: Layout) -> String {
    let mut json = Json::new(layout);
    json.open('{');
    if typed {
        json.string("kind", "Status");
        json.string("apiVersion", "v1");
    }
    json.key("metadata");
    json.open('{');
    json.close('}');
    json.string("status", "Failure");
    json.string("message", &status.message);
    json.string("reason", status.reason.as_str());
    if let Some(details) = &status.details {
        json.key("details");
        json.open('{');
        json.string("name", &details.name);
        json.string("group", &details.group);
        json.string("kind", &details.kind);
        json.string("uid", &details.uid);
        if !details.causes.is_empty() {
            json.key("causes");
            json.open('[');
            for cause in &details.causes {
                json.item();
                json.open('{');
                json.string("reason", &cause.kind);
                json.string("message", &cause.message);
                json.string("field", &cause.field);
                json.close('}');
            }
            json.close(']');
        }
        json.number("retryAfterSeconds", details.retry_after_seconds);
        json.close('}');
    }
    json.number("code", u32::from(status.code.as_u16()));
    json.close('}');
    json.out
}

/// A JSON text in the making, in Go's dialect.
struct Json {
    out: String,
    layout: Layout,
    depth: usize,
    /// Whether the innermost object or list has nothing in it yet.
    empty: bool,
}

impl Json {
    fn new(layout: Layout) -> Self {
        Self { out: String::with_capacity(256), layout, depth: 0, empty: true }
    }

    fn open(&mut self, bracket: char) {
        self.out.push(bracket);
        self.depth += 1;
        self.empty = true;
    }

    fn close(&mut self, bracket: char) {
        self.depth = self.depth.saturating_sub(1);
        if !self.empty {
            self.line();
        }
        self.out.push(bracket);
        self.empty = false;
    }

    /// Starts the next element.
    fn item(&mut self) {
        if !self.empty {
            self.out.push(',');
        }
        self.line();
        self.empty = false;
    }

    fn line(&mut self) {
        if self.layout == Layout::Indented {
            self.out.push('\n');
            for _ in 0..self.depth {
                self.out.push_str("  ");
            }
        }
    }

    fn key(&mut self, key: &str) {
        self.item();
        self.out.push('"');
        self.out.push_str(key);
        self.out.push_str(if self.layout == Layout::Indented { "\": " } else { "\":" });
    }

    fn string(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.key(key);
            push_json_string(&mut self.out, value);
        }
    }

    fn number(&mut self, key: &str, value: u32) {
        if value != 0 {
            self.key(key);
            self.out.push_str(&value.to_string());
        }
    }
}

/// Writes a string as Go's `encoding/json` does, which also escapes what a browser would read as HTML.
fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // A String takes every write.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Writes the Status as YAML: made from the JSON, so the keys are sorted.
fn yaml(status: &Status) -> String {
    let mut yaml = Yaml::default();
    yaml.raw("apiVersion: v1\ncode: ");
    yaml.raw(&status.code.as_u16().to_string());
    if let Some(details) = &status.details {
        yaml.line(0);
        if *details == Details::default() {
            yaml.raw("details: {}");
        } else {
            yaml.raw("details:");
            yaml_details(&mut yaml, details);
        }
    }
    yaml.line(0);
    yaml.raw("kind: Status");
    yaml_field(&mut yaml, 0, "message", &status.message);
    yaml.line(0);
    yaml.raw("metadata: {}");
    yaml_field(&mut yaml, 0, "reason", status.reason.as_str());
    yaml.line(0);
    yaml.raw("status: Failure");
    yaml.line(0);
    yaml.finish()
}

fn yaml_details(yaml: &mut Yaml, details: &Details) {
    if !details.causes.is_empty() {
        yaml.line(2);
        yaml.raw("causes:");
        for cause in &details.causes {
            yaml.line(2);
            yaml.raw("- ");
            let fields = [("field", &cause.field), ("message", &cause.message), ("reason", &cause.kind)];
            let mut written = false;
            for (key, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
                if written {
                    yaml.line(4);
                }
                yaml.raw(key);
                yaml.raw(": ");
                yaml.string(6, value);
                written = true;
            }
            if !written {
                yaml.raw("{}");
            }
        }
    }
    yaml_field(yaml, 2, "group", &details.group);
    yaml_field(yaml, 2, "kind", &details.kind);
    yaml_field(yaml, 2, "name", &details.name);
    if details.retry_after_seconds != 0 {
        yaml.line(2);
        yaml.raw("retryAfterSeconds: ");
        yaml.raw(&details.retry_after_seconds.to_string());
    }
    yaml_field(yaml, 2, "uid", &details.uid);
}

fn yaml_field(yaml: &mut Yaml, indent: usize, key: &str, value: &str) {
    if !value.is_empty() {
        yaml.line(indent);
        yaml.raw(key);
        yaml.raw(": ");
        yaml.string(indent + 2, value);
    }
}

/// Writes the Status as `runtime.Unknown` with the magic number in front. Strings are written even when empty.
// apimachinery: pkg/runtime/serializer/protobuf; pkg/apis/meta/v1/generated.proto
fn protobuf(status: &Status) -> Vec<u8> {
    let mut list_meta = Message::default();
    for field in 1..=3 {
        list_meta.bytes(field, b"");
    }
    let mut body = Message::default();
    body.bytes(1, &list_meta.0);
    body.bytes(2, b"Failure");
    body.bytes(3, status.message.as_bytes());
    body.bytes(4, status.reason.as_str().as_bytes());
    if let Some(details) = &status.details {
        let mut message = Message::default();
        message.bytes(1, details.name.as_bytes());
        message.bytes(2, details.group.as_bytes());
        message.bytes(3, details.kind.as_bytes());
        for cause in &details.causes {
            let mut each = Message::default();
            each.bytes(1, cause.kind.as_bytes());
            each.bytes(2, cause.message.as_bytes());
            each.bytes(3, cause.field.as_bytes());
            message.bytes(4, &each.0);
        }
        message.number(5, u64::from(details.retry_after_seconds));
        message.bytes(6, details.uid.as_bytes());
        body.bytes(5, &message.0);
    }
    body.number(6, u64::from(status.code.as_u16()));

    let mut type_meta = Message::default();
    type_meta.bytes(1, b"v1");
    type_meta.bytes(2, b"Status");
    let mut unknown = Message(b"k8s\0".to_vec());
    unknown.bytes(1, &type_meta.0);
    unknown.bytes(2, &body.0);
    unknown.bytes(3, b"");
    unknown.bytes(4, b"");
    unknown.0
}

/// A protobuf message in the making. Field numbers are below sixteen, so that a tag is one byte.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn bytes(&mut self, field: u8, value: &[u8]) {
        self.0.push(field << 3 | 2);
        self.varint(u64::try_from(value.len()).unwrap_or_default());
        self.0.extend_from_slice(value);
    }

    fn number(&mut self, field: u8, value: u64) {
        self.0.push(field << 3);
        self.varint(value);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
            value >>= 7;
        }
        self.0.push(u8::try_from(value).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests;
