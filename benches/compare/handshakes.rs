//! New HTTP/1.1 connections: a full TLS 1.3 handshake with a client certificate, and one request. The gateway verifies
//! the certificate only when it receives a request.

use std::time::Instant;

use tokio::task::JoinSet;

use crate::Options;
use crate::cost::CpuTime;
use crate::figures::{Figures, Measure};
use crate::load::Connector;
use crate::proxies::{Proxy, ProxyKind};
use crate::setup::{CommonSetup, SMALL};
use crate::wire::RequestTemplate;

/// Number of handshakes in progress.
const CONCURRENCY: usize = 4;
/// The key exchange of the comparison; all proxies support it.
pub(crate) const CASE: &str = "HTTP/1.1, X25519";
/// The key exchange that the gateway prefers. OpenSSL supports it from version 3.5.
const POST_QUANTUM: &str = "HTTP/1.1, X25519MLKEM768";

pub(crate) async fn measure(
    options: &Options,
    setup: &CommonSetup,
    proxies: &[(ProxyKind, Proxy)],
    figures: &mut Figures,
) {
    if !options.includes(CASE) {
        return;
    }
    for turn in options.turns(proxies.len()) {
        let (kind, proxy) = &proxies[turn];
        let made = rate(options, proxy, setup.certificate_connector(proxy.address())).await;
        figures.add(Measure::Handshakes, CASE, kind.name(), made);
        if kind.is_gateway() {
            let made = rate(options, proxy, setup.post_quantum_connector(proxy.address())).await;
            figures.add(Measure::Handshakes, POST_QUANTUM, kind.name(), made);
        }
    }
}

async fn rate(options: &Options, proxy: &Proxy, connector: Connector) -> f64 {
    let before = CpuTime::of(proxy.process_id());
    let until = Instant::now() + options.seconds;
    let mut tasks = JoinSet::new();
    for _ in 0..CONCURRENCY {
        tasks.spawn(handshake_until(connector.clone(), until));
    }
    let made = tasks.join_all().await.into_iter().sum();
    CpuTime::of(proxy.process_id()).rate(before, made)
}

async fn handshake_until(connector: Connector, until: Instant) -> usize {
    let (template, tls) = (RequestTemplate::get(SMALL), connector.tls_for(false));
    let mut made = 0;
    while Instant::now() < until {
        let mut connection = connector.connect(tls.clone(), &template, false).await;
        connection.queue_requests(1);
        while connection.exchange().await.responses == 0 {}
        connection.close().await;
        made += 1;
    }
    made
}
