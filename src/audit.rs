//! The audit of a cluster: its policy, and where its events are stored.
//!
//! `crates/audit` decides how much of a request is recorded, encodes events and stores them; `pipeline::audit` makes them.

pub(crate) mod settings;
mod sinks;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use portcullis_audit::policy::{Attributes, Policy, Resource, User};
use portcullis_audit::sink::{self, Post, SinkError, SinkRegistry, Sinks, WallClock};
use portcullis_http::identity::Identity;
use portcullis_system::clock::Clock;
use portcullis_system::sync::lock;
use rustls::crypto::CryptoProvider;
use tokio::runtime::Handle;

use crate::metrics::Metrics;
use crate::request::info::RequestInfo;
use settings::{AuditSettings, WebhookSettings};
use sinks::AuditWebhook;

/// The memory of all objects that are held for events of requests in progress.
const OBJECT_BYTES: usize = 128 << 20;
/// The same for one client.
const CLIENT_OBJECT_BYTES: usize = OBJECT_BYTES / 4;

/// The audit of a cluster, of one generation of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct ClusterAudit {
    /// Which requests are recorded, and how much of them.
    pub(crate) policy: Policy,
    /// Where events are stored.
    pub(crate) sinks: Sinks,
    /// Bounds the objects of requests in progress.
    pub(crate) memory: Arc<ObjectMemory>,
    /// The name of the cluster, if there are others.
    pub(crate) cluster: Option<Arc<str>>,
    /// The clock of events.
    pub(crate) clock: Clock,
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
    memory: Arc<ObjectMemory>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// The backends of a new generation of the configuration. They change nothing before [`Self::commit`].
#[derive(Debug)]
pub(crate) struct AuditGeneration {
    sinks: sink::Generation,
    memory: Arc<ObjectMemory>,
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
        Self { sinks, memory: Arc::default(), metrics: Arc::clone(metrics), clock }
    }

    /// The backends of a new generation.
    pub(crate) fn generation(&self) -> AuditGeneration {
        let (memory, metrics) = (Arc::clone(&self.memory), Arc::clone(&self.metrics));
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
    /// The audit of a cluster; `name` is in its events.
    pub(crate) fn open(
        &mut self,
        settings: &AuditSettings,
        name: Option<Arc<str>>,
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
            memory: Arc::clone(&self.memory),
            cluster: name,
            clock: self.clock.clone(),
        })
    }

    /// Whether the next cluster keeps an earlier configuration: it then uses the options that others give its backends.
    pub(crate) fn adopt(&mut self, adopts: bool) {
        self.sinks.adopt(adopts);
    }

    /// The generation is in force: so are the options of its backends.
    pub(crate) fn commit(self) {
        self.sinks.commit();
    }
}

/// The memory of objects that wait for the end of their requests, in all of the process. One client has a part of it, so that
/// it can take the objects out of its own events alone.
// threat: audit-memory
#[derive(Debug, Default)]
pub(crate) struct ObjectMemory {
    used: Mutex<UsedMemory>,
}

#[derive(Debug, Default)]
struct UsedMemory {
    bytes: usize,
    /// The same by client; without clients that use none.
    clients: HashMap<Arc<str>, usize>,
}

/// A part of [`ObjectMemory`], until it is dropped.
#[derive(Debug)]
pub(crate) struct ReservedMemory {
    memory: Arc<ObjectMemory>,
    client: Arc<str>,
    bytes: usize,
}

impl ObjectMemory {
    /// An empty reservation of a client.
    pub(crate) fn reserve(self: &Arc<Self>, client: &Arc<str>) -> ReservedMemory {
        ReservedMemory { memory: Arc::clone(self), client: Arc::clone(client), bytes: 0 }
    }
}

impl ReservedMemory {
    /// Adds `bytes`; `false` if there is no room for them.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let mut used = lock(&self.memory.used);
        let of_client = used.clients.get(&self.client).copied().unwrap_or_default();
        let fits = |used: usize, limit: usize| used.checked_add(bytes).is_some_and(|used| used <= limit);
        if bytes == 0 || !fits(used.bytes, OBJECT_BYTES) || !fits(of_client, CLIENT_OBJECT_BYTES) {
            return bytes == 0;
        }
        used.bytes += bytes;
        used.clients.insert(Arc::clone(&self.client), of_client + bytes);
        self.bytes += bytes;
        true
    }

    /// Keeps room for `bytes` alone; `false` if there is none.
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let Some(surplus) = self.bytes.checked_sub(bytes) else { return self.grow(bytes - self.bytes) };
        self.shrink(surplus);
        true
    }

    /// Gives the bytes back.
    pub(crate) fn release(&mut self) {
        self.shrink(self.bytes);
    }

    fn shrink(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.bytes -= bytes;
        let mut used = lock(&self.memory.used);
        used.bytes -= bytes;
        if let Some(of_client) = used.clients.get_mut(&self.client) {
            *of_client -= bytes;
            if *of_client == 0 {
                used.clients.remove(&self.client);
            }
        }
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_bounded_for_each_client_and_given_back() {
        let memory = Arc::new(ObjectMemory::default());
        let client = |name: &str| memory.reserve(&name.into());
        let (mut one, mut again) = (client("one"), client("one"));
        assert!(one.grow(CLIENT_OBJECT_BYTES - 1) && again.grow(1) && !again.grow(1));
        let mut others: Vec<_> = (0..3).map(|number| client(&number.to_string())).collect();
        assert!(others.iter_mut().all(|other| other.grow(CLIENT_OBJECT_BYTES)), "others have their own part");
        assert!(!client("more").grow(1), "all of it is used");
        one.release();
        assert!(client("more").grow(1));
        assert!(again.resize(5) && again.resize(2) && !again.resize(CLIENT_OBJECT_BYTES + 1));
        assert_eq!(lock(&memory.used).clients.get("one"), Some(&2));
        drop((one, again, others));
        let used = lock(&memory.used);
        assert_eq!((used.bytes, used.clients.len()), (0, 0));
    }
}
