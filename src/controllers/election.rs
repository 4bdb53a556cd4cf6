//! Leader election: the replica that holds the cluster's lease runs the controllers.
//!
//! Follows client-go's `tools/leaderelection`. The clocks of replicas are never compared: a lease has expired when this
//! replica has not seen its record change for the lease duration. Every write carries the `resourceVersion` of the
//! read, so of two replicas that take a lease at once one fails. Two rules are stricter than client-go's: the renew
//! deadline counts from when the last successful renewal was *sent*, and a leader that reads another holder stops at
//! once.

mod record;

use std::pin::Pin;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Resource as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::ControllerContext;
use super::settings::LeaderElectionSettings;
use record::{Candidate, LeaseAction};

/// The reporting controller in events.
const REPORTER: &str = "portcullis";
/// The minimum timeout of an attempt to take or renew the lease.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout for publishing an event about a change of leader.
const EVENT_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for writes in flight to complete at shutdown; less if the lease could expire before.
const WRITE_GRACE: Duration = Duration::from_secs(1);
/// The additional time for the controllers to stop: they wait for nothing, but their threads may be busy.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Signals the controllers to stop.
pub(super) struct StopSignal(watch::Receiver<Option<Duration>>);

impl StopSignal {
    /// Waits for the signal; returns the time for writes in flight to complete.
    pub(super) async fn requested(&mut self) -> Duration {
        let grace = self.0.wait_for(Option::is_some).await;
        // A dropped elector no longer holds the lease: no grace.
        grace.ok().and_then(|grace| *grace).unwrap_or_default()
    }
}

/// The controllers' work, with the signal that stops it.
struct LeaderWork<F> {
    work: Pin<Box<F>>,
    stop: watch::Sender<Option<Duration>>,
}

impl<F: Future<Output = ()>> LeaderWork<F> {
    fn begin(work: impl Fn(StopSignal) -> F) -> Self {
        let (stop, stopping) = watch::channel(None);
        Self { work: Box::pin(work(StopSignal(stopping))), stop }
    }

    /// Stops the work: writes in flight may complete within `grace`.
    async fn end(self, cluster: &str, grace: Duration) {
        self.stop.send_replace(Some(grace));
        if timeout(grace + STOP_TIMEOUT, self.work).await.is_err() {
            warn!(cluster, "controllers take long to stop");
        }
    }
}

/// Runs `work` whenever this replica leads, until `stop`; then ends the work and releases the lease. The future that
/// `work` returns only waits for work on another runtime, so that the work cannot delay a renewal.
pub(super) async fn lead<F: Future<Output = ()>>(
    context: &ControllerContext,
    stop: &CancellationToken,
    work: impl Fn(StopSignal) -> F,
) {
    let cluster = &*context.cluster;
    let Some(settings) = &context.settings.election else {
        let mut working = LeaderWork::begin(work);
        tokio::select! {
            () = stop.cancelled() => working.end(cluster, WRITE_GRACE).await,
            () = &mut working.work => {}
        }
        return;
    };
    let mut elector = LeaderElector::new(context, settings);
    while elector.acquire(stop).await {
        elector.became_leader();
        let mut working = LeaderWork::begin(&work);
        tokio::select! {
            // In this order: work must never continue without the lease.
            biased;
            () = stop.cancelled() => {
                let left = settings.lease_duration.saturating_sub(settings.renew_deadline);
                working.end(cluster, WRITE_GRACE.min(left)).await;
            }
            () = elector.renew() => working.end(cluster, Duration::ZERO).await,
            () = &mut working.work => {}
        }
        // The work has ended before another replica can take the lease.
        let publishing = elector.stopped_leading();
        if stop.is_cancelled() {
            elector.release().await;
            // The runtime may shut down when this returns.
            publishing.await.ok();
            return;
        }
    }
}

struct LeaderElector<'a> {
    context: &'a ControllerContext,
    settings: &'a LeaderElectionSettings,
    candidate: Candidate,
    api: Api<Lease>,
    /// The lease as last read or written.
    lease: Option<Lease>,
    /// The lease as the object of events.
    subject: Option<ObjectReference>,
    /// When the last successful renewal was sent.
    renewed: Instant,
    recorder: Recorder,
    last_error: Option<String>,
}

impl<'a> LeaderElector<'a> {
    fn new(context: &'a ControllerContext, settings: &'a LeaderElectionSettings) -> Self {
        let reporter =
            Reporter { controller: REPORTER.to_owned(), instance: Some(context.identity.to_string()) };
        let elector = Self {
            context,
            settings,
            candidate: Candidate::new(&context.identity, settings.lease_duration),
            api: Api::namespaced(context.client.clone(), &settings.namespace),
            lease: None,
            subject: None,
            renewed: Instant::now(),
            recorder: Recorder::new(context.client.clone(), reporter),
            last_error: None,
        };
        elector.gauge(0);
        elector
    }

    fn gauge(&self, leads: i64) {
        let labels = [&*self.context.cluster, &*self.settings.name];
        self.context.metrics.controllers.leads.with_label_values(&labels).set(leads);
    }

    /// Tries to take the lease until this replica holds it; returns `false` on `stop`.
    async fn acquire(&mut self, stop: &CancellationToken) -> bool {
        debug!(cluster = &*self.context.cluster, lease = self.settings.name, "waiting for the lease");
        while !stop.is_cancelled() {
            let sent = Instant::now();
            // An attempt is never cancelled: its write could succeed, and no replica would release the lease.
            match self.bounded_attempt().await {
                Ok(true) => {
                    self.renewed = sent;
                    return true;
                }
                Ok(false) => self.last_error = None,
                Err(problem) => self.log_error_once(&problem),
            }
            stop.run_until_cancelled(sleep(jittered(self.settings.retry_period))).await;
        }
        false
    }

    /// Renews the lease; returns when this replica has lost the lease, or may have.
    async fn renew(&mut self) {
        loop {
            let deadline = self.renewed + self.settings.renew_deadline;
            let cluster = &*self.context.cluster;
            let kept = tokio::select! {
                biased;
                () = sleep_until(deadline) => false,
                kept = self.renewal() => kept,
            };
            if !kept {
                warn!(cluster, lease = self.settings.name, "the lease is lost: controllers stop");
                return;
            }
        }
    }

    /// Retries one renewal until it succeeds; returns `false` if another replica leads.
    async fn renewal(&mut self) -> bool {
        loop {
            sleep(self.settings.retry_period).await;
            let sent = Instant::now();
            match self.bounded_attempt().await {
                Ok(true) => {
                    self.renewed = sent;
                    self.last_error = None;
                    return true;
                }
                Ok(false) => return false,
                Err(problem) => self.log_error_once(&problem),
            }
        }
    }

    /// An attempt with a timeout that leaves time for another one before the deadline: a dead connection must not cost
    /// the lease.
    // client-go: tools/leaderelection/resourcelock/interface.go, NewFromKubeconfig
    // threat: signing-twice
    async fn bounded_attempt(&mut self) -> Result<bool, String> {
        let deadline = self.settings.renew_deadline;
        let attempt_timeout = (deadline / 2).max(MIN_ATTEMPT_TIMEOUT).min(deadline);
        match timeout(attempt_timeout, self.attempt()).await {
            Ok(attempted) => attempted.map_err(|error| error.to_string()),
            Err(_) => Err("the API server does not answer in time".to_owned()),
        }
    }

    /// Takes or renews the lease if it is free or ours. The leader writes without a read; after a failure it reads
    /// first.
    async fn attempt(&mut self) -> kube::Result<bool> {
        let known = self.lease.take().filter(|lease| self.candidate.holds(lease));
        let lease = match known {
            Some(lease) => Some(lease),
            None => self.api.get_opt(&self.settings.name).await?,
        };
        let now = Instant::now();
        if let Some(lease) = &lease {
            self.candidate.observe(lease, now);
        }
        let wall = self.context.clock.now();
        let written = match self.candidate.step(lease, now, wall) {
            LeaseAction::Wait => return Ok(false),
            LeaseAction::Create(spec) => {
                let lease = record::lease(&self.settings.name, spec);
                self.api.create(&PostParams::default(), &lease).await?
            }
            LeaseAction::Replace(lease) => {
                self.api.replace(&self.settings.name, &PostParams::default(), &lease).await?
            }
        };
        self.candidate.observe(&written, Instant::now());
        self.subject = Some(written.object_ref(&()));
        self.lease = Some(written);
        Ok(true)
    }

    /// Releases the lease if it is still ours, so that other replicas need not wait for its expiry.
    async fn release(&mut self) {
        let releasing = async {
            let Some(lease) = self.api.get_opt(&self.settings.name).await? else {
                return Ok::<(), kube::Error>(());
            };
            if let Some(released) = self.candidate.released(lease, self.context.clock.now()) {
                self.api.replace(&self.settings.name, &PostParams::default(), &released).await?;
                info!(cluster = &*self.context.cluster, lease = self.settings.name, "the lease is released");
            }
            Ok(())
        };
        match timeout(self.settings.renew_deadline, releasing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.log_error_once(&error.to_string()),
            Err(_) => self.log_error_once("the API server does not answer in time"),
        }
    }

    fn became_leader(&self) {
        self.gauge(1);
        info!(
            cluster = &*self.context.cluster,
            lease = self.settings.name,
            identity = &*self.context.identity,
            "acquired the lease: controllers run on this replica"
        );
        drop(self.record_event("became leader", "Lead"));
    }

    fn stopped_leading(&self) -> JoinHandle<()> {
        self.gauge(0);
        self.record_event("stopped leading", "Stop")
    }

    /// Publishes an event in the background.
    // client-go: tools/leaderelection/resourcelock/leaselock.go, RecordEvent
    fn record_event(&self, change: &str, action: &str) -> JoinHandle<()> {
        let event = Event {
            type_: EventType::Normal,
            reason: "LeaderElection".to_owned(),
            note: Some(format!("{} {change}", self.context.identity)),
            // Events of one action are one series.
            action: action.to_owned(),
            secondary: None,
        };
        let (recorder, subject) = (self.recorder.clone(), self.subject.clone());
        let cluster = self.context.cluster.clone();
        tokio::spawn(async move {
            let Some(subject) = subject else { return };
            if let Ok(Err(error)) = timeout(EVENT_TIMEOUT, recorder.publish(&event, &subject)).await {
                debug!(cluster = &*cluster, %error, "cannot publish the leader election event");
            }
        })
    }

    /// Logs a problem once, and its repetitions at debug level.
    fn log_error_once(&mut self, problem: &str) {
        let (cluster, lease) = (&*self.context.cluster, &*self.settings.name);
        if self.last_error.as_deref() == Some(problem) {
            debug!(cluster, lease, "no lease for controllers: {problem}");
        } else {
            warn!(cluster, lease, "no lease for controllers: {problem}");
            self.last_error = Some(problem.to_owned());
        }
    }
}

impl Drop for LeaderElector<'_> {
    /// Removes the gauge: a replica without an elector is not a follower.
    fn drop(&mut self) {
        let labels = [&*self.context.cluster, &*self.settings.name];
        // The gauge may not exist.
        self.context.metrics.controllers.leads.remove_label_values(&labels).ok();
    }
}

/// Adds a random delay of up to 1.2 times `time`, so that replicas do not retry in step.
// client-go: tools/leaderelection, JitterFactor
fn jittered(time: Duration) -> Duration {
    let [random, ..] = *Uuid::new_v4().as_bytes();
    time + time.mul_f64(1.2 * f64::from(random) / 255.0)
}

#[cfg(test)]
mod tests;
