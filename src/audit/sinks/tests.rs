use std::sync::atomic::{AtomicUsize, Ordering};

use portcullis_http::https_client::testing::{
    H1, H2, RecordedRequest, Reply, TestServer, full, reply, serving, showing, trusting,
};
use rustls::crypto::aws_lc_rs::default_provider;
use testkit::in_time;
use testkit::pki::Ca;

use super::*;

const TOKEN: &str = "my-s3cr3t-t0ken";

fn webhook(url: &str, tls: &ClientTls) -> AuditWebhook {
    AuditWebhook::new(url, tls, Some(BearerToken::new(TOKEN)), &Arc::new(default_provider()), &Metrics::new())
        .unwrap()
}

async fn posted(
    answer: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static,
) -> (TestServer, Result<(), PostError>) {
    let ca = Ca::new("webhooks");
    let server = TestServer::of(&ca, H2, answer).await;
    let webhook = webhook(&server.url("/audit"), &trusting(&ca));
    let result = in_time(webhook.post(Bytes::from_static(b"{}"))).await;
    (server, result)
}

#[tokio::test]
async fn events_are_posted_with_the_credentials_of_the_kubeconfig() {
    let (servers, clients) = (Ca::new("servers"), Ca::new("clients"));
    let client = clients.leaf().cn("gateway").issue();
    let config = serving(&servers.server(&["127.0.0.1"]), Some(&clients), H1);
    let server = TestServer::start(config, "127.0.0.1:0", |_| async { reply(200, "{}") }.boxed()).await;
    let accepted = webhook(&server.url("/audit"), &showing(&client, &servers));
    in_time(accepted.post(Bytes::from_static(b"[1]"))).await.unwrap();
    let request = server.take().remove(0);
    assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/audit?timeout=30s"));
    assert_eq!(request.body, "[1]");
    assert_eq!(request.headers["content-type"], "application/json");
    assert_eq!(request.headers["authorization"], format!("Bearer {TOKEN}"));
    let refused = webhook(&server.url("/"), &trusting(&servers));
    assert!(in_time(refused.post(Bytes::new())).await.is_err(), "without the client certificate");
}

/// As upstream: the body of a success does not matter.
#[tokio::test]
async fn any_success_is_a_success_and_nothing_else_is() {
    for (status, body) in [(200, "{}"), (200, ""), (201, "garbage"), (206, "\0")] {
        let (_, result) = posted(move |_| reply(status, body)).await;
        assert_eq!(result, Ok(()), "{status}");
    }
    for status in [207, 301, 307, 400, 401, 403, 404, 413, 429, 500, 503] {
        let (server, result) = posted(move |_| reply(status, TOKEN)).await;
        let error = result.unwrap_err();
        assert!(error.is_retryable && !error.text.contains(TOKEN), "{status}: {error}");
        assert_eq!(server.take().len(), 1, "{status}");
    }
    let (_, result) = posted(|_| Err(std::io::ErrorKind::ConnectionReset.into())).await;
    assert!(result.unwrap_err().is_retryable);
}

#[tokio::test]
async fn an_overloaded_webhook_is_called_again_when_it_asks_for_it() {
    let calls = AtomicUsize::new(0);
    let (server, result) = posted(move |_| {
        if calls.fetch_add(1, Ordering::Relaxed) > 0 {
            return reply(200, "");
        }
        Ok(http::Response::builder().status(429).header("retry-after", "1").body(full("")).unwrap())
    })
    .await;
    assert_eq!((result, server.take().len()), (Ok(()), 2));
}

#[tokio::test]
async fn a_response_without_end_is_an_error() {
    let (_, result) = posted(|_| reply(200, vec![b'x'; 2 << 20])).await;
    assert!(result.unwrap_err().text.contains("larger than"));
}
