//! Requests per second of processor time, by certificate and over connections that stay.

use std::time::Duration;

use crate::Options;
use crate::cost::Cost;
use crate::figures::{Figures, Measure};
use crate::load::{Crowd, Door, Shape};
use crate::proxies::{Kind, Proxy};
use crate::setup::{CommonSetup, LARGE, SMALL};
use crate::wire::Ask;

/// As many connections as clients of HTTP/1.1 need for 32 requests at once, and eight busy ones of HTTP/2.
pub(crate) const SHAPES: [(&str, Shape); 2] = [
    ("HTTP/1.1", Shape { http2: false, connections: 32, streams: 1 }),
    ("HTTP/2", Shape { http2: true, connections: 8, streams: 16 }),
];
const SIZES: [(&str, &str); 2] = [("1 KiB", SMALL), ("100 KiB", LARGE)];

/// How long new connections are used before it counts.
const WARM_UP: Duration = Duration::from_millis(200);

pub(crate) async fn measure(
    options: &Options,
    setup: &CommonSetup,
    proxies: &[(Kind, Proxy)],
    figures: &mut Figures,
) {
    for (version, shape) in SHAPES {
        for (size, path) in SIZES {
            let case = format!("{version}, {size}");
            if !options.wants(&case) {
                continue;
            }
            for turn in options.turns(proxies.len()) {
                let (kind, proxy) = &proxies[turn];
                let door = setup.by_certificate(proxy.address());
                let rate = rate(options, proxy, &door, &Ask::of(path), shape).await;
                figures.add(Measure::Requests, &case, kind.name(), rate);
            }
        }
    }
}

/// What one proxy does in its turn.
pub(crate) async fn rate(options: &Options, proxy: &Proxy, door: &Door, ask: &Ask, shape: Shape) -> f64 {
    let mut crowd = Crowd::connect(door, ask, shape).await;
    crowd.ask_for(WARM_UP).await;
    let before = Cost::of(proxy.id());
    let answered = crowd.ask_for(options.seconds).await;
    Cost::of(proxy.id()).rate(before, answered)
}
