use tokio::time::{Instant, timeout};

use super::super::observer::Losses;
use super::super::queue::{Batch, QueueOptions};
use super::*;

const MAX_WAIT: Duration = Duration::from_secs(30);
/// A record with a line of 12 bytes counts as this many.
const SIZE: usize = 140;

fn options(buffer_size: usize, max_size: usize) -> QueueOptions {
    let batch = BatchOptions { buffer_size, max_size, max_wait: MAX_WAIT, throttle: None };
    QueueOptions { batch, max_batch_bytes: usize::MAX, takes_all: false }
}

fn queue(options: QueueOptions, max_bytes: usize) -> (Arc<Queue>, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let observer: Arc<dyn Observer> = Arc::<Counts>::clone(&counts);
    let losses = Losses::new(SinkKind::Log, "test".to_owned(), observer);
    (Arc::new(Queue::with_max_bytes(options, losses, max_bytes)), counts)
}

const LINE: &[u8] = b"123456789012";

fn push(queue: &Queue, count: usize) -> usize {
    (0..count).filter(|_| queue.push_now(&ALICE, LINE, 1)).count()
}

async fn collected(queue: &Arc<Queue>) -> Batch {
    queue.collect().await.expect("a batch")
}

async fn is_waiting(future: impl Future) -> bool {
    timeout(Duration::from_millis(1), future).await.is_err()
}

// apiserver: plugin/pkg/audit/buffered/buffered_test.go, TestBatchedBackendCollectEvents
#[tokio::test(start_paused = true)]
async fn a_batch_is_full_or_old_enough_or_hurried() {
    let (queue, _) = queue(options(100, 10), usize::MAX);
    push(&queue, 11);
    assert_eq!(collected(&queue).await.len(), 10);
    // One is left, and one more comes: both wait for the timer, which began with the collection.
    let start = Instant::now();
    let later = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        push(&queue, 1);
    };
    let (batch, ()) = tokio::join!(collected(&queue), later);
    assert_eq!((batch.len(), start.elapsed().as_secs()), (2, 30));
    drop(batch);
    // The timer also runs while there is nothing.
    let start = Instant::now();
    let later = async {
        tokio::time::sleep(Duration::from_secs(70)).await;
        push(&queue, 3);
    };
    let (batch, ()) = tokio::join!(collected(&queue), later);
    assert_eq!((batch.len(), start.elapsed().as_secs()), (3, 90));
    drop(batch);
    // Full before that.
    let start = Instant::now();
    let later = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        push(&queue, 10);
    };
    let (batch, ()) = tokio::join!(collected(&queue), later);
    assert_eq!((batch.len(), start.elapsed().as_secs()), (10, 2));
    drop(batch);
    // A request waits, also while others are collected.
    push(&queue, 1);
    let start = Instant::now();
    let later = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (sender, _stored) = oneshot::channel();
        queue.push(&ALICE, b"", Some(sender)).await;
    };
    let (batch, ()) = tokio::join!(collected(&queue), later);
    assert_eq!((batch.len(), start.elapsed().as_secs()), (2, 1));
    drop(batch);
    // What is there when the queue is closed is still delivered.
    push(&queue, 3);
    let later = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        queue.close();
    };
    let (batch, ()) = tokio::join!(collected(&queue), later);
    assert_eq!((batch.len(), start.elapsed().as_secs()), (3, 2));
    drop(batch);
    assert!(queue.collect().await.is_none());
}

// apiserver: buffered_test.go, TestUnbatchedBackendCollectEvents
#[tokio::test(start_paused = true)]
async fn without_batching_each_event_is_alone() {
    let (queue, _) = queue(options(100, 1), usize::MAX);
    push(&queue, 3);
    let start = Instant::now();
    for _ in 0..3 {
        assert_eq!(collected(&queue).await.len(), 1);
    }
    assert!(start.elapsed().is_zero());
    assert!(is_waiting(queue.collect()).await);
    queue.close();
    assert!(queue.collect().await.is_none());
}

#[tokio::test]
async fn the_log_takes_all_that_waits_unless_it_is_throttled() {
    let all = QueueOptions { takes_all: true, max_batch_bytes: 60, ..options(100, 1) };
    let (queue, _) = queue(all, usize::MAX);
    push(&queue, 8);
    assert_eq!(collected(&queue).await.len(), 5);
    assert_eq!(collected(&queue).await.len(), 3);
    let throttle = Some(ThrottleOptions { qps: 1.0, burst: 1 });
    queue.set_options(QueueOptions { batch: BatchOptions { throttle, ..all.batch }, ..all });
    push(&queue, 2);
    assert_eq!(collected(&queue).await.len(), 1);
    // A record larger than a batch is a batch.
    push(&queue, 1);
    queue.set_options(QueueOptions { max_batch_bytes: 1, ..all });
    assert_eq!(collected(&queue).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn large_events_do_not_wait_for_a_batch() {
    // Three records of 12 bytes are larger than a batch.
    let options = QueueOptions { max_batch_bytes: 30, ..options(100, 100) };
    let (queue, counts) = queue(options, 11 * SIZE);
    let start = Instant::now();
    push(&queue, 2);
    assert!(is_waiting(queue.collect()).await);
    let later = async {
        tokio::time::sleep(Duration::from_millis(4)).await;
        push(&queue, 6);
    };
    let (batch, ()) = tokio::join!(collected(&queue), later);
    let mut batches = vec![batch];
    for _ in 0..3 {
        batches.push(collected(&queue).await);
    }
    assert_eq!(batches.iter().map(Batch::len).collect::<Vec<_>>(), [2; 4]);
    assert!(start.elapsed() < Duration::from_secs(1), "what is left behind does not wait for the timer");
    // A record that finds no room for its bytes.
    push(&queue, 1);
    assert!(is_waiting(queue.collect()).await);
    assert!(!queue.push_now(&ALICE, &[b'x'; 500], 1));
    assert_eq!(counts.of("log buffer_bytes"), 1);
    assert_eq!(collected(&queue).await.len(), 1, "at once");
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn under_load_the_log_is_not_woken_for_each_event() {
    let all = QueueOptions { takes_all: true, ..options(100, 1) };
    let (queue, _) = queue(all, usize::MAX);
    let took = async |queue: &Arc<Queue>| {
        let start = Instant::now();
        let batch = collected(queue).await;
        (batch.len(), start.elapsed().as_millis())
    };
    push(&queue, 1);
    assert_eq!(took(&queue).await, (1, 0), "the first one is written at once");
    push(&queue, 3);
    assert_eq!(took(&queue).await, (3, 10));
    push(&queue, 1);
    let (sender, _stored) = oneshot::channel();
    queue.push(&ALICE, b"a", Some(sender)).await;
    assert_eq!(took(&queue).await, (2, 0), "a request waits");
    push(&queue, 50);
    assert_eq!(took(&queue).await, (50, 0), "the buffer is half full");
    let later = async {
        tokio::time::sleep(Duration::from_millis(4)).await;
        push(&queue, 50);
    };
    push(&queue, 1);
    let (took, ()) = tokio::join!(took(&queue), later);
    assert_eq!(took, (51, 4), "it has become so while the log waits");
    push(&queue, 1);
    queue.close();
    assert_eq!(collected(&queue).await.len(), 1, "it does not wait for more at the end");
}

// apiserver: buffered_test.go, TestBufferedBackendProcessEventsBufferFull
#[tokio::test]
async fn a_full_buffer_drops_events_and_counts_them() {
    let (queue, counts) = queue(options(1, 10), usize::MAX);
    assert_eq!(push(&queue, 2), 1);
    assert_eq!((counts.of("log buffer_events"), counts.of("error buffered")), (1, 1));
    assert_eq!((counts.of("log queue"), counts.of("log bytes")), (1, 140));
    // As upstream's, a collector that waits holds a batch of its own.
    let collecting = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { collected(&queue).await }
    });
    testkit::until("the collector waits", || queue.push_now(&ALICE, LINE, 1)).await;
    push(&queue, 8);
    assert_eq!(collecting.await.unwrap().len(), 10);
    assert_eq!((counts.of("log queue"), counts.of("log bytes")), (0, 0));
}

/// What is being stored holds its bytes, and with them the place of others.
#[tokio::test]
async fn bytes_are_bounded_until_they_are_stored() {
    let (queue, counts) = queue(options(100, 1), 4 * SIZE);
    assert_eq!(push(&queue, 6), 4);
    let first = collected(&queue).await;
    assert_eq!(push(&queue, 1), 0);
    assert_eq!(counts.of("log buffer_bytes"), 3);
    drop(first);
    assert_eq!(push(&queue, 2), 1);
    // The hard limit, for events that cannot wait.
    assert_eq!((0..10).filter(|_| queue.push_now(&ALICE, LINE, HARD_LIMIT)).count(), 4);
    queue.close();
    while let Some(batch) = queue.collect().await {
        drop(batch);
    }
    // One that is larger than the bound is stored if it is alone.
    let large = [0; 10 * SIZE];
    assert!(queue.push_now(&ALICE, &large, 1));
    assert!(!queue.push_now(&ALICE, &large, 1));
    assert_eq!(queue.held(), 1);
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_room() {
    let (queue, counts) = queue(options(2, 1), usize::MAX);
    queue.room(&ALICE).await;
    push(&queue, 2);
    assert!(is_waiting(queue.room(&ALICE)).await);
    // One whose wait is cancelled is lost, and takes no place.
    assert!(is_waiting(queue.push(&ALICE, LINE, None)).await);
    assert_eq!((counts.of("log cancelled"), counts.of("error log"), queue.held()), (1, 1, 2));
    let taken = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        collected(&queue).await
    };
    let ((), (), batch) = tokio::join!(queue.room(&ALICE), queue.push(&ALICE, LINE, None), taken);
    assert_eq!((batch.len(), queue.held(), counts.of("log cancelled")), (1, 3, 1));
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_the_bytes_that_are_being_stored() {
    let (queue, _) = queue(options(100, 1), SIZE);
    push(&queue, 1);
    let batch = collected(&queue).await;
    let stored = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(batch);
    };
    let start = Instant::now();
    tokio::join!(testkit::in_time(queue.push(&ALICE, LINE, None)), stored);
    assert_eq!(start.elapsed().as_secs(), 1);
}

// apiserver: buffered_test.go, TestBufferedBackendShutdownWaitsForDelegatedCalls
#[tokio::test(start_paused = true)]
async fn a_flush_hurries_and_waits_for_what_is_being_stored() {
    let (queue, _) = queue(options(100, 10), usize::MAX);
    queue.flush().await;
    push(&queue, 1);
    let start = Instant::now();
    let storing = async {
        let batch = collected(&queue).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(batch);
    };
    tokio::join!(queue.flush(), storing);
    assert_eq!(start.elapsed().as_secs(), 3);
    // One that was given up hurries no longer.
    push(&queue, 1);
    assert!(is_waiting(queue.flush()).await);
    assert!(is_waiting(queue.collect()).await);
}
