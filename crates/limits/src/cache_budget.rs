//! The memory of caches. Each has a bound of its own; those of a tenant's cluster have one together, and those of all tenants have
//! one, so that no number of hostile clusters takes the memory of the process.
//!
//! A cache is never necessary: what does not fit is not kept, or another entry of the same cache gives way.

use std::hash::{BuildHasher, Hash, RandomState};

use portcullis_system::expiring_lru::ExpiringLru;
use tokio::time::Instant;

use crate::budget::{Budget, BudgetPermit, BudgetShares};
use crate::{ClusterOwner, Owner};

/// The bytes of the caches of all tenants' clusters. Cheap to clone: a clone is the same budget.
#[derive(Debug, Clone)]
pub struct CacheBudget(Budget);

impl CacheBudget {
    /// Without a bound yet.
    pub fn new() -> Self {
        Self(Budget::new(BudgetShares::new(usize::MAX)))
    }

    /// Bounds the caches of one tenant's cluster, and those of all of them together, of which half is divided among so many. What is
    /// kept beyond that stays until the next change of its cache.
    pub fn set_bytes_of_tenants(&self, each: usize, together: usize, tenants: usize) {
        self.0.set_shares(BudgetShares::new(usize::MAX).with_tenants(each, together).divided_among(tenants));
    }

    /// What the caches of a cluster may take: of one of the operator's, as much as each of them holds.
    pub fn of(&self, cluster: &ClusterOwner) -> CacheShare {
        let owner = cluster.is_of_tenant().then(|| Owner::Tenant(cluster.cluster().clone()));
        CacheShare(owner.map(|owner| (self.0.clone(), owner)))
    }
}

impl Default for CacheBudget {
    fn default() -> Self {
        Self::new()
    }
}

/// What the caches of one cluster may take together.
#[derive(Debug, Clone)]
pub struct CacheShare(Option<(Budget, Owner)>);

impl CacheShare {
    /// Without a bound beside that of each cache.
    pub const UNBOUNDED: Self = Self(None);

    /// For one cache, which holds nothing yet.
    pub fn memory(&self) -> CacheMemory {
        CacheMemory(self.0.as_ref().map(|(budget, owner)| budget.reserve(owner.clone())))
    }
}

/// What one cache holds; returned on drop.
#[derive(Debug)]
pub struct CacheMemory(Option<BudgetPermit>);

impl CacheMemory {
    /// The bytes that it may hold without asking for more.
    fn held(&self) -> usize {
        self.0.as_ref().map_or(usize::MAX, BudgetPermit::places)
    }

    /// The cache holds at most so many bytes now.
    pub fn lower(&mut self, bytes: usize) {
        if let Some(permit) = &mut self.0 {
            permit.lower(bytes);
        }
    }

    /// Whether the cache may hold so many bytes. If it may not, what it holds stays counted.
    #[must_use]
    pub fn set(&mut self, bytes: usize) -> bool {
        self.0.as_mut().is_none_or(|permit| permit.resize(bytes))
    }
}

/// Values until their end, within the bound of the cache and the share of its cluster: the least recently used ones give way.
#[derive(Debug)]
pub struct SharedLru<K: Hash + Eq, V, S: BuildHasher = RandomState> {
    entries: ExpiringLru<K, V, S>,
    memory: CacheMemory,
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> SharedLru<K, V, S> {
    /// Values that weigh at most `capacity` bytes together, in a cluster's share.
    pub fn new(capacity: usize, share: &CacheShare) -> Self {
        Self { entries: ExpiringLru::new(capacity), memory: share.memory() }
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> SharedLru<K, V, S> {
    /// The value of `key`, if it has not ended at `now`.
    pub fn get(&mut self, key: &K, now: Instant) -> Option<&V> {
        self.entries.get(key, now)
    }

    /// Adds a value. It may be evicted at once, if nothing else of this cache can give way.
    // threat: tenant-caches
    pub fn put(&mut self, key: K, value: V, weight: usize, until: Instant, now: Instant) {
        self.entries.put(key, value, weight, until, now);
        if !self.memory.set(self.entries.weight()) {
            // What the cache has stays its own: other caches do not get what one entry leaves to another.
            while self.entries.weight() > self.memory.held() && self.entries.evict() {}
        }
    }

    /// The number of entries, among them some that have ended.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    fn put(cache: &mut SharedLru<u32, ()>, key: u32, weight: usize) -> bool {
        let now = Instant::now();
        cache.put(key, (), weight, now + Duration::from_mins(1), now);
        cache.get(&key, now).is_some()
    }

    // One tenant fills all its caches; another one, and the operator's cluster, keep what they put.
    #[test]
    fn a_tenant_that_fills_its_caches_takes_nothing_from_others() {
        let budget = CacheBudget::new();
        budget.set_bytes_of_tenants(100, 300, 2);
        let cache = |cluster: &ClusterOwner| SharedLru::new(80, &budget.of(cluster));
        let flood = ClusterOwner::tenant("flood");
        let [mut first, mut second] = [cache(&flood), cache(&flood)];
        for key in 0..100 {
            assert!(put(&mut first, key, 10));
        }
        assert_eq!((first.len(), budget.0.usage().tenants), (8, 80));
        for key in 0..100 {
            assert!(put(&mut second, key, 10), "its own entries give way");
        }
        assert_eq!((first.len(), second.len()), (8, 2), "an entry of one cache gives way to no other cache");
        let mut third = cache(&flood);
        assert!(!put(&mut third, 1, 10), "nothing of this cache can give way");
        let mut calm = cache(&ClusterOwner::tenant("calm"));
        assert!((0..8).all(|key| put(&mut calm, key, 10)) && calm.len() == 8);
        let mut own = cache(&ClusterOwner::operator("own"));
        assert!((0..8).all(|key| put(&mut own, key, 10)) && own.len() == 8);
        drop((first, second, third, calm));
        assert_eq!(budget.0.usage().tenants, 0);
    }

    proptest! {
        // Random puts of random weights: tenants never hold more than their share, nor all of them more than all.
        #[test]
        fn no_order_of_puts_exceeds_a_share(steps in proptest::collection::vec((0_usize..12, 0_u32..9, 0_usize..60), 1..200)) {
            let budget = CacheBudget::new();
            budget.set_bytes_of_tenants(90, 200, 4);
            let mut caches: Vec<SharedLru<u32, ()>> = (0..12)
                .map(|cache| SharedLru::new(70, &budget.of(&ClusterOwner::tenant((cache / 3).to_string()))))
                .collect();
            for (cache, key, weight) in steps {
                put(&mut caches[cache], key, weight);
                let held = |cache: &SharedLru<u32, ()>| cache.entries.weight();
                let all: Vec<usize> = caches.chunks(3).map(|of_one| of_one.iter().map(held).sum()).collect();
                prop_assert!(all.iter().all(|held| *held <= 90), "{all:?}");
                let counted = budget.0.usage().tenants;
                prop_assert!(all.iter().sum::<usize>() <= counted && counted <= 200, "{counted}");
            }
        }
    }
}
