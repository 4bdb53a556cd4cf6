//! Memory of watches that are open and on which nothing happens.

use std::time::Duration;

use crate::Options;
use crate::cost::memory;
use crate::figures::{Figures, Measure};
use crate::load::{Connection, Crowd, Door, Shape};
use crate::proxies::{Kind, Proxy};
use crate::rates::SHAPES;
use crate::setup::{CommonSetup, SMALL, WATCH};
use crate::wire::Ask;

/// Name, version of HTTP, watches on each connection.
const CASES: [(&str, bool, usize); 3] = [
    ("HTTP/1.1", false, 1),
    ("HTTP/2, 1 on a connection", true, 1),
    ("HTTP/2, 100 on a connection", true, 100),
];

/// What a proxy may still do once the last watch is open: buffers it gives back.
const SETTLING: Duration = Duration::from_secs(1);

pub(crate) async fn measure(options: &Options, setup: &CommonSetup, kinds: &[Kind], figures: &mut Figures) {
    for (case, http2, streams) in CASES.into_iter().filter(|(case, ..)| options.wants(case)) {
        for kind in kinds {
            // A new one each time: what others left behind would take in the watches.
            let proxy = Proxy::start(*kind, setup).await;
            let door = setup.by_certificate(proxy.address());
            let used = of_watches(options, &proxy, &door, http2, streams).await;
            figures.add(Measure::Watches, case, kind.name(), used);
        }
    }
}

async fn of_watches(options: &Options, proxy: &Proxy, door: &Door, http2: bool, streams: usize) -> f64 {
    // What is set up once, for the first requests, is not of the watches.
    for (_, shape) in SHAPES {
        let few = Shape { connections: 1, ..shape };
        Crowd::connect(door, &Ask::of(SMALL), few).await.ask_for(Duration::from_millis(200)).await;
    }
    tokio::time::sleep(SETTLING).await;
    let before = memory(proxy.id());
    let (mut open, mut connections) = (0_u32, Vec::new());
    while usize::try_from(open).unwrap() < options.watches {
        let mut connection = door.connect(door.tls_for(http2), &Ask::of(WATCH), http2).await;
        open += u32::try_from(watch(&mut connection, streams).await).unwrap();
        connections.push(connection);
    }
    tokio::time::sleep(SETTLING).await;
    let after = memory(proxy.id());
    drop(connections);
    (after - before) / f64::from(open)
}

/// Opens watches on a connection.
async fn watch(connection: &mut Connection, streams: usize) -> usize {
    connection.ask(streams);
    let mut open = 0;
    while open < streams {
        open += connection.turn().await.heads;
    }
    open
}
