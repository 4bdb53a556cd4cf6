//! Remembers verdicts on tokens, so that a token is checked once in a while and not with every request.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/token/cache`. A verdict is kept under a keyed hash of the token and the
//! audiences, for the time that [`CachePolicy`] says and never past the credential's own end, by which kube-apiserver does not
//! go. Requests that come with one token at once share one lookup, which runs on a runtime of its own and goes on
//! without them. The authenticator is asked for a bounded number of tokens at a time: a flood of made-up tokens waits,
//! and past a limit is refused unchecked. A cache lives as long as the configuration it was made for.

mod key;
mod shelf;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use tracing::error;

use super::{Audience, AuthnError, AuthnVerdict, BearerToken, BoxFuture, TokenAuthenticator, TokenContext};
use crate::authn::trace::AuthnTrace;
use crate::clock::UnixTime;
use crate::metrics::{GaugeGuard, TokenCacheMetrics};
use key::{Key, Keys};
use shelf::{Flight, Known, Outcome, Shelf};

/// How long a lookup may take, whoever still waits for it.
// apiserver: pkg/authentication/token/cache, sharedLookupTimeout
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a token waits until it is looked up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Locks, so that request workers seldom want the same one.
const SHELVES: usize = 16;

/// How long what is remembered, from when its lookup began. Zero: not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachePolicy {
    /// Tokens that somebody vouched for.
    pub success: Duration,
    /// Tokens that nobody knew.
    pub failure: Duration,
    /// Whether errors count as failures; they are not remembered otherwise.
    pub errors: bool,
}

impl CachePolicy {
    /// What kube-apiserver remembers of all methods together.
    // kubernetes: pkg/kubeapiserver/options/authentication.go, NewBuiltInAuthenticationOptions
    pub const TOKENS: Self = Self { success: Duration::from_secs(10), failure: Duration::ZERO, errors: true };

    fn duration(&self, verdict: &AuthnVerdict) -> Duration {
        match verdict {
            Ok(Some(_)) => self.success,
            Err(_) if !self.errors => Duration::ZERO,
            Ok(None) | Err(_) => self.failure,
        }
    }
}

/// What a cache may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheLimits {
    /// Bytes of remembered verdicts. One on a pod's service account takes 2 KiB.
    memory: usize,
    /// Lookups at a time. Each holds a token, of 1 MiB at most as every header.
    lookups: usize,
    /// Tokens that wait for their lookup. They are held by their requests.
    waiting: usize,
    /// Lookups, and as many that wait, for tokens whose last verdict was good: those that are made up take none of them.
    reserved: usize,
    /// How many tokens are known to be such.
    good_tokens: usize,
}

impl CacheLimits {
    /// For all tokens of a cluster. Most are judged here, in no time; the others wait for somebody who is asked, and must
    /// leave places to those: [`Self::REMOTE`], the keys of issuers and the budget of live reads let fewer wait.
    pub(crate) const LOCAL: Self =
        Self { memory: 64 << 20, lookups: 4096, waiting: 4096, reserved: 0, good_tokens: 0 };
    /// For tokens that somebody else is asked about, however long that takes.
    pub(crate) const REMOTE: Self =
        Self { memory: 64 << 20, lookups: 128, waiting: 512, reserved: 32, good_tokens: 1 << 16 };
}

/// Judges tokens as another authenticator does, and remembers.
#[derive(Debug)]
pub struct CachedTokens(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    delegate: Arc<dyn TokenAuthenticator>,
    keep: CachePolicy,
    runtime: Handle,
    metrics: TokenCacheMetrics,
    keys: Keys,
    /// One, and the others.
    shelves: (Mutex<Shelf>, Vec<Mutex<Shelf>>),
    /// For all tokens, and for those whose last verdict was good.
    all: Places,
    good: Places,
}

/// Leave to look tokens up, and to wait for it.
#[derive(Debug)]
struct Places {
    lookups: Arc<Semaphore>,
    queue: Semaphore,
}

impl Places {
    fn new(lookups: usize, waiting: usize) -> Self {
        Self { lookups: Arc::new(Semaphore::new(lookups)), queue: Semaphore::new(waiting) }
    }

    fn free(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.lookups).try_acquire_owned().ok()
    }

    /// Whoever waits is served in order; `None` if that would take too long.
    async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        let _waiting = self.queue.try_acquire().ok()?;
        timeout(PATIENCE, Arc::clone(&self.lookups).acquire_owned()).await.ok()?.ok()
    }
}

impl CachedTokens {
    /// Asks `delegate`, on `runtime`, about what is not remembered.
    pub(crate) fn new(
        delegate: Arc<dyn TokenAuthenticator>,
        keep: CachePolicy,
        runtime: Handle,
        metrics: &TokenCacheMetrics,
        limits: CacheLimits,
    ) -> Self {
        let shelf = || Mutex::new(Shelf::new(limits.memory / SHELVES, limits.good_tokens / SHELVES));
        Self(Arc::new(Shared {
            delegate,
            keep,
            runtime,
            metrics: metrics.clone(),
            keys: Keys::random(),
            shelves: (shelf(), (1..SHELVES).map(|_| shelf()).collect()),
            all: Places::new(limits.lookups, limits.waiting),
            good: Places::new(limits.reserved, limits.reserved),
        }))
    }

    /// What is remembered, or what somebody's lookup comes to.
    async fn outcome(&self, token: &BearerToken, context: TokenContext<'_>) -> Arc<Outcome> {
        let Self(shared) = self;
        let begun = Instant::now();
        let key = shared.keys.key(token, context.audiences);
        let mut known = shared.shelf(key).look(key, context.now, begun);
        if let Known::Outcome(outcome) = known {
            shared.metrics.hit(begun.elapsed());
            return outcome;
        }
        let _miss = Miss { metrics: &shared.metrics, begun, _blocked: shared.metrics.blocked() };
        loop {
            let (mut flight, is_own) = match known {
                Known::Outcome(outcome) => return outcome,
                Known::Flight(flight) => (flight, false),
                Known::Nothing(sender) => (shared.begin(key, sender, token, context).await, true),
            };
            let landed = flight.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
            match landed {
                Some(outcome) if is_own || outcome.holds_at(context.now) => return outcome,
                // Whoever was to look it up went away before that began.
                _ => known = shared.shelf(key).look(key, context.now, Instant::now()),
            }
        }
    }

    /// Asks for every step, which nobody remembers.
    async fn trace(&self, token: &BearerToken, context: TokenContext<'_>) -> AuthnVerdict {
        let question = Question::new(token, context);
        let Some(place) = self.0.place(false).await else { return Err(overloaded()) };
        let asking = self.0.runtime.spawn(question.ask(Arc::clone(&self.0), place));
        let Ok((outcome, _)) = asking.await else { return Err(stopped()) };
        context.trace.merge(&outcome.noted);
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
                return self.trace(token, context).await;
            }
            let outcome = self.outcome(token, context).await;
            if matches!(outcome.verdict, Ok(Some(_))) {
                context.trace.merge(&outcome.noted);
            }
            outcome.verdict.clone()
        })
    }
}

// threat: token-flood
impl Shared {
    fn shelf(&self, key: Key) -> MutexGuard<'_, Shelf> {
        let (one, others) = &self.shelves;
        let shelf = others.get(key.spread() % SHELVES).unwrap_or(one);
        shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a lookup as soon as there is a place for it.
    async fn begin(
        self: &Arc<Self>,
        key: Key,
        sender: watch::Sender<Option<Arc<Outcome>>>,
        token: &BearerToken,
        context: TokenContext<'_>,
    ) -> Flight {
        let flight = sender.subscribe();
        let mut lookup = Lookup { shared: Arc::clone(self), key, sender, outcome: None };
        let was_good = self.shelf(key).was_good(&key);
        let place = self.place(was_good).await;
        let unchecked = if place.is_some() { stopped() } else { overloaded() };
        lookup.outcome = Some(Arc::new(Outcome::of(unchecked)));
        if let Some(place) = place {
            self.runtime.spawn(lookup.run(Question::new(token, context), place));
        }
        flight
    }

    /// A permit to look a token up. A token whose last verdict was good does not wait behind unknown tokens.
    async fn place(&self, was_good: bool) -> Option<OwnedSemaphorePermit> {
        match self.all.free() {
            Some(place) => Some(place),
            None if !was_good => self.all.wait().await,
            None => match self.good.free() {
                Some(place) => Some(place),
                None => self.good.wait().await,
            },
        }
    }
}

fn overloaded() -> AuthnError {
    AuthnError::Unavailable("too many tokens are being checked at once".to_owned())
}

fn stopped() -> AuthnError {
    AuthnError::Unavailable("the token was not checked to the end".to_owned())
}

/// Counts a request that was not answered from memory, however it ends.
struct Miss<'a> {
    metrics: &'a TokenCacheMetrics,
    begun: Instant,
    _blocked: GaugeGuard,
}

impl Drop for Miss<'_> {
    fn drop(&mut self) {
        self.metrics.miss(self.begun.elapsed());
    }
}

/// A lookup that others may wait for. It ends when it is dropped.
struct Lookup {
    shared: Arc<Shared>,
    key: Key,
    sender: watch::Sender<Option<Arc<Outcome>>>,
    /// What those who wait are told in the end; nothing if it never started, so that one of them takes over.
    outcome: Option<Arc<Outcome>>,
}

impl Lookup {
    async fn run(mut self, question: Question, place: OwnedSemaphorePermit) {
        let begun = Instant::now();
        let (outcome, is_verdict) = question.ask(Arc::clone(&self.shared), place).await;
        if let (true, Ok(found)) = (is_verdict, &outcome.verdict) {
            self.shared.shelf(self.key).note_good(self.key, found.is_some());
        }
        let duration = self.shared.keep.duration(&outcome.verdict);
        let outcome = Arc::new(outcome);
        // Why from the beginning: what the verdict is based on may be as old as that.
        let (now, until) = (Instant::now(), begun + duration);
        if is_verdict && now < until {
            self.shared.shelf(self.key).keep(self.key, Arc::clone(&outcome), until, now);
        }
        self.outcome = Some(outcome);
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        // First: who asks once this is known must not be told the same.
        self.shared.shelf(self.key).land(&self.key);
        if let Some(outcome) = self.outcome.take() {
            self.sender.send_replace(Some(outcome));
        }
    }
}

/// What the delegate is asked, apart from the request that asks.
struct Question {
    token: BearerToken,
    audiences: Vec<Audience>,
    now: UnixTime,
    trace: AuthnTrace,
}

impl Question {
    fn new(token: &BearerToken, context: TokenContext<'_>) -> Self {
        let trace =
            if context.trace.keeps_steps() { AuthnTrace::with_steps() } else { AuthnTrace::default() };
        Self { token: token.clone(), audiences: context.audiences.to_vec(), now: context.now, trace }
    }

    /// Asks. An authenticator that panics has given no verdict.
    async fn ask(self, shared: Arc<Shared>, _place: OwnedSemaphorePermit) -> (Outcome, bool) {
        let _in_flight = shared.metrics.in_flight();
        let Self { token, audiences, now, trace } = &self;
        let context = TokenContext { audiences, now: *now, trace };
        let asking = AssertUnwindSafe(async { shared.delegate.authenticate(token, context).await });
        let (verdict, is_verdict) = match timeout(LOOKUP_TIMEOUT, asking.catch_unwind()).await {
            Ok(Ok(verdict)) => (verdict, true),
            Ok(Err(_)) => {
                shared.metrics.panicked();
                error!("checking a token panicked");
                let text = "Internal error occurred: authentication failed unexpectedly";
                (Err(AuthnError::Unavailable(text.to_owned())), false)
            }
            Err(_) => {
                let text = format!("the token was not checked within {LOOKUP_TIMEOUT:?}");
                (Err(AuthnError::Unavailable(text)), true)
            }
        };
        shared.metrics.fetched(verdict.is_err());
        (Outcome { verdict, noted: trace.take() }, is_verdict)
    }
}

#[cfg(test)]
mod tests;
