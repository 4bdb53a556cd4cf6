//! Requests per second of processor time, with client certificates and over keep-alive connections.

use std::time::Duration;

use crate::Options;
use crate::cost::CpuTime;
use crate::figures::{Figures, Measure};
use crate::load::{Connector, LoadGenerator, Shape};
use crate::proxies::{Proxy, ProxyKind};
use crate::setup::{CommonSetup, LARGE, SMALL};
use crate::wire::RequestTemplate;

/// 32 concurrent requests of HTTP/1.1 need 32 connections; HTTP/2 gets eight connections with 16 streams each.
pub(crate) const SHAPES: [(&str, Shape); 2] = [
    ("HTTP/1.1", Shape { http2: false, connections: 32, streams: 1 }),
    ("HTTP/2", Shape { http2: true, connections: 8, streams: 16 }),
];
const SIZES: [(&str, &str); 2] = [("1 KiB", SMALL), ("100 KiB", LARGE)];

/// Time of load before the measurement.
const WARM_UP: Duration = Duration::from_millis(200);

pub(crate) async fn measure(
    options: &Options,
    setup: &CommonSetup,
    proxies: &[(ProxyKind, Proxy)],
    figures: &mut Figures,
) {
    for (version, shape) in SHAPES {
        for (size, path) in SIZES {
            let case = format!("{version}, {size}");
            if !options.includes(&case) {
                continue;
            }
            for turn in options.turns(proxies.len()) {
                let (kind, proxy) = &proxies[turn];
                let connector = setup.certificate_connector(proxy.address());
                let rate = rate(options, proxy, &connector, &RequestTemplate::get(path), shape).await;
                figures.add(Measure::Requests, &case, kind.name(), rate);
            }
        }
    }
}

/// Requests per CPU-second of one proxy.
pub(crate) async fn rate(
    options: &Options,
    proxy: &Proxy,
    connector: &Connector,
    template: &RequestTemplate,
    shape: Shape,
) -> f64 {
    let mut generator = LoadGenerator::connect(connector, template, shape).await;
    generator.run_for(WARM_UP).await;
    let before = CpuTime::of(proxy.process_id());
    let answered = generator.run_for(options.seconds).await;
    CpuTime::of(proxy.process_id()).rate(before, answered)
}
