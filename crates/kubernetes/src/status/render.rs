//! Renders a [`Status`] as a response: negotiates the encoding, and encodes.
//!
//! Follows `k8s.io/apiserver/pkg/endpoints/handlers/{negotiation,responsewriters}` with the serializers of
//! `apimachinery/pkg/runtime/serializer`: JSON is the default, and an `Accept` without a match never changes the code.
//! Sets the headers of the body, `Retry-After` and `X-Content-Type-Options`; `pipeline::respond` sets the headers of
//! every response (`Audit-Id`, `Cache-Control`, …).

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_go::url::query;
use prost::Message;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::{Cause, Details, Form, Status};
use crate::encoding::{self, Envelope};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const YAML: HeaderValue = HeaderValue::from_static("application/yaml");
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// The parts of a request that select the encoding.
#[derive(Debug, Clone, Default)]
pub struct Negotiation<'a> {
    /// The first `Accept` header; empty if absent.
    pub accept: Cow<'a, str>,
    /// The raw query of the request.
    pub query: Option<&'a str>,
    /// The first `User-Agent` header; empty if absent.
    pub user_agent: Cow<'a, str>,
}

impl<'a> Negotiation<'a> {
    /// Reads them from a request.
    pub fn of(headers: &'a HeaderMap, query: Option<&'a str>) -> Self {
        let first = |name: HeaderName| {
            headers.get(name).map_or(Cow::Borrowed(""), |value| String::from_utf8_lossy(value.as_bytes()))
        };
        Self { accept: first(header::ACCEPT), query, user_agent: first(header::USER_AGENT) }
    }

    // apiserver: pkg/endpoints/handlers/negotiation/negotiate.go, NegotiateOutputMediaType
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

    /// Whether the client accepts none of the encodings, so that it receives JSON all the same.
    pub fn is_unacceptable(&self) -> bool {
        self.encoding() == Encoding::RawJson
    }

    /// Whether the response is indented for a person.
    // apiserver: pkg/endpoints/handlers/negotiation/negotiate.go, isPrettyPrint
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
        Form::Negotiated => negotiated(status.into(), negotiation),
        Form::Untyped => (line(&StatusObject::from(status)), TEXT),
        Form::Text => (format!("{}\n", status.message).into(), TEXT),
    };
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

/// Writes the answer of an admission webhook: a `Status` that the gateway does not choose.
pub fn render_denial(status: &meta::Status, negotiation: &Negotiation<'_>) -> Response<Bytes> {
    let object = StatusObject::from(status);
    let code = u16::try_from(object.code).ok().and_then(|code| StatusCode::from_u16(code).ok());
    let seconds = object.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    let (body, content_type) = negotiated(object, negotiation);
    let mut response = Response::new(body);
    *response.status_mut() = code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    if seconds > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn negotiated(status: StatusObject, negotiation: &Negotiation<'_>) -> (Bytes, HeaderValue) {
    let typed = |status| Typed { kind: "Status", api_version: "v1", status };
    match negotiation.encoding() {
        Encoding::Json => (line(&typed(status)), JSON),
        Encoding::PrettyJson | Encoding::RawJson => {
            (encoding::pretty_json(&typed(status)).unwrap_or_default().into(), JSON)
        }
        Encoding::Yaml => {
            let status = typed(status);
            // JSON is YAML too.
            (encoding::yaml(&status).map_or_else(|| line(&status), Bytes::from), YAML)
        }
        Encoding::Protobuf => (Envelope::of("v1", "Status", &status).to_bytes().into(), PROTOBUF),
    }
}

/// One clause of an `Accept` header.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Clause<'a> {
    main: &'a str,
    sub: &'a str,
    quality: f64,
    pretty: bool,
    stream: bool,
    /// False if a parameter requests another kind or server version, which an error does not have.
    allowed: bool,
}

impl Clause<'_> {
    /// Not an order: a clause without a wildcard precedes a clause with one, whatever their qualities.
    // goautoneg: acceptSlice.Less
    fn before(&self, other: &Self) -> bool {
        self.quality > other.quality
            || self.main != "*" && other.main == "*"
            || self.sub != "*" && other.sub == "*"
    }

    /// The first offered encoding that the clause accepts.
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
                // A watch is JSON or protobuf; YAML has no stream.
                fits && !(self.stream && *encoding == Encoding::Yaml)
            })
            .map(|(_, encoding)| encoding)
    }
}

/// More clauses than this are not sorted by insertion in Go.
const MAX_INSERTION_SORT: usize = 12;

/// The first clause of an `Accept` header that we can answer, in Go's order. Malformed clauses are left out; a quality
/// of zero is a quality like another.
// goautoneg: ParseAccept; apiserver: pkg/endpoints/handlers/negotiation/negotiate.go, NegotiateMediaTypeOptions
fn best(header: &str) -> Option<(Clause<'_>, Encoding)> {
    let clauses = || header.split(',').filter_map(parse_clause);
    let mut few: Vec<_> = clauses().take(MAX_INSERTION_SORT + 1).collect();
    if few.len() > MAX_INSERTION_SORT {
        // Go's result depends on its sorting algorithm here. We take the best by quality, wildcards last, the earliest
        // of equals; without a list, since any client can send a long header.
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
// apiserver: pkg/endpoints/handlers/negotiation/negotiate.go, acceptMediaTypeOptions
#[derive(Default)]
struct Parameters<'a> {
    converts: bool,
    stream: &'a str,
    server_version: &'a str,
    pretty: &'a str,
}

fn line(object: &impl Serialize) -> Bytes {
    // Text and numbers can always be written.
    let mut line = encoding::json(object).unwrap_or_default();
    line.push('\n');
    line.into()
}

/// A `Status` as JSON.
pub fn as_json(status: StatusObject) -> Result<Box<RawValue>, serde_json::Error> {
    to_raw_value(&Typed { kind: "Status", api_version: "v1", status })
}

/// `Status` with its kind and version, which JSON has among its fields and protobuf has around it.
#[derive(Serialize)]
struct Typed {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    #[serde(flatten)]
    status: StatusObject,
}

/// Fields are in the order of kube-apiserver's JSON.
// apimachinery: pkg/apis/meta/v1/generated.proto, Status
#[derive(Clone, PartialEq, Message, Serialize)]
pub struct StatusObject {
    #[prost(message, required, tag = "1")]
    metadata: ListMeta,
    /// `Success` or `Failure`.
    #[prost(string, required, tag = "2")]
    pub status: String,
    /// The text for people.
    #[prost(string, required, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason for programs.
    #[prost(string, required, tag = "4")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Further data of the reason.
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
    #[prost(uint32, required, tag = "6")]
    code: u32,
}

/// Empty in every `Status` but those of webhooks.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    #[prost(string, required, tag = "1")]
    #[serde(skip_serializing_if = "String::is_empty")]
    self_link: String,
    #[prost(string, required, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    resource_version: String,
    #[prost(string, required, tag = "3")]
    #[serde(rename = "continue", skip_serializing_if = "String::is_empty")]
    continue_token: String,
}

impl From<&Status> for StatusObject {
    fn from(status: &Status) -> Self {
        Self {
            metadata: ListMeta::default(),
            status: "Failure".to_owned(),
            message: status.message.clone(),
            reason: status.reason.as_str().to_owned(),
            details: status.details.clone(),
            code: status.code.as_u16().into(),
        }
    }
}

impl From<&meta::Status> for StatusObject {
    fn from(status: &meta::Status) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let number = |number: Option<i32>| number.and_then(|number| u32::try_from(number).ok());
        Self {
            metadata: ListMeta {
                self_link: text(&status.metadata.self_link),
                resource_version: text(&status.metadata.resource_version),
                continue_token: text(&status.metadata.continue_),
            },
            status: text(&status.status),
            message: text(&status.message),
            reason: text(&status.reason),
            details: status.details.as_ref().map(|details| Details {
                name: text(&details.name),
                group: text(&details.group),
                kind: text(&details.kind),
                uid: text(&details.uid),
                causes: details.causes.iter().flatten().map(Cause::from).collect(),
                retry_after_seconds: number(details.retry_after_seconds).unwrap_or_default(),
            }),
            code: number(status.code).unwrap_or_default(),
        }
    }
}

impl From<&meta::StatusCause> for Cause {
    fn from(cause: &meta::StatusCause) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self { reason: text(&cause.reason), message: text(&cause.message), field: text(&cause.field) }
    }
}

#[cfg(test)]
mod tests;
