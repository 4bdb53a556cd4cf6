//! Compares two responses and describes their differences.
//!
//! Bodies are compared as bytes after normalisation, which replaces values that differ between two identical servers:
//! UIDs, times, resource versions, continue tokens, the address, and the case's unique name. The order of keys and
//! white space count.

use crate::case::{Expected, Step, Values};
use crate::client::{self, Answer, Broken};
use crate::outside::Review;

/// The headers that must be equal, with all values in order.
const HEADERS: &[&str] = &[
    "content-type",
    "content-encoding",
    "cache-control",
    "warning",
    "retry-after",
    "x-content-type-options",
    "allow",
    "location",
    "etag",
    "sec-websocket-protocol",
    "upgrade",
    "strict-transport-security",
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-expose-headers",
    "access-control-allow-credentials",
];

pub(crate) type Outcome = Result<Answer, Broken>;

/// Differences between the reference's response and the case's expectation.
pub(crate) fn against_expectation(step: &Step, outcome: &Outcome, values: &Values) -> Vec<String> {
    let mut wrong = Vec::new();
    match (step.expected, outcome) {
        (Expected::Unstated, _) => wrong.push("the case has no expected response".to_owned()),
        (Expected::Broken, Err(_)) => {}
        (Expected::Broken, Ok(answer)) => {
            wrong.push(format!("expected a broken connection, got {}", answer.status));
        }
        (Expected::Status(status), Err(broken)) => wrong.push(format!("expected {status}, got {}", broken.0)),
        (Expected::Status(status), Ok(answer)) => {
            if answer.status != status {
                wrong.push(format!("expected {status}, got {}", answer.status));
            }
            let body = String::from_utf8_lossy(&decoded(answer)).into_owned();
            for text in step.contains.iter().filter(|text| !body.contains(&values.fill(text))) {
                wrong.push(format!("the body does not contain {text}"));
            }
            for text in step.lacks.iter().filter(|text| body.contains(&values.fill(text))) {
                wrong.push(format!("the body contains {text}"));
            }
            let warnings = answer.all("warning");
            if let Some(text) = step.warning
                && !warnings.iter().any(|warning| warning.contains(text))
            {
                wrong.push(format!("there is no warning of {text}, but {warnings:?}"));
            }
            wrong.extend(rules(step, answer));
        }
    }
    wrong
}

/// Rules for every response.
fn rules(step: &Step, answer: &Answer) -> Vec<String> {
    let mut wrong = Vec::new();
    if !answer.all("www-authenticate").is_empty() {
        wrong.push("there is a WWW-Authenticate header".to_owned());
    }
    let audit = answer.all("audit-id");
    if let Some(sent) = step.audit_id()
        && !audit.is_empty()
        && audit != [sent.clone()]
    {
        wrong.push(format!("Audit-Id {audit:?} does not echo {sent:?}"));
    }
    wrong
}

/// Differences between the responses of the reference and the subject.
pub(crate) fn differences(
    step: &Step,
    reference: (&Outcome, &Values),
    subject: (&Outcome, &Values),
    managed_fields: bool,
) -> Vec<String> {
    let (left, right) = match (reference.0, subject.0) {
        // A timeout differs from a closed connection.
        (Err(left), Err(right))
            if left.0.starts_with(client::HANGS) != right.0.starts_with(client::HANGS) =>
        {
            return vec![format!("reference: broken, {}, subject: broken, {}", left.0, right.0)];
        }
        (Err(_), Err(_)) => return Vec::new(),
        (Ok(left), Err(right)) => {
            return vec![format!("reference: {}, subject: broken, {}", left.status, right.0)];
        }
        (Err(left), Ok(right)) => {
            return vec![format!("reference: broken, {}, subject: {}", left.0, right.status)];
        }
        (Ok(left), Ok(right)) => (left, right),
    };
    let mut found = rules(step, right);
    if left.status != right.status {
        found.push(format!("status: {} | {}", left.status, right.status));
    }
    for name in HEADERS {
        let normal = |answer: &Answer, values: &Values| {
            answer.all(name).iter().map(|value| normalise(value, values)).collect::<Vec<_>>()
        };
        let (a, b) = (normal(left, reference.1), normal(right, subject.1));
        if a != b {
            found.push(format!("{name}: {a:?} | {b:?}"));
        }
    }
    let (a, b) = (left.all("audit-id").len(), right.all("audit-id").len());
    if a != b {
        found.push(format!("number of Audit-Id headers: {a} | {b}"));
    }
    let (mut a, mut b) = (body(left, reference.1), body(right, subject.1));
    if !managed_fields
        && let (Some(left), Some(right)) = (without_managed_fields(&a), without_managed_fields(&b))
    {
        (a, b) = (left, right);
    }
    if managed_fields {
        (a, b) = (with_sorted_managers(a), with_sorted_managers(b));
    }
    if step.any_body.is_none() && a != b {
        let parsed = |body: &[u8]| serde_json::from_slice::<serde_json::Value>(body).ok();
        match (parsed(&a), parsed(&b)) {
            (Some(left), Some(right)) if left == right => {
                found.push("body: the same JSON in another order or with other blanks".to_owned());
            }
            _ => found.push(first_difference(&a, &b)),
        }
    }
    found
}

/// The reviews that webhooks have received, normalised: those of mutating webhooks in order, the others sorted.
pub(crate) fn reviews(received: Vec<Review>, values: &Values, managed_fields: bool) -> Vec<String> {
    let (mut mutating, mut validating) = (Vec::new(), Vec::new());
    for (webhook, mut review) in received {
        if managed_fields {
            sort_managed_fields(&mut review);
        } else {
            remove_managed_fields(&mut review);
        }
        let review = serde_json::to_string(&review).expect("JSON");
        let text = format!("{webhook}: {}", normalise(&review, values));
        if webhook.starts_with('m') { mutating.push(text) } else { validating.push(text) }
    }
    validating.sort_unstable();
    mutating.extend(validating);
    mutating
}

/// A JSON body with its `managedFields` in the order of their texts: that of the server is by time, in whole seconds.
fn with_sorted_managers(body: Vec<u8>) -> Vec<u8> {
    const BEGIN: &str = "\"managedFields\":[";
    let Ok(text) = String::from_utf8(body.clone()) else { return body };
    let mut pieces = text.split(BEGIN);
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (entries, rest) = elements(piece);
        let mut entries: Vec<&str> = entries;
        entries.sort_unstable();
        out.push_str(&format!("{BEGIN}{}{rest}", entries.join(",")));
    }
    out.into_bytes()
}

/// The elements of a JSON array, after its bracket, and the text after them.
fn elements(text: &str) -> (Vec<&str>, &str) {
    let (mut depth, mut in_string, mut escaped, mut start) = (0_usize, false, false, 0);
    let mut entries = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b']' if depth == 0 => {
                entries.push(&text[start..at]);
                return (entries, &text[at..]);
            }
            b'}' | b']' => depth -= 1,
            b',' if depth == 0 => {
                entries.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    (Vec::new(), text)
}

fn sort_managed_fields(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            if let Some(serde_json::Value::Array(entries)) = fields.get_mut("managedFields") {
                entries.sort_by_key(ToString::to_string);
            }
            fields.values_mut().for_each(sort_managed_fields);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(sort_managed_fields),
        _ => {}
    }
}

/// A JSON body without `managedFields`.
fn without_managed_fields(body: &[u8]) -> Option<Vec<u8>> {
    let mut body = serde_json::from_slice(body).ok()?;
    remove_managed_fields(&mut body);
    serde_json::to_vec(&body).ok()
}

fn remove_managed_fields(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.remove("managedFields");
            fields.values_mut().for_each(remove_managed_fields);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(remove_managed_fields),
        _ => {}
    }
}

/// Whether a difference is one of [`review_differences`].
pub(crate) fn is_of_reviews(difference: &str) -> bool {
    ["the webhooks asked: ", "the reviews: "].iter().any(|text| difference.starts_with(text))
}

/// Differences between the reviews of both sides.
pub(crate) fn review_differences(left: &[String], right: &[String]) -> Vec<String> {
    let names = |reviews: &[String]| {
        reviews.iter().filter_map(|review| review.split(':').next().map(str::to_owned)).collect::<Vec<_>>()
    };
    if names(left) != names(right) {
        return vec![format!("the webhooks asked: {:?} | {:?}", names(left), names(right))];
    }
    let pairs = left.iter().zip(right).filter(|(a, b)| a != b);
    pairs.map(|(a, b)| format!("the reviews: {}", first_difference(a.as_bytes(), b.as_bytes()))).collect()
}

fn body(answer: &Answer, values: &Values) -> Vec<u8> {
    let bytes = decoded(answer);
    match std::str::from_utf8(&bytes) {
        Ok(text) => normalise(text, values).into_bytes(),
        Err(_) => {
            without_times(&replace(&replace(&bytes, &values.unique, "{unique}"), &values.address, "{addr}"))
        }
    }
}

/// The decompressed body. `Content-Encoding` is compared as a header.
fn decoded(answer: &Answer) -> Vec<u8> {
    if answer.all("content-encoding").iter().any(|value| value == "gzip") {
        let mut plain = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(answer.body.as_slice());
        if std::io::Read::read_to_end(&mut decoder, &mut plain).is_ok() {
            return plain;
        }
    }
    answer.body.clone()
}

/// Removes the times of protobuf objects: two servers may handle a request in different seconds.
// apimachinery: pkg/apis/meta/v1/generated.proto, Timestamp — 8 bytes: seconds as field 1, nanoseconds 0 as field 2
fn without_times(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let [first, tail @ ..] = rest {
        match rest {
            [8, 8, seconds @ ..] if is_time(seconds) => {
                out.extend(b"<time>");
                rest = &seconds[7..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Seconds of this century as a varint, and no nanoseconds.
fn is_time(bytes: &[u8]) -> bool {
    let Some((seconds, nanoseconds)) = bytes.split_at_checked(5) else { return false };
    let more = seconds.iter().map(|octet| octet >= &0x80);
    more.eq([true, true, true, true, false]) && nanoseconds.starts_with(&[0x10, 0])
}

fn replace(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(from.as_bytes()) {
            out.extend(to.bytes());
            rest = after;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

/// Replaces the values that differ between identical servers.
pub(crate) fn normalise(text: &str, values: &Values) -> String {
    let mut text = text.to_owned();
    for (name, token) in &values.tokens {
        text = text.replace(token, &format!("{{token:{name}}}"));
    }
    let text = text
        .replace(&values.unique, "{unique}")
        .replace(&values.side, "{side}")
        .replace(&values.address, "{addr}");
    let text = replace_shape(&text, "hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh", "<uuid>");
    // RFC 3339 with fractional seconds, then without.
    let text = replace_shape(&text, "dddd-dd-ddTdd:dd:dd.ddddddZ", "<time>");
    let text = replace_shape(&text, "dddd-dd-ddTdd:dd:ddZ", "<time>");
    // Go's default format, in errors about tokens.
    let text = replace_shape(&text, "dddd-dd-dd dd:dd:dd", "<time>");
    let text = replace_generated(&text, "kube-api-access-");
    let text = replace_generated(&text, "{unique}-");
    let text = replace_ages(&text);
    let text = replace_after(&text, "resourceVersion", "<rv>");
    // In the URI of a request that names the version of the case.
    let text = match values.version.as_str() {
        "" => text,
        version => text.replace(&format!("resourceVersion={version}&"), "resourceVersion={version}&"),
    };
    // With the oldest version that the server's watch cache has.
    let text = replace_number_after(&text, "too old resource version: 1 (", "<rv>");
    // Of Services: the servers share the ranges.
    let text = replace_number_after(&text, "\"nodePort\":", "<port>");
    let text = replace_number_after(&text, "\"healthCheckNodePort\":", "<port>");
    let text = replace_number_after(&text, "\"10.0.0.", "<ip>");
    // Every server advertises its own address, also behind a proxy.
    let text = replace_after(&text, "serverAddress", "<address>");
    replace_after(&text, "continue", "<continue>")
}

/// Replaces the digits behind each occurrence of a text.
fn replace_number_after(text: &str, before: &str, by: &str) -> String {
    let mut parts = text.split(before);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(before);
        out.push_str(by);
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    out
}

/// Replaces every match of the pattern: `h` matches a hexadecimal digit, `d` a decimal digit, other characters match
/// themselves.
fn replace_shape(text: &str, shape: &str, by: &str) -> String {
    let matches = |bytes: &[u8]| {
        bytes.len() >= shape.len()
            && bytes.iter().zip(shape.bytes()).all(|(have, want)| match want {
                b'h' => have.is_ascii_hexdigit(),
                b'd' => have.is_ascii_digit(),
                _ => *have == want,
            })
    };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if matches(rest.as_bytes()) {
            out.push_str(by);
            rest = &rest[shape.len()..];
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}

/// Replaces the five characters that the server generates after `prefix`.
fn replace_generated(text: &str, prefix: &str) -> String {
    let mut pieces = text.split(prefix);
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        out.push_str(prefix);
        match piece.split_at_checked(5) {
            Some((suffix, rest)) if suffix.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                out.push_str("<generated>");
                out.push_str(rest);
            }
            _ => out.push_str(piece),
        }
    }
    out
}

/// Replaces quoted ages, such as `"12s"` and `"3m5s"` in table cells.
fn replace_ages(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (number, piece) in text.split('"').enumerate() {
        if number > 0 {
            out.push('"');
        }
        out.push_str(if number > 0 && is_age(piece) { "<age>" } else { piece });
    }
    out
}

/// Matches `12s`, `3m5s`, `2d`.
pub(crate) fn is_age(word: &str) -> bool {
    word.len() <= 7
        && word.starts_with(|c: char| c.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h', 'd'])
        && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
}

/// Replaces the quoted, non-empty value that follows `key`, in JSON and in YAML.
fn replace_after(text: &str, key: &str, by: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(key) {
        let (before, after) = rest.split_at(at + key.len());
        out.push_str(before);
        rest = after;
        let lead = after.len() - after.trim_start_matches(['"', ' ', ':']).len();
        let (separator, value) = after.split_at(lead);
        let length = value.find(|c: char| !c.is_ascii_alphanumeric() && !"=_-.:".contains(c)).unwrap_or(0);
        if separator.contains(':') && separator.ends_with('"') && length > 0 {
            out.push_str(separator);
            out.push_str(by);
            rest = &value[length..];
        }
    }
    out.push_str(rest);
    out
}

fn first_difference(left: &[u8], right: &[u8]) -> String {
    let at = left.iter().zip(right).position(|(a, b)| a != b).unwrap_or(left.len().min(right.len()));
    let from = at.saturating_sub(60);
    let piece = |bytes: &[u8]| {
        let piece = bytes.get(from..bytes.len().min(at + 120)).unwrap_or_default();
        String::from_utf8_lossy(piece).into_owned()
    };
    format!(
        "body ({} | {} bytes) differs from byte {at}:\n      reference …{:?}\n      subject   …{:?}",
        left.len(),
        right.len(),
        piece(left),
        piece(right)
    )
}

/// A response as text, for failure messages.
pub(crate) fn show(outcome: &Outcome) -> String {
    match outcome {
        Err(broken) => format!("broken: {}", broken.0),
        Ok(answer) => {
            let mut text = format!("{}", answer.status);
            for (name, value) in &answer.headers {
                text.push_str(&format!("\n    {name}: {}", String::from_utf8_lossy(value)));
            }
            let body = decoded(answer);
            let shown = String::from_utf8_lossy(body.get(..1500).unwrap_or(&body)).into_owned();
            text.push_str(&format!("\n    ({} bytes) {shown}", body.len()));
            text
        }
    }
}
