//! The endpoints of a backend: those of the configuration, and those found by DNS or in the cluster itself. The list
//! changes while requests are sent; an endpoint that stays keeps its connections, its health and its load.
//!
//! A new endpoint is not trusted: it must pass TLS, its self-check and the comparison of clusters like any other. Until
//! one of the new endpoints has, the trusted ones of the list before stay, so that no answer of a DNS server and no
//! empty `EndpointSlice` can end the service.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};
use portcullis_system::sync::lock;

use super::endpoint::{Endpoint, EndpointTls};
use super::settings::{self, EndpointDiscovery};

/// The most endpoints that discovery adds to a cluster. A cluster has a handful of API servers; each costs connections
/// and self-checks.
pub(crate) const MAX_DISCOVERED: usize = 64;

/// The endpoints of one backend.
pub(super) struct EndpointList {
    current: ArcSwap<Vec<Arc<Endpoint>>>,
    /// Grows with each change of `current`.
    version: AtomicU64,
    configured: Vec<settings::Endpoint>,
    discovery: EndpointDiscovery,
    tls: EndpointTls,
    found: Mutex<FoundEndpoints>,
}

/// The outcome of discovery.
#[derive(Debug, Default)]
struct FoundEndpoints {
    /// What was found last; empty: nothing yet.
    endpoints: Vec<settings::Endpoint>,
    /// Why the last attempt failed, if so.
    error: Option<String>,
}

impl EndpointList {
    pub(super) fn new(settings: &settings::Backend, tls: EndpointTls) -> Self {
        let endpoints = settings.endpoints.iter().map(|endpoint| Arc::new(Endpoint::new(endpoint, &tls)));
        Self {
            current: ArcSwap::from_pointee(endpoints.collect()),
            configured: settings.endpoints.clone(),
            version: AtomicU64::new(1),
            discovery: settings.balancing.discovery,
            tls,
            found: Mutex::default(),
        }
    }

    /// The list, for a short read.
    pub(super) fn peek(&self) -> Guard<Arc<Vec<Arc<Endpoint>>>> {
        self.current.load()
    }

    /// The list, for use across await points.
    pub(super) fn load(&self) -> Arc<Vec<Arc<Endpoint>>> {
        self.current.load_full()
    }

    /// The version of the list. To be read before the list, so that the next version is not missed.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Why discovery failed last, if so. The endpoints found before stay.
    pub(super) fn error(&self) -> Option<String> {
        lock(&self.found).error.clone()
    }

    /// Records the outcome of an attempt to find endpoints; nothing found is an error of the caller's. Returns the number of
    /// endpoints beyond [`MAX_DISCOVERED`], which are left out.
    // threat: discovery-flood
    pub(super) fn record(&self, outcome: Result<Vec<settings::Endpoint>, String>) -> usize {
        let mut found = lock(&self.found);
        let mut endpoints = match outcome {
            Ok(endpoints) => endpoints,
            Err(error) => {
                found.error = Some(error);
                return 0;
            }
        };
        found.error = None;
        let excess = endpoints.len().saturating_sub(MAX_DISCOVERED);
        if excess > 0 {
            // Those in use first: DNS servers rotate their answers.
            let current = self.current.load();
            let is_new = |one: &settings::Endpoint| !current.iter().any(|known| known.is_at(one));
            endpoints.sort_by_cached_key(|one| (is_new(one), one.address.to_string()));
            endpoints.truncate(MAX_DISCOVERED);
        }
        found.endpoints = endpoints;
        excess
    }

    /// Puts the endpoints that were found in force. Returns whether the list has changed. To be called again from time to
    /// time, because what stays depends on which endpoints are trusted.
    pub(super) fn settle(&self) -> bool {
        let found = lock(&self.found);
        if found.endpoints.is_empty() {
            return false;
        }
        let before = self.current.load();
        let mut next: Vec<Arc<Endpoint>> = Vec::with_capacity(found.endpoints.len());
        for wanted in &found.endpoints {
            self.add(&mut next, wanted, &before);
        }
        if !next.iter().any(|endpoint| endpoint.is_trusted()) {
            if self.discovery == EndpointDiscovery::Kubernetes {
                self.configured.iter().for_each(|wanted| self.add(&mut next, wanted, &before));
            }
            let stays =
                |one: &&Arc<Endpoint>| one.is_trusted() && !next.iter().any(|new| Arc::ptr_eq(new, one));
            let stay: Vec<_> = before.iter().filter(stays).map(Arc::clone).collect();
            next.extend(stay);
        }
        let is_same =
            next.len() == before.len() && next.iter().zip(before.iter()).all(|(a, b)| Arc::ptr_eq(a, b));
        if !is_same {
            self.current.store(Arc::new(next));
            self.version.fetch_add(1, Ordering::Release);
        }
        !is_same
    }

    /// Adds the endpoint at an address: that of the list before, if there is one.
    fn add(&self, next: &mut Vec<Arc<Endpoint>>, wanted: &settings::Endpoint, before: &[Arc<Endpoint>]) {
        if next.iter().any(|added| added.is_at(wanted)) {
            return;
        }
        let known = before.iter().find(|known| known.is_at(wanted)).map(Arc::clone);
        next.push(known.unwrap_or_else(|| Arc::new(Endpoint::new(wanted, &self.tls))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::settings::HostPort;
    use crate::backend::testing;

    fn endpoint(host: &str) -> settings::Endpoint {
        settings::Endpoint {
            address: HostPort { host: host.to_owned(), port: 6443 },
            server_name: "api.test".try_into().unwrap(),
        }
    }

    fn found(hosts: &[&str]) -> Vec<settings::Endpoint> {
        hosts.iter().map(|host| endpoint(host)).collect()
    }

    fn list(discovery: EndpointDiscovery) -> EndpointList {
        let mut settings = testing::settings();
        settings.endpoints = vec![endpoint("api.test")];
        settings.balancing.discovery = discovery;
        EndpointList::new(&settings, testing::tls(&settings))
    }

    fn hosts(list: &EndpointList) -> Vec<String> {
        list.load().iter().map(|endpoint| endpoint.address().host.clone()).collect()
    }

    fn trust(list: &EndpointList, host: &str) {
        let endpoints = list.load();
        let endpoint = endpoints.iter().find(|endpoint| endpoint.address().host == host).unwrap();
        assert!(endpoint.set_trusted(endpoint.trust_version()));
    }

    #[test]
    fn endpoints_that_stay_keep_their_state_and_others_go_once_a_new_one_is_trusted() {
        let list = list(EndpointDiscovery::Dns);
        assert!(!list.settle(), "nothing was found yet");
        trust(&list, "api.test");
        list.record(Ok(found(&["10.0.0.1", "10.0.0.2"])));
        assert!(list.settle());
        assert_eq!(hosts(&list), ["10.0.0.1", "10.0.0.2", "api.test"], "the only trusted one stays");
        assert!(!list.settle());
        trust(&list, "10.0.0.1");
        assert!(list.settle());
        assert_eq!(hosts(&list), ["10.0.0.1", "10.0.0.2"]);
        let first = Arc::clone(&list.load()[0]);
        list.record(Ok(found(&["10.0.0.3", "10.0.0.1"])));
        assert!(list.settle());
        assert!(Arc::ptr_eq(&first, &list.load()[1]));
        // An address that was removed and returns is a new endpoint, and not trusted.
        list.record(Ok(found(&["10.0.0.3"])));
        list.settle();
        trust(&list, "10.0.0.3");
        list.settle();
        assert_eq!(hosts(&list), ["10.0.0.3"]);
        list.record(Ok(found(&["10.0.0.1"])));
        list.settle();
        assert!(!list.load()[0].is_trusted());
    }

    #[test]
    fn failures_keep_the_endpoints() {
        let list = list(EndpointDiscovery::Dns);
        list.record(Err("no answer".to_owned()));
        assert!(!list.settle());
        assert_eq!(hosts(&list), ["api.test"]);
        assert_eq!(list.error().as_deref(), Some("no answer"));
        list.record(Ok(found(&["10.0.0.1"])));
        list.settle();
        assert_eq!(list.error(), None);
        list.record(Err("no answer".to_owned()));
        assert!(!list.settle());
        assert_eq!(hosts(&list), ["10.0.0.1"]);
    }

    // threat: discovery-flood
    #[test]
    fn endpoints_are_bounded_and_those_in_use_stay() {
        let list = list(EndpointDiscovery::Dns);
        let all: Vec<String> =
            (0..1000).map(|number| format!("10.1.{}.{}", number / 256, number % 256)).collect();
        let mut rotated: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(list.record(Ok(found(&rotated))), 1000 - MAX_DISCOVERED);
        list.settle();
        let before = hosts(&list);
        assert_eq!(before.len(), MAX_DISCOVERED);
        rotated.rotate_left(500);
        list.record(Ok(found(&rotated)));
        assert!(!list.settle(), "another order of the same addresses changes nothing");
        assert_eq!(hosts(&list), before);
    }

    #[test]
    fn configured_endpoints_return_when_no_found_one_is_trusted() {
        let list = list(EndpointDiscovery::Kubernetes);
        list.record(Ok(found(&["10.0.0.1", "10.0.0.2"])));
        list.settle();
        assert_eq!(hosts(&list), ["10.0.0.1", "10.0.0.2", "api.test"]);
        trust(&list, "10.0.0.2");
        list.settle();
        assert_eq!(hosts(&list), ["10.0.0.1", "10.0.0.2"]);
        list.load()[1].distrust();
        assert!(list.settle());
        assert_eq!(hosts(&list), ["10.0.0.1", "10.0.0.2", "api.test"]);
        assert!(!list.load()[2].is_trusted(), "after a new self-check");
    }
}
