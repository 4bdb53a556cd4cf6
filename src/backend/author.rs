//! Who has made a request to a backend: which header names were removed from it, and in whose share its connections and its
//! places at endpoints count.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use portcullis_http::identity::Identity;
use portcullis_http::identity_headers::RequestHeaderNames;
use portcullis_limits::{ClusterOwner, Owner};

use crate::backend::Backend;
use crate::limits::{FlowName, flow_of};

/// Who has made a request.
#[derive(Debug, Clone)]
pub(crate) enum RequestAuthor {
    /// The gateway itself. No flood of clients may keep such a request away.
    Gateway,
    /// A client.
    Client(ClientAuthor),
}

/// A client that has made a request.
#[derive(Debug, Clone)]
pub(crate) struct ClientAuthor {
    /// These names of identity headers were removed, beside those that no client may ever send.
    pub(crate) removed: Option<Arc<RequestHeaderNames>>,
    /// The client itself, not a user that it impersonates.
    pub(crate) requester: Identity,
    /// Its address.
    pub(crate) address: IpAddr,
}

impl RequestAuthor {
    pub(crate) fn is_gateway(&self) -> bool {
        matches!(self, Self::Gateway)
    }

    /// The flow of the request; `None` for one of the gateway.
    fn flow(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Gateway => None,
            Self::Client(client) => Some(flow_of(&client.requester, client.address)),
        }
    }

    /// The name of the flow of the request; empty for one of the gateway.
    pub(super) fn flow_name(&self) -> FlowName {
        self.flow().unwrap_or_default().into()
    }

    /// In whose share of the process the request counts, at a cluster.
    pub(super) fn owner(&self, cluster: &ClusterOwner) -> Owner {
        self.flow().map_or_else(|| cluster.of_gateway(), |flow| cluster.of_flow(flow))
    }

    /// Whether the header names no user by a name that the API servers have published since it was prepared: while a request
    /// waits for its body or a connection, the first self-check may end.
    // threat: unlearnt-identity-headers
    pub(super) fn is_current(&self, backend: &Backend) -> bool {
        let Self::Client(ClientAuthor { removed, .. }) = self else { return true };
        let known = backend.identity_headers.load();
        match (removed, known.as_ref()) {
            (_, None) => true,
            (Some(removed), Some(known)) => Arc::ptr_eq(removed, known),
            (None, Some(_)) => false,
        }
    }
}
