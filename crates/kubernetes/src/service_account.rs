//! The user names and groups of service accounts.
// apiserver: pkg/authentication/serviceaccount/util.go

use crate::names::{is_dns_label, is_dns_subdomain};

const USER_PREFIX: &str = "system:serviceaccount:";
const GROUP: &str = "system:serviceaccounts";

/// The user name of a service account.
pub fn name(namespace: &str, name: &str) -> String {
    format!("{USER_PREFIX}{namespace}:{name}")
}

/// The groups of a service account.
pub fn groups(namespace: &str) -> Vec<String> {
    vec![GROUP.to_owned(), format!("{GROUP}:{namespace}")]
}

/// The user name of a service account without its last part: of all service accounts of the namespace.
pub fn namespace_prefix(user: &str) -> Option<&str> {
    let (namespace, _) = split(user)?;
    user.get(..USER_PREFIX.len() + namespace.len())
}

/// Splits the user name of a service account into namespace and name.
pub fn split(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(USER_PREFIX)?.split_once(':')?;
    (is_dns_label(namespace) && is_dns_subdomain(name)).then_some((namespace, name))
}
