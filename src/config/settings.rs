//! The validated configuration: values that were read, parsed and checked against each other.

use std::sync::Arc;
use std::time::Duration;

use portcullis_system::memory::MemoryLimit;

use super::flags::{LogFormat, MetricsAddress};
use super::management_cluster::ManagementSettings;
use super::page_settings::PageSettings;
pub use crate::cluster::settings::{Cluster, ClusterOrigin, Routes};
pub(crate) use crate::listener::settings::ServingSettings;
use crate::traces::TracingSettings;

/// The settings of the gateway.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// How clients reach the gateway.
    pub serving: ServingSettings,
    /// The clusters behind the gateway; at least one, unless they may come and go. An unchanged cluster is the same
    /// value after a reload.
    pub clusters: Vec<Arc<Cluster>>,
    /// The management cluster, whose Secrets are clusters.
    pub management: Option<Arc<ManagementSettings>>,
    /// How the gateway runs.
    pub operation: Operation,
    /// The page of the clusters, if there is one.
    pub page: Option<Arc<PageSettings>>,
}

/// How the gateway runs.
#[derive(Debug, Clone)]
pub struct Operation {
    /// The timeout of a request that is not long-running.
    pub request_timeout: Duration,
    /// The requests of all clusters in flight; 0: no limit.
    pub max_requests_inflight_total: usize,
    /// The requests of a tenant's cluster that begin in a second; 0: no limit.
    pub max_requests_per_second_per_tenant: u32,
    /// The bytes in the buffers of streams and connections.
    pub max_buffered_bytes: MaxBufferedBytes,
    /// The phases of graceful shutdown.
    pub shutdown: Shutdown,
    /// How long `/livez` reports success while the first backend self-checks run.
    pub livez_grace_period: Duration,
    /// Where to serve `/metrics`.
    pub metrics: MetricsAddress,
    /// Whether every client of that address sees the status of the clusters, not only those on this machine.
    pub exposes_cluster_status: bool,
    /// Worker threads; at least one.
    pub workers: usize,
    /// The log level verbosity, as of `--v`.
    pub verbosity: u8,
    /// The log format.
    pub log_format: LogFormat,
    /// Where to export traces, and how many.
    pub tracing: Option<TracingSettings>,
}

/// The most bytes in the buffers of streams and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxBufferedBytes {
    /// A part of the memory that the process may use.
    OfMemory,
    /// This many.
    Bytes(usize),
}

impl MaxBufferedBytes {
    /// The part of the limit of the process's control group. The rest is for what else the process keeps, and for what arrives
    /// between two looks at the buffers.
    const PART_OF_GROUP: u64 = 4;
    /// The part of the machine's memory, which other processes use as well.
    const PART_OF_MACHINE: u64 = 8;
    /// Where the machine does not tell.
    const FALLBACK: usize = 256 << 20;

    /// How many that are now.
    pub(crate) fn bytes(self) -> usize {
        let bytes = match (self, MemoryLimit::read()) {
            (Self::Bytes(bytes), _) => return bytes,
            (Self::OfMemory, Some(MemoryLimit::ControlGroup(limit))) => limit / Self::PART_OF_GROUP,
            (Self::OfMemory, Some(MemoryLimit::Machine(memory))) => memory / Self::PART_OF_MACHINE,
            (Self::OfMemory, None) => return Self::FALLBACK,
        };
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// The phases of graceful shutdown, which begins with SIGTERM.
#[derive(Debug, Clone, Copy)]
pub struct Shutdown {
    /// How long the gateway keeps serving while `/readyz` fails.
    pub delay: Duration,
    /// Whether to accept connections after the delay and answer new requests with 429, until those in flight have
    /// ended.
    pub send_retry_after: bool,
    /// How long requests in flight may take after the delay.
    pub grace_period: Duration,
    /// The period after the delay over which watches end; zero: they end with the grace period.
    pub watch_termination_grace_period: Duration,
}
