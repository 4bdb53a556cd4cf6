//! For how long a tenant's cluster is served. Its watches and tunnels end with it: a Secret is deleted to keep its users out,
//! and a watch would go on for as long as its client likes.

use portcullis_http::body::BodyEnd;
use tokio_util::sync::CancellationToken;

/// The time for which one owner's cluster is served, over all generations of the configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterLife(CancellationToken);

impl ClusterLife {
    /// Ends it.
    pub(super) fn end(&self) {
        self.0.cancel();
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Completes when it ends.
    pub(super) fn ended(&self) -> BodyEnd {
        Box::pin(self.0.clone().cancelled_owned())
    }
}
