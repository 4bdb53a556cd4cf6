//! Places that are held for as long as their owners like, such as connections. When all are taken, the owner with the most
//! gives one up for an owner that has fewer.
//!
//! This module only keeps who holds what. How many places there are, and which one of the largest owner's gives way, its user
//! decides: see [`Seats::largest`] and [`Seats::of`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::{Owner, OwnerKey};

/// What owners hold. Each operation takes O(log n).
#[derive(Debug)]
pub struct Seats<T, O = Owner> {
    owners: HashMap<O, BTreeMap<SeatId, T>>,
    /// The owners by the number of their seats, and among equal ones by their oldest seat, the oldest last.
    by_size: BTreeMap<(usize, Reverse<SeatId>), O>,
    next: u64,
    len: usize,
}

/// Names a seat; later ones are larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeatId(u64);

impl<T, O> Default for Seats<T, O> {
    fn default() -> Self {
        Self { owners: HashMap::new(), by_size: BTreeMap::new(), next: 0, len: 0 }
    }
}

impl<T, O: OwnerKey> Seats<T, O> {
    /// The number of seats that are taken.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is taken.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of seats of one owner.
    pub fn len_of(&self, owner: &O) -> usize {
        self.owners.get(owner).map_or(0, BTreeMap::len)
    }

    /// The seats of one owner, the oldest first.
    pub fn of(&self, owner: &O) -> impl DoubleEndedIterator<Item = (SeatId, &T)> {
        self.owners.get(owner).into_iter().flatten().map(|(seat, item)| (*seat, item))
    }

    /// The owner with the most seats, and their number. Among equal ones, the one that holds its oldest seat for longest.
    pub fn largest(&self) -> Option<(&O, usize)> {
        self.by_size.last_key_value().map(|((len, _), owner)| (owner, *len))
    }

    /// Takes a seat.
    pub fn take(&mut self, owner: &O, item: T) -> SeatId {
        let seat = SeatId(self.next);
        self.next += 1;
        self.change(owner, |seats| seats.insert(seat, item));
        self.len += 1;
        seat
    }

    /// Gives up a seat, if it is still taken.
    pub fn give_up(&mut self, owner: &O, seat: SeatId) -> Option<T> {
        if !self.owners.contains_key(owner) {
            return None;
        }
        let item = self.change(owner, |seats| seats.remove(&seat));
        self.len -= usize::from(item.is_some());
        item
    }

    /// Changes the seats of an owner, and its position in the index. Forgets an owner without a seat.
    fn change<R>(&mut self, owner: &O, change: impl FnOnce(&mut BTreeMap<SeatId, T>) -> R) -> R {
        let seats = self.owners.entry(owner.clone()).or_default();
        if let Some(key) = size(seats) {
            self.by_size.remove(&key);
        }
        let result = change(seats);
        match size(seats) {
            Some(key) => drop(self.by_size.insert(key, owner.clone())),
            None => drop(self.owners.remove(owner)),
        }
        result
    }
}

fn size<T>(seats: &BTreeMap<SeatId, T>) -> Option<(usize, Reverse<SeatId>)> {
    seats.first_key_value().map(|(oldest, _)| (seats.len(), Reverse(*oldest)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn the_largest_owner_is_known_and_among_equal_ones_the_oldest() {
        let mut seats = Seats::default();
        let first = seats.take(&"a", 1);
        seats.take(&"b", 2);
        assert_eq!(seats.largest(), Some((&"a", 1)));
        let second = seats.take(&"b", 3);
        assert_eq!(seats.largest(), Some((&"b", 2)));
        assert_eq!(seats.of(&"b").map(|(_, item)| *item).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(seats.give_up(&"b", second), Some(3));
        assert_eq!((seats.give_up(&"b", second), seats.give_up(&"c", second)), (None, None));
        assert_eq!(seats.give_up(&"a", first), Some(1));
        assert_eq!((seats.len(), seats.len_of(&"a"), seats.len_of(&"b")), (1, 0, 1));
        assert_eq!(
            (seats.owners.len(), seats.by_size.len()),
            (1, 1),
            "nothing is kept of owners without a seat"
        );
    }

    proptest! {
        // Random owners, of which one takes a seat again and again. Whoever comes when all are taken displaces the largest
        // owner, if that has more than the newcomer would have: an owner within an equal part of the seats never loses one.
        #[test]
        fn an_owner_that_takes_all_seats_gives_way_to_the_others(steps in proptest::collection::vec((0_u8..4, any::<bool>()), 1..200)) {
            const ALL: usize = 20;
            let mut seats = Seats::<u8, u8>::default();
            let mut calm: HashMap<u8, Vec<SeatId>> = HashMap::new();
            for (of, ends) in steps {
                while seats.len() < ALL {
                    seats.take(&9, 9);
                }
                let held = calm.entry(of).or_default();
                if ends {
                    let seat = held.pop();
                    prop_assert_eq!(seat.map(|seat| seats.give_up(&of, seat)), seat.map(|_| Some(of)));
                } else if held.len() < ALL / 5 {
                    let (largest, len) = seats.largest().map(|(owner, len)| (*owner, len)).unwrap();
                    prop_assert!(largest == 9 || len <= held.len() + 1);
                    if len > held.len() + 1 {
                        let (newest, _) = seats.of(&largest).next_back().unwrap();
                        seats.give_up(&largest, newest);
                        held.push(seats.take(&of, of));
                    }
                }
                for (of, held) in &calm {
                    prop_assert_eq!(seats.len_of(of), held.len());
                }
            }
        }
    }
}
