//! Issuers and webhooks that are down, slow, lost or hostile: their own tokens are refused in time with a plain 401,
//! the log says why, and all other clients are served.

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
use testkit::{Backend, Pki, ResponseFuture, flags, status, text};
use tokio::net::TcpListener;

use crate::gateway::start_process;

/// A gateway as a process, so that its log and its memory can be inspected, and a client with a certificate.
struct LoggedGateway {
    _backend: Backend,
    process: GatewayProcess,
    alice: Issued,
}

impl LoggedGateway {
    async fn new(pki: &Pki, further: impl IntoIterator<Item = String>) -> Self {
        let backend = Backend::plain(pki).await;
        let process = start_process(flags(pki, backend.address).into_iter().chain(further)).await;
        Self { _backend: backend, process, alice: pki.clients.leaf().cn("alice").issue() }
    }

    async fn get(&self, path: &str, token: &str) -> Response<Incoming> {
        let bearer = format!("Bearer {token}");
        self.process.gateway.http2(None).await.get(path, &[("authorization", &bearer)]).await
    }

    /// The code that a token gets; if it is refused, then without a word more than that.
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

    /// Those with a certificate, and with a token of the file.
    async fn others_are_served(&self) {
        let mut client = self.process.gateway.http1(Some(&self.alice)).await;
        assert_eq!(text(client.get("/api", &[]).await).await, "ok", "with a certificate");
        assert_eq!(self.code("/api", "good-token").await, 200, "with a token of the file");
    }

    /// The most memory that the gateway ever had, in KiB.
    fn most_memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(Path::new(&path)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// The end of the gateway: its log says each of `expected`, and nothing of `secrets`.
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

/// An answer that is ready.
fn ready(status: u16, content_type: &str, body: impl Into<bytes::Bytes>) -> ResponseFuture {
    let response = respond(status, content_type, body);
    Box::pin(async { response })
}

/// A redirect to another server.
fn elsewhere(target: &Backend) -> ResponseFuture {
    let mut response = respond(302, "text/html", "");
    let location = format!("https://{}/", target.address).parse().unwrap();
    response.headers_mut().insert("location", location);
    Box::pin(async { response })
}

/// A server that must receive no request.
async fn target(pki: &Pki) -> Arc<Backend> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Arc::new(Backend::without_client_auth(pki, listener, |_| ready(200, "application/json", "{}")))
}
