//! Problems that last are logged when they begin, not each time they are met.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Causes are few: a right that is missing, a signer that cannot sign. More of them are forgotten, and told again.
const MAX_CAUSES: usize = 1000;

/// The problems that were logged and are not over yet, by their causes.
#[derive(Debug, Default)]
pub(crate) struct ProblemLog(Mutex<BTreeSet<String>>);

impl ProblemLog {
    /// Notes a problem; says whether it is a new one, which is to be logged.
    pub(crate) fn begins(&self, cause: &str) -> bool {
        let mut causes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if causes.len() >= MAX_CAUSES {
            causes.clear();
        }
        causes.insert(cause.to_owned())
    }

    /// Notes that a problem is over; says whether there was one.
    pub(crate) fn ends(&self, cause: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(cause)
    }
}
