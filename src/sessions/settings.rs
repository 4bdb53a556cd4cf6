//! Settings of sessions.

use std::path::PathBuf;

use portcullis_sessions::policy::SessionPolicy;

/// Which sessions of a cluster are recorded and limited.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// The rules.
    pub policy: SessionPolicy,
    /// Where recordings are stored. There is one if a rule records.
    pub directory: Option<PathBuf>,
}
