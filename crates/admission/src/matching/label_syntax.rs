//! The syntax of label keys and values, with upstream's error texts.
// apimachinery: pkg/api/validate/content/{kube,dns,errors}.go

const MAX_NAME_LENGTH: usize = 63;
const MAX_VALUE_LENGTH: usize = 63;
const MAX_PREFIX_LENGTH: usize = 253;

const NAME_ERROR: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const PREFIX_ERROR: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const VALUE_ERROR: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Why a label key is invalid; empty if it is valid.
// kube.go, IsLabelKey
pub(super) fn key_errors(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut parts = key.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, None) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > MAX_PREFIX_LENGTH {
                    errors.push(format!("prefix part {}", too_long(MAX_PREFIX_LENGTH)));
                }
                if !is_subdomain(prefix) {
                    errors.push(format!("prefix part {PREFIX_ERROR}"));
                }
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {NAME_ERROR} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_NAME_LENGTH {
        errors.push(format!("name part {}", too_long(MAX_NAME_LENGTH)));
    }
    if !is_name(name) {
        errors.push(format!("name part {NAME_ERROR}"));
    }
    errors
}

/// Why a label value is invalid; empty if it is valid.
// kube.go, IsLabelValue
pub(super) fn value_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > MAX_VALUE_LENGTH {
        errors.push(too_long(MAX_VALUE_LENGTH));
    }
    if !value.is_empty() && !is_name(value) {
        errors.push(VALUE_ERROR.to_owned());
    }
    errors
}

fn too_long(length: usize) -> String {
    format!("must be no more than {length} bytes")
}

fn is_name(text: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    is_end(text.bytes().next())
        && is_end(text.bytes().next_back())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_subdomain(text: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.split('.').all(|label| {
        label.bytes().next().is_some_and(is_alphanumeric)
            && label.bytes().next_back().is_some_and(is_alphanumeric)
            && label.bytes().all(|byte| is_alphanumeric(byte) || byte == b'-')
    })
}
