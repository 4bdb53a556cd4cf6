//! The mode that allowed the last impersonation of each requester, for it to be tried first.
// apiserver: pkg/endpoints/filters/impersonation/cache.go, newModeIndexCache

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

use lru::DefaultHasher;

use super::Mode;

/// The number of requesters of a cluster whose mode is known, at most.
const SLOTS: usize = 1024;
/// The bits of a slot that hold the mode; the others hold the hash of the requester.
const MODE_BITS: u64 = 0b111;

/// A table without a lock: each request that impersonates reads it. A requester takes the slot that its name hashes to, from
/// another one if need be. Should two names have one hash, or a name be forgotten, the modes are tried in another order.
#[derive(Debug)]
pub(super) struct LastModes {
    /// Seeded, so that no client knows whose slot it takes.
    hasher: DefaultHasher,
    /// The hash of a requester with its mode; empty ones are zero.
    slots: Box<[AtomicU64]>,
}

impl LastModes {
    pub(super) fn new() -> Self {
        Self {
            hasher: DefaultHasher::default(),
            slots: std::iter::repeat_with(AtomicU64::default).take(SLOTS).collect(),
        }
    }

    /// The mode of this requester.
    pub(super) fn get(&self, requester: &str) -> Option<Mode> {
        let (slot, hash) = self.slot(requester)?;
        let known = slot.load(Ordering::Relaxed);
        let found = numbered_modes().find(|(_, number)| known == hash | number);
        found.map(|(mode, _)| mode)
    }

    pub(super) fn put(&self, requester: &str, mode: Mode) {
        let number = numbered_modes().find(|(known, _)| *known == mode);
        if let (Some((slot, hash)), Some((_, number))) = (self.slot(requester), number) {
            slot.store(hash | number, Ordering::Relaxed);
        }
    }

    /// The slot of a requester, and the bits of the hash of its name that a slot holds.
    fn slot(&self, requester: &str) -> Option<(&AtomicU64, u64)> {
        let hash = self.hasher.hash_one(requester);
        let [high, low, ..] = hash.to_be_bytes();
        let slot = self.slots.get(usize::from(u16::from_be_bytes([high, low])) % SLOTS)?;
        Some((slot, hash & !MODE_BITS))
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

    /// Far more requesters than there are slots: some are forgotten, and none has the mode of another.
    #[test]
    fn a_requester_never_has_the_mode_of_another() {
        let modes = LastModes::new();
        let requesters: Vec<_> =
            (0..20 * SLOTS).map(|number| (format!("user-{number}"), Mode::ALL[number % 5])).collect();
        for (requester, mode) in &requesters {
            modes.put(requester, *mode);
            assert_eq!(modes.get(requester), Some(*mode));
        }
        let known = requesters.iter().filter_map(|(requester, mode)| Some((modes.get(requester)?, *mode)));
        let known: Vec<_> = known.collect();
        assert!(known.iter().all(|(found, mode)| found == mode));
        assert!((SLOTS / 2..=SLOTS).contains(&known.len()), "{} are known", known.len());
    }
}
