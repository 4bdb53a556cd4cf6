//! Caches verdicts on tokens, so that not every request repeats the check of its token.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/token/cache`. A verdict is stored under a keyed hash of the token and
//! the audiences, for the duration set by [`CachePolicy`] and, unlike in kube-apiserver, never past the credential's
//! expiry. Concurrent requests of one owner with the same token share one check, which runs in the
//! [pool](crate::tasks::compute) and continues if they are cancelled. The number of concurrent checks is bounded, for all owners
//! and for each one: a flood of made-up tokens waits in the share of its sender, and beyond a limit is refused unchecked. A cache
//! must never outlive the configuration that it was made for.
//!
//! A hit takes one lock, for as long as a map access.

mod check;
mod good_tokens;
mod key;
mod outcome;

use std::sync::Arc;
use std::time::Duration;

use portcullis_limits::Owner;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_limits::fair_limiter::{FairLimiter, Permit, Shares};
use portcullis_limits::shared_lookup::{Found, Lookup, SharedLookups, Term};
use tokio::time::Instant;

use super::{AuthnError, AuthnVerdict, BearerToken, BoxFuture, TokenAuthenticator, TokenContext};
use crate::metrics::{GaugeGuard, TokenCacheMetrics};
use crate::tasks::compute::ClusterComputePool;
use check::TokenCheck;
use good_tokens::GoodTokens;
use key::{CacheKey, CacheKeyHasher, SecretKeyHash};
use outcome::CheckOutcome;

/// How long a token waits for its check to start.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest token that waits for its check, and that takes one place. Those of clusters have 1 to 2 KiB; a header may have
/// 1 MiB.
const MAX_WAITING_BYTES: usize = 16 << 10;
/// Number of shards, each with its own lock, to reduce contention between request workers.
const SHARDS: usize = 16;

/// How long verdicts are stored, counted from the start of their lookup. Zero disables storing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CachePolicy {
    /// For authenticated tokens.
    pub success: Duration,
    /// For tokens on which no authenticator had an opinion.
    pub failure: Duration,
    /// Whether errors are stored like failures; if not, they are not stored.
    pub errors: bool,
}

impl CachePolicy {
    /// The policy of kube-apiserver's cache for all methods.
    // kubernetes: pkg/kubeapiserver/options/authentication.go, NewBuiltInAuthenticationOptions
    pub(crate) const TOKENS: Self =
        Self { success: Duration::from_secs(10), failure: Duration::ZERO, errors: true };

    fn duration(&self, verdict: &AuthnVerdict) -> Duration {
        match verdict {
            Ok(Some(_)) => self.success,
            Err(_) if !self.errors => Duration::ZERO,
            Ok(None) | Err(_) => self.failure,
        }
    }
}

/// Resource limits of a cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheLimits {
    /// Bytes of stored verdicts. A verdict on the service-account token of a pod takes 2 KiB.
    memory: usize,
    /// Concurrent checks, and tokens that wait for theirs; of both the share of one owner. A check holds its token: one that is
    /// longer than [`MAX_WAITING_BYTES`] takes a place for each such part, and does not wait.
    checks: Shares,
    /// Further checks, and as many waiting tokens, reserved for tokens whose last verdict was a success: made-up
    /// tokens cannot occupy them.
    reserved: Shares,
    /// Number of tokens recorded as such.
    good_tokens: usize,
}

/// The part of a cluster's checks that the cluster of a tenant has.
const TENANT_PART: usize = 8;

impl CacheLimits {
    /// For all tokens of a cluster. Most are checked locally at once; the others wait for a remote service and must
    /// leave places free. Stricter limits bound them: [`Self::WEBHOOK`], and those of issuers' keys and of live reads.
    pub(crate) const CLUSTER: Self = Self {
        memory: 64 << 20,
        checks: Shares::new(4096, 1024).with_queue(4096, 1024),
        reserved: Shares::new(0, 0),
        good_tokens: 0,
    };
    /// For all tokens of a tenant's cluster.
    pub(crate) const TENANT: Self =
        Self { checks: Self::CLUSTER.checks.divided_by(TENANT_PART), ..Self::CLUSTER };
    /// For tokens that a remote service checks, which may take long.
    pub(crate) const WEBHOOK: Self = Self {
        memory: 64 << 20,
        checks: Shares::new(128, 64).with_queue(512, 256),
        reserved: Shares::new(32, 16).with_queue(32, 16),
        good_tokens: 1 << 16,
    };
}

/// Caches the verdicts of another token authenticator.
#[derive(Debug)]
pub(crate) struct CachedTokens(Arc<CacheState>);

#[derive(Debug)]
struct CacheState {
    delegate: Arc<dyn TokenAuthenticator>,
    policy: CachePolicy,
    checks: ClusterComputePool,
    metrics: TokenCacheMetrics,
    hasher: CacheKeyHasher,
    verdicts: Verdicts,
    good_tokens: GoodTokens,
    /// For any token.
    places: FairLimiter,
    /// For tokens whose last verdict was a success.
    reserved_places: FairLimiter,
}

type Verdicts = SharedLookups<CacheKey, Arc<CheckOutcome>, Owner, SecretKeyHash>;
type FoundVerdict = Found<CacheKey, Arc<CheckOutcome>, Owner, SecretKeyHash>;
type VerdictLookup = Lookup<CacheKey, Arc<CheckOutcome>, Owner, SecretKeyHash>;

impl CachedTokens {
    /// Checks tokens by `delegate`, in `checks`. What is kept counts in the share of the cluster's caches.
    pub(crate) fn new(
        delegate: Arc<dyn TokenAuthenticator>,
        policy: CachePolicy,
        checks: ClusterComputePool,
        metrics: &TokenCacheMetrics,
        limits: CacheLimits,
        share: &CacheShare,
    ) -> Self {
        Self(Arc::new(CacheState {
            delegate,
            policy,
            checks,
            metrics: metrics.clone(),
            hasher: CacheKeyHasher::random(),
            verdicts: Verdicts::new(limits.memory, SHARDS, share),
            good_tokens: GoodTokens::new(limits.good_tokens),
            places: FairLimiter::new(limits.checks),
            reserved_places: FairLimiter::new(limits.reserved),
        }))
    }

    /// Returns the stored outcome, or waits for the shared check.
    async fn outcome(&self, token: &BearerToken, context: TokenContext<'_>) -> Arc<CheckOutcome> {
        let Self(state) = self;
        let begun = Instant::now();
        let key = state.hasher.key(token, context.audiences);
        let found = state.find(&key, context, begun);
        if let Found::Known(outcome) = found {
            state.metrics.hit(begun.elapsed());
            return outcome;
        }
        let _miss = MissTimer { metrics: &state.metrics, begun, _blocked: state.metrics.blocked() };
        // Boxed: the future of every request would be as large.
        Box::pin(state.checked(key, found, token, context)).await
    }

    /// Checks the token without the cache, which stores no steps.
    async fn authenticate_uncached(&self, token: &BearerToken, context: TokenContext<'_>) -> AuthnVerdict {
        let Self(state) = self;
        let check = TokenCheck::new(token, context);
        let Some(place) = state.place(context.owner, token, false).await else { return Err(overloaded()) };
        let running = state.checks.runtime().spawn({
            let state = Arc::clone(state);
            async move {
                let _place = place;
                check.run(&state).await
            }
        });
        let Ok((outcome, _)) = running.await else { return Err(cancelled()) };
        context.trace.merge(&outcome.record);
        outcome.verdict
    }
}

impl TokenAuthenticator for CachedTokens {
    fn name(&self) -> &'static str {
        self.0.delegate.name()
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async move {
            if context.trace.keeps_steps() {
                return self.authenticate_uncached(token, context).await;
            }
            let outcome = self.outcome(token, context).await;
            if matches!(outcome.verdict, Ok(Some(_))) {
                context.trace.merge(&outcome.record);
            }
            outcome.verdict.clone()
        })
    }
}

// threat: token-flood
impl CacheState {
    /// What the cache has. The expiry of credentials is compared with the time of the request, that of verdicts with `instant`:
    /// setting the clock back must not prolong them.
    fn find(&self, key: &CacheKey, context: TokenContext<'_>, instant: Instant) -> FoundVerdict {
        self.verdicts.find(key, context.owner, instant, |outcome| outcome.holds_at(context.now))
    }

    /// Waits for the check of a token whose verdict is not stored.
    async fn checked(
        self: &Arc<Self>,
        key: CacheKey,
        mut found: FoundVerdict,
        token: &BearerToken,
        context: TokenContext<'_>,
    ) -> Arc<CheckOutcome> {
        loop {
            let (pending, is_own) = match found {
                Found::Known(outcome) => return outcome,
                Found::Pending(pending) => (pending, false),
                Found::Vacant(lookup, pending) => {
                    self.begin(lookup, token, context).await;
                    (pending, true)
                }
            };
            match pending.result().await {
                Some(outcome) if is_own || outcome.holds_at(context.now) => return outcome,
                // The check was cancelled before its start, or the credential has expired.
                _ => found = self.find(&key, context, Instant::now()),
            }
        }
    }

    /// Starts a check as soon as there is a place for it. If the request is cancelled until then, one of those that wait
    /// starts another.
    async fn begin(self: &Arc<Self>, lookup: VerdictLookup, token: &BearerToken, context: TokenContext<'_>) {
        let was_good = self.good_tokens.contains(lookup.key());
        let Some(place) = self.place(context.owner, token, was_good).await else {
            return lookup.finish(Arc::new(CheckOutcome::of(overloaded())), None);
        };
        let running = RunningCheck { state: Arc::clone(self), lookup: Some(lookup) };
        self.checks.runtime().spawn(running.run(TokenCheck::new(token, context), place));
    }

    /// A place for a check; `None` if the queue is full, [`QUEUE_TIMEOUT`] expires or the token is long. A token whose last verdict was a
    /// success does not wait behind unknown tokens.
    // threat: large-tokens
    async fn place(&self, owner: &Owner, token: &BearerToken, was_good: bool) -> Option<Permit> {
        let weight = token.expose().len().div_ceil(MAX_WAITING_BYTES).max(1);
        if let Some(place) = self.places.try_acquire(owner.clone(), weight) {
            return Some(place);
        }
        let places = if was_good { &self.reserved_places } else { &self.places };
        if weight > 1 {
            return places.try_acquire(owner.clone(), weight);
        }
        places.acquire(owner.clone(), weight, Instant::now() + QUEUE_TIMEOUT).await.ok()
    }
}

fn overloaded() -> AuthnError {
    AuthnError::Unavailable("too many tokens are being checked at once".to_owned())
}

fn cancelled() -> AuthnError {
    AuthnError::Unavailable("the token check was cancelled".to_owned())
}

/// Records a cache miss when the request ends or is cancelled.
struct MissTimer<'a> {
    metrics: &'a TokenCacheMetrics,
    begun: Instant,
    _blocked: GaugeGuard,
}

impl Drop for MissTimer<'_> {
    fn drop(&mut self) {
        self.metrics.miss(self.begun.elapsed());
    }
}

/// A check that several requests may wait for. Dropping it ends it with an error.
struct RunningCheck {
    state: Arc<CacheState>,
    /// `None` once it has ended.
    lookup: Option<VerdictLookup>,
}

impl RunningCheck {
    async fn run(mut self, check: TokenCheck, place: Permit) {
        let begun = Instant::now();
        let (outcome, is_verdict) = check.run(&self.state).await;
        drop(place);
        let Some(lookup) = self.lookup.take() else { return };
        if let (true, Ok(found)) = (is_verdict, &outcome.verdict) {
            self.state.good_tokens.set(*lookup.key(), found.is_some());
        }
        // Counted from the start of the check: the verdict may rest on data of that time.
        let until = begun + self.state.policy.duration(&outcome.verdict);
        let term = is_verdict.then(|| Term { weight: outcome.weight(), until });
        lookup.finish(Arc::new(outcome), term);
    }
}

impl Drop for RunningCheck {
    fn drop(&mut self) {
        if let Some(lookup) = self.lookup.take() {
            lookup.finish(Arc::new(CheckOutcome::of(cancelled())), None);
        }
    }
}

#[cfg(test)]
mod tests;
