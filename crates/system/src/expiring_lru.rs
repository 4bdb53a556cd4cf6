//! A map whose entries end at a time and weigh at most so much together.

use std::hash::{BuildHasher, Hash, RandomState};

use lru::LruCache;
use tokio::time::Instant;

/// Values until their end. Beyond the capacity, the least recently used ones are evicted.
#[derive(Debug)]
pub struct ExpiringLru<K: Hash + Eq, V, S: BuildHasher = RandomState> {
    /// Clients choose some of the keys, so they are hashed with a secret.
    entries: LruCache<K, Entry<V>, S>,
    weight: usize,
    capacity: usize,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    until: Instant,
    weight: usize,
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> ExpiringLru<K, V, S> {
    /// A map of values that weigh at most `capacity` together.
    pub fn new(capacity: usize) -> Self {
        Self { entries: LruCache::unbounded_with_hasher(S::default()), weight: 0, capacity }
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> ExpiringLru<K, V, S> {
    /// The value of `key`, if it has not ended at `now`.
    pub fn get(&mut self, key: &K, now: Instant) -> Option<&V> {
        self.entries.get(key).filter(|entry| now < entry.until).map(|entry| &entry.value)
    }

    /// Adds a value. Evicts values that have ended and, beyond the capacity, the least recently used ones.
    pub fn put(&mut self, key: K, value: V, weight: usize, until: Instant, now: Instant) {
        self.weight += weight;
        if let Some(before) = self.entries.put(key, Entry { value, until, weight }) {
            self.weight -= before.weight;
        }
        while let Some((_, oldest)) = self.entries.peek_lru()
            && (self.weight > self.capacity || oldest.until <= now)
        {
            self.weight -= oldest.weight;
            self.entries.pop_lru();
        }
    }

    /// Evicts the least recently used value. Returns whether there was one.
    pub fn evict(&mut self) -> bool {
        let evicted = self.entries.pop_lru();
        self.weight -= evicted.as_ref().map_or(0, |(_, entry)| entry.weight);
        evicted.is_some()
    }

    /// What all values weigh.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// The number of entries, among them those that have ended and were not evicted yet.
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

    use super::*;

    #[test]
    fn values_end_and_the_least_used_are_evicted() {
        let now = Instant::now();
        let get = |map: &mut ExpiringLru<_, i32>, key, now| map.get(&key, now).copied();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut map = ExpiringLru::new(10);
        map.put("a", 1, 4, after(5), now);
        map.put("b", 2, 4, after(9), now);
        assert_eq!((get(&mut map, "a", now), get(&mut map, "b", now)), (Some(1), Some(2)));
        assert_eq!((get(&mut map, "a", after(5)), get(&mut map, "b", after(5))), (None, Some(2)));
        assert_eq!(get(&mut map, "a", now), Some(1));
        map.put("c", 3, 4, after(9), now);
        assert_eq!(
            (get(&mut map, "a", now), get(&mut map, "b", now), get(&mut map, "c", now)),
            (Some(1), None, Some(3))
        );
        map.put("d", 4, 1, after(20), after(10));
        assert_eq!(map.len(), 1, "those that have ended are evicted");
        map.put("e", 5, 11, after(20), after(10));
        assert_eq!(map.len(), 0, "too heavy for the map");
    }
}
