//! A queue with a lane for each owner: lanes take turns, and when the queue is full the longest lane loses an item.
//!
//! Every operation is at most logarithmic in the number of lanes.

use std::collections::{BTreeMap, VecDeque};

use crate::Owner;
use crate::weights::Weights;

/// Items by owner, bounded in number by its user: see [`TurnQueue::drop_of_longest`].
#[derive(Debug)]
pub struct TurnQueue<T, O = Owner> {
    /// The lane of each owner; no lane is empty.
    lanes: BTreeMap<O, VecDeque<T>>,
    /// The owners with items, in the order in which they are served.
    turns: VecDeque<O>,
    lengths: Weights<O>,
    len: usize,
}

/// Which end of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The item that has waited longest.
    Oldest,
    /// The item that came last.
    Newest,
}

impl<T, O> Default for TurnQueue<T, O> {
    fn default() -> Self {
        Self { lanes: BTreeMap::new(), turns: VecDeque::new(), lengths: Weights::default(), len: 0 }
    }
}

impl<T, O: Ord + Clone> TurnQueue<T, O> {
    /// The number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of items of the owner whose turn is next.
    pub fn len_of_next(&self) -> usize {
        self.turns.front().and_then(|owner| self.lanes.get(owner)).map_or(0, VecDeque::len)
    }

    /// Adds an item to the lane of its owner.
    pub fn push(&mut self, owner: O, item: T) {
        let lane = self.lanes.entry(owner.clone()).or_default();
        let before = lane.len();
        lane.push_back(item);
        self.lengths.change(&owner, before, before + 1);
        self.len += 1;
        if before == 0 {
            self.turns.push_back(owner);
        }
    }

    /// Takes an item of the next owner, whose next turn comes after that of all others.
    pub fn take(&mut self, end: End) -> Option<T> {
        let owner = self.turns.pop_front()?;
        let item = self.pop(&owner, end);
        if self.lanes.contains_key(&owner) {
            self.turns.push_back(owner);
        }
        item
    }

    /// Removes an item of the longest lane. If every lane has one item, it is that of the next owner, which has waited longest.
    pub fn drop_of_longest(&mut self, end: End) -> Option<T> {
        match self.lengths.heaviest()? {
            (1, _) => self.take(end),
            (_, owner) => {
                let owner = owner.clone();
                self.pop(&owner, end)
            }
        }
    }

    fn pop(&mut self, owner: &O, end: End) -> Option<T> {
        let lane = self.lanes.get_mut(owner)?;
        let before = lane.len();
        let item = match end {
            End::Oldest => lane.pop_front(),
            End::Newest => lane.pop_back(),
        }?;
        self.lengths.change(owner, before, before - 1);
        if lane.is_empty() {
            self.lanes.remove(owner);
        }
        self.len -= 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn owners_take_turns_and_the_longest_lane_loses() {
        let mut queue = TurnQueue::default();
        (0..5).for_each(|item| queue.push("flood", ("flood", item)));
        queue.push("calm", ("calm", 0));
        assert_eq!(queue.drop_of_longest(End::Newest), Some(("flood", 4)));
        assert_eq!(queue.drop_of_longest(End::Oldest), Some(("flood", 0)));
        let taken: Vec<_> = std::iter::from_fn(|| queue.take(End::Oldest)).collect();
        assert_eq!(taken, [("flood", 1), ("calm", 0), ("flood", 2), ("flood", 3)]);
        assert!(queue.is_empty() && queue.lanes.is_empty() && queue.lengths.is_empty());
    }

    #[test]
    fn of_equal_lanes_the_one_that_waits_longest_loses() {
        let mut queue = TurnQueue::default();
        for owner in ["a", "b", "c"] {
            queue.push(owner, owner);
        }
        assert_eq!(queue.drop_of_longest(End::Oldest), Some("a"));
        assert_eq!(queue.take(End::Oldest), Some("b"));
    }

    proptest! {
        // Random owners push and a bounded queue drops: no owner within its part of the bound loses anything, and between
        // two items of one owner every other one with items has a turn.
        #[test]
        fn an_owner_that_floods_takes_nothing_from_the_others(
            pushes in proptest::collection::vec((any::<bool>(), 0_u8..6), 1..400)
        ) {
            const BOUND: usize = 60;
            let mut queue = TurnQueue::default();
            let mut held: HashMap<u8, Vec<usize>> = HashMap::new();
            for (number, (floods, owner)) in pushes.into_iter().enumerate() {
                let owner = if floods { 0 } else { owner };
                queue.push(owner, (owner, number));
                held.entry(owner).or_default().push(number);
                while queue.len() > BOUND {
                    let longest = held.values().map(Vec::len).max().unwrap();
                    let (owner, dropped) = queue.drop_of_longest(End::Newest).unwrap();
                    prop_assert_eq!(held[&owner].len(), longest);
                    held.get_mut(&owner).unwrap().retain(|number| *number != dropped);
                }
            }
            let mut last: Option<u8> = None;
            while let Some((owner, number)) = queue.take(End::Oldest) {
                prop_assert_eq!(held.get_mut(&owner).unwrap().remove(0), number, "in order");
                let others_wait = held.iter().any(|(other, items)| *other != owner && !items.is_empty());
                prop_assert!(last != Some(owner) || !others_wait, "every other owner has a turn between two of one");
                last = Some(owner);
            }
            prop_assert!(held.values().all(Vec::is_empty));
        }
    }
}
