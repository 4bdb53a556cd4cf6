//! Who may act as whom: `Impersonate-*` headers, decided by access reviews at the API servers.
//!
//! Follows `k8s.io/apiserver/pkg/endpoints/filters/impersonation`: the modes of constrained impersonation (KEP-5284) in
//! their order, then that of old. The first mode that allows decides; if none does, the first refusal is the response.
//! An impersonation that was allowed is kept for as long as all decisions that allowed it. `Identified::impersonate` in
//! `pipeline/stages.rs` refuses a user on the deny list afterwards. `wanted.rs` reads the headers; it refuses attributes without
//! a user.

mod key;
mod last_modes;
mod mode;
mod wanted;

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use lru::DefaultHasher;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::service_account;
use portcullis_kubernetes::status::Status;
use portcullis_kubernetes::user::{ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, ANONYMOUS, MASTERS, UserInfo};
use portcullis_limits::cache_budget::SharedLru;
use portcullis_system::sync::lock;
use tokio::time::Instant;

use super::access_review::{self, given};
use super::authorizer::AccessError;
use super::{AuthzTrace, ClusterAuthorizer, ReviewError};
use crate::backend::Backend;
use crate::metrics::Metrics;
use crate::request::info::RequestInfo;
use key::ImpersonationKey;
use last_modes::LastModes;
use mode::Mode;
pub(crate) use wanted::{BadImpersonation, WantedUser};

/// The group that no constrained mode lets a user act as.
const NODES: &str = "system:nodes";
/// From this many groups, or extra keys or values, on, a constrained mode first asks for all of them at once.
// apiserver: pkg/endpoints/filters/impersonation/mode.go, manyAuthorizationChecksInLoop
const MANY: usize = 4;
/// Concurrent access reviews of one request.
const CONCURRENT_REVIEWS: usize = 8;
/// The memory of all impersonations of a cluster that are kept.
const MAX_CACHED_BYTES: usize = 32 << 20;

/// Who decides on the `Impersonate-*` headers of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "camelCase")]
pub enum ImpersonationBy {
    /// The gateway, by access reviews at the backend.
    Gateway,
    /// The backend, which receives the headers.
    Backend,
}

/// Decides impersonations for one cluster.
#[derive(Debug)]
pub(crate) struct Impersonator {
    /// The gateway's own authorizers, before the API servers.
    authorizer: ClusterAuthorizer,
    /// The API servers that have the rules.
    backend: Arc<Backend>,
    /// The release that the gateway emulates.
    release: Release,
    metrics: Arc<Metrics>,
    last_modes: LastModes,
    /// With a fast hash, whose seed is not secret in the strict sense: only impersonations that are allowed are kept, so a
    /// client that makes keys collide slows down those who may impersonate as well, and no others.
    allowed: Mutex<SharedLru<ImpersonationKey, Impersonated, DefaultHasher>>,
}

/// An impersonation that is allowed.
#[derive(Debug, Clone)]
pub(crate) struct Impersonated {
    /// The user of the request after impersonation.
    pub(crate) identity: Identity,
    mode: Mode,
    until: Instant,
}

/// Why an impersonation is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImpersonationError {
    /// An authorizer does not allow it.
    #[error("{}", .0.message)]
    Forbidden(Box<Status>),
    /// No authorizer can say.
    #[error(transparent)]
    Undecided(#[from] ReviewError),
}

impl Impersonated {
    /// The verb of the constrained impersonation; `None` in the mode before it.
    pub(crate) fn constraint(&self) -> Option<&'static str> {
        self.mode.is_constrained().then(|| self.mode.verb())
    }
}

impl Impersonator {
    /// Asks `authorizer`. `backend` are the API servers that the requests go to.
    pub(crate) fn new(
        authorizer: ClusterAuthorizer,
        backend: &Arc<Backend>,
        release: Release,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            authorizer,
            backend: Arc::clone(backend),
            release,
            metrics: Arc::clone(metrics),
            last_modes: LastModes::new(),
            allowed: Mutex::new(SharedLru::new(MAX_CACHED_BYTES, backend.caches())),
        }
    }

    /// The impersonated user, if `requester` may impersonate it. Access reviews count in the share of `flow`.
    // threat: unauthorized-impersonation
    pub(crate) async fn impersonate(
        &self,
        flow: &str,
        requester: &Identity,
        wanted: &WantedUser<'_>,
        info: &RequestInfo,
        trace: &AuthzTrace,
    ) -> Result<Impersonated, ImpersonationError> {
        let began = Instant::now();
        let asked = Impersonation { flow, requester, wanted, info, trace };
        if let Some(found) = self.recall(&asked, began) {
            // Another look at the clock would take longer.
            self.metrics.impersonation.attempt(found.mode.name(), true, Duration::ZERO);
            return Ok(found);
        }
        // Boxed: it is large, and few requests need it.
        let result = Box::pin(self.try_modes(&asked)).await;
        let mode = result.as_ref().map_or("", |found| found.mode.name());
        self.metrics.impersonation.attempt(mode, result.is_ok(), began.elapsed());
        result
    }

    /// What [`Self::try_modes`] finds without an access review, in the mode that it tries first.
    fn recall(&self, asked: &Impersonation<'_, '_>, now: Instant) -> Option<Impersonated> {
        let mode = self.last_modes.get(&asked.requester.name)?;
        if !self.applies(mode, asked) {
            return None;
        }
        let key = if mode.is_constrained() {
            ImpersonationKey::of_request(mode, asked)
        } else {
            ImpersonationKey::of_user(mode, asked)
        };
        lock(&self.allowed).get(&key, now).cloned()
    }

    /// Tries the mode that allowed the requester's last impersonation, then the others in order.
    // impersonation/constrained_impersonation.go, getImpersonatedUser
    async fn try_modes(&self, asked: &Impersonation<'_, '_>) -> Result<Impersonated, ImpersonationError> {
        let last = self.last_modes.get(&asked.requester.name);
        let others = Mode::ALL.into_iter().filter(|mode| Some(*mode) != last);
        let mut refused = None;
        for mode in last.into_iter().chain(others) {
            if !self.applies(mode, asked) {
                continue;
            }
            match self.check(mode, asked).await {
                Ok(found) => {
                    if Some(mode) != last {
                        self.last_modes.put(&asked.requester.name, mode);
                    }
                    return Ok(found);
                }
                // Nothing is known, so nothing is tried further: a later mode would have no decision either.
                Err(error @ ImpersonationError::Undecided(_)) => return Err(error),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        // The last mode always applies.
        Err(refused
            .unwrap_or_else(|| ReviewError::Unusable("all impersonation modes failed".to_owned()).into()))
    }

    /// Whether each API server that may get the request would try the mode. The constrained modes mean nothing to releases
    /// before 1.36, where a role may have their verbs by `*` or a prefix that was harmless. The mode of old allows no less
    /// at any of them, so it alone decides while one of them is older, or has not said what it is.
    // threat: unauthorized-impersonation
    fn applies(&self, mode: Mode, asked: &Impersonation<'_, '_>) -> bool {
        let is_known = !mode.is_constrained()
            || self.release.has_constrained_impersonation() && self.backend.has_constrained_impersonation();
        is_known && mode.applies(asked.wanted, asked.requester)
    }

    async fn check(
        &self,
        mode: Mode,
        asked: &Impersonation<'_, '_>,
    ) -> Result<Impersonated, ImpersonationError> {
        // The mode of old does not depend on the request.
        let of_request = mode.is_constrained().then(|| ImpersonationKey::of_request(mode, asked));
        if let Some(found) = of_request.as_ref().and_then(|key| self.known(key)) {
            return Ok(found);
        }
        let requester = mode.requester(asked.requester);
        let mut check = ModeCheck {
            mode,
            requester: &requester,
            impersonator: self,
            flow: asked.flow,
            trace: asked.trace,
            until: None,
        };
        if let Some(verb) = mode.verb_on_request(asked.info.verb()) {
            check.ask(access_review::on_request(&requester, asked.info, verb)).await?;
        }
        // That of the user, whatever the request, is asked for once for many requests.
        let of_user = ImpersonationKey::of_user(mode, asked);
        let found = if let Some(found) = self.known(&of_user) {
            found
        } else {
            let mut user_check = ModeCheck { until: None, ..check };
            let identity = user_check.user(asked).await?.into();
            let until = user_check.until.unwrap_or_else(Instant::now);
            let found = Impersonated { identity, mode, until };
            self.keep(of_user, &found);
            found
        };
        if let (Some(key), Some(until)) = (of_request, check.until) {
            self.keep(key, &Impersonated { until: until.min(found.until), ..found.clone() });
        }
        Ok(found)
    }

    fn known(&self, key: &ImpersonationKey) -> Option<Impersonated> {
        lock(&self.allowed).get(key, Instant::now()).cloned()
    }

    fn keep(&self, key: ImpersonationKey, found: &Impersonated) {
        let (key, now) = (key.exact(), Instant::now());
        let weight = key.weight() + 256 + found.identity.weight();
        lock(&self.allowed).put(key, found.clone(), weight, found.until, now);
    }
}

/// What a request asks for.
struct Impersonation<'a, 'headers> {
    flow: &'a str,
    requester: &'a Identity,
    wanted: &'a WantedUser<'headers>,
    info: &'a RequestInfo,
    trace: &'a AuthzTrace,
}

/// The access reviews of one mode.
struct ModeCheck<'a> {
    mode: Mode,
    requester: &'a Identity,
    impersonator: &'a Impersonator,
    flow: &'a str,
    trace: &'a AuthzTrace,
    /// The earliest end of the decisions.
    until: Option<Instant>,
}

impl ModeCheck<'_> {
    /// Whether the requester may impersonate every attribute of the wanted user; then the user.
    // impersonation/mode.go, impersonationModeState.check
    async fn user(&mut self, asked: &Impersonation<'_, '_>) -> Result<UserInfo, ImpersonationError> {
        let WantedUser { name, uid, groups, extra: _ } = asked.wanted;
        let mut user = asked.wanted.user();
        let mut of_user = self.attributes("users", name);
        if self.mode.is_constrained()
            && let Some(node) = mode::node_name(name)
        {
            of_user.resource = Some("nodes".to_owned());
            of_user.name = Some(self.mode.asked_node(node));
            user.groups = vec![NODES.to_owned()];
        }
        if let Some((namespace, account)) = service_account::split(name) {
            of_user.resource = Some("serviceaccounts".to_owned());
            of_user.namespace = Some(namespace.to_owned());
            of_user.name = Some(account.to_owned());
            if groups.is_empty() {
                user.groups = service_account::groups(namespace);
            }
        }
        let of_uid = (!uid.is_empty()).then(|| self.authentication_attributes("uids", "", uid));
        self.ask_all([of_user].into_iter().chain(of_uid).collect()).await?;
        self.groups(groups).await?;
        self.extra(asked).await?;
        if user.name == ANONYMOUS {
            ensure_group(&mut user.groups, ALL_UNAUTHENTICATED);
        } else if !user.groups.iter().any(|group| group == ALL_UNAUTHENTICATED) {
            ensure_group(&mut user.groups, ALL_AUTHENTICATED);
        }
        Ok(user)
    }

    // authorizeGroups
    async fn groups(&mut self, groups: &[Cow<'_, str>]) -> Result<(), ImpersonationError> {
        if self.mode.is_constrained() {
            if groups.iter().any(|group| group.is_empty()) {
                let text = "impersonating the empty string group is not allowed";
                return Err(self.refuse(self.attributes("groups", ""), text));
            }
            if groups.iter().any(|group| group == MASTERS) {
                let text = "impersonating the system:masters group is not allowed";
                return Err(self.refuse(self.attributes("groups", MASTERS), text));
            }
        }
        let all = self.attributes("groups", "*");
        let singles = distinct(groups).map(|group| self.attributes("groups", group)).collect();
        self.ask_for_many(all, groups.len() >= MANY, singles).await
    }

    // authorizeExtra
    async fn extra(&mut self, asked: &Impersonation<'_, '_>) -> Result<(), ImpersonationError> {
        let extra = &asked.wanted.extra;
        if self.mode.is_constrained()
            && let Some(problem) = mode::extra_problem(extra)
        {
            return Err(self.refuse(self.authentication_attributes("userextras", "", ""), &problem));
        }
        let all = self.authentication_attributes("userextras", "*", "*");
        let is_large = extra.len() >= MANY || extra.values().map(Vec::len).sum::<usize>() >= MANY;
        let singles = extra.iter().flat_map(|(key, values)| {
            distinct(values).map(|value| self.authentication_attributes("userextras", key, value))
        });
        let singles = singles.collect();
        self.ask_for_many(all, is_large, singles).await
    }

    /// Asks for all names at once if there are many, else for each one.
    ///
    /// In constrained mode the access review for `*` decides for all, as in kube-apiserver. If it does not, or in the mode of
    /// old, where `*` is a name like any other, the rules of the requester decide, if the API server lists all of them.
    /// A webhook lists none, so it is asked for each name.
    async fn ask_for_many(
        &mut self,
        all: ResourceAttributes,
        is_many: bool,
        singles: Vec<ResourceAttributes>,
    ) -> Result<(), ImpersonationError> {
        if is_many && self.mode.is_constrained() {
            match self.ask(access_review::on_resource(self.requester, all)).await {
                Err(ImpersonationError::Forbidden(_)) => {}
                decided => return decided,
            }
        }
        let asks_webhooks = self.impersonator.authorizer.asks_webhooks();
        if singles.len() < MANY || asks_webhooks {
            return self.ask_all(singles).await;
        }
        let asked = Instant::now();
        let Some(rules) = self.impersonator.authorizer.rules(self.flow, self.requester).await else {
            return self.ask_all(singles).await;
        };
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let refused = singles.iter().position(|single| {
            let subresource = text(&single.subresource);
            let (group, resource, name) = (text(&single.group), text(&single.resource), text(&single.name));
            !rules.allow(self.mode.verb(), &group, &resource, &subresource, &name)
        });
        match refused.and_then(|at| singles.get(at).cloned()) {
            None => {
                self.count_until(asked + super::reviewer::ALLOWED_TTL);
                Ok(())
            }
            // The refusal is in the authorizer's words; and if it allows this name after all, it decides on the others.
            Some(first) => {
                self.ask_all(vec![first]).await?;
                self.ask_all(singles).await
            }
        }
    }

    /// Asks side by side. The first refusal in the order of the access reviews is the result.
    async fn ask_all(&mut self, all: Vec<ResourceAttributes>) -> Result<(), ImpersonationError> {
        let this = &*self;
        let reviews = all
            .into_iter()
            .map(|attributes| this.decision(access_review::on_resource(this.requester, attributes)));
        let ends: Vec<Instant> = stream::iter(reviews).buffered(CONCURRENT_REVIEWS).try_collect().await?;
        for until in ends {
            self.count_until(until);
        }
        Ok(())
    }

    async fn ask(&mut self, spec: SubjectAccessReviewSpec) -> Result<(), ImpersonationError> {
        let until = self.decision(spec).await?;
        self.count_until(until);
        Ok(())
    }

    fn count_until(&mut self, until: Instant) {
        self.until = Some(self.until.map_or(until, |before| before.min(until)));
    }

    /// The end of an allowing decision.
    // mode.go, checkAuthorization
    async fn decision(&self, spec: SubjectAccessReviewSpec) -> Result<Instant, ImpersonationError> {
        let began = Instant::now();
        let decided = self.authorize(&spec).await;
        let decision = if decided.is_ok() { "allowed" } else { "denied" };
        let metrics = &self.impersonator.metrics.impersonation;
        metrics.authorization(self.mode.name(), decision, began.elapsed());
        decided
    }

    /// Asks the authorizers; the end of a decision that allows.
    async fn authorize(&self, spec: &SubjectAccessReviewSpec) -> Result<Instant, ImpersonationError> {
        let decided = self.impersonator.authorizer.authorize(self.flow, spec, self.trace).await;
        match decided {
            // Without an end it counts for this request alone.
            Ok(allowed) => Ok(allowed.until.unwrap_or_else(Instant::now)),
            Err(AccessError::Undecided(error)) => Err(error.into()),
            Err(AccessError::Failed { error, reason }) if !reason.is_empty() => {
                Err(forbidden(spec, &format!("{error}: {reason}")))
            }
            Err(AccessError::Forbidden { reason: text, .. } | AccessError::Failed { error: text, .. }) => {
                Err(forbidden(spec, &text))
            }
        }
    }

    fn refuse(&self, attributes: ResourceAttributes, reason: &str) -> ImpersonationError {
        forbidden(&access_review::on_resource(self.requester, attributes), reason)
    }

    /// The attributes of a user or a group.
    fn attributes(&self, resource: &str, name: &str) -> ResourceAttributes {
        if self.mode.is_constrained() {
            return self.authentication_attributes(resource, "", name);
        }
        ResourceAttributes {
            verb: Some(self.mode.verb().to_owned()),
            version: Some("v1".to_owned()),
            resource: Some(resource.to_owned()),
            name: given(name),
            ..ResourceAttributes::default()
        }
    }

    /// The attributes of a resource of the group `authentication.k8s.io`.
    fn authentication_attributes(&self, resource: &str, subresource: &str, name: &str) -> ResourceAttributes {
        ResourceAttributes {
            verb: Some(self.mode.verb().to_owned()),
            group: Some("authentication.k8s.io".to_owned()),
            version: Some("v1".to_owned()),
            resource: Some(resource.to_owned()),
            subresource: given(subresource),
            name: given(name),
            ..ResourceAttributes::default()
        }
    }
}

fn forbidden(spec: &SubjectAccessReviewSpec, reason: &str) -> ImpersonationError {
    ImpersonationError::Forbidden(Box::new(Status::forbidden(&access_review::attempt(spec), reason)))
}

/// Texts without repetitions, in order.
fn distinct<'a>(texts: &'a [Cow<'_, str>]) -> impl Iterator<Item = &'a str> {
    let mut seen = std::collections::HashSet::new();
    texts.iter().map(AsRef::as_ref).filter(move |text| seen.insert(*text))
}

fn ensure_group(groups: &mut Vec<String>, group: &str) {
    if !groups.iter().any(|known| known == group) {
        groups.push(group.to_owned());
    }
}

#[cfg(test)]
mod tests;
