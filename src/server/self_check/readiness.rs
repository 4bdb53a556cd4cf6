//! Probes `/readyz` of each endpoint, where a cluster has several: an API server that shuts down reports so before it
//! stops, and one that hangs answers no probe. Moves watches away from an endpoint that has far more of them than another.
//!
//! A probe never makes an endpoint trusted. It only ranks trusted endpoints, so a wrong result costs balance.

use std::time::Duration;

use http::StatusCode;
use portcullis_http::identity::IdentityMode;
use portcullis_kubernetes::user::UserInfo;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::EndpointCheck;
use crate::backend::balance::{EjectionCause, Load, Random, Readiness, RetryBudget, RetryTotals, WatchMoves};
use crate::backend::counts::{DialResult, LaneKind};
use crate::backend::probe::{ProbeClient, ProbeError};

const PATH: &str = "/readyz";
/// Between two probes. kube-apiserver's `--shutdown-delay-duration` is usually several seconds.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same for a cluster that has had no request for [`IDLE_AFTER`]: hundreds of idle clusters cost little.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);
const IDLE_AFTER: Duration = Duration::from_secs(30);
/// Shorter than clients wait, longer than a pause of a busy server.
// threat: silent-backend
const TIMEOUT: Duration = Duration::from_secs(2);

/// Probes the endpoint of a check, and exports its state as metrics. Never returns.
pub(super) async fn run(check: &EndpointCheck) {
    // Its connections are its own, so that a probe that waits delays no self-check.
    let client = ProbeClient::new(check.backend.clone(), &check.endpoint, &check.live.gateway_id);
    let portcullis = UserInfo::portcullis();
    let user = (check.backend.identity() == IdentityMode::RequestHeader).then_some(&portcullis);
    let mut exported = Exported::default();
    let mut pace = ProbePace::new(Instant::now());
    let mut moving = WatchMoving::default();
    loop {
        let began = Instant::now();
        let in_flight = check.endpoint.balance().in_flight(Load::Short);
        let activity = check.backend.retry_budgets().map(RetryBudget::activity).iter().sum();
        let is_due = pace.is_due(began, activity, in_flight);
        if is_due && check.backend.endpoints().len() > 1 {
            let answer = timeout(TIMEOUT, client.send(user, PATH, None)).await;
            let answer = answer.unwrap_or(Err(ProbeError::Timeout)).map(|(code, _)| code);
            if let Some(readiness) = evaluate(&answer) {
                note(check, readiness);
            }
        }
        move_watches(check, &mut moving, began);
        exported.export(check);
        sleep(INTERVAL.saturating_sub(began.elapsed()).max(INTERVAL / 10)).await;
    }
}

/// Ends a few watches from time to time, if the endpoint has far more of them than another one.
#[derive(Default)]
struct WatchMoving {
    next: Option<Instant>,
    random: Random,
    /// The watches elsewhere before the last step, until the next one has looked whether they are more now.
    elsewhere: Option<usize>,
    /// The steps in a row whose watches have not arrived elsewhere.
    lost: u32,
}

/// How often the pause is doubled at most.
const MAX_DOUBLINGS: u32 = 6;

impl WatchMoving {
    /// Ends watches, if a step is due, and returns their number. `count_elsewhere` counts the watches at the other endpoints.
    fn step(
        &mut self,
        moves: &WatchMoves,
        now: Instant,
        count_elsewhere: impl FnOnce() -> usize,
        end: impl FnOnce() -> usize,
    ) -> usize {
        if self.next.is_some_and(|next| now < next) {
            return 0;
        }
        let elsewhere = count_elsewhere();
        match self.elsewhere.take() {
            // An endpoint may answer its probes and refuse watches: it would end those of the others one after the other.
            Some(before) if elsewhere <= before => {
                self.lost = (self.lost + 1).min(MAX_DOUBLINGS);
                self.next = Some(now + moves.pause(&self.random) * (1 << self.lost));
                return 0;
            }
            Some(_) => self.lost = 0,
            None => {}
        }
        self.next = Some(now + moves.pause(&self.random));
        let watches = end();
        self.elsewhere = (watches > 0).then_some(elsewhere);
        watches
    }
}

fn move_watches(check: &EndpointCheck, moving: &mut WatchMoving, now: Instant) {
    let EndpointCheck { backend, endpoint, .. } = check;
    let Some(moves) = backend.watch_moves() else { return };
    let watches = moving.step(
        &moves,
        now,
        || backend.watches_elsewhere(endpoint, now),
        || backend.move_watches(endpoint, &moves, now),
    );
    if watches == 0 {
        return;
    }
    let (cluster, endpoint) = (check.cluster.as_str(), endpoint.address().to_string());
    info!(cluster, endpoint, watches, "ended watches, so that their clients move to other endpoints");
    let moved = check.metrics.backend.moved_watches.with_label_values(&[cluster, &endpoint]);
    moved.inc_by(u64::try_from(watches).unwrap_or(u64::MAX));
}

/// Which of the loop's rounds have a probe.
struct ProbePace {
    /// The activity of the cluster in the last round.
    activity: u64,
    last_active: Instant,
    last_probe: Option<Instant>,
}

impl ProbePace {
    fn new(now: Instant) -> Self {
        Self { activity: 0, last_active: now, last_probe: None }
    }

    /// Whether a probe is due. `activity` changes with the requests of the cluster; `in_flight` are those in progress.
    fn is_due(&mut self, now: Instant, activity: u64, in_flight: usize) -> bool {
        if std::mem::replace(&mut self.activity, activity) != activity || in_flight > 0 {
            self.last_active = now;
        }
        let is_idle = now.duration_since(self.last_active) >= IDLE_AFTER;
        let waited = |last: Instant| now.duration_since(last) >= IDLE_INTERVAL;
        let is_due = !is_idle || self.last_probe.is_none_or(waited);
        if is_due {
            self.last_probe = Some(now);
        }
        is_due
    }
}

/// The readiness that the answer to a probe shows; `None` if the probe failed for a reason of this machine.
// threat: local-shortage
fn evaluate(answer: &Result<StatusCode, ProbeError>) -> Option<Readiness> {
    Some(match answer {
        // An API server that may refuse the path (401, 403), or does not know it, answers all the same.
        // apiserver: pkg/server/healthz/healthz.go — 500 while a check fails, as during the shutdown delay
        Ok(status) if status.is_server_error() => Readiness::NotReady,
        Ok(_) => Readiness::Ready,
        Err(ProbeError::Timeout) => Readiness::Silent,
        Err(error) if error.is_of_this_machine() => return None,
        Err(_) => Readiness::NotReady,
    })
}

fn note(check: &EndpointCheck, readiness: Readiness) {
    let (cluster, endpoint) = (&check.cluster, check.endpoint.address().to_string());
    let result = readiness.label();
    let before = check.endpoint.balance().set_readiness(readiness);
    check.metrics.backend.probes.with_label_values(&[cluster.as_str(), &endpoint, result]).inc();
    match (before, readiness) {
        (before, now) if before == now => {}
        // The first probe.
        (Readiness::Unknown, Readiness::Ready) => {}
        (_, Readiness::Ready) => info!(cluster, endpoint, "the endpoint is ready again"),
        _ => warn!(cluster, endpoint, result, "the endpoint is not ready: others get new requests"),
    }
}

/// The totals that the metrics contain already.
#[derive(Default)]
struct Exported {
    ejections: [u64; 2],
    picks: [u64; 2],
    returns: u64,
    dials: [u64; DialResult::ALL.len()],
    /// The lanes that have had a connection: an endpoint uses few of them.
    lanes: [bool; LaneKind::ALL.len()],
    has_begun: bool,
}

impl Exported {
    /// Adds what has changed, for an endpoint in force; a pending one may have the same address.
    fn export(&mut self, check: &EndpointCheck) {
        if !check.is_in_force(&check.live.peek()) {
            return;
        }
        let (metrics, balance) = (&check.metrics.backend, check.endpoint.balance());
        let (cluster, endpoint) = (check.cluster.as_str(), check.endpoint.address().to_string());
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let kinds = [("request", Load::Short), ("watch", Load::Long)];
        for ((kind, load), before) in kinds.into_iter().zip(&mut self.picks) {
            let labels = [cluster, &endpoint, kind];
            metrics.endpoint_in_flight.with_label_values(&labels).set(gauge(balance.in_flight(load)));
            metrics.picks.with_label_values(&labels).inc_by(added(before, balance.picks(load)));
        }
        let causes = [("connect", EjectionCause::Connect), ("broken", EjectionCause::Broken)];
        for ((label, cause), before) in causes.into_iter().zip(&mut self.ejections) {
            let counter = metrics.ejections.with_label_values(&[cluster, &endpoint, label]);
            counter.inc_by(added(before, balance.ejections(cause)));
        }
        let labels = [cluster, endpoint.as_str()];
        metrics.returns.with_label_values(&labels).inc_by(added(&mut self.returns, balance.returns()));
        let counts = check.endpoint.counts();
        metrics.waiting.with_label_values(&labels).set(gauge(counts.waiting()));
        for ((result, total), before) in counts.dials().zip(&mut self.dials) {
            // Few endpoints have failures.
            if total > 0 {
                let counter = metrics.dials.with_label_values(&[cluster, &endpoint, result.label()]);
                counter.inc_by(added(before, total));
            }
        }
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        for ((lane, connections, streams), is_known) in counts.lanes().zip(&mut self.lanes) {
            let labels = [cluster, &endpoint, lane.label()];
            *is_known |= connections > 0;
            if !*is_known {
                if is_first {
                    // Of an endpoint before, which a reload has replaced by this one.
                    metrics.connections.remove_label_values(&labels).ok();
                    metrics.streams.remove_label_values(&labels).ok();
                }
                continue;
            }
            metrics.connections.with_label_values(&labels).set(gauge(connections));
            if lane.has_streams() {
                metrics.streams.with_label_values(&labels).set(gauge(streams));
            }
        }
        // The budget is the cluster's: each of its endpoints exports what the others have not.
        for budget in check.backend.retry_budgets() {
            for RetryTotals { cause, granted, refused } in budget.take_totals() {
                for (result, count) in [("sent", granted), ("over_budget", refused)] {
                    metrics.retries.with_label_values(&[cluster, cause.label(), result]).inc_by(count);
                }
            }
        }
    }
}

/// What was added since `before`, which becomes `total`.
fn added(before: &mut u64, total: u64) -> u64 {
    total.saturating_sub(std::mem::replace(before, total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::endpoint::ConnectError;
    use crate::backend::pool::SendError;

    /// The rounds with a probe, of one round each second.
    fn probes(
        pace: &mut ProbePace,
        from: Instant,
        seconds: u64,
        request: impl Fn(u64) -> (u64, usize),
    ) -> usize {
        let rounds = (0..seconds).filter(|second| {
            let (activity, in_flight) = request(*second);
            pace.is_due(from + Duration::from_secs(*second), activity, in_flight)
        });
        rounds.count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_without_requests_is_probed_less_often() {
        let start = Instant::now();
        let mut pace = ProbePace::new(start);
        assert_eq!(probes(&mut pace, start, 30, |_| (0, 0)), 30, "after the start");
        let idle = start + IDLE_AFTER;
        assert_eq!(probes(&mut pace, idle, 600, |_| (0, 0)), 60);
        let busy = idle + Duration::from_mins(10);
        assert_eq!(probes(&mut pace, busy, 60, |second| (second / 20 + 1, 0)), 60, "a request every 20 s");
        let hanging = busy + Duration::from_mins(10);
        assert_eq!(probes(&mut pace, hanging, 60, |_| (3, 1)), 60, "one request that is not answered");
    }

    #[test]
    fn only_server_errors_and_silence_keep_requests_away() {
        let cases = [
            (200, Readiness::Ready),
            (401, Readiness::Ready),
            (403, Readiness::Ready),
            (404, Readiness::Ready),
            (429, Readiness::Ready),
            (500, Readiness::NotReady),
            (503, Readiness::NotReady),
        ];
        for (code, expected) in cases {
            assert_eq!(evaluate(&Ok(StatusCode::from_u16(code).unwrap())), Some(expected), "{code}");
        }
        assert_eq!(evaluate(&Err(ProbeError::Timeout)), Some(Readiness::Silent));
        assert_eq!(evaluate(&Err(ProbeError::Response(String::new()))), Some(Readiness::NotReady));
        let (address, cause) = (String::new(), String::new());
        let of_this_machine = SendError::Connect(ConnectError::Local { address, cause });
        assert_eq!(evaluate(&Err(of_this_machine.into())), None, "the last one stays");
    }

    /// The steps of an hour in which watches end. `arrives`: whether their clients begin them again elsewhere.
    fn steps_of_an_hour(arrives: bool) -> usize {
        let (moves, began) = (WatchMoves::default(), Instant::now());
        let mut moving = WatchMoving { random: Random::seeded(1), ..WatchMoving::default() };
        let (mut elsewhere, mut steps) = (0, 0);
        for second in 0..3600 {
            let now = began + Duration::from_secs(second);
            let ended = moving.step(&moves, now, || elsewhere, || 4);
            steps += usize::from(ended > 0);
            elsewhere += if arrives { ended } else { 0 };
        }
        steps
    }

    #[test]
    fn watches_that_do_not_arrive_elsewhere_soon_stop_to_be_moved() {
        let (arriving, refused) = (steps_of_an_hour(true), steps_of_an_hour(false));
        assert!((280..=480).contains(&arriving), "{arriving} steps of about 10 s");
        assert!((1..=12).contains(&refused), "{refused} steps");
    }
}
