//! Names as Kubernetes validates them.
// apimachinery: pkg/util/validation/validation.go, pkg/api/validate/content

/// The problem of a domain that is no DNS subdomain.
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
                         '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
                         for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
/// The problem of a path with other characters.
const PATH: &str = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";

/// Whether the text is a DNS label: lower-case letters, digits and, inside, hyphens.
// IsDNS1123Label
pub(crate) fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_label_of_any_length(text)
}

/// Whether the text is a DNS subdomain: labels of any length with dots between them.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    dns_subdomain_problems(text).is_empty()
}

/// The problems of a text that is no DNS subdomain.
// IsDNS1123Subdomain
pub(crate) fn dns_subdomain_problems(text: &str) -> Vec<&'static str> {
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

/// A part of a text, and its problem.
pub(crate) type NameProblem<'a> = (&'a str, &'static str);

/// The problems of a path below a domain, such as `acme.io/foo`, which is not empty.
// IsDomainPrefixedPath
pub(crate) fn domain_prefixed_path_problems(text: &str) -> Vec<NameProblem<'_>> {
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
