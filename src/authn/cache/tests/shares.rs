//! Clusters share the threads that check tokens, and clients the checks of a cluster.

use std::sync::mpsc;

use super::*;

/// A cache over a pool, whose delegate notes the order in which it checks tokens.
fn noting(
    pool: &ComputePool,
    cluster: &'static str,
    order: &Arc<Mutex<Vec<String>>>,
    limits: CacheLimits,
) -> Arc<CachedTokens> {
    let order = Arc::clone(order);
    let delegate = FakeAuthenticator::new(move |token, _| {
        order.lock().unwrap().push(format!("{cluster} {token}"));
        Ok(Some(success(token, &[])))
    });
    let checks = pool.of_cluster(cluster);
    Arc::new(CachedTokens::new(
        delegate,
        SUCCESSES,
        checks,
        &Metrics::new().token_cache,
        limits,
        &CacheShare::UNBOUNDED,
    ))
}

fn position(order: &Mutex<Vec<String>>, of: &str) -> Option<usize> {
    order.lock().unwrap().iter().position(|checked| checked == of)
}

#[tokio::test]
async fn a_tenant_whose_clients_flood_made_up_tokens_takes_turns_with_other_clusters() {
    let (pool, order) = (ComputePool::of_test(), Arc::default());
    let tenant = noting(&pool, "tenant", &order, CacheLimits::TENANT);
    let prod = noting(&pool, "prod", &order, CacheLimits::CLUSTER);
    let held = pool.hold();
    let flood: Vec<_> = (0..400)
        .map(|number| begin_from(&tenant, &format!("made up {number}"), network(number % 8)))
        .collect();
    settle().await;
    let valid = begin(&prod, "valid");
    settle().await;
    assert!(order.lock().unwrap().is_empty(), "all wait");
    drop(held);
    assert_eq!(name(valid.await.unwrap()).as_deref(), Some("valid"));
    assert_eq!(position(&order, "prod valid"), Some(1), "after one check of the tenant, which came first");
    assert!(join_all(flood).await.into_iter().all(|verdict| verdict.unwrap().is_ok()));
}

#[tokio::test]
async fn a_network_that_floods_made_up_tokens_takes_turns_with_others_of_its_cluster() {
    let (pool, order) = (ComputePool::of_test(), Arc::default());
    let prod = noting(&pool, "prod", &order, CacheLimits::CLUSTER);
    let held = pool.hold();
    let flood: Vec<_> =
        (0..400).map(|number| begin_from(&prod, &format!("made up {number}"), network(1))).collect();
    settle().await;
    let valid = begin_from(&prod, "valid", network(2));
    settle().await;
    drop(held);
    assert!(valid.await.unwrap().is_ok());
    assert_eq!(position(&order, "prod valid"), Some(2), "after two checks of the flood, which came first");
    assert!(join_all(flood).await.into_iter().all(|verdict| verdict.unwrap().is_ok()));
}

/// Computes until the test lets it go on: of a current-thread runtime, that would be the only thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn one_that_computes_does_not_hold_up_another_cluster() {
    let (pool, order) = (ComputePool::new(tokio::runtime::Handle::current(), 2), Arc::default());
    let (begins, begun) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let slow = FakeAuthenticator::new(move |_, _| {
        begins.send(()).unwrap();
        waits.lock().unwrap().recv().unwrap();
        Ok(None)
    });
    let metrics = Metrics::new();
    let checks = pool.of_cluster("tenant");
    let tenant = Arc::new(CachedTokens::new(
        slow,
        SUCCESSES,
        checks,
        &metrics.token_cache,
        CacheLimits::TENANT,
        &CacheShare::UNBOUNDED,
    ));
    let made_up = begin(&tenant, "made up");
    tokio::task::spawn_blocking(move || begun.recv().unwrap()).await.unwrap();
    let prod = noting(&pool, "prod", &order, CacheLimits::CLUSTER);
    assert!(begin(&prod, "valid").await.unwrap().is_ok(), "the tenant's check is still being computed");
    go_on.send(()).unwrap();
    assert_eq!(made_up.await.unwrap(), Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_network_has_at_most_its_share_of_the_checks_and_of_the_queue() {
    for limits in [CacheLimits::CLUSTER, CacheLimits::TENANT, CacheLimits::WEBHOOK] {
        let fake = FakeAuthenticator::blocked(|_, _| Ok(None));
        let cache = cache_with(&fake, SUCCESSES, limits);
        let share = limits.checks.per_owner();
        let (queue, total) = (limits.checks.waiting_per_owner(), limits.checks.total());
        assert!(share < total && queue < limits.checks.waiting(), "{limits:?}");
        let flood: Vec<_> =
            (0..share + queue + 100).map(|number| begin(&cache, &number.to_string())).collect();
        until("the checks", || fake.call_count() == share).await;
        settle().await;
        assert_eq!((fake.call_count(), cache.len().1), (share, share + queue), "{limits:?}");
        let other = begin_from(&cache, "other", network(2));
        until("the check of the other network", || fake.call_count() == share + 1).await;
        fake.open();
        assert_eq!(other.await.unwrap(), Ok(None));
        let flood = join_all(flood).await.into_iter().map(Result::unwrap);
        assert_eq!(flood.filter(|verdict| *verdict == Err(overloaded())).count(), 100, "{limits:?}");
    }
}

/// Also among tokens whose last verdict was a success.
#[tokio::test(start_paused = true)]
async fn a_network_has_at_most_its_share_of_the_reserved_checks() {
    const LIMITS: CacheLimits = CacheLimits {
        checks: Shares::new(1, 1),
        reserved: Shares::new(2, 1).with_queue(2, 1),
        ..CacheLimits::WEBHOOK
    };
    let slow = FakeAuthenticator::blocked(|_, _| Ok(None));
    let cache = cache_with(&slow, SUCCESSES, LIMITS);
    for token in ["a", "b", "c", "d"] {
        cache.0.good_tokens.set(cache.0.hasher.key(&BearerToken::new(token), &[]), true);
    }
    let unknown = begin(&cache, "unknown");
    until("the unknown token", || slow.call_count() == 1).await;
    let (first, second) = (begin(&cache, "a"), begin(&cache, "b"));
    until("its first token", || slow.call_count() == 2).await;
    let other = begin_from(&cache, "d", network(2));
    until("the token of the other network", || slow.call_count() == 3).await;
    assert_eq!(slow.calls(), ["unknown", "a", "d"]);
    assert_eq!(begin(&cache, "c").await.unwrap(), Err(overloaded()), "its part of the queue is full");
    slow.open();
    for verdict in [unknown, first, second, other] {
        assert_eq!(verdict.await.unwrap(), Ok(None));
    }
}

#[tokio::test]
async fn a_token_of_two_networks_has_a_check_for_each_and_one_verdict() {
    let fake = FakeAuthenticator::blocked(|_, _| Ok(Some(success("alice", &[]))));
    let cache = cache(&fake, SUCCESSES);
    let both = [1, 2].map(|number| begin_from(&cache, "token", network(number)));
    until("both checks", || fake.call_count() == 2).await;
    fake.open();
    for verdict in both {
        assert_eq!(name(verdict.await.unwrap()).as_deref(), Some("alice"));
    }
    assert!(begin_from(&cache, "token", network(3)).await.unwrap().is_ok());
    assert_eq!(fake.call_count(), 2, "the verdict is for all");
}

// Each check holds its token: a network that sends long ones has fewer checks, and none of them waits.
#[tokio::test(start_paused = true)]
async fn long_tokens_take_the_places_of_their_sender_alone() {
    for limits in [CacheLimits::CLUSTER, CacheLimits::TENANT, CacheLimits::WEBHOOK] {
        let fake = FakeAuthenticator::blocked(|_, _| Ok(None));
        let cache = cache_with(&fake, SUCCESSES, limits);
        let long = |number: usize| format!("{number}{}", "x".repeat(1 << 20));
        let checked = limits.checks.per_owner() / ((1 << 20) / MAX_WAITING_BYTES + 1);
        let flood: Vec<_> =
            (0..checked + 5).map(|number| begin_from(&cache, &long(number), network(1))).collect();
        until("the checks", || fake.call_count() == checked).await;
        settle().await;
        assert_eq!(flood.iter().filter(|request| request.is_finished()).count(), 5, "{limits:?}");
        let other = begin_from(&cache, "short", network(2));
        until("the check of another network", || fake.call_count() == checked + 1).await;
        drop((flood, other));
    }
}
