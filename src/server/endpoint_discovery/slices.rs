//! The API servers of a cluster publish their addresses in `EndpointSlices` of the service `kubernetes` in `default`. The
//! gateway reads them from the endpoints that it trusts, with the rights of its own user.
//!
//! Each round is a list and a short watch, so that a watch that is frozen holds the endpoints back for less than a minute,
//! and one that is never answered for a few seconds.
// kubernetes: pkg/controlplane/reconcilers/endpointsadapter.go

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Resource as _;

use super::Discovery;
use crate::backend::bounded_client::bounded;
use crate::backend::endpoint_list::MAX_DISCOVERED;
use crate::backend::follow::{FollowError, FollowEvent, FollowPolicy, FollowedResource, Follower, TimeLimit};
use crate::backend::kube_client;
use crate::backend::settings::{Endpoint, EndpointSource, HostPort};

const NAMESPACE: &str = "default";
const SELECTOR: &str = "kubernetes.io/service-name=kubernetes";
/// The name of the port at which an API server serves.
const PORT_NAME: &str = "https";
/// More slices are not of this service.
const MAX_SLICES: usize = 100;
/// How long a list, and the head of a watch, may take.
// threat: silent-backend
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// After a round that has failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

const POLICY: FollowPolicy = FollowPolicy {
    page_size: 100,
    list: TimeLimit::Each(RESPONSE_TIMEOUT),
    watch_seconds: 30,
    head_timeout: RESPONSE_TIMEOUT,
    watch: TimeLimit::Whole(Duration::from_secs(40)),
    resumes: false,
    first_backoff: RETRY_INTERVAL,
    max_backoff: RETRY_INTERVAL,
    ..FollowPolicy::DEFAULT
};

/// Keeps the endpoints up to date. Never returns.
pub(super) async fn follow(discovery: &Discovery<'_>) {
    let path = EndpointSlice::url_path(&(), Some(NAMESPACE));
    let resource =
        FollowedResource { path, label_selector: Some(SELECTOR.to_owned()), ..FollowedResource::default() };
    // threat: endless-response
    let client = bounded(kube_client::client(discovery.backend));
    let mut follower = Follower::new(client, resource, POLICY);
    let mut slices = BTreeMap::new();
    loop {
        if follower.is_listing() {
            discovery.backend.until_trusted().await;
        }
        let taken = follower.next_into(|event| take(discovery, event, &mut slices)).await;
        match taken.map_err(|error| cause(&error)) {
            Ok(()) => {}
            Err(Some(cause)) => discovery.report(Err(cause)),
            // The next round lists again, whatever ended this one.
            Err(None) => follower.forgive(),
        }
    }
}

fn take(
    discovery: &Discovery<'_>,
    event: FollowEvent<EndpointSlice>,
    slices: &mut BTreeMap<String, EndpointSlice>,
) -> Result<(), FollowError> {
    let is_complete = event.apply_to(slices, |slice| slice);
    if slices.len() > MAX_SLICES {
        return Err(FollowError::Description(format!("there are more than {MAX_SLICES} EndpointSlices")));
    }
    if is_complete {
        let server = discovery.backend.discovery().1.first();
        let found = server.map(|server| endpoints(slices.values(), &server.server_name));
        discovery.report(Ok(found.unwrap_or_default()));
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

/// The cause of a failure, with the fix; none of a watch that has begun, or that is not answered.
fn cause(error: &FollowError) -> Option<String> {
    Some(match error {
        FollowError::List(kube::Error::Api(status)) | FollowError::Watch(kube::Error::Api(status))
            if status.code == 403 =>
        {
            format!(
                "{}; grant system:portcullis the verbs get, list and watch of endpointslices in namespace default \
                 (deploy/rbac.yaml)",
                status.message
            )
        }
        FollowError::List(error) | FollowError::Watch(error) => error.to_string(),
        FollowError::ListTimeout(limit) => {
            format!("no response to the list of EndpointSlices within {limit:?}")
        }
        FollowError::NoResourceVersion | FollowError::Description(_) => error.to_string(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::backend::testing::backend;

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
    fn more_slices_than_one_service_has_are_an_error() {
        for (count, fits) in [(MAX_SLICES, true), (MAX_SLICES + 1, false)] {
            let backend = Arc::new(backend());
            let discovery = Discovery::new("c", &backend, None, &|| ());
            let slice = |n: usize| json!({"metadata": {"name": n.to_string()}, "addressType": "IPv4", "endpoints": []});
            let page: Vec<_> = (0..count).map(slice).collect();
            let page = serde_json::from_value(json!(page)).unwrap();
            let taken = take(&discovery, FollowEvent::Page(page), &mut BTreeMap::new());
            assert_eq!(taken.is_ok(), fits, "{count}");
        }
    }

    #[test]
    fn endless_slices_are_read_in_part() {
        let addresses: Vec<String> = (0..20_000).map(|n| format!("10.{}.{}.1", n / 256, n % 256)).collect();
        let endpoints: Vec<_> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        let slice = json!([{"addressType": "IPv4", "ports": [{"name": "https", "port": 6443}], "endpoints": endpoints}]);
        assert_eq!(found(slice).len(), 16 * MAX_DISCOVERED + 1);
    }
}
