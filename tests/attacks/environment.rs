//! The setup of an attack: a proxy, its clients, and a backend that records requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use testkit::pki::Issued;
use testkit::self_check::{self, respond};
use testkit::wire::handshake_over;
use testkit::{
    FakeBackend, Gateway, H1, H2, Pki, ReceivedRequest, ResponseFuture, TEST_TIMEOUT, cluster_flags, empty,
    flags, full,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use crate::naive;

/// The error if a request did not arrive at the API server.
pub(crate) const LOST: &str = "nothing reached the API server";

/// Paths of the access reviews by which the gateway decides impersonations.
pub(crate) const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";

/// The proxy under attack.
#[derive(Clone)]
pub(crate) enum Proxy {
    Gateway,
    Naive,
    /// A command with the placeholders `{port}`, `{backend}` and `{dir}`.
    Other(String),
}

/// The configuration of the proxy and the API server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// An API server with HTTP/2.
    Nothing,
    /// An API server with HTTP/1.1.
    Http1,
    /// A gateway that decides on `Impersonate-*` headers itself. By default it leaves this to the API server.
    ImpersonationDecision,
    /// A gateway that forwards identities by impersonation.
    Impersonation,
    /// A gateway with a second cluster under `/clusters/other` and `other.example`, beside `/clusters/own`.
    Clusters,
    /// A gateway with the PROXY protocol, whose load balancer is [`LOAD_BALANCER`].
    LoadBalancer,
}

/// The address of the load balancer; the attackers connect from 127.0.0.1.
pub(crate) const LOAD_BALANCER: &str = "127.0.0.2";

/// An API server that records requests, and decides access reviews; it refuses all until an attack lets it allow some.
pub(crate) struct Backend {
    server: FakeBackend,
    pub(crate) address: SocketAddr,
    reviews: Arc<Reviews>,
}

struct Reviews {
    allows: Mutex<fn(&Value) -> bool>,
    /// What was asked, as the `spec` of each review.
    asked: Mutex<Vec<Value>>,
    /// Names of the trailers that have arrived.
    trailers: Mutex<Vec<String>>,
}

pub(crate) struct AttackEnvironment {
    pub(crate) pki: Pki,
    pub(crate) backend: Backend,
    /// The API server of the second cluster.
    pub(crate) other: Option<Backend>,
    pub(crate) address: SocketAddr,
    /// A server that must not receive connections, and their number.
    pub(crate) trap: SocketAddr,
    pub(crate) trapped: Arc<AtomicUsize>,
    pub(crate) alice: Issued,
    /// Whether the API server receives identities in `Impersonate-*` headers.
    pub(crate) impersonates: bool,
    /// Whether the API server decides on `Impersonate-*` headers.
    pub(crate) leaves_impersonation: bool,
    child: Option<Child>,
}

impl Drop for AttackEnvironment {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Backend {
    async fn start(pki: &Pki, alpn: &[&[u8]], trap: SocketAddr) -> Self {
        let reviews = Arc::new(Reviews {
            allows: Mutex::new(|_| false),
            asked: Mutex::default(),
            trailers: Mutex::default(),
        });
        let decider = Arc::clone(&reviews);
        // The gateway asks with its own identity, also in its self-check.
        let self_check = |request: &Request<Incoming>| {
            let is_review = [REVIEWS, RULES].contains(&request.uri().path());
            if is_review { None } else { self_check::answer(request) }
        };
        let server = FakeBackend::with_self_check(pki, alpn, self_check, move |request| {
            if request.uri().path() == REVIEWS {
                return Box::pin(review(Arc::clone(&decider), request));
            }
            let (answering, reviews) = (scripted(&request, trap), Arc::clone(&decider));
            if request.headers().contains_key("upgrade") {
                return answering;
            }
            Box::pin(async move {
                let body = request.into_body().collect().await.ok();
                let trailers = body.and_then(|body| body.trailers().cloned()).unwrap_or_default();
                reviews.trailers.lock().unwrap().extend(trailers.keys().map(ToString::to_string));
                answering.await
            })
        })
        .await;
        Self { address: server.address, server, reviews }
    }

    /// From now on, access reviews are decided by `allows`, which gets their `spec`.
    pub(crate) fn allow(&self, allows: fn(&Value) -> bool) {
        *self.reviews.allows.lock().unwrap() = allows;
    }

    /// Takes the `spec` of each access review so far.
    pub(crate) fn asked(&self) -> Vec<Value> {
        std::mem::take(&mut *self.reviews.asked.lock().unwrap())
    }

    /// Takes the oldest request, whoever sent it.
    pub(crate) fn take_any(&self) -> Option<ReceivedRequest> {
        self.server.take()
    }

    /// Takes the oldest request that is not one of the proxy's own questions.
    pub(crate) fn take(&self) -> Option<ReceivedRequest> {
        std::iter::from_fn(|| self.server.take()).find(|seen| !is_question(seen))
    }

    /// Takes the names of the trailers so far.
    pub(crate) fn trailers(&self) -> Vec<String> {
        std::mem::take(&mut *self.reviews.trailers.lock().unwrap())
    }

    /// The number of received requests that were not taken.
    pub(crate) fn pending(&self) -> usize {
        self.server.pending()
    }
}

async fn review(reviews: Arc<Reviews>, request: Request<Incoming>) -> Response<testkit::BoxedBody> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let allows = *reviews.allows.lock().unwrap();
    let allowed = allows(&review["spec"]);
    reviews.asked.lock().unwrap().push(review["spec"].clone());
    respond(StatusCode::CREATED, &json!({"status": {"allowed": allowed}}))
}

/// Whether the proxy itself asks what a user may do: with its own identity, or for the rules of the user.
pub(crate) fn is_question(seen: &ReceivedRequest) -> bool {
    let is_own = |name: &str| seen.all(name).iter().all(|user| user.starts_with("system:portcullis"));
    match seen.target.split('?').next() {
        Some(REVIEWS) => is_own("x-remote-user") && is_own("impersonate-user"),
        Some(RULES) => true,
        _ => false,
    }
}

/// A parsed response.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl AttackEnvironment {
    pub(crate) async fn start(proxy: &Proxy, needs: Needs) -> Self {
        let pki = Pki::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let trap = listener.local_addr().unwrap();
        let trapped = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&trapped);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ntrapped").await.ok();
            }
        });
        let alpn = if needs == Needs::Http1 { H1 } else { H2 };
        let backend = Backend::start(&pki, alpn, trap).await;
        let mut given = flags(&pki, backend.address);
        if needs == Needs::Impersonation {
            given.push("--identity=impersonate".to_owned());
        }
        if needs == Needs::ImpersonationDecision {
            given.push("--impersonation=gateway".to_owned());
        }
        if needs == Needs::LoadBalancer {
            given.push("--proxy-protocol=any".to_owned());
            given.push(format!("--proxy-protocol-trusted-networks={LOAD_BALANCER}/32"));
        }
        let mut other = None;
        if needs == Needs::Clusters {
            let second = Backend::start(&pki, H2, trap).await;
            given = clusters(&pki, backend.address, second.address);
            other = Some(second);
        }
        let alice = pki.clients.leaf().cn("alice").issue();
        let (address, child) = match proxy {
            Proxy::Naive => (naive::start(&pki, backend.address, needs).await, None),
            Proxy::Gateway => {
                let (address, child) = serve(given).await;
                (address, Some(child))
            }
            Proxy::Other(command) => {
                let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
                let command = command
                    .replace("{port}", &port.port().to_string())
                    .replace("{backend}", &backend.address.to_string())
                    .replace("{dir}", &pki.directory.path().display().to_string());
                let child = Command::new("sh").args(["-c", &format!("exec {command}")]).spawn().unwrap();
                (port, Some(child))
            }
        };
        let environment = Self {
            pki,
            backend,
            other,
            address,
            trap,
            trapped,
            alice,
            impersonates: needs == Needs::Impersonation,
            leaves_impersonation: needs == Needs::Nothing,
            child,
        };
        environment.ready().await;
        environment
    }

    /// Waits until the proxy forwards a request.
    async fn ready(&self) {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        let several = [("/clusters/own/ready", "good-token"), ("/clusters/other/ready", "other-token")];
        let plain = if self.other.is_some() { &several[..] } else { &[("/ready", "good-token")] };
        for (path, token) in plain {
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
            );
            while self.send_request(&request).await.code != 200 {
                assert!(tokio::time::Instant::now() < deadline, "the proxy is not ready");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        for backend in [&self.backend].into_iter().chain(&self.other) {
            while backend.take_any().is_some() {}
        }
    }

    pub(crate) async fn connect(&self, identity: Option<&Issued>) -> Option<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await.ok()?;
        let name = ServerName::try_from("localhost").unwrap();
        handshake_over(name, stream, b"http/1.1", identity).await.ok()
    }

    /// Sends a request byte for byte, without a client certificate.
    /// A TLS connection from this address that begins with a PROXY protocol header, and the response to a request on it.
    pub(crate) async fn send_behind(&self, from: &str, header: &[u8], request: &str) -> Answer {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let mut stream = socket.connect(self.address).await.unwrap();
        stream.write_all(header).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        match handshake_over(name, stream, b"http/1.1", None).await {
            Ok(mut stream) => exchange(&mut stream, request).await,
            Err(_) => Answer::default(),
        }
    }

    pub(crate) async fn send_request(&self, request: &str) -> Answer {
        self.send_request_as(None, request).await
    }

    pub(crate) async fn send_request_as(&self, identity: Option<&Issued>, request: &str) -> Answer {
        match self.connect(identity).await {
            Some(mut stream) => exchange(&mut stream, request).await,
            None => Answer::default(),
        }
    }

    /// The request that the API server received; an error unless there was exactly one.
    pub(crate) fn only(&self) -> Result<ReceivedRequest, String> {
        match (self.backend.take(), self.backend.pending()) {
            (Some(seen), 0) => Ok(seen),
            (None, _) => Err(LOST.to_owned()),
            (Some(_), more) => Err(format!("{more} more requests reached the API server")),
        }
    }

    /// Checks that no request reached the API server.
    pub(crate) fn nothing(&self) -> Result<(), String> {
        match self.backend.take() {
            None => Ok(()),
            Some(seen) => Err(format!("{} reached the API server as {:?}", seen.target, identity(&seen))),
        }
    }

    /// The proxy as a gateway for the test clients.
    pub(crate) fn gateway(&self) -> Gateway {
        Gateway::at(self.address, None)
    }
}

/// The flags of a gateway with two clusters, each with its own tokens and client CA. The files are those of [`flags`].
fn clusters(pki: &Pki, own: SocketAddr, other: SocketAddr) -> Vec<String> {
    pki.write("other-tokens.csv", "other-token,mallory,1,system:masters\nother-carol,carol,7,\"a,b\"\n");
    pki.write("other-clients.crt", pki.client_front.cert_pem());
    let clusters = "
- name: own
  kubeconfig: own.kubeconfig
  impersonation: gateway
  match: {serverNames: [own.example], pathPrefix: /clusters/own}
  authentication: {clientCAFile: clients-ca.crt, tokenAuthFile: tokens.csv, anonymousAuth: false}
- name: other
  kubeconfig: other.kubeconfig
  impersonation: gateway
  match: {serverNames: [other.example], pathPrefix: /clusters/other}
  authentication: {clientCAFile: other-clients.crt, tokenAuthFile: other-tokens.csv, anonymousAuth: false}
";
    let backends = [("own", own.to_string()), ("other", other.to_string())];
    cluster_flags(pki, &["localhost"], &backends, clusters)
}

/// Starts the gateway's binary, and reads the address from its log.
async fn serve(flags: Vec<String>) -> (SocketAddr, Child) {
    let mut child = Command::new(crate::PORTCULLIS)
        .arg("serve")
        .args(flags)
        .arg("--logging-format=json")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = child.stderr.take().unwrap();
    let (address_sender, address) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        use std::io::BufRead as _;
        let mut address_sender = Some(address_sender);
        for line in std::io::BufReader::new(log).lines().map_while(Result::ok) {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            if event["message"] == "serving"
                && let Some(address_sender) = address_sender.take()
            {
                address_sender.send(event["address"].as_str().unwrap().parse().unwrap()).ok();
            }
        }
    });
    (tokio::time::timeout(TEST_TIMEOUT, address).await.unwrap().unwrap(), child)
}

/// The API server's responses, by path.
fn scripted(request: &Request<Incoming>, trap: SocketAddr) -> ResponseFuture {
    let upgrade = request.headers().contains_key("upgrade");
    let answer = match request.uri().path() {
        "/redirect" => Response::builder().status(302).header("location", format!("http://{trap}/")),
        "/switch" => {
            Response::builder().status(101).header("connection", "Upgrade").header("upgrade", "other")
        }
        _ if upgrade => Response::builder().status(403),
        _ => Response::builder().status(200),
    };
    let body = if request.uri().path() == "/switch" { empty() } else { full("ok") };
    Box::pin(async move { answer.body(body).unwrap() })
}

/// Sends bytes and reads one response.
pub(crate) async fn exchange(stream: &mut TlsStream<TcpStream>, request: &str) -> Answer {
    let asking = async {
        stream.write_all(request.as_bytes()).await.ok();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { break };
            head.push(byte);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let code = head.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0);
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).await.ok();
        Answer { code, head, body: String::from_utf8_lossy(&body).into_owned() }
    };
    tokio::time::timeout(Duration::from_secs(10), asking).await.unwrap_or_default()
}

/// All headers that a receiver might interpret as identity, in any spelling, sorted.
pub(crate) fn identity(seen: &ReceivedRequest) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in &seen.headers {
        let folded = name.as_str().replace(['_', '.'], "-").trim().to_lowercase();
        let namespaces = ["x-remote-", "impersonate-", "authorization"];
        if namespaces.iter().any(|namespace| folded.starts_with(namespace)) {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            found.entry(name.to_string()).or_default().push(value);
        }
    }
    found
}
