//! Who holds how much of something bounded: the heaviest one, and what the heavy ones can give up for a lighter one.
//!
//! The rule of all that gives way here: a newcomer gets what it lacks from those that hold more than it would hold then. So
//! one that would hold no more than its part, an n-th of the bound among n, always gets it, and nothing is ever taken from
//! one that holds no more than its part.

use std::collections::BTreeSet;

/// The weight of each key. Every operation is logarithmic in their number, but [`Weights::surplus`] looks at those that it
/// counts.
#[derive(Debug)]
pub struct Weights<K>(BTreeSet<(usize, K)>);

impl<K> Default for Weights<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord + Clone> Weights<K> {
    /// Replaces the weight `before` of a key by `after`. A weight of zero is none.
    pub fn change(&mut self, key: &K, before: usize, after: usize) {
        if before == after {
            return;
        }
        if before > 0 {
            self.0.remove(&(before, key.clone()));
        }
        if after > 0 {
            self.0.insert((after, key.clone()));
        }
    }

    /// The key with the most weight.
    pub fn heaviest(&self) -> Option<(usize, &K)> {
        self.0.last().map(|(weight, key)| (*weight, key))
    }

    /// How much those that weigh more than `kept` can give up in all if each of them keeps so much; at most `enough`.
    pub fn surplus(&self, kept: usize, enough: usize) -> usize {
        let heavier = self.0.iter().rev().map(|(weight, _)| *weight).take_while(|weight| *weight > kept);
        let mut surplus = 0_usize;
        for weight in heavier {
            surplus = surplus.saturating_add(weight - kept);
            if surplus >= enough {
                return enough;
            }
        }
        surplus
    }

    /// Whether no key has weight.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn weights(all: &BTreeMap<u8, usize>) -> Weights<u8> {
        let mut weights = Weights::default();
        for (key, weight) in all {
            weights.change(key, 0, *weight);
        }
        weights
    }

    #[test]
    fn the_heavy_ones_give_up_what_is_beyond_the_weight_of_the_newcomer() {
        let mut weights = weights(&BTreeMap::from([(1, 5), (2, 9), (3, 2)]));
        assert_eq!(weights.heaviest(), Some((9, &2)));
        let cases = [(0, 99, 16), (2, 99, 10), (5, 99, 4), (5, 3, 3), (9, 1, 0)];
        for (kept, enough, expected) in cases {
            assert_eq!(weights.surplus(kept, enough), expected, "{kept}, {enough}");
        }
        weights.change(&2, 9, 1);
        assert_eq!(weights.heaviest(), Some((5, &1)));
        for (key, weight) in [(1, 5), (2, 1), (3, 2)] {
            weights.change(&key, weight, 0);
        }
        assert!(weights.is_empty() && weights.heaviest().is_none());
    }

    proptest! {
        // One owner has as much as it likes beside random others: a newcomer within its part of the bound gets what it lacks,
        // from owners that hold more than their part alone.
        #[test]
        fn a_newcomer_within_its_part_gets_what_a_heavy_one_holds(
            others in proptest::collection::vec(1_usize..50, 0..8),
            own in 0_usize..30,
            size in 1_usize..30,
            bound in 1_usize..400,
        ) {
            let mut all: BTreeMap<u8, usize> = (1_u8..).zip(others).collect();
            let flood = bound.saturating_sub(all.values().sum::<usize>() + own);
            all.extend([(0, flood), (100, own)]);
            all.retain(|_, weight| *weight > 0);
            let mut weights = weights(&all);
            let mut missing = (all.values().sum::<usize>() + size).saturating_sub(bound);
            let owners = all.len() + usize::from(own == 0);
            let gets_it = weights.surplus(own + size, missing) >= missing;
            prop_assert!(gets_it || own + size > bound / owners);
            while gets_it && missing > 0 {
                let (heaviest, key) = weights.heaviest().map(|(weight, key)| (weight, *key)).unwrap();
                prop_assert!(heaviest > own + size && heaviest > bound / owners, "beyond its part");
                weights.change(&key, heaviest, heaviest - 1);
                missing -= 1;
            }
            prop_assert_eq!(missing > 0, !gets_it);
        }
    }
}
