//! What can be set for the backends. The defaults are kube-apiserver's.
// apiserver: pkg/server/options/audit.go

use std::path::PathBuf;
use std::time::Duration;

/// The path of a log that stands for standard output.
pub const STANDARD_OUTPUT: &str = "-";

/// The log: a file, or standard output.
#[derive(Debug, Clone, PartialEq)]
pub struct LogOptions {
    /// The file; [`STANDARD_OUTPUT`] is standard output.
    pub path: PathBuf,
    /// The form of a line.
    pub format: Format,
    /// Whether requests wait for the log.
    pub mode: Mode,
    /// How events are collected. Blocking modes collect none.
    pub batch: BatchOptions,
    /// How large an event may be; `None`: of any size.
    pub truncate: Option<TruncateOptions>,
    /// When the file is replaced; not used for standard output.
    pub rotation: RotationOptions,
}

/// The webhook.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookOptions {
    /// The identity of the webhook: configurations with the same name share one buffer, and a reload keeps its events.
    /// The name of the cluster and the path of the kubeconfig are a good one. A changed address or credential is no
    /// reason for another name: the latest one is used for all events.
    pub name: String,
    /// Whether requests wait for the webhook.
    pub mode: Mode,
    /// How events are collected. Blocking modes collect none.
    pub batch: BatchOptions,
    /// How large an event and a request may be; `None`: events of any size.
    pub truncate: Option<TruncateOptions>,
    /// The wait before the first retry.
    pub initial_backoff: Duration,
}

/// Whether requests wait for a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Events are buffered; requests never wait.
    Batch,
    /// Requests wait; an event that cannot be stored is lost.
    Blocking,
    /// Requests wait; a request whose first event cannot be stored is refused.
    BlockingStrict,
}

/// The form of a line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// JSON.
    Json,
    /// Text, without objects and annotations.
    Legacy,
}

/// How events are collected before they are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchOptions {
    /// How many events are buffered; further ones are dropped.
    pub buffer_size: usize,
    /// How many events are stored at once. One or zero: each at once, without waiting for more.
    pub max_size: usize,
    /// How long an event waits for others at most.
    pub max_wait: Duration,
    /// How many batches are stored per second; `None`: as many as there are.
    pub throttle: Option<ThrottleOptions>,
}

/// A token bucket.
// client-go: util/flowcontrol/throttle.go
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThrottleOptions {
    /// The rate, per second.
    pub qps: f32,
    /// How many may be stored at once after a pause.
    pub burst: u32,
}

/// How large events and batches may be, encoded as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruncateOptions {
    /// A larger event loses its objects; it is discarded if it is still larger.
    pub max_event_size: usize,
    /// A larger batch is split.
    pub max_batch_size: usize,
}

/// When a log file is replaced, and how long the old ones are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotationOptions {
    /// The size that a file has at most, in MiB. Zero: files are not replaced.
    pub max_size: u32,
    /// How many days old files are kept. Zero: for ever.
    pub max_age: u32,
    /// How many old files are kept. Zero: all.
    pub max_backups: u32,
    /// Whether old files are compressed with gzip.
    pub compress: bool,
}

impl LogOptions {
    /// The defaults for a path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            format: Format::Json,
            mode: Mode::Blocking,
            batch: BatchOptions::LOG,
            truncate: None,
            rotation: RotationOptions::default(),
        }
    }
}

impl WebhookOptions {
    /// The defaults for a webhook.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            mode: Mode::Batch,
            batch: BatchOptions::WEBHOOK,
            truncate: None,
            initial_backoff: Duration::from_secs(10),
        }
    }
}

impl Mode {
    /// All modes, in the order of kube-apiserver's help.
    pub const ALL: [Self; 3] = [Self::Batch, Self::Blocking, Self::BlockingStrict];

    /// The value of the flag.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Blocking => "blocking",
            Self::BlockingStrict => "blocking-strict",
        }
    }
}

impl Format {
    /// All formats, in the order of kube-apiserver's help.
    pub const ALL: [Self; 2] = [Self::Legacy, Self::Json];

    /// The value of the flag.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Legacy => "legacy",
        }
    }
}

impl BatchOptions {
    /// The defaults of the log.
    pub const LOG: Self = Self { buffer_size: 10_000, max_size: 1, max_wait: Duration::ZERO, throttle: None };

    /// The defaults of the webhook.
    pub const WEBHOOK: Self = Self {
        buffer_size: 10_000,
        max_size: 400,
        max_wait: Duration::from_secs(30),
        throttle: Some(ThrottleOptions { qps: 10.0, burst: 15 }),
    };
}

impl Default for TruncateOptions {
    fn default() -> Self {
        Self { max_event_size: 100 << 10, max_batch_size: DEFAULT_MAX_BATCH_SIZE }
    }
}

/// The size at which batches are split by default.
pub(super) const DEFAULT_MAX_BATCH_SIZE: usize = 10 << 20;

impl Default for RotationOptions {
    fn default() -> Self {
        Self { max_size: 100, max_age: 366, max_backups: 100, compress: false }
    }
}
