//! What a configuration resolves to: values that were read, parsed and found to fit together.

use std::time::Duration;

use super::flags::{LogFormat, MetricsAddress};
pub use crate::authn::settings::{Authentication, RequestHeader};
pub use crate::backend::settings::{Backend, HostPort};
pub use crate::cluster::settings::{Cluster, Routes};
pub use crate::controllers::settings::Controllers;
pub use crate::listener::settings::{Limits, Serving, ServingCertificate};
pub use crate::user::IdentityMode;

/// Everything the gateway runs by.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// How clients reach the gateway.
    pub serving: Serving,
    /// The clusters behind the gateway; at least one.
    pub clusters: Vec<Cluster>,
    /// How the gateway runs.
    pub operation: Operation,
}

/// How the gateway runs.
#[derive(Debug, Clone)]
pub struct Operation {
    /// How long a request may take, unless it is long-running.
    pub request_timeout: Duration,
    /// What happens after SIGTERM, and when.
    pub shutdown: Shutdown,
    /// How long `/livez` believes that the start is going well.
    pub livez_grace_period: Duration,
    /// Where `/metrics` is served.
    pub metrics: MetricsAddress,
    /// Worker threads; at least one.
    pub workers: usize,
    /// How much to log.
    pub verbosity: u8,
    /// The form of log lines.
    pub log_format: LogFormat,
}

/// What happens after SIGTERM, and when.
#[derive(Debug, Clone, Copy)]
pub struct Shutdown {
    /// How long everything is still served, while `/readyz` fails.
    pub delay: Duration,
    /// Whether new requests are told to come back later, on new connections too, until those in progress have ended.
    pub send_retry_after: bool,
    /// How long requests in progress may still take.
    pub grace_period: Duration,
    /// The time over which watches end, from the end of the delay on; zero: they end with the grace period.
    pub watch_termination_grace_period: Duration,
}
