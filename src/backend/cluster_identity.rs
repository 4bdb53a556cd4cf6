//! Which cluster the endpoints of a backend belong to, by the UID of an object that all API servers of a cluster share.
//! An endpoint of another cluster is refused: its requests would be decided and stored there.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::sync::lock;

/// The UIDs seen at the endpoints of one backend.
#[derive(Debug, Default)]
pub(crate) struct ClusterIdentity(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// The UID of the cluster.
    cluster: Option<String>,
    /// The UID that each member has shown last, by the endpoint's index.
    members: BTreeMap<usize, String>,
}

/// An endpoint belongs to another cluster than those trusted before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherCluster {
    /// The UID of the cluster.
    pub(crate) expected: String,
    /// The UID of the endpoint's.
    pub(crate) found: String,
    /// Whether the endpoint was a member. Then the object may have been created again, and the trusted members are to be
    /// checked.
    pub(crate) was_member: bool,
}

impl ClusterIdentity {
    /// Checks the UID that an endpoint has shown, and remembers the first one. A new UID is accepted only from a member,
    /// when no other member that is trusted still shows the old one: the object was created again, or all that is left
    /// of the cluster is new. An endpoint that never was a member cannot take over, even while all members are down.
    // threat: mixed-clusters
    pub(crate) fn admit(
        &self,
        index: usize,
        found: &str,
        is_trusted: impl Fn(usize) -> bool,
    ) -> Result<(), OtherCluster> {
        let mut seen = lock(&self.0);
        let Some(expected) = seen.cluster.clone().filter(|cluster| cluster != found) else {
            seen.cluster = Some(found.to_owned());
            seen.members.insert(index, found.to_owned());
            return Ok(());
        };
        let was_member = seen.members.contains_key(&index);
        if was_member {
            seen.members.insert(index, found.to_owned());
        }
        let shows_old = |(other, uid): (&usize, &String)| *uid == expected && is_trusted(*other);
        if !was_member || seen.members.iter().any(shows_old) {
            return Err(OtherCluster { expected, found: found.to_owned(), was_member });
        }
        seen.cluster = Some(found.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_of_another_cluster_is_refused_even_while_the_others_are_down() {
        let identity = ClusterIdentity::default();
        assert_eq!(identity.admit(0, "a", |_| false), Ok(()));
        assert_eq!(identity.admit(1, "a", |_| true), Ok(()));
        for others_are_trusted in [true, false] {
            let refused = identity.admit(2, "b", |_| others_are_trusted).unwrap_err();
            assert!(!refused.was_member, "{others_are_trusted}");
        }
        assert_eq!(identity.admit(0, "a", |_| false), Ok(()));
    }

    #[test]
    fn an_object_that_was_created_again_is_accepted_once_all_trusted_members_show_it() {
        let identity = ClusterIdentity::default();
        (0..3).for_each(|index| identity.admit(index, "a", |_| true).unwrap());
        assert!(identity.admit(0, "b", |_| true).unwrap_err().was_member);
        assert!(identity.admit(1, "b", |_| true).is_err(), "the third still shows the old one");
        assert_eq!(identity.admit(2, "b", |_| true), Ok(()));
        (0..3).for_each(|index| identity.admit(index, "b", |_| true).unwrap());
        assert!(identity.admit(0, "a", |_| true).is_err());
    }
}
