//! Fair queues: whose requests wait, and who counts as one user.

use futures_util::future::join_all;
use http::StatusCode;
use testkit::{Pki, in_time};

use super::{HELD, Holding, hold, queued, rejected, send, taken};

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

#[tokio::test]
async fn one_flooding_user_takes_no_place_from_ten_calm_ones() {
    let pki = Pki::new();
    let holding = Holding::start(&pki).await;
    let limits = ["--max-requests-inflight=5", "--inflight-queue-length-limit=4", "--workers=2"];
    let gateway = holding.gateway(&pki, &limits);
    let flood = pki.clients.leaf().cn("flood").issue();
    let connections = [gateway.http2(Some(&flood)).await, gateway.http2(Some(&flood)).await];
    let flood: Vec<_> = (0..100).map(|number| hold(&connections[number % 2])).collect();
    // One place is left to the others; four of the flood are in flight, and four wait.
    let refused = format!("{} 92", rejected("readOnly", "queue-full"));
    gateway.until_counted(&refused).await;
    gateway.until_counted(&queued("readOnly", 4)).await;
    holding.received(4).await;
    let mut calm = Vec::new();
    for number in 0..10 {
        let user = pki.clients.leaf().cn(&format!("calm-{number}")).issue();
        calm.push(hold(&gateway.http2(Some(&user)).await));
    }
    gateway.until_counted(&queued("readOnly", 4 + 9)).await;
    holding.received(5).await;
    gateway.until_counted(&taken("backend", "readOnly", 5)).await;
    for released in 1..=18 {
        holding.release(1);
        holding.received((5 + released).min(18)).await;
    }
    for code in join_all(calm).await {
        assert_eq!(code.unwrap(), StatusCode::OK, "no calm user is refused");
    }
    let codes: Vec<_> = join_all(flood).await.into_iter().map(Result::unwrap).collect();
    let count = |code| codes.iter().filter(|found| **found == code).count();
    assert_eq!((count(StatusCode::OK), count(StatusCode::TOO_MANY_REQUESTS)), (8, 92));
    let users = holding.users();
    assert!(users[..4].iter().all(|user| user == "flood"), "{users:?}");
    // The flood gets a fifth place only when it has no request in flight, as every calm user that waits.
    assert!(users[4..8].iter().all(|user| user.starts_with("calm")), "{users:?}");
    assert!(!users[15..].iter().any(|user| user.starts_with("calm")), "{users:?}");
    gateway.until_counted(&taken("backend", "readOnly", 0)).await;
}

// A client that may impersonate would otherwise get a queue, and a share, for each user that it names.
#[tokio::test]
async fn a_client_that_impersonates_many_users_is_one_flow() {
    let pki = Pki::new();
    let holding = Holding::start(&pki).await;
    let limits = ["--max-requests-inflight=2", "--inflight-queue-length-limit=1"];
    let gateway = holding.gateway(&pki, &limits);
    let client = gateway.http2(None).await;
    let acting_as = |user: &str| send(&client, "GET", HELD, &[TOKEN, ("impersonate-user", user)]);
    let _first = acting_as("u1");
    gateway.until_counted(&taken("backend", "readOnly", 1)).await;
    let _second = acting_as("u2");
    gateway.until_counted(&queued("readOnly", 1)).await;
    for user in ["u3", "u4", "system:portcullis"] {
        assert_eq!(acting_as(user).await.unwrap(), StatusCode::TOO_MANY_REQUESTS, "{user}");
    }
    // As on kube-apiserver, the limit does not apply to an administrator, whoever acts as one.
    let headers = [TOKEN, ("impersonate-user", "u5"), ("impersonate-group", "system:masters")];
    assert_eq!(send(&client, "GET", "/api", &headers).await.unwrap(), StatusCode::OK);
    // And to an administrator who acts as another user, it does.
    let admin = pki.clients.leaf().cn("admin").org("system:masters").issue();
    let admin = gateway.http2(Some(&admin)).await;
    let _last = hold(&admin);
    gateway.until_counted(&taken("backend", "readOnly", 2)).await;
    let _waiting = send(&admin, "GET", "/api", &[("impersonate-user", "u6")]);
    gateway.until_counted(&queued("readOnly", 2)).await;
    let refused = send(&admin, "GET", "/api", &[("impersonate-user", "u7")]);
    assert_eq!(refused.await.unwrap(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(send(&admin, "GET", "/api", &[]).await.unwrap(), StatusCode::OK);
}

// Another gateway in front of this one sends the requests of its own user, by which tokens are verified.
#[tokio::test]
async fn the_gateways_own_user_is_always_served() {
    let pki = Pki::new();
    let holding = Holding::start(&pki).await;
    let gateway = holding.gateway(&pki, &["--max-requests-inflight=1"]);
    let proxy = pki.client_front.leaf().cn("proxy").issue();
    let client = gateway.http2(Some(&proxy)).await;
    let as_user = |user: &'static str, path: &str| send(&client, "GET", path, &[("x-remote-user", user)]);
    let _held = as_user("alice", HELD);
    holding.received(1).await;
    assert_eq!(as_user("alice", "/api").await.unwrap(), StatusCode::TOO_MANY_REQUESTS);
    // The fake backend knows nothing of this user but the self-check.
    assert_eq!(as_user("system:portcullis", "/api").await.unwrap(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn anonymous_clients_of_one_network_are_one_flow() {
    let pki = Pki::new();
    let holding = Holding::start(&pki).await;
    let limits = ["--max-requests-inflight=2", "--inflight-queue-length-limit=1"];
    let gateway = holding.gateway(&pki, &limits);
    let mut held = Vec::new();
    for host in [1, 2] {
        held.push(hold(&gateway.http2_from(host).await));
        gateway.until_counted(&taken("backend", "readOnly", usize::from(host))).await;
    }
    held.push(hold(&gateway.http2_from(1).await));
    gateway.until_counted(&queued("readOnly", 1)).await;
    assert_eq!(hold(&gateway.http2_from(1).await).await.unwrap(), StatusCode::TOO_MANY_REQUESTS);
    held.push(hold(&gateway.http2_from(2).await));
    gateway.until_counted(&queued("readOnly", 2)).await;
    holding.release(held.len());
    for code in join_all(held).await {
        assert_eq!(code.unwrap(), StatusCode::OK);
    }
    in_time(gateway.until_counted(&taken("backend", "readOnly", 0))).await;
}
