//! The client of a tenant's cluster makes events faster than the audit webhook takes them: the events of the operator's own
//! clusters are stored all the same.

use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::client::Client;
use testkit::{FakeBackend, Gateway, Pki, full, sum_metric, until};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::gateway::InProcess as _;
use crate::management_cluster::{DOCUMENT, Management, flags, inline, trusted};

/// The events that may wait for the webhook; clusters of Secrets have half of it.
const BUFFER: usize = 200;
/// The requests of the operator's user, with two events each: fewer than one of two owners may have.
const CALM: usize = 40;

/// The users of received events.
type Received = Arc<Mutex<Vec<String>>>;

/// An audit webhook that answers nothing before `opens`.
async fn webhook(pki: &Pki, opens: &watch::Sender<bool>, received: &Received) -> FakeBackend {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (opens, received) = (opens.clone(), Arc::clone(received));
    FakeBackend::without_client_auth(pki, listener, move |request: Request<Incoming>| {
        let (mut open, received) = (opens.subscribe(), Arc::clone(&received));
        Box::pin(async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            open.wait_for(|open| *open).await.ok();
            let list: Value = serde_json::from_slice(&body).unwrap();
            let users = list["items"].as_array().unwrap().iter().map(|event| &event["user"]["username"]);
            received.lock().unwrap().extend(users.map(|user| user.as_str().unwrap().to_owned()));
            Response::new(full("{}"))
        })
    })
}

/// A gateway with a tenant's cluster, `flood`, and one of the operator, `own`. All events go to the webhook, one at a time.
async fn start(pki: &Pki, backend: &FakeBackend, webhook: &FakeBackend) -> (Management, Gateway) {
    let management = Management::start(pki).await;
    let config = inline(pki, backend);
    management.put("flood", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "one,mallory,7\n")]);
    let mut flags = flags(pki, management.server.address);
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]});
    let of_webhook = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: w, cluster: {{server: 'https://{}', certificate-authority: servers-ca.crt}}}}]\n\
         contexts: [{{name: c, context: {{cluster: w}}}}]\n",
        webhook.address
    );
    flags.extend([
        format!("--audit-policy-file={}", pki.write("policy.yaml", policy.to_string()).display()),
        format!("--audit-webhook-config-file={}", pki.write("webhook.kubeconfig", of_webhook).display()),
        format!("--audit-webhook-batch-buffer-size={BUFFER}"),
        "--audit-webhook-batch-max-size=1".to_owned(),
        "--audit-webhook-batch-throttle-enable=false".to_owned(),
    ]);
    let main = pki.directory.path().join("gateway.yaml");
    let head = std::fs::read_to_string(&main).unwrap();
    pki.write("of-operator.kubeconfig", &config);
    pki.write("of-operator.csv", "three,alice,7\n");
    let own = "clusters: [{name: own, kubeconfig: of-operator.kubeconfig, match: {pathPrefix: /own}, \
               authentication: {tokenAuthFile: of-operator.csv}}]\n";
    std::fs::write(&main, format!("{head}{own}")).unwrap();
    let gateway = Gateway::with(flags);
    for name in ["flood", "own"] {
        trusted(&gateway, name).await;
    }
    (management, gateway)
}

async fn send(client: &mut Client, times: usize, path: &str, token: &str) {
    for _ in 0..times {
        let code = client.code_at(path, &[("authorization", &format!("Bearer {token}"))]).await;
        assert_eq!(code, StatusCode::OK);
    }
}

// threat: tenant-audit-flood
#[tokio::test]
async fn the_events_of_the_operators_cluster_are_stored_while_a_tenant_floods() {
    let pki = Pki::new();
    let (opens, received) = (watch::Sender::new(false), Received::default());
    let webhook = webhook(&pki, &opens, &received).await;
    let backend = FakeBackend::plain(&pki).await;
    let (_management, gateway) = start(&pki, &backend, &webhook).await;

    let mut flood = Client::connect(&gateway, true, None).await;
    let mut calm = Client::connect(&gateway, true, None).await;
    send(&mut flood, BUFFER, "/clusters/flood/api", "one").await;
    for _ in 0..CALM {
        send(&mut calm, 1, "/own/api", "three").await;
        send(&mut flood, 2, "/clusters/flood/api", "one").await;
    }
    opens.send_replace(true);
    let of_alice = || received.lock().unwrap().iter().filter(|user| *user == "alice").count();
    until("all events of the operator's user", || of_alice() == 2 * CALM).await;

    let metrics = gateway.metrics("/metrics").await;
    let dropped = |cluster: &str| {
        sum_metric(&metrics, "portcullis_audit_events_dropped_total", &[&format!("cluster=\"{cluster}\"")])
    };
    assert!(dropped("flood") > 0, "what is lost is the tenant's");
    assert_eq!(dropped("own"), 0);
    assert!(!metrics.contains("portcullis_audit_events_dropped_total{cluster=\"own\""));
}
