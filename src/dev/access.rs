//! Who may do what in the embedded backend. Four rules, so that a newcomer can predict every answer:
//!
//! 1. `system:masters`, and the gateway asking for itself, may do everything, impersonation included.
//! 2. Everybody may read `/version` and the health checks.
//! 3. Everybody authenticated may do everything else, except impersonate, decide over signing requests, write to
//!    `kube-system`, and see the Secrets there (or in all namespaces at once).
//! 4. Nobody else may do anything.

use serde_json::{Value, json};

use super::failure::Failure;
use super::target::Target;
use crate::user::{ALL_AUTHENTICATED, UserInfo};

const MASTERS: &str = "system:masters";
const GATEWAY: &str = "system:portcullis";
const PROTECTED_NAMESPACE: &str = "kube-system";
const READS: &[&str] = &["get", "list", "watch"];

/// What is to be done with a resource; the attributes of a `SubjectAccessReview`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Action<'a> {
    pub(super) verb: &'a str,
    pub(super) resource: &'a str,
    pub(super) subresource: &'a str,
    pub(super) namespace: &'a str,
}

/// Whether a user may do something with a resource.
pub(super) fn may(user: &UserInfo, action: Action<'_>) -> bool {
    let Action {
        verb,
        resource,
        subresource,
        namespace,
    } = action;
    if is_master(user) {
        return true;
    }
    let known = resource != "*" && !["*", "impersonate", "approve", "sign"].contains(&verb);
    if !is_authenticated(user) || !known {
        return false;
    }
    let protected = namespace == PROTECTED_NAMESPACE;
    if resource == "secrets" && (protected || (namespace.is_empty() && verb != "create")) {
        return false;
    }
    let decides = resource == "certificatesigningrequests" && !subresource.is_empty();
    READS.contains(&verb) || !(protected || decides)
}

/// Whether a user may read a path that is no resource.
pub(super) fn may_path(user: &UserInfo, verb: &str, path: &str) -> bool {
    let public = ["/version", "/version/", "/healthz", "/livez", "/readyz"];
    is_master(user)
        || (verb == "get"
            && (is_authenticated(user)
                || public.contains(&path)
                || ["/healthz/", "/livez/", "/readyz/"]
                    .iter()
                    .any(|root| path.starts_with(root))))
}

/// Refuses what [`may`] does not allow, in the words of kube-apiserver's authorization filter.
pub(super) fn authorize(user: &UserInfo, verb: &str, target: &Target) -> Result<(), Failure> {
    let resource = target.resource;
    let action = Action {
        verb,
        resource: resource.plural,
        subresource: &target.subresource,
        // A namespace is itself protected, not only what is in it.
        namespace: if resource.plural == "namespaces" {
            &target.name
        } else {
            &target.namespace
        },
    };
    if may(user, action) {
        return Ok(());
    }
    let subject = if target.name.is_empty() {
        resource.qualified()
    } else {
        format!("{} {:?}", resource.qualified(), target.name)
    };
    let place = match target.scope() {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let message = format!(
        "{subject} is forbidden: User {:?} cannot {verb} resource {:?} in API group {:?} {place}",
        user.name,
        target.resource_path(),
        resource.group,
    );
    Err(Failure::forbidden(message, Some((resource, &target.name))))
}

/// Refuses what [`may_path`] does not allow.
pub(super) fn authorize_path(user: &UserInfo, verb: &str, path: &str) -> Result<(), Failure> {
    if may_path(user, verb, path) {
        return Ok(());
    }
    Err(Failure::forbidden(
        format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name),
        None,
    ))
}

/// Refuses impersonation to everybody but rule 1.
pub(super) fn authorize_impersonation(user: &UserInfo, name: &str) -> Result<(), Failure> {
    if is_master(user) {
        return Ok(());
    }
    let message = format!(
        "users {name:?} is forbidden: User {:?} cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
        user.name
    );
    Err(Failure::forbidden(message, None))
}

/// The rules above for `kubectl auth can-i --list`.
pub(super) fn rules(user: &UserInfo) -> Value {
    let rule = |verbs: &[&str], resources: &[&str]| json!({"verbs": verbs, "apiGroups": ["*"], "resources": resources});
    let public = json!({"verbs": ["get"], "nonResourceURLs": ["/version", "/healthz", "/livez", "/readyz"]});
    let (resources, paths) = if is_master(user) {
        (
            vec![rule(&["*"], &["*"])],
            vec![json!({"verbs": ["*"], "nonResourceURLs": ["*"]})],
        )
    } else if is_authenticated(user) {
        let all = [
            "get",
            "list",
            "watch",
            "create",
            "update",
            "patch",
            "delete",
            "deletecollection",
        ];
        (
            vec![rule(&all, &["*"])],
            vec![json!({"verbs": ["get"], "nonResourceURLs": ["*"]})],
        )
    } else {
        (Vec::new(), vec![public])
    };
    json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false})
}

fn is_master(user: &UserInfo) -> bool {
    user.name == GATEWAY || user.groups.iter().any(|group| group == MASTERS)
}

fn is_authenticated(user: &UserInfo) -> bool {
    user.groups.iter().any(|group| group == ALL_AUTHENTICATED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(groups: &[&str]) -> UserInfo {
        UserInfo {
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..UserInfo::named("u")
        }
    }

    #[test]
    fn four_rules_decide() {
        let masters = &["system:masters", "system:authenticated"][..];
        let people = &["developers", "system:authenticated"][..];
        let nobody = &["system:unauthenticated"][..];
        let cases: &[(&[&str], &str, &str, &str, bool)] = &[
            (masters, "impersonate", "users", "", true),
            (masters, "list", "secrets", "kube-system", true),
            (people, "create", "configmaps", "default", true),
            (people, "create", "configmaps", "kube-system", false),
            (people, "delete", "namespaces", "kube-system", false),
            (people, "get", "configmaps", "kube-system", true),
            (people, "get", "secrets", "default", true),
            (people, "list", "secrets", "kube-system", false),
            (people, "list", "secrets", "", false),
            (people, "impersonate", "users", "", false),
            (people, "update", "certificatesigningrequests/approval", "", false),
            (people, "create", "certificatesigningrequests", "", true),
            (people, "*", "*", "", false),
            (nobody, "get", "configmaps", "default", false),
        ];
        for (groups, verb, resource, namespace, want) in cases {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let action = Action {
                verb,
                resource,
                subresource,
                namespace,
            };
            assert_eq!(may(&user(groups), action), *want, "{groups:?} {action:?}");
        }
        for (groups, path, want) in [
            (nobody, "/version", true),
            (nobody, "/livez/ping", true),
            (nobody, "/api", false),
            (people, "/api", true),
        ] {
            assert_eq!(may_path(&user(groups), "get", path), want, "{groups:?} {path}");
        }
    }
}
