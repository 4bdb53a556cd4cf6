//! The API servers of a cluster publish their addresses in `EndpointSlices` of the service `kubernetes` in `default`. The
//! gateway reads them from the endpoints that it trusts, with the rights of its own user.
//!
//! Each round is a list and a short watch, so that a watch that is frozen holds the endpoints back for less than a minute,
//! and one that is never answered for a few seconds.
// kubernetes: pkg/controlplane/reconcilers/endpointsadapter.go

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Discovery;
use crate::backend::endpoint_list::MAX_DISCOVERED;
use crate::backend::kube_client;
use crate::backend::settings::{Endpoint, EndpointSource, HostPort};
use crate::controllers::client::bounded;

const NAMESPACE: &str = "default";
const SELECTOR: &str = "kubernetes.io/service-name=kubernetes";
/// The name of the port at which an API server serves.
const PORT_NAME: &str = "https";
/// A list with more slices is not of this service.
const MAX_SLICES: u32 = 100;
/// How long a list, and the head of a watch, may take.
// threat: silent-backend
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a watch lasts, and how long the gateway waits for its end.
const WATCH_SECONDS: u32 = 30;
const WATCH_TIMEOUT: Duration = Duration::from_secs(40);
/// After a round that has failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest round: an API server may end watches at once.
const MIN_ROUND: Duration = Duration::from_secs(1);

/// Keeps the endpoints up to date. Never returns.
pub(super) async fn follow(discovery: &Discovery<'_>) {
    // threat: endless-response
    let api = Api::namespaced(bounded(kube_client::client(discovery.backend)), NAMESPACE);
    loop {
        discovery.backend.until_trusted().await;
        let began = Instant::now();
        let wait = match round(discovery, &api).await {
            Ok(()) => MIN_ROUND.saturating_sub(began.elapsed()),
            Err(error) => {
                discovery.report(Err(error));
                RETRY_INTERVAL
            }
        };
        sleep(wait).await;
    }
}

/// Lists the slices, and follows them for a while.
async fn round(discovery: &Discovery<'_>, api: &Api<EndpointSlice>) -> Result<(), String> {
    let params = ListParams::default().labels(SELECTOR).limit(MAX_SLICES);
    let listed = timeout(RESPONSE_TIMEOUT, api.list(&params)).await;
    let late = |_| format!("no response to the list of EndpointSlices within {RESPONSE_TIMEOUT:?}");
    let listed = listed.map_err(late)?.map_err(|error| cause(&error))?;
    let version = listed.metadata.resource_version.unwrap_or_default();
    let mut slices: BTreeMap<String, EndpointSlice> =
        listed.items.into_iter().map(|slice| (slice.name_any(), slice)).collect();
    let server = discovery.backend.discovery().1.first().cloned();
    let report = |slices: &BTreeMap<String, EndpointSlice>| {
        let server_name = server.as_ref().map(|server| &server.server_name);
        discovery.report(Ok(server_name.map(|name| endpoints(slices.values(), name)).unwrap_or_default()));
    };
    report(&slices);
    let deadline = Instant::now() + WATCH_TIMEOUT;
    let params = WatchParams::default().labels(SELECTOR).timeout(WATCH_SECONDS);
    let watching = timeout(RESPONSE_TIMEOUT, api.watch(&params, &version)).await;
    // The next round lists again, whatever ends this one.
    let Ok(events) = watching else { return Ok(()) };
    let mut events = pin!(events.map_err(|error| cause(&error))?);
    while let Ok(Ok(Some(event))) = timeout_at(deadline, events.try_next()).await {
        match event {
            WatchEvent::Added(slice) | WatchEvent::Modified(slice) => {
                slices.insert(slice.name_any(), slice);
            }
            WatchEvent::Deleted(slice) => {
                slices.remove(&slice.name_any());
            }
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(_) => break,
        }
        if slices.len() > usize::try_from(MAX_SLICES).unwrap_or_default() {
            break;
        }
        report(&slices);
    }
    Ok(())
}

/// The addresses in the slices that receive traffic, as endpoints whose certificate has this name. More than
/// [`MAX_DISCOVERED`] are counted, and left out later.
fn endpoints<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    server_name: &rustls_pki_types::ServerName<'static>,
) -> Vec<Endpoint> {
    let mut found: Vec<Endpoint> = Vec::new();
    for slice in slices {
        let mut ports = slice.ports.iter().flatten();
        let port = ports.find(|port| port.name.as_deref() == Some(PORT_NAME)).and_then(|port| port.port);
        let Some(port) = port.and_then(|port| u16::try_from(port).ok()) else { continue };
        let is_ready = |one: &&k8s_openapi::api::discovery::v1::Endpoint| {
            // discovery.k8s.io/v1: "a nil value should be interpreted as true"
            one.conditions.as_ref().is_none_or(|conditions| conditions.ready != Some(false))
        };
        for ip in slice.endpoints.iter().flatten().filter(is_ready).flat_map(|one| &one.addresses) {
            // Slices of host names are not those of API servers.
            let Ok(ip) = ip.parse::<IpAddr>() else { continue };
            let address = HostPort { host: ip.to_string(), port };
            if found.len() <= 16 * MAX_DISCOVERED && !found.iter().any(|known| known.address == address) {
                let server_name = server_name.clone();
                found.push(Endpoint { address, server_name, source: EndpointSource::Cluster });
            }
        }
    }
    found.sort_by_cached_key(|endpoint| endpoint.address.to_string());
    found
}

/// The cause of a failure, with the fix.
fn cause(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => format!(
            "{}; grant system:portcullis the verbs get, list and watch of endpointslices in namespace default \
             (deploy/rbac.yaml)",
            status.message
        ),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(slices: serde_json::Value) -> Vec<String> {
        let slices: Vec<EndpointSlice> = serde_json::from_value(slices).unwrap();
        let found = endpoints(slices.iter(), &"api.test".try_into().unwrap());
        assert!(found.iter().all(|endpoint| endpoint.server_name == "api.test".try_into().unwrap()));
        found.iter().map(|endpoint| endpoint.address.to_string()).collect()
    }

    #[test]
    fn ready_addresses_with_the_port_of_the_api_are_endpoints() {
        let slices = json!([
            {"addressType": "IPv4", "ports": [{"name": "metrics", "port": 9}, {"name": "https", "port": 6443}], "endpoints": [
                {"addresses": ["10.0.0.2"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.1"]},
                {"addresses": ["10.0.0.1"], "conditions": {}},
                {"addresses": ["10.0.0.9"], "conditions": {"ready": false}},
                {"addresses": ["api.example.com", ""]},
            ]},
            {"addressType": "IPv6", "ports": [{"name": "https", "port": 443}], "endpoints": [{"addresses": ["fd00::1"]}]},
            {"addressType": "IPv4", "ports": [{"name": "https", "port": 70000}], "endpoints": [{"addresses": ["10.0.0.3"]}]},
            {"addressType": "IPv4", "ports": [{"name": "http", "port": 80}], "endpoints": [{"addresses": ["10.0.0.4"]}]},
            {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.5"]}]},
        ]);
        assert_eq!(found(slices), ["10.0.0.1:6443", "10.0.0.2:6443", "[fd00::1]:443"]);
        assert_eq!(found(json!([])), [""; 0]);
    }

    #[test]
    fn endless_slices_are_read_in_part() {
        let addresses: Vec<String> = (0..20_000).map(|n| format!("10.{}.{}.1", n / 256, n % 256)).collect();
        let endpoints: Vec<_> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        let slice = json!([{"addressType": "IPv4", "ports": [{"name": "https", "port": 6443}], "endpoints": endpoints}]);
        assert_eq!(found(slice).len(), 16 * MAX_DISCOVERED + 1);
    }
}
