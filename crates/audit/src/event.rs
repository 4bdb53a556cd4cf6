//! An audit event, `audit.k8s.io/v1` `Event`, and its encodings: JSON byte for byte as Go writes it, and the legacy line.

mod json;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use portcullis_go::quote::Quoted;
use portcullis_go::time::Time;
use portcullis_kubernetes::user::{EncodedUser, UserInfo};
use serde_json::value::RawValue;

/// How much of a request is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Nothing.
    None,
    /// Who did what to which object, and with what result.
    Metadata,
    /// Also the object or patch of the request.
    Request,
    /// Also the object of the response.
    RequestResponse,
}

/// When an event of a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The client is authenticated.
    RequestReceived,
    /// The header of the response to a long-running request is sent.
    ResponseStarted,
    /// The response has ended.
    ResponseComplete,
    /// Handling the request panicked.
    Panic,
}

/// An audit event. Its fields, and their order, are those of `audit.k8s.io/v1`; `kind` and `apiVersion` are written by
/// the sinks, since the items of an `EventList` have none.
///
/// It borrows its texts: a request holds most of them anyway, and nothing but the encoding outlives it.
#[derive(Debug, Clone)]
pub struct Event<'a> {
    /// The level of the rule that matched.
    pub level: Level,
    /// The ID of the request, which all its events and the API server's share.
    pub audit_id: Cow<'a, str>,
    /// The stage.
    pub stage: Stage,
    /// The path and query.
    pub request_uri: Cow<'a, str>,
    /// The verb of Kubernetes; for a request without a resource the method in lower case.
    pub verb: Cow<'a, str>,
    /// The client.
    pub user: &'a EncodedUser,
    /// The impersonated user, if any.
    pub impersonated_user: Option<&'a EncodedUser>,
    /// How the impersonation was authorized.
    pub authentication_metadata: Option<AuthenticationMetadata<'a>>,
    /// The addresses from which the request came, the client's first.
    pub source_ips: Cow<'a, [IpAddr]>,
    /// The `User-Agent` header, cut at 1,024 bytes.
    pub user_agent: Cow<'a, str>,
    /// The object that the request names; `None` for a request without a resource.
    pub object_ref: Option<ObjectReference<'a>>,
    /// The result; `None` while there is none.
    pub response_status: Option<Cow<'a, ResponseStatus>>,
    /// The object or patch of the request, as JSON.
    pub request_object: Option<Arc<RawValue>>,
    /// The object of the response, as JSON.
    pub response_object: Option<Arc<RawValue>>,
    /// When the request was received.
    pub request_received_timestamp: SystemTime,
    /// When the stage was reached.
    pub stage_timestamp: SystemTime,
    /// What authentication, authorization and admission have noted.
    pub annotations: Cow<'a, BTreeMap<String, String>>,
}

/// How a request was authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticationMetadata<'a> {
    /// The verb of the constrained impersonation that was authorized.
    pub impersonation_constraint: Cow<'a, str>,
}

/// The object that a request names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectReference<'a> {
    /// The resource.
    pub resource: Cow<'a, str>,
    /// The namespace.
    pub namespace: Cow<'a, str>,
    /// The name.
    pub name: Cow<'a, str>,
    /// The UID.
    pub uid: Cow<'a, str>,
    /// The API group.
    pub api_group: Cow<'a, str>,
    /// The version of the API group.
    pub api_version: Cow<'a, str>,
    /// The resource version.
    pub resource_version: Cow<'a, str>,
    /// The subresource.
    pub subresource: Cow<'a, str>,
}

/// The result of a request: the fields of a `Status` that kube-apiserver copies.
#[derive(Debug, Clone, Default)]
pub struct ResponseStatus {
    /// `Success` or `Failure`.
    pub status: String,
    /// The message for people.
    pub message: String,
    /// The reason for programs.
    pub reason: String,
    /// The details, as JSON.
    pub details: Option<Box<RawValue>>,
    /// The status code of HTTP.
    pub code: u16,
}

/// The annotation of an event that was too large with its objects.
// apiserver: plugin/pkg/audit/truncate/truncate.go
const TRUNCATED: &str = "audit.k8s.io/truncated";

/// What comes before the fields of an event that is no item of a list.
const EVENT_HEAD: &[u8] = br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1""#;
const LIST_HEAD: &[u8] = br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#;
const LIST_TAIL: &[u8] = b"]}\n";
/// The largest buffer that a thread keeps for the next event.
const MAX_BUFFER: usize = 64 << 10;

/// An event as JSON: encoded once, written as a line to the log and as an item to the webhook.
#[derive(Debug)]
pub struct EncodedEvent(Vec<u8>);

thread_local! {
    /// The memory of the last event, for the next one.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl EncodedEvent {
    /// The event with `kind` and `apiVersion`, and a newline. Truncation compares its size with its limits.
    pub fn line(&self) -> &[u8] {
        &self.0
    }

    /// An `EventList` with the events of these [lines](Self::line).
    pub fn list<'a>(lines: impl IntoIterator<Item = &'a [u8]> + Clone) -> Bytes {
        let items: usize = lines.clone().into_iter().map(|line| fields(line).len() + 2).sum();
        let mut list = Vec::with_capacity(LIST_HEAD.len() + items + LIST_TAIL.len());
        list.extend_from_slice(LIST_HEAD);
        for (at, line) in lines.into_iter().enumerate() {
            list.extend_from_slice(if at == 0 { b"{" } else { b",{" });
            list.extend_from_slice(fields(line));
        }
        list.extend_from_slice(LIST_TAIL);
        list.into()
    }
}

impl Drop for EncodedEvent {
    fn drop(&mut self) {
        if self.0.capacity() <= MAX_BUFFER {
            BUFFER.set(std::mem::take(&mut self.0));
        }
    }
}

/// A line without `kind` and `apiVersion`, without its opening brace.
fn fields(line: &[u8]) -> &[u8] {
    let fields = line.get(EVENT_HEAD.len() + 1..).unwrap_or_default();
    fields.strip_suffix(b"\n").unwrap_or(fields)
}

impl Event<'_> {
    /// The JSON of the event. Raw objects are compacted and escaped as Go's encoder does.
    // apimachinery: pkg/runtime/serializer/json/json.go
    pub fn encode(&self) -> EncodedEvent {
        let mut json = BUFFER.take();
        json.clear();
        json.extend_from_slice(EVENT_HEAD);
        json::write_fields(&mut json, self);
        json.extend_from_slice(b"}\n");
        EncodedEvent(json)
    }

    /// The event without its objects, with an annotation that says so.
    // apiserver: plugin/pkg/audit/truncate/truncate.go, truncate
    #[must_use]
    pub fn truncated(&self) -> Self {
        let mut event = Self { request_object: None, response_object: None, ..self.clone() };
        event.annotations.to_mut().insert(TRUNCATED.to_owned(), "true".to_owned());
        event
    }

    /// The event as one line of text, with a newline. Its time is in `zone`, as kube-apiserver's is in that of the machine.
    // apiserver: pkg/audit/format.go, EventString
    pub fn legacy_line(&self, zone: &TimeZone) -> String {
        let or_none = |text: &'_ str| if text.is_empty() { "<none>".to_owned() } else { text.to_owned() };
        let user = or_none(&self.user.name);
        let groups = if self.user.name.is_empty() || self.user.groups.is_empty() {
            or_none("")
        } else {
            quoted_list(&self.user.groups)
        };
        // An impersonated user has groups in Go if it has any.
        let (as_user, as_groups) = match self.impersonated_user.map(Deref::deref) {
            Some(UserInfo { name, groups, .. }) if !groups.is_empty() => (name.as_str(), quoted_list(groups)),
            Some(user) => (user.name.as_str(), "<lookup>".to_owned()),
            None => ("<self>", "<lookup>".to_owned()),
        };
        let namespace = or_none(self.object_ref.as_ref().map_or("", |object| &object.namespace));
        let response = self.response_status.as_ref();
        let response = response.map_or("<deferred>".to_owned(), |status| status.code.to_string());
        let ip = self.source_ips.first().map_or("<unknown>".to_owned(), IpAddr::to_string);
        format!(
            "{} AUDIT: id={} stage={} ip={} method={} user={} groups={} as={} asgroups={} user-agent={} namespace={} \
             uri={} response=\"{response}\"\n",
            local_time(self.request_received_timestamp, zone),
            Quoted(&self.audit_id),
            Quoted(self.stage.as_str()),
            Quoted(&ip),
            Quoted(&self.verb),
            Quoted(&user),
            Quoted(&groups),
            Quoted(as_user),
            Quoted(&as_groups),
            Quoted(&self.user_agent),
            Quoted(&namespace),
            Quoted(&self.request_uri),
        )
    }
}

impl Level {
    /// Every level, from the least to the most.
    pub const ALL: [Self; 4] = [Self::None, Self::Metadata, Self::Request, Self::RequestResponse];

    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 4] =
        [Self::RequestReceived, Self::ResponseStarted, Self::ResponseComplete, Self::Panic];

    /// The name in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

fn quoted_list(texts: &[String]) -> String {
    let quoted: Vec<_> = texts.iter().map(|text| Quoted(text).to_string()).collect();
    quoted.join(",")
}

/// The layout `time.RFC3339Nano` in a time zone.
fn local_time(time: SystemTime, zone: &TimeZone) -> Time {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    let offset = Timestamp::from_second(seconds).map_or(0, |time| zone.to_offset(time).seconds());
    Time { seconds, nanoseconds: since.subsec_nanos(), offset }
}
