//! The flags of audit: kube-apiserver's, with its names and defaults. They have a cluster's section of the configuration
//! file, `audit`.
#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]
// apiserver: pkg/server/options/audit.go

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

/// Which requests are audited, and where the events are stored.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Audit")]
pub struct AuditFlags {
    /// File with the audit policy (audit.k8s.io/v1 Policy). Without it nothing is audited.
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// File that audit events are appended to, one on each line. `-`: standard output.
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// Format of the events in the file: json or legacy, one line of text.
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    pub audit_log_format: String,
    /// How many days old log files are kept. 0: age does not count.
    #[arg(long, value_name = "DAYS", default_value_t = 366)]
    pub audit_log_maxage: u32,
    /// How many old log files are kept. 0: any number.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub audit_log_maxbackup: u32,
    /// Size in megabytes at which the file is rotated. 0: never.
    #[arg(long, value_name = "MEGABYTES", default_value_t = 100)]
    pub audit_log_maxsize: u32,
    /// Compress rotated log files with gzip.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub audit_log_compress: bool,
    /// Version of the events in the file.
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1")]
    pub audit_log_version: String,
    /// How events reach the file. `batch`: later; events that find no room are dropped. `blocking`: requests wait for
    /// their first event to be written, and go on if that fails. `blocking-strict`: they are refused then.
    #[arg(long, value_name = "MODE", default_value = "blocking")]
    pub audit_log_mode: String,
    /// How many events may wait for the file; in mode batch.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub audit_log_batch_buffer_size: usize,
    /// How many events are written at a time; in mode batch.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub audit_log_batch_max_size: usize,
    /// How long a batch waits for more events; in mode batch.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub audit_log_batch_max_wait: String,
    /// Limit the batches per second; in mode batch.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub audit_log_batch_throttle_enable: bool,
    /// Batches per second, on average.
    #[arg(long, value_name = "QPS", default_value_t = 0.0)]
    pub audit_log_batch_throttle_qps: f32,
    /// Batches at once, if there were fewer before.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub audit_log_batch_throttle_burst: u32,
    /// Leave the objects out of events that are too large.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub audit_log_truncate_enabled: bool,
    /// Largest batch, in bytes; larger ones are split.
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    pub audit_log_truncate_max_batch_size: usize,
    /// Largest event, in bytes: first its objects are left out, then it is discarded.
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 10)]
    pub audit_log_truncate_max_event_size: usize,
    /// File with the audit webhook, in kubeconfig format. The gateway posts lists of events (EventList) to it.
    #[arg(long, value_name = "FILE")]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// How long to wait before the first failed request is sent again; then longer each time.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub audit_webhook_initial_backoff: String,
    /// Version of the events that the webhook receives.
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1")]
    pub audit_webhook_version: String,
    /// How events reach the webhook, as with --audit-log-mode.
    #[arg(long, value_name = "MODE", default_value = "batch")]
    pub audit_webhook_mode: String,
    /// How many events may wait for the webhook; in mode batch.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub audit_webhook_batch_buffer_size: usize,
    /// How many events are sent at a time; in mode batch.
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub audit_webhook_batch_max_size: usize,
    /// How long a batch waits for more events; in mode batch.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub audit_webhook_batch_max_wait: String,
    /// Limit the batches per second; in mode batch.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub audit_webhook_batch_throttle_enable: bool,
    /// Batches per second, on average.
    #[arg(long, value_name = "QPS", default_value_t = 10.0)]
    pub audit_webhook_batch_throttle_qps: f32,
    /// Batches at once, if there were fewer before.
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub audit_webhook_batch_throttle_burst: u32,
    /// Leave the objects out of events that are too large.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub audit_webhook_truncate_enabled: bool,
    /// Largest batch, in bytes; larger ones are split.
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    pub audit_webhook_truncate_max_batch_size: usize,
    /// Largest event, in bytes: first its objects are left out, then it is discarded.
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 10)]
    pub audit_webhook_truncate_max_event_size: usize,
}
