//! A client with a credential that takes all connections of the process, and keeps them.

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use testkit::body::fed;
use testkit::client::Client;
use testkit::pki::Issued;
use testkit::{BoxedBody, FakeBackend, Gateway, H2, Pki, ResponseFuture, flags, full, in_time, until};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;

use super::GatewayWithBystanders;
use crate::gateway::InProcess as _;
use crate::tunnels::echoing;

const WATCH: &str = "/api/v1/pods?watch=true";

/// Watches never end.
fn watched(request: &Request<Incoming>) -> ResponseFuture {
    let body = if request.uri().query() == Some("watch=true") { endless() } else { full("ok") };
    Box::pin(async move { Response::new(body) })
}

fn endless() -> BoxedBody {
    let (sender, body, _) = fed();
    std::mem::forget(sender);
    body
}

/// A connection with a watch, whose task ends with it; an error if the watch is refused.
async fn watching(
    gateway: &Gateway,
    http2: bool,
    identity: Option<&Issued>,
    headers: &[(&str, &str)],
) -> Result<JoinHandle<()>, StatusCode> {
    let mut client = Client::connect(gateway, http2, identity).await;
    let response = client.get(WATCH, headers).await;
    if response.status() != StatusCode::OK {
        return Err(response.status());
    }
    Ok(tokio::spawn(async move {
        let _client = client;
        http_body_util::BodyExt::collect(response.into_body()).await.ok();
    }))
}

// threat: connection-hoarding
#[tokio::test]
async fn a_user_with_all_connections_gives_way_to_other_clients() {
    const ALL: usize = 96;
    let limit = format!("--max-connections={ALL}");
    let setup = GatewayWithBystanders::with(&[&limit], |_| {}, |request| watched(&request)).await;
    let mut hoard = Vec::new();
    let mut refused = 0;
    for index in 0..2 * ALL {
        match watching(&setup.gateway, index % 2 == 0, Some(&setup.alice), &[]).await {
            Ok(watch) => hoard.push(watch),
            Err(code) => {
                assert_eq!(code, StatusCode::TOO_MANY_REQUESTS);
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && hoard.len() > ALL / 2, "{refused} refused, {} open", hoard.len());
    setup.others.go_on().await;
    let displaced = "portcullis_displaced_connections_total{owner=\"user\"}";
    assert!(setup.gateway.count(displaced).await > 0);
    until("the end of a watch of the hoard", || hoard.iter().any(JoinHandle::is_finished)).await;
    assert!(hoard.iter().filter(|watch| !watch.is_finished()).count() > ALL / 2, "no more than needed");
    let refusals = "portcullis_refused_connections_total{reason=\"authenticated_limit\"}";
    assert_eq!(setup.gateway.count(refusals).await, refused);
    let by_owner = setup.gateway.count("portcullis_client_connections_by_owner{owner=\"user\"}").await;
    assert!((ALL / 2..ALL).contains(&usize::try_from(by_owner).unwrap()), "{by_owner}");
    setup.others.were_undisturbed().await;
    hoard.iter().for_each(JoinHandle::abort);
}

/// A tunnel outlives the HTTP connection in which it began.
#[tokio::test]
async fn tunnels_count_for_their_user_and_give_way() {
    let pki = Pki::new();
    let backend = echoing(&pki, "websocket").await;
    // One place of three is for clients that have not authenticated yet.
    let flags = flags(&pki, backend.address).into_iter().chain(["--max-connections=3".to_owned()]);
    let gateway = Gateway::with(flags.collect());
    let [alice, bob] = ["alice", "bob"].map(|name| pki.clients.leaf().cn(name).issue());
    let mut tunnels = Vec::new();
    for _ in 0..2 {
        let mut client = gateway.http1(Some(&alice)).await;
        let headers = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "AAAA")];
        let request = testkit::get("/api/v1/namespaces/n/pods/p/exec?command=sh", &headers);
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        tunnels.push(hyper_util::rt::TokioIo::new(in_time(hyper::upgrade::on(response)).await.unwrap()));
    }
    let mut client = Client::connect(&gateway, true, Some(&bob)).await;
    assert_eq!(client.code(&[]).await, StatusCode::OK);
    let mut newest = tunnels.pop().unwrap();
    in_time(newest.read(&mut [0])).await.ok();
    assert_eq!(gateway.count("portcullis_client_connections_by_owner{owner=\"user\"}").await, 2);
    // Neither has more than the other.
    let mut late = Client::connect(&gateway, false, Some(&bob)).await;
    assert_eq!(late.code(&[]).await, StatusCode::OK, "his idle connection is closed for it");
    let carol = pki.clients.leaf().cn("carol").issue();
    let mut other = Client::connect(&gateway, false, Some(&carol)).await;
    assert_eq!(other.code(&[]).await, StatusCode::TOO_MANY_REQUESTS);
}

/// The connections of a front proxy carry requests of many users.
#[tokio::test]
async fn connections_of_a_front_proxy_count_for_the_proxy() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |request| watched(&request)).await;
    let flags = flags(&pki, backend.address).into_iter().chain(["--max-connections=3".to_owned()]);
    let gateway = Gateway::with(flags.collect());
    let proxy = pki.client_front.leaf().cn("proxy").issue();
    let mut watches = Vec::new();
    for user in ["dave", "erin"] {
        let headers = [("x-remote-user", user)];
        watches.push(watching(&gateway, true, Some(&proxy), &headers).await.expect("a place is free"));
    }
    let bob = pki.clients.leaf().cn("bob").issue();
    let mut client = Client::connect(&gateway, true, Some(&bob)).await;
    assert_eq!(client.code(&[]).await, StatusCode::OK, "the proxy has two, and he has none");
    until("the end of its newest", || watches[1].is_finished()).await;
    assert!(!watches[0].is_finished());
    watches.iter().for_each(JoinHandle::abort);
}
