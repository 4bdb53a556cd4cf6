use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use testkit::{in_time, until};

use super::super::log::{Log, LogTarget};
use super::super::log_file::LogFile;
use super::super::observer::Losses;
use super::super::queue::QueueOptions;
use super::webhooks::{Answer, FakeWebhook};
use super::*;

const ROTATION: RotationOptions =
    RotationOptions { max_size: 1, max_age: 0, max_backups: 0, compress: false };

/// The threads of logs that this process has: those of one test only, since each runs this in its own directory.
fn open_files(path: &std::path::Path) -> usize {
    let path = path.canonicalize().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|to| *to == path)
        .count()
}

#[tokio::test]
async fn a_log_that_several_clusters_and_generations_use_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (registry, _) = registry();
    let path = dir.path().join("audit.log");
    let options = LogOptions { rotation: ROTATION, ..LogOptions::new(&path) };
    let same = LogOptions { path: dir.path().join(".").join("audit.log"), ..options.clone() };
    let mut first = registry.generation();
    let (one, two) = (first.open(Some(&options), None).unwrap(), first.open(Some(&same), None).unwrap());
    first.commit();
    let mut second = registry.generation();
    let three = second.open(Some(&options), None).unwrap();
    second.commit();
    for (sinks, id) in [(&one, "1"), (&two, "2"), (&three, "3")] {
        in_time(sinks.store_first(&ALICE, &event(id))).await.unwrap();
    }
    assert_eq!(open_files(&path), 1);
    assert_eq!(ids(&std::fs::read(&path).unwrap()), ["1", "2", "3"]);
    // The file stays open while one of them is there, and no longer.
    drop((one, two));
    in_time(three.store_first(&ALICE, &event("4"))).await.unwrap();
    drop(three);
    until("the log is closed", || open_files(&path) == 0).await;
    until("the log is forgotten", || registry.0.is_idle()).await;
}

#[tokio::test]
async fn what_was_handed_over_is_stored_after_the_last_user_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (registry, counts) = registry();
    // Would wait for an hour.
    let batch = BatchOptions { max_size: 10, max_wait: Duration::from_hours(1), ..BatchOptions::LOG };
    let options = LogOptions { mode: Mode::Batch, batch, ..LogOptions::new(dir.path().join("audit.log")) };
    let sinks = registry.generation().open(Some(&options), None).unwrap();
    sinks.store(&ALICE, &event("1"));
    drop(sinks.clone());
    sinks.store(&ALICE, &event("2"));
    drop(sinks);
    until("both are stored", || std::fs::read(&options.path).is_ok_and(|text| ids(&text) == ["1", "2"]))
        .await;
    // The same file is opened again.
    let sinks = registry.generation().open(Some(&options), None).unwrap();
    sinks.store(&ALICE, &event("3"));
    in_time(sinks.flush()).await;
    assert_eq!(ids(&std::fs::read(&options.path).unwrap()), ["1", "2", "3"]);
    assert_eq!(counts.of("error log"), 0);
}

/// A writer that is closing while the same file is opened again: never two, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reopening_races_with_closing() {
    let dir = tempfile::tempdir().unwrap();
    let (registry, counts) = registry();
    let options = LogOptions { mode: Mode::Batch, ..LogOptions::new(dir.path().join("audit.log")) };
    for at in 0..500 {
        let sinks = registry.generation().open(Some(&options), None).unwrap();
        sinks.store(&ALICE, &event(&at.to_string()));
        if at % 3 == 0 {
            tokio::task::yield_now().await;
        }
        assert!(open_files(&options.path) <= 1);
    }
    in_time(registry.flush()).await;
    let expected: Vec<String> = (0..500).map(|at| at.to_string()).collect();
    assert_eq!(ids(&std::fs::read(&options.path).unwrap()), expected);
    assert_eq!(counts.of("error log") + counts.of("error buffered"), 0);
}

#[tokio::test]
async fn options_change_with_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (registry, _) = registry();
    let path = dir.path().join("audit.log");
    let before = LogOptions { rotation: ROTATION, ..LogOptions::new(&path) };
    let sinks = registry.generation().open(Some(&before), None).unwrap();
    let unlimited = RotationOptions { max_size: 0, ..ROTATION };
    let after = LogOptions { rotation: unlimited, format: Format::Legacy, ..before.clone() };
    // A generation that is not committed changes nothing.
    let mut abandoned = registry.generation();
    drop(abandoned.open(Some(&after), None).unwrap());
    drop(abandoned);
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    for at in 0..2 {
        in_time(sinks.store_first(&ALICE, &large_event(&at.to_string(), 600 << 10))).await.unwrap();
    }
    assert_eq!(files(), 2);
    let mut generation = registry.generation();
    let new = generation.open(Some(&after), None).unwrap();
    generation.commit();
    in_time(sinks.store_first(&ALICE, &large_event("3", 600 << 10))).await.unwrap();
    in_time(new.store_first(&ALICE, &event("4"))).await.unwrap();
    assert_eq!(files(), 2);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.lines().last().unwrap().contains(" AUDIT: id=\"4\""));
}

#[tokio::test]
async fn a_bad_log_is_an_error_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (registry, _) = registry();
    let error = |generation: &mut Generation, options: &LogOptions| {
        generation.open(Some(options), None).unwrap_err().to_string()
    };
    let mut generation = registry.generation();
    let found = error(&mut generation, &LogOptions::new(dir.path()));
    assert!(found.starts_with(&format!("cannot open the audit log {}: ", dir.path().display())), "{found}");
    let options = LogOptions::new(dir.path().join("audit.log"));
    let _sinks = generation.open(Some(&options), None).unwrap();
    let other = LogOptions { mode: Mode::Batch, ..options };
    let found = error(&mut generation, &other);
    assert!(found.ends_with("audit.log is configured twice, with different options"), "{found}");
    // In another generation it is a change.
    registry.generation().open(Some(&other), None).unwrap();
}

#[tokio::test]
async fn a_log_that_is_open_outlives_its_volume_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let (registry, _) = registry();
    let volume = dir.path().join("volume");
    let [options, other] = ["a.log", "b.log"].map(|name| LogOptions::new(volume.join(name)));
    let _sinks = registry.generation().open(Some(&options), None).unwrap();
    std::fs::remove_dir_all(&volume).unwrap();
    std::fs::write(&volume, "no directory").unwrap();
    let mut generation = registry.generation();
    let _same = generation.open(Some(&options), None).unwrap();
    generation.open(Some(&other), None).unwrap_err();
}

#[tokio::test]
async fn a_cluster_without_its_webhook_leaves_no_options_of_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let (registry, _) = registry();
    let mut generation = registry.generation();
    let accepting = || -> Arc<dyn Post> { Arc::new(Accepting(AtomicUsize::new(0))) };
    let webhook = WebhookOptions::new("webhook");
    let _first = generation.open(None, Some((&webhook, accepting()))).unwrap();
    let conflicting = WebhookOptions { mode: Mode::BlockingStrict, ..webhook };
    let log = LogOptions::new(dir.path().join("audit.log"));
    let other = LogOptions { mode: Mode::Batch, ..log.clone() };
    generation.open(Some(&log), Some((&conflicting, accepting()))).unwrap_err();
    let _second = generation.open(Some(&other), None).unwrap();
}

/// Accepts everything after so many failures.
struct Failing(AtomicUsize);

impl Post for Failing {
    fn post(&self, _: Bytes) -> BoxFuture<'_, Result<(), PostError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        async { Err(PostError { text: "the token has expired".to_owned(), is_retryable: true }) }.boxed()
    }
}

struct Accepting(AtomicUsize);

impl Post for Accepting {
    fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), PostError>> {
        self.0.fetch_add(ids(&body).len(), Ordering::Relaxed);
        async { Ok(()) }.boxed()
    }
}

/// A reload with another credential: events that wait for their next attempt are sent with it.
#[tokio::test(start_paused = true)]
async fn a_new_connection_serves_events_of_earlier_generations() {
    let (registry, counts) = registry();
    let (old, new) = (Arc::new(Failing(AtomicUsize::new(0))), Arc::new(Accepting(AtomicUsize::new(0))));
    let options = WebhookOptions::new("cluster");
    let post: Arc<dyn Post> = Arc::<Failing>::clone(&old);
    let before = registry.generation().open(None, Some((&options, post))).unwrap();
    before.store(&ALICE, &event("1"));
    while old.0.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mut generation = registry.generation();
    let post: Arc<dyn Post> = Arc::<Accepting>::clone(&new);
    let after = generation.open(None, Some((&options, post))).unwrap();
    generation.commit();
    drop(before);
    after.flush().await;
    assert_eq!((old.0.load(Ordering::Relaxed), new.0.load(Ordering::Relaxed)), (1, 1));
    assert_eq!(counts.of("webhook failed"), 0);
    // The last user goes: the events that wait are sent, and the task ends.
    after.store(&ALICE, &event("2"));
    drop(after);
    while !registry.0.is_idle() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(new.0.load(Ordering::Relaxed), 2);
}

/// A webhook that is used again while it still sends what earlier users left: events are collected as before.
#[tokio::test(start_paused = true)]
async fn a_sink_that_is_used_again_before_its_end_goes_on() {
    let (registry, _) = registry();
    let webhook = FakeWebhook::new(Answer::Hang);
    let options = WebhookOptions::new("cluster");
    let open = || {
        let post: Arc<dyn Post> = Arc::<FakeWebhook>::clone(&webhook);
        registry.generation().open(None, Some((&options, post))).unwrap()
    };
    let sinks = open();
    sinks.store(&ALICE, &event("1"));
    drop(sinks);
    while webhook.batches().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let sinks = open();
    sinks.store(&ALICE, &event("2"));
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(webhook.batches(), [1]);
    webhook.answer.send_replace(Answer::Accept);
    sinks.flush().await;
    assert_eq!(webhook.batches(), [1, 1]);
    drop(sinks);
    while !registry.0.is_idle() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Before the registry forgets a log, and another writer may open it, the file is closed.
#[tokio::test]
async fn a_log_is_closed_before_it_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let losses = Losses::new(SinkKind::Log, String::new(), Arc::new(NoObserver));
    let options = QueueOptions { batch: BatchOptions::LOG, max_batch_bytes: 1 << 20, takes_all: true };
    let log = Arc::new(Log::new(Queue::new(options, losses), ROTATION));
    let (seen, at_the_end) = (Arc::new(AtomicUsize::new(usize::MAX)), path.clone());
    let noted = Arc::clone(&seen);
    let file = LogFile::new(path.clone(), ROTATION, WallClock::new(|| Duration::ZERO));
    let ends = move || {
        noted.store(open_files(&at_the_end), Ordering::Relaxed);
        true
    };
    log.start(LogTarget::File(file), ends).unwrap();
    let (sender, stored) = oneshot::channel();
    log.queue.push(&ALICE, b"1\n", Some(sender)).await;
    assert!(in_time(stored).await.unwrap());
    assert_eq!(open_files(&path), 1);
    log.queue.close();
    until("the thread ends", || seen.load(Ordering::Relaxed) != usize::MAX).await;
    assert_eq!(seen.load(Ordering::Relaxed), 0);
}
