//! The gateway's own authorizers, in order. The backend authorizes every request after them: they may refuse a request,
//! and never allow one that the backend refuses.
//!
//! Follows `k8s.io/apiserver/pkg/authorization/union` and `k8s.io/kubernetes/pkg/kubeapiserver/authorizer`.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::status::Status;
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::cache_budget::CacheShare;
use rustls::crypto::CryptoProvider;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::cached_reviews::ReviewError;
use super::settings::{Authorization, AuthorizationWebhook, AuthorizerSettings};
use super::webhook::WebhookAuthorizer;
use super::{AuthzTrace, access_review};
use crate::metrics::Metrics;
use crate::request::info::RequestInfo;

/// The group whose members every authorizer allows everything.
// kubernetes: pkg/kubeapiserver/authorizer/reload.go, newForConfig
const SUPERUSERS: &str = "system:masters";
/// The reason of `AlwaysDeny`.
// apiserver: pkg/authorization/authorizerfactory/builtin.go
const ALWAYS_DENY: &str = "Everything is forbidden.";

/// Authorizers in order, the first of which that allows or denies decides.
#[derive(Debug)]
pub(crate) struct Authorizer {
    members: Vec<Member>,
    /// The release that the gateway emulates.
    release: Release,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
enum Member {
    AlwaysAllow,
    AlwaysDeny,
    Webhook(Arc<WebhookAuthorizer>),
}

/// What an authorizer decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Allow,
    Deny,
    /// The next one decides.
    NoOpinion,
}

/// The result of one authorizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opinion {
    pub(super) decision: Decision,
    /// Why; may be empty.
    pub(super) reason: String,
    /// What went wrong.
    pub(super) error: Option<String>,
    /// When a decision that allows ends.
    pub(super) until: Option<Instant>,
}

/// What an opinion rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpinionSource {
    /// An authorizer in the process.
    Own,
    /// The conditions of a webhook exclude the request.
    Excluded,
    /// The conditions of a webhook failed.
    Conditions,
    /// An access review of this request.
    Review,
    /// An earlier access review.
    Cache,
}

/// The decision to allow a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllowedAccess {
    /// Why, in the words of the authorizer; may be empty.
    pub(crate) reason: String,
    /// When the decision ends; `None` if it holds for the whole generation.
    pub(crate) until: Option<Instant>,
}

/// Why a request is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessError {
    /// No authorizer allows it.
    #[error("forbidden: {reason}")]
    Forbidden {
        /// Why; may be empty.
        reason: String,
        /// Whether an authorizer denies it.
        is_denied: bool,
    },
    /// No authorizer allows it, and at least one failed.
    #[error("{error}")]
    Failed {
        /// What went wrong.
        error: String,
        /// Why it is not allowed; may be empty.
        reason: String,
    },
    /// The gateway cannot ask now.
    #[error(transparent)]
    Undecided(#[from] ReviewError),
}

/// The refusal of a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessRefusal {
    /// Nothing allows the request.
    #[error("{}", .status.message)]
    Forbidden {
        /// The response.
        status: Box<Status>,
        /// Why, in the words of the authorizers.
        reason: String,
    },
    /// An authorizer has failed. The request is refused with this response.
    #[error("{}", .0.message)]
    Failed(Box<Status>),
    /// The gateway cannot ask now.
    #[error(transparent)]
    Undecided(ReviewError),
}

/// An attempt to authorize a request; without a result until its deadline it is an error.
// apiserver: pkg/endpoints/filters/metrics.go, recordAuthorizationMetrics
struct Attempt<'a> {
    began: Instant,
    result: &'static str,
    metrics: &'a Metrics,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.metrics.authorization.attempt(self.result, self.began.elapsed());
    }
}

/// What authorizers are built with.
#[derive(Clone, Copy)]
pub(crate) struct AuthorizerDeps<'a> {
    /// The crypto provider of TLS connections to webhooks.
    pub(crate) provider: &'a Arc<CryptoProvider>,
    /// Access reviews run here.
    pub(crate) runtime: &'a Handle,
    /// The metrics.
    pub(crate) metrics: &'a Arc<Metrics>,
    /// What their decisions may take of the caches of the cluster.
    pub(crate) caches: &'a CacheShare,
}

impl Authorizer {
    /// Keeps webhooks of `before`, with their decisions, where their settings are the same.
    pub(crate) fn build(
        settings: &Authorization,
        release: Release,
        before: Option<&Self>,
        deps: &AuthorizerDeps<'_>,
    ) -> Result<Self, rustls::Error> {
        let known = |webhook: &AuthorizationWebhook| {
            before.into_iter().flat_map(|before| &before.members).find_map(|member| match member {
                Member::Webhook(known) if known.is_for(webhook) => Some(Arc::clone(known)),
                _ => None,
            })
        };
        let member = |settings: &AuthorizerSettings| {
            Ok(match settings {
                AuthorizerSettings::AlwaysAllow => Member::AlwaysAllow,
                AuthorizerSettings::AlwaysDeny => Member::AlwaysDeny,
                AuthorizerSettings::Webhook(webhook) => Member::Webhook(match known(webhook) {
                    Some(known) => known,
                    None => Arc::new(WebhookAuthorizer::new(webhook, deps)?),
                }),
            })
        };
        let members = settings.authorizers.iter().map(member).collect::<Result<_, rustls::Error>>()?;
        Ok(Self { members, release, metrics: Arc::clone(deps.metrics) })
    }

    /// Whether any webhook is among them.
    pub(crate) fn asks_webhooks(&self) -> bool {
        self.members.iter().any(|member| matches!(member, Member::Webhook(_)))
    }

    /// Decides the request of `user` for `target`, its path and query. Access reviews count in the share of `flow`.
    // apiserver: pkg/endpoints/filters/authorization.go, WithAuthorization
    pub(crate) async fn authorize_request(
        &self,
        flow: &str,
        user: &UserInfo,
        (info, target): (&RequestInfo, &str),
        trace: &AuthzTrace,
    ) -> Result<AllowedAccess, AccessRefusal> {
        let mut attempt = Attempt { began: Instant::now(), result: "error", metrics: &self.metrics };
        let spec = access_review::on_request(user, info, info.verb().to_owned());
        let decided = self.authorize(flow, &spec, trace).await;
        attempt.result = match &decided {
            Ok(_) => "allowed",
            Err(AccessError::Forbidden { is_denied: true, .. }) => "denied",
            Err(AccessError::Forbidden { .. }) => "no-opinion",
            Err(AccessError::Failed { .. } | AccessError::Undecided(_)) => "error",
        };
        decided.map_err(|error| match error {
            AccessError::Forbidden { reason, .. } => {
                let status = Box::new(Status::forbidden(&access_review::attempt(&spec), &reason));
                AccessRefusal::Forbidden { status, reason }
            }
            AccessError::Failed { error, .. } => {
                AccessRefusal::Failed(Box::new(Status::internal_error_text(target, &error)))
            }
            AccessError::Undecided(error) => AccessRefusal::Undecided(error),
        })
    }

    /// Decides an access review. It is refused if no authorizer allows it.
    // union.go, Authorize
    // threat: authorization-bypass
    pub(crate) async fn authorize(
        &self,
        flow: &str,
        spec: &SubjectAccessReviewSpec,
        trace: &AuthzTrace,
    ) -> Result<AllowedAccess, AccessError> {
        if spec.groups.iter().flatten().any(|group| group == SUPERUSERS) {
            trace.record("system:masters", spec, ("allow", false), "");
            return Ok(AllowedAccess::default());
        }
        let mut reasons = Vec::new();
        let mut errors = Vec::new();
        for member in &self.members {
            let asked = member.opinion(flow, spec, trace).await;
            let (opinion, source) = asked.inspect_err(|error| {
                trace.record(member.name(), spec, ("error", false), &error.to_string());
            })?;
            opinion.record(member.name(), spec, source, trace);
            self.count(member, opinion.decision);
            let Opinion { decision, reason, error, until } = opinion;
            match (decision, error) {
                (Decision::Allow, _) => return Ok(AllowedAccess { reason, until }),
                (Decision::Deny, Some(error)) => return Err(AccessError::Failed { error, reason }),
                (Decision::Deny, None) => return Err(AccessError::Forbidden { reason, is_denied: true }),
                (Decision::NoOpinion, error) => {
                    errors.extend(error);
                    let reason = Some(reason).filter(|reason| !reason.is_empty());
                    reasons.extend(reason.map(|reason| self.release.chain_reason(member.name(), reason)));
                }
            }
        }
        Err(match aggregate(&errors) {
            Some(error) => AccessError::Failed { error, reason: reasons.join("\n") },
            None => AccessError::Forbidden { reason: reasons.join("\n"), is_denied: false },
        })
    }

    // apiserver: pkg/authorization/metrics/metrics.go, InstrumentedAuthorizer
    fn count(&self, member: &Member, decision: Decision) {
        let decision = match decision {
            Decision::Allow => "allowed",
            Decision::Deny => "denied",
            Decision::NoOpinion => return,
        };
        let kind = match member {
            Member::AlwaysAllow => "AlwaysAllow",
            Member::AlwaysDeny => "AlwaysDeny",
            Member::Webhook(_) => "Webhook",
        };
        self.metrics.authorization.decided(kind, member.name(), decision);
    }
}

impl Member {
    fn name(&self) -> &str {
        match self {
            Self::AlwaysAllow => "alwaysallow",
            Self::AlwaysDeny => "alwaysdeny",
            Self::Webhook(webhook) => webhook.name(),
        }
    }

    async fn opinion(
        &self,
        flow: &str,
        spec: &SubjectAccessReviewSpec,
        trace: &AuthzTrace,
    ) -> Result<(Opinion, OpinionSource), ReviewError> {
        let opinion = match self {
            Self::AlwaysAllow => Opinion { decision: Decision::Allow, ..Opinion::none() },
            Self::AlwaysDeny => Opinion { reason: ALWAYS_DENY.to_owned(), ..Opinion::none() },
            Self::Webhook(webhook) => return webhook.opinion(flow, spec, trace).await,
        };
        Ok((opinion, OpinionSource::Own))
    }
}

impl Opinion {
    /// No opinion.
    pub(super) fn none() -> Self {
        Self { decision: Decision::NoOpinion, reason: String::new(), error: None, until: None }
    }

    /// Records the opinion of `authorizer`.
    fn record(
        &self,
        authorizer: &str,
        spec: &SubjectAccessReviewSpec,
        source: OpinionSource,
        trace: &AuthzTrace,
    ) {
        let result = match (self.decision, &self.error) {
            (_, Some(_)) => "error",
            (Decision::Allow, None) => "allow",
            (Decision::Deny, None) => "deny",
            (Decision::NoOpinion, None) => "no opinion",
        };
        let detail = match source {
            OpinionSource::Excluded => "its matchConditions exclude the request",
            _ => self.error.as_ref().unwrap_or(&self.reason),
        };
        trace.record(authorizer, spec, (result, source == OpinionSource::Cache), detail);
    }

    /// A denial.
    pub(super) fn denied(reason: String) -> Self {
        Self { decision: Decision::Deny, reason, ..Self::none() }
    }
}

/// Several errors as one; `None` if there are none.
// apimachinery: pkg/util/errors/errors.go, aggregate.Error
pub(super) fn aggregate(errors: &[String]) -> Option<String> {
    let mut seen = HashSet::new();
    let distinct: Vec<&str> = errors.iter().map(String::as_str).filter(|error| seen.insert(*error)).collect();
    match distinct[..] {
        [] => None,
        [only] => Some(only.to_owned()),
        ref several => Some(format!("[{}]", several.join(", "))),
    }
}
