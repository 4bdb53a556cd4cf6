//! Which replica's controllers work: the one that holds the cluster's lease.
//!
//! Follows client-go's `tools/leaderelection`. Clocks of replicas are never compared: a lease has expired when its
//! record has not changed for its duration as seen from here. Every write is under the `resourceVersion` that was read,
//! so of two who take a lease at once one fails. Two things are stricter than there: the deadline counts from when the
//! last renewal that was good was *sent*, and a leader that sees somebody else in the record stops at once.

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

/// What the gateway is called where events say who reports them.
const REPORTER: &str = "portcullis";
/// How long an attempt may take at least.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it may take to tell others about a change of leader.
const EVENT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long writes in flight have to end when the gateway stops; less if the lease could end before.
const WRITE_GRACE: Duration = Duration::from_secs(1);
/// How long work may take to stop besides: it waits for nothing then, but its thread may be busy.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Tells work to stop.
pub(super) struct StopSignal(watch::Receiver<Option<Duration>>);

impl StopSignal {
    /// Waits until work is to stop; gives how long writes in flight have to end.
    pub(super) async fn requested(&mut self) -> Duration {
        let asked = self.0.wait_for(Option::is_some).await;
        // Without an elector there is no lease.
        asked.ok().and_then(|grace| *grace).unwrap_or_default()
    }
}

/// Work that is told when to stop.
struct LeaderWork<F> {
    work: Pin<Box<F>>,
    stop: watch::Sender<Option<Duration>>,
}

impl<F: Future<Output = ()>> LeaderWork<F> {
    fn begin(work: impl Fn(StopSignal) -> F) -> Self {
        let (stop, stopping) = watch::channel(None);
        Self { work: Box::pin(work(StopSignal(stopping))), stop }
    }

    /// Lets writes in flight end, and waits until nothing goes on.
    async fn end(self, cluster: &str, grace: Duration) {
        self.stop.send_replace(Some(grace));
        if timeout(grace + STOP_TIMEOUT, self.work).await.is_err() {
            warn!(cluster, "controllers take long to stop");
        }
    }
}

/// Works for as long as this replica leads, again and again, until `stop`. Then the lease is given up, once the work has
/// ended. Work runs elsewhere: what is returned by `work` waits for it, and nothing it does delays a renewal.
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
            // What comes first decides: work must never go on without the lease.
            biased;
            () = stop.cancelled() => {
                let left = settings.lease_duration.saturating_sub(settings.renew_deadline);
                working.end(cluster, WRITE_GRACE.min(left)).await;
            }
            () = elector.renew() => working.end(cluster, Duration::ZERO).await,
            () = &mut working.work => {}
        }
        // Nothing of the work goes on when another replica is let in.
        let telling = elector.stopped_leading();
        if stop.is_cancelled() {
            elector.release().await;
            // The runtime may end with this.
            telling.await.ok();
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
    /// What events are about.
    subject: Option<ObjectReference>,
    /// When the last good renewal was sent.
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

    /// Tries until this replica holds the lease; says whether it does before `stop`.
    async fn acquire(&mut self, stop: &CancellationToken) -> bool {
        debug!(cluster = &*self.context.cluster, lease = self.settings.name, "waiting for the lease");
        while !stop.is_cancelled() {
            let sent = Instant::now();
            // An attempt that has begun is not broken off: what it wrote would stand there, and nobody give it up.
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

    /// Keeps the lease; returns when this replica leads no more, or might not.
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

    /// One renewal, tried until it is good or somebody else leads.
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

    /// One attempt that leaves time for another before the deadline: a connection that is dead must not cost the lease.
    // client-go: tools/leaderelection/resourcelock/interface.go, NewFromKubeconfig
    // threat: signing-twice
    async fn bounded_attempt(&mut self) -> Result<bool, String> {
        let deadline = self.settings.renew_deadline;
        let patience = (deadline / 2).max(MIN_ATTEMPT_TIMEOUT).min(deadline);
        match timeout(patience, self.attempt()).await {
            Ok(attempted) => attempted.map_err(|error| error.to_string()),
            Err(_) => Err("the API server does not answer in time".to_owned()),
        }
    }

    /// Takes or renews the lease if it is free or ours. A leader writes at once; whoever fails reads first the next time.
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

    /// Gives the lease up, if it is still ours, so that nobody has to wait for its end.
    async fn release(&mut self) {
        let releasing = async {
            let Some(lease) = self.api.get_opt(&self.settings.name).await? else {
                return Ok::<(), kube::Error>(());
            };
            if let Some(released) = self.candidate.released(lease, self.context.clock.now()) {
                self.api.replace(&self.settings.name, &PostParams::default(), &released).await?;
                info!(cluster = &*self.context.cluster, lease = self.settings.name, "the lease is given up");
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
            "the lease is ours: controllers work here"
        );
        drop(self.record_event("became leader", "Lead"));
    }

    fn stopped_leading(&self) -> JoinHandle<()> {
        self.gauge(0);
        self.record_event("stopped leading", "Stop")
    }

    /// Records an event, beside everything else.
    // client-go: tools/leaderelection/resourcelock/leaselock.go, RecordEvent
    fn record_event(&self, what: &str, action: &str) -> JoinHandle<()> {
        let event = Event {
            type_: EventType::Normal,
            reason: "LeaderElection".to_owned(),
            note: Some(format!("{} {what}", self.context.identity)),
            // Events of one action are one series.
            action: action.to_owned(),
            secondary: None,
        };
        let (recorder, subject) = (self.recorder.clone(), self.subject.clone());
        let cluster = self.context.cluster.clone();
        tokio::spawn(async move {
            let Some(subject) = subject else { return };
            if let Ok(Err(error)) = timeout(EVENT_TIMEOUT, recorder.publish(&event, &subject)).await {
                debug!(cluster = &*cluster, %error, "cannot record who leads");
            }
        })
    }

    /// Says what is wrong, once.
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
    /// Who does not stand for election any more is not one who does not lead.
    fn drop(&mut self) {
        let labels = [&*self.context.cluster, &*self.settings.name];
        // There may be none: then there is nothing to be taken away.
        self.context.metrics.controllers.leads.remove_label_values(&labels).ok();
    }
}

/// The time and up to 1.2 times as much again, so that replicas do not ask in step.
// client-go: tools/leaderelection, JitterFactor
fn jittered(time: Duration) -> Duration {
    let [random, ..] = *Uuid::new_v4().as_bytes();
    time + time.mul_f64(1.2 * f64::from(random) / 255.0)
}

#[cfg(test)]
mod tests;
