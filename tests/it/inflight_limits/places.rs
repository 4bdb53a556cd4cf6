//! Which requests take a place, and when it is free again.

use futures_util::future::join_all;
use http::StatusCode;
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::{Gateway, Pki, cluster_flags, in_time};

use super::{HELD, Holding, hold, is_refused, queued, rejected, send, taken, until_served};
use crate::gateway::InProcess as _;

// apiserver: pkg/server/filters/maxinflight_test.go
#[tokio::test]
async fn requests_beyond_the_limit_are_refused_and_served_again_when_others_end() {
    let pki = Pki::new();
    let holding = Holding::start(&pki).await;
    let gateway = holding.gateway(&pki, &["--max-requests-inflight=3", "--max-mutating-requests-inflight=2"]);
    let alice = pki.clients.leaf().cn("alice").issue();
    let client = gateway.http2(Some(&alice)).await;
    // Long-running requests do not count.
    let watches = (0..5).map(|_| send(&client, "GET", &format!("{HELD}?watch=true"), &[]));
    let logs = (0..5).map(|_| send(&client, "GET", "/api/v1/namespaces/n/pods/held/log", &[]));
    let mut held: Vec<_> = watches.chain(logs).collect();
    holding.received(10).await;
    held.extend((0..3).map(|_| hold(&client)));
    held.extend((0..2).map(|_| send(&client, "POST", HELD, &[])));
    holding.received(15).await;
    gateway.until_counted(&taken("backend", "readOnly", 3)).await;
    gateway.until_counted(&taken("backend", "mutating", 2)).await;
    let masters = pki.clients.leaf().cn("admin").org("system:masters").issue();
    for http2 in [false, true] {
        let mut client = Client::connect(&gateway, http2, Some(&alice)).await;
        for _ in 0..2 {
            is_refused(client.get("/api", &[]).await).await;
        }
        assert_eq!(client.code_at("/api/v1/watch/namespaces/n/pods", &[]).await, StatusCode::OK);
        let mut admin = Client::connect(&gateway, http2, Some(&masters)).await;
        for _ in 0..5 {
            assert_eq!(admin.code(&[]).await, StatusCode::OK, "system:masters is always served");
        }
    }
    assert_eq!(send(&client, "PATCH", HELD, &[]).await.unwrap(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(gateway.count(&rejected("readOnly", "concurrency-limit")).await, 4);
    assert_eq!(gateway.count(&rejected("mutating", "concurrency-limit")).await, 1);
    let terminated = "apiserver_request_terminations_total{code=\"429\",verb=";
    assert_eq!(gateway.count(&format!("{terminated}\"GET\"}}")).await, 4);
    holding.release(held.len());
    for code in join_all(held).await {
        assert_eq!(code.unwrap(), StatusCode::OK);
    }
    gateway.until_counted(&taken("backend", "readOnly", 0)).await;
    gateway.until_counted(&taken("backend", "mutating", 0)).await;
    assert_eq!(send(&client, "PATCH", "/api", &[]).await.unwrap(), StatusCode::OK);
    until_served(&mut Client::connect(&gateway, false, Some(&alice)).await).await;
}

// Also over HTTP/2, where the connection goes on and only the stream ends.
#[tokio::test]
async fn a_client_that_disconnects_frees_its_place() {
    for (http2, drops_connection) in [(false, true), (true, true), (true, false)] {
        let pki = Pki::new();
        let holding = Holding::start(&pki).await;
        let gateway = holding.gateway(&pki, &["--max-requests-inflight=1"]);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut other = Client::connect(&gateway, false, Some(&alice)).await;
        let mut client = Client::connect(&gateway, http2, Some(&alice)).await;
        let kept = match &client {
            Client::Two(client) if !drops_connection => Some(client.share()),
            _ => None,
        };
        let waiting = tokio::spawn(async move { client.get(HELD, &[]).await.status() });
        holding.received(1).await;
        is_refused(other.get("/api", &[]).await).await;
        waiting.abort();
        gateway.until_counted(&taken("backend", "readOnly", 0)).await;
        assert_eq!(other.code(&[]).await, StatusCode::OK, "http2={http2}");
        if let Some(mut kept) = kept {
            assert_eq!(kept.get("/api", &[]).await.status(), StatusCode::OK, "the connection goes on");
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_leaves_the_queue() {
    for (http2, drops_connection) in [(false, true), (true, true), (true, false)] {
        let pki = Pki::new();
        let holding = Holding::start(&pki).await;
        let limits = ["--max-requests-inflight=1", "--inflight-queue-length-limit=1"];
        let gateway = holding.gateway(&pki, &limits);
        let [alice, bob] = ["alice", "bob"].map(|name| pki.clients.leaf().cn(name).issue());
        let held = hold(&gateway.http2(Some(&alice)).await);
        holding.received(1).await;
        let mut client = Client::connect(&gateway, http2, Some(&bob)).await;
        let _kept = match &client {
            Client::Two(client) if !drops_connection => Some(client.share()),
            _ => None,
        };
        let waiting = tokio::spawn(async move { client.get("/api", &[]).await.status() });
        gateway.until_counted(&queued("readOnly", 1)).await;
        let mut other = Client::connect(&gateway, false, Some(&bob)).await;
        is_refused(other.get("/api", &[]).await).await;
        assert_eq!(gateway.count(&rejected("readOnly", "queue-full")).await, 1);
        waiting.abort();
        gateway.until_counted(&queued("readOnly", 0)).await;
        // The position is free, and then the place.
        let next = tokio::spawn(async move { other.code(&[]).await });
        gateway.until_counted(&queued("readOnly", 1)).await;
        holding.release(1);
        assert_eq!(held.await.unwrap(), StatusCode::OK);
        assert_eq!(in_time(next).await.unwrap(), StatusCode::OK);
        assert_eq!(holding.users(), ["alice", "bob"], "the request of the client that left is not sent");
    }
}

#[tokio::test]
async fn a_request_that_waits_too_long_is_refused() {
    let pki = Pki::new();
    let holding = Holding::start(&pki).await;
    let limits =
        ["--max-requests-inflight=1", "--inflight-queue-length-limit=9", "--inflight-queue-timeout=50ms"];
    let gateway = holding.gateway(&pki, &limits);
    let [alice, bob] = ["alice", "bob"].map(|name| pki.clients.leaf().cn(name).issue());
    let _held = hold(&gateway.http2(Some(&alice)).await);
    holding.received(1).await;
    let mut client = Client::connect(&gateway, true, Some(&bob)).await;
    is_refused(client.get("/api", &[]).await).await;
    assert_eq!(gateway.count(&rejected("readOnly", "time-out")).await, 1);
}

#[tokio::test]
async fn a_response_that_is_not_read_holds_its_place_until_the_deadline() {
    for http2 in [false, true] {
        let pki = Pki::new();
        let holding = Holding::start(&pki).await;
        let gateway = holding.gateway(&pki, &["--max-requests-inflight=1"]);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut other = Client::connect(&gateway, true, Some(&alice)).await;
        let mut slow = Client::narrow(&gateway, http2, Some(&alice)).await;
        let unread = slow.get("/api/v1/endless", &[]).await;
        assert_eq!(unread.status(), StatusCode::OK);
        is_refused(other.get("/api", &[]).await).await;
        drop((unread, slow));
        until_served(&mut other).await;
        let mut slow = Client::narrow(&gateway, http2, Some(&alice)).await;
        let unread = loop {
            let response = slow.get("/api/v1/endless?timeout=500ms", &[]).await;
            if response.status() == StatusCode::OK {
                break response;
            }
            testkit::text(response).await;
        };
        // The client still does not read.
        until_served(&mut other).await;
        drop(unread);
    }
}

/// Two clusters, and their backends.
async fn clusters(pki: &Pki, limits: &str, more: &[&str]) -> ([Holding; 2], Gateway) {
    let both = [Holding::start(pki).await, Holding::start(pki).await];
    let clusters = format!(
        "
- {{name: one, kubeconfig: one.kubeconfig, match: {{pathPrefix: /one}}}}
- {{name: two, kubeconfig: two.kubeconfig, match: {{pathPrefix: /two}}, {limits}}}
authentication: {{clientCAFile: clients.crt}}
limits: {{maxRequestsInflight: 1, maxMutatingRequestsInflight: 1}}
"
    );
    pki.write("clients.crt", pki.clients.cert_pem());
    let backends = [("one", both[0].backend.address), ("two", both[1].backend.address)];
    let backends = backends.map(|(name, address)| (name, address.to_string()));
    let flags = cluster_flags(pki, &["localhost"], &backends, &clusters);
    let gateway = Gateway::with(flags.into_iter().chain(more.iter().map(|&flag| flag.to_owned())).collect());
    for (name, address) in &backends {
        let line = format!("portcullis_endpoint_trusted{{cluster=\"{name}\",endpoint=\"{address}\"}} 1");
        gateway.until_counted(&line).await;
    }
    (both, gateway)
}

#[tokio::test]
async fn a_flood_at_one_cluster_refuses_nothing_at_another() {
    let pki = Pki::new();
    let ([one, two], gateway) = clusters(&pki, "limits: {maxRequestsInflight: 2}", &[]).await;
    let alice = pki.clients.leaf().cn("alice").issue();
    let client = gateway.http2(Some(&alice)).await;
    let _flood = send(&client, "GET", &format!("/one{HELD}"), &[]);
    one.received(1).await;
    for _ in 0..20 {
        assert_eq!(
            send(&client, "GET", "/one/api", &[]).await.unwrap(),
            StatusCode::TOO_MANY_REQUESTS,
            "the template's limit"
        );
    }
    let _calm = [0, 1].map(|_| send(&client, "GET", &format!("/two{HELD}"), &[]));
    two.received(2).await;
    let beyond = send(&client, "GET", "/two/api", &[]).await.unwrap();
    assert_eq!(beyond, StatusCode::TOO_MANY_REQUESTS, "the cluster's own limit");
    let _write = send(&client, "POST", &format!("/two{HELD}"), &[]);
    two.received(3).await;
    let beyond = send(&client, "POST", "/two/api", &[]).await.unwrap();
    assert_eq!(beyond, StatusCode::TOO_MANY_REQUESTS, "the template's limit, in the cluster's own section");
    assert_eq!(one.backend.pending(), 1, "no refused request reaches a backend");
}

#[tokio::test]
async fn the_process_has_a_limit_over_all_clusters() {
    let pki = Pki::new();
    let none = "limits: {maxRequestsInflight: 0, maxMutatingRequestsInflight: 0}";
    let more = ["--max-requests-inflight-total=3", "--workers=2"];
    let ([one, two], gateway) = clusters(&pki, none, &more).await;
    let alice = pki.clients.leaf().cn("alice").issue();
    let client = gateway.http2(Some(&alice)).await;
    let _first = send(&client, "GET", &format!("/one{HELD}"), &[]);
    one.received(1).await;
    let held = ["GET", "POST"].map(|method| send(&client, method, &format!("/two{HELD}"), &[]));
    two.received(2).await;
    let _watch = send(&client, "GET", &format!("/two{HELD}?watch=1"), &[]);
    two.received(3).await;
    let mut probe = Client::connect(&gateway, false, Some(&alice)).await;
    for path in ["/two/api", "/two/healthz"] {
        is_refused(probe.get(path, &[]).await).await;
    }
    let metrics = gateway.metrics("/metrics").await;
    assert!(metrics.contains("\nportcullis_process_inflight_requests 3\n"), "{metrics}");
    let probes = gateway.metrics("/readyz").await;
    assert!(probes.starts_with("HTTP/1.1 200"), "probes of the metrics port are not limited: {probes}");
    let masters = pki.clients.leaf().cn("admin").org("system:masters").issue();
    let mut admin = Client::connect(&gateway, true, Some(&masters)).await;
    assert_eq!(admin.code_at("/two/api", &[]).await, StatusCode::OK);
    two.release(3);
    for held in held {
        assert_eq!(held.await.unwrap(), StatusCode::OK);
    }
    gateway.until_counted("portcullis_process_inflight_requests 1").await;
    assert_eq!(probe.code_at("/two/api", &[]).await, StatusCode::OK);
}

#[tokio::test]
async fn a_reload_changes_the_limits_and_keeps_the_requests_in_flight() {
    let pki = Pki::new();
    let ([one, _two], gateway) = clusters(&pki, "limits: {}", &[]).await;
    let alice = pki.clients.leaf().cn("alice").issue();
    let client = gateway.http2(Some(&alice)).await;
    let path = format!("/one{HELD}");
    let mut held = vec![send(&client, "GET", &path, &[])];
    one.received(1).await;
    let code = async || send(&client, "GET", "/one/api", &[]).await.unwrap();
    assert_eq!(code().await, StatusCode::TOO_MANY_REQUESTS);
    let file = pki.directory.path().join("gateway.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let reload = async |limit: &str| {
        let before = gateway.generation().await;
        replace(&file, text.replace("{maxRequestsInflight: 1,", &format!("{{maxRequestsInflight: {limit},")));
        gateway.reloaded(before).await;
    };
    reload("3").await;
    held.extend((0..2).map(|_| send(&client, "GET", &path, &[])));
    one.received(3).await;
    assert_eq!(code().await, StatusCode::TOO_MANY_REQUESTS, "the request from before the reload counts");
    reload("2").await;
    one.release(1);
    gateway.until_counted(&taken("one", "readOnly", 2)).await;
    assert_eq!(code().await, StatusCode::TOO_MANY_REQUESTS, "two are in flight");
    reload("0").await;
    assert_eq!(code().await, StatusCode::OK);
    // A request that waits gets a place when the limit is lifted.
    reload("2, inflightQueueLengthLimit: 5").await;
    let bob = pki.clients.leaf().cn("bob").issue();
    let waiting = send(&gateway.http2(Some(&bob)).await, "GET", "/one/api", &[]);
    let line = "portcullis_inqueue_requests{cluster=\"one\",request_kind=\"readOnly\"} 1";
    gateway.until_counted(line).await;
    reload("3, inflightQueueLengthLimit: 5").await;
    assert_eq!(in_time(waiting).await.unwrap(), StatusCode::OK);
    one.release(2);
    for held in held {
        assert_eq!(held.await.unwrap(), StatusCode::OK);
    }
    gateway.until_counted(&taken("one", "readOnly", 0)).await;
}
