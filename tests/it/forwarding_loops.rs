//! Gateways in a row: two are a chain, one that leads back to itself is a loop.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use http::{Request, Response, StatusCode};
use testkit::{
    FakeBackend, Gateway, H2, Pki, cluster_flags, flags, full, in_time, kubeconfig, status, text, until,
};

use crate::gateway::{InProcess as _, start_process};
use crate::tcp_balancer::Balancer;

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

/// The flags of a gateway before `backend` that trusts other gateways as front proxies, and that these take for an API
/// server.
fn gateway_flags(pki: &Pki, name: &str, backend: SocketAddr) -> Vec<String> {
    let mut flags = flags(pki, backend);
    pki.write_pair("gateway", &pki.servers.server(&["localhost", "backend.test"]));
    pki.write("client-front-ca.crt", pki.front.cert_pem());
    let directory = pki.directory.path();
    let [ca, cert, key] = ["servers-ca.crt", "front.crt", "front.key"].map(|name| directory.join(name));
    let own = pki.write(&format!("{name}.kubeconfig"), kubeconfig(backend, &ca, &cert, &key));
    flags.retain(|flag| {
        !flag.starts_with("--requestheader-allowed-names") && !flag.starts_with("--backend-kubeconfig")
    });
    flags.push("--requestheader-allowed-names=portcullis".to_owned());
    flags.push(format!("--backend-kubeconfig={}", own.display()));
    flags
}

async fn checked_as(gateway: &Gateway, result: &str) {
    checked_as_any(gateway, &[result]).await;
}

async fn checked_as_any(gateway: &Gateway, results: &[&str]) {
    let found = async || {
        for result in results {
            let labels = format!("result=\"{result}\"");
            if gateway.count_all("portcullis_self_checks_total", &[labels.as_str()]).await > 0 {
                return true;
            }
        }
        false
    };
    in_time(async { while !found().await {} }).await;
}

async fn ok_backend(pki: &Pki) -> FakeBackend {
    FakeBackend::start(pki, H2, |_: Request<_>| Box::pin(async { Response::new(full("ok")) })).await
}

// threat: gateway-loop
#[tokio::test]
async fn a_gateway_that_is_its_own_backend_gets_no_request() {
    let pki = Pki::new();
    let itself = Balancer::to("127.0.0.1:1".parse().unwrap()).await;
    let process = start_process(gateway_flags(&pki, "own", itself.address)).await;
    itself.switch(process.gateway.address);
    checked_as(&process.gateway, "forwarding_loop").await;
    let refused = status(process.gateway.http1(None).await.get("/api", &[TOKEN]).await).await;
    assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
    let (_, log) = process.end().await;
    let lines: Vec<_> = log.lines().filter(|line| line.contains("come back to this gateway")).collect();
    assert!(
        matches!(lines[..], [line] if line.contains("the addresses of the API servers themselves")),
        "{log}"
    );
}

#[tokio::test]
async fn two_gateways_are_a_chain_until_the_second_leads_back_to_the_first() {
    let pki = Pki::new();
    let backend = ok_backend(&pki).await;
    let balancer = Balancer::to(backend.address).await;
    let inner = Gateway::with(gateway_flags(&pki, "inner", balancer.address));
    inner.checked().await;
    let outer = Gateway::with(gateway_flags(&pki, "outer", inner.address));
    checked_as(&outer, "ok").await;
    let mut client = outer.http1(None).await;
    // A client's own entries are forwarded, and do not disturb.
    let others = [TOKEN, ("cdn-loop", "cloudflare; loops=1, portcullis-another")];
    let answered = async { while client.get("/api", &others).await.status() != StatusCode::OK {} };
    in_time(answered).await;
    let seen = std::iter::from_fn(|| backend.take()).last().unwrap();
    let passed = seen.all("cdn-loop");
    let [_, first, second] = &passed[..] else { panic!("{passed:?}") };
    assert_ne!(first, second);
    assert_eq!(seen.all("x-remote-user"), ["carol"]);

    // A client that names a gateway has its own request refused, and no other.
    for id in [first, second] {
        let (code, body) = status(client.get("/api", &[TOKEN, ("cdn-loop", id)]).await).await;
        assert_eq!(code, StatusCode::LOOP_DETECTED, "{id}");
        assert!(body["message"].as_str().unwrap().contains("has passed this gateway before"), "{body}");
        assert_eq!(body["code"], 508);
        assert_eq!(client.get("/api", &[TOKEN]).await.status(), StatusCode::OK, "{id}");
    }
    let many = ["portcullis-x"; 8].join(",");
    let refused = client.get("/api", &[TOKEN, ("cdn-loop", &many)]).await;
    assert_eq!(refused.status(), StatusCode::LOOP_DETECTED);
    assert_eq!(text(client.get("/api", &[TOKEN]).await).await, "ok");

    balancer.switch(outer.address);
    // If the outer one has already noticed that the inner one has no backend, it says that instead of forwarding.
    checked_as_any(&inner, &["forwarding_loop", "inconclusive"]).await;
    in_time(async {
        while client.get("/api", &[TOKEN]).await.status() != StatusCode::SERVICE_UNAVAILABLE {}
    })
    .await;
    // Once it leads to the API server again, it is used again.
    balancer.switch(backend.address);
    in_time(async { while client.get("/api", &[TOKEN]).await.status() != StatusCode::OK {} }).await;
}

/// Neither can pass its self-check before the other has.
#[tokio::test]
async fn two_gateways_that_start_as_each_others_backend_say_so() {
    let pki = Pki::new();
    let to_second = Balancer::to("127.0.0.1:1".parse().unwrap()).await;
    let first = start_process(gateway_flags(&pki, "first", to_second.address)).await;
    let second = Gateway::with(gateway_flags(&pki, "second", first.gateway.address));
    to_second.switch(second.address);
    until("its diagnosis", || !first.said("gateway that has no usable backend itself").is_empty()).await;
    first.end().await;
}

/// Where a server behind the API server of the hub sends a request with this path, by way of the gateway; `None`: it answers
/// itself.
type Relay = fn(&str) -> Option<String>;

/// A hub cluster and a member cluster behind one gateway. The hub has a server that proxies, such as an aggregated API
/// server, to which its API server relays the header of the request.
struct HubAndMember {
    gateway: Gateway,
    _hub: FakeBackend,
    _member: FakeBackend,
    /// The requests that the hub has received.
    received: Arc<AtomicUsize>,
}

impl HubAndMember {
    async fn start(relay: Relay) -> Self {
        let pki = Pki::new();
        let own_address: Arc<OnceLock<SocketAddr>> = Arc::default();
        let received: Arc<AtomicUsize> = Arc::default();
        let (known, count) = (Arc::clone(&own_address), Arc::clone(&received));
        let hub = FakeBackend::start(&pki, H2, move |request: Request<_>| {
            count.fetch_add(1, Ordering::SeqCst);
            let gateway = *known.get().unwrap();
            Box::pin(async move {
                match relay(request.uri().path()) {
                    Some(target) => relayed(gateway, &target, &request).await,
                    None => Response::new(full("answer of the hub")),
                }
            })
        })
        .await;
        let member = FakeBackend::start(&pki, H2, |_: Request<_>| {
            Box::pin(async { Response::new(full("answer of the member")) })
        })
        .await;
        pki.write("tokens.csv", "good-token,carol,7\n");
        let clusters = "
- {name: hub, kubeconfig: hub.kubeconfig, match: {pathPrefix: /clusters/hub}, authentication: {tokenAuthFile: tokens.csv}}
- {name: member, kubeconfig: member.kubeconfig, match: {pathPrefix: /clusters/member}, authentication: {tokenAuthFile: tokens.csv}}
";
        let backends = [("hub", hub.address.to_string()), ("member", member.address.to_string())];
        let gateway = Gateway::with(cluster_flags(&pki, &["localhost"], &backends, clusters));
        own_address.set(gateway.address).unwrap();
        for (name, backend) in [("hub", &hub), ("member", &member)] {
            let labels = format!("cluster=\"{name}\",endpoint=\"{}\"", backend.address);
            gateway.until_counted(&format!("portcullis_endpoint_trusted{{{labels}}} 1")).await;
        }
        Self { gateway, _hub: hub, _member: member, received }
    }

    /// The answer to a request, and how many the hub has received meanwhile.
    async fn get(&self, path: &str) -> (StatusCode, String, usize) {
        self.received.store(0, Ordering::SeqCst);
        let response = self.gateway.http1(None).await.get(path, &[TOKEN]).await;
        let code = response.status();
        let body = in_time(text(response)).await;
        (code, body, self.received.load(Ordering::SeqCst))
    }
}

/// Sends a request on to the gateway, as its own user, with the header that says which gateways it has passed.
async fn relayed(
    gateway: SocketAddr,
    target: &str,
    request: &Request<hyper::body::Incoming>,
) -> Response<testkit::BoxedBody> {
    let passed = request.headers().get_all("cdn-loop").iter().map(|line| line.to_str().unwrap());
    let passed = passed.collect::<Vec<_>>().join(", ");
    let mut client = Gateway::at(gateway, None).http1(None).await;
    let response = client.get(target, &[TOKEN, ("cdn-loop", &passed)]).await;
    let code = response.status();
    Response::builder().status(code).body(full(text(response).await)).unwrap()
}

#[tokio::test]
async fn a_hub_reaches_its_members_by_the_gateway_that_it_is_reached_by() {
    let clusters = HubAndMember::start(|path| {
        let to_member = path.strip_prefix("/apis/cluster.karmada.io/v1alpha1/clusters/member/proxy");
        let to_hub = path.strip_prefix("/api/v1/namespaces/d/services/dashboard/proxy");
        let same_path = path.strip_prefix("/apis/metrics.example.com").map(|_| path);
        match (to_member.or(same_path), to_hub) {
            (Some(rest), _) => Some(format!("/clusters/member{rest}")),
            (None, Some(rest)) => Some(format!("/clusters/hub{rest}")),
            _ => None,
        }
    })
    .await;
    let cases = [
        ("a member", "/apis/cluster.karmada.io/v1alpha1/clusters/member/proxy/api/v1/pods", "member", 1),
        ("a member, with the same path", "/apis/metrics.example.com/v1/pods", "member", 1),
        ("the hub itself", "/api/v1/namespaces/d/services/dashboard/proxy/api/v1/pods", "hub", 2),
        (
            "a member by way of the hub",
            "/api/v1/namespaces/d/services/dashboard/proxy/apis/cluster.karmada.io/v1alpha1/clusters/member/proxy/api",
            "member",
            2,
        ),
    ];
    for (name, path, answered_by, passes) in cases {
        let expected = (StatusCode::OK, format!("answer of the {answered_by}"), passes);
        assert_eq!(clusters.get(&format!("/clusters/hub{path}")).await, expected, "{name}");
    }
}

// threat: gateway-loop
#[tokio::test]
async fn a_server_behind_the_api_server_that_sends_requests_back_for_ever_is_stopped() {
    let cases: [(&str, Relay, usize, &str); 2] = [
        ("the same request", |path| Some(format!("/clusters/hub{path}")), 1, "the same method and path"),
        ("a longer path each time", |path| Some(format!("/clusters/hub{path}/a")), 8, "gateways 8 times"),
    ];
    for (name, relay, passes, message) in cases {
        let clusters = HubAndMember::start(relay).await;
        let (code, body, received) = clusters.get("/clusters/hub/apis/example.com/v1").await;
        assert_eq!((code, received), (StatusCode::LOOP_DETECTED, passes), "{name}: {body}");
        assert!(body.contains(message), "{name}: {body}");
    }
}
