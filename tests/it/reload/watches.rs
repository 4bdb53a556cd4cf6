//! A reload does not interrupt open watches.

use rustls_pki_types::CertificateDer;
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::pki::Ca;
use testkit::{Gateway, Pki, flags};

use super::{Watch, reload, watched};
use crate::gateway::InProcess as _;

const CONNECTIONS: usize = 10;
/// Watches on one HTTP/2 connection; as many use separate connections.
const STREAMS: usize = 10;
const ROUNDS: usize = 20;

#[tokio::test]
async fn watches_continue_through_reloads_of_certificates_cas_and_tokens() {
    let pki = Pki::new();
    let (backend, mut started) = watched(&pki).await;
    let gateway = Gateway::with(flags(&pki, backend.address));
    let files = pki.directory.path();
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut watches = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = Client::connect(&gateway, true, Some(&alice)).await;
        for _ in 0..STREAMS {
            watches.push(Watch::open(&mut client, &[], &mut started).await);
        }
        clients.push(client);
    }
    for _ in 0..CONNECTIONS * STREAMS {
        let mut client = Client::connect(&gateway, false, Some(&alice)).await;
        watches.push(Watch::open(&mut client, &[], &mut started).await);
        clients.push(client);
    }
    for round in 1..=ROUNDS {
        for watch in &mut watches {
            watch.passes(&format!("before round {round}\n")).await;
        }
        let serving = pki.servers.leaf().cn(&format!("round-{round}")).issue();
        let clients_of_round = Ca::new(&format!("clients of round {round}"));
        let token = format!("token-{round}");
        let both = pki.clients.cert_pem() + &clients_of_round.cert_pem();
        // The poll may run between the writes: a certificate without its key is tolerated.
        replace(&files.join("gateway.crt"), serving.cert_pem());
        replace(&files.join("gateway.key"), serving.key_pem());
        replace(&files.join("clients-ca.crt"), both);
        replace(&files.join("tokens.csv"), format!("{token},user-{round},1\n"));
        reload(&gateway).await;
        let of_round = clients_of_round.leaf().cn("carl").issue();
        let stream = gateway.tls(b"http/1.1", Some(&of_round)).await;
        let shown: &[CertificateDer<'_>] = stream.get_ref().1.peer_certificates().unwrap();
        assert_eq!(shown, serving.chain, "new handshakes see the new certificate");
        let mut client = Client::over(&gateway, stream).await;
        assert_eq!(client.code(&[]).await, 200, "its CA is new");
        let mut client = Client::connect(&gateway, true, None).await;
        let bearer = |token: &str| format!("Bearer {token}");
        assert_eq!(client.code(&[("authorization", &bearer(&token))]).await, 200, "the token is new");
        let mut client = Client::connect(&gateway, true, None).await;
        let old = bearer(&format!("token-{}", round - 1));
        assert_eq!(client.code(&[("authorization", &old)]).await, 401, "the token is old");
        for watch in &mut watches {
            watch.passes(&format!("after round {round}\n")).await;
        }
    }
}
