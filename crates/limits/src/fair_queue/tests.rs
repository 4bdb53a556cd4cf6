//! The decisions, one by one, and thousands of random ones beside a model that only counts.

use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::test_runner::TestCaseResult;
use proptest::{prop_assert, prop_assert_eq};

use super::*;
use crate::Owner;

fn queue(shares: Shares) -> FairQueue<Owner, &'static str> {
    FairQueue::new(shares)
}

fn owner(name: &str) -> Owner {
    Owner::flow("prod", name)
}

fn waits<W>(queued: &Queued<W>) -> bool {
    matches!(queued, Queued::Waits { evicted: None, .. })
}

#[test]
fn without_a_queue_requests_beyond_the_share_are_refused() {
    let mut queue = queue(Shares::new(3, 2));
    assert!((0..2).all(|_| queue.enter(&owner("a"), 1)));
    assert!(!queue.enter(&owner("a"), 1) && queue.enter(&owner("b"), 1));
    assert!(!queue.enter(&owner("c"), 1), "all places are taken");
    assert!(matches!(queue.wait(&owner("b"), 1, "b"), Queued::Full));
    queue.release(&owner("a"), 1);
    assert!(queue.enter_beyond_share(&owner("b"), 1) && !queue.enter_beyond_share(&owner("b"), 1));
}

#[test]
fn a_free_place_goes_to_the_owner_with_the_fewest_in_service_and_then_in_turn() {
    let mut queue = queue(Shares::new(4, 3).with_queue(100, 10));
    assert!((0..3).all(|_| queue.enter(&owner("flood"), 1)) && queue.enter(&owner("calm"), 1));
    for (of, waiter) in
        [("flood", "flood 1"), ("flood", "flood 2"), ("calm", "calm 1"), ("new", "new 1"), ("new", "new 2")]
    {
        assert!(waits(&queue.wait(&owner(of), 1, waiter)), "{waiter}");
    }
    let mut served = Vec::new();
    // The owner that returns its place each time: it has the most in service.
    for of in ["flood", "flood", "flood", "calm", "new"] {
        queue.release(&owner(of), 1);
        served.extend(queue.next().map(|granted| granted.wakes));
        assert!(queue.next().is_none());
    }
    // new has none in service. Then all have one, and the owner that came first, or got its last place first, is next.
    assert_eq!(served, ["new 1", "flood 1", "calm 1", "new 2", "flood 2"]);
}

#[test]
fn the_longest_queue_gives_way_when_all_together_are_full() {
    let mut queue = queue(Shares::new(1, 1).with_queue(128, 2));
    assert!(queue.enter(&owner("a"), 1));
    for number in 0..64 {
        for waiter in ["first", "last"] {
            assert!(waits(&queue.wait(&owner(&number.to_string()), 1, waiter)), "{number}");
        }
    }
    assert!(matches!(queue.wait(&owner("0"), 1, "one more"), Queued::Full), "of its own owner");
    let Queued::Waits { evicted: Some("last"), ticket } = queue.wait(&owner("calm"), 1, "calm") else {
        panic!("an owner without a waiting request gets a position")
    };
    assert_eq!(queue.counts(), (1, 128, 66));
    assert!(matches!(queue.wait(&owner("calm"), 1, "calm 2"), Queued::Full), "it would then be as long");
    assert_eq!(queue.leave_queue(&owner("calm"), ticket), Some("calm"));
    assert_eq!(queue.leave_queue(&owner("calm"), ticket), None, "it has left");
    assert_eq!(queue.counts(), (1, 127, 65));
}

#[test]
fn new_shares_count_what_is_in_service() {
    let mut queue = queue(Shares::new(4, 4).with_queue(10, 4));
    assert!((0..3).all(|_| queue.enter(&owner("a"), 1)) && queue.enter(&owner("b"), 1));
    queue.set_shares(Shares::new(2, 2).with_queue(10, 4));
    assert!(waits(&queue.wait(&owner("c"), 1, "c")) && waits(&queue.wait(&owner("d"), 1, "d")));
    for of in ["a", "a"] {
        queue.release(&owner(of), 1);
        assert!(queue.next().is_none(), "more than two are in service, or as many");
    }
    queue.set_shares(Shares::new(3, 3).with_queue(10, 4));
    assert_eq!(queue.next().map(|granted| granted.wakes), Some("c"));
    assert!(queue.next().is_none());
    queue.set_shares(Shares::new(usize::MAX, usize::MAX));
    assert_eq!(queue.next().map(|granted| granted.wakes), Some("d"), "no limit");
    for of in ["a", "b", "c", "d"] {
        queue.release(&owner(of), 1);
    }
    assert_eq!(queue.counts(), (0, 0, 0), "owners without requests are forgotten");
}

#[test]
fn no_other_owner_takes_the_room_that_a_heavy_request_waits_for() {
    let mut queue = queue(Shares::new(4, 3).with_queue(10, 5));
    assert!(queue.enter(&owner("a"), 2) && queue.enter(&owner("b"), 2));
    assert!(waits(&queue.wait(&owner("heavy"), 3, "heavy")) && waits(&queue.wait(&owner("a"), 1, "light")));
    assert!(matches!(queue.wait(&owner("c"), 4, "never"), Queued::Full), "it weighs more than its share");
    queue.release(&owner("b"), 2);
    assert!(queue.next().is_none(), "two are free, and three are wanted");
    queue.release(&owner("a"), 1);
    assert_eq!(queue.next().map(|granted| (granted.wakes, granted.weight)), Some(("heavy", 3)));
    assert!(queue.next().is_none());
    queue.release(&owner("heavy"), 3);
    assert_eq!(queue.next().map(|granted| granted.wakes), Some("light"));
}

#[test]
fn a_heavy_request_beyond_its_own_share_holds_up_its_owner_alone() {
    let mut queue = queue(Shares::new(10, 4).with_queue(10, 5));
    assert!(queue.enter(&owner("a"), 2));
    assert!(waits(&queue.wait(&owner("a"), 3, "heavy")));
    assert!(queue.enter(&owner("b"), 4) && queue.enter(&owner("c"), 3));
    assert!(waits(&queue.wait(&owner("c"), 1, "light")));
    queue.release(&owner("c"), 1);
    assert_eq!(queue.next().map(|granted| granted.wakes), Some("light"));
    queue.release(&owner("a"), 1);
    assert!(queue.next().is_none(), "one of the ten is free");
    queue.release(&owner("b"), 4);
    assert_eq!(queue.next().map(|granted| granted.wakes), Some("heavy"));
}

/// What happens next. The numbers choose among the requests that there are.
#[derive(Debug, Clone)]
enum Event {
    Arrives(u16, usize),
    ArrivesBeyondShare(u16, usize),
    Ends(usize),
    Leaves(usize),
    Shares(Shares),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let of = prop_oneof![Just(0_u16), 0..4_u16, 0..100_u16];
    let shares =
        (0..8_usize, 1..8_usize, 0..12_usize, 0..4_usize).prop_map(|(total, own, waiting, own_waiting)| {
            Shares::new(total, own).with_queue(waiting, own_waiting)
        });
    let weight = prop_oneof![6 => Just(1_usize), 1 => 1..5_usize];
    let event = prop_oneof![
        12 => (of.clone(), weight.clone()).prop_map(|(of, weight)| Event::Arrives(of, weight)),
        1 => (of, weight).prop_map(|(of, weight)| Event::ArrivesBeyondShare(of, weight)),
        5 => any::<usize>().prop_map(Event::Ends),
        2 => any::<usize>().prop_map(Event::Leaves),
        1 => shares.prop_map(Event::Shares),
    ];
    proptest::collection::vec(event, 1..600)
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Request {
    of: u16,
    weight: usize,
    number: usize,
}

/// The same decisions by counting: every request is in one of two lists.
struct Model {
    shares: Shares,
    in_service: Vec<Request>,
    /// In the order of arrival.
    waiting: Vec<Request>,
    /// Owners with requests, by their turn: the first waits longest for it.
    turns: Vec<u16>,
}

impl Model {
    fn weight(&self) -> usize {
        self.in_service.iter().map(|one| one.weight).sum()
    }

    fn served(&self, of: u16) -> usize {
        self.in_service.iter().filter(|one| one.of == of).map(|one| one.weight).sum()
    }

    fn length(&self, of: u16) -> usize {
        self.waiting.iter().filter(|one| one.of == of).count()
    }

    fn has_room(&self, weight: usize) -> bool {
        self.weight() + weight <= self.shares.total()
    }

    fn has_share(&self, of: u16, weight: usize) -> bool {
        self.served(of) + weight <= self.shares.per_owner()
    }

    fn serves(&mut self, request: Request) {
        self.in_service.push(request);
        self.turns.retain(|one| *one != request.of);
        self.turns.push(request.of);
    }

    fn forgets_idle_owners(&mut self) {
        let (served, turns) = (|of| self.served(of) + self.length(of) > 0, self.turns.clone());
        self.turns = turns.into_iter().filter(|of| served(*of)).collect();
    }

    /// The position of the last request of the longest queue, the last in turn among equals.
    fn longest(&self) -> Option<(usize, usize)> {
        let of = *self.turns.iter().max_by_key(|of| self.length(**of))?;
        Some((self.length(of), self.waiting.iter().rposition(|one| one.of == of)?))
    }

    /// Serves the request whose turn it is.
    fn next(&mut self) -> Option<usize> {
        let first = |of: u16| self.waiting.iter().position(|one| one.of == of);
        let mut in_turn: Vec<u16> = self.turns.iter().copied().filter(|of| first(*of).is_some()).collect();
        in_turn.sort_by_key(|of| self.served(*of));
        let fits = |of: &u16| first(*of).is_some_and(|first| self.has_share(*of, self.waiting[first].weight));
        let first = first(in_turn.into_iter().find(fits)?)?;
        if !self.has_room(self.waiting[first].weight) {
            return None;
        }
        let request = self.waiting.remove(first);
        self.serves(request);
        Some(request.number)
    }
}

/// The queue and the model, side by side.
struct Compared {
    queue: FairQueue<Owner, usize>,
    model: Model,
    tickets: HashMap<usize, Ticket>,
    number: usize,
}

impl Compared {
    fn new(shares: Shares) -> Self {
        let model = Model { shares, in_service: Vec::new(), waiting: Vec::new(), turns: Vec::new() };
        Self { queue: FairQueue::new(shares), model, tickets: HashMap::new(), number: 0 }
    }

    fn arrives(&mut self, of: u16, weight: usize, beyond_share: bool) -> TestCaseResult {
        let (name, model) = (owner(&of.to_string()), &mut self.model);
        self.number += 1;
        let request = Request { of, weight, number: self.number };
        let expected = model.has_room(weight) && (beyond_share || model.has_share(of, weight));
        let enters = if beyond_share {
            self.queue.enter_beyond_share(&name, weight)
        } else {
            self.queue.enter(&name, weight)
        };
        prop_assert_eq!(enters, expected);
        if enters {
            model.serves(request);
            return Ok(());
        }
        if beyond_share { Ok(()) } else { self.waits(&name, request) }
    }

    fn waits(&mut self, name: &Owner, request: Request) -> TestCaseResult {
        let model = &mut self.model;
        let length = model.length(request.of);
        let never = request.weight > model.shares.per_owner().min(model.shares.total());
        let is_full = length >= model.shares.waiting_per_owner() || never;
        let is_total_full = model.waiting.len() >= model.shares.waiting();
        let evicted = model.longest().filter(|(longest, _)| is_total_full && *longest > length + 1);
        match self.queue.wait(name, request.weight, request.number) {
            Queued::Full => prop_assert!(is_full || is_total_full && evicted.is_none()),
            Queued::Waits { ticket, evicted: gone } => {
                prop_assert!(!is_full && (!is_total_full || evicted.is_some()));
                let expected = evicted.map(|(_, position)| model.waiting.remove(position).number);
                prop_assert_eq!(gone, expected);
                model.waiting.push(request);
                if !model.turns.contains(&request.of) {
                    model.turns.push(request.of);
                }
                self.tickets.insert(request.number, ticket);
            }
        }
        Ok(())
    }

    fn happens(&mut self, event: &Event) -> TestCaseResult {
        match event {
            Event::Arrives(of, weight) => self.arrives(*of, *weight, false)?,
            Event::ArrivesBeyondShare(of, weight) => self.arrives(*of, *weight, true)?,
            Event::Ends(which) if !self.model.in_service.is_empty() => {
                let Request { of, weight, .. } =
                    self.model.in_service.remove(which % self.model.in_service.len());
                self.queue.release(&owner(&of.to_string()), weight);
            }
            Event::Leaves(which) if !self.model.waiting.is_empty() => {
                let Request { of, number, .. } = self.model.waiting.remove(which % self.model.waiting.len());
                let left = self.queue.leave_queue(&owner(&of.to_string()), self.tickets[&number]);
                prop_assert_eq!(left, Some(number));
            }
            Event::Shares(shares) => {
                self.model.shares = *shares;
                self.queue.set_shares(*shares);
            }
            Event::Ends(_) | Event::Leaves(_) => {}
        }
        self.model.forgets_idle_owners();
        loop {
            let expected = self.model.next();
            let served = self.queue.next().map(|granted| granted.wakes);
            prop_assert_eq!(served, expected);
            if served.is_none() {
                break;
            }
        }
        let counts = (self.model.weight(), self.model.waiting.len(), self.model.turns.len());
        prop_assert_eq!(self.queue.counts(), counts);
        Ok(())
    }
}

proptest! {
    #[test]
    fn random_requests_are_decided_as_by_the_model(events in events()) {
        let mut compared = Compared::new(Shares::new(3, 2).with_queue(4, 2));
        for event in events {
            let (before, is_shares) = (compared.model.weight(), matches!(event, Event::Shares(_)));
            compared.happens(&event)?;
            prop_assert!(compared.model.weight() <= compared.model.shares.total().max(before) || is_shares);
        }
        // Every request that waits and fits is served once the others end.
        compared.happens(&Event::Shares(Shares::new(100, 100)))?;
        while !compared.model.in_service.is_empty() {
            compared.happens(&Event::Ends(0))?;
        }
        prop_assert_eq!(compared.queue.counts(), (0, 0, 0));
    }

    // Random owners of which one floods: an owner that asks for no more than its share and the rest of the total always
    // has a place at once, as long as the shares of all that ask fit.
    #[test]
    fn an_owner_that_floods_takes_no_place_of_the_others(asks in proptest::collection::vec(0_u8..4, 1..200)) {
        let mut queue = FairQueue::<Owner, ()>::new(Shares::new(40, 10).with_queue(20, 10));
        let mut calm: HashMap<u8, usize> = HashMap::new();
        for of in asks {
            for _ in 0..30 {
                if !queue.enter(&owner("flood"), 1) {
                    queue.wait(&owner("flood"), 1, ());
                }
            }
            if of == 3 {
                for (of, held) in calm.drain() {
                    queue.release(&owner(&of.to_string()), held);
                }
                continue;
            }
            let held = calm.entry(of).or_default();
            if *held < 10 {
                prop_assert!(queue.enter(&owner(&of.to_string()), 1));
                *held += 1;
            }
        }
    }
}
