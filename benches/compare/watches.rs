//! Memory of open watches without events.

use std::time::Duration;

use crate::Options;
use crate::cost::memory;
use crate::figures::{Figures, Measure};
use crate::load::{Connection, Connector, LoadGenerator, Shape};
use crate::proxies::{Proxy, ProxyKind};
use crate::rates::SHAPES;
use crate::setup::{CommonSetup, SMALL, WATCH};
use crate::wire::RequestTemplate;

/// Name, whether over HTTP/2, and watches per connection.
const CASES: [(&str, bool, usize); 3] = [
    ("HTTP/1.1", false, 1),
    ("HTTP/2, 1 on a connection", true, 1),
    ("HTTP/2, 100 on a connection", true, 100),
];

/// The time in which a proxy releases buffers after the last watch was opened.
const SETTLE_TIME: Duration = Duration::from_secs(1);

pub(crate) async fn measure(
    options: &Options,
    setup: &CommonSetup,
    kinds: &[ProxyKind],
    figures: &mut Figures,
) {
    for (case, http2, streams) in CASES.into_iter().filter(|(case, ..)| options.includes(case)) {
        for kind in kinds {
            // A new process each time: the watches would reuse memory that earlier cases have freed.
            let proxy = Proxy::start(*kind, setup).await;
            let connector = setup.certificate_connector(proxy.address());
            let used = memory_per_watch(options, &proxy, &connector, http2, streams).await;
            figures.add(Measure::Watches, case, kind.name(), used);
            proxy.end().await;
        }
    }
}

async fn memory_per_watch(
    options: &Options,
    proxy: &Proxy,
    connector: &Connector,
    http2: bool,
    streams: usize,
) -> f64 {
    // Memory that the proxy allocates once, for its first requests, does not count.
    for (_, shape) in SHAPES {
        let warm_up = Shape { connections: 1, ..shape };
        LoadGenerator::connect(connector, &RequestTemplate::get(SMALL), warm_up)
            .await
            .run_for(Duration::from_millis(200))
            .await;
    }
    tokio::time::sleep(SETTLE_TIME).await;
    let before = memory(proxy.process_id());
    let (mut open, mut connections) = (0_u32, Vec::new());
    while usize::try_from(open).unwrap() < options.watches {
        let mut connection =
            connector.connect(connector.tls_for(http2), &RequestTemplate::get(WATCH), http2).await;
        open += u32::try_from(watch(&mut connection, streams).await).unwrap();
        connections.push(connection);
    }
    tokio::time::sleep(SETTLE_TIME).await;
    let after = memory(proxy.process_id());
    drop(connections);
    (after - before) / f64::from(open)
}

/// Opens watches on a connection. Returns their number.
async fn watch(connection: &mut Connection, streams: usize) -> usize {
    connection.queue_requests(streams);
    let mut open = 0;
    while open < streams {
        open += connection.exchange().await.headers;
    }
    open
}
