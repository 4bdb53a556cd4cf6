//! The clients of a tenant's cluster, whose tenant decides who authenticates there, open as many connections as they can.

use std::path::PathBuf;

use http::StatusCode;
use serde_json::{Value, json};
use testkit::client::Client;
use testkit::{FakeBackend, Gateway, Pki, in_time, text, until};

use crate::gateway::InProcess as _;
use crate::management_cluster::{DOCUMENT, Management, add_own_cluster, flags, inline, trusted};
use crate::tunnels::echoing;

/// `--max-connections`, and the share of one tenant.
const ALL: usize = 80;
const OF_ONE: usize = ALL / 8;

async fn client(gateway: &Gateway, http2: bool) -> Client {
    Client::connect(gateway, http2, None).await
}

async fn get(client: &mut Client, path: &str, token: &str) -> StatusCode {
    client.code_at(path, &[("authorization", &format!("Bearer {token}"))]).await
}

fn audit_log(pki: &Pki) -> PathBuf {
    pki.directory.path().join("audit.log")
}

/// The users and stages of the events of refused requests.
fn refusals(pki: &Pki) -> Vec<[String; 2]> {
    let text = std::fs::read_to_string(audit_log(pki)).unwrap_or_default();
    // The last line may still be written.
    let lines = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let refused = events.filter(|event| event["responseStatus"]["code"] == 429);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    refused.map(|event| [text(&event["user"]["username"]), text(&event["stage"])]).collect()
}

/// A gateway with two tenants, `flood` and `calm`, and a cluster of the operator, `own`, all with one API server.
async fn start(pki: &Pki, backend: &FakeBackend) -> (Management, Gateway) {
    let management = Management::start(pki).await;
    let config = inline(pki, backend);
    for (name, tokens) in [("flood", "one,mallory,7\n"), ("calm", "two,carol,7\n")] {
        management.put(name, &[("value", &config), ("cluster", DOCUMENT), ("tokens", tokens)]);
    }
    let mut flags = flags(pki, management.server.address);
    flags.push(format!("--max-connections={ALL}"));
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]});
    flags.push(format!("--audit-policy-file={}", pki.write("policy.yaml", policy.to_string()).display()));
    flags.push(format!("--audit-log-path={}", audit_log(pki).display()));
    add_own_cluster(pki, &config, "three,alice,7\n");
    let gateway = Gateway::with(flags);
    for name in ["flood", "calm", "own"] {
        trusted(&gateway, name).await;
    }
    (management, gateway)
}

// threat: tenant-connection-flood
#[tokio::test]
async fn the_clients_of_one_tenant_leave_connections_to_the_others() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let (_management, gateway) = start(&pki, &backend).await;

    let mut kept = client(&gateway, true).await;
    assert_eq!(get(&mut kept, "/clusters/calm/api", "two").await, StatusCode::OK);
    let mut flood = Vec::new();
    for index in 0..OF_ONE {
        let mut one = client(&gateway, index % 2 == 0).await;
        assert_eq!(get(&mut one, "/clusters/flood/api", "one").await, StatusCode::OK, "{index}");
        flood.push(one);
    }
    for http2 in [false, true] {
        let mut excess = client(&gateway, http2).await;
        let headers = [("authorization", "Bearer one")];
        let refused = excess.get("/clusters/flood/api", &headers).await;
        assert_eq!(refused.headers()["retry-after"], "1");
        if !http2 {
            assert_eq!(refused.headers()["connection"], "close");
        }
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(text(refused).await, "Too many requests, please try again later.\n");
        let task = match excess {
            Client::One(client) => client.task,
            Client::Two(client) => client.task,
        };
        in_time(task).await.unwrap();
    }
    gateway.until_counted("portcullis_refused_connections_total{reason=\"tenant_limit\"} 2").await;
    until("the events of both refusals", || refusals(&pki).len() == 2).await;
    assert_eq!(refusals(&pki), [["mallory", "ResponseComplete"]; 2]);
    // A wrong token is refused as ever.
    let mut wrong = client(&gateway, false).await;
    assert_eq!(get(&mut wrong, "/clusters/flood/api", "two").await, StatusCode::UNAUTHORIZED);
    // Open connections go on, and other clients are served.
    for one in &mut flood {
        assert_eq!(get(one, "/clusters/flood/api", "one").await, StatusCode::OK);
    }
    assert_eq!(get(&mut kept, "/clusters/calm/api", "two").await, StatusCode::OK);
    let mut new = client(&gateway, false).await;
    assert_eq!(get(&mut new, "/clusters/calm/api", "two").await, StatusCode::OK);
    // A client of the operator's own cluster counts for no tenant, wherever it goes.
    let mut own = client(&gateway, true).await;
    assert_eq!(get(&mut own, "/own/api", "three").await, StatusCode::OK);
    assert_eq!(get(&mut own, "/clusters/flood/api", "one").await, StatusCode::OK);
    assert_eq!(get(&mut flood[0], "/own/api", "three").await, StatusCode::OK);
    // Its place is free from then on.
    let mut next = client(&gateway, true).await;
    assert_eq!(get(&mut next, "/clusters/flood/api", "one").await, StatusCode::OK);
}

/// A tunnel outlives the HTTP connection in which it began.
#[tokio::test]
async fn tunnels_count_for_their_tenant_until_they_end() {
    let pki = Pki::new();
    let backend = echoing(&pki, "websocket").await;
    let (_management, gateway) = start(&pki, &backend).await;
    let mut tunnels = Vec::new();
    for _ in 0..OF_ONE {
        let mut client = gateway.http1(None).await;
        let headers = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "AAAA"),
            ("authorization", "Bearer one"),
        ];
        let request = testkit::get("/clusters/flood/api/v1/namespaces/n/pods/p/exec?command=sh", &headers);
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        tunnels.push(in_time(hyper::upgrade::on(response)).await.unwrap());
    }
    let of_flood = async || get(&mut client(&gateway, false).await, "/clusters/flood/api", "one").await;
    assert_eq!(of_flood().await, StatusCode::TOO_MANY_REQUESTS);
    let mut calm = client(&gateway, false).await;
    assert_eq!(get(&mut calm, "/clusters/calm/api", "two").await, StatusCode::OK);
    drop(tunnels.pop());
    in_time(async { while Box::pin(of_flood()).await != StatusCode::OK {} }).await;
}
