//! The limiter of a cluster: places, waits, and what becomes of requests that leave.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::poll_immediate;
use tokio::task::{JoinHandle, yield_now};

use super::*;

const READ: RequestClass = RequestClass::ReadOnly;
const WRITE: RequestClass = RequestClass::Mutating;
const TIMEOUT: Duration = Duration::from_secs(15);

fn settings(reads: usize, writes: usize, queue_length_limit: usize) -> LimitSettings {
    LimitSettings {
        max_requests_inflight: reads,
        max_mutating_requests_inflight: writes,
        queue_length_limit,
        queue_timeout: TIMEOUT,
    }
}

fn limiters() -> Limiters {
    Limiters::new(&Arc::new(Metrics::new()))
}

fn limiter(settings: &LimitSettings) -> Arc<ClusterLimiter> {
    let limiter = limiters().of("prod");
    limiter.apply(settings);
    limiter
}

fn request(class: RequestClass, flow: &str) -> LimitedRequest<impl FnOnce() -> FlowName> {
    LimitedRequest {
        class,
        flow: move || flow.into(),
        is_exempt: false,
        priority: ProcessPriority::Ordinary,
        deadline: None,
    }
}

fn exempt(class: RequestClass) -> LimitedRequest<impl FnOnce() -> FlowName> {
    LimitedRequest {
        class,
        flow: || "admin".into(),
        is_exempt: true,
        priority: ProcessPriority::Exempt,
        deadline: None,
    }
}

/// The result of a request that must not wait.
fn at_once(
    limiter: &Arc<ClusterLimiter>,
    request: LimitedRequest<impl FnOnce() -> FlowName>,
) -> Result<Option<InflightPermit>, LimitExceeded> {
    let acquiring = std::pin::pin!(limiter.acquire(request));
    futures_util::FutureExt::now_or_never(poll_immediate(acquiring)).flatten().expect("it does not wait")
}

type Waiting = JoinHandle<Result<Option<InflightPermit>, LimitExceeded>>;

/// A request that waits in the queue.
async fn waiting(limiter: &Arc<ClusterLimiter>, class: RequestClass, flow: &'static str) -> Waiting {
    let limiter = Arc::clone(limiter);
    let waiting = tokio::spawn(async move { limiter.acquire(request(class, flow)).await });
    yield_now().await;
    assert!(!waiting.is_finished(), "{flow} waits");
    waiting
}

fn counts(limiter: &ClusterLimiter) -> [(usize, usize, usize); 2] {
    [limiter.read_only.counts(), limiter.mutating.counts()]
}

// maxinflight_test.go, TestMaxInFlightNonMutating and TestMaxInFlightMutating. Long-running requests do not get here.
#[tokio::test]
async fn each_class_has_its_own_limit_and_recovers() {
    for (full, other, limits) in [(READ, WRITE, settings(3, 1, 0)), (WRITE, READ, settings(1, 3, 0))] {
        let limiter = limiter(&limits);
        let held: Vec<_> =
            (0..3).map(|_| at_once(&limiter, request(full, "alice")).unwrap().unwrap()).collect();
        for _ in 0..2 {
            assert_eq!(at_once(&limiter, request(full, "alice")).unwrap_err(), LimitExceeded::Concurrency);
        }
        drop(at_once(&limiter, request(other, "alice")).unwrap().expect("a place of the other class"));
        drop(held);
        assert!(at_once(&limiter, request(full, "alice")).unwrap().is_some());
        assert_eq!(counts(&limiter), [(0, 0, 0); 2]);
    }
}

// maxinflight_test.go, TestMaxInFlightSkipsMasters
#[tokio::test]
async fn an_exempt_request_takes_a_free_place_and_is_served_beyond_the_limit() {
    for queue_length in [0, 5] {
        let limiter = limiter(&settings(1, 3, queue_length));
        limiter.apply_total(3, 0);
        let held: Vec<_> = (0..3).map(|_| at_once(&limiter, exempt(WRITE)).unwrap().unwrap()).collect();
        for _ in 0..2 {
            assert!(at_once(&limiter, exempt(WRITE)).unwrap().is_none(), "served without a place");
        }
        assert_eq!(limiter.mutating.counts().0, 3, "those that find a place count");
        drop(held);
        assert_eq!(counts(&limiter), [(0, 0, 0); 2]);
    }
}

#[tokio::test]
async fn without_a_limit_nothing_is_counted() {
    let limiter = limiter(&settings(0, 1, 5));
    assert!(at_once(&limiter, request(READ, "alice")).unwrap().is_none());
    assert!(at_once(&limiter, request(WRITE, "alice")).unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_flow_are_served_in_order() {
    let limiter = limiter(&settings(1, 1, 5));
    let held = at_once(&limiter, request(READ, "alice")).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..5 {
        let (limiter, order) = (Arc::clone(&limiter), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let _permit = limiter.acquire(request(READ, "alice")).await.unwrap();
            lock(&order).push(number);
        }));
        yield_now().await;
    }
    assert_eq!(
        at_once(&limiter, request(READ, "alice")).unwrap_err(),
        LimitExceeded::QueueFull,
        "the sixth that would wait"
    );
    drop(held);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*lock(&order), [0, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_no_longer_than_the_timeout_and_its_deadline() {
    let limiter = limiter(&settings(1, 1, 5));
    let _held = at_once(&limiter, request(WRITE, "alice")).unwrap();
    let started = Instant::now();
    let short = started + Duration::from_secs(2);
    for (deadline, expected) in
        [(None, TIMEOUT), (Some(short), Duration::from_secs(2)), (Some(started + 9 * TIMEOUT), TIMEOUT)]
    {
        let started = Instant::now();
        let deadline = deadline.map(|deadline| started + (deadline - short) + Duration::from_secs(2));
        let deadline = if expected == TIMEOUT { deadline.map(|_| started + 9 * TIMEOUT) } else { deadline };
        let request = LimitedRequest { deadline, ..request(WRITE, "bob") };
        assert_eq!(limiter.acquire(request).await.unwrap_err(), LimitExceeded::TimedOut);
        assert_eq!(started.elapsed().as_secs(), expected.as_secs(), "{deadline:?}");
    }
    assert_eq!(limiter.mutating.counts(), (1, 0, 1), "bob is forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_frees_its_position_and_the_next_one_is_served() {
    let limiter = limiter(&settings(1, 1, 2));
    let held = at_once(&limiter, request(READ, "alice")).unwrap();
    let (leaving, staying) = (waiting(&limiter, READ, "bob").await, waiting(&limiter, READ, "bob").await);
    assert_eq!(at_once(&limiter, request(READ, "bob")).unwrap_err(), LimitExceeded::QueueFull);
    leaving.abort();
    leaving.await.unwrap_err();
    assert_eq!(limiter.read_only.counts(), (1, 1, 2));
    let late = waiting(&limiter, READ, "bob").await;
    drop(held);
    drop(staying.await.unwrap().unwrap());
    drop(late.await.unwrap().unwrap());
    assert_eq!(counts(&limiter), [(0, 0, 0); 2]);
}

// The place is in the request's channel already, and its client disconnects before the request runs again.
#[tokio::test(start_paused = true)]
async fn a_place_that_its_request_no_longer_takes_goes_to_the_next_one() {
    let limiter = limiter(&settings(1, 1, 5));
    let held = at_once(&limiter, request(READ, "alice")).unwrap();
    let leaving: Vec<_> =
        [waiting(&limiter, READ, "bob").await, waiting(&limiter, READ, "carol").await].into();
    let next = waiting(&limiter, READ, "dave").await;
    drop(held);
    // On this thread no task has run since.
    assert_eq!(limiter.read_only.counts(), (1, 2, 3), "bob has the place");
    for leaving in leaving {
        leaving.abort();
    }
    assert!(next.await.unwrap().unwrap().is_some());
    assert_eq!(counts(&limiter), [(0, 0, 0); 2]);
}

#[tokio::test(start_paused = true)]
async fn the_last_of_the_longest_queue_gives_way() {
    let limiter = limiter(&settings(1, 1, 2));
    let _held = at_once(&limiter, request(READ, "alice")).unwrap();
    let mut many = Vec::new();
    for flow in 0..64 {
        for _ in 0..2 {
            let limiter = Arc::clone(&limiter);
            let request = LimitedRequest {
                class: READ,
                flow: move || FlowName::from(flow.to_string()),
                is_exempt: false,
                priority: ProcessPriority::Ordinary,
                deadline: None,
            };
            many.push(tokio::spawn(async move { limiter.acquire(request).await.map(drop) }));
        }
    }
    yield_now().await;
    let calm = waiting(&limiter, READ, "calm").await;
    yield_now().await;
    let refused: Vec<_> = many.iter().filter(|task| task.is_finished()).collect();
    assert_eq!(refused.len(), 1);
    let refused = many.into_iter().find(JoinHandle::is_finished).unwrap();
    assert_eq!(refused.await.unwrap(), Err(LimitExceeded::QueueFull));
    calm.abort();
}

// One flooding user and ten calm ones that want a place again and again: every flow gets the same number of them.
#[tokio::test(start_paused = true)]
async fn each_flow_gets_its_share_under_a_flood() {
    let limiter = limiter(&settings(0, 4, 50));
    let served: Arc<[AtomicUsize; 11]> = Arc::default();
    let mut tasks = Vec::new();
    for flow in 0..11 {
        // The flood has 40 requests under way at once, and calm users have two.
        for _ in 0..if flow == 0 { 40 } else { 2 } {
            let (limiter, served) = (Arc::clone(&limiter), Arc::clone(&served));
            tasks.push(tokio::spawn(async move {
                loop {
                    let name = move || FlowName::from(flow.to_string());
                    let request = LimitedRequest {
                        class: WRITE,
                        flow: name,
                        is_exempt: false,
                        priority: ProcessPriority::Ordinary,
                        deadline: None,
                    };
                    let _permit = limiter.acquire(request).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    served[flow].fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
    }
    tokio::time::sleep(Duration::from_secs(11)).await;
    for task in tasks {
        task.abort();
    }
    // 4 places for 11 s, 10 ms each: 400 for each of 11 flows.
    for (flow, served) in served.iter().enumerate() {
        let served = served.load(Ordering::Relaxed);
        assert!((390..=410).contains(&served), "flow {flow}: {served}");
    }
}

#[tokio::test]
async fn a_reload_keeps_the_counts_of_a_cluster() {
    let limiters = limiters();
    let before = limiters.of("prod");
    before.apply(&settings(2, 2, 0));
    let held = [at_once(&before, request(READ, "a")).unwrap(), at_once(&before, request(READ, "a")).unwrap()];
    let after = limiters.of("prod");
    after.apply(&settings(3, 2, 0));
    let third = at_once(&after, request(READ, "a")).unwrap();
    assert_eq!(at_once(&after, request(READ, "a")).unwrap_err(), LimitExceeded::Concurrency);
    // The cluster is removed, and added again.
    drop((before, after));
    let again = limiters.of("prod");
    assert_eq!(at_once(&again, request(READ, "a")).unwrap_err(), LimitExceeded::Concurrency);
    drop((held, third));
    assert_eq!(counts(&again), [(0, 0, 0); 2]);
    // Other clusters have their own, and those that are gone are forgotten.
    drop(again);
    for number in 0..100 {
        let other = limiters.of(&number.to_string());
        other.apply(&settings(1, 1, 0));
        assert!(at_once(&other, request(READ, "a")).unwrap().is_some());
    }
    assert_eq!(lock(&limiters.clusters).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_raised_limit_serves_those_that_wait() {
    let limiter = limiter(&settings(1, 1, 5));
    let _held = at_once(&limiter, request(READ, "alice")).unwrap();
    let tasks = [waiting(&limiter, READ, "bob").await, waiting(&limiter, READ, "carol").await];
    limiter.apply(&settings(3, 1, 5));
    let [bob, carol] = tasks.map(|task| async { task.await.unwrap().unwrap() });
    let permits = (bob.await, carol.await);
    assert_eq!(limiter.read_only.counts(), (3, 0, 3));
    let dave = waiting(&limiter, READ, "dave").await;
    limiter.apply(&settings(0, 0, 0));
    assert!(dave.await.unwrap().unwrap().is_some(), "no limit any more");
    drop(permits);
}

#[tokio::test(start_paused = true)]
async fn the_process_has_one_limit_for_all_clusters_which_waiting_requests_do_not_use_up() {
    let limiters = limiters();
    let [one, two] = ["one", "two"].map(|name| limiters.of(name));
    one.apply(&settings(1, 0, 5));
    one.apply_total(2, 0);
    let first = at_once(&one, request(READ, "alice")).unwrap();
    let queued = [waiting(&one, READ, "alice").await, waiting(&one, READ, "bob").await];
    let second = at_once(&two, request(WRITE, "alice")).unwrap().expect("a place of the process");
    assert_eq!(at_once(&two, request(READ, "bob")).unwrap_err(), LimitExceeded::Process);
    assert!(at_once(&two, exempt(READ)).unwrap().is_none(), "system:masters is served");
    drop(second);
    let second = at_once(&two, request(READ, "bob")).unwrap();
    drop((first, second));
    for queued in queued {
        assert!(queued.await.unwrap().unwrap().is_some());
    }
    assert_eq!(counts(&one), [(0, 0, 0); 2]);
    one.apply_total(0, 0);
    assert!(at_once(&two, request(READ, "bob")).unwrap().is_none());
}

/// A write with this priority in the process, which holds its place.
fn held(cluster: &Arc<ClusterLimiter>, flow: &str, priority: ProcessPriority) -> Result<(), LimitExceeded> {
    let is_exempt = priority == ProcessPriority::Exempt;
    let permit = at_once(cluster, LimitedRequest { is_exempt, priority, ..request(WRITE, flow) })?;
    std::mem::forget(permit);
    Ok(())
}

/// How many such requests get a place.
fn places(cluster: &Arc<ClusterLimiter>, flow: &str, priority: ProcessPriority) -> usize {
    (0..1000).take_while(|_| held(cluster, flow, priority).is_ok()).count()
}

#[tokio::test]
async fn a_tenant_has_its_share_of_the_process_and_all_tenants_half_of_it() {
    let limiters = limiters();
    let clusters: Vec<_> = (0..6).map(|number| limiters.of(&format!("tenant-{number}"))).collect();
    clusters[0].apply_total(80, 0);
    // Exempt in its own cluster, as its `system:masters` is.
    let flooding =
        LimitedRequest { priority: ProcessPriority::OfTenant, is_exempt: true, ..request(WRITE, "root") };
    let first = at_once(&clusters[0], flooding).unwrap().expect("a place of the process");
    assert_eq!(places(&clusters[0], "root", ProcessPriority::OfTenant), 9, "an eighth, with the first one");
    drop(first);
    assert_eq!(places(&clusters[0], "alice", ProcessPriority::OfTenant), 1, "whoever the user is");
    let others: Vec<_> =
        clusters[1..].iter().map(|cluster| places(cluster, "root", ProcessPriority::OfTenant)).collect();
    assert_eq!(others, [10, 10, 10, 0, 0], "half of the limit, all together");
    let own = limiters.of("own");
    assert_eq!(places(&own, "alice", ProcessPriority::Ordinary), 32, "all but the reserve");
    assert_eq!(held(&clusters[5], "root", ProcessPriority::OfTenant), Err(LimitExceeded::Process));
}

#[tokio::test]
async fn the_reserve_of_the_process_is_for_masters_and_nodes() {
    let limiters = limiters();
    let own = limiters.of("own");
    own.apply_total(40, 0);
    assert_eq!(places(&own, "flood", ProcessPriority::Ordinary), 30, "one flow leaves a quarter");
    assert_eq!(places(&own, "alice", ProcessPriority::Ordinary), 6);
    assert_eq!(places(&own, "system:node:one", ProcessPriority::Reserved), 4);
    assert_eq!(held(&own, "system:node:one", ProcessPriority::Reserved), Err(LimitExceeded::Process));
    assert!(at_once(&own, exempt(WRITE)).unwrap().is_none(), "masters are served all the same");
}

// The place of the cluster is returned when that of the process is refused.
#[tokio::test]
async fn a_request_that_the_process_refuses_holds_no_place() {
    let limiter = limiter(&settings(5, 5, 0));
    limiter.apply_total(1, 0);
    let _held = at_once(&limiter, request(READ, "alice")).unwrap();
    assert_eq!(at_once(&limiter, request(READ, "bob")).unwrap_err(), LimitExceeded::Process);
    assert_eq!(limiter.read_only.counts(), (1, 0, 1));
}

// Many threads, requests that leave at any moment, and limits that change: never more in service than the limit, and
// every request that stays is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_lose_no_place_and_no_wake_up() {
    const LIMIT: usize = 3;
    let limiter = limiter(&settings(0, LIMIT, 1000));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for number in 0..400_usize {
        let (limiter, now, most) = (Arc::clone(&limiter), Arc::clone(&now), Arc::clone(&most));
        tasks.push(tokio::spawn(async move {
            for round in 0..20 {
                let name = move || FlowName::from((number % 7).to_string());
                let request = LimitedRequest {
                    class: WRITE,
                    flow: name,
                    is_exempt: false,
                    priority: ProcessPriority::Ordinary,
                    deadline: None,
                };
                let mut acquiring = Box::pin(limiter.acquire(request));
                if (number + round) % 3 == 0 {
                    // Leaves after a few turns of the runtime: in the queue, or with the place in its channel.
                    for _ in 0..(number + round) % 5 {
                        if let Some(permit) = poll_immediate(acquiring.as_mut()).await {
                            drop(permit.unwrap());
                            break;
                        }
                        yield_now().await;
                    }
                    continue;
                }
                let _permit = acquiring.await.unwrap().unwrap();
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_mins(1), task).await.expect("no wake-up is lost").unwrap();
    }
    assert_eq!(counts(&limiter), [(0, 0, 0); 2]);
    assert!((1..=LIMIT).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}
