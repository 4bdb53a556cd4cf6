//! Floods of forged tokens: each token authenticator is called a bounded number of times, and clients with valid tokens
//! are answered without delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use testkit::client::Client;
use testkit::token_backends::{TokenBackends, unknown};
use testkit::{Gateway, Pki, get, until};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::gateway::InProcess as _;

/// The limit of concurrent webhook calls, for the clients of one network.
const AT_ONCE: usize = 64;
/// Together more than that limit, on connections with the maximum number of streams.
const CONNECTIONS: usize = 3;
const STREAMS: usize = 100;

#[tokio::test]
async fn valid_tokens_are_accepted_while_the_webhook_hangs_over_forged_ones() {
    let pki = Pki::new();
    let (release, held) = watch::channel(true);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let backends = TokenBackends::start(&pki, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let mut held = held.clone();
        Box::pin(async move {
            held.wait_for(|released| *released).await.ok();
            unknown()
        })
    })
    .await;
    let gateway = Gateway::with(backends.flags(&pki));
    backends.until_known(&gateway).await;
    release.send_replace(false);
    calls.store(0, Ordering::SeqCst);
    let before = backends.secret_reads();

    let mut flood = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let client = gateway.http2(None).await;
        for stream in 0..STREAMS {
            let mut client = client.share();
            let token = format!("Bearer made-up-{connection}-{stream}");
            flood.spawn(async move { client.send(get("/api", &[("authorization", &token)])).await });
        }
    }
    until("the calls of the webhook", || calls.load(Ordering::SeqCst) == AT_ONCE).await;

    let alice = pki.clients.leaf().cn("alice").issue();
    for http2 in [false, true] {
        assert_eq!(Client::connect(&gateway, http2, Some(&alice)).await.code(&[]).await, StatusCode::OK);
        let mut client = Client::connect(&gateway, http2, None).await;
        // A few: the lookups beyond those at once wait for ten seconds at most.
        for _ in 0..5 {
            for token in [backends.accounts.token(), backends.id_token()] {
                let header = format!("Bearer {token}");
                assert_eq!(client.code(&[("authorization", &header)]).await, StatusCode::OK);
            }
        }
    }
    assert_eq!(calls.load(Ordering::SeqCst), AT_ONCE);

    release.send_replace(true);
    for answer in flood.join_all().await {
        assert_eq!(answer.unwrap().status(), StatusCode::UNAUTHORIZED);
    }
    assert_eq!(calls.load(Ordering::SeqCst), CONNECTIONS * STREAMS, "the webhook is called once per token");
    assert_eq!(backends.secret_reads(), before, "the API server receives no reads for them");
}
