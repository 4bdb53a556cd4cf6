//! Which watches end so that their clients move to another endpoint. A watch stays where it began, so that an endpoint
//! that has returned, or that was added, would have few of them for as long as clients keep them.
//!
//! This moves load, and repairs nothing: it ends few watches at a time, none while an endpoint is in doubt, and only watches,
//! which clients resume where they ended. Decisions are functions of the counts and the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portcullis_system::sync::lock;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Balance, Random};

/// An endpoint has too many watches beyond this fraction of the mean, and as many more.
const EXCESS: (usize, usize) = (6, 5);
const EXCESS_WATCHES: usize = 8;
/// It keeps them unless another one has less than this fraction of the mean.
const SCARCITY: (usize, usize) = (4, 5);
/// The fraction of its watches that end at once, and the least.
const MOVED_SHARE: usize = 64;
const MIN_MOVED: usize = 4;

/// When watches are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchMoves {
    /// Between two steps of an endpoint, on average.
    pub interval: Duration,
    /// The least age of a watch that is moved: a younger one may still receive its initial events.
    pub min_age: Duration,
    /// How long no endpoint of the cluster may have been ejected.
    pub calm: Duration,
}

impl Default for WatchMoves {
    fn default() -> Self {
        let (interval, minute) = (Duration::from_secs(10), Duration::from_mins(1));
        Self { interval, min_age: minute, calm: minute }
    }
}

impl WatchMoves {
    /// The time until the next step: between three quarters and five quarters of the interval, so that several gateways do
    /// not take the same step at once.
    pub(crate) fn pause(&self, random: &Random) -> Duration {
        let parts = u32::try_from(random.next() % 512).unwrap_or_default() + 768;
        self.interval * parts / 1024
    }
}

/// How many watches end now at an endpoint with `own` of them; `all` are those of every usable endpoint.
pub(crate) fn excess(own: usize, all: &[usize]) -> usize {
    let mean = all.iter().sum::<usize>() / all.len().max(1);
    let part = |(numerator, denominator): (usize, usize)| mean.saturating_mul(numerator) / denominator;
    let has_excess = own > part(EXCESS) + EXCESS_WATCHES;
    if !has_excess || all.iter().all(|other| *other >= part(SCARCITY)) {
        return 0;
    }
    (own / MOVED_SHARE).max(MIN_MOVED)
}

/// The watches at an endpoint that may be moved, by the order in which they began.
#[derive(Debug, Default)]
pub(super) struct MovableWatches {
    next: u64,
    watches: BTreeMap<u64, (Instant, Arc<Notify>)>,
}

/// A watch that may be moved, for as long as the value lives.
#[derive(Debug)]
pub(crate) struct MovableWatch {
    balance: Arc<Balance>,
    id: u64,
    moved: Arc<Notify>,
}

impl MovableWatch {
    /// Registers a watch at an endpoint.
    pub(crate) fn begin(balance: &Arc<Balance>, now: Instant) -> Self {
        let moved = Arc::new(Notify::new());
        let mut movable = lock(&balance.movable);
        let id = movable.next;
        movable.next += 1;
        movable.watches.insert(id, (now, Arc::clone(&moved)));
        Self { balance: Arc::clone(balance), id, moved }
    }

    /// Completes when the watch is to end.
    pub(crate) async fn moved(self) {
        self.moved.notified().await;
    }
}

impl Drop for MovableWatch {
    fn drop(&mut self) {
        lock(&self.balance.movable).watches.remove(&self.id);
    }
}

/// Ends the oldest watches of an endpoint, at most `count`, which began at `before` or earlier. Returns their number.
pub(crate) fn end_oldest(balance: &Balance, count: usize, before: Instant) -> usize {
    let mut movable = lock(&balance.movable);
    let oldest = movable.watches.iter().take(count).take_while(|(_, (began, _))| *began <= before);
    let ids: Vec<u64> = oldest.map(|(id, _)| *id).collect();
    for (_, moved) in ids.iter().filter_map(|id| movable.watches.remove(id)) {
        moved.notify_one();
    }
    ids.len()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::backend::balance::{EjectionCause, Load, Readiness};
    use crate::backend::testing::{settings, with_settings};

    #[tokio::test(start_paused = true)]
    async fn watches_move_between_endpoints_of_which_none_is_in_doubt() {
        let mut settings = settings();
        assert!(with_settings(&settings).watch_moves().is_none(), "there is one endpoint");
        let mut second = settings.endpoints[0].clone();
        second.address.port += 1;
        settings.endpoints.push(second);
        let backend = with_settings(&settings);
        let endpoints = backend.endpoints();
        let [from, to] = &endpoints[..] else { panic!("two endpoints") };
        let begin =
            |_| (from.balance().begin(Load::Long), MovableWatch::begin(from.balance(), Instant::now()));
        let _watches: Vec<_> = (0..100).map(begin).collect();
        assert!(from.set_trusted(from.trust_version()));
        let minute = Duration::from_mins(1);
        let step = |from| backend.move_watches(from, &backend.watch_moves().unwrap(), Instant::now());
        tokio::time::advance(minute).await;
        assert_eq!(step(from), 0, "the other endpoint is not trusted");
        assert!(to.set_trusted(to.trust_version()));
        assert_eq!((step(from), step(to)), (4, 0));

        to.balance().note_failure(EjectionCause::Connect, Instant::now());
        to.balance().note_answer();
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(step(from), 0, "an endpoint was ejected within the last minute");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(step(from), 4);
        for readiness in [Readiness::NotReady, Readiness::Silent] {
            to.balance().set_readiness(readiness);
            assert_eq!(step(from), 0, "{readiness:?}");
        }
        to.balance().set_readiness(Readiness::Ready);
        assert_eq!(step(from), 4);

        settings.policy.watch_moves = None;
        assert!(with_settings(&settings).watch_moves().is_none(), "it is turned off");
    }

    #[test]
    fn only_an_endpoint_with_far_more_watches_than_another_ends_some() {
        struct Case {
            name: &'static str,
            own: usize,
            all: &'static [usize],
            ended: usize,
        }
        let case = |name, own, all, ended| Case { name, own, all, ended };
        let cases = [
            case("one endpoint", 10_000, &[10_000], 0),
            case("an even load", 100, &[100, 100, 100], 0),
            case("a returned endpoint", 10_000, &[10_000, 0], 156),
            case("few watches", 40, &[40, 0], 4),
            case("few watches, three endpoints", 21, &[21, 0, 0], 4),
            case("fewer than are worth it", 16, &[16, 0], 0),
            case("at the limit", 128, &[128, 72], 0),
            case("beyond the limit", 129, &[129, 71], 4),
            case("no endpoint is far below", 1000, &[1000, 700, 700, 700], 0),
            case("one of several is far below", 1000, &[1000, 1000, 1000, 0], 15),
            case("the endpoint with few", 0, &[1000, 0], 0),
            case("no watches", 0, &[0, 0], 0),
        ];
        for Case { name, own, all, ended } in cases {
            assert_eq!(excess(own, all), ended, "{name}");
        }
    }

    #[test]
    fn steps_of_several_gateways_are_apart() {
        let random = Random::seeded(7);
        let moves = WatchMoves::default();
        let pauses: Vec<Duration> = (0..1000).map(|_| moves.pause(&random)).collect();
        let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
        assert!(*least >= moves.interval * 3 / 4 && *most <= moves.interval * 5 / 4, "{least:?} {most:?}");
        assert!(most.saturating_sub(*least) > moves.interval * 2 / 5, "{least:?} {most:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_watches_end_and_young_ones_do_not() {
        let balance = Arc::new(Balance::default());
        let mut watches = Vec::new();
        for _ in 0..6 {
            watches.push(Box::pin(MovableWatch::begin(&balance, Instant::now()).moved()));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        // One that its client has ended.
        drop(watches.remove(0));
        let before = Instant::now() - Duration::from_secs(3);
        assert_eq!(end_oldest(&balance, 2, before), 2);
        assert_eq!(end_oldest(&balance, 100, before), 1, "the others are too young");
        let ended: Vec<bool> = watches.iter_mut().map(|watch| watch.now_or_never().is_some()).collect();
        assert_eq!(ended, [true, true, true, false, false]);
        drop(watches);
        assert!(lock(&balance.movable).watches.is_empty());
    }
}
