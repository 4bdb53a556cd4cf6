//! The named formats of Kubernetes: `format.dns1123Label().validate(text)` is empty for a valid text, and lists what is
//! wrong with any other.
//!
//! The texts are those of `k8s.io/apimachinery`.

use std::sync::Arc;

use portcullis_go::url::Url;

use crate::evaluation::{EvalResult, Evaluation, Halt};
use crate::library::{Call, Library};
use crate::native::Native;
use crate::price::{Price, tenth};
use crate::value::Datum;

/// A format with a name.
#[derive(Debug)]
struct NamedFormat(&'static Definition);

#[derive(Debug)]
struct Definition {
    /// The name in expressions.
    function: &'static str,
    /// The name of the value.
    name: &'static str,
    /// The size of the pattern for which the reference charges.
    pattern_size: usize,
    problems: fn(&str) -> Vec<String>,
}

// apiserver: pkg/cel/library/format.go — ConstantFormats
static FORMATS: [Definition; 13] = [
    definition("dns1123Label", "DNS1123Label", 30, dns1123_label),
    definition("dns1123Subdomain", "DNS1123Subdomain", 60, dns1123_subdomain),
    definition("dns1035Label", "DNS1035Label", 30, dns1035_label),
    definition("qualifiedName", "QualifiedName", 60, qualified_name),
    definition("dns1123LabelPrefix", "DNS1123LabelPrefix", 30, |text| dns1123_label(&prefix(text))),
    definition("dns1123SubdomainPrefix", "DNS1123SubdomainPrefix", 60, |text| {
        dns1123_subdomain(&prefix(text))
    }),
    definition("dns1035LabelPrefix", "DNS1035LabelPrefix", 30, |text| dns1035_label(&prefix(text))),
    definition("labelValue", "LabelValue", 40, label_value),
    definition("uri", "URI", 1103, uri),
    definition("uuid", "uuid", 70, |text| unless(is_uuid(text), "does not match the UUID format")),
    definition("byte", "byte", 84, |text| unless(is_base64(text), "invalid base64")),
    definition("date", "date", 71, |text| unless(is_date(text), "invalid date")),
    definition("datetime", "datetime", 71, |text| unless(is_date_time(text), "invalid datetime")),
];

const fn definition(
    function: &'static str,
    name: &'static str,
    pattern_size: usize,
    problems: fn(&str) -> Vec<String>,
) -> Definition {
    Definition { function, name, pattern_size, problems }
}

impl NamedFormat {
    fn named(name: &str) -> Option<Self> {
        FORMATS.iter().find(|format| format.function == name).map(Self)
    }
}

impl Native for NamedFormat {
    fn type_name(&self) -> &'static str {
        "kubernetes.NamedFormat"
    }

    fn go_type(&self) -> &'static str {
        "cel.Format"
    }

    fn shown(&self) -> Option<String> {
        Some(self.0.name.to_owned())
    }

    fn go_round_trip(&self) -> Result<(), String> {
        Ok(())
    }

    fn equals(&self, other: &dyn Native) -> Option<bool> {
        other.downcast::<Self>().map(|other| self.0.name == other.0.name)
    }
}

/// The functions of named formats, from Kubernetes.
#[derive(Debug)]
pub(crate) struct NamedFormats;

const SIGNATURES: &str = "
format.byte | () -> kubernetes.NamedFormat
format.date | () -> kubernetes.NamedFormat
format.datetime | () -> kubernetes.NamedFormat
format.dns1035Label | () -> kubernetes.NamedFormat
format.dns1035LabelPrefix | () -> kubernetes.NamedFormat
format.dns1123Label | () -> kubernetes.NamedFormat
format.dns1123LabelPrefix | () -> kubernetes.NamedFormat
format.dns1123Subdomain | () -> kubernetes.NamedFormat
format.dns1123SubdomainPrefix | () -> kubernetes.NamedFormat
format.labelValue | () -> kubernetes.NamedFormat
format.named | (string) -> optional_type(kubernetes.NamedFormat)
format.qualifiedName | () -> kubernetes.NamedFormat
format.uri | () -> kubernetes.NamedFormat
format.uuid | () -> kubernetes.NamedFormat
validate | kubernetes.NamedFormat.(string) -> optional_type(list(string))
";

impl Library for NamedFormats {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    // apiserver: pkg/cel/library/cost.go — CallCost
    fn price(&self, call: &Call<'_>) -> Price {
        match (call.function, call.values.first().and_then(Datum::native::<NamedFormat>)) {
            ("validate", Some(format)) => {
                let text = tenth(call.size(1).saturating_add(1));
                Price::Units(text.saturating_mul(format.0.pattern_size.div_ceil(4)))
            }
            _ => Price::ONE,
        }
    }

    // apiserver: pkg/cel/library/format.go
    fn call(&self, _evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        match (call.function, call.values) {
            ("format.named", [Datum::String(name)]) => {
                Ok(Datum::Optional(NamedFormat::named(name).map(|format| Arc::new(Datum::of_native(format)))))
            }
            ("validate", [format, Datum::String(text)]) => {
                let Some(format) = format.native::<NamedFormat>() else { return Err(Halt::Unsuited) };
                let problems = (format.0.problems)(text);
                let problems =
                    (!problems.is_empty()).then(|| Datum::strings(problems.iter().map(String::as_str)));
                Ok(Datum::Optional(problems.map(Into::into)))
            }
            (name, []) => match name.strip_prefix("format.").and_then(NamedFormat::named) {
                Some(format) => Ok(Datum::of_native(format)),
                None => Err(Halt::Unsuited),
            },
            _ => Err(Halt::Unsuited),
        }
    }
}

fn unless(valid: bool, problem: &str) -> Vec<String> {
    if valid { Vec::new() } else { vec![problem.to_owned()] }
}

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// The text for a value that a pattern does not match, with examples.
// apimachinery: pkg/api/validate/content/errors.go — RegexError
fn mismatch(rule: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

fn too_long(most: usize, unit: &str) -> String {
    format!("must be no more than {most} {unit}")
}

/// A prefix of a name may end with a dash.
// apimachinery: pkg/api/validation/generic.go — maskTrailingDash
fn prefix(text: &str) -> String {
    let masked = text.strip_suffix('-').filter(|rest| !rest.is_empty());
    match masked {
        // The reference cuts two bytes; half a character matches no format either.
        Some(rest) => format!("{}a", rest.get(..rest.len() - 1).unwrap_or("-")),
        None => text.to_owned(),
    }
}

// apimachinery: pkg/util/validation/validation.go — IsDNS1123Label
fn dns1123_label(text: &str) -> Vec<String> {
    const RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push(too_long(63, "characters"));
    }
    if !is_label(text) {
        problems.push(if text.split('.').all(is_label) {
            "must not contain dots".to_owned()
        } else {
            mismatch(RULE, LABEL, &["my-name", "123-abc"])
        });
    }
    problems
}

// apimachinery: pkg/util/validation/validation.go — IsDNS1123Subdomain
fn dns1123_subdomain(text: &str) -> Vec<String> {
    subdomain(text, "characters")
}

fn subdomain(text: &str, unit: &str) -> Vec<String> {
    const RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
    let mut problems = Vec::new();
    if text.len() > 253 {
        problems.push(too_long(253, unit));
    }
    if !text.split('.').all(is_label) {
        problems.push(mismatch(RULE, &format!("{LABEL}(\\.{LABEL})*"), &["example.com"]));
    }
    problems
}

// apimachinery: pkg/util/validation/validation.go — IsDNS1035Label
fn dns1035_label(text: &str) -> Vec<String> {
    const RULE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push(too_long(63, "characters"));
    }
    if !is_label(text) || !text.starts_with(|first: char| first.is_ascii_lowercase()) {
        problems.push(mismatch(RULE, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    problems
}

// apimachinery: pkg/api/validate/content/kube.go — IsLabelKey
fn qualified_name(text: &str) -> Vec<String> {
    const RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    let shape = mismatch(RULE, LABEL_KEY, &["MyName", "my.name", "123-abc"]);
    let (prefix, name) = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => (None, name),
        [prefix, name] => (Some(prefix), name),
        _ => {
            let hint = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {shape} {hint}")];
        }
    };
    let mut problems = match prefix {
        Some("") => vec!["prefix part must be non-empty".to_owned()],
        Some(prefix) => subdomain(prefix, "bytes").iter().map(|text| format!("prefix part {text}")).collect(),
        None => Vec::new(),
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push(format!("name part {}", too_long(63, "bytes")));
    }
    if !is_label_key(name) {
        problems.push(format!("name part {shape}"));
    }
    problems
}

// apimachinery: pkg/api/validate/content/kube.go — IsLabelValue
fn label_value(text: &str) -> Vec<String> {
    const RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push(too_long(63, "bytes"));
    }
    if !text.is_empty() && !is_label_key(text) {
        problems.push(mismatch(RULE, &format!("({LABEL_KEY})?"), &["MyValue", "my_value", "12345"]));
    }
    problems
}

fn uri(text: &str) -> Vec<String> {
    Url::check_request_uri(text).err().map(|error| error.to_string()).into_iter().collect()
}

// kube-openapi: pkg/validation/strfmt/default.go — UUIDPattern
fn is_uuid(text: &str) -> bool {
    let mut rest = text;
    for (at, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if at > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((group, after)) = rest.split_at_checked(length) else { return false };
        if !group.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

// kube-openapi: pkg/internal/third_party/govalidator/patterns.go — Base64
fn is_base64(text: &str) -> bool {
    let digits = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    let digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    !digits.is_empty() && text.len().is_multiple_of(4) && digits.bytes().all(digit)
}

/// `2006-01-02`, a day that exists.
// kube-openapi: pkg/validation/strfmt/date.go
fn is_date(text: &str) -> bool {
    let [year, month, day] = text.split('-').collect::<Vec<_>>()[..] else { return false };
    let number = |text: &str, length: usize| {
        let is_number = text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2)) else {
        return false;
    };
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

// kube-openapi: pkg/validation/strfmt/time.go — IsDateTime
fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    text.len() >= 4 && is_date(date) && is_time(time)
}

/// `15:04:05`, any character and digits as a fraction, then `z` or an offset of digits.
fn is_time(text: &str) -> bool {
    let Some((clock, rest)) = text.split_at_checked(8) else { return false };
    let [hour, minute, second] = clock.split(':').collect::<Vec<_>>()[..] else { return false };
    let in_range = |text: &str, last: &str| text.len() == 2 && digits(text) == 2 && text <= last;
    if !in_range(hour, "23") || !in_range(minute, "59") || !in_range(second, "59") {
        return false;
    }
    let is_zone = |text: &str| match text.strip_prefix(['+', '-']) {
        Some(offset) => {
            offset.len() == 5
                && matches!(offset.split_once(':'), Some((hours, minutes)) if digits(hours) == 2 && digits(minutes) == 2)
        }
        None => text == "z",
    };
    let mut characters = rest.chars();
    let fraction = characters.next().filter(|first| *first != '\n').map(|_| characters.as_str());
    let after_fraction = fraction.filter(|rest| digits(rest) > 0).and_then(|rest| rest.get(digits(rest)..));
    is_zone(rest) || after_fraction.is_some_and(is_zone)
}

/// The number of digits at the beginning.
fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn is_label_key(text: &str) -> bool {
    ends_alphanumeric(text, |byte| byte.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    ends_alphanumeric(text, plain) && text.bytes().all(|byte| plain(byte) || byte == b'-')
}

fn ends_alphanumeric(text: &str, plain: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    [bytes.first(), bytes.last()].into_iter().all(|end| end.is_some_and(|byte| plain(*byte)))
}

/// Whether a text is a DNS label, as of RFC 1123.
pub(crate) fn is_dns1123_label(text: &str) -> bool {
    text.len() <= 63 && is_label(text)
}

/// Whether a text is a DNS subdomain, as of RFC 1123. Kubernetes bounds the whole alone, not each label.
pub(crate) fn is_dns1123_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}
