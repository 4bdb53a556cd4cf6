//! The audit ID of a request, which the gateway's log and the backend's audit log share. A client may choose it.
// apiserver: pkg/endpoints/filters/audit_init.go

use http::header::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

/// The header with the audit ID.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The length of a client's audit ID in log lines.
// apiserver: pkg/audit/context.go
const MAX_LOGGED_AUDIT_ID: usize = 64;

/// The audit ID that the client has chosen, or a new one.
pub(super) fn chosen_or_new(headers: &HeaderMap) -> HeaderValue {
    let client_id = headers.get(AUDIT_ID).filter(|id| !id.is_empty());
    // A copy: the client's is a part of the buffer of the header, and this one stays until a watch ends.
    let client_id = client_id.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok());
    let mut audit_id = client_id.unwrap_or_else(new_audit_id);
    // It is unique, so HPACK should not evict repeated headers for it.
    audit_id.set_sensitive(true);
    audit_id
}

fn new_audit_id() -> HeaderValue {
    let mut buffer = Uuid::encode_buffer();
    let text = Uuid::new_v4().hyphenated().encode_lower(&mut buffer);
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// An audit ID in log lines and messages. A client chooses it freely.
pub(super) fn shown_audit_id(audit_id: &HeaderValue) -> String {
    String::from_utf8_lossy(audit_id.as_bytes()).chars().take(MAX_LOGGED_AUDIT_ID).collect()
}
