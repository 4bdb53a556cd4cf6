//! Gateways in a row: two are a chain, one that leads back to itself is a loop.

use std::net::SocketAddr;

use http::{Request, Response, StatusCode};
use testkit::{FakeBackend, Gateway, H2, Pki, flags, full, in_time, kubeconfig, status, text, until};

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
