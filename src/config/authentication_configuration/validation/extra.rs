//! Validates the keys of extra attributes: lower-case paths below a domain that is not reserved for Kubernetes.

use super::FieldError;

// apimachinery: pkg/util/validation/validation.go, dns1123SubdomainErrorMsg and httpPathFmt
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
                         '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
                         for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const PATH: &str = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";

pub(super) fn key_problems(key: &str, field: &str) -> Vec<FieldError> {
    let mut errors = prefix_problems(key, field);
    // kube-apiserver compares with the lower-case key, by Unicode's rules.
    if key != key.to_lowercase() {
        errors.push(FieldError::invalid(field, key, "must be lowercase"));
    }
    let reserved = ["kubernetes.io", "k8s.io"].iter().any(|reserved| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        domain.strip_suffix(reserved).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    });
    if reserved {
        let problem = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
        errors.push(FieldError::invalid(field, key, problem));
    }
    errors
        .into_iter()
        .map(|error| error.fix("give a key below a domain you own, such as example.com/team"))
        .collect()
}

// apimachinery: pkg/util/validation/validation.go, IsDomainPrefixedPath
fn prefix_problems(key: &str, field: &str) -> Vec<FieldError> {
    if key.is_empty() {
        return vec![FieldError::required(field, "")];
    }
    let Some((domain, path)) =
        key.split_once('/').filter(|(domain, path)| !domain.is_empty() && !path.is_empty())
    else {
        let problem = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return vec![FieldError::invalid(field, key, problem)];
    };
    let mut errors = Vec::new();
    if domain.len() > 253 {
        errors.push(FieldError::invalid(field, domain, "must be no more than 253 bytes"));
    }
    if !domain.split('.').all(is_label) {
        errors.push(FieldError::invalid(field, domain, SUBDOMAIN));
    }
    if !path.chars().all(|c| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c)) {
        errors.push(FieldError::invalid(field, path, PATH));
    }
    errors
}

fn is_label(label: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !label.is_empty()
        && label.chars().all(|c| inner(c) || c == '-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}
