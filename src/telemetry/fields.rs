//! Formats the fields of a text log line. A value from outside (a client, an issuer, a webhook, an API server) must not
//! look like another field, end the line, or reach the terminal as a control sequence: the formatter quotes values that
//! are not plain, and truncates long ones. The same holds for messages that contain such values. Values of the
//! certificate audit trail are never truncated: the requester would choose the part that is cut off.
// threat: forged-log-lines, unlogged-certificate

use std::borrow::Cow;
use std::fmt::{self, Debug, Write as _};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// Longer values are truncated.
const MAX_VALUE_BYTES: usize = 1024;
/// A message may contain all errors of a configuration.
const MAX_MESSAGE_BYTES: usize = 16 << 10;
/// The fields of the certificate audit trail that a requester controls. Lines about requests that are not signed have a
/// `requester` too.
const AUDIT_FIELDS: [&str; 4] = ["names", "requester", "subject", "usages"];
/// Larger than any audit field: a request has at most 64 KiB, escaping its names makes them four times as long, and an
/// object has 1 MiB.
const MAX_AUDIT_BYTES: usize = 1 << 20;

/// Truncates a long value, and appends its length.
pub(crate) fn cut(text: &str) -> Cow<'_, str> {
    cut_at(text, MAX_VALUE_BYTES)
}

fn cut_at(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return Cow::Borrowed(text);
    }
    let beginning = text.get(..text.floor_char_boundary(limit)).unwrap_or_default();
    Cow::Owned(format!("{beginning}… ({} bytes)", text.len()))
}

/// A field formatter that quotes and truncates values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuotedFields;

impl<'writer> FormatFields<'writer> for QuotedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = FieldWriter { writer, is_first: true, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct FieldWriter<'writer> {
    writer: Writer<'writer>,
    is_first: bool,
    result: fmt::Result,
}

impl FieldWriter<'_> {
    fn write(&mut self, field: &Field, value: &str, is_text: bool) {
        // The metadata of `log` records is already in the line.
        if self.result.is_err() || field.name().starts_with("log.") {
            return;
        }
        let name = field.name().strip_prefix("r#").unwrap_or(field.name());
        let separator = if std::mem::take(&mut self.is_first) { "" } else { " " };
        if name == "message" {
            self.result = write!(self.writer, "{separator}{}", visible(&cut_at(value, MAX_MESSAGE_BYTES)));
            return;
        }
        let is_audit = AUDIT_FIELDS.contains(&name);
        let value = cut_at(value, if is_audit { MAX_AUDIT_BYTES } else { MAX_VALUE_BYTES });
        self.result = if is_text || !is_plain(&value) {
            write!(self.writer, "{separator}{name}={value:?}")
        } else {
            write!(self.writer, "{separator}{name}={value}")
        };
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, value, true);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        self.result = self.result.and(write!(text, "{value:?}"));
        self.write(field, &text, false);
    }
}

/// Whether a value is unambiguous without quotes.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'=\\".contains(&byte))
}

/// Escapes all characters that are not printable.
fn visible(text: &str) -> Cow<'_, str> {
    let is_shown = |c: char| matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1;
    if text.chars().all(is_shown) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_shown(c) { shown.push(c) } else { shown.extend(c.escape_debug()) }
    }
    Cow::Owned(shown)
}
