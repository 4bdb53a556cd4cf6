//! The operator's audit webhook, which knows the operator's requests by their audit IDs.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::json;
use testkit::{FakeBackend, Pki, ResponseFuture, full};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use super::site::forget_requests;

/// Begins the audit IDs of the operator's requests; a number follows.
pub(crate) const ID_PREFIX: &str = "operator-";
/// Begins such an ID in an event. Events are not parsed: the tenants have thousands per second.
const MARKER: &str = "\"auditID\":\"operator-";
/// How long events may take to arrive after the attack.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct AuditTrail {
    server: Arc<FakeBackend>,
    received: Arc<Mutex<HashSet<u64>>>,
}

impl AuditTrail {
    /// Starts a webhook that takes `delay` for each batch, and writes the policy and the kubeconfig for it.
    pub(crate) async fn start(pki: &Pki, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let received = Arc::<Mutex<HashSet<u64>>>::default();
        let known = Arc::clone(&received);
        let answer = move |request: Request<Incoming>| -> ResponseFuture {
            let known = Arc::clone(&known);
            Box::pin(async move {
                if let Ok(body) = request.into_body().collect().await {
                    let ids = ids(&String::from_utf8_lossy(&body.to_bytes()));
                    known.lock().unwrap().extend(ids);
                }
                sleep(delay).await;
                Response::new(full("{}"))
            })
        };
        let server = Arc::new(FakeBackend::without_client_auth(pki, listener, answer));
        forget_requests(&server);
        let trail = Self { server, received };
        trail.write_files(pki);
        trail
    }

    fn write_files(&self, pki: &Pki) {
        let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata"}]});
        pki.write("audit-policy.yaml", policy.to_string());
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: w, cluster: {{server: 'https://{}', certificate-authority: servers-ca.crt}}}}]\n\
             contexts: [{{name: c, context: {{cluster: w}}}}]\n",
            self.server.address
        );
        pki.write("audit-webhook.kubeconfig", kubeconfig);
    }

    /// How many of these requests have no event. Waits for those that are still on their way.
    pub(crate) async fn lost(&self, answered: &[u64]) -> usize {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        loop {
            let missing = {
                let received = self.received.lock().unwrap();
                answered.iter().filter(|id| !received.contains(id)).count()
            };
            if missing == 0 || Instant::now() > deadline {
                return missing;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The numbers of the operator's requests in a list of events.
fn ids(events: &str) -> Vec<u64> {
    let after = events.match_indices(MARKER).map(|(at, _)| &events[at + MARKER.len()..]);
    after.filter_map(|text| text.split('"').next()?.parse().ok()).collect()
}
