//! Caches verdicts on tokens, so that not every request repeats the check of its token.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/token/cache`. A verdict is stored under a keyed hash of the token and
//! the audiences, for the duration set by [`CachePolicy`] and, unlike in kube-apiserver, never past the credential's
//! expiry. Concurrent requests with the same token share one lookup, which runs on its own runtime and continues if
//! they are cancelled. The number of concurrent lookups is bounded: a flood of made-up tokens waits, and beyond a limit
//! is refused unchecked. A cache must never outlive the configuration that it was made for.

mod key;
mod shard;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt as _;
use portcullis_system::clock::UnixTime;
use portcullis_system::sync::lock;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use tracing::error;

use super::{Audience, AuthnError, AuthnVerdict, BearerToken, BoxFuture, TokenAuthenticator, TokenContext};
use crate::authn::trace::AuthnTrace;
use crate::metrics::{GaugeGuard, TokenCacheMetrics};
use key::{CacheKey, CacheKeyHasher};
use shard::{CacheEntry, CacheShard, LookupOutcome, PendingLookup};

/// Maximum duration of a lookup, independent of the requests that wait for it.
// apiserver: pkg/authentication/token/cache, sharedLookupTimeout
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a token waits for its lookup to start.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
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
    /// Concurrent lookups. Each holds a token, which like every header has at most 1 MiB.
    lookups: usize,
    /// Tokens that wait for their lookup. Their requests hold them.
    waiting: usize,
    /// Further lookups, and as many waiting tokens, reserved for tokens whose last verdict was a success: made-up
    /// tokens cannot occupy them.
    reserved: usize,
    /// Number of tokens recorded as such.
    good_tokens: usize,
}

impl CacheLimits {
    /// For all tokens of a cluster. Most are checked locally at once; the others wait for a remote service and must
    /// leave slots free. Stricter limits bound them: [`Self::WEBHOOK`], and those of issuers' keys and of live reads.
    pub(crate) const CLUSTER: Self =
        Self { memory: 64 << 20, lookups: 4096, waiting: 4096, reserved: 0, good_tokens: 0 };
    /// For tokens that a remote service checks, which may take long.
    pub(crate) const WEBHOOK: Self =
        Self { memory: 64 << 20, lookups: 128, waiting: 512, reserved: 32, good_tokens: 1 << 16 };
}

/// Caches the verdicts of another token authenticator.
#[derive(Debug)]
pub(crate) struct CachedTokens(Arc<CacheState>);

#[derive(Debug)]
struct CacheState {
    delegate: Arc<dyn TokenAuthenticator>,
    policy: CachePolicy,
    runtime: Handle,
    metrics: TokenCacheMetrics,
    hasher: CacheKeyHasher,
    /// The first shard and the others: at least one exists.
    shards: (Mutex<CacheShard>, Vec<Mutex<CacheShard>>),
    /// For any token.
    slots: LookupSlots,
    /// For tokens whose last verdict was a success.
    reserved_slots: LookupSlots,
}

/// Bounds concurrent lookups, and the tokens that wait for one.
#[derive(Debug)]
struct LookupSlots {
    lookups: Arc<Semaphore>,
    queue: Semaphore,
}

impl LookupSlots {
    fn new(lookups: usize, waiting: usize) -> Self {
        Self { lookups: Arc::new(Semaphore::new(lookups)), queue: Semaphore::new(waiting) }
    }

    fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.lookups).try_acquire_owned().ok()
    }

    /// Waits for a slot, first come, first served; `None` if the queue is full or [`QUEUE_TIMEOUT`] expires.
    async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        let _waiting = self.queue.try_acquire().ok()?;
        timeout(QUEUE_TIMEOUT, Arc::clone(&self.lookups).acquire_owned()).await.ok()?.ok()
    }
}

impl CachedTokens {
    /// Runs lookups of `delegate` on `runtime`.
    pub(crate) fn new(
        delegate: Arc<dyn TokenAuthenticator>,
        policy: CachePolicy,
        runtime: Handle,
        metrics: &TokenCacheMetrics,
        limits: CacheLimits,
    ) -> Self {
        let shard = || Mutex::new(CacheShard::new(limits.memory / SHARDS, limits.good_tokens / SHARDS));
        Self(Arc::new(CacheState {
            delegate,
            policy,
            runtime,
            metrics: metrics.clone(),
            hasher: CacheKeyHasher::random(),
            shards: (shard(), (1..SHARDS).map(|_| shard()).collect()),
            slots: LookupSlots::new(limits.lookups, limits.waiting),
            reserved_slots: LookupSlots::new(limits.reserved, limits.reserved),
        }))
    }

    /// Returns the stored outcome, or waits for the shared lookup.
    async fn outcome(&self, token: &BearerToken, context: TokenContext<'_>) -> Arc<LookupOutcome> {
        let Self(state) = self;
        let begun = Instant::now();
        let key = state.hasher.key(token, context.audiences);
        let mut entry = state.shard(key).entry(key, context.now, begun);
        if let CacheEntry::Hit(outcome) = entry {
            state.metrics.hit(begun.elapsed());
            return outcome;
        }
        let _miss = MissTimer { metrics: &state.metrics, begun, _blocked: state.metrics.blocked() };
        loop {
            let (mut pending, is_own) = match entry {
                CacheEntry::Hit(outcome) => return outcome,
                CacheEntry::Pending(pending) => (pending, false),
                CacheEntry::Vacant(sender) => (state.begin(key, sender, token, context).await, true),
            };
            let outcome = pending.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
            match outcome {
                Some(outcome) if is_own || outcome.holds_at(context.now) => return outcome,
                // The lookup was cancelled before its start, or the credential has expired.
                _ => entry = state.shard(key).entry(key, context.now, Instant::now()),
            }
        }
    }

    /// Checks the token without the cache, which stores no steps.
    async fn authenticate_uncached(&self, token: &BearerToken, context: TokenContext<'_>) -> AuthnVerdict {
        let check = TokenCheck::new(token, context);
        let Some(slot) = self.0.slot(false).await else { return Err(overloaded()) };
        let running = self.0.runtime.spawn(check.run(Arc::clone(&self.0), slot));
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
    fn shard(&self, key: CacheKey) -> MutexGuard<'_, CacheShard> {
        let (first, others) = &self.shards;
        let shard = others.get(key.spread() % SHARDS).unwrap_or(first);
        lock(shard)
    }

    /// Starts a lookup as soon as a slot is free.
    async fn begin(
        self: &Arc<Self>,
        key: CacheKey,
        sender: watch::Sender<Option<Arc<LookupOutcome>>>,
        token: &BearerToken,
        context: TokenContext<'_>,
    ) -> PendingLookup {
        let pending = sender.subscribe();
        let mut lookup = SharedLookup { state: Arc::clone(self), key, sender, outcome: None };
        let was_good = self.shard(key).was_good(&key);
        let slot = self.slot(was_good).await;
        let error = if slot.is_some() { cancelled() } else { overloaded() };
        lookup.outcome = Some(Arc::new(LookupOutcome::of(error)));
        if let Some(slot) = slot {
            self.runtime.spawn(lookup.run(TokenCheck::new(token, context), slot));
        }
        pending
    }

    /// Acquires a slot for a lookup. A token whose last verdict was a success does not wait behind unknown tokens.
    async fn slot(&self, was_good: bool) -> Option<OwnedSemaphorePermit> {
        match self.slots.try_acquire() {
            Some(slot) => Some(slot),
            None if !was_good => self.slots.acquire().await,
            None => match self.reserved_slots.try_acquire() {
                Some(slot) => Some(slot),
                None => self.reserved_slots.acquire().await,
            },
        }
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

/// A lookup that several requests may wait for. Dropping it ends it.
struct SharedLookup {
    state: Arc<CacheState>,
    key: CacheKey,
    sender: watch::Sender<Option<Arc<LookupOutcome>>>,
    /// Sent to the waiting requests on drop. `None` if the lookup never started: one of them then starts another.
    outcome: Option<Arc<LookupOutcome>>,
}

impl SharedLookup {
    async fn run(mut self, check: TokenCheck, slot: OwnedSemaphorePermit) {
        let begun = Instant::now();
        let (outcome, is_verdict) = check.run(Arc::clone(&self.state), slot).await;
        if let (true, Ok(found)) = (is_verdict, &outcome.verdict) {
            self.state.shard(self.key).set_good(self.key, found.is_some());
        }
        let duration = self.state.policy.duration(&outcome.verdict);
        let outcome = Arc::new(outcome);
        // Counted from the start of the lookup: the verdict may rest on data of that time.
        let (now, until) = (Instant::now(), begun + duration);
        if is_verdict && now < until {
            self.state.shard(self.key).store(self.key, Arc::clone(&outcome), until, now);
        }
        self.outcome = Some(outcome);
    }
}

impl Drop for SharedLookup {
    fn drop(&mut self) {
        // Remove the entry before sending: a later request must not join a finished lookup.
        self.state.shard(self.key).remove_pending(&self.key);
        if let Some(outcome) = self.outcome.take() {
            self.sender.send_replace(Some(outcome));
        }
    }
}

/// A call of the delegate, independent of the lifetime of the request.
struct TokenCheck {
    token: BearerToken,
    audiences: Vec<Audience>,
    now: UnixTime,
    trace: AuthnTrace,
}

impl TokenCheck {
    fn new(token: &BearerToken, context: TokenContext<'_>) -> Self {
        let trace =
            if context.trace.keeps_steps() { AuthnTrace::with_steps() } else { AuthnTrace::default() };
        Self { token: token.clone(), audiences: context.audiences.to_vec(), now: context.now, trace }
    }

    /// Calls the delegate. The flag is false if it panicked, and so returned no verdict.
    async fn run(self, state: Arc<CacheState>, _slot: OwnedSemaphorePermit) -> (LookupOutcome, bool) {
        let _in_flight = state.metrics.in_flight();
        let Self { token, audiences, now, trace } = &self;
        let context = TokenContext { audiences, now: *now, trace };
        let call = AssertUnwindSafe(async { state.delegate.authenticate(token, context).await });
        let (verdict, is_verdict) = match timeout(LOOKUP_TIMEOUT, call.catch_unwind()).await {
            Ok(Ok(verdict)) => (verdict, true),
            Ok(Err(_)) => {
                state.metrics.panicked();
                error!("checking a token panicked");
                let text = "Internal error occurred: authentication failed unexpectedly";
                (Err(AuthnError::Unavailable(text.to_owned())), false)
            }
            Err(_) => {
                let text = format!("the token was not checked within {LOOKUP_TIMEOUT:?}");
                (Err(AuthnError::Unavailable(text)), true)
            }
        };
        state.metrics.fetched(verdict.is_err());
        (LookupOutcome { verdict, record: trace.take() }, is_verdict)
    }
}

#[cfg(test)]
mod tests;
