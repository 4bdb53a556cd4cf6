//! What a user may do: a request by a verb and a resource, and each check that authorizes it.

use std::fmt::Write as _;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use portcullis_audit::event::Stage;
use portcullis_audit::policy::Policy;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::extra_key::encode_extra_key;
use portcullis_kubernetes::user::UserInfo;
use portcullis_system::clock::Clock;
use portcullis_tools::table;
use portcullis_tools::terminal::plain;
use serde::Serialize;
use tokio::runtime::Handle;

use super::report::User;
use crate::audit::attributes;
use crate::authz::impersonation::{ImpersonationError, WantedUser};
use crate::authz::{AccessRefusal, AccessReviewer, AuthzCheck, AuthzTrace};
use crate::cluster::Cluster;
use crate::request::info::RequestInfo;

/// The path of the request without `--verb`: who am I?
const SELF_REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// The request whose authorization is explained.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Request")]
pub(super) struct RequestFlags {
    /// Explain a request as this user, whom the user of the credential impersonates. Like the flags --as-* of kubectl.
    #[arg(long = "as", value_name = "USER")]
    as_user: Option<String>,
    /// A group to impersonate. Repeat for several groups.
    #[arg(long, value_name = "GROUP", requires = "as_user")]
    as_group: Vec<String>,
    /// The UID to impersonate.
    #[arg(long, value_name = "UID", requires = "as_user")]
    as_uid: Option<String>,
    /// An extra attribute to impersonate. Repeat for several values.
    #[arg(long, value_name = "KEY=VALUE", requires = "as_user")]
    as_user_extra: Vec<String>,
    /// Explain a request with this verb: get, list, watch, create, update, patch, delete or deletecollection; with --path,
    /// an HTTP method. Default with --as: a SelfSubjectReview.
    #[arg(long, value_name = "VERB")]
    verb: Option<String>,
    /// The resource of the request, such as pods, deployments.apps, deployments.v1.apps or pods/log.
    #[arg(
        long,
        value_name = "RESOURCE[.VERSION][.GROUP][/SUBRESOURCE]",
        requires = "verb",
        conflicts_with = "path"
    )]
    resource: Option<String>,
    /// The namespace of the request. Default: the cluster scope.
    #[arg(long, value_name = "NAMESPACE", requires = "resource")]
    namespace: Option<String>,
    /// The name of the object.
    #[arg(long, value_name = "NAME", requires = "resource")]
    name: Option<String>,
    /// The path of a request that is not for a resource, such as /metrics.
    #[arg(long, value_name = "PATH", requires = "verb")]
    path: Option<String>,
}

/// A request, and the user whom it impersonates.
#[derive(Debug)]
pub(super) struct ExplainedRequest {
    info: RequestInfo,
    target: String,
    wanted: Option<WantedUser<'static>>,
}

/// The authorization of a request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccessExplanation {
    /// The method and the path.
    request: String,
    pub(super) allowed: bool,
    /// The impersonated user.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<User>,
    /// The response to a request that is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// What the audit policy says of the request; absent if nothing is audited.
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<AuditExplanation>,
    checks: Vec<AuthzCheck>,
}

/// How a request is audited.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditExplanation {
    level: &'static str,
    /// The rule of the policy that decides, counted from 1; absent if none matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<usize>,
    /// The stages without an event.
    omit_stages: Vec<&'static str>,
}

impl AuditExplanation {
    fn of(policy: &Policy, client: &Identity, info: &RequestInfo) -> Self {
        let attributes = attributes(Some(client), info);
        let decision = policy.evaluate(&attributes);
        Self {
            level: decision.level.as_str(),
            rule: policy.position(&attributes).map(|index| index.saturating_add(1)),
            omit_stages: decision.omitted.iter().map(Stage::as_str).collect(),
        }
    }

    fn text(&self) -> String {
        let Self { level, rule, omit_stages } = self;
        let Some(rule) = rule else {
            return format!("  audit     level {level}: no rule of the policy matches");
        };
        let without = match omit_stages.as_slice() {
            [] => String::new(),
            stages => format!(", without {}", stages.join(", ")),
        };
        format!("  audit     level {level} by rule {rule}{without}")
    }
}

impl RequestFlags {
    /// The request; `None` without any flag. Fails with the problem of a flag.
    pub(super) fn request(&self) -> Result<Option<ExplainedRequest>, String> {
        if self.as_user.is_none() && self.verb.is_none() {
            return Ok(None);
        }
        let (method, target) = match (&self.verb, &self.resource, &self.path) {
            (None, ..) => (Method::POST, SELF_REVIEW.to_owned()),
            (Some(verb), Some(resource), None) => self.on_resource(verb, resource)?,
            (Some(verb), None, Some(path)) => {
                let method = Method::from_bytes(verb.to_uppercase().as_bytes());
                (method.map_err(|_| format!("--verb: {verb:?} is not an HTTP method"))?, path.clone())
            }
            (Some(_), ..) => return Err("give --resource or --path with --verb".to_owned()),
        };
        let (path, query) =
            target.split_once('?').map_or((&*target, None), |(path, query)| (path, Some(query)));
        let info = RequestInfo::parse(&method, path, query).map_err(|error| error.message(path, query))?;
        Ok(Some(ExplainedRequest { info, wanted: self.wanted()?, target: format!("{method} {target}") }))
    }

    fn on_resource(&self, verb: &str, resource: &str) -> Result<(Method, String), String> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let (plural, rest) = resource.split_once('.').unwrap_or((resource, ""));
        let (version, group) = match rest.split_once('.').unwrap_or((rest, "")) {
            (version, group) if is_version(version) => (version, group),
            _ => ("v1", rest),
        };
        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        let mut target = format!("{root}/{version}");
        if let Some(namespace) = &self.namespace {
            write!(target, "/namespaces/{namespace}").ok();
        }
        write!(target, "/{plural}").ok();
        let is_of_object = match verb {
            "get" | "update" | "patch" | "delete" => true,
            "create" => !subresource.is_empty(),
            "list" | "watch" | "deletecollection" => false,
            _ => {
                return Err(format!(
                    "--verb: {verb:?} is not one of get, list, watch, create, update, patch, delete, deletecollection"
                ));
            }
        };
        match (&self.name, is_of_object) {
            (Some(name), true) => write!(target, "/{name}").ok(),
            (None, true) => return Err(format!("--name is required with --verb={verb}")),
            (Some(_), false) => return Err(format!("--name cannot be given with --verb={verb}")),
            (None, false) => None,
        };
        if !subresource.is_empty() {
            write!(target, "/{subresource}").ok();
        }
        Ok(match verb {
            "create" => (Method::POST, target),
            "update" => (Method::PUT, target),
            "patch" => (Method::PATCH, target),
            "delete" | "deletecollection" => (Method::DELETE, target),
            "watch" => (Method::GET, target + "?watch=true"),
            _ => (Method::GET, target),
        })
    }

    /// The user of `--as`, by the headers that kubectl would send.
    fn wanted(&self) -> Result<Option<WantedUser<'static>>, String> {
        let mut headers = HeaderMap::new();
        let mut add = |name: &str, value: &str| -> Result<(), String> {
            let bad = |problem: &dyn std::fmt::Display| format!("--as: {value:?}: {problem}");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| bad(&error))?;
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|error| bad(&error))?;
            headers.append(name, value);
            Ok(())
        };
        if let Some(user) = &self.as_user {
            add("impersonate-user", user)?;
        }
        if let Some(uid) = &self.as_uid {
            add("impersonate-uid", uid)?;
        }
        for group in &self.as_group {
            add("impersonate-group", group)?;
        }
        for extra in &self.as_user_extra {
            let (key, value) = extra
                .split_once('=')
                .ok_or_else(|| format!("--as-user-extra: {extra:?} is not KEY=VALUE"))?;
            add(&format!("impersonate-extra-{}", encode_extra_key(key)), value)?;
        }
        let wanted = WantedUser::of(&headers).map_err(|error| error.to_string())?;
        Ok(wanted.map(WantedUser::into_owned))
    }
}

/// Whether a part of a resource's name is a version, such as `v1beta2`.
// apimachinery: pkg/version/helpers.go, kubeVersionRegex
fn is_version(text: &str) -> bool {
    let mut rest = text.strip_prefix('v').unwrap_or_default();
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).count();
    for word in ["", "alpha", "beta"] {
        if let Some(after) = rest.strip_prefix(word)
            && let Some((number, after)) = after.split_at_checked(digits(after))
            && !number.is_empty()
        {
            rest = after;
            if rest.is_empty() {
                return true;
            }
        }
    }
    false
}

impl ExplainedRequest {
    /// Runs every check of the gateway, then asks the API server, which also authorizes the request.
    pub(super) async fn explain(self, user: UserInfo, cluster: &Cluster) -> AccessExplanation {
        let requester = Identity::from(user);
        let trace = AuthzTrace::recording();
        let decided = self.decide(&requester, cluster, &trace).await;
        let (identity, message) = match decided {
            Ok(identity) => (Some(identity), None),
            Err((identity, message)) => (identity, Some(message)),
        };
        let user = identity.filter(|identity| !identity.is_shared_with(&requester)).map(|identity| User {
            username: identity.name.clone(),
            uid: identity.uid.clone(),
            groups: identity.groups.clone(),
            extra: identity.extra.clone(),
        });
        AccessExplanation {
            request: self.target,
            allowed: message.is_none(),
            user,
            message,
            audit: cluster
                .audit
                .as_ref()
                .map(|audit| AuditExplanation::of(&audit.policy, &requester, &self.info)),
            checks: trace.into_checks(),
        }
    }

    /// The user of the request, if it is allowed; else the response.
    async fn decide(
        &self,
        requester: &Identity,
        cluster: &Cluster,
        trace: &AuthzTrace,
    ) -> Result<Identity, (Option<Identity>, String)> {
        let identity = match &self.wanted {
            None => requester.clone(),
            // Where the API server decides, by the same rules.
            Some(wanted) => {
                let (flow, impersonator) = (&requester.name, &cluster.impersonator);
                let deciding = impersonator.impersonate(flow, requester, wanted, &self.info, trace).await;
                let deciding = deciding.map(|found| found.identity);
                deciding.map_err(|error| {
                    let message = match error {
                        ImpersonationError::Forbidden(status) => status.message,
                        ImpersonationError::Undecided(error) => error.to_string(),
                    };
                    (None, message)
                })?
            }
        };
        check_impersonated(requester, &identity, cluster)
            .map_err(|problem| (Some(identity.clone()), problem))?;
        let path = self.target.split_once(' ').map_or("", |(_, path)| path);
        if let Some(authorizer) = &cluster.authorizer {
            let deciding =
                authorizer.authorize_request(&requester.name, &identity, (&self.info, path), trace).await;
            deciding.map_err(|refusal| {
                let message = match refusal {
                    AccessRefusal::Forbidden { status, .. } | AccessRefusal::Failed(status) => {
                        status.message.trim_end().to_owned()
                    }
                    AccessRefusal::Undecided(error) => error.to_string(),
                };
                (Some(identity.clone()), message)
            })?;
        }
        let reviewer = AccessReviewer::new(&cluster.backend, &Handle::current());
        match reviewer.ask_for_request(&identity, &self.info, trace).await {
            Ok(Ok(())) => Ok(identity),
            Ok(Err(refused)) => Err((Some(identity), refused.message)),
            Err(error) => Err((Some(identity), error.to_string())),
        }
    }
}

/// Why the gateway does not let a client act as a user whom it may impersonate.
fn check_impersonated(requester: &Identity, user: &Identity, cluster: &Cluster) -> Result<(), String> {
    if user.is_shared_with(requester) {
        return Ok(());
    }
    let revocation = cluster.authn.chain.revocation();
    let revoked = revocation.check_user(user, Clock::system().now());
    revoked.map_err(|revoked| format!("the impersonated user is revoked: {revoked}"))?;
    let lines = user.lines(cluster.backend.identity());
    lines.map(drop).map_err(|error| format!("the impersonated user cannot be forwarded: {error}"))
}

impl AccessExplanation {
    /// The text form.
    pub(super) fn text(&self) -> Vec<String> {
        let verdict = if self.allowed { "allowed" } else { "refused" };
        let mut lines = vec![format!("{verdict}: {}", plain(&self.request))];
        if let Some(user) = &self.user {
            lines.push(format!("  as        {}", plain(&user.username)));
            lines.extend(user.uid.iter().map(|uid| format!("  uid       {}", plain(uid))));
            lines.extend(user.groups.iter().map(|group| format!("  group     {}", plain(group))));
            for (key, values) in &user.extra {
                let key = plain(key);
                lines.extend(values.iter().map(|value| format!("  extra     {key}={}", plain(value))));
            }
        }
        lines.extend(self.message.iter().map(|message| format!("  why       {}", plain(message))));
        lines.extend(self.audit.as_ref().map(AuditExplanation::text));
        if !self.checks.is_empty() {
            lines.push(String::new());
            lines.extend(table(&self.checks));
        }
        lines
    }
}

fn table(checks: &[AuthzCheck]) -> Vec<String> {
    let cells = checks.iter().map(|AuthzCheck { authorizer, review, result, cached, detail }| {
        let answer = if *cached { "cached" } else { "new" };
        let detail = if detail.is_empty() { String::new() } else { plain(detail).into_owned() };
        [
            plain(authorizer).into_owned(),
            plain(review).into_owned(),
            (*result).to_owned(),
            answer.to_owned(),
            detail,
        ]
    });
    let table = table::columns(["AUTHORIZER", "CHECK", "RESULT", "ANSWER", "DETAIL"], cells);
    table.lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_and_a_resource_are_a_request() {
        let of = |verb: &str, resource: &str, namespace: Option<&str>, name: Option<&str>| {
            let flags = RequestFlags {
                verb: Some(verb.to_owned()),
                resource: Some(resource.to_owned()),
                namespace: namespace.map(str::to_owned),
                name: name.map(str::to_owned),
                ..RequestFlags::default()
            };
            flags.request().map(|request| request.unwrap().target)
        };
        for (verb, resource, namespace, name, expected) in [
            ("get", "pods", Some("n"), Some("p"), "GET /api/v1/namespaces/n/pods/p"),
            ("get", "pods/log", Some("n"), Some("p"), "GET /api/v1/namespaces/n/pods/p/log"),
            ("list", "deployments.apps", None, None, "GET /apis/apps/v1/deployments"),
            ("watch", "jobs.v1beta1.batch", None, None, "GET /apis/batch/v1beta1/jobs?watch=true"),
            (
                "create",
                "things.example.com",
                Some("n"),
                None,
                "POST /apis/example.com/v1/namespaces/n/things",
            ),
            ("create", "pods/eviction", Some("n"), Some("p"), "POST /api/v1/namespaces/n/pods/p/eviction"),
            ("deletecollection", "nodes.v1", None, None, "DELETE /api/v1/nodes"),
        ] {
            assert_eq!(of(verb, resource, namespace, name).as_deref(), Ok(expected));
        }
        for (verb, name, problem) in [
            ("get", None, "--name is required with --verb=get"),
            ("list", Some("p"), "--name cannot be given with --verb=list"),
            ("escalate", None, "is not one of get, list"),
        ] {
            assert!(of(verb, "pods", None, name).unwrap_err().contains(problem), "{problem}");
        }
        assert!(RequestFlags::default().request().unwrap().is_none());
    }
}
