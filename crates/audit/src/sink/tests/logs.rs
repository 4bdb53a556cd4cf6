use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Command;

use testkit::{in_time, until};

use super::super::log::{Log, LogStream, LogTarget};
use super::super::observer::Losses;
use super::super::queue::QueueOptions;
use super::*;

fn open(registry: &SinkRegistry, options: &LogOptions) -> Sinks {
    registry.generation().open(Some(options), None).unwrap()
}

// apiserver: plugin/pkg/audit/log/backend_test.go, TestLogEventsJson
#[tokio::test]
async fn each_event_is_a_line_of_json() {
    let dir = tempfile::tempdir().unwrap();
    let (registry, counts) = registry();
    let options = LogOptions::new(dir.path().join("audit.log"));
    let sinks = open(&registry, &options);
    for id in ["1", "2", "3"] {
        in_time(sinks.store_first(&ALICE, &event(id))).await.unwrap();
    }
    // `blocking`: it was written when the request went on.
    let text = std::fs::read_to_string(&options.path).unwrap();
    assert_eq!(ids(text.as_bytes()), ["1", "2", "3"]);
    assert!(
        text.starts_with(
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","#
        )
    );
    assert_eq!((text.lines().count(), text.ends_with("}\n")), (3, true));
    sinks.store(&ALICE, &event("4"));
    in_time(sinks.flush()).await;
    assert_eq!(ids(&std::fs::read(&options.path).unwrap()), ["1", "2", "3", "4"]);
    assert_eq!((counts.of("event"), counts.of("log queue"), registry.pending()), (4, 0, 0));
}

#[tokio::test]
async fn only_blocking_strict_refuses_requests_that_a_full_disk_cannot_record() {
    for (mode, is_refused) in [(Mode::Batch, false), (Mode::Blocking, false), (Mode::BlockingStrict, true)] {
        let (registry, counts) = registry();
        let sinks = open(&registry, &LogOptions { mode, ..LogOptions::new("/dev/full") });
        assert_eq!(in_time(sinks.store_first(&ALICE, &event("1"))).await.is_err(), is_refused);
        // Later stages refuse nothing.
        sinks.store(&ALICE, &event("1"));
        in_time(sinks.flush()).await;
        assert_eq!((counts.of("log failed"), counts.of("error log")), (2, 2), "{mode:?}");
        assert_eq!(counts.of("rejected"), i64::from(is_refused));
    }
}

/// A pipe that is full: the writer hangs in the system call, as it does with a dead NFS server.
pub(super) struct HungLog {
    dir: tempfile::TempDir,
    /// Opened for both, so that neither side waits for the other.
    reader: File,
}

impl HungLog {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        Self { dir, reader }
    }

    pub(super) fn options(&self, mode: Mode) -> LogOptions {
        LogOptions { mode, ..LogOptions::new(self.dir.path().join("audit.log")) }
    }

    /// Reads what is written until there are so many lines. Returns their audit IDs.
    pub(super) async fn drain(&self, lines: usize) -> Vec<String> {
        let reader = BufReader::with_capacity(1 << 16, self.reader.try_clone().unwrap());
        let reading = tokio::task::spawn_blocking(move || {
            let lines = reader.split(b'\n').take(lines);
            let ids = lines.map(|line| {
                let line = line.unwrap();
                let head = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
                assert!(head.starts_with("{\"kind\":\"Event\",") && line.ends_with(b"}"), "{head}");
                head.split("\"auditID\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
            });
            ids.collect()
        });
        in_time(reading).await.unwrap()
    }
}

/// More than a pipe has room for.
pub(super) const HANGS: usize = 200 << 10;

#[tokio::test]
async fn a_hung_disk_costs_events_in_batch_mode_and_never_time_or_memory() {
    let log = HungLog::new();
    let (registry, counts) = registry();
    let batch = BatchOptions { buffer_size: 1000, ..BatchOptions::LOG };
    let sinks = open(&registry, &LogOptions { batch, ..log.options(Mode::Batch) });
    // One client floods with large events, another one has a few.
    sinks.store(&ALICE, &large_event("first", HANGS));
    until("the writer hangs", || counts.of("log queue") == 1).await;
    let stored = 64;
    for at in 0..80 {
        in_time(sinks.store_first(&ALICE, &large_event(&format!("flood {at}"), 1 << 20))).await.unwrap();
    }
    sinks.ready(&ALICE).await;
    let kept = counts.of("log queue");
    assert!((stored - 3..=stored).contains(&kept), "{kept}");
    assert!(counts.of("log bytes") <= 64 << 20);
    assert_eq!(counts.of("log buffer_bytes"), 81 - kept);
    // A small one still fits beside them.
    sinks.store(&ALICE, &event("small"));
    assert_eq!(counts.of("log queue"), kept + 1);
    assert!(tokio::time::timeout(Duration::from_millis(20), sinks.flush()).await.is_err());
    // The disk comes back: what was kept is written, in order.
    let events = usize::try_from(kept).unwrap() + 1;
    let written = log.drain(events).await;
    assert_eq!(
        (written.len(), written[0].as_str(), written[events - 1].as_str()),
        (events, "first", "small")
    );
    in_time(sinks.flush()).await;
    assert_eq!((counts.of("log queue"), counts.of("log bytes")), (0, 0));
}

#[tokio::test]
async fn a_hung_disk_makes_requests_wait_in_blocking_modes_and_later_events_are_bounded() {
    for mode in [Mode::Blocking, Mode::BlockingStrict] {
        let log = HungLog::new();
        let (registry, counts) = registry();
        let sinks = open(&registry, &log.options(mode));
        let first = tokio::spawn({
            let sinks = sinks.clone();
            async move { sinks.store_first(&ALICE, &large_event("first", HANGS)).await }
        });
        until("the writer hangs", || counts.of("log queue") == 1).await;
        // A request whose time ends meanwhile leaves its event behind, which is written later.
        let waiting =
            tokio::time::timeout(Duration::from_millis(20), sinks.store_first(&ALICE, &event("second")));
        assert!(waiting.await.is_err());
        // Beyond the bound, requests wait before they begin; other events still have room, up to twice the bound.
        in_time(sinks.ready(&ALICE)).await;
        for at in 0..150 {
            sinks.store(&ALICE, &large_event(&format!("later {at}"), 1 << 20));
        }
        assert!(tokio::time::timeout(Duration::from_millis(20), sinks.ready(&ALICE)).await.is_err());
        assert!(counts.of("log bytes") <= 128 << 20);
        let kept = counts.of("log queue");
        assert!((127..=130).contains(&kept), "{kept}");
        assert_eq!(counts.of("log buffer_bytes"), 152 - kept);
        // One that waits for room and gives up is counted, and nothing of it stays.
        let waiting = tokio::time::timeout(
            Duration::from_millis(20),
            sinks.store_first(&ALICE, &large_event("third", 1000)),
        );
        assert!(waiting.await.is_err());
        assert_eq!((counts.of("log cancelled"), counts.of("log queue")), (1, kept));
        assert!(!first.is_finished());
        let written = log.drain(usize::try_from(kept).unwrap()).await;
        assert_eq!(written[..3], ["first", "second", "later 0"]);
        in_time(first).await.unwrap().unwrap();
        in_time(sinks.ready(&ALICE)).await;
        in_time(sinks.flush()).await;
        assert_eq!(counts.of("log bytes"), 0);
    }
}

/// Every event is in exactly one of the files, whole, while they are replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_event_is_lost_or_doubled_when_files_are_replaced() {
    const SENDERS: usize = 8;
    const EVENTS: usize = 40;
    for mode in [Mode::Batch, Mode::BlockingStrict] {
        let dir = tempfile::tempdir().unwrap();
        let (registry, counts) = registry();
        let rotation = RotationOptions { max_size: 1, max_age: 0, max_backups: 0, compress: false };
        let options = LogOptions { mode, rotation, ..LogOptions::new(dir.path().join("audit.log")) };
        let senders = (0..SENDERS).map(|sender| {
            let sinks = open(&registry, &options);
            tokio::spawn(async move {
                for at in 0..EVENTS {
                    let id = format!("{sender}-{at}");
                    sinks
                        .store_first(&ALICE, &large_event(&id, (sender * 7919 + at * 104_729) % 100_000))
                        .await
                        .unwrap();
                }
            })
        });
        let senders: Vec<_> = senders.collect();
        for sender in senders {
            sender.await.unwrap();
        }
        in_time(registry.flush()).await;
        let mut found: Vec<String> = files(dir.path()).iter().flat_map(|text| ids(text)).collect();
        found.sort();
        let mut expected: Vec<String> =
            (0..SENDERS).flat_map(|sender| (0..EVENTS).map(move |at| format!("{sender}-{at}"))).collect();
        expected.sort();
        assert_eq!(found, expected);
        assert!(files(dir.path()).len() > 10 && files(dir.path()).iter().all(|text| text.len() <= 1 << 20));
        assert_eq!(counts.of("error log") + counts.of("error buffered"), 0);
    }
}

fn files(dir: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
}

/// Takes so many bytes, then fails, then panics, then takes everything.
struct Stubborn {
    calls: usize,
    taken: Arc<Mutex<Vec<u8>>>,
}

impl std::io::Write for Stubborn {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.calls += 1;
        match self.calls {
            1 => {
                let part = text.len() * 2 / 3;
                self.taken.lock().unwrap().extend(&text[..part]);
                Ok(part)
            }
            2 => Err(std::io::ErrorKind::BrokenPipe.into()),
            3 => panic!("a defect"),
            _ => {
                self.taken.lock().unwrap().extend(text);
                Ok(text.len())
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Standard output that breaks: each event is answered for, and the thread goes on.
#[tokio::test]
async fn a_stream_that_fails_costs_only_the_events_that_it_did_not_take() {
    let counts = Arc::new(Counts::default());
    let observer: Arc<dyn Observer> = Arc::<Counts>::clone(&counts);
    let losses = Losses::new(SinkKind::Log, "-".to_owned(), observer);
    let options = QueueOptions { batch: BatchOptions::LOG, max_batch_bytes: 1 << 20, takes_all: true };
    let log = Arc::new(Log::new(Queue::new(options, losses), RotationOptions::default()));
    let push = async |line: &str, sender| {
        in_time(log.queue.push(&ALICE, line.as_bytes(), Some(sender))).await;
    };
    let mut waits = Vec::new();
    for line in ["1\n", "2\n", "3\n"] {
        let (sender, wait) = oneshot::channel();
        push(line, sender).await;
        waits.push(wait);
    }
    let taken = Arc::new(Mutex::new(Vec::new()));
    let stream = Stubborn { calls: 0, taken: Arc::clone(&taken) };
    log.start(LogTarget::Stream(LogStream::new(stream)), || true).unwrap();
    // The writer has taken four of six bytes.
    let mut stored = Vec::new();
    for wait in waits.drain(..) {
        stored.push(in_time(wait).await.unwrap());
    }
    assert_eq!(stored, [true, true, false]);
    until("the loss is counted", || counts.of("log failed") == 1).await;
    let (sender, panics) = oneshot::channel();
    push("4\n", sender).await;
    assert!(in_time(panics).await.is_err());
    until("the panic is counted", || counts.of("log failed") == 2).await;
    let (sender, fine) = oneshot::channel();
    push("5\n", sender).await;
    assert!(in_time(fine).await.unwrap());
    assert_eq!(taken.lock().unwrap().as_slice(), b"1\n2\n5\n");
    log.queue.close();
}

/// Takes four bytes, then fails, then takes everything.
struct Halved {
    calls: usize,
    taken: Arc<Mutex<Vec<u8>>>,
}

impl std::io::Write for Halved {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.calls += 1;
        let text = if self.calls == 1 { &text[..4] } else { text };
        if self.calls == 2 {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        self.taken.lock().unwrap().extend(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_event_is_not_written_behind_the_half_of_another() {
    let losses = Losses::new(SinkKind::Log, "-".to_owned(), Arc::new(NoObserver));
    let options = QueueOptions { batch: BatchOptions::LOG, max_batch_bytes: 1 << 20, takes_all: true };
    let log = Arc::new(Log::new(Queue::new(options, losses), RotationOptions::default()));
    let mut waits = Vec::new();
    for line in ["11\n", "22\n"] {
        let (sender, wait) = oneshot::channel();
        in_time(log.queue.push(&ALICE, line.as_bytes(), Some(sender))).await;
        waits.push(wait);
    }
    let taken = Arc::new(Mutex::new(Vec::new()));
    let stream = Halved { calls: 0, taken: Arc::clone(&taken) };
    log.start(LogTarget::Stream(LogStream::new(stream)), || true).unwrap();
    let mut stored = Vec::new();
    for wait in waits {
        stored.push(in_time(wait).await.unwrap());
    }
    assert_eq!(stored, [true, false]);
    let (sender, next) = oneshot::channel();
    in_time(log.queue.push(&ALICE, b"5\n", Some(sender))).await;
    assert!(in_time(next).await.unwrap());
    assert_eq!(taken.lock().unwrap().as_slice(), b"11\n2\n5\n");
    log.queue.close();
}
