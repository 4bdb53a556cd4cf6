//! The memory that streams hold, by owner: a total for the process, at which the owner that holds the most gives way.
//!
//! An attacker chooses from how many networks it comes without a credential. So all networks together count as one when it is
//! decided who gives way; of them, the one that holds the most does.
//!
//! Nothing is counted while bytes move, which would cost every request. What holds memory registers once and says what it
//! holds when it is asked; it is asked a few times each second.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use portcullis_system::sync::lock;

use crate::Owner;

/// The number of parts with a lock of their own.
const SHARDS: usize = 16;
/// To how much of the total the memory is brought down, in percent: not just below, so that it is not done all the time.
const RELIEVED_PERCENT: usize = 75;

/// What holds memory for an owner: a stream, or a connection.
pub trait Holder: Send + Sync {
    /// How many bytes it holds now.
    fn held(&self) -> usize;

    /// Ends it, soon: its owner has to give way. Returns whether it was not about to end already.
    fn give_way(&self) -> bool;
}

/// Who holds how much. Cheap to clone: a clone is the same.
#[derive(Clone)]
pub struct ByteLedger(Arc<Ledger>);

struct Ledger {
    /// In bytes.
    total: AtomicUsize,
    next: AtomicUsize,
    registered: AtomicUsize,
    hasher: RandomState,
    shards: [Mutex<Registered>; SHARDS],
}

/// Holders by their numbers.
type Registered = BTreeMap<usize, (Owner, Weak<dyn Holder>)>;
/// Holders, and what they hold.
type Holders = Vec<(usize, Arc<dyn Holder>)>;

/// A holder counts until this is dropped.
#[must_use = "the holder is forgotten when this is dropped"]
pub struct Registration {
    ledger: Arc<Ledger>,
    number: usize,
}

/// What all hold, and what was done to bring it down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// In bytes, before anything was ended.
    pub held: usize,
    /// The owners that gave way, and what of theirs was ended. None, unless the total was exceeded.
    pub gave_way: BTreeMap<Owner, Ended>,
}

/// What one owner held in what was ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ended {
    /// Streams and connections, without those that were about to end already.
    pub holders: usize,
    /// The bytes of all.
    pub bytes: usize,
}

impl ByteLedger {
    /// A ledger with this total, in bytes.
    pub fn new(total: usize) -> Self {
        Self(Arc::new(Ledger {
            total: AtomicUsize::new(total),
            next: AtomicUsize::new(0),
            registered: AtomicUsize::new(0),
            hasher: RandomState::new(),
            shards: Default::default(),
        }))
    }

    /// Puts another total in force.
    pub fn set_total(&self, total: usize) {
        self.0.total.store(total, Ordering::Relaxed);
    }

    /// The total in force, in bytes.
    pub fn total(&self) -> usize {
        self.0.total.load(Ordering::Relaxed)
    }

    /// The number of holders.
    pub fn registered(&self) -> usize {
        self.0.registered.load(Ordering::Relaxed)
    }

    /// Counts what a holder holds for its owner.
    pub fn register(&self, owner: Owner, holder: &Arc<impl Holder + 'static>) -> Registration {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let holder = Arc::downgrade(holder);
        self.0.registered.fetch_add(1, Ordering::Relaxed);
        lock(self.0.shard(number)).insert(number, (owner, holder));
        Registration { ledger: Arc::clone(&self.0), number }
    }

    /// The bytes that each owner holds.
    pub fn held(&self) -> BTreeMap<Owner, usize> {
        let mut owners = BTreeMap::new();
        for (owner, _, held) in self.holders() {
            *owners.entry(owner).or_default() += held;
        }
        owners
    }

    /// Looks at all holders. If they hold more than the total, the owner that holds the most ends what holds the most of it,
    /// and so on until enough is free. All networks count as one owner, of which the largest network gives way.
    pub fn sample(&self) -> Sample {
        let total = self.total();
        let mut by_owner: BTreeMap<Owner, Held> = BTreeMap::new();
        for (owner, holder, held) in self.holders() {
            by_owner.entry(owner).or_default().add(holder, held);
        }
        let held: usize = by_owner.values().map(|held| held.sum).sum();
        if held <= total {
            return Sample { held, gave_way: BTreeMap::new() };
        }
        // It has no streams but those that keep the process alive.
        by_owner.remove(&Owner::Gateway);
        let goal = total / 100 * RELIEVED_PERCENT;
        for held in by_owner.values_mut() {
            held.holders.sort_by_key(|(held, _)| *held);
        }
        Sample { held, gave_way: give_way(by_owner, held, goal) }
    }

    fn holders(&self) -> Vec<(Owner, Arc<dyn Holder>, usize)> {
        let known = self.0.shards.iter().flat_map(|shard| {
            let shard = lock(shard);
            shard
                .values()
                .filter_map(|(owner, holder)| Some((owner.clone(), holder.upgrade()?)))
                .collect::<Vec<_>>()
        });
        // Outside of the lock, which requests take.
        known
            .map(|(owner, holder)| {
                let held = holder.held();
                (owner, holder, held)
            })
            .collect()
    }
}

/// What one owner holds.
#[derive(Default)]
struct Held {
    sum: usize,
    /// By what they hold, the most last.
    holders: Holders,
}

impl Held {
    fn add(&mut self, holder: Arc<dyn Holder>, held: usize) {
        self.sum += held;
        if held > 0 {
            self.holders.push((held, holder));
        }
    }
}

/// Who counts as one when it is decided who gives way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    /// All networks of clients that have not authenticated.
    Networks,
    /// Any other owner.
    One(Owner),
}

impl Party {
    fn of(owner: &Owner) -> Self {
        match owner {
            Owner::Network(_) => Self::Networks,
            Owner::Gateway | Owner::Tenant(_) | Owner::Flow { .. } => Self::One(owner.clone()),
        }
    }
}

/// What the owners of one party hold.
#[derive(Default)]
struct Members {
    sum: usize,
    /// By what they hold, the most last.
    owners: BTreeMap<(usize, Owner), Holders>,
}

impl Members {
    fn add(&mut self, owner: Owner, held: Held) {
        self.sum += held.sum;
        self.owners.insert((held.sum, owner), held.holders);
    }

    /// Takes out what holds the most of the owner that holds the most.
    fn pop_largest(&mut self) -> Option<(Owner, usize, Arc<dyn Holder>)> {
        let ((sum, owner), mut holders) = self.owners.pop_last()?;
        let (held, holder) = holders.pop()?;
        self.sum -= held;
        self.owners.insert((sum - held, owner.clone()), holders);
        Some((owner, held, holder))
    }
}

/// Ends what the largest party holds, one after the other, until all hold at most `goal`.
fn give_way(by_owner: BTreeMap<Owner, Held>, mut held: usize, goal: usize) -> BTreeMap<Owner, Ended> {
    let mut parties: BTreeMap<Party, Members> = BTreeMap::new();
    for (owner, held) in by_owner {
        parties.entry(Party::of(&owner)).or_default().add(owner, held);
    }
    let mut by_size: BTreeMap<(usize, Party), Members> =
        parties.into_iter().map(|(party, members)| ((members.sum, party), members)).collect();
    let mut gave: BTreeMap<Owner, Ended> = BTreeMap::new();
    while held > goal
        && let Some(((_, party), mut members)) = by_size.pop_last()
        && let Some((owner, freed, holder)) = members.pop_largest()
    {
        let is_new = holder.give_way();
        held -= freed;
        let ended = gave.entry(owner).or_default();
        ended.holders += usize::from(is_new);
        ended.bytes += freed;
        by_size.insert((members.sum, party), members);
    }
    gave
}

impl Ledger {
    fn shard(&self, number: usize) -> &Mutex<Registered> {
        let [first, ..] = &self.shards;
        let index = usize::try_from(self.hasher.hash_one(number) >> 32).unwrap_or_default() % SHARDS;
        self.shards.get(index).unwrap_or(first)
    }
}

impl Registration {
    /// Counts what the holder holds for another owner from now on.
    pub fn set_owner(&self, owner: Owner) {
        if let Some(registered) = lock(self.ledger.shard(self.number)).get_mut(&self.number) {
            registered.0 = owner;
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.ledger.registered.fetch_sub(1, Ordering::Relaxed);
        lock(self.ledger.shard(self.number)).remove(&self.number);
    }
}

impl fmt::Debug for ByteLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteLedger").field("total", &self.0.total).finish_non_exhaustive()
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[derive(Default)]
    struct Stream {
        held: AtomicUsize,
    }

    impl Holder for Stream {
        fn held(&self) -> usize {
            self.held.load(Ordering::Relaxed)
        }

        fn give_way(&self) -> bool {
            self.held.swap(0, Ordering::Relaxed) > 0
        }
    }

    fn stream(held: usize) -> Arc<Stream> {
        Arc::new(Stream { held: AtomicUsize::new(held) })
    }

    fn tenant(name: &str) -> Owner {
        Owner::Tenant(name.into())
    }

    #[test]
    fn only_the_owner_that_holds_the_most_gives_way() {
        let ledger = ByteLedger::new(1000);
        let calm: Vec<_> = (0..20).map(|_| stream(10)).collect();
        let flood: Vec<_> = (0..9).map(|_| stream(100)).collect();
        let mut registered: Vec<_> =
            calm.iter().map(|stream| ledger.register(Owner::flow("prod", "alice"), stream)).collect();
        registered.extend(flood.iter().map(|stream| ledger.register(tenant("b"), stream)));
        let gave_way = BTreeMap::from([(tenant("b"), Ended { holders: 4, bytes: 400 })]);
        assert_eq!(ledger.sample(), Sample { held: 1100, gave_way });
        assert!(calm.iter().all(|stream| stream.held() == 10));
        assert_eq!(ledger.sample(), Sample { held: 700, gave_way: BTreeMap::new() });
        ledger.set_total(0);
        assert_eq!(ledger.sample().gave_way.len(), 2);
        assert!(ledger.held().values().all(|held| *held == 0));
    }

    fn network(number: u8) -> Owner {
        Owner::Network([10, 0, number, 1].into())
    }

    #[test]
    fn many_networks_give_way_before_a_tenant_that_holds_more_than_each_of_them() {
        let ledger = ByteLedger::new(1000);
        let of_tenant = stream(300);
        let strangers: Vec<_> =
            (0..80).map(|number| (network(number), stream(if number == 0 { 20 } else { 10 }))).collect();
        let mut registered = vec![ledger.register(tenant("a"), &of_tenant)];
        registered.extend(strangers.iter().map(|(owner, stream)| ledger.register(owner.clone(), stream)));
        let sample = ledger.sample();
        assert_eq!(of_tenant.held(), 300);
        assert_eq!(sample.gave_way.values().map(|ended| ended.bytes).sum::<usize>(), 360);
        assert_eq!(sample.gave_way.get(&network(0)), Some(&Ended { holders: 1, bytes: 20 }));
        drop(registered);
    }

    #[test]
    fn few_networks_stay_when_a_tenant_holds_more_than_all_of_them() {
        let ledger = ByteLedger::new(1000);
        let (flood, calm) = ([stream(500), stream(500)], [stream(100), stream(50)]);
        let mut registered: Vec<_> =
            flood.iter().map(|stream| ledger.register(tenant("b"), stream)).collect();
        registered.extend((0..).zip(&calm).map(|(number, stream)| ledger.register(network(number), stream)));
        assert_eq!(
            ledger.sample().gave_way,
            BTreeMap::from([(tenant("b"), Ended { holders: 1, bytes: 500 })])
        );
        assert_eq!((calm[0].held(), calm[1].held()), (100, 50));
        drop(registered);
    }

    #[test]
    fn a_holder_counts_for_its_present_owner() {
        let ledger = ByteLedger::new(1000);
        let stream = stream(5);
        let registered = ledger.register(Owner::Network([10, 0, 0, 1].into()), &stream);
        registered.set_owner(tenant("a"));
        assert_eq!((ledger.held(), ledger.registered()), (BTreeMap::from([(tenant("a"), 5)]), 1));
        drop(registered);
        assert_eq!((ledger.held(), ledger.registered()), (BTreeMap::new(), 0));
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let ledger = ByteLedger::new(1000);
        let (one, two) = (stream(1), stream(1));
        let registered = [ledger.register(tenant("a"), &one), ledger.register(tenant("a"), &two)];
        drop(one);
        assert_eq!(ledger.held(), BTreeMap::from([(tenant("a"), 1)]));
        drop(registered);
        assert!(ledger.held().is_empty() && ledger.0.shards.iter().all(|shard| lock(shard).is_empty()));
    }

    proptest! {
        // Random owners with random streams: enough is free afterwards, and no party gave way that held less than another one
        // still holds; all networks are one party, of which none gave way that held less than another one still holds.
        #[test]
        fn a_party_that_gives_way_held_at_least_as_much_as_any_that_did_not(
            streams in proptest::collection::vec((any::<bool>(), 0_u8..5, 0_usize..300), 0..60),
            total in 0_usize..3000,
        ) {
            let ledger = ByteLedger::new(total);
            let owner = |is_network, number: u8| if is_network { network(number) } else { tenant(&number.to_string()) };
            let streams: Vec<_> = streams.into_iter().map(|(net, number, held)| (owner(net, number), stream(held))).collect();
            let registered: Vec<_> = streams.iter().map(|(owner, stream)| ledger.register(owner.clone(), stream)).collect();
            let before = ledger.held();
            let sample = ledger.sample();
            let after = ledger.held();
            prop_assert_eq!(sample.held, before.values().sum::<usize>());
            prop_assert_eq!(sample.gave_way.is_empty(), sample.held <= total);
            if !sample.gave_way.is_empty() {
                prop_assert!(after.values().sum::<usize>() <= total / 100 * RELIEVED_PERCENT);
                let (parties_before, parties_after) = (by_party(&before), by_party(&after));
                let most_kept = parties_after.values().max().copied().unwrap_or_default();
                let of_networks = |(owner, held): (&Owner, &usize)| matches!(owner, Owner::Network(_)).then_some(*held);
                let most_of_network = after.iter().filter_map(of_networks).max().unwrap_or_default();
                for (owner, gave) in sample.gave_way {
                    prop_assert_eq!(before[&owner] - after[&owner], gave.bytes);
                    prop_assert!(parties_before[&party(&owner)] >= most_kept);
                    prop_assert!(!matches!(owner, Owner::Network(_)) || before[&owner] >= most_of_network);
                }
            }
            drop(registered);
        }
    }

    /// All networks are one.
    fn party(owner: &Owner) -> Option<Owner> {
        (!matches!(owner, Owner::Network(_))).then(|| owner.clone())
    }

    fn by_party(owners: &BTreeMap<Owner, usize>) -> BTreeMap<Option<Owner>, usize> {
        let mut parties = BTreeMap::new();
        for (owner, held) in owners {
            *parties.entry(party(owner)).or_default() += held;
        }
        parties
    }
}
