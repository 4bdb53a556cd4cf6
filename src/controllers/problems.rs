//! Logs a persistent problem once, when it begins.

use std::collections::BTreeSet;
use std::sync::Mutex;

use portcullis_system::sync::lock;

/// Causes are few: a missing permission, a signer that cannot sign. Beyond the limit the log forgets all, and logs them
/// again.
const MAX_CAUSES: usize = 1000;

/// The problems that were logged and persist, by cause.
#[derive(Debug, Default)]
pub(crate) struct ProblemLog(Mutex<BTreeSet<String>>);

impl ProblemLog {
    /// Records a problem; returns whether it is new, so that the caller logs it.
    pub(crate) fn begins(&self, cause: &str) -> bool {
        let mut causes = lock(&self.0);
        if causes.len() >= MAX_CAUSES {
            causes.clear();
        }
        causes.insert(cause.to_owned())
    }

    /// Records the end of a problem; returns whether there was one.
    pub(crate) fn ends(&self, cause: &str) -> bool {
        lock(&self.0).remove(cause)
    }
}

/// The message of an error; of a `Status`, only its `message`.
pub(super) fn error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}
