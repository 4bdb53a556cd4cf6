//! The decisions, one by one, and thousands of random ones beside a model that only counts.

use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::test_runner::TestCaseResult;
use proptest::{prop_assert, prop_assert_eq};

use super::*;

fn queue(limit: usize, queue_length: usize) -> FairQueue<&'static str> {
    let mut queue = FairQueue::new();
    queue.set_bounds(QueueBounds { limit, queue_length });
    queue
}

fn name(name: &str) -> FlowName {
    name.into()
}

fn waits<W>(queued: &Queued<W>) -> bool {
    matches!(queued, Queued::Waits { evicted: None, .. })
}

#[test]
fn without_queues_any_flow_may_take_every_place() {
    let mut queue = queue(3, 0);
    assert!((0..3).all(|_| queue.enter(&name("a"))));
    assert!(!queue.enter(&name("a")) && !queue.enter(&name("b")));
    assert!(matches!(queue.wait(&name("b"), "b"), Queued::Full));
    queue.release(&name("a"));
    assert!(queue.enter(&name("b")));
}

#[test]
fn one_flow_leaves_a_tenth_of_the_places_to_others() {
    for (limit, expected) in [(1, 1), (2, 1), (3, 2), (9, 8), (10, 9), (11, 9), (400, 360)] {
        let mut queue = queue(limit, 5);
        let entered = (0..1000).take_while(|_| queue.enter(&name("a"))).count();
        assert_eq!(entered, expected, "of {limit}");
        let others = (0..1000).take_while(|number| queue.enter(&name(&number.to_string()))).count();
        assert_eq!(others, limit - expected, "the others get the rest");
    }
}

#[test]
fn a_free_place_goes_to_the_flow_with_the_fewest_requests_in_service_and_then_in_turn() {
    let mut queue = queue(4, 10);
    assert!((0..3).all(|_| queue.enter(&name("flood"))) && queue.enter(&name("calm")));
    for (flow, waiter) in
        [("flood", "flood 1"), ("flood", "flood 2"), ("calm", "calm 1"), ("new", "new 1"), ("new", "new 2")]
    {
        assert!(waits(&queue.wait(&name(flow), waiter)), "{waiter}");
    }
    let mut served = Vec::new();
    // The flow that returns its place each time: it has the most in service.
    for flow in ["flood", "flood", "flood", "calm", "new"] {
        queue.release(&name(flow));
        served.extend(queue.next().map(|(_, waiter)| waiter));
        assert!(queue.next().is_none());
    }
    // new has none in service. Then all have one, and the flow that came first, or got its last place first, is next.
    assert_eq!(served, ["new 1", "flood 1", "calm 1", "new 2", "flood 2"]);
}

#[test]
fn the_longest_queue_gives_way_when_all_together_are_full() {
    let mut queue = queue(1, 2);
    assert!(queue.enter(&name("a")));
    // 64 flows with full queues.
    for flow in 0..64 {
        assert!((0..2).all(|_| waits(&queue.wait(&name(&flow.to_string()), "of many"))), "{flow}");
    }
    assert!(matches!(queue.wait(&name("0"), "one more"), Queued::Full), "of its own flow");
    let Queued::Waits { evicted: Some("of many"), ticket } = queue.wait(&name("calm"), "calm") else {
        panic!("a flow without a waiting request gets a position")
    };
    assert_eq!(queue.counts(), (1, 128, 66));
    // Its queue would then be as long as the longest one.
    assert!(matches!(queue.wait(&name("calm"), "calm 2"), Queued::Full));
    assert_eq!(queue.leave_queue(&name("calm"), ticket), Some("calm"));
    assert_eq!(queue.leave_queue(&name("calm"), ticket), None, "it has left");
    assert_eq!(queue.counts(), (1, 127, 65));
}

#[test]
fn the_evicted_request_is_the_last_of_its_flow() {
    let mut queue = queue(1, 2);
    assert!(queue.enter(&name("a")));
    for flow in 0..64 {
        for waiter in ["first", "last"] {
            queue.wait(&name(&flow.to_string()), waiter);
        }
    }
    for number in 64..128 {
        let queued = queue.wait(&name(&number.to_string()), "new");
        assert!(matches!(queued, Queued::Waits { evicted: Some("last"), .. }), "{number}");
    }
    assert!(matches!(queue.wait(&name("128"), "new"), Queued::Full), "one request waits in each queue");
}

#[test]
fn new_limits_count_the_requests_in_service() {
    let mut queue = queue(4, 4);
    assert!((0..3).all(|_| queue.enter(&name("a"))) && queue.enter(&name("b")));
    queue.set_bounds(QueueBounds { limit: 2, queue_length: 4 });
    assert!(waits(&queue.wait(&name("c"), "c")) && waits(&queue.wait(&name("d"), "d")));
    for flow in ["a", "a"] {
        queue.release(&name(flow));
        assert!(queue.next().is_none(), "more than two are in service, or as many");
    }
    queue.set_bounds(QueueBounds { limit: 3, queue_length: 4 });
    assert_eq!(queue.next().map(|(_, waiter)| waiter), Some("c"));
    assert!(queue.next().is_none());
    queue.set_bounds(QueueBounds { limit: 0, queue_length: 0 });
    assert_eq!(queue.next().map(|(_, waiter)| waiter), Some("d"), "no limit");
    assert_eq!(queue.counts(), (4, 0, 4));
    for flow in ["a", "b", "c", "d"] {
        queue.release(&name(flow));
    }
    assert_eq!(queue.counts(), (0, 0, 0), "flows without requests are forgotten");
}

/// What happens next. The numbers choose among the requests that there are.
#[derive(Debug, Clone)]
enum Event {
    Arrives(u16),
    ArrivesExempt(u16),
    Ends(usize),
    Leaves(usize),
    Bounds(QueueBounds),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let flow = prop_oneof![Just(0_u16), 0..4_u16, 0..100_u16];
    let bounds = (0..6_usize, 0..4_usize)
        .prop_map(|(limit, queue_length)| Event::Bounds(QueueBounds { limit, queue_length }));
    let event = prop_oneof![
        12 => flow.clone().prop_map(Event::Arrives),
        1 => flow.prop_map(Event::ArrivesExempt),
        5 => any::<usize>().prop_map(Event::Ends),
        2 => any::<usize>().prop_map(Event::Leaves),
        1 => bounds,
    ];
    proptest::collection::vec(event, 1..600)
}

/// The same decisions by counting: every request is in one of two lists.
#[derive(Default)]
struct Model {
    bounds: QueueBounds,
    in_service: Vec<u16>,
    /// Flow and number, in the order of arrival.
    waiting: Vec<(u16, usize)>,
    /// Flows with requests, by their turn: the first waits longest for it.
    turns: Vec<u16>,
}

impl Model {
    fn served(&self, flow: u16) -> usize {
        self.in_service.iter().filter(|one| **one == flow).count()
    }

    fn length(&self, flow: u16) -> usize {
        self.waiting.iter().filter(|(one, _)| *one == flow).count()
    }

    fn has_place(&self, flow: u16) -> bool {
        let QueueBounds { limit, .. } = self.bounds;
        limit == 0 || self.in_service.len() < limit && self.served(flow) < self.bounds.flow_limit()
    }

    fn serves(&mut self, flow: u16) {
        self.in_service.push(flow);
        self.turns.retain(|one| *one != flow);
        self.turns.push(flow);
    }

    fn knows(&mut self, flow: u16) {
        if !self.turns.contains(&flow) {
            self.turns.push(flow);
        }
    }

    fn forgets_idle_flows(&mut self) {
        let idle: Vec<u16> =
            self.turns.iter().copied().filter(|flow| self.served(*flow) + self.length(*flow) == 0).collect();
        self.turns.retain(|flow| !idle.contains(flow));
    }

    /// The flow whose queue is longest, the last in turn among equals, and the position of its last request.
    fn longest(&self) -> Option<(usize, usize)> {
        let flow = *self.turns.iter().max_by_key(|flow| self.length(**flow))?;
        let position = self.waiting.iter().rposition(|(one, _)| *one == flow)?;
        Some((self.length(flow), position))
    }

    /// Serves the request whose turn it is.
    fn next(&mut self) -> Option<usize> {
        let waits = |flow: &&u16| self.length(**flow) > 0 && self.has_place(**flow);
        let flow = *self.turns.iter().filter(waits).min_by_key(|flow| self.served(**flow))?;
        let first = self.waiting.iter().position(|(one, _)| *one == flow)?;
        self.serves(flow);
        Some(self.waiting.remove(first).1)
    }
}

/// The queue and the model, side by side.
#[derive(Default)]
struct Compared {
    queue: Option<FairQueue<usize>>,
    model: Model,
    tickets: HashMap<usize, (FlowName, Ticket)>,
    number: usize,
}

impl Compared {
    fn arrives(&mut self, flow: u16, is_exempt: bool) -> TestCaseResult {
        let (queue, name) = (self.queue.as_mut().unwrap(), name(&flow.to_string()));
        let model = &mut self.model;
        let expected = if is_exempt {
            model.bounds.limit == 0 || model.in_service.len() < model.bounds.limit
        } else {
            model.has_place(flow)
        };
        let enters = if is_exempt { queue.enter_exempt(&name) } else { queue.enter(&name) };
        prop_assert_eq!(enters, expected);
        if enters {
            model.serves(flow);
            return Ok(());
        }
        if is_exempt {
            return Ok(());
        }
        self.number += 1;
        let is_full = model.length(flow) >= model.bounds.queue_length;
        let is_total_full = model.waiting.len() >= model.bounds.total_queue_length();
        let evicted =
            model.longest().filter(|(longest, _)| is_total_full && *longest > model.length(flow) + 1);
        match queue.wait(&name, self.number) {
            Queued::Full => prop_assert!(is_full || is_total_full && evicted.is_none()),
            Queued::Waits { ticket, evicted: gone } => {
                prop_assert!(!is_full && (!is_total_full || evicted.is_some()));
                let expected = evicted.map(|(_, position)| model.waiting.remove(position).1);
                prop_assert_eq!(gone, expected);
                model.waiting.push((flow, self.number));
                model.knows(flow);
                self.tickets.insert(self.number, (name, ticket));
            }
        }
        Ok(())
    }

    fn happens(&mut self, event: &Event) -> TestCaseResult {
        match event {
            Event::Arrives(flow) => self.arrives(*flow, false)?,
            Event::ArrivesExempt(flow) => self.arrives(*flow, true)?,
            Event::Ends(which) if !self.model.in_service.is_empty() => {
                let flow = self.model.in_service.remove(which % self.model.in_service.len());
                self.queue.as_mut().unwrap().release(&name(&flow.to_string()));
            }
            Event::Leaves(which) if !self.model.waiting.is_empty() => {
                let (_, number) = self.model.waiting.remove(which % self.model.waiting.len());
                let (flow, ticket) = &self.tickets[&number];
                prop_assert_eq!(self.queue.as_mut().unwrap().leave_queue(flow, *ticket), Some(number));
            }
            Event::Bounds(bounds) => {
                self.model.bounds = *bounds;
                self.queue.as_mut().unwrap().set_bounds(*bounds);
            }
            Event::Ends(_) | Event::Leaves(_) => {}
        }
        self.model.forgets_idle_flows();
        loop {
            let expected = self.model.next();
            let served = self.queue.as_mut().unwrap().next().map(|(_, number)| number);
            prop_assert_eq!(served, expected);
            if served.is_none() {
                break;
            }
        }
        let counts = (self.model.in_service.len(), self.model.waiting.len(), self.model.turns.len());
        prop_assert_eq!(self.queue.as_ref().unwrap().counts(), counts);
        Ok(())
    }
}

proptest! {
    #[test]
    fn random_requests_are_decided_as_by_the_model(events in events()) {
        let mut compared = Compared { queue: Some(FairQueue::new()), ..Compared::default() };
        compared.happens(&Event::Bounds(QueueBounds { limit: 3, queue_length: 2 }))?;
        for event in events {
            let before = compared.model.in_service.len();
            let is_exempt_or_bounds = matches!(event, Event::Bounds(_));
            compared.happens(&event)?;
            let (limit, now) = (compared.model.bounds.limit, compared.model.in_service.len());
            prop_assert!(limit == 0 || now <= limit.max(before) || is_exempt_or_bounds);
        }
        // Every request that waits is served once the others end.
        while !compared.model.in_service.is_empty() {
            compared.happens(&Event::Ends(0))?;
        }
        prop_assert_eq!(compared.queue.unwrap().counts(), (0, 0, 0));
    }
}
