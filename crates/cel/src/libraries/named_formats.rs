//! The named formats of Kubernetes: `format.dns1123Label().validate(text)`.

use crate::eval::{EvalResult, Machine, error};
use crate::value::Datum;

/// A format with a name, such as `format.dns1123Label()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedFormat(pub(crate) &'static str);

pub(crate) fn call(_machine: &mut Machine<'_>, function: &str, _values: &[Datum]) -> EvalResult {
    error(format!("function '{function}' is not supported here"))
}

/// Whether a text is a DNS label, as of RFC 1123.
pub(crate) fn is_dns1123_label(text: &str) -> bool {
    text.len() <= 63 && is_label(text)
}

/// Whether a text is a DNS subdomain, as of RFC 1123. Kubernetes bounds the whole alone, not each label.
pub(crate) fn is_dns1123_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    [bytes.first(), bytes.last()].into_iter().all(|end| end.is_some_and(|byte| plain(*byte)))
        && bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
}
