//! Places, waits, and what becomes of requests that leave.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::poll_immediate;
use tokio::task::{JoinHandle, yield_now};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(5);

fn limiter(shares: Shares) -> FairLimiter {
    FairLimiter::new(shares)
}

fn owner(name: &str) -> Owner {
    Owner::flow("prod", name)
}

async fn acquire(limiter: &FairLimiter, of: &str) -> Result<Permit, Refused> {
    limiter.acquire(owner(of), 1, Instant::now() + TIMEOUT).await
}

fn at_once(limiter: &FairLimiter, of: &str) -> Result<Permit, Refused> {
    acquire(limiter, of).now_or_never().expect("it does not wait")
}

async fn waiting(limiter: &FairLimiter, of: &'static str) -> JoinHandle<Result<Permit, Refused>> {
    let limiter = limiter.clone();
    let waiting = tokio::spawn(async move { acquire(&limiter, of).await });
    yield_now().await;
    assert!(!waiting.is_finished(), "{of} waits");
    waiting
}

fn counts(limiter: &FairLimiter) -> (usize, usize, usize) {
    lock(&limiter.0).counts()
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_uses_up_its_share_takes_nothing_from_others() {
    let limiter = limiter(Shares::new(4, 2).with_queue(3, 2));
    let _held = [at_once(&limiter, "a").unwrap(), at_once(&limiter, "a").unwrap()];
    let waiting = [waiting(&limiter, "a").await, waiting(&limiter, "a").await];
    assert_eq!(at_once(&limiter, "a").unwrap_err(), Refused::QueueFull);
    let _others = [at_once(&limiter, "b").unwrap(), at_once(&limiter, "c").unwrap()];
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().unwrap_err(), Refused::TimedOut);
    }
    assert_eq!(counts(&limiter), (4, 0, 3));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_waits_is_served_before_one_that_floods() {
    let limiter = limiter(Shares::new(2, 2).with_queue(100, 50));
    let mut held = vec![at_once(&limiter, "flood").unwrap(), at_once(&limiter, "flood").unwrap()];
    let mut floods = Vec::new();
    for _ in 0..50 {
        floods.push(waiting(&limiter, "flood").await);
    }
    let calm = waiting(&limiter, "calm").await;
    held.pop();
    drop(calm.await.unwrap().unwrap());
    floods.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn all_owners_together_are_limited_and_without_a_queue_no_request_waits() {
    let limiter = limiter(Shares::new(2, 2));
    let held = [at_once(&limiter, "a").unwrap(), at_once(&limiter, "b").unwrap()];
    assert_eq!(at_once(&limiter, "c").unwrap_err(), Refused::Full);
    assert!(limiter.try_acquire(owner("c"), 1).is_none());
    drop(held);
    assert!(limiter.try_acquire(owner("c"), 3).is_none(), "it weighs more than there is");
    drop(limiter.try_acquire(owner("c"), 2).unwrap());
    assert_eq!((limiter.usage().in_service, counts(&limiter)), (0, (0, 0, 0)));
}

// The place is in the request's channel already, and its client disconnects before the request runs again.
#[tokio::test(start_paused = true)]
async fn a_place_that_its_request_no_longer_takes_goes_to_the_next_one() {
    let limiter = limiter(Shares::new(1, 1).with_queue(9, 9));
    let held = at_once(&limiter, "a").unwrap();
    let leaving = [waiting(&limiter, "b").await, waiting(&limiter, "c").await];
    let next = waiting(&limiter, "d").await;
    drop(held);
    // On this thread no task has run since.
    assert_eq!(counts(&limiter), (1, 2, 3), "b has the place");
    leaving.iter().for_each(JoinHandle::abort);
    drop(next.await.unwrap().unwrap());
    assert_eq!(counts(&limiter), (0, 0, 0));
}

// On two threads: one has taken the request from the queue, and the other drops it before the place is sent.
#[tokio::test]
async fn a_place_for_requests_that_have_just_left_goes_to_the_next_one() {
    let limiter = limiter(Shares::new(1, 1).with_queue(9, 9));
    let waits = |of: &str| match limiter.enter(owner(of), 1) {
        Ok(Entry::Waiting(waiting)) => waiting,
        entered => panic!("{of} waits: {entered:?}"),
    };
    let mut held = at_once(&limiter, "a").unwrap();
    let (leaving, mut next) = (waits("b"), waits("c"));
    held.limiter = None;
    let granted = {
        let mut queue = lock(&limiter.0);
        queue.release(&owner("a"), 1);
        queue.next()
    };
    assert_eq!(granted.as_ref().map(|granted| &granted.owner), Some(&owner("b")));
    drop(leaving);
    limiter.hand_out(granted);
    let place = next.place.try_recv().expect("c has the place");
    assert_eq!(limiter.usage(), Usage { in_service: 1, waiting: 0, owners: 1 });
    drop((next, place));
    assert_eq!(counts(&limiter), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn raised_shares_serve_those_that_wait() {
    let limiter = limiter(Shares::new(1, 1).with_queue(9, 9));
    let _held = at_once(&limiter, "a").unwrap();
    let tasks = [waiting(&limiter, "b").await, waiting(&limiter, "c").await];
    limiter.set_shares(Shares::new(3, 1).with_queue(9, 9));
    let [b, c] = tasks.map(|task| async { task.await.unwrap().unwrap() });
    let _permits = (b.await, c.await);
    assert_eq!(counts(&limiter), (3, 0, 3));
}

#[tokio::test(start_paused = true)]
async fn a_heavy_place_serves_several_light_ones() {
    let limiter = limiter(Shares::new(3, 3).with_queue(9, 9));
    let heavy = limiter.try_acquire(owner("a"), 3).unwrap();
    let tasks = [waiting(&limiter, "b").await, waiting(&limiter, "c").await, waiting(&limiter, "d").await];
    drop(heavy);
    for task in tasks {
        drop(task.await.unwrap().unwrap());
    }
}

// Many threads, requests that leave at any moment, and shares that change: never more in service than the limit, and
// every request that stays is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_lose_no_place_and_no_wake_up() {
    const LIMIT: usize = 3;
    let limiter = limiter(Shares::new(LIMIT, 2).with_queue(1000, 1000));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for number in 0..400_usize {
        let (limiter, now, most) = (limiter.clone(), Arc::clone(&now), Arc::clone(&most));
        tasks.push(tokio::spawn(async move {
            for round in 0..20 {
                let until = Instant::now() + Duration::from_mins(1);
                let mut acquiring = Box::pin(limiter.acquire(owner(&(number % 7).to_string()), 1, until));
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
                let _permit = acquiring.await.unwrap();
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_mins(1), task).await.expect("no wake-up is lost").unwrap();
    }
    assert_eq!(counts(&limiter), (0, 0, 0));
    assert!((1..=LIMIT).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

#[tokio::test(start_paused = true)]
async fn a_heavy_request_that_leaves_gives_way_to_those_for_which_there_is_room() {
    let limiter = limiter(Shares::new(10, 10).with_queue(10, 10));
    let _held = limiter.try_acquire(owner("a"), 6).unwrap();
    let ask = |of: &'static str, weight: usize, seconds: u64| {
        let limiter = limiter.clone();
        let until = Instant::now() + Duration::from_secs(seconds);
        tokio::spawn(async move { limiter.acquire(owner(of), weight, until).await })
    };
    let heavy = ask("heavy", 8, 1);
    yield_now().await;
    let light = ask("light", 4, 60);
    yield_now().await;
    let begun = Instant::now();
    assert!(heavy.await.unwrap().is_err());
    assert!(light.await.unwrap().is_ok());
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
}
