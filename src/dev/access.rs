//! Who may do what in the embedded backend. Four rules, so that a newcomer can predict every answer:
//!
//! 1. `system:masters`, and the gateway asking for itself, may do everything, impersonation included.
//! 2. Everybody may read `/version`, the health checks, and by its name `kube-public/cluster-info`.
//! 3. Everybody authenticated may do everything else, except impersonate, decide over signing requests, write to
//!    `kube-system`, and see the Secrets there (or in all namespaces at once).
//! 4. All other requests are forbidden.

use super::resources::SIGNING_REQUESTS;
use crate::http::status::{Attempt, AttemptTarget, Status};
use crate::user::{ALL_AUTHENTICATED, GATEWAY, UserInfo};

const MASTERS: &str = "system:masters";
const PROTECTED_NAMESPACE: &str = "kube-system";
const READS: &[&str] = &["get", "list", "watch"];
const PUBLIC: &[&str] = &["/version", "/healthz", "/livez", "/readyz"];

/// Whether a user may do what was attempted.
pub(super) fn may(user: &UserInfo, attempt: &Attempt<'_>) -> bool {
    let reads = READS.contains(&attempt.verb);
    if is_master(user) {
        return true;
    }
    let authenticated = user.groups.iter().any(|group| group == ALL_AUTHENTICATED);
    match attempt.on {
        AttemptTarget::Path(path) => {
            let public = PUBLIC.iter().any(|root| {
                path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            });
            reads && (authenticated || public)
        }
        AttemptTarget::Resource {
            resource: "configmaps",
            subresource: "",
            namespace: "kube-public",
            name: "cluster-info",
            ..
        } if attempt.verb == "get" => true,
        AttemptTarget::Resource { resource, subresource, namespace, .. } => {
            let protected = namespace == PROTECTED_NAMESPACE;
            let secrets =
                resource == "secrets" && (protected || (namespace.is_empty() && attempt.verb != "create"));
            let decides = resource == SIGNING_REQUESTS && !subresource.is_empty();
            let unknown = resource == "*" || ["*", "impersonate", "approve", "sign"].contains(&attempt.verb);
            authenticated && !unknown && !secrets && (reads || !(protected || decides))
        }
    }
}

/// Refuses what [`may`] does not allow.
pub(super) fn authorize(user: &UserInfo, attempt: &Attempt<'_>) -> Result<(), Status> {
    if may(user, attempt) { Ok(()) } else { Err(Status::forbidden(attempt, "")) }
}

/// Whether `user` may act as the user called `name`.
pub(super) fn authorize_impersonation(user: &UserInfo, name: &str) -> Result<(), Status> {
    let on = AttemptTarget::Resource { group: "", resource: "users", subresource: "", namespace: "", name };
    authorize(user, &Attempt { user: &user.name, verb: "impersonate", on })
}

fn is_master(user: &UserInfo) -> bool {
    user.name == GATEWAY || user.groups.iter().any(|group| group == MASTERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Case = (&'static [&'static str], &'static str, &'static str, &'static str, bool);
    const MASTER: &[&str] = &["system:masters", "system:authenticated"];
    const PERSON: &[&str] = &["developers", "system:authenticated"];
    const NOBODY: &[&str] = &["system:unauthenticated"];
    const CASES: &[Case] = &[
        (MASTER, "impersonate", "users", "", true),
        (MASTER, "list", "secrets", "kube-system", true),
        (PERSON, "create", "configmaps", "default", true),
        (PERSON, "create", "configmaps", "kube-system", false),
        (PERSON, "delete", "namespaces", "kube-system", false),
        (PERSON, "get", "configmaps", "kube-system", true),
        (PERSON, "get", "secrets", "default", true),
        (PERSON, "list", "secrets", "kube-system", false),
        (PERSON, "list", "secrets", "", false),
        (PERSON, "impersonate", "users", "", false),
        (PERSON, "update", "certificatesigningrequests/approval", "", false),
        (PERSON, "create", "certificatesigningrequests", "", true),
        (PERSON, "*", "*", "", false),
        (NOBODY, "get", "configmaps", "default", false),
        (NOBODY, "get", "/version", "", true),
        (NOBODY, "get", "/livez/ping", "", true),
        (NOBODY, "get", "/versions", "", false),
        (NOBODY, "post", "/version", "", false),
        (NOBODY, "get", "/api", "", false),
        (PERSON, "get", "/api", "", true),
        (NOBODY, "get", "configmaps=cluster-info", "kube-public", true),
        (NOBODY, "list", "configmaps=cluster-info", "kube-public", false),
        (NOBODY, "update", "configmaps=cluster-info", "kube-public", false),
        (NOBODY, "get", "configmaps=cluster-info", "default", false),
        (NOBODY, "get", "configmaps=other", "kube-public", false),
        (NOBODY, "get", "secrets=cluster-info", "kube-public", false),
    ];

    #[test]
    fn four_rules_decide() {
        for case @ (groups, verb, resource, namespace, want) in CASES {
            let groups = groups.iter().map(|&group| group.to_owned()).collect();
            let user = UserInfo { groups, ..UserInfo::named("u") };
            let (resource, name) = resource.split_once('=').unwrap_or((resource, ""));
            let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let on = match resource.strip_prefix('/') {
                Some(_) => AttemptTarget::Path(resource),
                None => AttemptTarget::Resource { group: "", resource: plural, subresource, namespace, name },
            };
            assert_eq!(may(&user, &Attempt { user: "u", verb, on }), *want, "{case:?}");
        }
    }
}
