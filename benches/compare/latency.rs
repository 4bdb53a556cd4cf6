//! Latency that a proxy adds at a moderate rate. Each request has a due time and its latency counts from then, whether
//! or not earlier requests have been answered (no coordinated omission).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use crate::Options;
use crate::cost::quantile;
use crate::figures::{Figures, Measure};
use crate::load::Connector;
use crate::proxies::{Proxy, ProxyKind};
use crate::setup::{CommonSetup, SMALL};
use crate::wire::{ClientCodec, RequestTemplate};

/// 500 requests per second.
const REQUEST_INTERVAL: Duration = Duration::from_millis(2);
/// Each connection has a thread: `thread::sleep` is precise to microseconds, a runtime's timers are not.
const CONNECTIONS: u32 = 8;
/// Requests of this time after the start do not count.
const WARM_UP: Duration = Duration::from_millis(200);

const VERSIONS: [(&str, bool); 2] = [("HTTP/1.1", false), ("HTTP/2", true)];

pub(crate) async fn measure(
    options: &Options,
    setup: &CommonSetup,
    proxies: &[(ProxyKind, Proxy)],
    figures: &mut Figures,
) {
    for (version, http2) in VERSIONS.into_iter().filter(|(version, _)| options.includes(version)) {
        for turn in options.turns(proxies.len()) {
            let (kind, proxy) = &proxies[turn];
            let direct = times(options, &setup.backend_connector(), http2).await;
            let through = times(options, &setup.certificate_connector(proxy.address()), http2).await;
            for (measure, percent) in [(Measure::AddedMedian, 50), (Measure::AddedTail, 99)] {
                let [direct, through] =
                    [&direct, &through].map(|times| quantile(times.iter().copied(), percent));
                figures.add(measure, version, kind.name(), through - direct);
            }
        }
    }
}

async fn times(options: &Options, connector: &Connector, http2: bool) -> Vec<f64> {
    let duration = options.seconds;
    // Leaves time for all clients to connect.
    let start = Instant::now() + Duration::from_millis(100);
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let connector = connector.clone();
            tokio::task::spawn_blocking(move || {
                let mut client = Client::connect(&connector, http2);
                let due = (0..).map(|turn| start + REQUEST_INTERVAL * (turn * CONNECTIONS + number));
                let due = due.take_while(|due| *due < start + WARM_UP + duration);
                let times = due.map(|due| (due, client.request_at(due)));
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
    codec: Box<dyn ClientCodec>,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl Client {
    fn connect(connector: &Connector, http2: bool) -> Self {
        let stream = TcpStream::connect(connector.address).unwrap();
        stream.set_nodelay(true).unwrap();
        let session = ClientConnection::new(connector.tls_for(http2), Connector::server_name()).unwrap();
        let (mut codec, mut out) = (RequestTemplate::get(SMALL).codec(http2), Vec::new());
        codec.write_preface(&mut out);
        Self { stream: StreamOwned::new(session, stream), codec, input: vec![0; 16 << 10], out }
    }

    /// Sends a request at `due`. Returns the time from then to the complete response.
    fn request_at(&mut self, due: Instant) -> Duration {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        self.codec.write_request(&mut self.out);
        loop {
            self.stream.write_all(&self.out).unwrap();
            self.out.clear();
            let length = self.stream.read(&mut self.input).unwrap();
            assert!(length > 0, "the server closed a connection");
            if self.codec.receive(&self.input[..length], &mut self.out).responses > 0 {
                return due.elapsed();
            }
        }
    }
}
