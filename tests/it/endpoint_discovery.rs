//! Endpoints that the configuration does not list: the addresses of a host name, and those that the API servers publish.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use testkit::self_check::{self, respond};
use testkit::{FakeBackend, Gateway, H2, Pki, flags, full, in_time, text};

use crate::endpoints::{at_with, trusts};
use crate::gateway::InProcess as _;

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// What the API servers publish about themselves.
#[derive(Clone, Default)]
struct Published {
    addresses: Arc<Mutex<Vec<SocketAddr>>>,
    lists: Arc<AtomicUsize>,
    /// Whether the gateway may not read it.
    is_forbidden: Arc<AtomicBool>,
}

impl Published {
    fn set(&self, addresses: &[&FakeBackend]) {
        *self.addresses.lock().unwrap() = addresses.iter().map(|backend| backend.address).collect();
    }

    fn list(&self) -> Response<testkit::BoxedBody> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        let slice = |(index, address): (usize, &SocketAddr)| {
            json!({
                "metadata": {"name": format!("kubernetes-{index}")},
                "addressType": "IPv4",
                "ports": [{"name": "https", "port": address.port()}],
                "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
            })
        };
        let slices: Vec<_> = self.addresses.lock().unwrap().iter().enumerate().map(slice).collect();
        let list = json!({
            "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"resourceVersion": "1"}, "items": slices,
        });
        respond(StatusCode::OK, &list)
    }

    /// An API server that publishes this, answers other requests with its name, and never answers a watch.
    async fn server(&self, pki: &Pki, name: &'static str) -> FakeBackend {
        let published = self.clone();
        let own = move |request: &Request<Incoming>| {
            let query = request.uri().query().unwrap_or_default();
            if request.uri().path() != SLICES {
                return self_check::answer(request);
            }
            assert_eq!(request.headers()["x-remote-user"], "system:portcullis");
            assert!(query.contains("labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes"), "{query}");
            if published.is_forbidden.load(Ordering::SeqCst) {
                let status =
                    json!({"kind": "Status", "status": "Failure", "code": 403, "message": "no such right"});
                return Some(respond(StatusCode::FORBIDDEN, &status));
            }
            (!query.contains("watch=true")).then(|| published.list())
        };
        FakeBackend::with_self_check(pki, H2, own, move |request| {
            Box::pin(async move {
                if request.uri().path() == SLICES {
                    std::future::pending::<()>().await;
                }
                Response::new(full(name))
            })
        })
        .await
    }
}

/// Waits until the endpoints with metrics are these.
async fn until_endpoints_are(gateway: &Gateway, expected: &[&FakeBackend]) {
    let mut expected: Vec<String> = expected.iter().map(|backend| backend.address.to_string()).collect();
    expected.sort();
    let endpoints = async || {
        let metrics = gateway.metrics("/metrics").await;
        let lines = metrics.lines().filter_map(|line| line.strip_prefix("portcullis_endpoint_trusted{"));
        let name = |line: &str| Some(line.split_once("endpoint=\"")?.1.split_once('"')?.0.to_owned());
        let mut found: Vec<String> = lines.filter(|line| line.ends_with(" 1")).filter_map(name).collect();
        found.sort();
        found
    };
    in_time(async { while endpoints().await != expected {} }).await;
}

async fn names(gateway: &Gateway, requests: usize) -> Vec<String> {
    let mut client = gateway.http1(None).await;
    let mut names = Vec::new();
    for _ in 0..requests {
        names.push(text(client.get("/api", &[TOKEN]).await).await);
    }
    names.sort();
    names.dedup();
    names
}

/// A gateway with one endpoint, which is given by a name of every machine's `/etc/hosts`.
fn at_localhost(pki: &Pki, backend: &FakeBackend, keys: &str) -> Gateway {
    flags(pki, backend.address);
    let port = backend.address.port();
    let file = pki.write(
        "gateway.yaml",
        format!(
            "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {{bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}}
operation: {{metricsBindAddress: '127.0.0.1:0', workers: 1}}
authentication: {{tokenAuthFile: tokens.csv}}
clusters: [{{name: c, kubeconfig: backend.kubeconfig, endpoints: ['https://localhost:{port}']{keys}}}]
"
        ),
    );
    Gateway::with(vec![format!("--config={}", file.display())])
}

/// `localhost` may also be `::1`, where the server does not listen.
#[tokio::test]
async fn an_endpoint_may_be_given_by_a_name() {
    let pki = Pki::new();
    let backend = Published::default().server(&pki, "it").await;
    let gateway = at_localhost(&pki, &backend, "");
    let endpoint = format!("localhost:{}", backend.address.port());
    gateway
        .until_counted(&format!("portcullis_endpoint_trusted{{cluster=\"c\",endpoint=\"{endpoint}\"}} 1"))
        .await;
    assert_eq!(names(&gateway, 3).await, ["it"]);
}

#[tokio::test]
async fn the_addresses_of_a_host_name_are_endpoints() {
    let pki = Pki::new();
    let backend = Published::default().server(&pki, "it").await;
    let gateway = at_localhost(&pki, &backend, ", endpointDiscovery: dns");
    // The name itself is no endpoint any more.
    until_endpoints_are(&gateway, &[&backend]).await;
    gateway.until_counted("portcullis_endpoint_discovery_up{cluster=\"c\"} 1").await;
    assert_eq!(names(&gateway, 3).await, ["it"]);
    let clusters = gateway.metrics("/clusters").await;
    assert!(
        clusters.contains(&backend.address.to_string()) && !clusters.contains("localhost:"),
        "{clusters}"
    );
}

/// All the while, watches are held by a server that never answers them.
// threat: silent-backend
#[tokio::test]
async fn the_endpoints_that_the_api_servers_publish_are_used() {
    let pki = Pki::new();
    let published = Published::default();
    let first = published.server(&pki, "first").await;
    let second = published.server(&pki, "second").await;
    published.set(&[&first, &second]);
    let gateway = at_with(&pki, &[first.address], ", endpointDiscovery: kubernetes");
    until_endpoints_are(&gateway, &[&first, &second]).await;
    assert_eq!(names(&gateway, 30).await, ["first", "second"]);

    published.set(&[&second]);
    until_endpoints_are(&gateway, &[&second]).await;
    assert_eq!(names(&gateway, 10).await, ["second"]);

    // An empty list, then one of a server that does not exist.
    published.set(&[]);
    gateway.until_counted("portcullis_endpoint_discovery_up{cluster=\"c\"} 0").await;
    assert_eq!(names(&gateway, 3).await, ["second"]);
    let clusters = gateway.metrics("/clusters").await;
    assert!(clusters.contains("endpoint discovery: no endpoint was found"), "{clusters}");
    *published.addresses.lock().unwrap() = vec!["127.0.0.1:1".parse().unwrap()];
    gateway.until_counted("portcullis_endpoint_trusted{cluster=\"c\",endpoint=\"127.0.0.1:1\"} 0").await;
    // The configured one returns, too: no published one is usable.
    trusts(&gateway, &first, true).await;
    assert_eq!(names(&gateway, 30).await, ["first", "second"]);
}

#[tokio::test]
async fn the_configured_endpoints_stay_if_the_gateway_may_not_read_the_published_ones() {
    let pki = Pki::new();
    let published = Published::default();
    published.is_forbidden.store(true, Ordering::SeqCst);
    let first = published.server(&pki, "first").await;
    let gateway = at_with(&pki, &[first.address], ", endpointDiscovery: kubernetes");
    gateway.until_counted("portcullis_endpoint_discovery_up{cluster=\"c\"} 0").await;
    assert_eq!(names(&gateway, 3).await, ["first"]);
    let clusters = gateway.metrics("/clusters").await;
    assert!(clusters.contains("get, list and watch of endpointslices"), "{clusters}");
}

/// A published address of another server than one of this cluster gets no request.
#[tokio::test]
async fn published_endpoints_must_pass_the_self_check() {
    let (pki, other) = (Pki::new(), Pki::new());
    let published = Published::default();
    let first = published.server(&pki, "first").await;
    let foreign = published.server(&other, "foreign").await;
    published.set(&[&first, &foreign]);
    let gateway = at_with(&pki, &[first.address], ", endpointDiscovery: kubernetes");
    trusts(&gateway, &first, true).await;
    trusts(&gateway, &foreign, false).await;
    assert_eq!(names(&gateway, 20).await, ["first"]);
    assert_eq!(foreign.pending(), 0);
}
