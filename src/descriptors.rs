//! How the open files of the process are divided, and how many of them clients, tenants and users may have.
//!
//! | part | open files | for |
//! |---|---|---|
//! | reserve | an eighth | the metrics port and the page, reloads, CRLs, logs, lookups, webhooks, issuers, plugins |
//! | clients | `--max-connections`; by default 7/16 | the connections of clients |
//! | API servers | the rest; by default 7/16 | connections to API servers, an eighth of them for the gateway's own |

use std::num::NonZeroUsize;

use portcullis_limits::budget::BudgetShares;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// This part of the open files stays in reserve, and this part of the connections to API servers is for the gateway's own.
const RESERVED_PART: usize = 8;
/// Each of the clients and the API servers has this part of the rest.
const SIDES: usize = 2;
/// However many connections of clients the configuration permits, API servers have this part of the rest.
const MIN_BACKEND_PART: usize = 4;
/// By default, one tenant's cluster has this part of the connections, on either side. Another such part stays free of tenants.
const TENANT_PART: usize = 8;
/// One flow of the operator's clusters has this part of the connections to API servers.
const FLOW_PART: usize = 4;
/// The quota of unauthenticated connections is this part of those of clients, within the two limits below: each may cost the
/// memory of a handshake and 1 MiB of request header, but some must be possible.
const UNAUTHENTICATED_PART: usize = 4;
const MAX_UNAUTHENTICATED: usize = 2048;
const MIN_UNAUTHENTICATED: usize = 16;
/// This part of the connections of clients is for those that have not authenticated yet, so that a client can arrive when
/// authenticated ones have taken the rest. Of few connections it is [`MIN_UNAUTHENTICATED`], or their whole quota: a client that the
/// limit has refused comes again at once, and would take a smaller number of places from all others.
const NEWCOMER_PART: usize = 16;

/// How the open files are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// For the connections of clients.
    pub(crate) clients: ClientShares,
    /// For connections to API servers.
    pub(crate) backends: BudgetShares,
}

/// How the connections of clients are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientShares {
    /// All of them.
    pub(crate) total: usize,
    /// The most on which no request has authenticated.
    pub(crate) unauthenticated: usize,
    /// The most on which one has.
    pub(crate) authenticated: usize,
    /// The most of those of one tenant's cluster.
    pub(crate) per_tenant: usize,
    /// The most of those of all tenants' clusters.
    pub(crate) tenants: usize,
}

impl Descriptors {
    /// Divides the limit of the process.
    pub(crate) fn of_process(
        max_connections: Option<NonZeroUsize>,
        per_tenant: Option<NonZeroUsize>,
    ) -> Self {
        let files = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
        let files = files.unwrap_or(usize::MAX);
        let (divided, possible) = (Self::divide(files, max_connections, per_tenant), of_clients(files));
        let max_connections = divided.clients.total;
        if max_connections > possible {
            warn!(max_connections, possible, "the limit of open files does not allow so many connections");
        }
        divided
    }

    /// No limit, for what serves nothing.
    pub(crate) fn unlimited() -> Self {
        Self::divide(usize::MAX, None, None)
    }

    fn divide(files: usize, max_connections: Option<NonZeroUsize>, per_tenant: Option<NonZeroUsize>) -> Self {
        let clients = max_connections.map_or(of_clients(files), NonZeroUsize::get);
        let usable = files - files / RESERVED_PART;
        let backends = usable.saturating_sub(clients).max(usable / MIN_BACKEND_PART);
        let clients = ClientShares::of(clients, per_tenant);
        Self { clients, backends: backend_shares(backends, &clients) }
    }
}

impl ClientShares {
    /// The shares of so many connections.
    pub(crate) fn of(total: usize, per_tenant: Option<NonZeroUsize>) -> Self {
        let share = (total / TENANT_PART).max(1);
        let of_few = (total / UNAUTHENTICATED_PART).min(MIN_UNAUTHENTICATED);
        let newcomers = (total / NEWCOMER_PART).max(of_few).max(1).min(total.saturating_sub(1));
        Self {
            total,
            unauthenticated: (total / UNAUTHENTICATED_PART)
                .clamp(total.min(MIN_UNAUTHENTICATED), MAX_UNAUTHENTICATED),
            authenticated: total - newcomers,
            per_tenant: per_tenant.map_or(share, NonZeroUsize::get),
            tenants: total.saturating_sub(share),
        }
    }

    /// For a listener on which no request authenticates.
    pub(crate) fn unauthenticated(total: usize) -> Self {
        Self { total: usize::MAX, unauthenticated: total, authenticated: 0, per_tenant: 0, tenants: 0 }
    }
}

/// The connections of clients that the open files allow.
fn of_clients(files: usize) -> usize {
    (files - files / RESERVED_PART) / SIDES
}

/// The shares of the connections to API servers. A tenant has as large a part of them as of the connections of clients.
fn backend_shares(total: usize, clients: &ClientShares) -> BudgetShares {
    let reserve = total / RESERVED_PART;
    let is_default = clients.per_tenant == (clients.total / TENANT_PART).max(1);
    let per_tenant = if is_default { total / TENANT_PART } else { part_of(total, clients) };
    let tenants = total - reserve - total / TENANT_PART;
    BudgetShares::new(total)
        .with_reserve(reserve)
        .with_tenants(per_tenant.clamp(1, tenants.max(1)), tenants)
        .with_flows((total / FLOW_PART).max(1))
}

/// The part of `total` that one tenant may have of the connections of clients.
fn part_of(total: usize, clients: &ClientShares) -> usize {
    match total.checked_mul(clients.per_tenant) {
        Some(product) => product / clients.total.max(1),
        None => total / clients.total.max(1) * clients.per_tenant.min(clients.total),
    }
}

/// Raises the soft limit of open files to the hard one.
pub(crate) fn raise_file_limit() {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => info!(open_files = ?before.maximum, "raised the limit of open files"),
        Err(error) => warn!(%error, open_files = ?before.current, "cannot raise the limit of open files"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(files: usize, max_connections: usize, per_tenant: usize) -> Descriptors {
        Descriptors::divide(files, NonZeroUsize::new(max_connections), NonZeroUsize::new(per_tenant))
    }

    /// As `docs/limits.md` has them.
    #[test]
    fn the_parts_of_common_limits() {
        let all = |divided: Descriptors| {
            let Descriptors { clients, backends } = divided;
            let of_clients = [
                clients.total,
                clients.unauthenticated,
                clients.authenticated,
                clients.per_tenant,
                clients.tenants,
            ];
            let of_backends = [
                backends.total(),
                backends.reserve(),
                backends.per_tenant(),
                backends.tenants(),
                backends.per_flow(),
            ];
            (of_clients, of_backends)
        };
        let cases = [
            (1024, 0, 0, ([448, 112, 420, 56, 392], [448, 56, 56, 336, 112])),
            (65_536, 0, 0, ([28_672, 2048, 26_880, 3584, 25_088], [28_672, 3584, 3584, 21_504, 7168])),
            // Fewer clients leave more to the API servers.
            (65_536, 1024, 256, ([1024, 256, 960, 256, 896], [56_320, 7040, 14_080, 42_240, 14_080])),
            // Few, of which those that arrive have a larger part.
            (65_536, 64, 0, ([64, 16, 48, 8, 56], [57_280, 7160, 7160, 42_960, 14_320])),
            // More than the files allow.
            (64, 1000, 0, ([1000, 250, 938, 125, 875], [14, 1, 1, 12, 3])),
        ];
        for (files, max_connections, per_tenant, expected) in cases {
            let found = all(divided(files, max_connections, per_tenant));
            assert_eq!(found, expected, "{files} files, {max_connections}, {per_tenant}");
        }
    }

    #[test]
    fn every_party_has_something_of_any_limit() {
        for files in (8..4096).chain([usize::MAX]) {
            for max_connections in [0, 1, 2, 17, 1000] {
                let Descriptors { clients, backends } = divided(files, max_connections, 0);
                let shares = [clients.unauthenticated, clients.authenticated, clients.per_tenant];
                assert!(
                    shares.iter().all(|share| (1..=clients.total).contains(share)),
                    "{files} {clients:?}"
                );
                let shares = [backends.per_tenant(), backends.per_flow()];
                assert!(
                    shares.iter().all(|share| (1..=backends.total()).contains(share)),
                    "{files} {backends:?}"
                );
                if max_connections == 0 {
                    let used = clients.total + backends.total();
                    assert!(used <= files - files / RESERVED_PART, "{files}: {used}");
                }
            }
        }
    }
}
