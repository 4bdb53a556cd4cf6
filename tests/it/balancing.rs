//! Balancing over the endpoints of a cluster: even load, and endpoints that shut down, hang or die.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use serde_json::json;
use testkit::client::Client;
use testkit::self_check;
use testkit::{FakeBackend, Gateway, H2, Pki, full, in_time, text, until};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::endpoints::{at, at_with, several, trusts, trusts_at};

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

/// How an API server behaves, which a test changes.
struct Server {
    backend: FakeBackend,
    /// Whether `/readyz` is 500.
    is_unready: Arc<AtomicBool>,
    /// What it answers.
    answers: watch::Sender<Answers>,
    reads: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
}

/// What a server answers, beside self-checks.
#[derive(Clone, Copy, PartialEq)]
enum Answers {
    All,
    /// Forwarded requests wait.
    Probes,
    Nothing,
}

impl Server {
    async fn start(pki: &Pki, name: &'static str) -> Self {
        let is_unready = Arc::new(AtomicBool::new(false));
        let (answers, answering) = watch::channel(Answers::All);
        let [reads, writes] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let counts = [Arc::clone(&reads), Arc::clone(&writes)];
        let unready = Arc::clone(&is_unready);
        let own = |request: &Request<_>| match request.uri().path() {
            "/readyz" => None,
            _ => self_check::answer(request),
        };
        let backend = FakeBackend::with_self_check(pki, H2, own, move |request| {
            let is_probe = request.uri().path() == "/readyz";
            let [reads, writes] = &counts;
            if !is_probe {
                let count = if request.method() == Method::GET { reads } else { writes };
                count.fetch_add(1, Ordering::SeqCst);
            }
            let (mut answering, unready) = (answering.clone(), Arc::clone(&unready));
            Box::pin(async move {
                let is_answered = |answers: &Answers| match answers {
                    Answers::All => true,
                    Answers::Probes => is_probe,
                    Answers::Nothing => false,
                };
                if answering.wait_for(is_answered).await.is_err() {
                    std::future::pending::<()>().await;
                }
                let mut response = Response::new(full(name));
                if is_probe && unready.load(Ordering::SeqCst) {
                    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                }
                response
            })
        })
        .await;
        Self { backend, is_unready, answers, reads, writes }
    }

    fn requests(&self) -> usize {
        self.reads.load(Ordering::SeqCst) + self.writes.load(Ordering::SeqCst)
    }

    /// Waits for a probe with this result.
    async fn until_probed(&self, gateway: &Gateway, result: &str) {
        let address = self.backend.address;
        let name = format!(
            "portcullis_endpoint_probes_total{{cluster=\"c\",endpoint=\"{address}\",result=\"{result}\"}}"
        );
        let before = gateway.count(&name).await;
        in_time(async { while gateway.count(&name).await == before {} }).await;
    }
}

async fn two(pki: &Pki) -> (Server, Server, Gateway) {
    let (first, second) = (Server::start(pki, "first").await, Server::start(pki, "second").await);
    let gateway = several(pki, &[&first.backend, &second.backend]);
    for server in [&first, &second] {
        trusts(&gateway, &server.backend, true).await;
    }
    (first, second, gateway)
}

type Pending = tokio::task::JoinHandle<(StatusCode, String)>;

/// Sends a request on a connection of its own.
async fn send(gateway: &Gateway, method: Method) -> Pending {
    let mut client = gateway.http1(None).await;
    tokio::spawn(async move {
        let request = Request::builder().method(method).uri("/api").header(TOKEN.0, TOKEN.1);
        let response = client.send(request.body(full("")).unwrap()).await.unwrap();
        (response.status(), text(response).await)
    })
}

#[tokio::test]
async fn requests_in_progress_are_spread_evenly() {
    let pki = Pki::new();
    let (first, second, gateway) = two(&pki).await;
    for server in [&first, &second] {
        server.until_probed(&gateway, "ready").await;
        server.answers.send_replace(Answers::Probes);
    }
    let mut pending = Vec::new();
    for sent in 1..=20 {
        pending.push(send(&gateway, Method::POST).await);
        until("its arrival", || first.requests() + second.requests() == sent).await;
        assert!(first.requests().abs_diff(second.requests()) <= 1, "{sent}");
    }
    for server in [&first, &second] {
        server.answers.send_replace(Answers::All);
    }
    for pending in pending {
        assert_eq!(in_time(pending).await.unwrap().0, StatusCode::OK);
    }
}

#[tokio::test]
async fn an_endpoint_that_shuts_down_gets_no_new_requests() {
    let pki = Pki::new();
    let (first, second, gateway) = two(&pki).await;
    first.is_unready.store(true, Ordering::SeqCst);
    first.until_probed(&gateway, "not_ready").await;
    let before = first.requests();
    for _ in 0..20 {
        assert_eq!(in_time(send(&gateway, Method::GET).await).await.unwrap().1, "second");
    }
    assert_eq!(first.requests(), before);
    // If none is ready, all are used.
    second.is_unready.store(true, Ordering::SeqCst);
    second.until_probed(&gateway, "not_ready").await;
    for _ in 0..20 {
        assert_eq!(in_time(send(&gateway, Method::GET).await).await.unwrap().0, StatusCode::OK);
    }
    assert!(first.requests() > before, "the load is shared again");
}

#[tokio::test]
async fn reads_that_wait_at_a_silent_endpoint_go_to_another_one() {
    let pki = Pki::new();
    let (first, second, gateway) = two(&pki).await;
    first.until_probed(&gateway, "ready").await;
    first.answers.send_replace(Answers::Nothing);
    let mut pending = Vec::new();
    in_time(async {
        while first.reads.load(Ordering::SeqCst) == 0 {
            pending.push(send(&gateway, Method::GET).await);
        }
    })
    .await;
    for pending in pending {
        let (code, name) = in_time(pending).await.unwrap();
        assert_eq!((code, name.as_str()), (StatusCode::OK, "second"));
    }
    // New requests do not wait, writes included.
    let writes = first.writes.load(Ordering::SeqCst);
    for _ in 0..20 {
        assert_eq!(in_time(send(&gateway, Method::POST).await).await.unwrap().1, "second");
    }
    assert_eq!(first.writes.load(Ordering::SeqCst), writes);
    assert_eq!(second.writes.load(Ordering::SeqCst), 20);
    // Once it answers again, it is used again.
    first.answers.send_replace(Answers::All);
    let before = first.requests();
    in_time(async {
        while first.requests() == before {
            send(&gateway, Method::GET).await.await.unwrap();
        }
    })
    .await;
}

/// A relay to a server. While it is frozen, it accepts connections and carries no byte, like a stopped process.
pub(crate) async fn freezable(server: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    async fn carry(
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        mut frozen: watch::Receiver<bool>,
    ) {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if frozen.wait_for(|frozen| !*frozen).await.is_err()
                || to.write_all(&buffer[..length]).await.is_err()
            {
                return;
            }
        }
    }
    let (freeze, frozen) = watch::channel(false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let frozen = frozen.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(server).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (tokio::io::split(client), tokio::io::split(server));
                tokio::select! {
                    () = carry(from_client, to_server, frozen.clone()) => {}
                    () = carry(from_server, to_client, frozen) => {}
                }
            });
        }
    });
    (address, freeze)
}

/// Tunnels need new connections. Nothing of them was sent, so they go elsewhere without a retry, writes included.
#[tokio::test]
async fn requests_that_wait_for_a_connection_to_a_silent_endpoint_go_to_another_one() {
    // The TLS handshake with a stopped process would time out after 10 s.
    const MAX_WAIT: Duration = Duration::from_secs(8);
    let pki = Pki::new();
    let (first, second) = (Server::start(&pki, "first").await, Server::start(&pki, "second").await);
    let (address, freeze) = freezable(first.backend.address).await;
    let gateway = at(&pki, &[address, second.backend.address]);
    trusts_at(&gateway, address, true).await;
    trusts(&gateway, &second.backend, true).await;
    second.until_probed(&gateway, "ready").await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(gateway.http1(None).await);
    }
    freeze.send_replace(true);
    let pending = clients.into_iter().map(|mut client| {
        tokio::spawn(async move {
            let request = Request::post("/api/v1/namespaces/n/pods/p/exec").header(TOKEN.0, TOKEN.1);
            let request = request.header("connection", "Upgrade").header("upgrade", "SPDY/3.1");
            text(client.send(request.body(full("")).unwrap()).await.unwrap()).await
        })
    });
    for pending in pending.collect::<Vec<_>>() {
        let answer = tokio::time::timeout(MAX_WAIT, pending).await.expect("no handshake is waited for");
        assert_eq!(answer.unwrap(), "second");
    }
    assert_eq!(first.requests(), 0);
}

/// Reads are sent again elsewhere; a write that may have been processed is not.
#[tokio::test]
async fn only_reads_are_sent_again_when_a_server_dies() {
    let pki = Pki::new();
    let (first, second, gateway) = two(&pki).await;
    for server in [&first, &second] {
        server.until_probed(&gateway, "ready").await;
        server.answers.send_replace(Answers::Probes);
    }
    let mut pending = Vec::new();
    for sent in 1..=12 {
        let method = if sent % 4 < 2 { Method::POST } else { Method::GET };
        pending.push((method.clone(), send(&gateway, method).await));
        until("its arrival", || first.requests() + second.requests() == sent).await;
    }
    let (lost_writes, writes) = (first.writes.load(Ordering::SeqCst), Arc::clone(&second.writes));
    let kept_writes = writes.load(Ordering::SeqCst);
    drop(first);
    second.answers.send_replace(Answers::All);
    let mut failed = 0;
    for (method, pending) in pending {
        let (code, _) = in_time(pending).await.unwrap();
        if code != StatusCode::OK {
            assert_eq!((method, code), (Method::POST, StatusCode::BAD_GATEWAY));
            failed += 1;
        }
    }
    assert_eq!(failed, lost_writes);
    assert_eq!(writes.load(Ordering::SeqCst), kept_writes, "no write was sent twice");
    for _ in 0..5 {
        assert_eq!(in_time(send(&gateway, Method::POST).await).await.unwrap().0, StatusCode::OK);
    }
}

/// API servers of two clusters as one: only the first one's get requests, even while it is down.
#[tokio::test]
async fn an_endpoint_of_another_cluster_is_refused() {
    const MAP: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let pki = Pki::new();
    let with_uid = |uid: Arc<Mutex<&'static str>>| {
        move |request: &Request<_>| {
            let own = self_check::answer(request)?;
            if request.uri().path() != MAP {
                return Some(own);
            }
            let uid = *uid.lock().unwrap();
            // Until the first one has decided.
            let code = if uid.is_empty() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
            Some(self_check::respond(code, &json!({"kind": "ConfigMap", "metadata": {"uid": uid}})))
        }
    };
    let ok = |_| -> testkit::ResponseFuture { Box::pin(async { Response::new(full("ok")) }) };
    let [one, other] = ["a", ""].map(|uid| Arc::new(Mutex::new(uid)));
    let first = FakeBackend::with_self_check(&pki, H2, with_uid(Arc::clone(&one)), ok).await;
    let second = FakeBackend::with_self_check(&pki, H2, with_uid(Arc::clone(&other)), ok).await;
    let gateway = several(&pki, &[&first, &second]);
    trusts(&gateway, &first, true).await;
    *other.lock().unwrap() = "b";
    let address = second.address;
    let refused = format!(
        "portcullis_self_checks_total{{cluster=\"c\",endpoint=\"{address}\",result=\"other_cluster\"}}"
    );
    in_time(async { while gateway.count(&refused).await == 0 {} }).await;
    trusts(&gateway, &second, false).await;
    drop(first);
    trusts_not_any(&gateway).await;
    let checks = gateway.count(&refused).await;
    in_time(async { while gateway.count(&refused).await == checks {} }).await;
    assert_eq!(in_time(send(&gateway, Method::GET).await).await.unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(second.pending(), 0);
    // It is used once it shows the UID of the cluster.
    *other.lock().unwrap() = "a";
    trusts(&gateway, &second, true).await;
}

/// A client could otherwise keep every endpoint from the requests of others.
#[tokio::test]
async fn uploads_that_break_off_eject_no_endpoint() {
    let pki = Pki::new();
    let (first, second, gateway) = two(&pki).await;
    for server in [&first, &second] {
        server.until_probed(&gateway, "ready").await;
        server.answers.send_replace(Answers::Probes);
    }
    for sent in 1..=8 {
        let mut client = gateway.tls(b"http/1.1", None).await;
        let (name, token) = TOKEN;
        let head = format!(
            "POST /api/v1/namespaces/d/configmaps HTTP/1.1\r\nHost: a\r\n{name}: {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        until("its arrival", || first.requests() + second.requests() == sent).await;
        client.write_all(b"zz\r\n").await.unwrap();
        let mut answer = Vec::new();
        in_time(client.read_to_end(&mut answer)).await.ok();
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
    }
    let clusters = gateway.metrics("/clusters").await;
    assert_eq!(clusters.matches("\"ejected\":false").count(), 2, "{clusters}");
}

/// Waits until no endpoint is trusted.
async fn trusts_not_any(gateway: &Gateway) {
    in_time(async {
        while send(gateway, Method::GET).await.await.unwrap().0 != StatusCode::SERVICE_UNAVAILABLE {}
    })
    .await;
}

/// A client that keeps many requests in progress, and another one.
// threat: endpoint-flood
#[tokio::test]
async fn one_user_does_not_take_all_that_an_endpoint_carries() {
    let pki = Pki::new();
    let server = Server::start(&pki, "only").await;
    pki.write("two.csv", "good-token,carol,7\nother-token,alice,8\n");
    let keys = ", maxRequestsPerEndpoint: 16, authentication: {tokenAuthFile: two.csv}";
    let gateway = at_with(&pki, &[server.backend.address], keys);
    trusts(&gateway, &server.backend, true).await;
    server.answers.send_replace(Answers::Probes);
    let mut flood = Vec::new();
    // Half of the bound, and an eighth.
    for sent in 1..=10 {
        flood.push(send(&gateway, Method::POST).await);
        until("its arrival", || server.requests() == sent).await;
    }
    for _ in 0..3 {
        let (code, _) = in_time(send(&gateway, Method::POST).await).await.unwrap();
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
    }
    let mut other = Client::connect(&gateway, true, None).await;
    let calm = tokio::spawn(async move { other.code(&[("authorization", "Bearer other-token")]).await });
    until("her request", || server.requests() == 11).await;
    server.answers.send_replace(Answers::All);
    assert_eq!(in_time(calm).await.unwrap(), StatusCode::OK);
    for pending in flood {
        assert_eq!(in_time(pending).await.unwrap().0, StatusCode::OK);
    }
}

/// Clients that keep many requests in progress.
// threat: endpoint-flood
#[tokio::test]
async fn an_endpoint_gets_a_bounded_number_of_requests() {
    let pki = Pki::new();
    let (first, second) = (Server::start(&pki, "first").await, Server::start(&pki, "second").await);
    let addresses = [first.backend.address, second.backend.address];
    let gateway = at_with(&pki, &addresses, ", maxRequestsPerEndpoint: 2");
    for server in [&first, &second] {
        trusts(&gateway, &server.backend, true).await;
        server.answers.send_replace(Answers::Probes);
    }
    let mut flood = Vec::new();
    for sent in 1..=4 {
        flood.push(send(&gateway, Method::POST).await);
        until("its arrival", || first.requests() + second.requests() == sent).await;
    }
    assert_eq!([first.requests(), second.requests()], [2, 2]);
    for _ in 0..10 {
        let mut client = gateway.http1(None).await;
        let refused = in_time(client.get("/api", &[TOKEN])).await;
        assert_eq!(refused.headers()["retry-after"], "1");
        let (code, body) = testkit::status(refused).await;
        assert_eq!(
            (code, body["reason"].as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, Some("ServiceUnavailable"))
        );
        assert!(body["message"].as_str().unwrap().contains("too many requests in progress"), "{body}");
    }
    assert_eq!([first.requests(), second.requests()], [2, 2]);
    // Self-checks pass all the while.
    for server in [&first, &second] {
        trusts(&gateway, &server.backend, true).await;
        server.answers.send_replace(Answers::All);
    }
    for pending in flood {
        assert_eq!(in_time(pending).await.unwrap().0, StatusCode::OK);
    }
    assert_eq!(in_time(send(&gateway, Method::GET).await).await.unwrap().0, StatusCode::OK);
}
