//! The JSON of an event: `audit.k8s.io/v1` in the order and with the escapes of Go. Written field by field, because a
//! gateway writes one event for each request.
// apiserver: pkg/apis/audit/v1/types.go; apimachinery: pkg/apis/meta/v1/micro_time.go

use std::collections::BTreeMap;
use std::time::SystemTime;

use portcullis_go::json::{compact_into, string_into};
use portcullis_go::time::Date;
use serde_json::value::RawValue;

use super::{Event, ObjectReference, ResponseStatus, UserInfo};

/// Appends the fields of an event, each behind a comma.
pub(super) fn write_fields(out: &mut Vec<u8>, event: &Event) {
    let mut fields = Fields { out, is_empty: false };
    fields.string("level", event.level.as_str());
    fields.string("auditID", &event.audit_id);
    fields.string("stage", event.stage.as_str());
    fields.string("requestURI", &event.request_uri);
    fields.string("verb", &event.verb);
    write_user(fields.value("user"), &event.user);
    if let Some(user) = &event.impersonated_user {
        write_user(fields.value("impersonatedUser"), user);
    }
    if let Some(metadata) = &event.authentication_metadata {
        object(fields.value("authenticationMetadata"), |fields| {
            fields.string("impersonationConstraint", &metadata.impersonation_constraint);
        });
    }
    fields.list("sourceIPs", &event.source_ips);
    fields.string_if_set("userAgent", &event.user_agent);
    if let Some(reference) = &event.object_ref {
        object(fields.value("objectRef"), |fields| write_reference(fields, reference));
    }
    if let Some(status) = &event.response_status {
        object(fields.value("responseStatus"), |fields| write_status(fields, status));
    }
    fields.raw("requestObject", event.request_object.as_deref());
    fields.raw("responseObject", event.response_object.as_deref());
    let mut time = MicroTime::of(event.request_received_timestamp);
    fields.value("requestReceivedTimestamp").extend_from_slice(&time.text);
    time.set(event.stage_timestamp);
    fields.value("stageTimestamp").extend_from_slice(&time.text);
    if !event.annotations.is_empty() {
        write_map(fields.value("annotations"), &event.annotations, |out, text| string_into(out, text));
    }
}

fn write_user(out: &mut Vec<u8>, user: &UserInfo) {
    object(out, |fields| {
        fields.string_if_set("username", &user.username);
        fields.string_if_set("uid", &user.uid);
        fields.list("groups", &user.groups);
        if !user.extra.is_empty() {
            write_map(fields.value("extra"), &user.extra, |out, values| write_list(out, values));
        }
    });
}

fn write_reference(fields: &mut Fields<'_>, reference: &ObjectReference) {
    fields.string_if_set("resource", &reference.resource);
    fields.string_if_set("namespace", &reference.namespace);
    fields.string_if_set("name", &reference.name);
    fields.string_if_set("uid", &reference.uid);
    fields.string_if_set("apiGroup", &reference.api_group);
    fields.string_if_set("apiVersion", &reference.api_version);
    fields.string_if_set("resourceVersion", &reference.resource_version);
    fields.string_if_set("subresource", &reference.subresource);
}

fn write_status(fields: &mut Fields<'_>, status: &ResponseStatus) {
    // The metadata of a list, which is always empty here.
    fields.value("metadata").extend_from_slice(b"{}");
    fields.string_if_set("status", &status.status);
    fields.string_if_set("message", &status.message);
    fields.string_if_set("reason", &status.reason);
    fields.raw("details", status.details.as_deref());
    if status.code != 0 {
        write_number(fields.value("code"), status.code);
    }
}

/// The fields of an object.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

impl Fields<'_> {
    /// Appends a key, which needs no escapes, and returns where its value is written.
    fn value(&mut self, key: &'static str) -> &mut Vec<u8> {
        self.out.extend_from_slice(if self.is_empty { b"\"" } else { b",\"" });
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.is_empty = false;
        self.out
    }

    fn string(&mut self, key: &'static str, value: &str) {
        string_into(self.value(key), value);
    }

    fn string_if_set(&mut self, key: &'static str, value: &str) {
        if !value.is_empty() {
            self.string(key, value);
        }
    }

    fn list(&mut self, key: &'static str, values: &[String]) {
        if !values.is_empty() {
            write_list(self.value(key), values);
        }
    }

    fn raw(&mut self, key: &'static str, value: Option<&RawValue>) {
        if let Some(value) = value {
            compact_into(self.value(key), value.get().as_bytes());
        }
    }
}

fn object(out: &mut Vec<u8>, write: impl FnOnce(&mut Fields<'_>)) {
    out.push(b'{');
    write(&mut Fields { out, is_empty: true });
    out.push(b'}');
}

fn write_list(out: &mut Vec<u8>, values: &[String]) {
    out.push(b'[');
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        string_into(out, value);
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
    let mut digits = *b"00000";
    write_digits(&mut digits, 5, number.into());
    let zeros = digits.iter().take(4).take_while(|digit| **digit == b'0').count();
    out.extend_from_slice(digits.get(zeros..).unwrap_or_default());
}

/// `metav1.MicroTime` in quotes: UTC, six digits of a second.
struct MicroTime {
    seconds: u64,
    text: [u8; 29],
}

impl MicroTime {
    fn of(time: SystemTime) -> Self {
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let date = Date::of(i64::try_from(seconds).unwrap_or(i64::MAX));
        let Date { year, month, day, hour, minute, second, .. } = date;
        let mut text = *br#""0000-00-00T00:00:00.000000Z""#;
        let year = year.clamp(0, 9999);
        for (value, end) in [(year, 5), (month, 8), (day, 11), (hour, 14), (minute, 17), (second, 20)] {
            write_digits(&mut text, end, value);
        }
        let mut written = Self { seconds, text };
        written.set(time);
        written
    }

    /// Changes the time. Within a second, its digits alone.
    fn set(&mut self, time: SystemTime) {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if since.as_secs() != self.seconds {
            *self = Self::of(time);
            return;
        }
        if let Some(micros) = self.text.get_mut(21..27) {
            micros.fill(b'0');
            write_digits(micros, 6, i64::from(since.subsec_micros()));
        }
    }
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
