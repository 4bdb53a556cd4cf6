//! Honest clients, each of which makes one request after another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::client::Client;
use tokio::sync::watch;
use tokio::time::sleep;

use super::flooded_gateway::FloodedGateway;

/// Between two requests of one client.
const PAUSE: Duration = Duration::from_millis(20);
/// Requests on a connection, until another is made.
const VISIT: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Certificate,
    /// One that was judged a moment ago.
    KnownToken,
    /// One of a service account, new with each request.
    NewBoundToken,
    /// One of the issuer, new with each request.
    NewIdToken,
}

impl Kind {
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

/// How long requests took.
#[derive(Default)]
pub(crate) struct Times {
    took: Vec<Duration>,
    failed: usize,
}

impl Times {
    /// Nothing but one failure.
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

    /// In which of a hundred requests 99 were answered.
    pub(crate) fn percentile_99(&self) -> Duration {
        let mut took = self.took.clone();
        took.sort();
        took.get(took.len() * 99 / 100).copied().unwrap_or_default()
    }
}

/// Asks until the end.
pub(crate) async fn go_on(
    subject: Arc<FloodedGateway>,
    kind: Kind,
    http2: bool,
    end: watch::Receiver<bool>,
) -> Times {
    let gateway = &subject.process.gateway;
    let identity = (kind == Kind::Certificate).then_some(&subject.alice);
    let mut client = Client::connect(gateway, http2, identity).await;
    let known = subject.accounts.token();
    let mut times = Times::default();
    while !*end.borrow() {
        let token = match kind {
            Kind::Certificate => None,
            Kind::KnownToken => Some(known.clone()),
            Kind::NewBoundToken => Some(subject.accounts.token()),
            Kind::NewIdToken => Some(subject.id_token()),
        };
        let authorization = token.map(|token| format!("Bearer {token}"));
        let header = authorization.as_deref().map(|value| ("authorization", value));
        let begun = Instant::now();
        let code = client.code(header.as_slice()).await;
        times.took.push(begun.elapsed());
        times.failed += usize::from(code != 200);
        // A refusal may be the last answer on its connection.
        if code != 200 || times.count().is_multiple_of(VISIT) {
            client = Client::connect(gateway, http2, identity).await;
        }
        sleep(PAUSE).await;
    }
    times
}
