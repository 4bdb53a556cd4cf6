//! What well-behaved clients have seen: latencies and failures, without the attack and with it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Who has sent a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClientKind {
    /// The operator's client with a new service-account token for each request.
    Token,
    /// The operator's client with a certificate.
    Certificate,
    /// The operator's client that opens a connection and a watch each second.
    NewConnection,
    /// The operator's watch.
    Watch,
    /// Probes on the main port.
    Probe,
    /// Probes on the metrics port.
    MetricsProbe,
    /// A client of another tenant.
    Tenant,
    /// A client of the operator's API server without the gateway: what the attacker's own processes take from the machine.
    Direct,
}

impl ClientKind {
    /// The operator's clients, without probes.
    pub(crate) const OPERATOR: [Self; 4] = [Self::Token, Self::Certificate, Self::NewConnection, Self::Watch];
    pub(crate) const PROBES: [Self; 2] = [Self::Probe, Self::MetricsProbe];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::NewConnection => "new connection",
            Self::Watch => "watch",
            Self::Probe => "probe, main port",
            Self::MetricsProbe => "probe, metrics port",
            Self::Tenant => "other tenants",
            Self::Direct => "direct",
        }
    }
}

/// The outcomes of one phase.
#[derive(Default)]
pub(crate) struct Phase {
    took: BTreeMap<ClientKind, Vec<Duration>>,
    failures: BTreeMap<(ClientKind, String), usize>,
    /// The audit IDs of requests with a response of 200.
    pub(crate) answered: Vec<u64>,
    pub(crate) reloads: usize,
    /// How long those took that had an effect.
    pub(crate) effective: Vec<Duration>,
}

/// The outcomes of the current phase.
#[derive(Default)]
pub(crate) struct Outcomes(Mutex<Phase>);

impl Outcomes {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap()
    }

    /// Counts a request; `error` is the reason of a failure.
    pub(crate) fn record(&self, kind: ClientKind, took: Duration, error: Option<String>) {
        let mut phase = self.phase();
        phase.took.entry(kind).or_default().push(took);
        if let Some(error) = error {
            *phase.failures.entry((kind, error)).or_default() += 1;
        }
    }

    /// Counts an audited request that was answered.
    pub(crate) fn answered(&self, audit_id: u64) {
        self.phase().answered.push(audit_id);
    }

    /// Counts a reload, with the time after which it had an effect, if it had one.
    pub(crate) fn reloaded(&self, took: Option<Duration>) {
        let mut phase = self.phase();
        phase.reloads += 1;
        phase.effective.extend(took);
    }

    /// Ends the phase.
    pub(crate) fn take(&self) -> Phase {
        std::mem::take(&mut *self.phase())
    }
}

impl Phase {
    /// The requests of these kinds, and how many of them have failed.
    pub(crate) fn counts(&self, kinds: &[ClientKind]) -> (usize, usize) {
        let all = self.took.iter().filter(|(kind, _)| kinds.contains(kind)).map(|(_, took)| took.len());
        let failed = self.failures.iter().filter(|((kind, _), _)| kinds.contains(kind));
        (all.sum(), failed.map(|(_, times)| times).sum())
    }

    /// The reasons of the failures, the most frequent first.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut all: Vec<_> = self.failures.iter().collect();
        all.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
        let shown = |((kind, error), times): (&(ClientKind, String), &usize)| {
            format!("{}: {error} ({times} times)", kind.name())
        };
        all.into_iter().map(shown).collect()
    }

    /// The time within which this share of the requests of a kind were answered, in thousandths. Failed requests count.
    pub(crate) fn quantile(&self, kind: ClientKind, thousandths: usize) -> Duration {
        quantile(self.took.get(&kind).cloned().unwrap_or_default(), thousandths)
    }

    /// The same of each of these parts of the phase, in their order.
    pub(crate) fn quantiles(&self, kind: ClientKind, thousandths: usize, parts: usize) -> Vec<Duration> {
        let took = self.took.get(&kind).map_or(&[][..], Vec::as_slice);
        let chunks = took.chunks(took.len().div_ceil(parts).max(1));
        chunks.map(|part| quantile(part.to_vec(), thousandths)).collect()
    }
}

fn quantile(mut took: Vec<Duration>, thousandths: usize) -> Duration {
    took.sort_unstable();
    let last = took.len().saturating_sub(1);
    took.get((took.len() * thousandths / 1000).min(last)).copied().unwrap_or_default()
}
