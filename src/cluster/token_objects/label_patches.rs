//! Which secrets a label is written to: what many tokens of one secret ask for is done once.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Namespaces and names of the secrets.
#[derive(Debug, Clone, Default)]
pub(super) struct LabelPatches(Arc<Mutex<HashSet<(String, String)>>>);

/// One of them, until this is dropped.
pub(super) struct PatchInFlight {
    all: LabelPatches,
    secret: (String, String),
}

impl LabelPatches {
    /// Begins to write to a secret, unless somebody does.
    pub(super) fn begin(&self, namespace: &str, name: &str) -> Option<PatchInFlight> {
        let secret = (namespace.to_owned(), name.to_owned());
        self.all().insert(secret.clone()).then(|| PatchInFlight { all: self.clone(), secret })
    }

    fn all(&self) -> MutexGuard<'_, HashSet<(String, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PatchInFlight {
    fn drop(&mut self) {
        self.all.all().remove(&self.secret);
    }
}
