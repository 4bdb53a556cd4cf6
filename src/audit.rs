//! The audit of a cluster: its policy, and where its events are stored.
//!
//! `crates/audit` decides how much of a request is recorded, encodes events and stores them; `pipeline::audit` makes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portcullis_audit::policy::Policy;
use portcullis_audit::sink::Sinks;

/// The memory of all objects that are held for events of requests in progress.
const OBJECT_BYTES: usize = 128 << 20;

/// The audit of a cluster, of one generation of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct ClusterAudit {
    /// Which requests are recorded, and how much of them.
    pub(crate) policy: Policy,
    /// Where events are stored.
    pub(crate) sinks: Sinks,
    /// Bounds the objects of requests in progress.
    pub(crate) memory: Arc<ObjectMemory>,
    /// The name of the cluster, if there are others.
    pub(crate) cluster: Option<Arc<str>>,
}

/// The memory of objects that wait for the end of their requests, in all of the process.
#[derive(Debug, Default)]
pub(crate) struct ObjectMemory {
    used: AtomicUsize,
}

/// A part of [`ObjectMemory`], until it is dropped.
#[derive(Debug)]
pub(crate) struct ReservedMemory {
    memory: Arc<ObjectMemory>,
    bytes: usize,
}

impl ObjectMemory {
    /// An empty reservation.
    pub(crate) fn reserve(self: &Arc<Self>) -> ReservedMemory {
        ReservedMemory { memory: Arc::clone(self), bytes: 0 }
    }
}

impl ReservedMemory {
    /// Adds `bytes`; `false` if there is no room for them.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= OBJECT_BYTES);
        let grown = self.memory.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if grown {
            self.bytes += bytes;
        }
        grown
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_bounded_and_given_back() {
        let memory = Arc::new(ObjectMemory::default());
        let (mut one, mut other) = (memory.reserve(), memory.reserve());
        assert!(one.grow(OBJECT_BYTES - 1) && other.grow(1) && !other.grow(1));
        drop(one);
        assert!(other.grow(OBJECT_BYTES - 1) && !other.grow(1));
        drop(other);
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }
}
