//! Each address of a configured host name is an endpoint, whose certificate must have the configured name. Names are
//! resolved again and again: the system's resolver tells no TTL.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::Discovery;
use crate::backend::settings::{Endpoint, EndpointSource, HostPort};

/// How often names are resolved.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a lookup may take before it counts as failed.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Lookups at the same time, of all clusters: each one blocks a thread.
const MAX_LOOKUPS: usize = 16;

/// Resolves host names.
pub(crate) trait Resolver: Send + Sync {
    /// The addresses of a host.
    fn lookup<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The resolver of the operating system.
#[derive(Debug)]
pub(crate) struct SystemResolver(Semaphore);

impl Default for SystemResolver {
    fn default() -> Self {
        Self(Semaphore::new(MAX_LOOKUPS))
    }
}

impl Resolver for SystemResolver {
    fn lookup<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move {
            let _permit = self.0.acquire().await.map_err(io::Error::other)?;
            Ok(tokio::net::lookup_host((host, port)).await?.collect())
        })
    }
}

/// Keeps the endpoints up to date. Never returns.
// threat: silent-resolver
pub(super) async fn follow(discovery: &Discovery<'_>, resolver: &dyn Resolver) {
    let (_, configured) = discovery.backend.discovery();
    loop {
        // A lookup that takes too long is waited for, because its thread does not end: only one is ever in progress.
        let mut resolving = Box::pin(join_all(configured.iter().map(|endpoint| resolve(resolver, endpoint))));
        let found = if let Ok(found) = timeout(LOOKUP_TIMEOUT, &mut resolving).await {
            found
        } else {
            discovery.report(Err(format!("the DNS lookup takes longer than {LOOKUP_TIMEOUT:?}")));
            resolving.await
        };
        discovery.report(merge(found));
        sleep(RESOLVE_INTERVAL).await;
    }
}

/// The addresses of all names. If one name cannot be resolved, the others are not used either: their addresses alone would
/// look as if those of the name had been removed.
fn merge(found: Vec<Result<Vec<Endpoint>, String>>) -> Result<Vec<Endpoint>, String> {
    let mut all = Vec::new();
    for endpoints in found {
        all.extend(endpoints?);
    }
    Ok(all)
}

/// The endpoints at the addresses of a configured one.
async fn resolve(resolver: &dyn Resolver, endpoint: &Endpoint) -> Result<Vec<Endpoint>, String> {
    let HostPort { host, port } = &endpoint.address;
    if host.parse::<IpAddr>().is_ok() {
        return Ok(vec![endpoint.clone()]);
    }
    let addresses = resolver.lookup(host, *port).await;
    let addresses = addresses.map_err(|error| format!("{host} cannot be resolved: {error}"))?;
    // In an order of its own: servers rotate their answers.
    let addresses: BTreeSet<IpAddr> = addresses
        .iter()
        .map(SocketAddr::ip)
        .filter(|ip| !ip.is_unspecified() && !ip.is_multicast())
        .collect();
    if addresses.is_empty() {
        return Err(format!("{host} has no address"));
    }
    let at = |ip: IpAddr| Endpoint {
        address: HostPort { host: ip.to_string(), port: *port },
        server_name: endpoint.server_name.clone(),
        source: EndpointSource::Name(endpoint.address.clone()),
    };
    Ok(addresses.into_iter().map(at).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use portcullis_system::sync::lock;

    use super::*;
    use crate::backend::settings::EndpointDiscovery;
    use crate::backend::{Backend, testing};

    /// What a lookup yields.
    #[derive(Clone)]
    enum Answer {
        Addresses(Vec<String>),
        Error,
        Silence,
    }

    /// Gives one answer after the other, and then nothing.
    #[derive(Default)]
    struct Script {
        answers: Mutex<VecDeque<Answer>>,
        lookups: AtomicUsize,
    }

    impl Resolver for Script {
        fn lookup<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
            assert_eq!(host, "api.test");
            self.lookups.fetch_add(1, Ordering::SeqCst);
            let answer = lock(&self.answers).pop_front().unwrap_or(Answer::Silence);
            Box::pin(async move {
                match answer {
                    Answer::Addresses(ips) => {
                        Ok(ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect())
                    }
                    Answer::Error => Err(io::Error::other("server failure")),
                    Answer::Silence => std::future::pending().await,
                }
            })
        }
    }

    fn addresses(ips: &[&str]) -> Answer {
        Answer::Addresses(ips.iter().map(ToString::to_string).collect())
    }

    fn backend(hosts: &[&str]) -> Arc<Backend> {
        let mut settings = testing::settings();
        settings.discovery = EndpointDiscovery::Dns;
        let endpoint = |host: &&str| Endpoint {
            address: HostPort { host: (*host).to_owned(), port: 6443 },
            server_name: "api.test".try_into().unwrap(),
            source: EndpointSource::default(),
        };
        settings.endpoints = hosts.iter().map(endpoint).collect();
        Arc::new(testing::with_settings(&settings))
    }

    fn hosts(backend: &Backend) -> Vec<String> {
        backend.endpoints().iter().map(|endpoint| endpoint.address().to_string()).collect()
    }

    /// The time from the look at the endpoints to the end of the round.
    const REST_OF_ROUND: Duration = Duration::from_secs(4);

    /// The endpoints after each answer, with the error of discovery, if any, and the number of changes.
    async fn followed(
        configured: &[&str],
        answers: Vec<Answer>,
    ) -> (Vec<(Vec<String>, Option<String>)>, usize) {
        let (backend, changes) = (backend(configured), AtomicUsize::new(0));
        let times = answers.len();
        let script = Script { answers: Mutex::new(answers.into()), lookups: AtomicUsize::new(0) };
        let changed = || {
            changes.fetch_add(1, Ordering::SeqCst);
        };
        let discovery = Discovery::new("c", &backend, None, &changed);
        let mut states = Vec::new();
        let watching = async {
            for _ in 0..times {
                // Later than the timeout of a lookup, and before the next one.
                sleep(LOOKUP_TIMEOUT + Duration::from_secs(1)).await;
                states.push((hosts(&backend), backend.discovery_error()));
                sleep(REST_OF_ROUND).await;
            }
        };
        tokio::select! {
            () = discovery.run(follow(&discovery, &script)) => {}
            () = watching => {}
        }
        (states, changes.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn each_address_of_a_name_is_an_endpoint() {
        let answers = vec![
            addresses(&["10.0.0.2", "10.0.0.1", "fd00::1", "10.0.0.2", "0.0.0.0"]),
            addresses(&["fd00::1", "10.0.0.1", "10.0.0.2"]),
            addresses(&["10.0.0.3"]),
        ];
        let (states, changes) = followed(&["api.test", "192.0.2.1"], answers).await;
        let three = ["10.0.0.1:6443", "10.0.0.2:6443", "[fd00::1]:6443", "192.0.2.1:6443"];
        let one = ["10.0.0.3:6443", "192.0.2.1:6443"];
        let states: Vec<_> = states.into_iter().map(|(hosts, error)| (hosts.join(" "), error)).collect();
        assert_eq!(states, [&three[..], &three, &one].map(|hosts| (hosts.join(" "), None)));
        assert_eq!(changes, 2, "another order is no change");
    }

    #[tokio::test(start_paused = true)]
    async fn the_known_addresses_stay_when_dns_fails() {
        let known = vec!["10.0.0.1:6443".to_owned()];
        let answers = vec![addresses(&["10.0.0.1"]), Answer::Error, addresses(&[]), addresses(&["10.0.0.1"])];
        let (states, changes) = followed(&["api.test"], answers).await;
        let errors: Vec<_> = states.iter().map(|(_, error)| error.as_deref().unwrap_or("-")).collect();
        assert_eq!(
            errors,
            ["-", "api.test cannot be resolved: server failure", "api.test has no address", "-"]
        );
        assert!(states.iter().all(|(hosts, _)| *hosts == known), "{states:?}");
        assert_eq!(changes, 1);
        // Before the first answer, the name itself is the endpoint.
        let (states, _) = followed(&["api.test"], vec![Answer::Error]).await;
        assert_eq!(states[0].0, ["api.test:6443"]);
    }

    // threat: silent-resolver
    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_never_answers_is_asked_once() {
        let (backend, script) = (backend(&["api.test"]), Script::default());
        let discovery = Discovery::new("c", &backend, None, &|| {});
        let running = discovery.run(follow(&discovery, &script));
        assert!(timeout(Duration::from_hours(1), running).await.is_err());
        assert_eq!(script.lookups.load(Ordering::SeqCst), 1);
        assert_eq!(hosts(&backend), ["api.test:6443"]);
        assert_eq!(backend.discovery_error().as_deref(), Some("the DNS lookup takes longer than 5s"));
    }
}
