//! Issuers and webhooks that are down, slow, unreachable or hostile: their own tokens get a plain 401 in time, the log
//! has the cause, and all other clients are served.

mod issuers;
mod tokens;
mod webhooks;

use std::path::Path;
use std::sync::Arc;

use http::{Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::gateway_process::GatewayProcess;
use testkit::issuer::respond;
use testkit::pki::Issued;
use testkit::{FakeBackend, Pki, ResponseFuture, flags, status, text};
use tokio::net::TcpListener;

use crate::gateway::start_process;

/// A gateway as a process, so that its log and its memory can be inspected, and a client with a certificate.
struct LoggedGateway {
    _backend: FakeBackend,
    process: GatewayProcess,
    alice: Issued,
}

impl LoggedGateway {
    async fn new(pki: &Pki, further: impl IntoIterator<Item = String>) -> Self {
        let backend = FakeBackend::plain(pki).await;
        let process = start_process(flags(pki, backend.address).into_iter().chain(further)).await;
        Self { _backend: backend, process, alice: pki.clients.leaf().cn("alice").issue() }
    }

    async fn get(&self, path: &str, token: &str) -> Response<Incoming> {
        let bearer = format!("Bearer {token}");
        self.process.gateway.http2(None).await.get(path, &[("authorization", &bearer)]).await
    }

    /// The status code for a token; a refusal must contain no details.
    async fn code(&self, path: &str, token: &str) -> StatusCode {
        let response = self.get(path, token).await;
        if response.status() != StatusCode::UNAUTHORIZED {
            let code = response.status();
            text(response).await;
            return code;
        }
        let (code, body) = status(response).await;
        assert_eq!(body, unauthorized());
        code
    }

    /// Checks that a client certificate and a token of the static file are accepted.
    async fn others_are_served(&self) {
        let mut client = self.process.gateway.http1(Some(&self.alice)).await;
        assert_eq!(text(client.get("/api", &[]).await).await, "ok", "with a certificate");
        assert_eq!(self.code("/api", "good-token").await, 200, "with a token of the file");
    }

    /// The gateway's peak memory, in KiB.
    fn most_memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(Path::new(&path)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Stops the gateway; its log must contain each of `expected` and none of `secrets`.
    async fn logged(self, expected: &[&str], secrets: &[&str]) {
        let (_, log) = self.process.end().await;
        for text in expected {
            assert!(log.contains(text), "{text:?} is not in\n{log}");
        }
        for secret in secrets {
            assert!(!log.contains(secret), "{secret:?} is in\n{log}");
        }
    }
}

fn unauthorized() -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "Unauthorized",
        "reason": "Unauthorized", "code": 401,
    })
}

/// A response without delay.
fn ready(status: u16, content_type: &str, body: impl Into<bytes::Bytes>) -> ResponseFuture {
    let response = respond(status, content_type, body);
    Box::pin(async { response })
}

/// A redirect to another server.
fn elsewhere(target: &FakeBackend) -> ResponseFuture {
    let mut response = respond(302, "text/html", "");
    let location = format!("https://{}/", target.address).parse().unwrap();
    response.headers_mut().insert("location", location);
    Box::pin(async { response })
}

/// A server that must receive no request.
async fn target(pki: &Pki) -> Arc<FakeBackend> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Arc::new(FakeBackend::without_client_auth(pki, listener, |_| ready(200, "application/json", "{}")))
}
