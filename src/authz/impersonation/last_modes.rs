//! The mode that allowed the last impersonation of each requester, for it to be tried first.
// apiserver: pkg/endpoints/filters/impersonation/cache.go, newModeIndexCache

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

use lru::DefaultHasher;

use super::Mode;

/// The slots of a bucket. So many requesters whose names hash to one bucket do not replace each other.
const WAYS: usize = 4;
const BUCKETS: usize = 256;
/// The bits of a slot that hold the mode; the others hold the hash of the requester.
const MODE_BITS: u64 = 0b111;

/// A table without a lock: each request that impersonates reads it. A requester takes a slot of the bucket that its name hashes
/// to, from another one if need be. Should two names have one hash, or a name be forgotten, the modes are tried in another
/// order.
#[derive(Debug)]
pub(super) struct LastModes {
    /// Seeded, so that no client knows whose slot it takes.
    hasher: DefaultHasher,
    /// The hash of a requester with its mode; empty ones are zero.
    buckets: Box<[[AtomicU64; WAYS]]>,
}

impl LastModes {
    pub(super) fn new() -> Self {
        Self {
            hasher: DefaultHasher::default(),
            buckets: std::iter::repeat_with(Default::default).take(BUCKETS).collect(),
        }
    }

    /// The mode of this requester.
    pub(super) fn get(&self, requester: &str) -> Option<Mode> {
        let hash = self.hash(requester);
        let known = self.bucket(hash)?.iter().map(|slot| slot.load(Ordering::Relaxed));
        let known = known.into_iter().find(|known| known & !MODE_BITS == hash & !MODE_BITS)?;
        numbered_modes().find(|(_, number)| known & MODE_BITS == *number).map(|(mode, _)| mode)
    }

    pub(super) fn put(&self, requester: &str, mode: Mode) {
        let hash = self.hash(requester);
        let Some(bucket) = self.bucket(hash) else { return };
        let holding =
            |held: u64| bucket.iter().find(|slot| slot.load(Ordering::Relaxed) & !MODE_BITS == held);
        let [.., one, _] = hash.to_be_bytes();
        let slot =
            holding(hash & !MODE_BITS).or_else(|| holding(0)).or_else(|| bucket.get(usize::from(one) % WAYS));
        if let (Some(slot), Some((_, number))) = (slot, numbered_modes().find(|(known, _)| *known == mode)) {
            slot.store(hash & !MODE_BITS | number, Ordering::Relaxed);
        }
    }

    fn hash(&self, requester: &str) -> u64 {
        self.hasher.hash_one(requester)
    }

    fn bucket(&self, hash: u64) -> Option<&[AtomicU64; WAYS]> {
        let [high, low, ..] = hash.to_be_bytes();
        self.buckets.get(usize::from(u16::from_be_bytes([high, low])) % BUCKETS)
    }
}

/// The modes with their numbers in a slot.
fn numbered_modes() -> impl Iterator<Item = (Mode, u64)> {
    Mode::ALL.into_iter().zip(1..=MODE_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_requester_has_its_last_mode() {
        let modes = LastModes::new();
        assert_eq!(modes.get("alice"), None);
        for mode in Mode::ALL {
            modes.put("alice", mode);
            assert_eq!(modes.get("alice"), Some(mode));
        }
    }

    /// A few requesters do not replace each other, wherever their names hash to.
    #[test]
    fn a_few_requesters_are_all_known() {
        let modes = LastModes::new();
        let names = ["a", "b", "c", "d"];
        for _ in 0..1000 {
            for name in names {
                modes.put(name, Mode::Legacy);
            }
            assert!(names.iter().all(|name| modes.get(name) == Some(Mode::Legacy)));
        }
    }

    /// Far more requesters than there are slots: some are forgotten, and none has the mode of another.
    #[test]
    fn a_requester_never_has_the_mode_of_another() {
        let modes = LastModes::new();
        let requesters: Vec<_> = (0..20 * BUCKETS * WAYS)
            .map(|number| (format!("user-{number}"), Mode::ALL[number % 5]))
            .collect();
        for (requester, mode) in &requesters {
            modes.put(requester, *mode);
            assert_eq!(modes.get(requester), Some(*mode));
        }
        let known = requesters.iter().filter_map(|(requester, mode)| Some((modes.get(requester)?, *mode)));
        let known: Vec<_> = known.collect();
        assert!(known.iter().all(|(found, mode)| found == mode));
        assert!((BUCKETS * WAYS / 2..=BUCKETS * WAYS).contains(&known.len()), "{} are known", known.len());
    }
}
