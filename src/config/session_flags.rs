//! The flags of sessions. They have a cluster's section of the configuration file, `sessions`.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

/// Which sessions (exec, attach, port-forward) are recorded, how long they may take, and where recordings are stored.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Sessions")]
pub struct SessionFlags {
    /// File with the rules of sessions (portcullis.dev/v1alpha1 SessionPolicy): which exec, attach and port-forward are
    /// recorded, how long they may take, and how many a user may have. Without it none is recorded or limited.
    #[arg(long, value_name = "FILE")]
    pub session_policy_file: Option<PathBuf>,
    /// Directory in which sessions are recorded, each in a directory of its own. It must exist, and only the gateway's
    /// user and group may enter it. Required if a rule records.
    #[arg(long, value_name = "DIR")]
    pub session_recording_directory: Option<PathBuf>,
}
