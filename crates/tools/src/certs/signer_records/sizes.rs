//! What the namespaces of a cluster have of an index, which is bounded.

use std::collections::HashMap;

use serde::Deserialize;

use super::MAX_INDEX;

/// The bytes of an index, by the namespaces of the pods whose certificates are in it.
///
/// A namespace may have as much as is free. So one namespace that takes all that it gets has half of the index, two have a third
/// each, and a part of the same size is left for the others, however many there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexSizes {
    namespaces: HashMap<String, u64>,
    total: u64,
}

/// What a line says of its size's owner.
#[derive(Deserialize)]
struct OwnedLine {
    pod: Option<LinePod>,
}

#[derive(Deserialize)]
struct LinePod {
    namespace: String,
}

impl IndexSizes {
    /// Of the text of an index. Lines of certificates that no pod has, and lines that cannot be read, belong to no namespace.
    pub(super) fn of(text: &str) -> Self {
        let mut sizes = Self::default();
        for line in text.split_inclusive('\n') {
            let owner = serde_json::from_str::<OwnedLine>(line).ok().and_then(|line| line.pod);
            let size = u64::try_from(line.len()).unwrap_or(u64::MAX);
            match owner {
                Some(pod) => sizes.add(&pod.namespace, size),
                None => sizes.total = sizes.total.saturating_add(size),
            }
        }
        sizes
    }

    /// Adds a line.
    pub fn add(&mut self, namespace: &str, size: u64) {
        self.total = self.total.saturating_add(size);
        match self.namespaces.get_mut(namespace) {
            Some(own) => *own = own.saturating_add(size),
            None => drop(self.namespaces.insert(namespace.to_owned(), size)),
        }
    }

    /// Whether the namespace may have another line. Says yes if the index is full: that is an error for all.
    pub fn admits(&self, namespace: &str) -> bool {
        let own = self.namespaces.get(namespace).copied().unwrap_or(0);
        self.total >= MAX_INDEX || own < MAX_INDEX - self.total
    }

    /// The size of the index, in bytes.
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Namespaces that take all that they get, in any order and with lines of any size, leave a part for each other.
        #[test]
        fn namespaces_that_flood_leave_a_part_for_the_others(
            floods in 1_usize..6,
            turns in prop::collection::vec((0_usize..6, 1_u64..100_000), 10_000),
        ) {
            let mut sizes = IndexSizes::default();
            for (turn, size) in turns.iter().cycle().take(100_000) {
                let namespace = format!("flood-{}", turn % floods);
                if sizes.admits(&namespace) {
                    sizes.add(&namespace, *size);
                }
            }
            let part = MAX_INDEX / (floods as u64 + 1);
            // Each may be over by its last line.
            let free = MAX_INDEX.saturating_sub(sizes.total());
            prop_assert!(free + 100_000 * floods as u64 >= part, "{free} of {MAX_INDEX} with {floods}");
            for namespace in 0..floods {
                prop_assert!(!sizes.admits(&format!("flood-{namespace}")));
            }
            prop_assert!(sizes.admits("quiet"));
        }
    }

    #[test]
    fn lines_belong_to_the_namespaces_of_their_pods() {
        let of = |namespace: &str| {
            format!("{{\"serial\":\"01\",\"pod\":{{\"namespace\":\"{namespace}\",\"name\":\"p\"}}}}\n")
        };
        let text =
            [of("a"), of("b"), of("a"), "{\"serial\":\"02\"}\n".to_owned(), "no entry".to_owned()].concat();
        let sizes = IndexSizes::of(&text);
        assert_eq!(sizes.total(), text.len() as u64);
        let expected = [("a", of("a").len() * 2), ("b", of("b").len())];
        assert_eq!(sizes.namespaces, expected.map(|(name, size)| (name.to_owned(), size as u64)).into());
    }

    #[test]
    fn a_full_index_is_no_matter_of_shares() {
        let mut sizes = IndexSizes::default();
        sizes.add("a", MAX_INDEX);
        assert!(sizes.admits("a") && sizes.admits("b"));
    }
}
