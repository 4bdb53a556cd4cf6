//! The choice of an endpoint.

use super::*;

/// Endpoints with these loads, all of one rank.
fn chosen(loads: &[usize], random: &Random) -> usize {
    let candidates = loads.iter().enumerate().map(|(index, load)| (index, Rank::Preferred, *load));
    choose(candidates, || random.next()).unwrap()
}

#[test]
fn requests_in_progress_are_spread_evenly() {
    let random = Random::seeded(7);
    for endpoints in [2, 3, 5, 8] {
        let mut loads = vec![0; endpoints];
        for _ in 0..1000 * endpoints {
            let index = chosen(&loads, &random);
            loads[index] += 1;
        }
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(most - least <= 20, "{loads:?}");
    }
}

#[test]
fn idle_endpoints_get_equal_shares() {
    let random = Random::seeded(7);
    let mut counts = [0; 3];
    for _ in 0..3000 {
        counts[chosen(&[0, 0, 0], &random)] += 1;
    }
    assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
}

#[test]
fn the_best_rank_counts_before_the_load() {
    let random = Random::seeded(7);
    let ranks = [Rank::Tried, Rank::Silent, Rank::Avoided, Rank::Preferred];
    for last in 1..=ranks.len() {
        let candidates = ranks[..last].iter().enumerate();
        let best = choose(candidates.map(|(index, rank)| (index, *rank, index * 1000)), || random.next());
        assert_eq!(best, Some(last - 1), "{last}");
    }
    assert_eq!(choose(std::iter::empty(), || random.next()), None);
}

#[test]
fn short_and_long_requests_are_counted_apart() {
    let balance = Arc::new(Balance::default());
    let (short, _long) = (balance.begin(Load::Short), balance.begin(Load::Long));
    assert_eq!((balance.in_flight(Load::Short), balance.in_flight(Load::Long)), (1, 1));
    drop(short);
    assert_eq!((balance.in_flight(Load::Short), balance.in_flight(Load::Long)), (0, 1));
}

/// The requests that a flow can begin.
fn begin_all(balance: &Arc<Balance>, load: Load, bound: usize, flow: &str) -> Vec<LoadTicket> {
    std::iter::from_fn(|| balance.begin_within(load, bound, || flow.into())).collect()
}

#[test]
fn a_flow_that_takes_all_it_gets_leaves_places_to_others() {
    for load in [Load::Short, Load::Long] {
        let balance = Arc::new(Balance::default());
        let flood = begin_all(&balance, load, 80, "mallory");
        assert_eq!(flood.len(), 50, "half of the bound, and an eighth");
        let others: Vec<_> = ["a", "b", "c", "d"].map(|flow| begin_all(&balance, load, 80, flow)).into();
        assert_eq!(others.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 10, 0]);
        assert!(balance.begin_within(load, usize::MAX, || "".into()).is_some(), "the gateway's own");
        drop(others);
        assert_eq!(begin_all(&balance, load, 80, "mallory").len(), 0);
        // A lower bound holds for the next requests.
        assert_eq!(begin_all(&balance, load, 60, "a").len(), 7);
        drop(flood);
        assert_eq!(begin_all(&balance, load, 80, "mallory").len(), 50);
        assert_eq!(balance.in_flight(load), 0);
    }
}

#[test]
fn a_small_bound_is_used_up_by_one_flow() {
    for bound in 1..4 {
        let balance = Arc::new(Balance::default());
        assert_eq!(begin_all(&balance, Load::Short, bound, "alice").len(), bound.min(bound.div_ceil(2) + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn probes_and_failures_rank_an_endpoint() {
    let (balance, now) = (Balance::default(), Instant::now());
    let cases = [
        (Readiness::Unknown, Rank::Preferred),
        (Readiness::Ready, Rank::Preferred),
        (Readiness::NotReady, Rank::Avoided),
        (Readiness::Silent, Rank::Silent),
    ];
    for (readiness, rank) in cases {
        balance.set_readiness(readiness);
        assert_eq!(balance.rank(now), rank, "{readiness:?}");
    }
    balance.set_readiness(Readiness::Ready);
    assert!(balance.note_failure(EjectionCause::Connect, now));
    assert_eq!(balance.rank(now), Rank::Avoided);
    balance.note_answer();
    assert_eq!(balance.rank(now), Rank::Preferred);
}
