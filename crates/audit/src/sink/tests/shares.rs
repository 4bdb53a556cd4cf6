//! The shares of owners in a buffer: whatever one of them does, the others lose nothing that is within their part.

use std::collections::{HashMap, VecDeque};

use futures_util::FutureExt as _;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::test_runner::TestCaseError;
use tokio::time::timeout;

use super::super::load::Load;
use super::super::observer::Losses;
use super::super::owner::OwnerGroup;
use super::super::queue::{Batch, QueueOptions};
use super::*;

fn flow(name: &str) -> EventOwner {
    EventOwner::new(Owner::flow("prod", name), name)
}

fn tenant(name: &str) -> EventOwner {
    EventOwner::new(Owner::Tenant(name.into()), name)
}

fn network(host: u8) -> EventOwner {
    EventOwner::new(Owner::Network(IpAddr::from([10, 0, 0, host])), format!("network-{host}"))
}

/// A buffer of which batches have at most `max_size` events, without waiting for more.
fn queue(buffer_size: usize, max_size: usize, max_bytes: usize) -> (Arc<Queue>, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let observer: Arc<dyn Observer> = Arc::<Counts>::clone(&counts);
    let losses = Losses::new(SinkKind::Webhook, "test".to_owned(), observer);
    let batch = BatchOptions { buffer_size, max_size, max_wait: Duration::ZERO, throttle: None };
    let options = QueueOptions { batch, max_batch_bytes: usize::MAX, takes_all: false };
    (Arc::new(Queue::with_max_bytes(options, losses, max_bytes)), counts)
}

/// The owners of the events of a batch, by their clusters, each with the text of its event.
fn events(batch: &Batch) -> Vec<(String, String)> {
    let of_chunk = |chunk: &lines::Chunk| -> Vec<_> {
        let owners = (0..chunk.len()).map(|line| chunk.owner(line).unwrap().cluster().to_string());
        let texts = chunk.lines().map(|line| String::from_utf8(line.to_vec()).unwrap());
        owners.zip(texts).collect()
    };
    batch.chunks.iter().flat_map(of_chunk).collect()
}

fn next(queue: &Arc<Queue>) -> Batch {
    queue.collect().now_or_never().flatten().expect("a batch")
}

fn push(queue: &Queue, owner: &EventOwner, count: usize) -> usize {
    (0..count).filter(|number| queue.push_now(owner, number.to_string().as_bytes(), 1)).count()
}

/// The texts of the events that are left, by cluster.
fn drain(queue: &Arc<Queue>) -> HashMap<String, Vec<String>> {
    let mut left: HashMap<String, Vec<String>> = HashMap::new();
    while queue.held() > 0 {
        for (cluster, text) in events(&next(queue)) {
            left.entry(cluster).or_default().push(text);
        }
    }
    left
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn a_flood_loses_its_newest_events_and_others_lose_none() {
    let (queue, counts) = queue(100, 10, usize::MAX);
    let (flood, calm) = (flow("flood"), flow("calm"));
    assert_eq!(push(&queue, &flood, 1000), 100, "alone it has all of the buffer");
    for number in 0..30 {
        assert!(queue.push_now(&calm, number.to_string().as_bytes(), 1));
        assert!(!queue.push_now(&flood, b"more", 1));
    }
    assert_eq!(counts.of("webhook buffer_events of flood"), 900 + 30 + 30);
    assert_eq!((counts.of("webhook buffer_events of calm"), counts.of("webhook queue")), (0, 100));
    let left = drain(&queue);
    assert_eq!((&left["flood"], &left["calm"]), (&numbers(0..70), &numbers(0..30)));
    assert_eq!((counts.of("webhook queue"), counts.of("webhook bytes")), (0, 0));
    // It has all of it again.
    assert_eq!(push(&queue, &flood, 1000), 100);
}

#[tokio::test]
async fn owners_share_a_full_buffer_equally() {
    let (queue, _) = queue(90, 10, usize::MAX);
    let owners = ["a", "b", "c"].map(flow);
    for owner in &owners {
        push(&queue, owner, 1000);
    }
    for _ in 0..100 {
        for owner in &owners {
            queue.push_now(owner, b"x", 1);
        }
    }
    let left = drain(&queue);
    assert!(left.values().all(|events| events.len() == 30), "{left:?}");
}

#[tokio::test]
async fn tenants_together_have_half_of_the_buffer_and_networks_a_quarter() {
    let (queue, counts) = queue(400, 10, usize::MAX);
    let tenants: Vec<_> = (0..300).map(|number| tenant(&format!("tenant-{number}"))).collect();
    assert_eq!(tenants.iter().map(|tenant| push(&queue, tenant, 1)).sum::<usize>(), 200);
    let networks: Vec<_> = (0..=255).map(network).collect();
    assert_eq!(networks.iter().map(|network| push(&queue, network, 1)).sum::<usize>(), 100);
    assert_eq!(push(&queue, &flow("alice"), 1000), 100);
    assert_eq!(counts.of("webhook buffer_events"), 100 + 156 + 900);
    // A tenant that floods loses for another one, not for the networks or the operator's users.
    let left = drain(&queue);
    assert_eq!(left["alice"], numbers(0..100));
    assert_eq!(push(&queue, &tenants[0], 1000), 200);
    assert_eq!(push(&queue, &tenants[1], 50), 50);
    assert_eq!(push(&queue, &flow("alice"), 200), 200);
    let left = drain(&queue);
    assert_eq!(["tenant-0", "tenant-1", "alice"].map(|cluster| left[cluster].len()), [150, 50, 200]);
}

#[tokio::test]
async fn a_network_has_one_share_in_all_clusters() {
    let (queue, counts) = queue(400, 10, usize::MAX);
    let flood: Vec<_> = (0..50)
        .map(|number| EventOwner::new(network(1).owner().clone(), format!("cluster-{number}")))
        .collect();
    for _ in 0..10 {
        for owner in &flood {
            push(&queue, owner, 1);
        }
    }
    assert_eq!(counts.of("webhook queue"), 100);
    assert_eq!(push(&queue, &network(2), 50), 50);
    let left = drain(&queue);
    assert_eq!((left["network-2"].len(), left.values().map(Vec::len).sum::<usize>()), (50, 100));
}

#[tokio::test]
async fn owners_take_turns_in_batches_and_groups_between_them() {
    let (queue, _) = queue(10_000, 64, usize::MAX);
    push(&queue, &flow("flood"), 1000);
    push(&queue, &flow("calm"), 10);
    let first = events(&next(&queue));
    let of = |events: &[(String, String)], wanted: &str| {
        events
            .iter()
            .filter(|(cluster, _)| cluster == wanted)
            .map(|(_, text)| text.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!((of(&first, "calm"), of(&first, "flood")), (numbers(0..10), numbers(0..54)));
    drop(first);
    // Many tenants have as many turns as one user of the operator.
    for number in 0..100 {
        push(&queue, &tenant(&format!("tenant-{number}")), 40);
    }
    push(&queue, &flow("calm"), 64);
    let mut batches = Vec::new();
    for _ in 0..4 {
        batches.extend(events(&next(&queue)));
    }
    assert_eq!(batches.len(), 256);
    assert_eq!(
        of(&batches, "calm"),
        numbers(0..64),
        "a quarter of the turns is that of calm, and one of flood"
    );
    assert_eq!(of(&batches, "flood"), numbers(54..118));
}

#[tokio::test]
async fn few_events_are_stored_in_the_order_in_which_they_came() {
    let (queue, _) = queue(10_000, 64, usize::MAX);
    let owners = ["a", "b", "c"].map(flow);
    let order: Vec<_> =
        (0..120).map(|number: usize| (owners[number * 7 % 3].clone(), number.to_string())).collect();
    for (owner, text) in &order {
        queue.push_now(owner, text.as_bytes(), 1);
    }
    let mut stored = events(&next(&queue));
    stored.extend(events(&next(&queue)));
    let expected: Vec<_> =
        order.iter().map(|(owner, text)| (owner.cluster().to_string(), text.clone())).collect();
    assert_eq!(stored, expected);
}

/// Owners with large events have as many bytes in turn as others, not as many events.
#[tokio::test]
async fn an_owner_of_large_events_has_no_larger_part_of_the_backend() {
    let (queue, _) = queue(10_000, 100, usize::MAX);
    let (large, small) = (flow("large"), flow("small"));
    let megabyte = vec![b'x'; 1 << 20];
    for _ in 0..20 {
        queue.push_now(&large, &megabyte, 1);
    }
    push(&queue, &small, 1000);
    let (mut bytes, mut of_small) = (0, 0);
    for _ in 0..3 {
        for (cluster, text) in events(&next(&queue)) {
            if cluster == "large" { bytes += text.len() } else { of_small += 1 }
        }
    }
    // One of them is saved up for in 17 turns, between which the other owner has its own, of 16 events each.
    assert_eq!((bytes, of_small), (1 << 20, 299));
}

#[tokio::test]
async fn large_events_displace_those_of_the_owner_with_the_most_bytes() {
    let (queue, counts) = queue(10_000, 10, 64 << 10);
    let (flood, calm) = (flow("flood"), flow("calm"));
    let kilobyte = [b'x'; 1024 - 128];
    assert_eq!((0..100).filter(|_| queue.push_now(&flood, &kilobyte, 1)).count(), 64);
    push(&queue, &calm, 1000);
    assert_eq!(counts.of("webhook buffer_events"), 0);
    let left = drain(&queue);
    let bytes = |events: &Vec<String>| events.iter().map(|text| Load::of(1, text.len()).bytes).sum::<usize>();
    assert!((31 << 10..=33 << 10).contains(&bytes(&left["flood"])), "{}", bytes(&left["flood"]));
    assert!((31 << 10..=33 << 10).contains(&bytes(&left["calm"])), "{}", bytes(&left["calm"]));
    // One that is larger than its part displaces nothing.
    assert_eq!((0..100).filter(|_| queue.push_now(&flood, &kilobyte, 1)).count(), 64);
    assert!(!queue.push_now(&calm, &vec![b'x'; 33 << 10], 1));
    assert_eq!(counts.of("webhook queue"), 64);
    assert!(queue.push_now(&calm, &vec![b'x'; 31 << 10], 1));
    assert_eq!(counts.of("webhook queue"), 33);
}

/// What is being stored cannot be displaced: a backend that hangs with the events of one owner leaves room to the others.
#[tokio::test]
async fn events_that_hang_in_the_backend_leave_room_to_others() {
    let (queue, counts) = queue(10_000, 1, 64 << 10);
    let (flood, calm) = (flow("flood"), flow("calm"));
    let kilobyte = [b'x'; 1024 - 128];
    let mut hanging = Vec::new();
    for _ in 0..1000 {
        queue.push_now(&flood, &kilobyte, 1);
        hanging.extend(queue.collect().now_or_never().flatten());
    }
    assert_eq!((hanging.len(), counts.of("webhook queue")), (56, 64), "an eighth waits");
    assert_eq!((0..4).filter(|_| queue.push_now(&calm, &kilobyte, 1)).count(), 4);
    assert_eq!(counts.of("webhook buffer_bytes of calm"), 0);
    assert!(!queue.push_now(&calm, &kilobyte, 1), "beyond its part of what waits");
    // The collector goes on when something is stored.
    let (stored, ()) = tokio::join!(queue.collect(), async { hanging.truncate(55) });
    assert_eq!(events(&stored.unwrap()).len(), 1);
    drop(hanging);
    drain(&queue);
    // Tenants have no more than half of the bytes, however much of it is being stored.
    let mut hanging = Vec::new();
    for number in 0..1000 {
        queue.push_now(&tenant(&format!("tenant-{}", number % 7)), &kilobyte, 1);
        hanging.extend(queue.collect().now_or_never().flatten());
    }
    assert_eq!((hanging.len(), counts.of("webhook queue")), (28, 32));
    assert_eq!((0..32).filter(|_| queue.push_now(&calm, &kilobyte, 1)).count(), 32);
}

/// A batch is not waited for while a group has no room for more events.
#[tokio::test(start_paused = true)]
async fn a_group_without_room_does_not_wait_for_a_full_batch() {
    let (queue, counts) = queue(100, 1000, usize::MAX);
    let batch = BatchOptions { max_wait: Duration::from_hours(1), ..queue.options().batch };
    queue.set_options(QueueOptions { batch, ..queue.options() });
    let collecting = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { queue.collect().await.unwrap() }
    });
    // The collector waits, and holds a batch of its own.
    tokio::task::yield_now().await;
    push(&queue, &tenant("flood"), 601);
    assert_eq!(events(&testkit::in_time(collecting).await.unwrap()).len(), 550);
    assert_eq!(counts.of("webhook buffer_events of flood"), 51);
}

#[tokio::test(start_paused = true)]
async fn an_owner_beyond_its_part_waits_for_itself_alone() {
    let (queue, counts) = queue(10, 1, usize::MAX);
    let (flood, calm) = (flow("flood"), tenant("calm"));
    push(&queue, &flood, 10);
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(queue.push(&flood, b"waits", None))).collect();
    assert!(waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
    assert!(!queue.has_room(&flood) && queue.room(&flood).now_or_never().is_none());
    for _ in 0..5 {
        assert!(queue.has_room(&calm) && queue.room(&calm).now_or_never().is_some());
        queue.push(&calm, b"calm", None).now_or_never().expect("it does not wait behind the flood");
    }
    assert!(!queue.has_room(&calm), "it has its part");
    assert!(queue.push(&calm, b"calm", None).now_or_never().is_none());
    assert_eq!(counts.of("webhook buffer_events"), 0, "nothing is displaced that a request waits for");
    assert_eq!((counts.of("webhook queue"), counts.of("webhook cancelled of calm")), (15, 1));
    // Its turn comes, and what has waited longest of the flood comes in as it is stored.
    let left = drain(&queue);
    assert_eq!((left["flood"].len(), left["calm"].len()), (10, 5));
    for waiting in waiting {
        testkit::in_time(waiting).await;
    }
    assert_eq!(drain(&queue)["flood"].len(), 3);
}

/// A request whose first event is displaced is not stored, which `blocking-strict` refuses.
#[tokio::test]
async fn at_the_hard_limit_the_request_of_the_flood_is_refused_alone() {
    let (queue, counts) = queue(4, 1, usize::MAX);
    let (flood, others, calm) = (flow("flood"), ["a", "b"].map(flow), flow("calm"));
    for _ in 0..3 {
        queue.push_now(&flood, b"later", HARD_LIMIT);
    }
    let (sender, mut of_flood) = oneshot::channel();
    queue.push(&flood, b"first", Some(sender)).await;
    for other in others.iter().chain(&others) {
        assert!(queue.push_now(other, b"later", HARD_LIMIT));
    }
    assert!(of_flood.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
    let (sender, of_calm) = oneshot::channel();
    queue.push(&calm, b"first", Some(sender)).now_or_never().expect("it is within its part");
    assert!(of_flood.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
    assert_eq!((counts.of("webhook buffer_events"), counts.of("webhook buffer_events of flood")), (1, 1));
    while queue.held() > 0 {
        let mut batch = next(&queue);
        batch.release().into_iter().for_each(|reports| reports.report_all(true));
    }
    assert!(of_calm.await.unwrap());
}

#[tokio::test]
async fn a_disk_that_hangs_with_the_events_of_one_owner_has_those_of_others_next() {
    for mode in [Mode::Blocking, Mode::BlockingStrict] {
        let log = logs::HungLog::new();
        let (registry, counts) = registry();
        let sinks = registry.generation().open(Some(&log.options(mode)), None).unwrap();
        let (flood, calm) = (tenant("flood"), flow("calm"));
        sinks.store(&flood, &large_event("first", logs::HANGS));
        testkit::until("the writer hangs", || counts.of("log queue") == 1).await;
        for at in 0..100 {
            sinks.store(&flood, &large_event(&format!("later {at}"), 1 << 20));
        }
        assert!(timeout(Duration::from_millis(20), sinks.ready(&flood)).await.is_err());
        testkit::in_time(sinks.ready(&calm)).await;
        let stored = {
            let (sinks, calm) = (sinks.clone(), calm.clone());
            tokio::spawn(async move { sinks.store_first(&calm, &event("calm")).await })
        };
        testkit::until("the event of calm waits", || counts.of("log queue") > 64).await;
        let kept = counts.of("log queue");
        let written = log.drain(usize::try_from(kept).unwrap()).await;
        let at = written.iter().position(|id| id == "calm").unwrap();
        assert!(at < 4, "{at}: before nearly all of the flood");
        testkit::in_time(stored).await.unwrap().unwrap();
        assert_eq!((counts.of("log buffer_bytes of calm"), counts.of("rejected")), (0, 0));
        assert_eq!(counts.of("log buffer_bytes of flood"), 102 - kept);
    }
}

#[tokio::test]
async fn what_a_backend_loses_is_counted_by_cluster() {
    let (registry, counts) = registry();
    let options = LogOptions { mode: Mode::Batch, ..LogOptions::new("/dev/full") };
    let sinks = registry.generation().open(Some(&options), None).unwrap();
    for (owner, events) in [(flow("a"), 2), (tenant("b"), 3), (flow("a"), 1)] {
        (0..events).for_each(|_| sinks.store(&owner, &event("1")));
    }
    testkit::in_time(sinks.flush()).await;
    assert_eq!((counts.of("log failed of a"), counts.of("log failed of b")), (3, 3));
    assert_eq!((counts.of("log failed"), counts.of("error log")), (6, 6));
    let webhook = webhooks::FakeWebhook::new(webhooks::Answer::Refuse);
    let post: Arc<dyn Post> = Arc::<webhooks::FakeWebhook>::clone(&webhook);
    let sinks = registry.generation().open(None, Some((&WebhookOptions::new("test"), post))).unwrap();
    for owner in [flow("a"), tenant("b"), tenant("b")] {
        sinks.store(&owner, &event("1"));
    }
    testkit::in_time(sinks.flush()).await;
    assert_eq!((counts.of("webhook failed of a"), counts.of("webhook failed of b")), (1, 2));
}

/// One step of a random run.
#[derive(Debug, Clone)]
enum Action {
    Push { owner: usize, size: usize },
    Flood { owner: usize, size: usize, count: usize },
    Take,
    Store,
}

fn action() -> impl Strategy<Value = Action> {
    let size = prop_oneof![4 => Just(10_usize), 1 => 0..3000_usize];
    prop_oneof![
        6 => (0..OWNERS, size.clone()).prop_map(|(owner, size)| Action::Push { owner, size }),
        2 => (0..OWNERS, size, 1..80_usize)
            .prop_map(|(owner, size, count)| Action::Flood { owner, size, count }),
        1 => Just(Action::Take),
        1 => Just(Action::Store),
    ]
}

const OWNERS: usize = 9;
const MAX: Load = Load { events: 60, bytes: 20_000 };

/// A buffer, and what is known of it from outside.
struct Model {
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    owners: Vec<EventOwner>,
    /// The events that wait, of each owner: their numbers and sizes.
    waiting: Vec<VecDeque<(usize, usize)>>,
    storing: VecDeque<(Batch, Vec<Load>)>,
    next: usize,
}

impl Model {
    fn new() -> Self {
        let (queue, counts) = queue(MAX.events, 7, MAX.bytes);
        let owners: Vec<_> = (0..OWNERS)
            .map(|number| match number {
                0..4 => flow(&format!("flow-{number}")),
                4..7 => tenant(&format!("tenant-{number}")),
                _ => network(u8::try_from(number).unwrap()),
            })
            .collect();
        let waiting = vec![VecDeque::new(); OWNERS];
        Self { queue, counts, owners, waiting, storing: VecDeque::new(), next: 0 }
    }

    fn load(&self, owner: usize) -> Load {
        self.waiting[owner]
            .iter()
            .fold(Load::default(), |sum, (_, size)| sum + Load { events: 1, bytes: *size })
    }

    /// The loads of these owners, waiting and being stored.
    fn held(&self, counts: impl Fn(usize) -> bool) -> (Load, Load) {
        let sum = |loads: &mut dyn Iterator<Item = Load>| loads.fold(Load::default(), |sum, load| sum + load);
        let waiting = sum(&mut (0..OWNERS).filter(|owner| counts(*owner)).map(|owner| self.load(owner)));
        let of_batch = |(_, loads): &(Batch, Vec<Load>)| {
            sum(&mut (0..OWNERS).filter(|owner| counts(*owner)).map(|owner| loads[owner]))
        };
        (waiting, sum(&mut self.storing.iter().map(of_batch)))
    }

    fn lost(&self) -> Vec<[i64; 2]> {
        let of = |owner: &EventOwner| {
            ["buffer_events", "buffer_bytes"]
                .map(|cause| self.counts.of(&format!("webhook {cause} of {}", owner.cluster())))
        };
        self.owners.iter().map(of).collect()
    }

    fn group(&self, owner: usize) -> OwnerGroup {
        self.owners[owner].group()
    }

    /// The part of an owner, of the events and of the bytes, when `pusher` adds an event.
    fn part(&self, owner: usize, pusher: usize) -> Load {
        let counts = |other: usize| other == pusher || !self.waiting[other].is_empty();
        let of = |divisor: usize, in_scope: &dyn Fn(usize) -> bool| {
            let owners = (0..OWNERS).filter(|other| in_scope(*other) && counts(*other)).count().max(1);
            let (_, storing) = self.held(in_scope);
            let bytes = (MAX.bytes / divisor).saturating_sub(storing.bytes);
            Load { events: MAX.events / divisor / owners, bytes: bytes / owners }
        };
        let group = self.group(owner);
        let (all, own) = (of(1, &|_| true), of(group.divisor(), &|other| self.group(other) == group));
        Load { events: all.events.min(own.events), bytes: all.bytes.min(own.bytes) }
    }

    fn push(&mut self, owner: usize, size: usize) -> Result<(), TestCaseError> {
        let before = self.lost();
        let number = self.next;
        self.next += 1;
        let text = format!("{number:>width$}", width = size.max(6));
        let size = Load::of(1, text.len()).bytes;
        let parts: Vec<_> = (0..OWNERS).map(|other| self.part(other, owner)).collect();
        let is_stored = self.queue.push_now(&self.owners[owner], text.as_bytes(), 1);
        let own = Load { events: 1, bytes: size };
        for (other, (after, before)) in self.lost().into_iter().zip(before).enumerate() {
            let newly = [after[0] - before[0], after[1] - before[1]];
            for (measure, count) in newly.into_iter().enumerate() {
                for _ in 0..count {
                    // With the event that is lost.
                    let is_own = other == owner && !is_stored;
                    let held = if is_own { self.load(other) + own } else { self.load(other) };
                    let (held, part) = if measure == 0 {
                        (held.events, parts[other].events)
                    } else {
                        (held.bytes, parts[other].bytes)
                    };
                    prop_assert!(held > part, "{other} has {held}, and a part of {part}");
                    prop_assert!(is_own || other != owner, "an owner never displaces itself");
                    if !is_own {
                        self.waiting[other].pop_back().unwrap();
                    }
                }
            }
        }
        if is_stored {
            self.waiting[owner].push_back((number, size));
        }
        self.check()
    }

    /// The bounds.
    fn check(&self) -> Result<(), TestCaseError> {
        let one_may_be_larger = |held: usize, max: usize, events: usize| held <= max || events == 1;
        for group in OwnerGroup::ALL.into_iter().map(Some).chain([None]) {
            let (waiting, storing) = self.held(|owner| group.is_none_or(|group| self.group(owner) == group));
            let divisor = group.map_or(1, OwnerGroup::divisor);
            prop_assert!(waiting.events <= MAX.events / divisor);
            let held = waiting + storing;
            prop_assert!(
                one_may_be_larger(held.bytes, MAX.bytes / divisor, held.events),
                "{held:?} of {group:?}"
            );
        }
        let (waiting, storing) = self.held(|_| true);
        prop_assert_eq!(self.queue.held(), (waiting + storing).events);
        prop_assert_eq!(self.counts.of("webhook bytes"), i64::try_from((waiting + storing).bytes).unwrap());
        Ok(())
    }

    fn take(&mut self) -> Result<(), TestCaseError> {
        if self.waiting.iter().all(VecDeque::is_empty) {
            return Ok(());
        }
        let Some(batch) = self.queue.collect().now_or_never().flatten() else {
            prop_assert!(!self.storing.is_empty(), "nothing else holds up the collector");
            return Ok(());
        };
        let mut loads = vec![Load::default(); OWNERS];
        for (cluster, text) in events(&batch) {
            let owner = self.owners.iter().position(|owner| **owner.cluster() == *cluster).unwrap();
            let (number, size) = self.waiting[owner].pop_front().unwrap();
            prop_assert_eq!(text.trim(), number.to_string(), "in order");
            loads[owner] += Load { events: 1, bytes: size };
        }
        self.storing.push_back((batch, loads));
        self.check()
    }
}

proptest! {
    // Random owners of all kinds, any of which may flood at any time, with events of any size, and a backend that stores
    // batches when it likes: an owner loses an event only if it holds more than its part, and nothing else is ever lost,
    // doubled or in another order.
    #[test]
    fn an_owner_within_its_part_loses_nothing(actions in proptest::collection::vec(action(), 1..200), last in any::<bool>()) {
        let mut model = Model::new();
        for action in actions {
            match action {
                Action::Push { owner, size } => model.push(owner, size)?,
                Action::Flood { owner, size, count } => {
                    for _ in 0..count {
                        model.push(owner, size)?;
                    }
                }
                Action::Take => model.take()?,
                Action::Store => drop(model.storing.pop_front()),
            }
        }
        if last {
            model.storing.clear();
        }
        while model.waiting.iter().any(|waiting| !waiting.is_empty()) {
            model.storing.clear();
            model.take()?;
        }
        model.storing.clear();
        prop_assert_eq!(model.queue.held(), 0);
    }
}
