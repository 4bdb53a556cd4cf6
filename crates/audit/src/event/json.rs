//! The JSON of an event: `audit.k8s.io/v1` in the order and with the escapes of Go. Written field by field, because a
//! gateway writes one event for each request.
// apiserver: pkg/apis/audit/v1/types.go; apimachinery: pkg/apis/meta/v1/micro_time.go

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::IpAddr;
use std::time::SystemTime;

use portcullis_go::json::{compact_into, escaped_into, string_into};
use portcullis_go::time::Date;
use serde_json::value::RawValue;

use super::{Event, ObjectReference, ResponseStatus};

/// The key of a field behind a comma, as a constant. No key needs escapes.
macro_rules! key {
    ($key:literal) => {
        concat!(",\"", $key, "\":")
    };
}

/// The key of a string, up to its opening quote.
macro_rules! string_key {
    ($key:literal) => {
        concat!(",\"", $key, "\":\"")
    };
}

/// Appends the fields of an event, each behind a comma.
pub(super) fn write_fields(out: &mut Vec<u8>, event: &Event<'_>) {
    name(out, string_key!("level"), event.level.as_str());
    string(out, string_key!("auditID"), &event.audit_id);
    name(out, string_key!("stage"), event.stage.as_str());
    string(out, string_key!("requestURI"), &event.request_uri);
    string(out, string_key!("verb"), &event.verb);
    verbatim(out, key!("user"), event.user.json());
    if let Some(user) = &event.impersonated_user {
        verbatim(out, key!("impersonatedUser"), user.json());
    }
    if let Some(metadata) = &event.authentication_metadata {
        object(value(out, key!("authenticationMetadata")), |out| {
            string(out, string_key!("impersonationConstraint"), &metadata.impersonation_constraint);
        });
    }
    if !event.source_ips.is_empty() {
        list(value(out, key!("sourceIPs")), &event.source_ips, |out, ip| write_address(out, *ip));
    }
    string_if_set(out, string_key!("userAgent"), &event.user_agent);
    if let Some(reference) = &event.object_ref {
        object(value(out, key!("objectRef")), |out| write_reference(out, reference));
    }
    if let Some(status) = &event.response_status {
        object(value(out, key!("responseStatus")), |out| write_status(out, status));
    }
    raw(out, key!("requestObject"), event.request_object.as_deref());
    raw(out, key!("responseObject"), event.response_object.as_deref());
    let mut time = LAST.get();
    time.set(event.request_received_timestamp);
    verbatim(out, key!("requestReceivedTimestamp"), &time.text);
    time.set(event.stage_timestamp);
    verbatim(out, key!("stageTimestamp"), &time.text);
    LAST.set(time);
    if !event.annotations.is_empty() {
        write_map(value(out, key!("annotations")), &event.annotations, |out, text| string_into(out, text));
    }
}

fn write_reference(out: &mut Vec<u8>, reference: &ObjectReference<'_>) {
    string_if_set(out, string_key!("resource"), &reference.resource);
    string_if_set(out, string_key!("namespace"), &reference.namespace);
    string_if_set(out, string_key!("name"), &reference.name);
    string_if_set(out, string_key!("uid"), &reference.uid);
    string_if_set(out, string_key!("apiGroup"), &reference.api_group);
    string_if_set(out, string_key!("apiVersion"), &reference.api_version);
    string_if_set(out, string_key!("resourceVersion"), &reference.resource_version);
    string_if_set(out, string_key!("subresource"), &reference.subresource);
}

fn write_status(out: &mut Vec<u8>, status: &ResponseStatus) {
    // The metadata of a list, which is always empty here.
    verbatim(out, key!("metadata"), b"{}");
    string_if_set(out, string_key!("status"), &status.status);
    string_if_set(out, string_key!("message"), &status.message);
    string_if_set(out, string_key!("reason"), &status.reason);
    raw(out, key!("details"), status.details.as_deref());
    if status.code != 0 {
        write_number(value(out, key!("code")), status.code);
    }
}

/// Appends a key, and returns where its value is written.
fn value<'a>(out: &'a mut Vec<u8>, key: &'static str) -> &'a mut Vec<u8> {
    out.extend_from_slice(key.as_bytes());
    out
}

/// A field whose value is JSON as it is to be written.
fn verbatim(out: &mut Vec<u8>, key: &'static str, json: &[u8]) {
    value(out, key).extend_from_slice(json);
}

/// A string that needs no escapes.
fn name(out: &mut Vec<u8>, key: &'static str, name: &'static str) {
    value(out, key).extend_from_slice(name.as_bytes());
    out.push(b'"');
}

fn string(out: &mut Vec<u8>, key: &'static str, text: &str) {
    escaped_into(value(out, key), text);
    out.push(b'"');
}

fn string_if_set(out: &mut Vec<u8>, key: &'static str, text: &str) {
    if !text.is_empty() {
        string(out, key, text);
    }
}

fn raw(out: &mut Vec<u8>, key: &'static str, json: Option<&RawValue>) {
    if let Some(json) = json {
        compact_into(value(out, key), json.get().as_bytes());
    }
}

/// Appends an object of the fields that `write` appends.
fn object(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    write(out);
    // The comma of the first field gives way to the brace.
    match out.get_mut(start) {
        Some(comma) => *comma = b'{',
        None => out.push(b'{'),
    }
    out.push(b'}');
}

/// An address needs no escapes.
fn write_address(out: &mut Vec<u8>, address: IpAddr) {
    out.push(b'"');
    match address {
        IpAddr::V4(address) => {
            for (at, octet) in address.octets().into_iter().enumerate() {
                if at > 0 {
                    out.push(b'.');
                }
                write_number(out, octet.into());
            }
        }
        // Writing to memory cannot fail.
        IpAddr::V6(address) => write!(out, "{address}").unwrap_or_default(),
    }
    out.push(b'"');
}

fn list<V>(out: &mut Vec<u8>, values: &[V], write: impl Fn(&mut Vec<u8>, &V)) {
    out.push(b'[');
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write(out, value);
    }
    out.push(b']');
}

fn write_map<V>(out: &mut Vec<u8>, map: &BTreeMap<String, V>, write: impl Fn(&mut Vec<u8>, &V)) {
    out.push(b'{');
    for (at, (key, value)) in map.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        string_into(out, key);
        out.push(b':');
        write(out, value);
    }
    out.push(b'}');
}

fn write_number(out: &mut Vec<u8>, number: u16) {
    for unit in [10_000, 1000, 100, 10, 1] {
        if number >= unit || unit == 1 {
            out.push(digit((number / unit % 10).into()));
        }
    }
}

fn digit(value: i64) -> u8 {
    b"0123456789".get(usize::try_from(value).unwrap_or_default()).copied().unwrap_or(b'0')
}

thread_local! {
    /// The last time: nearly every event is of the same second as the one before.
    static LAST: Cell<MicroTime> = Cell::new(MicroTime::of(SystemTime::UNIX_EPOCH));
}

/// `metav1.MicroTime` in quotes: UTC, six digits of a second.
#[derive(Clone, Copy)]
struct MicroTime {
    seconds: u64,
    text: [u8; 29],
}

impl MicroTime {
    fn of(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = since.as_secs();
        let date = Date::of(i64::try_from(seconds).unwrap_or(i64::MAX));
        let Date { year, month, day, hour, minute, second, .. } = date;
        let mut text = *br#""0000-00-00T00:00:00.000000Z""#;
        let year = year.clamp(0, 9999);
        for (value, end) in [(year, 5), (month, 8), (day, 11), (hour, 14), (minute, 17), (second, 20)] {
            write_digits(&mut text, end, value);
        }
        let mut written = Self { seconds, text };
        written.set_micros(since.subsec_micros());
        written
    }

    /// Changes the time. Within a second, its digits alone.
    fn set(&mut self, time: SystemTime) {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if since.as_secs() == self.seconds {
            self.set_micros(since.subsec_micros());
        } else {
            *self = Self::of(time);
        }
    }

    fn set_micros(&mut self, micros: u32) {
        if let Some(digits) = self.text.get_mut(21..27) {
            digits.fill(b'0');
            write_digits(digits, 6, i64::from(micros));
        }
    }
}

/// Writes a number so that it ends at `end`, over zeros.
fn write_digits(text: &mut [u8], end: usize, mut value: i64) {
    for place in text.iter_mut().take(end).rev() {
        if value == 0 {
            return;
        }
        *place = digit(value % 10);
        value /= 10;
    }
}
