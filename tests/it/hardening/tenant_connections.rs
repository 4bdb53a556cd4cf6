//! The clients of a tenant's cluster, whose tenant decides who authenticates there, open as many connections as they can.

use http::StatusCode;
use testkit::client::Client;
use testkit::{FakeBackend, Gateway, Pki, in_time, text};

use crate::gateway::InProcess as _;
use crate::management_cluster::{DOCUMENT, Management, flags, inline, trusted};

/// `--max-connections`, and the share of one tenant.
const ALL: usize = 80;
const OF_ONE: usize = ALL / 8;

async fn client(gateway: &Gateway, http2: bool) -> Client {
    Client::connect(gateway, http2, None).await
}

async fn get(client: &mut Client, path: &str, token: &str) -> StatusCode {
    client.code_at(path, &[("authorization", &format!("Bearer {token}"))]).await
}

// threat: tenant-connection-flood
#[tokio::test]
async fn the_clients_of_one_tenant_leave_connections_to_the_others() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let config = inline(&pki, &backend);
    for (name, tokens) in [("flood", "one,mallory,7\n"), ("calm", "two,carol,7\n")] {
        management.put(name, &[("value", &config), ("cluster", DOCUMENT), ("tokens", tokens)]);
    }
    let mut flags = flags(&pki, management.server.address);
    flags.push(format!("--max-connections={ALL}"));
    let main = pki.directory.path().join("gateway.yaml");
    let head = std::fs::read_to_string(&main).unwrap();
    pki.write("of-operator.kubeconfig", &config);
    pki.write("of-operator.csv", "three,alice,7\n");
    let own = "clusters: [{name: own, kubeconfig: of-operator.kubeconfig, match: {pathPrefix: /own}, \
               authentication: {tokenAuthFile: of-operator.csv}}]\n";
    std::fs::write(&main, format!("{head}{own}")).unwrap();
    let gateway = Gateway::with(flags);
    for name in ["flood", "calm", "own"] {
        trusted(&gateway, name).await;
    }

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
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(text(refused).await, "Too many requests, please try again later.\n");
        let task = match excess {
            Client::One(client) => client.task,
            Client::Two(client) => client.task,
        };
        in_time(task).await.unwrap();
    }
    gateway.until_counted("portcullis_refused_connections_total{reason=\"tenant_limit\"} 2").await;
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
