//! What the connections to the API servers of a cluster hold, in whose share it counts, and how much of a response header they
//! accept: 1 MiB, and more only where that would end a connection that users share.

use std::sync::Arc;

use portcullis_http::limits::{
    MAX_BACKEND_HEADER_LIST_SIZE, MAX_RELAYED_HEADER_LIST_SIZE, MAX_TENANT_HEADER_LIST_SIZE,
};
use portcullis_http::transport::ConnectionBuffers;
use portcullis_kubernetes::service_account;
use portcullis_limits::ClusterOwner;
use portcullis_limits::byte_ledger::ByteLedger;

use super::counts::LaneKind;

/// The overhead of short frames that nothing has read, on a connection to a tenant's API server. HTTP/2 ends a connection beyond
/// that.
const MAX_SHORT_FRAMES: usize = 4 << 20;

/// The ledger, and the owner of the connections of a cluster.
#[derive(Debug, Clone)]
pub(crate) struct ClusterBuffers {
    ledger: ByteLedger,
    cluster: ClusterOwner,
}

impl ClusterBuffers {
    /// Those of this cluster.
    pub(crate) fn new(ledger: &ByteLedger, cluster: ClusterOwner) -> Self {
        Self { ledger: ledger.clone(), cluster }
    }

    /// The largest header list that a connection of this lane accepts. Larger ones end the connection: those of a tenant's cluster
    /// and of one user may end, which is their own loss; those that users share must not.
    // threat: shared-connection-answers, buffered-bytes-flood
    pub(super) fn max_header_list(&self, lane: LaneKind) -> u32 {
        match lane {
            _ if self.cluster.is_of_tenant() => MAX_TENANT_HEADER_LIST_SIZE,
            LaneKind::Relayed => MAX_BACKEND_HEADER_LIST_SIZE,
            _ => MAX_RELAYED_HEADER_LIST_SIZE,
        }
    }

    /// The overhead of short frames that nothing has read; `None` for that of HTTP/2 itself.
    pub(super) fn max_short_frames(&self) -> Option<usize> {
        self.cluster.is_of_tenant().then_some(MAX_SHORT_FRAMES)
    }

    /// Whether the end of a connection of this lane is the loss of one user, or of those whose API server itself ends it.
    pub(super) fn may_end(&self, lane: LaneKind, user: Option<&str>) -> bool {
        let is_of_api_server = matches!(lane, LaneKind::Short | LaneKind::Watch);
        user.is_some() || (self.cluster.is_of_tenant() && is_of_api_server)
    }

    /// Counts what a connection holds for the user who alone uses it, or for the cluster.
    pub(super) fn register(&self, user: Option<&str>, connection: &Arc<ConnectionBuffers>) {
        let user = user.unwrap_or_default();
        let flow = service_account::namespace_prefix(user).unwrap_or(user);
        connection.register(&self.ledger, self.cluster.of_flow(flow));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_response_headers_are_accepted_only_where_users_share_a_connection() {
        let (of_user, large) = (MAX_BACKEND_HEADER_LIST_SIZE, MAX_RELAYED_HEADER_LIST_SIZE);
        let of_tenant = MAX_TENANT_HEADER_LIST_SIZE;
        let ledger = ByteLedger::new(0);
        for (cluster, shared, of_user) in
            [(ClusterOwner::operator("a"), large, of_user), (ClusterOwner::tenant("a"), of_tenant, of_tenant)]
        {
            let buffers = ClusterBuffers::new(&ledger, cluster);
            for lane in LaneKind::ALL {
                let expected = if lane == LaneKind::Relayed { of_user } else { shared };
                assert_eq!(buffers.max_header_list(lane), expected, "{lane:?}");
            }
        }
        // Go relays 10 MiB, and h2 ends a connection beyond four times the limit, or with a quarter more frames than it needs.
        let relayed = 10_usize << 20;
        assert!(relayed / 4 * 33 <= 4 * usize::try_from(large).unwrap());
        assert!(relayed <= usize::try_from(large).unwrap() / 4 * 5);
    }
}
