//! An audit event, `audit.k8s.io/v1` `Event`, and its encodings: JSON byte for byte as Go writes it, and the legacy line.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use portcullis_go::json::encode_into;
use portcullis_go::quote::Quoted;
use portcullis_go::time::{Date, Time};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// How much of a request is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
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
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The level of the rule that matched.
    pub level: Level,
    /// The ID of the request, which all its events and the API server's share.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// The stage.
    pub stage: Stage,
    /// The path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The verb of Kubernetes; for a request without a resource the method in lower case.
    pub verb: Cow<'static, str>,
    /// The client.
    pub user: Arc<UserInfo>,
    /// The impersonated user, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<Arc<UserInfo>>,
    /// How the impersonation was authorized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication_metadata: Option<AuthenticationMetadata>,
    /// The addresses from which the request came, the client's first.
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    pub source_ips: Vec<String>,
    /// The `User-Agent` header, cut at 1,024 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
    /// The object that the request names; `None` for a request without a resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ObjectReference>,
    /// The result; `None` while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<ResponseStatus>,
    /// The object or patch of the request, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_object: Option<Arc<RawValue>>,
    /// The object of the response, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_object: Option<Arc<RawValue>>,
    /// When the request was received.
    #[serde(serialize_with = "micro_time")]
    pub request_received_timestamp: SystemTime,
    /// When the stage was reached.
    #[serde(serialize_with = "micro_time")]
    pub stage_timestamp: SystemTime,
    /// What authentication, authorization and admission have noted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A user, `authentication.k8s.io/v1` `UserInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UserInfo {
    /// The name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The unique ID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Further attributes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// How a request was authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationMetadata {
    /// The verb of the constrained impersonation that was authorized.
    pub impersonation_constraint: String,
}

/// The object that a request names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// The resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// The namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The API group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// The version of the API group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The resource version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// The result of a request: the fields of a `Status` that kube-apiserver copies.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ResponseStatus {
    /// Always empty.
    pub metadata: Empty,
    /// `Success` or `Failure`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The message for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The details, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<RawValue>>,
    /// The status code of HTTP.
    #[serde(skip_serializing_if = "is_zero")]
    pub code: u16,
}

/// An empty JSON object.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Empty {}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature of serde")]
fn is_zero(code: &u16) -> bool {
    *code == 0
}

/// `metav1.MicroTime`: UTC, six digits of a second.
fn micro_time<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let date = Date::of(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    let Date { year, month, day, hour, minute, second, .. } = date;
    let mut text = *b"0000-00-00T00:00:00.000000Z";
    let micros = i64::from(since.subsec_micros());
    let fields = [(year, 4), (month, 7), (day, 10), (hour, 13), (minute, 16), (second, 19), (micros, 26)];
    for (value, end) in fields {
        write_digits(&mut text, end, value);
    }
    serializer.serialize_str(std::str::from_utf8(&text).unwrap_or_default())
}

/// Writes a number so that it ends at `end`, over zeros.
fn write_digits(text: &mut [u8], end: usize, mut value: i64) {
    for place in text.iter_mut().take(end).rev() {
        if value == 0 {
            return;
        }
        *place = b"0123456789".get(usize::try_from(value % 10).unwrap_or_default()).copied().unwrap_or(b'0');
        value /= 10;
    }
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
#[derive(Debug, Clone)]
pub struct EncodedEvent(Bytes);

impl EncodedEvent {
    /// The event with `kind` and `apiVersion`, and a newline.
    pub fn line(&self) -> &Bytes {
        &self.0
    }

    /// The size that truncation compares with its limits: that of [`Self::line`].
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// An `EventList` with the events of these [lines](Self::line).
    pub fn list<'a>(lines: impl IntoIterator<Item = &'a Bytes> + Clone) -> Bytes {
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

/// A line without `kind` and `apiVersion`, without its opening brace.
fn fields(line: &[u8]) -> &[u8] {
    let fields = line.get(EVENT_HEAD.len() + 1..).unwrap_or_default();
    fields.strip_suffix(b"\n").unwrap_or(fields)
}

impl Event {
    /// The JSON of the event. Raw objects are compacted and escaped as Go's encoder does.
    // apimachinery: pkg/runtime/serializer/json/json.go
    pub fn encode(&self) -> EncodedEvent {
        thread_local! {
            static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        // The queues count lengths, so the event gets an allocation of its own size.
        let mut json = BUFFER.take();
        json.clear();
        json.extend_from_slice(EVENT_HEAD);
        encode_into(&mut json, self);
        // The opening brace of the fields.
        if let Some(brace) = json.get_mut(EVENT_HEAD.len()) {
            *brace = b',';
        }
        json.push(b'\n');
        let event = EncodedEvent(Bytes::copy_from_slice(&json));
        if json.capacity() <= MAX_BUFFER {
            BUFFER.set(json);
        }
        event
    }

    /// The event without its objects, with an annotation that says so.
    // apiserver: plugin/pkg/audit/truncate/truncate.go, truncate
    #[must_use]
    pub fn truncated(&self) -> Self {
        let mut event = Self { request_object: None, response_object: None, ..self.clone() };
        event.annotations.insert(TRUNCATED.to_owned(), "true".to_owned());
        event
    }

    /// The event as one line of text, with a newline. Its time is in `zone`, as kube-apiserver's is in that of the machine.
    // apiserver: pkg/audit/format.go, EventString
    pub fn legacy_line(&self, zone: &TimeZone) -> String {
        let or_none = |text: &'_ str| if text.is_empty() { "<none>".to_owned() } else { text.to_owned() };
        let user = or_none(&self.user.username);
        let groups = if self.user.username.is_empty() || self.user.groups.is_empty() {
            or_none("")
        } else {
            quoted_list(&self.user.groups)
        };
        // An impersonated user has groups in Go if it has any.
        let (as_user, as_groups) = match self.impersonated_user.as_deref() {
            Some(UserInfo { username, groups, .. }) if !groups.is_empty() => {
                (username.as_str(), quoted_list(groups))
            }
            Some(UserInfo { username, .. }) => (username.as_str(), "<lookup>".to_owned()),
            None => ("<self>", "<lookup>".to_owned()),
        };
        let namespace = or_none(self.object_ref.as_ref().map_or("", |object| &object.namespace));
        let response = self.response_status.as_ref();
        let response = response.map_or("<deferred>".to_owned(), |status| status.code.to_string());
        let ip = self.source_ips.first().map_or("<unknown>", String::as_str);
        format!(
            "{} AUDIT: id={} stage={} ip={} method={} user={} groups={} as={} asgroups={} user-agent={} namespace={} \
             uri={} response=\"{response}\"\n",
            local_time(self.request_received_timestamp, zone),
            Quoted(&self.audit_id),
            Quoted(self.stage.as_str()),
            Quoted(ip),
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
    pub fn as_str(self) -> &'static str {
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
