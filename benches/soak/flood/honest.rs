//! Well-behaved clients, each of which sends one request after another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::client::Client;
use tokio::sync::watch;
use tokio::time::sleep;

use super::flooded_gateway::FloodedGateway;

/// Pause between two requests of one client.
const PAUSE: Duration = Duration::from_millis(20);
/// Requests per connection.
const REQUESTS_PER_CONNECTION: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientKind {
    Certificate,
    /// A token that the gateway has in its cache.
    KnownToken,
    /// A new service account token for each request.
    NewBoundToken,
    /// A new ID token for each request.
    NewIdToken,
}

impl ClientKind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Certificate, Self::KnownToken, Self::NewBoundToken, Self::NewIdToken];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::KnownToken => "cached token",
            Self::NewBoundToken => "new bound token",
            Self::NewIdToken => "new ID token",
        }
    }
}

/// Latencies of requests, and the number of failures.
#[derive(Default)]
pub(crate) struct ResponseTimes {
    took: Vec<Duration>,
    failed: usize,
}

impl ResponseTimes {
    /// A single failure.
    pub(crate) fn failure() -> Self {
        Self { took: Vec::new(), failed: 1 }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.took.extend(&other.took);
        self.failed += other.failed;
    }

    pub(crate) fn count(&self) -> usize {
        self.took.len()
    }

    pub(crate) fn failed(&self) -> usize {
        self.failed
    }

    pub(crate) fn record(&mut self, took: Duration, succeeded: bool) {
        self.took.push(took);
        self.failed += usize::from(!succeeded);
    }

    /// A percentile of the latencies.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut took = self.took.clone();
        took.sort();
        took.get(took.len() * percent / 100).copied().unwrap_or_default()
    }
}

/// Sends requests until the end.
pub(crate) async fn run_client(
    subject: Arc<FloodedGateway>,
    kind: ClientKind,
    http2: bool,
    end: watch::Receiver<bool>,
) -> ResponseTimes {
    let gateway = &subject.process.gateway;
    let identity = (kind == ClientKind::Certificate).then_some(&subject.alice);
    let mut client = Client::connect(gateway, http2, identity).await;
    let cached = subject.accounts.token();
    let mut times = ResponseTimes::default();
    while !*end.borrow() {
        let token = match kind {
            ClientKind::Certificate => None,
            ClientKind::KnownToken => Some(cached.clone()),
            ClientKind::NewBoundToken => Some(subject.accounts.token()),
            ClientKind::NewIdToken => Some(subject.id_token()),
        };
        let authorization = token.map(|token| format!("Bearer {token}"));
        let header = authorization.as_deref().map(|value| ("authorization", value));
        let start = Instant::now();
        let code = client.code(header.as_slice()).await;
        times.record(start.elapsed(), code == 200);
        // The gateway may close the connection after a rejected request.
        if code != 200 || times.count().is_multiple_of(REQUESTS_PER_CONNECTION) {
            client = Client::connect(gateway, http2, identity).await;
        }
        sleep(PAUSE).await;
    }
    times
}
