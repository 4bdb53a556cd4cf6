//! Names as Kubernetes validates them.
//!
//! Follows `pkg/util/validation/validation.go` and `pkg/api/validate/content`.

/// The problem of a domain that is no DNS subdomain.
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
                         '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
                         for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
/// The problem of a path with other characters.
const PATH: &str = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";

/// The problem of the name in a label key.
const LABEL_KEY: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                         alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation \
                         is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
/// The problem of a label value.
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
                           '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  \
                           or '12345', regex used for validation is \
                           '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
/// The problem of a text that is no DNS-1035 label.
const DNS_1035_LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with \
                              an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  \
                              or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
/// The longest label, in bytes; also of the name in a label key.
const MAX_LABEL: usize = 63;
const TOO_LONG_LABEL: &str = "must be no more than 63 bytes";

/// Whether the text is a DNS label: lower-case letters, digits and, inside, hyphens.
// IsDNS1123Label
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_label_of_any_length(text)
}

/// Whether the text is a DNS subdomain: labels of any length with dots between them.
pub fn is_dns_subdomain(text: &str) -> bool {
    dns_subdomain_problems(text).is_empty()
}

/// The problems of a text that is no DNS subdomain.
// IsDNS1123Subdomain
pub fn dns_subdomain_problems(text: &str) -> Vec<&'static str> {
    let mut problems = Vec::new();
    if text.len() > 253 {
        problems.push("must be no more than 253 bytes");
    }
    if !text.split('.').all(is_label_of_any_length) {
        problems.push(SUBDOMAIN);
    }
    problems
}

fn is_label_of_any_length(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.iter().all(|end| end.is_some_and(plain)) && text.bytes().all(|byte| plain(byte) || byte == b'-')
}

/// The problems of a text that is no DNS-1035 label.
// IsDNS1035Label
pub fn dns_1035_label_problems(text: &str) -> Vec<&'static str> {
    let mut problems = Vec::new();
    if text.len() > MAX_LABEL {
        problems.push(TOO_LONG_LABEL);
    }
    if !is_label_of_any_length(text) || text.starts_with(|first: char| first.is_ascii_digit()) {
        problems.push(DNS_1035_LABEL);
    }
    problems
}

/// The problems of a text that is no label key: a name, after a DNS subdomain and a slash or alone.
// IsLabelKey, also known as IsQualifiedName
pub(crate) fn label_key_problems(text: &str) -> Vec<String> {
    let (prefix, name) = match text.split_once('/') {
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a valid label key {LABEL_KEY} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let mut problems = Vec::new();
    match prefix {
        Some("") => problems.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            let of_prefix = dns_subdomain_problems(prefix).into_iter();
            problems.extend(of_prefix.map(|problem| format!("prefix part {problem}")));
        }
        None => {}
    }
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_LABEL {
        problems.push(format!("name part {TOO_LONG_LABEL}"));
    }
    if !is_label_text(name) {
        problems.push(format!("name part {LABEL_KEY}"));
    }
    problems
}

/// The problems of a text that is no label value.
// IsLabelValue
pub(crate) fn label_value_problems(text: &str) -> Vec<&'static str> {
    let mut problems = Vec::new();
    if text.len() > MAX_LABEL {
        problems.push(TOO_LONG_LABEL);
    }
    if !text.is_empty() && !is_label_text(text) {
        problems.push(LABEL_VALUE);
    }
    problems
}

/// Whether the text consists of alphanumeric characters and, inside, `-`, `_` and `.`.
fn is_label_text(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// A part of a text, and its problem.
pub(crate) type NameProblem<'a> = (&'a str, &'static str);

/// The problems of a path below a domain, such as `acme.io/foo`, which is not empty.
// IsDomainPrefixedPath
pub fn domain_prefixed_path_problems(text: &str) -> Vec<NameProblem<'_>> {
    let Some((domain, path)) =
        text.split_once('/').filter(|(domain, path)| !domain.is_empty() && !path.is_empty())
    else {
        return vec![(text, "must be a domain-prefixed path (such as \"acme.io/foo\")")];
    };
    let of_domain = dns_subdomain_problems(domain).into_iter();
    let mut problems: Vec<_> = of_domain.map(|problem| (domain, problem)).collect();
    if !path.chars().all(|c| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c)) {
        problems.push((path, PATH));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kubernetes() {
        for (text, label, subdomain) in [
            ("a", true, true),
            ("a-1", true, true),
            ("a.b-c.1", false, true),
            ("", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("a..b", false, false),
            (".a", false, false),
            ("A", false, false),
            ("a_b", false, false),
            ("é", false, false),
            (&*"a".repeat(63), true, true),
            (&*"a".repeat(64), false, true),
            (&*"a".repeat(254), false, false),
        ] {
            assert_eq!((is_dns_label(text), is_dns_subdomain(text)), (label, subdomain), "{text}");
        }
    }
}
