//! The flags of limits on requests in flight: kube-apiserver's, with its names, and a few of our own. They have a
//! cluster's section of the configuration file, `limits`.
// apiserver: pkg/server/options/server_run_options.go

use clap::Args;
use serde::{Deserialize, Serialize};

/// How many requests of a cluster may be in flight.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Limits")]
pub struct LimitFlags {
    /// The maximum number of non-mutating requests in flight, for each cluster. Beyond it, requests wait or are refused
    /// with 429. Long-running requests (watch, exec, logs, proxy) do not count, and system:masters is always served. 0:
    /// no limit; kube-apiserver behind the gateway has priority and fairness of its own. Set it in front of an API
    /// server without them, or to bound what the gateway itself has to do.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_requests_inflight: u32,
    /// The same for mutating requests.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_mutating_requests_inflight: u32,
    /// The maximum number of requests that wait in one flow's queue while all places are taken; a flow is a user, the
    /// service accounts of a namespace, or the anonymous clients of a network. A free place goes to the flow with the
    /// fewest requests in flight, so that one flooding user does not delay the others. All flows together have 64 times
    /// as many. 0: no queues; requests of all users beyond the limit are refused at once, as by kube-apiserver
    /// without priority and fairness.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub inflight_queue_length_limit: u32,
    /// How long a request waits in a queue before it is refused with 429, such as 15s.
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    pub inflight_queue_timeout: String,
}
