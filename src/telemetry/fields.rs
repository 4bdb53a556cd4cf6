//! The values of a text log line. A value from outside (a client, an issuer, a webhook, an API server) must not look like
//! another field, end the line, or reach the terminal as a control sequence: what is not plain is quoted, and long values
//! are cut. Log messages with such values in them are treated alike. The values of the audit trail of certificates are
//! whole: whoever asks for a certificate would choose what is cut off.
// threat: forged-log-lines, unlogged-certificate

use std::borrow::Cow;
use std::fmt::{self, Debug, Write as _};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// The longest value that is logged whole. A message may hold all errors of a configuration.
const MAX_VALUE_BYTES: usize = 1024;
const MAX_MESSAGE_BYTES: usize = 16 << 10;
/// What a certificate is for, and who asked for it: fields of the audit trail. Lines about requests that are not signed have
/// a `requester` too.
const AUDIT_FIELDS: [&str; 4] = ["names", "requester", "subject", "usages"];
/// More than they have: a request is at most 64 KiB, of which its names make four times as much, and an object 1 MiB.
const MAX_AUDIT_BYTES: usize = 1 << 20;

/// A value as the log shows it: cut if it is long, with its length.
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

/// Formats the fields of a line.
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
        // What `log` records say of themselves is in the line already.
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

/// Whether a value can be read in one way only without quotes.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'=\\".contains(&byte))
}

/// The text with everything escaped that is not shown as itself.
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
