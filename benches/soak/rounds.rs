//! Reloads: everything that may be replaced is, and what is new is tried at once.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::Pki;
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Ca;
use tokio::time::sleep_until;

use crate::count::Count;

/// As many rounds as asked for, spread over the time.
pub(crate) async fn run(process: &GatewayProcess, pki: &Pki, count: &Count, lasting: Duration, rounds: u32) {
    let start = Instant::now();
    for round in 1..=rounds {
        sleep_until((start + lasting * round / (rounds + 1)).into()).await;
        count.reloaded(reload(process, pki, round).await);
    }
    sleep_until((start + lasting).into()).await;
}

/// Whether the serving certificate, the client CA and the token of the round count, and no longer those of the last.
async fn reload(process: &GatewayProcess, pki: &Pki, round: u32) -> bool {
    let gateway = &process.gateway;
    let serving = pki.servers.leaf().cn(&format!("round-{round}")).issue();
    let authority = Ca::new(&format!("clients of round {round}"));
    let both = pki.clients.cert_pem() + &authority.cert_pem();
    let files = pki.directory.path();
    replace(&files.join("tokens.csv"), format!("good-token,carol,7\ntoken-{round},user-{round},1\n"));
    replace(&files.join("clients-ca.crt"), both);
    replace(&files.join("gateway.crt"), serving.cert_pem());
    replace(&files.join("gateway.key"), serving.key_pem());
    // The first generation to come may be of files that were read before they were all written.
    for _ in 0..2 {
        let before = gateway.generation().await;
        process.signal(Signal::HUP);
        gateway.reloaded(before).await;
    }
    let of_round = authority.leaf().cn("carl").issue();
    let stream = gateway.tls(b"http/1.1", Some(&of_round)).await;
    let shown = stream.get_ref().1.peer_certificates() == Some(&serving.chain);
    let admitted = Client::over(gateway, stream).await.code(&[]).await == 200;
    let token = async |round: u32| {
        let bearer = format!("Bearer token-{round}");
        let mut client = Client::connect(gateway, round.is_multiple_of(2), None).await;
        client.code(&[("authorization", &bearer)]).await.as_u16()
    };
    shown && admitted && token(round).await == 200 && token(round - 1).await == 401
}
