use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::*;

/// A webhook that answers as it is set, and keeps what it received.
pub(super) struct FakeWebhook {
    received: Mutex<Vec<Bytes>>,
    pub(super) answer: watch::Sender<Answer>,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Answer {
    Accept,
    Fail,
    Refuse,
    Panic,
    Hang,
}

impl FakeWebhook {
    pub(super) fn new(answer: Answer) -> Arc<Self> {
        Arc::new(Self {
            received: Mutex::default(),
            answer: watch::Sender::new(answer),
            at_once: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
        })
    }

    /// How many events each request had.
    pub(super) fn batches(&self) -> Vec<usize> {
        self.received.lock().unwrap().iter().map(|body| ids(body).len()).collect()
    }
}

impl Post for FakeWebhook {
    fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), PostError>> {
        async move {
            // Of a flood only the number is kept.
            let kept = if body.len() < 1 << 20 { body } else { Bytes::new() };
            self.received.lock().unwrap().push(kept);
            let now = self.at_once.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_at_once.fetch_max(now, Ordering::Relaxed);
            let _guard = Leave(&self.at_once);
            let mut answers = self.answer.subscribe();
            let answer = *answers.wait_for(|answer| *answer != Answer::Hang).await.unwrap();
            let error = |is_retryable| Err(PostError { text: "no".to_owned(), is_retryable });
            match answer {
                Answer::Accept | Answer::Hang => Ok(()),
                Answer::Fail => error(true),
                Answer::Refuse => error(false),
                Answer::Panic => panic!("a defect"),
            }
        }
        .boxed()
    }
}

struct Leave<'a>(&'a AtomicUsize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn open(registry: &SinkRegistry, options: &WebhookOptions, webhook: &Arc<FakeWebhook>) -> Sinks {
    let post: Arc<dyn Post> = Arc::<FakeWebhook>::clone(webhook);
    registry.generation().open(None, Some((options, post))).unwrap()
}

fn options(mode: Mode) -> WebhookOptions {
    WebhookOptions { mode, ..WebhookOptions::new("test") }
}

// apiserver: plugin/pkg/audit/webhook/webhook_test.go, TestWebhook
#[tokio::test(start_paused = true)]
async fn events_are_sent_as_a_list() {
    let (registry, counts) = registry();
    let webhook = FakeWebhook::new(Answer::Accept);
    let sinks = open(&registry, &options(Mode::BlockingStrict), &webhook);
    sinks.store_first(&ALICE, &event("1")).await.unwrap();
    let body = String::from_utf8(webhook.received.lock().unwrap()[0].to_vec()).unwrap();
    let expected = concat!(
        r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[{"level":"Metadata","auditID":"1","#,
        r#""stage":"RequestReceived","requestURI":"","verb":"","user":{},"#,
        r#""requestReceivedTimestamp":"2020-01-01T00:00:00.123456Z","stageTimestamp":"2020-01-01T00:00:00.123456Z"}]}"#,
        "\n"
    );
    assert_eq!(body, expected);
    assert_eq!((counts.of("webhook queue"), counts.of("error webhook")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn events_are_collected_up_to_the_size_or_the_wait() {
    let (registry, _) = registry();
    let webhook = FakeWebhook::new(Answer::Accept);
    let sinks = open(&registry, &options(Mode::Batch), &webhook);
    let start = Instant::now();
    for at in 0..1000 {
        sinks.store(&ALICE, &event(&at.to_string()));
    }
    while webhook.batches().len() < 3 {
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(webhook.batches(), [400, 400, 200]);
    assert!((30..=31).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

// apiserver: plugin/pkg/audit/truncate/truncate_test.go, TestSplittingBatches
#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_large_is_split() {
    let one_event = event("1").encode().line().len();
    for (max_batch_size, expected) in
        [(4 << 20, vec![2]), (2 * one_event, vec![2]), (2 * one_event - 1, vec![1, 1]), (1, vec![1, 1])]
    {
        let (registry, _) = registry();
        let webhook = FakeWebhook::new(Answer::Accept);
        let truncate = Some(TruncateOptions { max_event_size: 100 << 10, max_batch_size });
        let options = WebhookOptions { truncate, ..options(Mode::Batch) };
        let sinks = open(&registry, &options, &webhook);
        sinks.store(&ALICE, &event("1"));
        sinks.store(&ALICE, &event("2"));
        sinks.flush().await;
        assert_eq!(webhook.batches(), expected, "{max_batch_size}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_is_sent_five_times_and_then_given_up() {
    let (registry, counts) = registry();
    let webhook = FakeWebhook::new(Answer::Fail);
    let sinks = open(&registry, &options(Mode::Blocking), &webhook);
    let start = Instant::now();
    sinks.store_first(&ALICE, &event("1")).await.unwrap();
    assert_eq!(webhook.batches(), [1; 5]);
    // 10 + 15 + 22.5 + 33.75 seconds, and up to a fifth more.
    assert!((81..98).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!((counts.of("webhook failed"), counts.of("error webhook")), (1, 1));
    let strict = open(
        &registry,
        &WebhookOptions { name: "strict".to_owned(), ..options(Mode::BlockingStrict) },
        &webhook,
    );
    strict.store_first(&ALICE, &event("1")).await.unwrap_err();
    assert_eq!(counts.of("rejected"), 1);
    // It is back before the last attempt.
    let later = async {
        sleep(Duration::from_secs(40)).await;
        webhook.answer.send_replace(Answer::Accept);
    };
    let (stored, ()) = tokio::join!(strict.store_first(&ALICE, &event("1")), later);
    stored.unwrap();
    assert_eq!(counts.of("webhook failed"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_ends_after_thirty_seconds() {
    let (registry, counts) = registry();
    let webhook = FakeWebhook::new(Answer::Hang);
    let sinks = open(&registry, &options(Mode::BlockingStrict), &webhook);
    let start = Instant::now();
    sinks.store_first(&ALICE, &event("1")).await.unwrap_err();
    assert!((231..248).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!((webhook.batches().len(), counts.of("webhook failed")), (5, 1));
    assert_eq!((webhook.at_once.load(Ordering::Relaxed), counts.of("webhook bytes")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn neither_a_refusal_nor_a_defect_is_sent_again_and_both_are_counted() {
    for answer in [Answer::Refuse, Answer::Panic] {
        let (registry, counts) = registry();
        let webhook = FakeWebhook::new(answer);
        let sinks = open(&registry, &options(Mode::BlockingStrict), &webhook);
        sinks.store_first(&ALICE, &event("1")).await.unwrap_err();
        assert_eq!(
            (webhook.batches().len(), counts.of("webhook failed"), counts.of("webhook queue")),
            (1, 1, 0)
        );
        // The next event is sent all the same.
        webhook.answer.send_replace(Answer::Accept);
        sinks.store_first(&ALICE, &event("2")).await.unwrap();
    }
}

/// One client floods a webhook that hangs; another one's requests go on, and memory is bounded.
#[tokio::test(start_paused = true)]
async fn a_hung_webhook_costs_events_in_batch_mode_and_never_time_or_memory() {
    let (registry, counts) = registry();
    let webhook = FakeWebhook::new(Answer::Hang);
    let sinks = open(&registry, &options(Mode::Batch), &webhook);
    let start = Instant::now();
    for minute in 0..60 {
        for at in 0..if minute == 0 { 80 } else { 10 } {
            sinks.store_first(&ALICE, &large_event(&format!("flood {minute} {at}"), 1 << 20)).await.unwrap();
        }
        sinks.store_first(&ALICE, &event("other")).await.unwrap();
        sinks.ready(&ALICE).await;
        assert!(counts.of("webhook bytes") <= 64 << 20);
        assert!(webhook.at_once.load(Ordering::Relaxed) <= 64);
        sleep(Duration::from_mins(1)).await;
    }
    assert_eq!(start.elapsed().as_secs(), 3600);
    let lost = counts.of("webhook buffer_bytes") + counts.of("webhook failed");
    assert_eq!(counts.of("event"), lost + counts.of("webhook queue"));
    assert!(counts.of("webhook failed") > 0 && counts.of("webhook buffer_bytes") > 0);
    // A shutdown ends by its own time.
    assert!(timeout(Duration::from_secs(5), sinks.flush()).await.is_err());
    // The webhook is back: what was kept is sent.
    webhook.answer.send_replace(Answer::Accept);
    sinks.flush().await;
    assert_eq!((counts.of("webhook queue"), counts.of("webhook bytes")), (0, 0));
}

/// Small events: their number is bounded, and so are the requests that are sent at a time.
#[tokio::test(start_paused = true)]
async fn a_webhook_gets_64_requests_at_a_time() {
    for mode in [Mode::Batch, Mode::Blocking] {
        let (registry, counts) = registry();
        let webhook = FakeWebhook::new(Answer::Hang);
        let batch = BatchOptions { buffer_size: 10, max_size: 1, max_wait: Duration::ZERO, throttle: None };
        let sinks = open(&registry, &WebhookOptions { batch, ..options(mode) }, &webhook);
        for at in 0..300 {
            sinks.store(&ALICE, &event(&at.to_string()));
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(
            (webhook.at_once.load(Ordering::Relaxed), webhook.received.lock().unwrap().len()),
            (64, 64)
        );
        if mode == Mode::Batch {
            // One waits for its turn beside those in the buffer.
            assert_eq!((counts.of("webhook queue"), counts.of("webhook buffer_events")), (75, 225));
        }
        webhook.answer.send_replace(Answer::Accept);
        sinks.flush().await;
        assert_eq!(webhook.most_at_once.load(Ordering::Relaxed), 64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_blocking_webhook_that_hangs_makes_each_request_wait_for_its_own_event_only() {
    let (registry, _) = registry();
    let webhook = FakeWebhook::new(Answer::Hang);
    let sinks = open(&registry, &options(Mode::Blocking), &webhook);
    let first = sinks.store_first(&ALICE, &event("first"));
    let waiting = timeout(Duration::from_secs(1), first).await;
    assert!(waiting.is_err());
    sinks.ready(&ALICE).await;
    let second = async {
        sleep(Duration::from_secs(1)).await;
        webhook.answer.send_replace(Answer::Accept);
    };
    let start = Instant::now();
    let (stored, ()) = tokio::join!(sinks.store_first(&ALICE, &event("second")), second);
    stored.unwrap();
    assert_eq!((webhook.batches(), start.elapsed().as_secs()), (vec![1, 1], 1));
}

#[tokio::test(start_paused = true)]
async fn batches_are_throttled() {
    let (registry, _) = registry();
    let webhook = FakeWebhook::new(Answer::Accept);
    let throttle = Some(ThrottleOptions { qps: 10.0, burst: 15 });
    let batch = BatchOptions { buffer_size: 100, max_size: 1, max_wait: Duration::ZERO, throttle };
    let sinks = open(&registry, &WebhookOptions { batch, ..options(Mode::Batch) }, &webhook);
    let start = Instant::now();
    for at in 0..25 {
        sinks.store(&ALICE, &event(&at.to_string()));
    }
    sinks.flush().await;
    assert!((1000..1050).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn log_and_webhook_both_get_every_event_and_either_can_refuse_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = |mode| LogOptions { mode, ..LogOptions::new(dir.path().join("audit.log")) };
    let full = |mode| LogOptions { mode, ..LogOptions::new("/dev/full") };
    let cases = [
        (log(Mode::BlockingStrict), Answer::Accept, Mode::BlockingStrict, true),
        (log(Mode::BlockingStrict), Answer::Refuse, Mode::BlockingStrict, false),
        (log(Mode::BlockingStrict), Answer::Refuse, Mode::Blocking, true),
        (full(Mode::BlockingStrict), Answer::Accept, Mode::BlockingStrict, false),
        (full(Mode::BlockingStrict), Answer::Accept, Mode::Batch, false),
        (full(Mode::Blocking), Answer::Accept, Mode::BlockingStrict, true),
    ];
    for (at, (log, answer, mode, is_stored)) in cases.into_iter().enumerate() {
        let (registry, counts) = registry();
        let webhook = FakeWebhook::new(answer);
        let post: Arc<dyn Post> = Arc::<FakeWebhook>::clone(&webhook);
        let webhook_options = options(mode);
        let sinks = registry.generation().open(Some(&log), Some((&webhook_options, post))).unwrap();
        assert_eq!(sinks.store_first(&ALICE, &event(&at.to_string())).await.is_ok(), is_stored, "{at}");
        sinks.flush().await;
        // Whatever became of the other.
        assert_eq!(webhook.batches(), [1], "{at}");
        assert_eq!((counts.of("event"), counts.of("rejected")), (1, i64::from(!is_stored)), "{at}");
    }
    assert_eq!(ids(&std::fs::read(dir.path().join("audit.log")).unwrap()), ["0", "1", "2"]);
}
