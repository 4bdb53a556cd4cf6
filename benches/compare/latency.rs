//! How much longer requests take through a proxy than without, at a rate that leaves it time: they are sent when they
//! are due and their time counts from then, whether or not others have been answered.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use crate::Options;
use crate::cost::quantile;
use crate::figures::{Figures, Measure};
use crate::load::Door;
use crate::proxies::{Kind, Proxy};
use crate::setup::{CommonSetup, SMALL};
use crate::wire::{Ask, Wire};

/// How far apart requests are: 500 in each second.
const PERIOD: Duration = Duration::from_millis(2);
/// Each has a thread, which waits to the microsecond; no timer of a runtime does.
const CONNECTIONS: u32 = 8;
/// What comes first on a connection does not count.
const WARM_UP: Duration = Duration::from_millis(200);

const VERSIONS: [(&str, bool); 2] = [("HTTP/1.1", false), ("HTTP/2", true)];

pub(crate) async fn measure(
    options: &Options,
    setup: &CommonSetup,
    proxies: &[(Kind, Proxy)],
    figures: &mut Figures,
) {
    for (version, http2) in VERSIONS.into_iter().filter(|(version, _)| options.wants(version)) {
        for turn in options.turns(proxies.len()) {
            let (kind, proxy) = &proxies[turn];
            let direct = times(options, &setup.direct(), http2).await;
            let through = times(options, &setup.by_certificate(proxy.address()), http2).await;
            for (measure, percent) in [(Measure::AddedMedian, 50), (Measure::AddedTail, 99)] {
                let [direct, through] =
                    [&direct, &through].map(|times| quantile(times.iter().copied(), percent));
                figures.add(measure, version, kind.name(), through - direct);
            }
        }
    }
}

async fn times(options: &Options, door: &Door, http2: bool) -> Vec<f64> {
    let lasting = options.seconds;
    // All begin once all have connected.
    let start = Instant::now() + Duration::from_millis(100);
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let door = door.clone();
            tokio::task::spawn_blocking(move || {
                let mut client = Client::connect(&door, http2);
                let due = (0..).map(|turn| start + PERIOD * (turn * CONNECTIONS + number));
                let due = due.take_while(|due| *due < start + WARM_UP + lasting);
                let times = due.map(|due| (due, client.ask_at(due)));
                let counted = times.filter(|(due, _)| *due >= start + WARM_UP);
                counted.map(|(_, time)| time.as_secs_f64() * 1e6).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut times = Vec::new();
    for client in clients {
        times.extend(client.await.unwrap());
    }
    times
}

struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    wire: Box<dyn Wire>,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl Client {
    fn connect(door: &Door, http2: bool) -> Self {
        let stream = TcpStream::connect(door.address).unwrap();
        stream.set_nodelay(true).unwrap();
        let session = ClientConnection::new(door.tls_for(http2), Door::server_name()).unwrap();
        let (mut wire, mut out) = (Ask::of(SMALL).wire(http2), Vec::new());
        wire.greet(&mut out);
        Self { stream: StreamOwned::new(session, stream), wire, input: vec![0; 16 << 10], out }
    }

    /// Makes a request once it is due; gives how long after that it was answered.
    fn ask_at(&mut self, due: Instant) -> Duration {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        self.wire.ask(&mut self.out);
        loop {
            self.stream.write_all(&self.out).unwrap();
            self.out.clear();
            let length = self.stream.read(&mut self.input).unwrap();
            assert!(length > 0, "the server closed a connection");
            if self.wire.hear(&self.input[..length], &mut self.out).answers > 0 {
                return due.elapsed();
            }
        }
    }
}
