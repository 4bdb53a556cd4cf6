//! What a row may show at most. Memory and descriptors are the documented figures, which stand here alone.

use std::time::Duration;

/// The resident memory of the process, in MiB: half of the chart's limit (`deploy/`, `resources.limits.memory`).
pub(crate) const MAX_RSS: u64 = 1024;
/// The open files of the process, in eighths of its limit: an eighth stays in reserve (`docs/limits.md`, Open files).
pub(crate) const MAX_FILES_EIGHTHS: u64 = 7;
/// How many times as long as without the attack 99 of 100 requests may take.
pub(crate) const MAX_RATIO: f64 = 3.0;
/// Cores that processes outside the test may use before a row says that the machine is busy.
pub(crate) const BUSY: f64 = 0.5;
/// Log lines at once, and how many more each second: more would fill the disk of the log.
pub(crate) const MAX_LINES: u64 = 100;
pub(crate) const MAX_LINES_PER_SECOND: u64 = 2;
/// How long a request may take before it counts as failed.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of probes, which is the kubelet's default.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a reload may take, from the change of the file to its effect on a response.
pub(crate) const RELOAD_TIMEOUT: Duration = Duration::from_secs(5);
