mod shares;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_system::clock::UnixTime;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{advance, timeout};

use super::super::Authenticated;
use super::super::testing::{audiences_of, success};
use super::*;
use crate::authn::trace::{AuthnTrace, Check, StepOutcome, TraceRecord};
use crate::metrics::Metrics;
use crate::tasks::compute::ComputePool;

const MINUTE: Duration = Duration::from_mins(1);
const NOW: UnixTime = UnixTime::from_secs(1_700_000_000);
const SUCCESSES: CachePolicy = CachePolicy { success: MINUTE, failure: Duration::ZERO, errors: true };

type JudgeFn = dyn Fn(&str, TokenContext<'_>) -> AuthnVerdict + Send + Sync;

/// Calls `judge`, and only while its gate is open.
struct FakeAuthenticator {
    judge: Box<JudgeFn>,
    gate: Semaphore,
    calls: Mutex<Vec<String>>,
    running: AtomicUsize,
    max_running: AtomicUsize,
}

impl std::fmt::Debug for FakeAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeAuthenticator")
    }
}

impl FakeAuthenticator {
    fn new(judge: impl Fn(&str, TokenContext<'_>) -> AuthnVerdict + Send + Sync + 'static) -> Arc<Self> {
        let fake = Self::blocked(judge);
        fake.open();
        fake
    }

    fn blocked(judge: impl Fn(&str, TokenContext<'_>) -> AuthnVerdict + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            judge: Box::new(judge),
            gate: Semaphore::new(0),
            calls: Mutex::default(),
            running: AtomicUsize::new(0),
            max_running: AtomicUsize::new(0),
        })
    }

    fn open(&self) {
        self.gate.close();
    }

    /// Takes the tokens that were checked.
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn call_count(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

impl TokenAuthenticator for FakeAuthenticator {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async move {
            self.calls.lock().unwrap().push(token.expose().to_owned());
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.max_running.fetch_max(running, Ordering::SeqCst);
            // An open gate is a closed semaphore.
            self.gate.acquire().await.map(drop).ok();
            self.running.fetch_sub(1, Ordering::SeqCst);
            (self.judge)(token.expose(), context)
        })
    }
}

fn cache_with(fake: &Arc<FakeAuthenticator>, policy: CachePolicy, limits: CacheLimits) -> Arc<CachedTokens> {
    let (checks, metrics) = (ComputePool::of_test().of_cluster("c"), Metrics::new());
    Arc::new(CachedTokens::new(
        fake.clone(),
        policy,
        checks,
        &metrics.token_cache,
        limits,
        &CacheShare::UNBOUNDED,
    ))
}

fn cache(fake: &Arc<FakeAuthenticator>, policy: CachePolicy) -> Arc<CachedTokens> {
    cache_with(fake, policy, CacheLimits::CLUSTER)
}

async fn authenticate_with(
    cache: &CachedTokens,
    token: &str,
    audiences: &[&str],
    now: UnixTime,
    trace: &AuthnTrace,
) -> AuthnVerdict {
    let (audiences, owner) = (audiences_of(audiences), &network(1));
    let context = TokenContext { audiences: &audiences, owner, now, trace };
    cache.authenticate(&BearerToken::new(token), context).await
}

fn network(number: usize) -> Owner {
    Owner::Network([10, 0, 0, u8::try_from(number).unwrap()].into())
}

async fn authenticate(cache: &CachedTokens, token: &str) -> AuthnVerdict {
    authenticate_with(cache, token, &[], NOW, &AuthnTrace::default()).await
}

async fn record_of(cache: &CachedTokens, token: &str) -> TraceRecord {
    let trace = AuthnTrace::default();
    authenticate_with(cache, token, &[], NOW, &trace).await.ok();
    trace.take()
}

fn name(verdict: AuthnVerdict) -> Option<String> {
    verdict.ok().flatten().map(|found| found.user.name.clone())
}

/// Starts an authentication in its own task.
fn begin(cache: &Arc<CachedTokens>, token: &str) -> JoinHandle<AuthnVerdict> {
    begin_from(cache, token, network(1))
}

fn begin_from(cache: &Arc<CachedTokens>, token: &str, owner: Owner) -> JoinHandle<AuthnVerdict> {
    let (cache, token) = (Arc::clone(cache), BearerToken::new(token));
    tokio::spawn(async move {
        let trace = AuthnTrace::default();
        cache
            .authenticate(&token, TokenContext { audiences: &[], owner: &owner, now: NOW, trace: &trace })
            .await
    })
}

/// Room for one check, and as many waiting tokens as a cluster may have.
const ONE_CHECK: CacheLimits =
    CacheLimits { checks: Shares::new(1, 1).with_queue(4096, 1024), ..CacheLimits::CLUSTER };

/// Lets other tasks run until the condition holds.
async fn until(event: &str, holds: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        yield_now().await;
    }
    panic!("{event} never happened");
}

/// Lets every task run until it blocks.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

fn invalid(text: &str) -> AuthnError {
    AuthnError::Invalid(text.to_owned())
}

fn unavailable(text: &str) -> AuthnError {
    AuthnError::Unavailable(text.to_owned())
}

#[tokio::test(start_paused = true)]
async fn successes_are_stored_for_their_time_and_failures_are_not() {
    let known = Arc::new(Mutex::new(false));
    let knows = Arc::clone(&known);
    let fake = FakeAuthenticator::new(move |token, _| {
        let found = || success(&token.replace("token", ""), &[]);
        Ok(knows.lock().unwrap().then(found))
    });
    let cache = cache(&fake, SUCCESSES);
    for _ in 0..2 {
        for token in ["bad1", "bad2", "bad3"] {
            assert_eq!(authenticate(&cache, token).await, Ok(None));
        }
        advance(Duration::from_micros(2)).await;
    }
    assert_eq!(fake.calls(), ["bad1", "bad2", "bad3", "bad1", "bad2", "bad3"]);

    let tokens = ["usertoken1", "usertoken2", "usertoken3"];
    *known.lock().unwrap() = true;
    for expected in [&tokens[..], &[]] {
        for (token, user) in tokens.into_iter().zip(["user1", "user2", "user3"]) {
            assert_eq!(name(authenticate(&cache, token).await).as_deref(), Some(user));
        }
        assert_eq!(fake.calls(), expected);
        // No longer valid, but the verdicts are stored.
        *known.lock().unwrap() = false;
    }
    advance(2 * MINUTE).await;
    for token in tokens {
        assert_eq!(authenticate(&cache, token).await, Ok(None));
    }
    assert_eq!(fake.calls(), tokens);
}

#[tokio::test(start_paused = true)]
async fn a_verdict_is_stored_to_the_end_of_its_time_and_no_longer() {
    let second = Duration::from_secs(1);
    let policy = |success, failure, errors| CachePolicy {
        success: success * second,
        failure: failure * second,
        errors,
    };
    let good = Ok(Some(success("alice", &[])));
    let cases: Vec<(&str, CachePolicy, AuthnVerdict, u32)> = vec![
        ("success", policy(3, 0, true), good.clone(), 3),
        ("success that is not stored", policy(0, 3, true), good, 0),
        ("unknown", policy(0, 2, false), Ok(None), 2),
        ("unknown that is not stored", policy(3, 0, true), Ok(None), 0),
        ("error", policy(3, 2, true), Err(invalid("x")), 2),
        ("error that is not stored", policy(3, 2, false), Err(invalid("x")), 0),
        ("error without a time", policy(3, 0, true), Err(invalid("x")), 0),
    ];
    for (case, policy, verdict, seconds) in cases {
        let answer = verdict.clone();
        let fake = FakeAuthenticator::new(move |_, _| answer.clone());
        let cache = cache(&fake, policy);
        assert_eq!(authenticate(&cache, "token").await, verdict, "{case}");
        advance((seconds * second).saturating_sub(Duration::from_millis(1))).await;
        assert_eq!(authenticate(&cache, "token").await, verdict, "{case}");
        assert_eq!(fake.calls().len(), if seconds == 0 { 2 } else { 1 }, "{case}");
        advance(Duration::from_millis(1)).await;
        authenticate(&cache, "token").await.ok();
        assert_eq!(fake.calls().len(), 1, "{case}");
    }
}

/// A verdict may rest on data as old as the start of its lookup.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_verdict_begins_with_its_lookup() {
    let second = Duration::from_secs(1);
    let policy = CachePolicy { success: 10 * second, ..SUCCESSES };
    for (takes, after, lookups) in [(6, 3, 1), (6, 5, 2), (12, 0, 2)] {
        let fake = FakeAuthenticator::blocked(|_, _| Ok(Some(success("alice", &[]))));
        let cache = cache(&fake, policy);
        let first = begin(&cache, "token");
        until("the lookup", || fake.call_count() == 1).await;
        advance(takes * second).await;
        fake.open();
        assert_eq!(name(first.await.unwrap()).as_deref(), Some("alice"));
        advance(after * second).await;
        assert_eq!(name(authenticate(&cache, "token").await).as_deref(), Some("alice"));
        assert_eq!(fake.calls().len(), lookups, "{after} s after a lookup of {takes} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_success_is_not_stored_past_the_expiry_of_the_credential() {
    let expires = NOW + Duration::from_secs(5);
    let fake = FakeAuthenticator::new(move |_, context| {
        if context.now >= expires {
            return Err(invalid("token is expired"));
        }
        Ok(Some(Authenticated { expires: Some(expires), ..success("alice", &[]) }))
    });
    let cache = cache(&fake, SUCCESSES);
    let at = async |seconds| {
        authenticate_with(&cache, "token", &[], NOW + Duration::from_secs(seconds), &AuthnTrace::default())
            .await
    };
    assert_eq!(name(at(0).await).as_deref(), Some("alice"));
    assert_eq!(name(at(4).await).as_deref(), Some("alice"));
    assert_eq!(fake.calls().len(), 1);
    assert_eq!(at(5).await, Err(invalid("token is expired")));
    assert_eq!(fake.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn setting_the_clock_back_does_not_prolong_a_verdict() {
    let fake = FakeAuthenticator::new(|_, _| Ok(Some(success("alice", &[]))));
    let cache = cache(&fake, SUCCESSES);
    authenticate(&cache, "token").await.ok();
    advance(MINUTE).await;
    authenticate_with(&cache, "token", &[], NOW.saturating_sub(60 * MINUTE), &AuthnTrace::default())
        .await
        .ok();
    assert_eq!(fake.calls().len(), 2);
}

#[tokio::test]
async fn audiences_are_passed_on_and_part_of_the_key() {
    let fake = FakeAuthenticator::new(|token, context| {
        let audiences: Vec<_> = context.audiences.iter().map(|audience| audience.0.as_str()).collect();
        Ok(Some(success(&format!("{}:{token}", audiences.join("+")), &[])))
    });
    let cache = cache(&fake, SUCCESSES);
    for audiences in [&["a"][..], &["b"], &["a", "b"], &["b", "a"], &[]] {
        let user = name(authenticate_with(&cache, "token", audiences, NOW, &AuthnTrace::default()).await);
        assert_eq!(user, Some(format!("{}:token", audiences.join("+"))));
    }
}

#[tokio::test]
async fn concurrent_requests_share_a_lookup() {
    let fake = FakeAuthenticator::blocked(|_, _| Ok(Some(success("chewbacca", &[]))));
    let cache = cache(&fake, SUCCESSES);
    let waiting: Vec<_> = (0..10).map(|_| begin(&cache, "")).collect();
    settle().await;
    fake.open();
    for verdict in join_all(waiting).await {
        assert_eq!(name(verdict.unwrap()).as_deref(), Some("chewbacca"));
    }
    assert_eq!(fake.calls().len(), 1);
}

#[tokio::test]
async fn a_lookup_continues_after_its_request_is_cancelled() {
    let fake = FakeAuthenticator::blocked(|_, _| Ok(Some(success("chewbacca", &[]))));
    let cache = cache(&fake, SUCCESSES);
    let first = begin(&cache, "");
    until("the lookup", || fake.call_count() == 1).await;
    let second = begin(&cache, "");
    settle().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    fake.open();
    assert_eq!(name(second.await.unwrap()).as_deref(), Some("chewbacca"));
    // The verdict is stored.
    assert_eq!(name(authenticate(&cache, "").await).as_deref(), Some("chewbacca"));
    assert_eq!(fake.calls().len(), 1);
}

#[tokio::test]
async fn another_request_takes_over_a_lookup_cancelled_before_its_start() {
    let fake = FakeAuthenticator::blocked(|token, _| Ok(Some(success(token, &[]))));
    let cache = cache_with(&fake, SUCCESSES, ONE_CHECK);
    let blocking = begin(&cache, "other");
    until("the other lookup", || fake.call_count() == 1).await;
    let first = begin(&cache, "token");
    settle().await;
    let second = begin(&cache, "token");
    settle().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    fake.open();
    assert_eq!(name(second.await.unwrap()).as_deref(), Some("token"));
    assert_eq!(name(blocking.await.unwrap()).as_deref(), Some("other"));
    assert_eq!(fake.calls(), ["other", "token"]);
}

#[tokio::test]
async fn a_panic_is_an_error_that_is_not_stored() {
    let fake = FakeAuthenticator::new(|_, _| panic!("uh oh"));
    let cache = cache(&fake, CachePolicy { success: MINUTE, failure: MINUTE, errors: true });
    for _ in 0..2 {
        let error = unavailable("Internal error occurred: authentication failed unexpectedly");
        assert_eq!(authenticate(&cache, "").await, Err(error));
    }
    assert_eq!(fake.calls().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_times_out_after_30_seconds() {
    let fake = FakeAuthenticator::blocked(|_, _| Ok(None));
    let cache = cache(&fake, SUCCESSES);
    let begun = Instant::now();
    assert_eq!(authenticate(&cache, "").await, Err(unavailable("the token was not checked within 30s")));
    assert_eq!(begun.elapsed(), Duration::from_secs(30));
}

#[tokio::test]
async fn every_request_gets_the_trace_record_of_a_success() {
    let fake = FakeAuthenticator::blocked(|token, context| {
        context.trace.annotate("snorlax", "rocks");
        context.trace.annotate("pandas", "are amazing");
        context.trace.warn("tired");
        Ok((token == "token").then(|| success("snorlax", &[])))
    });
    let cache = cache(&fake, SUCCESSES);
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let cache = Arc::clone(&cache);
            tokio::spawn(async move { record_of(&cache, "token").await })
        })
        .collect();
    settle().await;
    fake.open();
    let mut all: Vec<_> = join_all(waiting).await.into_iter().map(Result::unwrap).collect();
    all.push(record_of(&cache, "token").await);
    for record in all {
        let annotations = [("pandas", "are amazing"), ("snorlax", "rocks")];
        assert!(record.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).eq(annotations));
        assert_eq!(record.warnings, ["tired"]);
    }
    assert_eq!(fake.calls().len(), 1);
    assert_eq!(record_of(&cache, "other").await, TraceRecord::default());
}

#[tokio::test]
async fn trace_records_are_stored_with_their_verdict() {
    let count = AtomicUsize::new(0);
    let fake = FakeAuthenticator::new(move |_, context| {
        context.trace.annotate("count", count.fetch_add(1, Ordering::SeqCst).to_string());
        Ok(Some(success("snorlax", &[])))
    });
    let cache = cache(&fake, SUCCESSES);
    for (token, expected) in [("token1", "0"), ("token1", "0"), ("token2", "1"), ("token1", "0")] {
        assert_eq!(record_of(&cache, token).await.annotations["count"], expected);
    }
}

#[tokio::test]
async fn a_trace_with_steps_bypasses_the_cache() {
    let fake = FakeAuthenticator::new(|_, context| {
        context.trace.step("fake", Check::Other("token"), StepOutcome::Passed, || "checked".to_owned());
        context.trace.warn("tired");
        Ok(None)
    });
    let cache = cache(&fake, CachePolicy { failure: MINUTE, ..SUCCESSES });
    for _ in 0..2 {
        authenticate(&cache, "token").await.ok();
        let trace = AuthnTrace::with_steps();
        assert_eq!(authenticate_with(&cache, "token", &[], NOW, &trace).await, Ok(None));
        let record = trace.take();
        assert_eq!((record.steps.len(), record.warnings.len()), (1, 1));
    }
    assert_eq!(fake.calls().len(), 3);
}

#[tokio::test]
async fn a_flood_of_made_up_tokens_is_bounded() {
    let fake = FakeAuthenticator::blocked(|_, _| Ok(None));
    let limits = CacheLimits { memory: 1 << 20, ..CacheLimits::CLUSTER };
    let cache = cache_with(&fake, CachePolicy { failure: MINUTE, ..SUCCESSES }, limits);
    let from = |number: usize| begin_from(&cache, &format!("token{number}"), network(number % 10));
    let waiting: Vec<_> = (0..10_000).map(from).collect();
    let (checks, checked) = (limits.checks.total(), limits.checks.total() + limits.checks.waiting());
    until("the checks", || fake.call_count() == checks).await;
    settle().await;
    assert_eq!(cache.len(), (0, checked), "in flight");
    fake.open();
    let verdicts: Vec<_> = join_all(waiting).await.into_iter().map(Result::unwrap).collect();
    let refused = Err(unavailable("too many tokens are being checked at once"));
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Ok(None)).count(), checked);
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == refused).count(), 10_000 - checked);
    assert_eq!(fake.calls().len(), checked);
    assert_eq!(fake.max_running.load(Ordering::SeqCst), checks);
    let (stored, pending) = cache.len();
    assert!((1_000..4_000).contains(&stored), "{stored} entries in 1 MiB");
    assert_eq!(pending, 0);
}

/// A webhook that answers at once for valid tokens and slowly for others.
#[derive(Debug)]
struct SlowOnMadeUp;

impl TokenAuthenticator for SlowOnMadeUp {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        _: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async move {
            if token.expose().starts_with("good") {
                return Ok(Some(success(token.expose(), &[])));
            }
            tokio::time::sleep(Duration::from_secs(25)).await;
            Ok(None)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn recently_valid_tokens_do_not_wait_behind_a_flood_of_made_up_ones() {
    let policy = CachePolicy { success: Duration::from_secs(2), failure: Duration::ZERO, errors: false };
    let (delegate, metrics) = (Arc::new(SlowOnMadeUp), Metrics::new());
    let checks = ComputePool::of_test().of_cluster("c");
    let cache = CachedTokens::new(
        delegate,
        policy,
        checks,
        &metrics.token_cache,
        CacheLimits::WEBHOOK,
        &CacheShare::UNBOUNDED,
    );
    let cache = Arc::new(cache);
    for number in 0..100 {
        assert!(authenticate(&cache, &format!("good{number}")).await.is_ok());
    }
    // One client keeps all slots occupied with made-up tokens.
    let flooding = Arc::clone(&cache);
    let flood = tokio::spawn(async move {
        for number in 0.. {
            begin(&flooding, &format!("made up {number}"));
            if number % 100 == 0 {
                advance(Duration::from_millis(10)).await;
            }
        }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    // A token whose last verdict was a success is checked after the verdict has expired; an unknown token is not.
    for number in 0..100 {
        let token = format!("good{number}");
        let verdict = timeout(Duration::from_secs(1), authenticate(&cache, &token)).await;
        assert_eq!(name(verdict.expect("at once")).as_deref(), Some(token.as_str()));
    }
    assert_eq!(authenticate(&cache, "good but new").await, Err(overloaded()));
    flood.abort();
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_slot_is_bounded() {
    let fake = FakeAuthenticator::blocked(|_, _| Ok(None));
    let cache = cache_with(&fake, SUCCESSES, ONE_CHECK);
    let blocking = begin(&cache, "other");
    until("the other lookup", || fake.call_count() == 1).await;
    let begun = Instant::now();
    assert_eq!(authenticate(&cache, "token").await, Err(overloaded()));
    assert_eq!(begun.elapsed(), QUEUE_TIMEOUT);
    blocking.abort();
}

#[tokio::test]
async fn the_least_recently_used_verdict_is_evicted_first() {
    let fake = FakeAuthenticator::new(|token, _| Ok(Some(success(token, &[]))));
    let cache = cache_with(&fake, SUCCESSES, CacheLimits { memory: 256 << 10, ..CacheLimits::CLUSTER });
    for number in 0..2_000 {
        authenticate(&cache, &number.to_string()).await.ok();
        authenticate(&cache, "favourite").await.ok();
    }
    let (stored, _) = cache.len();
    assert!((100..1_000).contains(&stored), "{stored} entries in 256 KiB");
    assert_eq!(fake.calls().iter().filter(|token| *token == "favourite").count(), 1);
}

#[tokio::test]
async fn requests_and_lookups_are_counted() {
    let fake = FakeAuthenticator::new(|token, _| match token {
        "bad" => Err(invalid("x")),
        "panic" => panic!("uh oh"),
        _ => Ok(None),
    });
    let metrics = Metrics::new();
    let policy = CachePolicy { failure: MINUTE, errors: false, ..SUCCESSES };
    let checks = ComputePool::of_test().of_cluster("c");
    let cache = CachedTokens::new(
        fake,
        policy,
        checks,
        &metrics.token_cache,
        CacheLimits::CLUSTER,
        &CacheShare::UNBOUNDED,
    );
    for token in ["bad", "bad", "panic", "unknown", "unknown", "unknown"] {
        authenticate(&cache, token).await.ok();
    }
    let (text, _) = metrics.render();
    for line in [
        "authentication_token_cache_request_total{status=\"hit\"} 2",
        "authentication_token_cache_request_total{status=\"miss\"} 4",
        "authentication_token_cache_request_duration_seconds_count{status=\"hit\"} 2",
        "authentication_token_cache_request_duration_seconds_count{status=\"miss\"} 4",
        "authentication_token_cache_fetch_total{status=\"ok\"} 1",
        "authentication_token_cache_fetch_total{status=\"error\"} 3",
        "portcullis_panics_total 1",
        "authentication_token_cache_active_fetch_count{status=\"blocked\"} 0",
        "authentication_token_cache_active_fetch_count{status=\"in_flight\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
}

impl CachedTokens {
    /// The number of stored verdicts and of lookups in progress.
    fn len(&self) -> (usize, usize) {
        (self.0.verdicts.known_count(), self.0.verdicts.pending_count())
    }
}
