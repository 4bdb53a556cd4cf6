//! Recordings beside a store that hangs, is full, or goes away; and users who abuse what they share.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Condvar, MutexGuard};
use std::time::Duration;

use portcullis_sessions::decoder::{OutputChannel, SessionEvent};
use portcullis_sessions::recording::metadata::SessionEnd;
use portcullis_sessions::storage::verify::verify;
use portcullis_sessions::storage::{ObjectName, RecordingStore};
use tokio::time::{Instant, advance};

use super::queue::MAX_SESSION_BYTES;
use super::*;
use crate::limits::testing::assert_the_last_of_nine_tenants_has;

/// A store in memory. What is of sessions of `mallory` hangs or fails.
#[derive(Default)]
struct FakeStore {
    state: Mutex<FakeState>,
    changed: Condvar,
    changes: watch::Sender<()>,
}

#[derive(Default)]
struct FakeState {
    objects: BTreeMap<(SessionName, ObjectName), Vec<u8>>,
    hangs: Option<Hangs>,
    error: Option<io::ErrorKind>,
    /// How many objects are stored before all fail.
    fails_after: Option<usize>,
    hanging: usize,
    discarded: usize,
}

/// Which objects hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hangs {
    All,
    Parts,
}

impl FakeStore {
    fn state(&self) -> MutexGuard<'_, FakeState> {
        lock(&self.state)
    }

    fn change(&self, change: impl FnOnce(&mut FakeState)) {
        change(&mut self.state());
        self.changed.notify_all();
        self.changes.send_replace(());
    }

    /// Waits until the state is so.
    async fn until(&self, holds: impl Fn(&FakeState) -> bool) {
        let mut changes = self.changes.subscribe();
        while !holds(&self.state()) {
            changes.changed().await.unwrap();
        }
    }

    fn lines(&self, user: &str) -> String {
        let state = self.state();
        let of_user = state.objects.iter().filter(|((session, object), _)| {
            session.as_str().contains(user) && matches!(object, ObjectName::Part(..))
        });
        of_user.map(|(_, lines)| std::str::from_utf8(lines).unwrap()).collect()
    }
}

impl RecordingStore for FakeStore {
    fn put(&self, session: &SessionName, object: &ObjectName, content: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        if session.as_str().contains("mallory") {
            let is_part = matches!(object, ObjectName::Part(..));
            let hangs = |state: &FakeState| match state.hangs {
                Some(Hangs::All) => true,
                Some(Hangs::Parts) => is_part,
                None => false,
            };
            if hangs(&state) {
                state.hanging += 1;
                self.changes.send_replace(());
                state = self.changed.wait_while(state, |state| hangs(state)).unwrap();
                state.hanging -= 1;
            }
            if let Some(left) = &mut state.fails_after {
                let Some(next) = left.checked_sub(1) else { return Err(io::ErrorKind::StorageFull.into()) };
                *left = next;
            }
            if let Some(error) = state.error {
                self.changes.send_replace(());
                return Err(error.into());
            }
        }
        state.objects.insert((session.clone(), *object), content.to_vec());
        self.changes.send_replace(());
        Ok(())
    }

    fn get(&self, session: &SessionName, object: &ObjectName) -> io::Result<Option<Vec<u8>>> {
        Ok(self.state().objects.get(&(session.clone(), *object)).cloned())
    }

    fn objects(&self, session: &SessionName) -> io::Result<Vec<ObjectName>> {
        let state = self.state();
        Ok(state.objects.keys().filter(|(name, _)| name == session).map(|(_, object)| *object).collect())
    }

    fn sessions(&self) -> io::Result<Vec<SessionName>> {
        let mut sessions: Vec<_> = self.state().objects.keys().map(|(session, _)| session.clone()).collect();
        sessions.dedup();
        Ok(sessions)
    }

    fn discard(&self, session: &SessionName) -> io::Result<()> {
        self.change(|state| {
            state.objects.retain(|(name, _), _| name != session);
            state.discarded += 1;
        });
        Ok(())
    }
}

/// Sessions of a cluster that are recorded in a store that hangs.
struct Recorded {
    store: Arc<FakeStore>,
    metrics: Arc<Metrics>,
    sessions: Sessions,
    cluster: ClusterSessions,
}

const OPTIONAL: SessionDecision = SessionDecision {
    level: RecordingLevel::Output,
    required: false,
    max_duration: None,
    idle_timeout: None,
    max_sessions_per_user: None,
};
const REQUIRED: SessionDecision = SessionDecision { required: true, ..OPTIONAL };

impl Recorded {
    fn new() -> Self {
        Self::with_shares(RECORDING_SHARES)
    }

    fn with_shares(shares: BudgetShares) -> Self {
        let (metrics, clock) =
            (Arc::new(Metrics::new()), Clock::from_fn(|| Duration::from_millis(1_767_323_045_678)));
        let sessions = Sessions::with_shares(&metrics, &clock, Handle::current(), shares);
        let policy = serde_json::json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "SessionPolicy", "rules": [{"level": "Output"}],
        });
        let store = Arc::new(FakeStore::default());
        let of_cluster: Arc<dyn RecordingStore> = Arc::<FakeStore>::clone(&store);
        let cluster = ClusterSessions {
            policy: SessionPolicy::parse(&policy).unwrap(),
            store: Some(Arc::new(SessionStore::new(of_cluster, "fake".to_owned()))),
            cluster: ClusterOwner::operator("c"),
            parts: Arc::clone(&sessions.parts),
        };
        Self { store, metrics, sessions, cluster }
    }

    async fn begin(
        &self,
        user: &str,
        decision: SessionDecision,
    ) -> Result<SessionRecording, RecordingFailure> {
        let start = SessionStart { audit_id: user.to_owned(), ..SessionStart::default() };
        self.cluster.record(Owner::flow("c", user), start, decision).await
    }

    /// A session of `owner` that must be recorded, and is stored as one of `alice`.
    async fn open_as(&self, owner: &str) -> SessionRecording {
        let start = SessionStart { audit_id: "alice".to_owned(), ..SessionStart::default() };
        let mut recording = self.cluster.record(Owner::flow("c", owner), start, REQUIRED).await.unwrap();
        recording.open();
        recording
    }

    async fn open(&self, user: &str, decision: SessionDecision) -> SessionRecording {
        let mut recording = self.begin(user, decision).await.unwrap();
        recording.open();
        recording
    }

    fn has(&self, line: &str) -> bool {
        self.metrics.render().0.lines().any(|found| found == line)
    }

    fn held(&self) -> usize {
        self.sessions.parts.memory.usage().total()
    }
}

impl Drop for Recorded {
    /// A test that fails ends: the runtime waits for the threads of the store.
    fn drop(&mut self) {
        self.store.change(|state| state.hangs = None);
    }
}

fn output(recording: &mut SessionRecording, text: &str) {
    recording.record(&SessionEvent::Output { channel: OutputChannel::Stdout, bytes: text.as_bytes() });
}

/// More output than a session may hold, none of which ends in the middle of a part.
fn flood(recording: &mut SessionRecording) {
    let text = "x".repeat(8 << 10);
    for _ in 0..2 * MAX_SESSION_BYTES / text.len() {
        output(recording, &text);
    }
}

/// The end of a recording, of the only session.
fn end_of(recorded: &Recorded) -> SessionEnd {
    let [session] = &recorded.store.sessions().unwrap()[..] else { panic!("one session") };
    let end = recorded.store.get(session, &ObjectName::End).unwrap().expect("an end");
    SessionEnd::from_json(&end).unwrap()
}

/// Output until the session has to wait for the store.
fn fill(recording: &mut SessionRecording) {
    for _ in 0..1000 {
        if recording.room().is_some() {
            return;
        }
        output(recording, &"\0".repeat(8 << 10));
    }
    panic!("it never waits");
}

fn parts(state: &FakeState, user: &str) -> usize {
    let of_user = |(session, object): &&(SessionName, ObjectName)| {
        session.as_str().contains(user) && matches!(object, ObjectName::PartLink(_))
    };
    state.objects.keys().filter(of_user).count()
}

#[tokio::test(start_paused = true)]
async fn a_recording_is_stored_in_parts_while_its_session_goes_on() {
    let recorded = Recorded::new();
    let mut recording = recorded.open("alice", OPTIONAL).await;
    output(&mut recording, "one");
    recorded.store.until(|state| parts(state, "alice") == 1).await;
    assert!(recorded.store.lines("alice").ends_with("\"stdout\", \"one\"]\n"), "after some seconds");
    output(&mut recording, "two");
    recording.end(SessionEnd { reason: "exited".to_owned(), ..SessionEnd::default() });
    recorded.sessions.finished().await;
    let [session] = &recorded.store.sessions().unwrap()[..] else { panic!("one session") };
    assert_eq!(session.as_str(), recording.name());
    let found = verify(&*recorded.store, session).unwrap();
    assert_eq!((found.parts, found.has_ended, found.problems), (2, true, Vec::new()));
    let document =
        |object| String::from_utf8(recorded.store.get(session, &object).unwrap().unwrap()).unwrap();
    assert!(document(ObjectName::Start).contains("\"start\": \"2026-01-02T03:04:05.678Z\""));
    assert!(document(ObjectName::End).contains("\"end\": \"2026-01-02T03:04:05.678Z\""));
    assert!(recorded.has("portcullis_session_recordings_total{result=\"complete\"} 1"));
    assert_eq!(recorded.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_opened_leaves_nothing() {
    let recorded = Recorded::new();
    drop(recorded.begin("alice", REQUIRED).await.unwrap());
    recorded.sessions.finished().await;
    assert_eq!(recorded.store.sessions().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_may_have_run_leaves_a_recording() {
    let recorded = Recorded::new();
    let mut recording = recorded.begin("alice", REQUIRED).await.unwrap();
    recording.sent();
    // The client is gone before the API server has responded.
    drop(recording);
    recorded.sessions.finished().await;
    let end = end_of(&recorded);
    assert_eq!((end.reason.as_str(), end.end.as_str()), ("unanswered", "2026-01-02T03:04:05.678Z"));
    assert!(recorded.has("portcullis_session_recordings_total{result=\"complete\"} 1"));

    let recorded = Recorded::new();
    let mut recording = recorded.begin("alice", REQUIRED).await.unwrap();
    recording.sent();
    recording.refused();
    drop(recording);
    recorded.sessions.finished().await;
    assert_eq!(recorded.store.sessions().unwrap(), []);
}

/// The first document is stored, and its link is not.
#[tokio::test(start_paused = true)]
async fn a_recording_that_cannot_begin_leaves_nothing() {
    let recorded = Recorded::new();
    recorded.store.change(|state| state.fails_after = Some(1));
    let refused = recorded.begin("mallory", REQUIRED).await;
    assert!(matches!(refused, Err(RecordingFailure::Store(_))), "{refused:?}");
    recorded.store.until(|state| state.discarded == 1).await;
    assert_eq!(recorded.store.sessions().unwrap(), []);

    // One that is there is not its own.
    recorded
        .store
        .change(|state| (state.fails_after, state.error) = (None, Some(io::ErrorKind::AlreadyExists)));
    recorded.begin("mallory", REQUIRED).await.unwrap_err();
    assert_eq!(recorded.store.state().discarded, 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_gone_while_its_recording_begins_leaves_nothing() {
    let recorded = Recorded::new();
    recorded.store.change(|state| state.hangs = Some(Hangs::All));
    let begin = recorded.begin("mallory", REQUIRED);
    tokio::select! {
        _ = begin => panic!("it hangs"),
        () = recorded.store.until(|state| state.hanging == 1) => {}
    }
    recorded.store.change(|state| state.hangs = None);
    recorded.store.until(|state| state.discarded == 1).await;
    assert_eq!(recorded.store.sessions().unwrap(), []);
}

/// A few users who take all they may leave their first bytes to the others.
#[tokio::test(start_paused = true)]
async fn four_users_who_fill_the_memory_make_no_gap_in_the_recording_of_another() {
    let (share, floor) = (3 << 20, FLOOR_RECORDING_BYTES);
    let shares = BudgetShares::new(4 * share).with_reserve(1 << 20).with_flows(share).with_flow_floor(floor);
    let recorded = Recorded::with_shares(shares);
    let mut greedy = Vec::new();
    for number in 0..16 {
        greedy.push(recorded.open(&format!("mallory-{}", number % 4), OPTIONAL).await);
    }
    let mut calm = recorded.open("bob", REQUIRED).await;
    // Nothing is stored meanwhile: the tasks wait for this one.
    greedy.iter_mut().for_each(flood);
    assert!(recorded.held() > 10 << 20, "{}", recorded.held());
    output(&mut calm, &"b".repeat(8 << 10));
    assert!(calm.room().is_none() && !calm.failed().unwrap().is_cancelled());
    calm.end(SessionEnd::default());
    drop(greedy);
    recorded.sessions.finished().await;
    assert!(recorded.store.lines("bob").contains("bbb"));
    assert_eq!(recorded.held(), 0);
}

/// Without room for a mark, the last document says that something is missing.
#[tokio::test(start_paused = true)]
async fn a_gap_at_the_end_shows_in_the_last_document() {
    let recorded = Recorded::with_shares(BudgetShares::new(32 << 20).with_flows(600 << 10));
    let mut quiet = recorded.open("mallory", OPTIONAL).await;
    let mut loud = recorded.open("mallory", OPTIONAL).await;
    flood(&mut loud);
    // To the last lines that find room.
    for _ in 0..10_000 {
        output(&mut loud, "x");
    }
    output(&mut quiet, "out");
    quiet.end(SessionEnd::default());
    let name = quiet.name().to_owned();
    loud.end(SessionEnd::default());
    recorded.sessions.finished().await;
    let sessions = recorded.store.sessions().unwrap();
    let session = sessions.iter().find(|session| session.as_str() == name).unwrap();
    let end = recorded.store.get(session, &ObjectName::End).unwrap().unwrap();
    assert!(SessionEnd::from_json(&end).unwrap().incomplete);
}

#[tokio::test(start_paused = true)]
async fn what_was_opened_is_kept_though_its_end_was_not_told() {
    let recorded = Recorded::new();
    let mut recording = recorded.open("alice", OPTIONAL).await;
    output(&mut recording, "one");
    drop(recording);
    recorded.sessions.finished().await;
    assert!(recorded.store.lines("alice").contains("one"));
}

#[tokio::test(start_paused = true)]
async fn a_session_holds_no_more_than_its_bound_and_shows_what_it_lost() {
    let recorded = Recorded::new();
    let mut hung = recorded.open("mallory", OPTIONAL).await;
    let mut calm = recorded.open("bob", OPTIONAL).await;
    recorded.store.change(|state| state.hangs = Some(Hangs::Parts));
    flood(&mut hung);
    // To the last byte of content. How the session ends has room of its own.
    for _ in 0..5000 {
        output(&mut hung, "x");
    }
    hung.record(&SessionEvent::Failed { message: "m".repeat(1000) });
    assert!((MAX_SESSION_BYTES / 2..=MAX_SESSION_BYTES).contains(&recorded.held()), "{}", recorded.held());
    output(&mut calm, "of bob");
    recorded.store.until(|state| state.hanging == 1).await;
    calm.end(SessionEnd::default());
    recorded.store.until(|state| parts(state, "bob") == 1).await;
    assert!(recorded.store.lines("bob").contains("of bob"));

    recorded.store.change(|state| state.hangs = None);
    recorded.store.until(|state| parts(state, "mallory") > 0).await;
    while recorded.held() > MAX_SESSION_BYTES / 2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    output(&mut hung, "later");
    hung.end(SessionEnd::default());
    recorded.sessions.finished().await;
    let lines = recorded.store.lines("mallory");
    let (_, after_gap) =
        lines.split_once("\"skipped\", [\"server\", \"the recording could not keep up\"]").unwrap();
    assert!(after_gap.contains("later") && after_gap.contains("\"failed\", \"mmm"));
    for line in [
        "portcullis_session_recordings_total{result=\"complete\"} 1",
        "portcullis_session_recordings_total{result=\"incomplete\"} 1",
        "portcullis_session_recording_failures_total{cause=\"slow\"} 1",
    ] {
        assert!(recorded.has(line), "{line}");
    }
    assert_eq!(recorded.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_must_be_recorded_waits_for_its_store_and_no_other_does() {
    let recorded = Recorded::new();
    let mut hung = recorded.open("mallory", REQUIRED).await;
    let failed = hung.failed().unwrap();
    recorded.store.change(|state| state.hangs = Some(Hangs::Parts));
    fill(&mut hung);
    let room = hung.room().unwrap();
    recorded.store.until(|state| state.hanging == 1).await;
    recorded.store.change(|state| state.hangs = None);
    let waited = Instant::now();
    room.await;
    assert!(
        waited.elapsed() < Duration::from_millis(100),
        "as soon as a part is stored: {:?}",
        waited.elapsed()
    );
    output(&mut hung, "later");
    hung.end(SessionEnd::default());
    recorded.sessions.finished().await;
    let lines = recorded.store.lines("mallory");
    assert!(lines.contains("later") && !lines.contains("skipped"));
    assert!(!failed.is_cancelled());
    assert!(recorded.has("portcullis_session_recordings_total{result=\"complete\"} 1"));

    let mut optional = recorded.open("mallory", OPTIONAL).await;
    let documents = SessionDecision { level: RecordingLevel::Metadata, ..REQUIRED };
    let mut without_content = recorded.open("mallory", documents).await;
    recorded.store.change(|state| state.hangs = Some(Hangs::Parts));
    for recording in [&mut optional, &mut without_content] {
        flood(recording);
        assert!(recording.room().is_none());
    }
    recorded.store.change(|state| state.hangs = None);
}

#[tokio::test(start_paused = true)]
async fn a_session_waits_for_the_share_of_its_owner_and_not_for_ever() {
    let share = 2 << 20;
    let recorded = Recorded::with_shares(BudgetShares::new(2 * share).with_flows(share));
    let mut hung = Vec::new();
    for _ in 0..3 {
        hung.push(recorded.open("mallory", OPTIONAL).await);
    }
    let mut other = recorded.open_as("mallory").await;
    recorded.store.change(|state| state.hangs = Some(Hangs::Parts));
    hung.iter_mut().for_each(flood);
    // The third has less than a part.
    recorded.store.until(|state| state.hanging == 2).await;
    let waited = Instant::now();
    tokio::join!(other.room().unwrap(), advance(Duration::from_secs(30)));
    assert_eq!(waited.elapsed().as_secs(), 30);
    assert!(
        other.failed().unwrap().is_cancelled() && other.room().is_none(),
        "it has failed, and waits no more"
    );
    // The gaps of three, and this.
    assert!(recorded.has("portcullis_session_recording_failures_total{cause=\"slow\"} 4"));
    // Another one gets what others free.
    let next = recorded.open_as("mallory").await;
    other.end(SessionEnd::default());
    let room = next.room().unwrap();
    recorded.store.change(|state| state.hangs = None);
    for recording in &mut hung {
        recording.end(SessionEnd::default());
    }
    room.await;
    assert!(next.room().is_none() && !next.failed().unwrap().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_user_with_many_sessions_makes_gaps_in_its_own_recordings_alone() {
    let share = 3 << 20;
    let recorded = Recorded::with_shares(BudgetShares::new(2 * share).with_flows(share));
    let mut hung = Vec::new();
    for _ in 0..16 {
        hung.push(recorded.open("mallory", OPTIONAL).await);
    }
    let mut calm = recorded.open("bob", OPTIONAL).await;
    recorded.store.change(|state| state.hangs = Some(Hangs::Parts));
    hung.iter_mut().for_each(flood);
    assert!((share / 2..=share).contains(&recorded.held()), "{}", recorded.held());
    // More than what the other's share may have left.
    for _ in 0..20 {
        output(&mut calm, &"y".repeat(8 << 10));
    }
    output(&mut calm, "of bob");
    calm.end(SessionEnd::default());
    recorded.store.until(|state| parts(state, "bob") == 1).await;
    let lines = recorded.store.lines("bob");
    assert!(lines.contains("of bob") && !lines.contains("skipped"));
    recorded.store.change(|state| state.hangs = None);
    drop(hung);
    recorded.sessions.finished().await;
    assert!(recorded.has("portcullis_session_recordings_total{result=\"complete\"} 1"));
    assert_eq!(recorded.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_user_whose_writes_hang_leaves_threads_to_others() {
    let recorded = Recorded::new();
    let mut hung = Vec::new();
    for _ in 0..12 {
        hung.push(recorded.open("mallory", OPTIONAL).await);
    }
    recorded.store.change(|state| state.hangs = Some(Hangs::Parts));
    for recording in &mut hung {
        flood(recording);
    }
    recorded.store.until(|state| state.hanging == 4).await;
    let mut calm = recorded.open("bob", OPTIONAL).await;
    output(&mut calm, "of bob");
    calm.end(SessionEnd::default());
    recorded.store.until(|state| parts(state, "bob") == 1).await;
    assert_eq!(recorded.store.state().hanging, 4, "no more than the share of one user");
    recorded.store.change(|state| state.hangs = None);
    drop(hung);
    recorded.sessions.finished().await;
    assert_eq!(recorded.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_takes_no_more_threads_than_its_own() {
    let recorded = Recorded::new();
    let mut hung = Vec::new();
    for user in ["mallory-1", "mallory-2", "mallory-3"] {
        for _ in 0..4 {
            hung.push(recorded.open(user, OPTIONAL).await);
        }
    }
    recorded.store.change(|state| state.hangs = Some(Hangs::Parts));
    hung.iter_mut().for_each(flood);
    recorded.store.until(|state| state.hanging == 8).await;
    let refused = async {
        let refused = recorded.begin("bob", REQUIRED).await;
        assert!(matches!(refused, Err(RecordingFailure::Busy(_))), "{refused:?}");
    };
    tokio::join!(refused, advance(Duration::from_secs(10)));
    assert_eq!(recorded.store.state().hanging, 8);
    recorded.store.change(|state| state.hangs = None);
    drop(hung);
    recorded.sessions.finished().await;
    assert_eq!(recorded.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_refuses_a_session_in_time() {
    let recorded = Recorded::new();
    recorded.store.change(|state| state.hangs = Some(Hangs::All));
    let begun = Instant::now();
    let refused = async {
        let refused = recorded.begin("mallory", REQUIRED).await;
        assert!(matches!(refused, Err(RecordingFailure::TimedOut)), "{refused:?}");
    };
    let wait = async {
        recorded.store.until(|state| state.hanging == 1).await;
        advance(Duration::from_secs(10)).await;
    };
    tokio::join!(refused, wait);
    assert_eq!(begun.elapsed().as_secs(), 10);
    assert!(recorded.has("portcullis_session_recordings_total{result=\"failed\"} 1"));
    assert!(recorded.has("portcullis_session_recording_failures_total{cause=\"timeout\"} 1"));
    // What the thread has stored meanwhile is removed.
    recorded.store.change(|state| state.hangs = None);
    recorded.store.until(|state| state.discarded == 1).await;
    assert_eq!(recorded.store.sessions().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_must_be_recorded_ends_with_its_first_failure() {
    let recorded = Recorded::new();
    for case in ["full", "hangs", "gap", "unreadable"] {
        let mut recording = recorded.open("mallory", REQUIRED).await;
        let failed = recording.failed().unwrap();
        assert!(!failed.is_cancelled());
        match case {
            "full" => recorded.store.change(|state| state.error = Some(io::ErrorKind::StorageFull)),
            "unreadable" => {}
            _ => recorded.store.change(|state| state.hangs = Some(Hangs::Parts)),
        }
        match case {
            "gap" => flood(&mut recording),
            "unreadable" => {
                let from = portcullis_sessions::decoder::Side::Server;
                recording.record(&SessionEvent::Unreadable { from, why: "a reason" });
            }
            _ => output(&mut recording, "a"),
        }
        if case == "hangs" {
            advance(Duration::from_secs(5)).await;
            recorded.store.until(|state| state.hanging == 1).await;
            advance(Duration::from_secs(30)).await;
        }
        failed.cancelled().await;
        recorded.store.change(|state| (state.error, state.hangs) = (None, None));
        recording.end(SessionEnd::default());
        recorded.sessions.finished().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_need_not_be_recorded_goes_on_over_a_full_disk() {
    let recorded = Recorded::new();
    let mut recording = recorded.open("mallory", OPTIONAL).await;
    recorded.store.change(|state| state.error = Some(io::ErrorKind::StorageFull));
    output(&mut recording, "one");
    while !recorded.has("portcullis_session_recording_failures_total{cause=\"full\"} 1") {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    recorded.store.change(|state| state.error = None);
    // Without any further output.
    recorded.store.until(|state| parts(state, "mallory") > 0).await;
    output(&mut recording, "two");
    recording.end(SessionEnd::default());
    recorded.sessions.finished().await;
    let lines = recorded.store.lines("mallory");
    assert!(lines.contains("one") && lines.contains("two") && !lines.contains("skipped"), "{lines}");
    assert!(recorded.has("portcullis_session_recordings_total{result=\"complete\"} 1"));

    // It is full to the end.
    let mut recording = recorded.open("mallory", OPTIONAL).await;
    recorded.store.change(|state| state.error = Some(io::ErrorKind::StorageFull));
    output(&mut recording, "three");
    recording.end(SessionEnd::default());
    recorded.sessions.finished().await;
    assert!(recorded.has("portcullis_session_recordings_total{result=\"incomplete\"} 1"));
    assert_eq!(recorded.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_documents_alone_have_no_content() {
    let recorded = Recorded::new();
    let decision = SessionDecision { level: RecordingLevel::Metadata, ..OPTIONAL };
    let mut recording = recorded.open("alice", decision).await;
    output(&mut recording, "secret");
    recording.end(SessionEnd::default());
    recorded.sessions.finished().await;
    let state = recorded.store.state();
    let objects: Vec<String> = state.objects.keys().map(|(_, object)| object.to_string()).collect();
    assert_eq!(objects, ["session.json", "end.json", "session.link", "end.link"]);
    assert!(state.objects.values().all(|content| !String::from_utf8_lossy(content).contains("secret")));
}

#[tokio::test(start_paused = true)]
async fn input_is_recorded_at_its_level_alone() {
    for (level, expected) in [(RecordingLevel::Output, false), (RecordingLevel::InputAndOutput, true)] {
        let recorded = Recorded::new();
        let mut recording = recorded.open("alice", SessionDecision { level, ..OPTIONAL }).await;
        recording.record(&SessionEvent::Input(b"password"));
        output(&mut recording, "welcome");
        recording.end(SessionEnd::default());
        recorded.sessions.finished().await;
        let lines = recorded.store.lines("alice");
        assert_eq!((lines.contains("password"), lines.contains("welcome")), (expected, true), "{level:?}");
    }
}

#[tokio::test]
async fn the_sessions_of_one_user_take_no_place_of_another() {
    let recorded = Recorded::new();
    let cluster = &recorded.cluster;
    let count = |user, most| cluster.count(user, Some(most));
    let first = [count("mallory", 2).unwrap(), count("mallory", 2).unwrap()];
    assert_eq!(count("mallory", 2).unwrap_err(), TooManySessions { most: 2 });
    let of_bob = count("bob", 1).unwrap();
    // Another cluster has the same names.
    let settings = SessionSettings { policy: cluster.policy.clone(), directory: None };
    let other = recorded.sessions.open(&settings, ClusterOwner::operator("d"));
    assert!(other.count("mallory", Some(1)).is_ok());
    drop(first);
    assert!(count("mallory", 1).is_ok());
    drop(of_bob);
}

#[tokio::test]
async fn however_many_tenants_fill_it_one_more_has_its_part() {
    let recorded = Recorded::new();
    recorded.sessions.divide_among(9);
    assert_the_last_of_nine_tenants_has(RECORDING_BYTES / 2 / 2 / 9, &recorded.sessions.parts.memory);
}
