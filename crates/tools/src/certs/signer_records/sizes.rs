//! What the namespaces of a cluster have of the records of a signer, which are bounded.

use std::collections::HashMap;

use serde::Deserialize;

use super::{MAX_INDEX, MAX_REVOKED};

/// The sizes of the two records, by namespace.
///
/// A namespace may have as much as is free: one that takes all that it gets has half of a record, and each further one at most half of
/// what those before it have left. So something is left for the others, however many there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordSizes {
    index: NamespaceSizes,
    revoked: NamespaceSizes,
}

/// A record of a signer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignerRecord {
    /// The index of its certificates.
    Index,
    /// What is revoked of them.
    Revoked,
}

impl SignerRecord {
    /// The records.
    pub const ALL: [Self; 2] = [Self::Index, Self::Revoked];

    /// The name in metrics and in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Revoked => "revoked",
        }
    }

    fn limit(self) -> u64 {
        match self {
            Self::Index => MAX_INDEX,
            Self::Revoked => MAX_REVOKED,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NamespaceSizes {
    namespaces: HashMap<String, u64>,
    total: u64,
}

/// What a line says of its owner.
#[derive(Deserialize)]
struct OwnedLine {
    /// In the index.
    pod: Option<LinePod>,
    /// In the record of revocations.
    namespace: Option<String>,
}

#[derive(Deserialize)]
struct LinePod {
    namespace: String,
}

impl RecordSizes {
    /// Of the texts of the index and of the record of revocations.
    pub(super) fn of(index: &str, revoked: &str) -> Self {
        Self { index: NamespaceSizes::of(index), revoked: NamespaceSizes::of(revoked) }
    }

    /// Adds a line of the index.
    pub fn add(&mut self, namespace: &str, size: u64) {
        self.index.add(namespace, size);
    }

    /// The record in which the namespace may have no further line. A full record refuses no namespace here: it is
    /// an error for all of them.
    pub fn refuses(&self, namespace: &str) -> Option<SignerRecord> {
        SignerRecord::ALL
            .into_iter()
            .find(|record| !self.of_record(*record).admits(namespace, record.limit()))
    }

    /// The size of a record, in bytes.
    pub fn total(&self, record: SignerRecord) -> u64 {
        self.of_record(record).total
    }

    fn of_record(&self, record: SignerRecord) -> &NamespaceSizes {
        match record {
            SignerRecord::Index => &self.index,
            SignerRecord::Revoked => &self.revoked,
        }
    }
}

impl NamespaceSizes {
    /// Lines of certificates that no pod has, and lines that cannot be read, belong to no namespace.
    fn of(text: &str) -> Self {
        let mut sizes = Self::default();
        for line in text.split_inclusive('\n') {
            let owner = serde_json::from_str::<OwnedLine>(line).ok();
            let owner = owner.and_then(|line| line.namespace.or(line.pod.map(|pod| pod.namespace)));
            let size = u64::try_from(line.len()).unwrap_or(u64::MAX);
            match owner {
                Some(namespace) => sizes.add(&namespace, size),
                None => sizes.total = sizes.total.saturating_add(size),
            }
        }
        sizes
    }

    fn add(&mut self, namespace: &str, size: u64) {
        self.total = self.total.saturating_add(size);
        match self.namespaces.get_mut(namespace) {
            Some(own) => *own = own.saturating_add(size),
            None => drop(self.namespaces.insert(namespace.to_owned(), size)),
        }
    }

    // threat: pod-index-flood
    fn admits(&self, namespace: &str, limit: u64) -> bool {
        let own = self.namespaces.get(namespace).copied().unwrap_or(0);
        self.total >= limit || own < limit - self.total
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
            turns in prop::collection::vec((0_usize..6, 1_u64..100_000), 1000),
        ) {
            let mut sizes = RecordSizes::default();
            for (turn, size) in turns.iter().cycle().take(20_000) {
                let namespace = format!("flood-{}", turn % floods);
                if sizes.refuses(&namespace).is_none() {
                    sizes.add(&namespace, *size);
                }
            }
            let (all, floods) = (sizes.total(SignerRecord::Index), u64::try_from(floods).unwrap());
            // Each may be over by its last line.
            let free = MAX_INDEX.saturating_sub(all);
            prop_assert!(free + 100_000 * floods >= MAX_INDEX >> floods, "{free} is free with {floods}");
            for namespace in 0..floods {
                prop_assert_eq!(sizes.refuses(&format!("flood-{namespace}")), Some(SignerRecord::Index));
            }
            prop_assert_eq!(sizes.refuses("quiet"), None);
        }
    }

    #[test]
    fn lines_belong_to_the_namespaces_of_their_pods() {
        let issued =
            |namespace: &str| format!("{{\"pod\":{{\"namespace\":\"{namespace}\",\"name\":\"p\"}}}}\n");
        let revoked = |namespace: &str| format!("{{\"serial\":\"01\",\"namespace\":\"{namespace}\"}}\n");
        let kinds: [fn(&str) -> String; 2] = [issued, revoked];
        for of in kinds {
            let others = ["{\"serial\":\"02\"}\n".to_owned(), "no record".to_owned()].concat();
            let text = [of("a"), of("b"), of("a"), others].concat();
            let sizes = NamespaceSizes::of(&text);
            let size = |text: &str| u64::try_from(text.len()).unwrap();
            assert_eq!(sizes.total, size(&text));
            let expected = [("a", size(&of("a")) * 2), ("b", size(&of("b")))];
            assert_eq!(sizes.namespaces, expected.map(|(name, size)| (name.to_owned(), size)).into());
        }
    }

    #[test]
    fn each_record_has_shares_and_a_full_one_is_no_matter_of_them() {
        let mut sizes = RecordSizes::default();
        sizes.revoked.add("a", MAX_REVOKED / 2);
        assert_eq!(sizes.refuses("a"), Some(SignerRecord::Revoked));
        assert_eq!(sizes.refuses("b"), None);
        sizes.revoked.add("b", MAX_REVOKED / 2);
        assert_eq!((sizes.refuses("a"), sizes.refuses("b")), (None, None));
    }
}
