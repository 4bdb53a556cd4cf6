//! Streams end with the credential that opened them, on HTTP/1.1, on HTTP/2 and in tunnels; others go on.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::json;
use testkit::body::{Frames, fed};
use testkit::client::Client;
use testkit::issuer::{Issuer, SigningKey};
use testkit::pki::Issued;
use testkit::{FakeBackend, Gateway, Http1, Http2, Pki, flags, get, in_time, now, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::gateway::InProcess as _;
use crate::streams::{CONSOLE, Streams, UPLOAD, backend, tunnel};

const WATCH: &str = "/api/v1/pods?watch=true";
const EXEC: &str = "/api/v1/namespaces/n/pods/p/exec";
const ENDED: &str = "portcullis_streams_ended_with_credential_total";

/// The streams of one client, and a watch that never pauses.
struct BusyStreams {
    streams: Streams,
    busy: (Incoming, tokio::task::JoinHandle<()>),
    _connections: (Http1, Http2, Http1, Http1),
}

impl BusyStreams {
    async fn open(
        (mut one, mut two, mut three, mut four): (Http1, Http2, Http1, Http1),
        headers: &[(&str, &str)],
        opened: &mut mpsc::UnboundedReceiver<Frames>,
    ) -> Self {
        let mut watches = Vec::new();
        let response = one.get(WATCH, headers).await;
        assert_eq!(response.status(), StatusCode::OK);
        watches.push((response.into_body(), in_time(opened.recv()).await.unwrap()));
        let response = two.get(WATCH, headers).await;
        assert_eq!(response.status(), StatusCode::OK);
        watches.push((response.into_body(), in_time(opened.recv()).await.unwrap()));
        let response = four.get(WATCH, headers).await;
        let frames = in_time(opened.recv()).await.unwrap();
        let flood = tokio::spawn(async move {
            while frames.send(Frame::data(Bytes::from_static(b"event\n"))).is_ok() {
                tokio::task::yield_now().await;
            }
        });
        let busy = (response.into_body(), flood);
        let tunnel = tunnel(&mut three, EXEC, headers).await;
        Self { streams: Streams { watches, tunnel }, busy, _connections: (one, two, three, four) }
    }

    /// Everything ends, and no watch is cut off within a line.
    async fn end(self) {
        let Self { streams, busy, _connections } = self;
        assert_eq!(streams.end().await, ["begin\n", "begin\n"]);
        let (body, flood) = busy;
        let whole = in_time(body.collect()).await.expect("the end is no error").to_bytes();
        assert!(whole.ends_with(b"event\n"));
        in_time(flood).await.unwrap();
    }

    /// Everything goes on.
    async fn goes_on(mut self) {
        self.streams.go_on().await;
        self.busy.1.abort();
    }
}

async fn connections(gateway: &Gateway, who: Option<&Issued>) -> (Http1, Http2, Http1, Http1) {
    let (one, two) = (gateway.http1(who).await, gateway.http2(who).await);
    (one, two, gateway.http1(who).await, gateway.http1(who).await)
}

fn terminating(pki: &Pki, backend: &FakeBackend, more: &[String]) -> Gateway {
    let mut given = flags(pki, backend.address);
    given.push("--terminate-streams-on-credential-expiry".to_owned());
    given.extend_from_slice(more);
    Gateway::with(given)
}

#[tokio::test]
async fn streams_end_when_their_certificate_expires() {
    let pki = Pki::new();
    let (backend, mut opened) = backend(&pki).await;
    let gateway = terminating(&pki, &backend, &[]);
    gateway.checked().await;
    let brief = pki.clients.leaf().cn("alice").validity(now() - 60, now() + 5).issue();
    let long = pki.clients.leaf().cn("bob").issue();
    let ending = BusyStreams::open(connections(&gateway, Some(&brief)).await, &[], &mut opened).await;
    let staying = BusyStreams::open(connections(&gateway, Some(&long)).await, &[], &mut opened).await;
    ending.end().await;
    staying.goes_on().await;
    assert_eq!(gateway.count_all(ENDED, &["reason=\"expired\""]).await, 4);
}

#[tokio::test]
async fn streams_end_when_their_token_expires() {
    let pki = Pki::new();
    let (backend, mut opened) = backend(&pki).await;
    let key = SigningKey::new("one");
    let issuer = Issuer::start(&pki, &[&key]).await;
    let ca = pki.write("issuer-ca.crt", pki.servers.cert_pem());
    let gateway = terminating(
        &pki,
        &backend,
        &[
            format!("--oidc-issuer-url={}", issuer.url),
            "--oidc-client-id=kubernetes".to_owned(),
            "--oidc-username-claim=sub".to_owned(),
            "--oidc-signing-algs=ES256".to_owned(),
            format!("--oidc-ca-file={}", ca.display()),
        ],
    );
    gateway.checked().await;
    let bearer = |lifetime: i64| {
        let claims = json!({"iss": issuer.url, "aud": "kubernetes", "sub": "alice", "exp": now() + lifetime});
        format!("Bearer {}", key.sign(&claims))
    };
    let long = bearer(3600);
    // Until the keys of the issuer are known.
    let deadline = tokio::time::Instant::now() + testkit::TEST_TIMEOUT;
    let mut client = gateway.http1(None).await;
    while client.get("/api", &[("authorization", &long)]).await.status() != StatusCode::OK {
        assert!(tokio::time::Instant::now() < deadline, "the issuer's keys are not read");
        client = gateway.http1(None).await;
    }
    let brief = bearer(5);
    let ending =
        BusyStreams::open(connections(&gateway, None).await, &[("authorization", &brief)], &mut opened).await;
    let staying =
        BusyStreams::open(connections(&gateway, None).await, &[("authorization", &long)], &mut opened).await;
    ending.end().await;
    staying.goes_on().await;
    assert_eq!(gateway.count_all(ENDED, &["reason=\"expired\""]).await, 4);
}

#[tokio::test]
async fn streams_end_when_a_reload_removes_their_token() {
    let pki = Pki::new();
    let (backend, mut opened) = backend(&pki).await;
    let gateway = terminating(&pki, &backend, &[]);
    gateway.checked().await;
    let tokens = pki.write("tokens.csv", "one,alice,1\ntwo,bob,2,\"a\"\nthree,carol,3\n");
    let before = gateway.generation().await;
    gateway.server().reload();
    gateway.reloaded(before).await;
    let removed =
        BusyStreams::open(connections(&gateway, None).await, &[("authorization", "Bearer one")], &mut opened)
            .await;
    let changed =
        BusyStreams::open(connections(&gateway, None).await, &[("authorization", "Bearer two")], &mut opened)
            .await;
    let staying = BusyStreams::open(
        connections(&gateway, None).await,
        &[("authorization", "Bearer three")],
        &mut opened,
    )
    .await;
    // Alice is gone, and Bob has lost a group.
    std::fs::write(tokens, "two,bob,2\nthree,carol,3\n").unwrap();
    let before = gateway.generation().await;
    gateway.server().reload();
    gateway.reloaded(before).await;
    removed.end().await;
    changed.end().await;
    staying.goes_on().await;
    assert_eq!(gateway.count_all(ENDED, &["reason=\"refused\""]).await, 8);
}

#[tokio::test]
async fn streams_end_when_their_credential_is_denied() {
    let pki = Pki::new();
    let (backend, mut opened) = backend(&pki).await;
    let list = pki.write("denied", "# none\n");
    let gateway = terminating(&pki, &backend, &[format!("--credential-deny-list-file={}", list.display())]);
    gateway.checked().await;
    let [alice, bob] = ["alice", "bob"].map(|name| pki.clients.leaf().cn(name).issue());
    let denied = BusyStreams::open(connections(&gateway, Some(&alice)).await, &[], &mut opened).await;
    let staying = BusyStreams::open(connections(&gateway, Some(&bob)).await, &[], &mut opened).await;
    std::fs::write(list, "user=alice\n").unwrap();
    denied.end().await;
    staying.goes_on().await;
    assert_eq!(gateway.count_all(ENDED, &["reason=\"refused\""]).await, 4);
}

/// A gateway with a deny list, and the list.
async fn denying(
    pki: &Pki,
    more: &[&str],
) -> (FakeBackend, mpsc::UnboundedReceiver<Frames>, Gateway, std::path::PathBuf) {
    let (backend, opened) = backend(pki).await;
    let list = pki.write("denied", "# none\n");
    let file = format!("--credential-deny-list-file={}", list.display());
    let more: Vec<String> = more.iter().map(ToString::to_string).chain([file]).collect();
    let gateway = terminating(pki, &backend, &more);
    gateway.checked().await;
    (backend, opened, gateway, list)
}

#[tokio::test]
async fn tunnels_of_other_paths_end() {
    let pki = Pki::new();
    let (_backend, _opened, gateway, list) = denying(&pki, &[]).await;
    let alice = pki.clients.leaf().cn("alice").issue();
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
    let mut client = gateway.http1(Some(&alice)).await;
    let response = client.send(get(CONSOLE, &upgrade)).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut tunnel = TokioIo::new(in_time(hyper::upgrade::on(response)).await.unwrap());
    tunnel.write_all(b"x").await.unwrap();
    let mut read = [0; 1];
    assert_eq!(in_time(tunnel.read(&mut read)).await.unwrap(), 1);
    std::fs::write(list, "user=alice\n").unwrap();
    assert_eq!(in_time(tunnel.read(&mut read)).await.unwrap_or(0), 0, "the tunnel is closed");
}

#[tokio::test]
async fn a_request_that_is_never_answered_ends() {
    let pki = Pki::new();
    let (backend, _opened, gateway, list) = denying(&pki, &[]).await;
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    let (frames, body, _) = fed();
    frames.send(Frame::data("part".into())).unwrap();
    let request = Request::post(format!("https://localhost{UPLOAD}")).body(body).unwrap();
    let upload = tokio::spawn(async move { client.send(request).await.unwrap().status() });
    until("the API server has the request", || backend.take().is_some_and(|seen| seen.target == UPLOAD))
        .await;
    std::fs::write(list, "user=alice\n").unwrap();
    assert_eq!(in_time(upload).await.unwrap(), StatusCode::UNAUTHORIZED);
    until("the upload is stopped", || frames.is_closed()).await;
}

#[tokio::test]
async fn a_stream_ends_when_its_impersonated_user_is_denied() {
    let pki = Pki::new();
    let (_backend, mut opened, gateway, list) = denying(&pki, &["--impersonation=backend"]).await;
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    let mut watch = async |user: &str| {
        let response = client.get(WATCH, &[("impersonate-user", user)]).await;
        assert_eq!(response.status(), StatusCode::OK);
        (response.into_body(), in_time(opened.recv()).await.unwrap())
    };
    let (bob, _bob) = watch("bob").await;
    let (mut carol, frames) = watch("carol").await;
    std::fs::write(list, "user=bob\n").unwrap();
    assert_eq!(in_time(bob.collect()).await.unwrap().to_bytes(), "begin\n");
    frames.send(Frame::data("more\n".into())).unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"more\n") {
        let frame = in_time(carol.frame()).await.expect("the other watch goes on").unwrap();
        seen.extend_from_slice(&frame.into_data().unwrap());
    }
}

#[tokio::test]
async fn a_stream_ends_although_its_client_does_not_read() {
    let pki = Pki::new();
    let (_backend, mut opened, gateway, list) = denying(&pki, &[]).await;
    let alice = pki.clients.leaf().cn("alice").issue();
    for http2 in [false, true] {
        let mut client = Client::narrow(&gateway, http2, Some(&alice)).await;
        let response = client.get(WATCH, &[]).await;
        assert_eq!(response.status(), StatusCode::OK);
        let frames = in_time(opened.recv()).await.unwrap();
        // More than fits into all buffers between the API server and the client.
        for _ in 0..1024 {
            frames.send(Frame::data("event\n".repeat(1 << 10).into())).unwrap();
        }
        std::fs::write(&list, "user=alice\n").unwrap();
        until("the stream to the API server is closed", || frames.is_closed()).await;
        drop(response);
        std::fs::write(&list, "# none\n").unwrap();
        until_accepted(&gateway, &alice).await;
    }
}

/// Waits until new requests of this client are accepted again.
async fn until_accepted(gateway: &Gateway, who: &Issued) {
    let deadline = tokio::time::Instant::now() + testkit::TEST_TIMEOUT;
    while Client::connect(gateway, false, Some(who)).await.code(&[]).await != StatusCode::OK {
        assert!(tokio::time::Instant::now() < deadline, "the list is not read again");
    }
}
