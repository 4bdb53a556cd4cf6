//! Lookups whose result several requests share: one at a time for a key and an owner, and a result that counts until its end.
//!
//! Results that are there are shared by all owners: what is found does not depend on who looks. Lookups in progress are not:
//! an owner that has used up its share of lookups waits for its own, and no other owner waits behind it.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};

use portcullis_system::sync::lock;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache_budget::{CacheShare, SharedLru};
use crate::{Owner, OwnerKey};

/// The results of lookups of one kind, and the lookups in progress. Cheap to clone: a clone is the same.
///
/// Clients choose some of the keys, so they are hashed with a secret. `S` hashes keys of which no client can choose the hash.
pub struct SharedLookups<K, V, O: OwnerKey = Owner, S = RandomState>(Arc<Shards<K, V, O, S>>)
where
    K: Hash + Eq,
    S: BuildHasher;

struct Shards<K: Hash + Eq, V, O, S: BuildHasher> {
    /// Chooses the shard of a key.
    hasher: S,
    /// At least one exists.
    first: LockedShard<K, V, O, S>,
    others: Vec<LockedShard<K, V, O, S>>,
}

type LockedShard<K, V, O, S> = Mutex<Shard<K, V, O, S>>;

struct Shard<K: Hash + Eq, V, O, S: BuildHasher> {
    known: SharedLru<K, V, S>,
    pending: HashMap<(K, O), Arc<watch::Sender<Option<V>>>>,
}

/// What there is for a key.
pub enum Found<K, V, O: OwnerKey = Owner, S = RandomState>
where
    K: Hash + Eq + Clone,
    V: Clone,
    S: BuildHasher,
{
    /// A result.
    Known(V),
    /// A lookup of the same owner is in progress.
    Pending(Pending<V>),
    /// Nothing: the caller begins a lookup, which others may join from now on.
    Vacant(Lookup<K, V, O, S>, Pending<V>),
}

/// Waits for a lookup.
#[derive(Debug)]
pub struct Pending<V>(watch::Receiver<Option<V>>);

/// A lookup in progress. Dropping it without a result ends it; one of those that wait begins another.
pub struct Lookup<K, V, O: OwnerKey = Owner, S = RandomState>
where
    K: Hash + Eq + Clone,
    V: Clone,
    S: BuildHasher,
{
    lookups: SharedLookups<K, V, O, S>,
    key: (K, O),
    sender: Arc<watch::Sender<Option<V>>>,
}

/// How long a result counts.
#[derive(Debug, Clone, Copy)]
pub struct Term {
    /// Its weight in the memory of all results.
    pub weight: usize,
    /// When it ends. One that has ended is for those that wait for it alone.
    pub until: Instant,
}

impl<K, V, O, S> SharedLookups<K, V, O, S>
where
    K: Hash + Eq + Clone,
    V: Clone,
    O: OwnerKey,
    S: BuildHasher + Default,
{
    /// No results, which weigh at most `capacity` together and count in the share of a cluster's caches, in this many shards with a
    /// lock of their own.
    pub fn new(capacity: usize, shards: usize, share: &CacheShare) -> Self {
        let shards = shards.max(1);
        let shard = || {
            let known = SharedLru::new(capacity / shards, share);
            Mutex::new(Shard { known, pending: HashMap::new() })
        };
        let others = (1..shards).map(|_| shard()).collect();
        Self(Arc::new(Shards { hasher: S::default(), first: shard(), others }))
    }

    /// The result for a key, if there is one.
    pub fn known(&self, key: &K, now: Instant) -> Option<V> {
        self.shard(key).known.get(key, now).cloned()
    }

    /// What there is for a key of this owner. A result that `is_usable` refuses counts as none.
    pub fn find(
        &self,
        key: &K,
        owner: &O,
        now: Instant,
        is_usable: impl Fn(&V) -> bool,
    ) -> Found<K, V, O, S> {
        let mut shard = self.shard(key);
        if let Some(known) = shard.known.get(key, now).filter(|known| is_usable(known)) {
            return Found::Known(known.clone());
        }
        let key = (key.clone(), owner.clone());
        if let Some(sender) = shard.pending.get(&key) {
            return Found::Pending(Pending(sender.subscribe()));
        }
        let (lookup, pending) = self.begin_in(&mut shard, key);
        Found::Vacant(lookup, pending)
    }

    /// Begins a lookup even if there is one, which later requests of this owner join instead of that one.
    pub fn begin(&self, key: &K, owner: &O) -> (Lookup<K, V, O, S>, Pending<V>) {
        self.begin_in(&mut self.shard(key), (key.clone(), owner.clone()))
    }

    fn begin_in(&self, shard: &mut Shard<K, V, O, S>, key: (K, O)) -> (Lookup<K, V, O, S>, Pending<V>) {
        let (sender, receiver) = watch::channel(None);
        let sender = Arc::new(sender);
        shard.pending.insert(key.clone(), Arc::clone(&sender));
        (Lookup { lookups: self.clone(), key, sender }, Pending(receiver))
    }

    /// The number of results, among them some that have ended.
    pub fn known_count(&self) -> usize {
        self.count(|shard| shard.known.len())
    }

    /// The number of lookups in progress.
    pub fn pending_count(&self) -> usize {
        self.count(|shard| shard.pending.len())
    }

    fn count(&self, of: impl Fn(&Shard<K, V, O, S>) -> usize) -> usize {
        let Shards { first, others, .. } = &*self.0;
        std::iter::once(first).chain(others).map(|shard| of(&lock(shard))).sum()
    }
}

impl<K: Hash + Eq, V, O: OwnerKey, S: BuildHasher> SharedLookups<K, V, O, S> {
    fn shard(&self, key: &K) -> MutexGuard<'_, Shard<K, V, O, S>> {
        let Shards { hasher, first, others } = &*self.0;
        if others.is_empty() {
            return lock(first);
        }
        let index = usize::try_from(hasher.hash_one(key) >> 32).unwrap_or_default() % (others.len() + 1);
        lock(others.get(index).unwrap_or(first))
    }
}

impl<V: Clone> Pending<V> {
    /// The result; `None` if the lookup has ended without one.
    pub async fn result(mut self) -> Option<V> {
        self.0.wait_for(Option::is_some).await.ok()?.clone()
    }
}

impl<K: Hash + Eq + Clone, V: Clone, O: OwnerKey, S: BuildHasher> Lookup<K, V, O, S> {
    /// The key of the lookup.
    pub fn key(&self) -> &K {
        &self.key.0
    }

    /// The owner in whose share it counts.
    pub fn owner(&self) -> &O {
        &self.key.1
    }

    /// Completes when no request waits for the lookup any longer.
    pub fn abandoned(&self) -> impl Future<Output = ()> + Send + use<K, V, O, S>
    where
        V: Send + Sync,
    {
        let sender = Arc::clone(&self.sender);
        async move { sender.closed().await }
    }

    /// Ends the lookup. In one step with that, its result is stored, if it counts: a later request finds the result, or begins
    /// another lookup.
    pub fn finish(self, result: V, term: Option<Term>) {
        let now = Instant::now();
        if let Some(Term { weight, until }) = term.filter(|term| now < term.until) {
            let mut shard = self.lookups.shard(&self.key.0);
            shard.known.put(self.key.0.clone(), result.clone(), weight, until, now);
            self.leave(&mut shard);
        } else {
            self.leave(&mut self.lookups.shard(&self.key.0));
        }
        self.sender.send_replace(Some(result));
    }

    /// Later requests do not join it any more.
    fn leave(&self, shard: &mut Shard<K, V, O, S>) {
        if shard.pending.get(&self.key).is_some_and(|sender| Arc::ptr_eq(sender, &self.sender)) {
            shard.pending.remove(&self.key);
        }
    }
}

impl<K: Hash + Eq + Clone, V: Clone, O: OwnerKey, S: BuildHasher> Drop for Lookup<K, V, O, S> {
    fn drop(&mut self) {
        self.leave(&mut self.lookups.shard(&self.key.0));
    }
}

impl<K: Hash + Eq, V, O: OwnerKey, S: BuildHasher> Clone for SharedLookups<K, V, O, S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Hash + Eq, V, O: OwnerKey, S: BuildHasher> fmt::Debug for SharedLookups<K, V, O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLookups").finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Clone, V: Clone, O: OwnerKey, S: BuildHasher> fmt::Debug for Found<K, V, O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Known(_) => "Known",
            Self::Pending(_) => "Pending",
            Self::Vacant(..) => "Vacant",
        })
    }
}

impl<K: Hash + Eq + Clone, V: Clone, O: OwnerKey, S: BuildHasher> fmt::Debug for Lookup<K, V, O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").field("owner", &self.key.1).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    fn owner(number: u8) -> Owner {
        Owner::flow("prod", number.to_string())
    }

    fn term(seconds: u64) -> Term {
        Term { weight: 1, until: Instant::now() + Duration::from_secs(seconds) }
    }

    fn find(lookups: &SharedLookups<u8, u8>, key: u8, of: u8) -> Found<u8, u8> {
        lookups.find(&key, &owner(of), Instant::now(), |_| true)
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_one_owner_share_a_lookup_and_all_share_its_result() {
        let lookups = SharedLookups::new(10, 4, &CacheShare::UNBOUNDED);
        let Found::Vacant(lookup, first) = find(&lookups, 1, 1) else { panic!() };
        let Found::Pending(second) = find(&lookups, 1, 1) else { panic!() };
        let Found::Vacant(other, of_other) = find(&lookups, 1, 2) else {
            panic!("it does not wait for the lookup of another owner")
        };
        lookup.finish(7, Some(term(10)));
        assert_eq!((first.result().await, second.result().await), (Some(7), Some(7)));
        assert!(matches!(find(&lookups, 1, 3), Found::Known(7)));
        drop(other);
        assert_eq!(of_other.result().await, None);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(matches!(find(&lookups, 1, 3), Found::Vacant(..)), "the result has ended");
        assert_eq!(lookups.pending_count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_that_does_not_count_is_for_those_that_wait() {
        let lookups = SharedLookups::new(10, 1, &CacheShare::UNBOUNDED);
        for unstored in [None, Some(term(0))] {
            let Found::Vacant(lookup, pending) = find(&lookups, 1, 1) else { panic!() };
            lookup.finish(7, unstored);
            assert_eq!(pending.result().await, Some(7));
            assert_eq!((lookups.known_count(), lookups.pending_count()), (0, 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_replaces_another_is_joined_instead_and_outlives_it() {
        let lookups = SharedLookups::new(10, 1, &CacheShare::UNBOUNDED);
        let Found::Vacant(old, _) = find(&lookups, 1, 1) else { panic!() };
        let (new, _pending) = lookups.begin(&1, &owner(1));
        old.finish(6, None);
        let Found::Pending(joined) = find(&lookups, 1, 1) else { panic!("the new one goes on") };
        new.finish(7, None);
        assert_eq!(joined.result().await, Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_for_which_no_request_waits_is_told() {
        let lookups = SharedLookups::new(10, 1, &CacheShare::UNBOUNDED);
        let Found::Vacant(lookup, pending) = find(&lookups, 1, 1) else { panic!() };
        assert!(lookup.abandoned().now_or_never().is_none());
        drop(pending);
        assert!(lookup.abandoned().now_or_never().is_some());
    }

    proptest! {
        // Random owners, of which one begins lookups that never end: no other owner ever joins one of those.
        #[test]
        fn lookups_that_never_end_hold_up_their_owner_alone(steps in proptest::collection::vec((0_u8..5, 0_u8..4), 1..100)) {
            let lookups = SharedLookups::<u8, u8>::new(100, 2, &CacheShare::UNBOUNDED);
            let mut hanging = Vec::new();
            for (key, of) in steps {
                match find(&lookups, key, of) {
                    Found::Known(result) => prop_assert_eq!(result, key),
                    Found::Pending(pending) => {
                        prop_assert_eq!(of, 0);
                        hanging.push((None, pending));
                    }
                    Found::Vacant(lookup, pending) if of == 0 => hanging.push((Some(lookup), pending)),
                    Found::Vacant(lookup, pending) => {
                        lookup.finish(key, Some(term(100)));
                        prop_assert_eq!(pending.result().now_or_never(), Some(Some(key)));
                    }
                }
            }
            drop(hanging);
            prop_assert_eq!(lookups.pending_count(), 0);
        }
    }
}
