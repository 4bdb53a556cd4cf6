//! The audit of a cluster: its policy, and where its events are stored.
//!
//! `crates/audit` decides how much of a request is recorded, encodes events and stores them; `pipeline::audit` makes them.

pub(crate) mod settings;
mod sinks;

use std::net::IpAddr;
use std::sync::Arc;

use portcullis_audit::policy::{Attributes, Policy, Resource, User};
use portcullis_audit::sink::{self, EventOwner, Post, SinkError, SinkRegistry, Sinks, WallClock};
use portcullis_http::identity::Identity;
use portcullis_http::peer::client_network;
use portcullis_limits::budget::{Budget, BudgetShares};
use portcullis_limits::{ClusterOwner, Owner};
use portcullis_system::clock::Clock;
use rustls::crypto::CryptoProvider;
use tokio::runtime::Handle;

use crate::limits::flow_of;
use crate::metrics::Metrics;
use crate::request::info::RequestInfo;
use settings::{AuditSettings, WebhookSettings};
use sinks::AuditWebhook;

/// The memory of all objects that are held for events of requests in progress.
const OBJECT_BYTES: usize = 128 << 20;
/// The same for one owner, and for all networks of unauthenticated clients together.
const OWNER_OBJECT_BYTES: usize = OBJECT_BYTES / 4;
/// The same for all clusters of Secrets together.
const TENANT_OBJECT_BYTES: usize = OBJECT_BYTES / 2;

/// The audit of a cluster, of one generation of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct ClusterAudit {
    /// Which requests are recorded, and how much of them.
    pub(crate) policy: Policy,
    /// Where events are stored.
    pub(crate) sinks: Sinks,
    /// The bytes of the objects of requests in progress.
    pub(crate) memory: Budget,
    /// The cluster, whose owner has a share of the backends.
    pub(crate) cluster: ClusterOwner,
    /// Whether there are other clusters: then events name theirs.
    pub(crate) is_one_of_several: bool,
    /// The clock of events.
    pub(crate) clock: Clock,
}

/// In whose share the events of a client count. Those of unauthenticated ones count in that of their network, also at a
/// tenant's cluster: they displace no event of its users.
// threat: tenant-audit-flood
pub(crate) fn event_owner(cluster: &ClusterOwner, client: Option<&Identity>, address: IpAddr) -> EventOwner {
    let owner = match client.filter(|client| !client.is_unauthenticated()) {
        Some(client) => cluster.of_flow(flow_of(client, address)),
        None => Owner::Network(client_network(address)),
    };
    EventOwner::new(owner, Arc::clone(cluster.cluster()))
}

/// A request as the rules of a policy see it. `client` is never the impersonated user.
pub(crate) fn attributes<'a>(client: Option<&'a Identity>, info: &'a RequestInfo) -> Attributes<'a> {
    Attributes {
        user: client.map(|user| User { name: &user.name, groups: &user.groups }),
        verb: info.verb(),
        resource: info.resource().map(|resource| Resource {
            api_group: resource.group,
            resource: resource.resource,
            subresource: resource.subresource,
            namespace: resource.namespace,
            name: info.object_name(),
        }),
        path: info.path(),
    }
}

/// The audit of a process: its backends, across reloads.
#[derive(Debug)]
pub(crate) struct Audit {
    sinks: SinkRegistry,
    memory: Budget,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// The backends of a new generation of the configuration. They change nothing before [`Self::commit`].
#[derive(Debug)]
pub(crate) struct AuditGeneration {
    sinks: sink::Generation,
    memory: Budget,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// Why a cluster cannot be audited.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A backend cannot be opened.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The gateway's certificate and key for the webhook do not fit together.
    #[error("the credential for the audit webhook cannot be used: {0}")]
    Credential(#[from] rustls::Error),
}

impl Audit {
    /// No backend yet. Webhooks are called on `runtime`.
    pub(crate) fn new(metrics: &Arc<Metrics>, clock: &Clock, runtime: Handle) -> Self {
        let (clock, of_sinks) = (clock.clone(), clock.clone());
        let of_sinks = WallClock::new(move || of_sinks.now());
        let observer = Arc::new(metrics.audit.clone());
        let sinks = SinkRegistry::new(observer, of_sinks, runtime);
        Self { sinks, memory: Budget::new(OBJECT_SHARES), metrics: Arc::clone(metrics), clock }
    }

    /// The backends of a new generation.
    pub(crate) fn generation(&self) -> AuditGeneration {
        let (memory, metrics) = (self.memory.clone(), Arc::clone(&self.metrics));
        AuditGeneration { sinks: self.sinks.generation(), memory, metrics, clock: self.clock.clone() }
    }

    /// Waits until all events are stored, or given up.
    pub(crate) async fn flush(&self) {
        self.sinks.flush().await;
    }

    /// The events that are not stored yet.
    pub(crate) fn pending(&self) -> usize {
        self.sinks.pending()
    }
}

impl AuditGeneration {
    /// The audit of a cluster.
    pub(crate) fn open(
        &mut self,
        settings: &AuditSettings,
        (cluster, is_one_of_several): (ClusterOwner, bool),
        provider: &Arc<CryptoProvider>,
    ) -> Result<ClusterAudit, AuditError> {
        let webhook = match &settings.webhook {
            Some(WebhookSettings { options, url, tls, bearer_token }) => {
                let webhook = AuditWebhook::new(url, tls, bearer_token.clone(), provider, &self.metrics)?;
                let post: Arc<dyn Post> = Arc::new(webhook);
                Some((options, post))
            }
            None => None,
        };
        Ok(ClusterAudit {
            policy: settings.policy.clone(),
            sinks: self.sinks.open(settings.log.as_ref(), webhook)?,
            memory: self.memory.clone(),
            cluster,
            is_one_of_several,
            clock: self.clock.clone(),
        })
    }

    /// Whether the next cluster keeps an earlier configuration: it then uses the options that others give its backends.
    pub(crate) fn adopt(&mut self, adopts: bool) {
        self.sinks.adopt(adopts);
    }

    /// The generation is in force: so are the options of its backends, and the parts of so many tenants.
    pub(crate) fn commit(self, tenants: usize) {
        self.memory.divide_among(tenants);
        self.sinks.commit();
    }
}

/// The memory of objects that wait for the end of their requests, in all of the process. One owner has a part of it, so that
/// it can take the objects out of its own events alone; clusters of Secrets together have a half, and unauthenticated clients
/// a quarter.
// threat: audit-memory
const OBJECT_SHARES: BudgetShares = BudgetShares::new(OBJECT_BYTES)
    .with_flows(OWNER_OBJECT_BYTES)
    .with_tenants(OWNER_OBJECT_BYTES, TENANT_OBJECT_BYTES)
    .with_networks(OWNER_OBJECT_BYTES, OWNER_OBJECT_BYTES);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portcullis_kubernetes::user::UserInfo;

    use super::*;
    use crate::limits::testing::assert_the_last_of_nine_tenants_has;

    #[test]
    fn many_tenants_and_networks_leave_memory_to_the_operators_users() {
        let memory = Budget::new(OBJECT_SHARES);
        let tenant = |number: usize| Owner::Tenant(number.to_string().into());
        let network = |number: usize| Owner::Network(IpAddr::from([10, 0, 0, u8::try_from(number).unwrap()]));
        let fill = |owner: &dyn Fn(usize) -> Owner| {
            let mut all: Vec<_> = (0..64).map(|number| memory.reserve(owner(number))).collect();
            let bytes: Vec<bool> = all.iter_mut().map(|one| one.grow(OWNER_OBJECT_BYTES / 4)).collect();
            let bytes = bytes.into_iter().filter(|grows| *grows).count();
            (all, bytes * OWNER_OBJECT_BYTES / 4)
        };
        let (tenants, of_tenants) = fill(&tenant);
        let (networks, of_networks) = fill(&network);
        assert_eq!((of_tenants, of_networks), (TENANT_OBJECT_BYTES, OWNER_OBJECT_BYTES));
        assert!(memory.reserve(Owner::flow("prod", "alice")).grow(OWNER_OBJECT_BYTES));
        drop((tenants, networks));
        assert_eq!(memory.usage().total(), 0);
    }

    #[tokio::test]
    async fn however_many_tenants_fill_it_one_more_has_its_part() {
        let audit =
            Audit::new(&Arc::new(Metrics::new()), &Clock::from_fn(|| Duration::ZERO), Handle::current());
        audit.generation().commit(9);
        assert_the_last_of_nine_tenants_has(TENANT_OBJECT_BYTES / 2 / 9, &audit.memory);
    }

    #[test]
    fn events_count_for_the_user_the_tenant_or_the_network() {
        let (own, tenant) = (ClusterOwner::operator("own"), ClusterOwner::tenant("t"));
        let (alice, anonymous) =
            (Identity::from(UserInfo::named("alice")), Identity::from(UserInfo::anonymous()));
        let address = IpAddr::from([10, 0, 0, 1]);
        let of_network = Owner::Network(address);
        let cases = [
            (&own, Some(&alice), Owner::flow("own", "alice")),
            (&own, Some(&anonymous), of_network.clone()),
            (&own, None, of_network.clone()),
            (&tenant, Some(&alice), Owner::Tenant("t".into())),
            (&tenant, Some(&anonymous), of_network.clone()),
            (&tenant, None, of_network),
        ];
        for (cluster, client, expected) in cases {
            assert_eq!(*event_owner(cluster, client, address).owner(), expected);
        }
    }
}
