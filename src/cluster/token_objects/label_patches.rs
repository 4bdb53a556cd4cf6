//! Deduplicates label patches: many tokens of one secret cause one patch.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

use portcullis_system::sync::lock;

/// The secrets with a patch in progress, by namespace and name.
#[derive(Debug, Clone, Default)]
pub(super) struct LabelPatches(Arc<Mutex<HashSet<(String, String)>>>);

/// Marks a secret until it is dropped.
pub(super) struct PatchInFlight {
    patches: LabelPatches,
    secret: (String, String),
}

impl LabelPatches {
    /// Marks a secret; `None` if it is marked already.
    pub(super) fn begin(&self, namespace: &str, name: &str) -> Option<PatchInFlight> {
        let secret = (namespace.to_owned(), name.to_owned());
        self.secrets().insert(secret.clone()).then(|| PatchInFlight { patches: self.clone(), secret })
    }

    fn secrets(&self) -> MutexGuard<'_, HashSet<(String, String)>> {
        lock(&self.0)
    }
}

impl Drop for PatchInFlight {
    fn drop(&mut self) {
        self.patches.secrets().remove(&self.secret);
    }
}
