//! Authentication and authorization in the embedded backend.
//!
//! The user is in the gateway's identity headers, or is the one that the client impersonates. The code is that of the
//! gateway for its own front proxies. Four rules decide, so that a user can predict every response:
//!
//! 1. `system:masters` and the gateway itself may do everything, impersonation included.
//! 2. Every client may read `/version`, the health checks and the ConfigMap `kube-public/cluster-info`.
//! 3. Authenticated users may do everything else, except impersonate, review the access of others, approve signing
//!    requests, write to `kube-system`, and read Secrets there or in all namespaces at once.
//! 4. All other requests are forbidden.

use std::sync::Arc;

use http::HeaderMap;
use portcullis_kubernetes::status::{Attempt, AttemptTarget, Status};
use portcullis_kubernetes::user::{ALL_AUTHENTICATED, GATEWAY, UserInfo};
use portcullis_pki::x509::CaBundle;
use portcullis_system::clock::UnixTime;

use super::pki::GATEWAY_CLIENT_NAME;
use super::resources::{SECRETS, SIGNING_REQUESTS, SUBJECT_ACCESS_REVIEWS};
use crate::authn::request_header::{RequestHeaderAuthenticator, RequestHeaderNames};
use crate::authn::trace::AuthnTrace;
use crate::authn::x509::{FrontProxyVerifier, PodIdentities};
use crate::authn::{AuthnInput, ConnInfo, RequestAuthenticator as _};
use crate::request::credentials::Credentials;

const MASTERS: &str = "system:masters";
const PROTECTED_NAMESPACE: &str = "kube-system";
const PUBLIC_PATHS: &[&str] = &["/version", "/healthz", "/livez", "/readyz"];

/// The user of a request. An error for a request without identity headers, for another peer than the gateway, and for
/// an impersonation that the user may not do.
pub(super) async fn authenticate(
    conn: &ConnInfo,
    front_proxies: &Arc<CaBundle>,
    headers: &HeaderMap,
    now: UnixTime,
) -> Result<UserInfo, Status> {
    let credentials = &Credentials { front_proxy: headers.clone(), ..Credentials::default() };
    let trace = &AuthnTrace::default();
    let input = &AuthnInput { conn, credentials, path: "", audiences: &[], generation: 0, now, trace };
    let user = user_in_headers("x-remote-", front_proxies, input).await.ok_or_else(Status::unauthorized)?;
    if !headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        return Ok(user);
    }
    let incomplete = || Status::bad_impersonation("impersonation headers without impersonating a user");
    let impersonated = user_in_headers("impersonate-", front_proxies, input).await.ok_or_else(incomplete)?;
    let name = &impersonated.name;
    let on = AttemptTarget::Resource { group: "", resource: "users", subresource: "", namespace: "", name };
    authorize(&user, &Attempt { user: &user.name, verb: "impersonate", on })?;
    Ok(impersonated)
}

/// The user in the headers with this prefix, if the peer is the gateway.
async fn user_in_headers(
    prefix: &str,
    front_proxies: &Arc<CaBundle>,
    input: &AuthnInput<'_>,
) -> Option<UserInfo> {
    let header = |name| vec![format!("{prefix}{name}")];
    let (user, uid, group, extra) = (header("user"), header("uid"), header("group"), header("extra-"));
    let names = RequestHeaderNames::new(&user, &uid, &group, &extra).ok()?;
    let verifier = FrontProxyVerifier::new(
        Arc::clone(front_proxies),
        vec![GATEWAY_CLIENT_NAME.to_owned()],
        PodIdentities::Ignored,
    );
    let verdict = RequestHeaderAuthenticator::new(verifier, names).authenticate(input).await;
    Some(UserInfo::clone(&verdict.ok()??.user).in_authenticated_group())
}

/// An error if the user may not do this.
pub(super) fn authorize(user: &UserInfo, attempt: &Attempt<'_>) -> Result<(), Status> {
    if may(user, attempt) { Ok(()) } else { Err(Status::forbidden(attempt, "")) }
}

/// Whether the user may do this.
pub(super) fn may(user: &UserInfo, attempt: &Attempt<'_>) -> bool {
    let is_in = |wanted: &str| user.groups.iter().any(|group| group == wanted);
    if user.name == GATEWAY || is_in(MASTERS) {
        return true;
    }
    let reads = ["get", "list", "watch"].contains(&attempt.verb);
    match attempt.on {
        AttemptTarget::Path(path) => {
            let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
            let is_public = PUBLIC_PATHS.iter().any(|root| path.strip_prefix(root).is_some_and(is_below));
            reads && (is_in(ALL_AUTHENTICATED) || is_public)
        }
        AttemptTarget::Resource { resource, subresource, namespace, name, .. } => {
            let object = [attempt.verb, resource, subresource, namespace, name];
            if object == ["get", "configmaps", "", "kube-public", "cluster-info"] {
                return true;
            }
            let protected = namespace == PROTECTED_NAMESPACE;
            let secrets =
                resource == SECRETS && (protected || (namespace.is_empty() && attempt.verb != "create"));
            let approves = resource == SIGNING_REQUESTS && !subresource.is_empty();
            let reserved = ["*", SUBJECT_ACCESS_REVIEWS].contains(&resource)
                || ["*", "approve", "sign"].contains(&attempt.verb)
                || attempt.verb.starts_with("impersonate");
            is_in(ALL_AUTHENTICATED) && !reserved && !secrets && (reads || !(protected || approves))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Case = (&'static [&'static str], &'static str, &'static str, &'static str, bool);
    const MASTER: &[&str] = &["system:masters", "system:authenticated"];
    const AUTHENTICATED: &[&str] = &["developers", "system:authenticated"];
    const UNAUTHENTICATED: &[&str] = &["system:unauthenticated"];
    const CASES: &[Case] = &[
        (MASTER, "impersonate", "users", "", true),
        (MASTER, "list", "secrets", "kube-system", true),
        (AUTHENTICATED, "create", "configmaps", "default", true),
        (AUTHENTICATED, "create", "configmaps", "kube-system", false),
        (AUTHENTICATED, "delete", "namespaces", "kube-system", false),
        (AUTHENTICATED, "get", "configmaps", "kube-system", true),
        (AUTHENTICATED, "get", "secrets", "default", true),
        (AUTHENTICATED, "list", "secrets", "kube-system", false),
        (AUTHENTICATED, "list", "secrets", "", false),
        (AUTHENTICATED, "impersonate", "users", "", false),
        (AUTHENTICATED, "impersonate:user-info", "users", "", false),
        (AUTHENTICATED, "impersonate-on:user-info:get", "configmaps", "default", false),
        (AUTHENTICATED, "create", "subjectaccessreviews", "", false),
        (AUTHENTICATED, "create", "selfsubjectaccessreviews", "", true),
        (AUTHENTICATED, "update", "certificatesigningrequests/approval", "", false),
        (AUTHENTICATED, "create", "certificatesigningrequests", "", true),
        (AUTHENTICATED, "*", "*", "", false),
        (UNAUTHENTICATED, "get", "configmaps", "default", false),
        (UNAUTHENTICATED, "get", "/version", "", true),
        (UNAUTHENTICATED, "get", "/livez/ping", "", true),
        (UNAUTHENTICATED, "get", "/versions", "", false),
        (UNAUTHENTICATED, "post", "/version", "", false),
        (UNAUTHENTICATED, "get", "/api", "", false),
        (AUTHENTICATED, "get", "/api", "", true),
        (UNAUTHENTICATED, "get", "configmaps=cluster-info", "kube-public", true),
        (UNAUTHENTICATED, "list", "configmaps=cluster-info", "kube-public", false),
        (UNAUTHENTICATED, "update", "configmaps=cluster-info", "kube-public", false),
        (UNAUTHENTICATED, "get", "configmaps=cluster-info", "default", false),
        (UNAUTHENTICATED, "get", "configmaps=other", "kube-public", false),
        (UNAUTHENTICATED, "get", "secrets=cluster-info", "kube-public", false),
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
