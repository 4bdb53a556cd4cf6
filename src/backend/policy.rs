//! What the operator permits a cluster's backend, which applies at once: to which addresses the gateway connects, and how many
//! requests an endpoint gets. Nothing of it waits for the success of a new credential or address, which may be pending.
//!
//! All generations of a cluster share one [`PolicyInForce`], so that a stricter policy also closes the connections of
//! settings that were replaced long ago.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use portcullis_system::sync::lock;
use tokio_util::sync::CancellationToken;

use super::settings::BackendPolicy;

/// The policy of a cluster's backend, and the connections that it may close.
#[derive(Debug)]
pub(crate) struct PolicyInForce {
    current: ArcSwap<BackendPolicy>,
    connections: Mutex<OpenConnections>,
}

/// The open connections of a cluster, by the order in which they began.
#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    open: HashMap<u64, (IpAddr, CancellationToken)>,
}

/// A connection to an address that the policy permits, which closes once it no longer does.
#[derive(Debug, Clone)]
pub(crate) struct PermittedConnection(Arc<Registration>);

#[derive(Debug)]
struct Registration {
    policy: Arc<PolicyInForce>,
    id: u64,
    closed: CancellationToken,
}

impl PolicyInForce {
    pub(crate) fn new(policy: BackendPolicy) -> Arc<Self> {
        Arc::new(Self { current: ArcSwap::from_pointee(policy), connections: Mutex::default() })
    }

    /// The policy as of now.
    pub(crate) fn load(&self) -> BackendPolicy {
        **self.current.load()
    }

    /// The kind of an address that is refused.
    pub(crate) fn refused_kind(&self, address: IpAddr) -> Option<&'static str> {
        self.current.load().addresses.refused_kind(address)
    }

    /// Puts a policy in force, and closes the connections to addresses that it does not permit.
    // threat: withdrawn-permission
    pub(crate) fn replace(&self, policy: BackendPolicy) {
        if self.load() == policy {
            return;
        }
        self.current.store(Arc::new(policy));
        let connections = lock(&self.connections);
        for (address, closed) in connections.open.values() {
            if policy.addresses.refused_kind(*address).is_some() {
                closed.cancel();
            }
        }
    }

    /// Registers a new connection; `None` if its address is not permitted.
    pub(crate) fn register(self: &Arc<Self>, address: IpAddr) -> Option<PermittedConnection> {
        let closed = CancellationToken::new();
        let id = {
            let mut connections = lock(&self.connections);
            let id = connections.next;
            connections.next += 1;
            connections.open.insert(id, (address, closed.clone()));
            id
        };
        let registered = PermittedConnection(Arc::new(Registration { policy: Arc::clone(self), id, closed }));
        // Afterwards: a policy that comes into force meanwhile closes it.
        self.refused_kind(address).is_none().then_some(registered)
    }
}

impl PermittedConnection {
    /// Drives the connection; `None` if it was closed because its address is no longer permitted.
    pub(crate) async fn drive<F: Future>(&self, driver: F) -> Option<F::Output> {
        self.0.closed.run_until_cancelled(driver).await
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&self.policy.connections).open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt as _;
    use portcullis_http::identity_headers::RequestHeaderNames;
    use rustls::crypto::aws_lc_rs::default_provider;

    use super::*;
    use crate::backend::balance::Load;
    use crate::backend::settings::{self, AddressPolicy};
    use crate::backend::{Backend, testing};
    use crate::metrics::BackendTimings;

    const LOCAL: [u8; 4] = [127, 0, 0, 1];
    const OTHER: [u8; 4] = [192, 0, 2, 1];

    fn policy(addresses: AddressPolicy) -> BackendPolicy {
        BackendPolicy { addresses, ..BackendPolicy::default() }
    }

    #[tokio::test]
    async fn a_stricter_policy_closes_the_connections_that_it_does_not_permit() {
        let in_force = PolicyInForce::new(policy(AddressPolicy::Any));
        let local = in_force.register(LOCAL.into()).unwrap();
        let other = in_force.register(OTHER.into()).unwrap();
        let tunnel = local.clone();
        let drivers = || [&local, &tunnel, &other].map(|one| one.drive(pending::<()>()).now_or_never());
        assert_eq!(drivers(), [None, None, None], "all are open");
        in_force.replace(policy(AddressPolicy::NoLocal));
        assert_eq!(drivers(), [Some(None), Some(None), None]);
        assert!(in_force.register(LOCAL.into()).is_none() && in_force.register(OTHER.into()).is_some());
        // What was closed stays closed.
        in_force.replace(policy(AddressPolicy::Any));
        assert_eq!(drivers(), [Some(None), Some(None), None]);
        assert!(in_force.register(LOCAL.into()).is_some());
        assert_eq!(other.drive(async { 7 }).await, Some(7), "it ends by itself");
    }

    #[test]
    fn what_needs_no_success_applies_at_once_and_to_pending_backends_too() {
        let before = testing::settings();
        let in_force = testing::with_settings(&before);
        let names = |user: &str| RequestHeaderNames::new(&[user.to_owned()], &[], &[], &[]).unwrap();
        let mut next = before.clone();
        next.identity_headers = Some(names("X-Corp-User"));
        next.policy = BackendPolicy { max_requests: 3, max_watches: 2, watch_moves: None, ..next.policy };
        let (provider, policy) = (Arc::new(default_provider()), Arc::clone(in_force.policy()));
        let pending =
            Backend::with_policy(&next, &provider, BackendTimings::default(), testing::dials(), policy);
        let pending = pending.unwrap();
        let bounds = |backend: &Backend| [Load::Short, Load::Long].map(|load| backend.max_load(load));
        assert_eq!(bounds(&pending), [usize::MAX; 2], "it is only built");
        in_force.enforce(&next);
        assert_eq!((bounds(&in_force), bounds(&pending)), ([3, 2], [3, 2]));
        let known = in_force.identity_headers.load_full().unwrap();
        assert_eq!(*known, names("X-Corp-User"));
        // A backend whose policy alone changes is kept, with its connections.
        next.identity_headers = None;
        assert!(in_force.is_for(&next) && !in_force.is_for(&pending_settings(&next)));
    }

    fn pending_settings(settings: &settings::Backend) -> settings::Backend {
        settings::Backend { path_prefix: "/other".to_owned(), ..settings.clone() }
    }

    #[test]
    fn connections_that_have_ended_are_forgotten() {
        let in_force = PolicyInForce::new(BackendPolicy::default());
        let one = in_force.register(LOCAL.into()).unwrap();
        let two = in_force.register(LOCAL.into()).unwrap();
        let shared = one.clone();
        drop((one, two));
        assert_eq!(lock(&in_force.connections).open.len(), 1);
        drop(shared);
        assert!(lock(&in_force.connections).open.is_empty());
    }
}
