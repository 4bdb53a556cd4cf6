//! An API server that accepts connections and completes no handshake, while connections that were open before, such as that
//! of the self-check, go on; and a client that goes on sending requests to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Request, StatusCode};
use testkit::bystanders::Bystanders;
use testkit::wire::held;
use testkit::{FakeBackend, Gateway, Http1, Pki, cluster_flags, full, in_time, status, text};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::gateway::InProcess as _;

/// The most connection attempts in progress of one user and of all, and those that cannot be told apart in advance: the
/// lanes of all users, self-checks and probes.
const MAX_CONNECTS_PER_USER: usize = 32;
const OTHER_CONNECTS: usize = 24;
/// The most requests of one user that wait for a connection that users share.
const MAX_WAITING: usize = 512;
/// The same for the connections of one user alone.
const MAX_WAITING_OF_USER: usize = 256;
/// The default of `--http2-max-streams-per-connection`.
const MAX_STREAMS: usize = 100;

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");
const OTHER_TOKEN: (&str, &str) = ("authorization", "Bearer other-token");

/// A relay to a server. Once it hangs, it accepts connections and carries none of their bytes.
async fn relay(server: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let hangs = Arc::new(AtomicBool::new(false));
    let hanging = Arc::clone(&hangs);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let hangs = hanging.load(Ordering::SeqCst);
            tokio::spawn(async move {
                if hangs {
                    // Until the gateway gives up.
                    tokio::io::copy(&mut client, &mut tokio::io::sink()).await.ok();
                    return;
                }
                let mut server = TcpStream::connect(server).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
            });
        }
    });
    (address, hangs)
}

/// A gateway of two clusters on one worker thread. The API server of `hung` has passed its self-check, and hangs since.
struct HungCluster {
    gateway: Arc<Gateway>,
    /// The port of the API server.
    port: u16,
    others: Bystanders,
    _backends: [FakeBackend; 2],
    _pki: Pki,
}

impl HungCluster {
    async fn start() -> Self {
        let pki = Pki::new();
        let (hung, calm) = (FakeBackend::plain(&pki).await, FakeBackend::plain(&pki).await);
        let (address, hangs) = relay(hung.address).await;
        pki.write("tokens.csv", "good-token,mallory,7\nother-token,carol,8\n");
        pki.write("clients.crt", pki.clients.cert_pem());
        let clusters = "
- {name: hung, kubeconfig: hung.kubeconfig, match: {pathPrefix: /clusters/hung}, authentication: {tokenAuthFile: tokens.csv}}
- {name: calm, kubeconfig: calm.kubeconfig, match: {pathPrefix: /clusters/calm}, authentication: {clientCAFile: clients.crt}}
";
        let backends = [("hung", address.to_string()), ("calm", calm.address.to_string())];
        let gateway = Arc::new(Gateway::with(cluster_flags(&pki, &["localhost"], &backends, clusters)));
        for (name, address) in &backends {
            let line = format!("portcullis_endpoint_trusted{{cluster=\"{name}\",endpoint=\"{address}\"}} 1");
            gateway.until_counted(&line).await;
        }
        hangs.store(true, Ordering::SeqCst);
        let bob = Arc::new(pki.clients.leaf().cn("bob").issue());
        let others = Bystanders::start(&gateway, &bob, "/clusters/calm/api/v1/nodes/one").await;
        Self { gateway, port: address.port(), others, _backends: [hung, calm], _pki: pki }
    }

    /// Waits until as many watches and tunnels are in progress at the API server, or wait for it.
    async fn until_in_progress(&self, count: usize) {
        let start = "portcullis_endpoint_requests_in_flight{cluster=\"hung\",";
        let end = format!("kind=\"watch\"}} {count}");
        let is_reached = |line: &str| line.starts_with(start) && line.ends_with(&end);
        self.gateway.until_counted_as(&end, is_reached).await;
    }

    /// Sends as many requests at once, each again when it is refused, and waits until all are in progress.
    async fn flood(&self, path: &'static str, count: usize) -> JoinSet<()> {
        let mut flood = JoinSet::new();
        let mut clients = Vec::new();
        for sent in 0..count {
            if sent % MAX_STREAMS == 0 {
                clients.push(self.gateway.http2(None).await);
            }
            let mut client = clients.last().unwrap().share();
            flood.spawn(async move {
                loop {
                    let response = client.get(path, &[TOKEN]).await;
                    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
                    text(response).await;
                }
            });
        }
        self.until_in_progress(count).await;
        flood
    }

    /// Waits until another request of the flood's user is refused, because there is no place to wait.
    async fn until_refused(&self, path: &str) {
        let mut late = self.gateway.http2(None).await;
        in_time(async {
            loop {
                let refused = late.get(path, &[TOKEN]).await;
                assert_eq!(refused.headers()["retry-after"], "1");
                let (code, body) = status(refused).await;
                assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
                if body["message"].as_str().unwrap().contains("too many requests in progress") {
                    break;
                }
            }
        })
        .await;
    }
}

/// Sends a request of another user, which waits beside those of the flood.
async fn other_user_waits(setup: &HungCluster, flood: &mut JoinSet<()>, path: &'static str, others: usize) {
    let mut other = setup.gateway.http2(None).await;
    flood.spawn(async move {
        loop {
            let response = other.get(path, &[OTHER_TOKEN]).await;
            let (_, body) = status(response).await;
            let message = body["message"].as_str().unwrap();
            assert!(!message.contains("too many requests in progress"), "{message}");
        }
    });
    setup.until_in_progress(others + 1).await;
}

/// Each tunnel has a connection of its own.
// threat: hung-endpoint
#[tokio::test]
async fn tunnels_to_a_hung_endpoint_open_a_bounded_number_of_connections() {
    const TUNNELS: usize = 120;
    let setup = HungCluster::start().await;
    let mut flood = JoinSet::new();
    for _ in 0..TUNNELS {
        let mut client: Http1 = setup.gateway.http1(None).await;
        flood.spawn(async move {
            loop {
                let request = Request::post("/clusters/hung/api/v1/namespaces/n/pods/p/exec");
                let request = request.header("connection", "Upgrade").header("upgrade", "SPDY/3.1");
                let request = request.header(TOKEN.0, TOKEN.1).body(full("")).unwrap();
                let response = client.send(request).await.unwrap();
                assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
                text(response).await;
            }
        });
    }
    setup.until_in_progress(TUNNELS).await;
    setup.others.go_on().await;
    let connections = held(setup.port).len();
    assert!((1..=MAX_CONNECTS_PER_USER + OTHER_CONNECTS).contains(&connections), "{connections}");
    setup.others.were_undisturbed().await;
    assert!(flood.try_join_next().is_none());
}

/// Watches share connections, and one attempt. Those beyond the bound of their user are refused at once.
// threat: hung-endpoint
#[tokio::test]
async fn a_bounded_number_of_requests_waits_for_a_hung_endpoint() {
    const WATCH: &str = "/clusters/hung/api/v1/pods?watch=1";
    let setup = HungCluster::start().await;
    let mut flood = setup.flood(WATCH, MAX_WAITING).await;
    setup.until_refused(WATCH).await;
    let connections = held(setup.port).len();
    assert!((1..=OTHER_CONNECTS).contains(&connections), "{connections}");
    other_user_waits(&setup, &mut flood, WATCH, MAX_WAITING).await;
    setup.others.were_undisturbed().await;
    assert!(flood.try_join_next().is_none());
}

/// Logs of pods use connections of their user alone. So many of one user may wait that others can wait, too.
// threat: hung-endpoint
#[tokio::test]
async fn requests_of_one_user_leave_places_to_wait_to_others() {
    const LOG: &str = "/clusters/hung/api/v1/namespaces/n/pods/p/log?follow=true";
    let setup = HungCluster::start().await;
    let mut flood = setup.flood(LOG, MAX_WAITING_OF_USER).await;
    setup.until_refused(LOG).await;
    other_user_waits(&setup, &mut flood, LOG, MAX_WAITING_OF_USER).await;
    setup.others.were_undisturbed().await;
    assert!(flood.try_join_next().is_none());
}
