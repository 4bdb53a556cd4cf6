//! Reloads: each replaces all reloadable files and then checks that the new credentials are in effect.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::Pki;
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Ca;
use tokio::time::sleep_until;

use crate::count::Counters;

/// Runs `rounds` reloads, evenly distributed over `duration`.
pub(crate) async fn run(
    process: &GatewayProcess,
    pki: &Pki,
    count: &Counters,
    duration: Duration,
    rounds: u32,
) {
    let start = Instant::now();
    for round in 1..=rounds {
        sleep_until((start + duration * round / (rounds + 1)).into()).await;
        count.reloaded(reload(process, pki, round).await);
    }
    sleep_until((start + duration).into()).await;
}

/// Returns whether the serving certificate, client CA and token of this round are in effect, and the previous token is
/// not.
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
    // The next generation may be from files that were read before all of them were written.
    for _ in 0..2 {
        let before = gateway.generation().await;
        process.signal(Signal::HUP);
        gateway.reloaded(before).await;
    }
    let of_round = authority.leaf().cn("carl").issue();
    let stream = gateway.tls(b"http/1.1", Some(&of_round)).await;
    let certificate_is_new = stream.get_ref().1.peer_certificates() == Some(&serving.chain);
    let admitted = Client::over(gateway, stream).await.code(&[]).await == 200;
    let token = async |round: u32| {
        let bearer = format!("Bearer token-{round}");
        let mut client = Client::connect(gateway, round.is_multiple_of(2), None).await;
        client.code(&[("authorization", &bearer)]).await.as_u16()
    };
    certificate_is_new && admitted && token(round).await == 200 && token(round - 1).await == 401
}
