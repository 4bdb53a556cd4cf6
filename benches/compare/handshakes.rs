//! New connections of HTTP/1.1: a full TLS 1.3 handshake with a client certificate, and one request, without which the
//! gateway would not look at the certificate.

use std::time::Instant;

use tokio::task::JoinSet;

use crate::Options;
use crate::cost::Cost;
use crate::figures::{Figures, Measure};
use crate::load::Door;
use crate::proxies::{Kind, Proxy};
use crate::setup::{CommonSetup, SMALL};
use crate::wire::Ask;

/// How many are made at once.
const AT_ONCE: usize = 4;
/// What all proxies support: the key exchange of the figures that are compared.
pub(crate) const CASE: &str = "HTTP/1.1, X25519";
/// What the gateway prefers, and releases of OpenSSL before 3.5 cannot.
const POST_QUANTUM: &str = "HTTP/1.1, X25519MLKEM768";

pub(crate) async fn measure(
    options: &Options,
    setup: &CommonSetup,
    proxies: &[(Kind, Proxy)],
    figures: &mut Figures,
) {
    if !options.wants(CASE) {
        return;
    }
    for turn in options.turns(proxies.len()) {
        let (kind, proxy) = &proxies[turn];
        let made = rate(options, proxy, setup.by_certificate(proxy.address())).await;
        figures.add(Measure::Handshakes, CASE, kind.name(), made);
        if kind.is_gateway() {
            let made = rate(options, proxy, setup.post_quantum(proxy.address())).await;
            figures.add(Measure::Handshakes, POST_QUANTUM, kind.name(), made);
        }
    }
}

async fn rate(options: &Options, proxy: &Proxy, door: Door) -> f64 {
    let before = Cost::of(proxy.id());
    let until = Instant::now() + options.seconds;
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE {
        tasks.spawn(come_and_go(door.clone(), until));
    }
    let made = tasks.join_all().await.into_iter().sum();
    Cost::of(proxy.id()).rate(before, made)
}

async fn come_and_go(door: Door, until: Instant) -> usize {
    let (ask, tls) = (Ask::of(SMALL), door.tls_for(false));
    let mut made = 0;
    while Instant::now() < until {
        let mut connection = door.connect(tls.clone(), &ask, false).await;
        connection.ask(1);
        while connection.turn().await.answers == 0 {}
        connection.close().await;
        made += 1;
    }
    made
}
