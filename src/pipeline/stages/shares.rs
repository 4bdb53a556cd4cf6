//! In whose share of what the process has once a request counts: its connection, what it holds in buffers, and its place among
//! the requests in flight; and who is served beyond the limits.

use std::borrow::Cow;
use std::net::IpAddr;

use portcullis_http::peer::client_network;
use portcullis_kubernetes::user::{GATEWAY, MASTERS};
use portcullis_limits::Owner;
use portcullis_limits::budget::BudgetPermit;

use super::{Authorized, Identified, Impersonated, Scheduled};
use crate::limits::{LimitedRequest, ProcessPriority, RequestClass, flow_of};
use crate::listener::{Connection, TooManyConnections};
use crate::pipeline::error_map::Refusal;
use crate::traces::SpanScope;

impl Identified {
    /// Counts the connection for the cluster at which its client is authenticated.
    pub(in crate::pipeline) fn count_connection(
        &self,
        connection: &Connection,
    ) -> Result<(), TooManyConnections> {
        if self.identity.is_unauthenticated() {
            return Ok(());
        }
        let cluster = &self.data.route.cluster;
        connection.note_authenticated(cluster.settings.origin.is_of_tenant(), || {
            cluster.owner.of_flow(self.flow_of_connection(connection))
        })
    }

    /// Counts the request at a tenant's cluster until its end, and waits until it may begin.
    // threat: tenant-requests
    pub(in crate::pipeline) async fn count_request(
        &self,
        client: IpAddr,
    ) -> Result<Option<BudgetPermit>, Refusal> {
        let cluster = &self.data.route.cluster;
        let class = RequestClass::of(self.data.info().is_mutating());
        let flow = || flow_of(&self.identity, client).into();
        Ok(cluster.limiter.open(&cluster.owner, class, flow, self.data.deadline()).await?)
    }

    /// The flow for which the connection counts. That of a front proxy carries requests of many users, and counts for the front
    /// proxy itself.
    fn flow_of_connection(&self, connection: &Connection) -> Cow<'_, str> {
        let certificate = || connection.info.peer_chain.leaf_common_name();
        match self.data.is_from_front_proxy.then(certificate).flatten() {
            Some(name) => name.into(),
            None => flow_of(&self.identity, connection.info.peer.ip()),
        }
    }

    /// Counts what the exchange holds for its client from now on, and the connection unless it is a front proxy's, which carries
    /// the requests of many users. Returns the owner; `None` if the client is not authenticated.
    // threat: buffered-bytes-flood
    pub(in crate::pipeline) fn count_buffers(&self, connection: &Connection) -> Option<Owner> {
        if self.identity.is_unauthenticated() {
            return None;
        }
        let flow = flow_of(&self.identity, connection.info.peer.ip());
        let owner = self.data.route.cluster.owner.of_flow(flow);
        if let Some(buffers) = self.data.request.body().buffers() {
            buffers.set_owner(|| owner.clone());
        }
        if !self.data.is_from_front_proxy {
            connection.count_buffers_for(&owner);
        }
        Some(owner)
    }
}

impl Authorized {
    /// The owner of what the request holds: that of its buffers.
    pub(in crate::pipeline) fn owner(&self, client: IpAddr) -> Owner {
        if self.requester.is_unauthenticated() {
            return Owner::Network(client_network(client));
        }
        self.cluster().owner.of_flow(&*self.share(client))
    }
}

impl Impersonated {
    /// Waits for a place among the requests in flight of the cluster. It counts for the client itself, not for an
    /// impersonated user.
    // apiserver: pkg/server/filters/maxinflight.go, WithMaxInFlightLimit
    // threat: inflight-flood
    pub(in crate::pipeline) async fn schedule(
        self,
        client: IpAddr,
        spans: Option<&SpanScope>,
    ) -> Result<Scheduled, Refusal> {
        if self.info().is_long_running() {
            return Ok(Scheduled { request: self, permit: None });
        }
        let request = LimitedRequest {
            class: RequestClass::of(self.info().is_mutating()),
            flow: || flow_of(&self.requester, client).into(),
            is_exempt: self.is_exempt_from_limits(),
            priority: self.process_priority(),
            deadline: self.deadline(),
        };
        // apiserver: pkg/server/config.go, DefaultBuildHandlerChain
        let span = spans.and_then(|spans| spans.stage("priorityandfairness", &[]));
        let permit = self.cluster().limiter.acquire(request).await?;
        if permit.is_none()
            && let Some(span) = span
        {
            span.discard();
        }
        Ok(Scheduled { request: self, permit })
    }

    /// Whether the request is served beyond the limits of its cluster: that of an administrator, as in kube-apiserver under
    /// the identity under which it is made, and that of the gateway's own user, which no client can impersonate its way into.
    fn is_exempt_from_limits(&self) -> bool {
        let is_gateway = self.identity.name == GATEWAY && self.impersonated().is_none();
        let is_master = self.identity.groups.iter().any(|group| group == MASTERS);
        !self.is_impersonating() && (is_gateway || is_master)
    }

    /// What the request may have of the limit of the process. The same users have privileges there, and nodes, but only those
    /// that the operator names.
    // threat: tenant-privilege
    pub(in crate::pipeline) fn process_priority(&self) -> ProcessPriority {
        let Some(user) = self.cluster().settings.origin.operator_user(&self.identity) else {
            return ProcessPriority::OfTenant;
        };
        let is_gateway = user.is_gateway() && self.impersonated().is_none();
        match user {
            _ if self.is_impersonating() => ProcessPriority::Ordinary,
            user if is_gateway || user.is_master() => ProcessPriority::Exempt,
            user if user.is_node() => ProcessPriority::Reserved,
            _ => ProcessPriority::Ordinary,
        }
    }
}
