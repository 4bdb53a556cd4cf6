//! The attacks, and how the gateway that meets them is configured.

use std::time::Duration;

use clap::ValueEnum;

/// Open files of the gateway: those of the systemd unit, and those of the attack on descriptors.
const OPEN_FILES: u64 = 65_536;
const FEW_OPEN_FILES: u64 = 2048;
/// `--max-connections` of the attack on connections.
pub(crate) const FEW_CONNECTIONS: usize = 64;
/// `--max-requests-inflight-total` of the attack on it.
const MAX_REQUESTS_INFLIGHT: usize = 400;
/// Watches and requests of the operator's API server in the attacks on these limits.
const FEW_PER_ENDPOINT: usize = 500;
/// How long the audit webhook takes in the attack on the audit.
const SLOW_WEBHOOK: Duration = Duration::from_millis(100);

/// What the attacker does. The attacker is a tenant, with API servers and clients of its own, unless the text says
/// otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Attack {
    /// Nothing: how much the figures differ without an attack.
    None,
    /// Made-up tokens without a key ID, for a key set of 100 large RSA keys.
    KeySet,
    /// Uploads that the API server does not read.
    Uploads,
    /// Large responses that the client does not read.
    Responses,
    /// Watches that the client does not read.
    Watches,
    /// Response headers of 31 MiB that do not end.
    EndlessHeaders,
    /// Response headers of 1 MB to clients that read nothing of their connections.
    UnreadHeaders,
    /// Slow requests to an API server that speaks HTTP/1.1, with few descriptors.
    Descriptors,
    /// 9,700 requests per second, with an audit webhook that takes 100 ms.
    Audit,
    /// A user of the operator's cluster takes all connections.
    Connections,
    /// Slow requests of the tenant's own `system:masters`, with a limit on the requests of all clusters.
    Masters,
    /// A user of the operator's cluster takes all watches of an endpoint.
    EndpointWatches,
    /// A user of the operator's cluster takes all requests of an endpoint.
    EndpointRequests,
    /// 16 API servers that answer each self-check with another user.
    OtherUsers,
    /// 16 API servers that pass the self-check and close the connection.
    ClosingEndpoints,
    /// Informational responses (103) without end.
    Informational,
}

/// How the gateway of an attack differs from one with defaults. Zero is the default.
pub(crate) struct GatewayLimits {
    pub(crate) open_files: u64,
    pub(crate) max_connections: usize,
    pub(crate) max_requests_inflight: usize,
    /// Of the operator's cluster.
    pub(crate) max_per_endpoint: Option<usize>,
    pub(crate) webhook_delay: Duration,
}

impl Attack {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(crate) fn description(self) -> String {
        let value = self.to_possible_value();
        value.and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
    }

    pub(crate) fn gateway(self) -> GatewayLimits {
        let when = |is: bool, value: usize| if is { value } else { 0 };
        let per_endpoint = matches!(self, Self::EndpointWatches | Self::EndpointRequests);
        GatewayLimits {
            open_files: if self == Self::Descriptors { FEW_OPEN_FILES } else { OPEN_FILES },
            max_connections: when(self == Self::Connections, FEW_CONNECTIONS),
            max_requests_inflight: when(self == Self::Masters, MAX_REQUESTS_INFLIGHT),
            max_per_endpoint: per_endpoint.then_some(FEW_PER_ENDPOINT),
            webhook_delay: if self == Self::Audit { SLOW_WEBHOOK } else { Duration::ZERO },
        }
    }

    /// Whether the attacker's API servers are in use, once they were checked.
    pub(crate) fn passes_self_checks(self) -> bool {
        !matches!(self, Self::OtherUsers | Self::ClosingEndpoints)
    }
}
