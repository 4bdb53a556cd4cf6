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

use super::contains;
use super::endpoint::{Endpoint, EndpointTls};
use super::settings::{self, EndpointDiscovery, PermittedEndpoints};

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

/// The outcome of discovery, and which endpoints may be used at all.
#[derive(Debug)]
struct FoundEndpoints {
    /// By the settings of the list, or by later ones of its cluster.
    permitted: PermittedEndpoints,
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
            discovery: settings.discovery,
            tls,
            found: Mutex::new(FoundEndpoints {
                permitted: settings.permitted_endpoints(),
                endpoints: Vec::new(),
                error: None,
            }),
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
        let is_permitted = |wanted: &&settings::Endpoint| found.permitted.has(wanted);
        let before = self.current.load();
        let mut next: Vec<Arc<Endpoint>> = Vec::with_capacity(found.endpoints.len());
        for wanted in found.endpoints.iter().filter(is_permitted) {
            self.add(&mut next, wanted, &before);
        }
        if next.is_empty() {
            return false;
        }
        if !next.iter().any(|endpoint| endpoint.is_trusted()) {
            if self.discovery == EndpointDiscovery::Kubernetes {
                let configured = self.configured.iter().filter(is_permitted);
                configured.for_each(|wanted| self.add(&mut next, wanted, &before));
            }
            let stays = |one: &&Arc<Endpoint>| {
                one.is_trusted() && is_permitted(&one.settings()) && !contains(&next, one)
            };
            let stay: Vec<_> = before.iter().filter(stays).map(Arc::clone).collect();
            next.extend(stay);
        }
        self.replace(&before, next)
    }

    /// Removes the endpoints that later settings of the cluster do not permit, and trusts them no longer. Where none would be
    /// left, the address is what has changed: then the endpoints stay until the new one is trusted.
    // threat: withdrawn-permission
    pub(super) fn restrict(&self, permitted: PermittedEndpoints) {
        let mut found = lock(&self.found);
        let before = self.current.load();
        if !before.iter().any(|endpoint| permitted.has(endpoint.settings())) {
            return;
        }
        let mut next = Vec::with_capacity(before.len());
        if found.endpoints.is_empty() {
            // Also those that were removed before, and are permitted again.
            let configured = self.configured.iter().filter(|wanted| permitted.has(wanted));
            configured.for_each(|wanted| self.add(&mut next, wanted, &before));
        } else {
            next.extend(before.iter().filter(|one| permitted.has(one.settings())).map(Arc::clone));
        }
        before.iter().filter(|one| !contains(&next, one)).for_each(|one| one.distrust());
        found.permitted = permitted;
        self.replace(&before, next);
    }

    /// Puts a list in force, if it is another one.
    fn replace(&self, before: &[Arc<Endpoint>], next: Vec<Arc<Endpoint>>) -> bool {
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
    use crate::backend::settings::{EndpointSource, HostPort};
    use crate::backend::testing;

    fn address(host: &str) -> HostPort {
        HostPort { host: host.to_owned(), port: 6443 }
    }

    fn endpoint(host: &str) -> settings::Endpoint {
        let server_name = "api.test".try_into().unwrap();
        settings::Endpoint { address: address(host), server_name, source: EndpointSource::Configuration }
    }

    fn found_by(source: &EndpointSource, hosts: &[&str]) -> Vec<settings::Endpoint> {
        let at = |host: &&str| settings::Endpoint { source: source.clone(), ..endpoint(host) };
        hosts.iter().map(at).collect()
    }

    fn found(hosts: &[&str]) -> Vec<settings::Endpoint> {
        found_by(&EndpointSource::Name(address("api.test")), hosts)
    }

    fn list(discovery: EndpointDiscovery) -> EndpointList {
        let mut settings = testing::settings();
        settings.endpoints = vec![endpoint("api.test")];
        settings.discovery = discovery;
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

    fn permitted(hosts: &[&str], discovery: EndpointDiscovery) -> PermittedEndpoints {
        let mut settings = testing::settings();
        settings.endpoints = hosts.iter().map(|host| endpoint(host)).collect();
        settings.discovery = discovery;
        settings.permitted_endpoints()
    }

    #[test]
    fn removed_endpoints_go_at_once_whether_others_are_trusted_or_not() {
        let mut settings = testing::settings();
        settings.endpoints = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(endpoint).into();
        let list = EndpointList::new(&settings, testing::tls(&settings));
        let all = list.load();
        trust(&list, "10.0.0.1");
        trust(&list, "10.0.0.2");
        let (none, version) = (EndpointDiscovery::None, list.version());
        // The only ones that are trusted.
        list.restrict(permitted(&["10.0.0.3", "10.0.0.9"], none));
        assert_eq!(hosts(&list), ["10.0.0.3"]);
        assert!(!all[0].is_trusted() && !all[1].is_trusted(), "no request that has chosen one goes there");
        assert!(list.version() > version);
        // One that is configured again is a new endpoint.
        list.restrict(permitted(&["10.0.0.3", "10.0.0.1"], none));
        assert_eq!(hosts(&list), ["10.0.0.1", "10.0.0.3"]);
        assert!(!Arc::ptr_eq(&list.load()[0], &all[0]) && Arc::ptr_eq(&list.load()[1], &all[2]));
        // Another address is pending.
        trust(&list, "10.0.0.3");
        list.restrict(permitted(&["10.0.0.7"], none));
        assert_eq!(hosts(&list), ["10.0.0.1", "10.0.0.3"]);
        assert!(all[2].is_trusted());
    }

    #[test]
    fn found_endpoints_go_with_the_name_at_which_they_were_found() {
        let mut settings = testing::settings();
        settings.endpoints = ["a.test", "b.test"].map(endpoint).into();
        settings.discovery = EndpointDiscovery::Dns;
        let list = EndpointList::new(&settings, testing::tls(&settings));
        let of = |name: &str, host: &str| found_by(&EndpointSource::Name(address(name)), &[host]);
        let both = || [of("a.test", "10.0.0.1"), of("b.test", "10.0.0.2")].concat();
        list.record(Ok(both()));
        list.settle();
        trust(&list, "10.0.0.2");
        list.settle();
        assert_eq!(hosts(&list), ["10.0.0.1", "10.0.0.2"]);
        list.restrict(permitted(&["a.test"], EndpointDiscovery::Dns));
        assert_eq!(hosts(&list), ["10.0.0.1"]);
        // The names are resolved on until the new settings are in force.
        list.record(Ok(both()));
        assert!(!list.settle());
        assert_eq!(hosts(&list), ["10.0.0.1"]);
        // Without discovery, none of them is left: their address has changed.
        list.restrict(permitted(&["a.test"], EndpointDiscovery::None));
        assert_eq!(hosts(&list), ["10.0.0.1"]);
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
        list.record(Ok(found_by(&EndpointSource::Cluster, &["10.0.0.1", "10.0.0.2"])));
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
