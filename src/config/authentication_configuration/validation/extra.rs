//! Validates the keys of extra attributes: lower-case paths below a domain that is not reserved for Kubernetes.

use portcullis_kubernetes::names::domain_prefixed_path_problems;

use super::FieldError;

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
    let problems = domain_prefixed_path_problems(key).into_iter();
    problems.map(|(part, problem)| FieldError::invalid(field, part, problem)).collect()
}
