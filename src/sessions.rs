//! The sessions of clusters: which of them are recorded, by the policy of the cluster, and how many a user may have. Exec, attach
//! and port-forward are sessions.
//!
//! `crates/sessions` decodes streams, evaluates policies and writes recordings. `pipeline::session` opens sessions and shows
//! their events to [`SessionRecording`]; a task of its own stores them ([`writer`]). What is held for it has bounds ([`queue`],
//! [`RECORDING_SHARES`]), and so have the threads that wait for a disk ([`store`]). A session without `required` never waits for its
//! recording once it is open; one that must be recorded is read as fast as it is recorded.
//!
//! No log line, error or metric has content of a session.

mod failures;
mod queue;
mod recording;
pub(crate) mod settings;
mod store;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use aws_lc_rs::rand;
use portcullis_go::time::Date;
use portcullis_limits::budget::{Budget, BudgetShares};
use portcullis_limits::fair_limiter::{FairLimiter, Permit, Shares};
use portcullis_limits::{ClusterOwner, Owner};
use portcullis_sessions::policy::{RecordingLevel, SessionAttributes, SessionDecision, SessionPolicy};
use portcullis_sessions::recording::Recorder;
use portcullis_sessions::recording::metadata::SessionStart;
use portcullis_sessions::storage::{RecordingDirectory, SessionName};
use portcullis_system::clock::{Clock, UnixTime};
use portcullis_system::sync::lock;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::metrics::Metrics;
use failures::FailureLog;
pub(crate) use failures::RecordingFailure;
pub(crate) use recording::SessionRecording;
use settings::SessionSettings;
use store::SessionStore;
use writer::RecordedSession;

/// The bytes of all recordings that are not stored yet.
const RECORDING_BYTES: usize = 64 << 20;
/// The same of one owner.
const OWNER_RECORDING_BYTES: usize = RECORDING_BYTES / 4;

/// The first of them of a user, which it has also where others have taken the rest.
const FLOOR_RECORDING_BYTES: usize = 512 << 10;

// A session that must be recorded waits for so much.
const _: () = assert!(FLOOR_RECORDING_BYTES >= queue::READ_BYTES);

/// The bytes of recordings that are not stored yet. One owner has a quarter; clusters of Secrets together have a half, and
/// unauthenticated clients a quarter. A quarter is for the first bytes of each user of the operator's clusters, so that a few
/// who take all they may make gaps in their own recordings alone.
// threat: recording-gap
const RECORDING_SHARES: BudgetShares = BudgetShares::new(RECORDING_BYTES)
    .with_reserve(RECORDING_BYTES / 4)
    .with_flows(OWNER_RECORDING_BYTES)
    .with_flow_floor(FLOOR_RECORDING_BYTES)
    .with_tenants(OWNER_RECORDING_BYTES, RECORDING_BYTES / 2)
    .with_networks(OWNER_RECORDING_BYTES, OWNER_RECORDING_BYTES);

/// A user of a cluster: its sessions are counted.
type SessionUser = (Arc<str>, Arc<str>);

/// The sessions of a process, across reloads.
#[derive(Debug)]
pub(crate) struct Sessions {
    parts: Arc<SessionParts>,
    /// One for each directory, however many clusters and generations use it.
    stores: Mutex<HashMap<PathBuf, Weak<SessionStore>>>,
}

/// What all clusters share.
#[derive(Debug)]
struct SessionParts {
    memory: Budget,
    /// The open sessions of each user.
    open: FairLimiter<SessionUser>,
    counting: Mutex<()>,
    failures: FailureLog,
    /// The recordings that are not stored to their end.
    unfinished: watch::Sender<usize>,
    runtime: Handle,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// The sessions of a cluster, of one generation of the configuration.
#[derive(Debug)]
pub(crate) struct ClusterSessions {
    policy: SessionPolicy,
    store: Option<Arc<SessionStore>>,
    cluster: ClusterOwner,
    parts: Arc<SessionParts>,
}

/// The place of a session among those of its user.
pub(crate) type SessionPermit = Permit<SessionUser>;

/// A user has as many sessions as the policy permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the user has {most} sessions, as many as the session policy permits")]
pub(crate) struct TooManySessions {
    /// Their number.
    pub(crate) most: u32,
}

impl Sessions {
    /// No session yet. Recordings are written on `runtime`, which must outlive the tunnels.
    pub(crate) fn new(metrics: &Arc<Metrics>, clock: &Clock, runtime: Handle) -> Self {
        Self::with_shares(metrics, clock, runtime, RECORDING_SHARES)
    }

    fn with_shares(metrics: &Arc<Metrics>, clock: &Clock, runtime: Handle, shares: BudgetShares) -> Self {
        let memory = Budget::new(shares);
        metrics.sessions.expose_recording_bytes(memory.clone());
        let parts = SessionParts {
            memory,
            // It counts, and has no limit: each policy has its own.
            open: FairLimiter::new(Shares::new(usize::MAX, usize::MAX)),
            counting: Mutex::default(),
            failures: FailureLog::new(metrics),
            unfinished: watch::Sender::new(0),
            runtime,
            metrics: Arc::clone(metrics),
            clock: clock.clone(),
        };
        Self { parts: Arc::new(parts), stores: Mutex::default() }
    }

    /// The sessions of a cluster with these settings.
    pub(crate) fn open(&self, settings: &SessionSettings, cluster: ClusterOwner) -> ClusterSessions {
        let SessionSettings { policy, directory } = settings;
        let store = directory.as_ref().map(|directory| self.store(directory));
        ClusterSessions { policy: policy.clone(), store, cluster, parts: Arc::clone(&self.parts) }
    }

    fn store(&self, directory: &Path) -> Arc<SessionStore> {
        let mut stores = lock(&self.stores);
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(known) = stores.get(directory).and_then(Weak::upgrade) {
            return known;
        }
        let store = Arc::new(RecordingDirectory::existing(directory));
        let store = Arc::new(SessionStore::new(store, directory.display().to_string()));
        stores.insert(directory.to_owned(), Arc::downgrade(&store));
        store
    }

    /// Divides what the clusters of Secrets have together among so many of them.
    pub(crate) fn divide_among(&self, tenants: usize) {
        self.parts.memory.divide_among(tenants);
    }

    /// The recordings that are not stored to their end.
    pub(crate) fn unfinished(&self) -> usize {
        *self.parts.unfinished.borrow()
    }

    /// Waits until there are none.
    pub(crate) async fn finished(&self) {
        // The sender is here.
        self.parts.unfinished.subscribe().wait_for(|unfinished| *unfinished == 0).await.ok();
    }
}

impl ClusterSessions {
    /// What the policy says of a session.
    pub(crate) fn decide(&self, session: &SessionAttributes<'_>) -> SessionDecision {
        self.policy.evaluate(session)
    }

    /// Counts a session of this user, unless it has as many as `most`. Sessions of all rules count.
    pub(crate) fn count(
        &self,
        user: &str,
        most: Option<u32>,
    ) -> Result<Option<SessionPermit>, TooManySessions> {
        let user: SessionUser = (Arc::clone(self.cluster.cluster()), user.into());
        let SessionParts { open, counting, .. } = &*self.parts;
        // Two at once must not take one place.
        let _counting = lock(counting);
        if let Some(most) = most
            && open.in_service_of(&user) >= usize::try_from(most).unwrap_or(usize::MAX)
        {
            return Err(TooManySessions { most });
        }
        Ok(open.try_acquire(user, 1))
    }

    /// Begins the recording of a session: its first document is stored when this returns. `start` lacks the cluster, the level and
    /// the time. It is removed again unless the session opens.
    pub(crate) async fn record(
        &self,
        owner: Owner,
        start: SessionStart,
        decision: SessionDecision,
    ) -> Result<SessionRecording, RecordingFailure> {
        let begun = self.begin(owner, start, decision).await;
        if let Err(failure) = &begun {
            let directory = self.store.as_ref().map(|store| store.name()).unwrap_or_default();
            self.parts.metrics.sessions.recorded("failed");
            self.parts.failures.note(self.cluster.cluster(), directory, failure);
        }
        begun
    }

    async fn begin(
        &self,
        owner: Owner,
        start: SessionStart,
        decision: SessionDecision,
    ) -> Result<SessionRecording, RecordingFailure> {
        // The configuration has it.
        let store = self.store.as_ref().ok_or(RecordingFailure::NoDirectory)?;
        let mut random = [0; 8];
        rand::fill(&mut random).map_err(|_| RecordingFailure::NoRandomNumbers)?;
        let now = self.parts.clock.now();
        let session = SessionName::new(now, &start.audit_id, random);
        let start = SessionStart {
            cluster: self.cluster.cluster().to_string(),
            level: decision.level.as_str().to_owned(),
            start: timestamp(now),
            ..start
        };
        let recorded = RecordedSession {
            session,
            owner,
            store: Arc::clone(store),
            parts: Arc::clone(&self.parts),
            cluster: Arc::clone(self.cluster.cluster()),
        };
        let has_input = decision.level == RecordingLevel::InputAndOutput;
        let recorder = (decision.level >= RecordingLevel::Output)
            .then(|| recording::recorder(&start, now.as_secs(), has_input));
        let form = recorder.as_ref().map_or(recording::FORM_WITHOUT_CONTENT, Recorder::part_form);
        let queue = recorded.begin(start, form, decision.required).await?;
        Ok(SessionRecording::new(recorder, queue, decision))
    }
}

/// A time in RFC 3339 with milliseconds.
fn timestamp(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX).min(LAST_SECOND);
    let Date { year, month, day, hour, minute, second, .. } = Date::of(seconds);
    let milliseconds = time.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

/// The last second of the year 9999.
const LAST_SECOND: i64 = 253_402_300_799;

#[cfg(test)]
mod tests;
