//! Made-up tokens, more of them than may be reviewed at once: each token authenticator is called a bounded number of
//! times, and honest clients are answered meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use testkit::client::Client;
use testkit::token_backends::{TokenBackends, unknown};
use testkit::{Gateway, Pki, get, until};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::gateway::InProcess as _;

/// How many tokens a webhook is asked about at a time.
const AT_ONCE: usize = 128;
/// More than that, on connections with as many streams as there may be.
const CONNECTIONS: usize = 3;
const STREAMS: usize = 100;

#[tokio::test]
async fn honest_clients_are_answered_while_a_webhook_hangs_over_made_up_tokens() {
    let pki = Pki::new();
    let (release, held) = watch::channel(true);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let asked = TokenBackends::start(&pki, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let mut held = held.clone();
        Box::pin(async move {
            held.wait_for(|released| *released).await.ok();
            unknown()
        })
    })
    .await;
    let gateway = Gateway::with(asked.flags(&pki));
    asked.until_known(&gateway).await;
    release.send_replace(false);
    calls.store(0, Ordering::SeqCst);
    let before = asked.secret_reads();

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
        for _ in 0..20 {
            for token in [asked.accounts.token(), asked.id_token()] {
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
    assert_eq!(calls.load(Ordering::SeqCst), CONNECTIONS * STREAMS, "each token is asked about once");
    assert_eq!(asked.secret_reads(), before, "the API server is not asked about them");
}
