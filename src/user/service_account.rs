//! The user names and groups of service accounts.
// apiserver: pkg/authentication/serviceaccount/util.go

use crate::names::{is_dns_label, is_dns_subdomain};

const USER_PREFIX: &str = "system:serviceaccount:";
const GROUP: &str = "system:serviceaccounts";

/// The user name of a service account.
pub(crate) fn name(namespace: &str, name: &str) -> String {
    format!("{USER_PREFIX}{namespace}:{name}")
}

/// The groups of a service account.
pub(crate) fn groups(namespace: &str) -> Vec<String> {
    vec![GROUP.to_owned(), format!("{GROUP}:{namespace}")]
}

/// Splits the user name of a service account into namespace and name.
pub(crate) fn split(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(USER_PREFIX)?.split_once(':')?;
    (is_dns_label(namespace) && is_dns_subdomain(name)).then_some((namespace, name))
}
