//! Which cluster the endpoints of a backend belong to, by the UID of an object that all API servers of a cluster share.
//! An endpoint of another cluster is refused: its requests would be decided and stored there.
//!
//! The first decision is that of the majority, so that it does not depend on which endpoint answers first; without one,
//! the configuration's order decides. It then stays, also over a reload for the same cluster.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use portcullis_system::sync::lock;

/// How long the first decision waits for endpoints that have not been checked yet.
const DECISION_TIMEOUT: Duration = Duration::from_secs(3);

/// The object whose UID identifies a cluster. Endpoints are compared by the same object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IdentityObject {
    /// The ConfigMap with the identity headers, which the self-check reads in any case.
    AuthenticationConfigMap,
    /// The namespace `kube-system`, for a gateway that has a token and no certificate.
    KubeSystem,
}

impl IdentityObject {
    /// The object, for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AuthenticationConfigMap => "ConfigMap kube-system/extension-apiserver-authentication",
            Self::KubeSystem => "namespace kube-system",
        }
    }
}

/// The UIDs seen at the endpoints of one backend.
#[derive(Debug, Default)]
pub(crate) struct ClusterIdentity(Mutex<BTreeMap<IdentityObject, Seen>>);

#[derive(Debug, Clone, Default)]
struct Seen {
    /// The UID of the cluster, once decided.
    cluster: Option<String>,
    /// The UID that each endpoint has shown before the decision, and each member after it, by address.
    shown: BTreeMap<String, String>,
    /// When an endpoint has first shown a UID.
    since: Option<Instant>,
}

/// An endpoint beside the one that is checked.
#[derive(Debug, Clone)]
pub(crate) struct PeerEndpoint {
    /// Its address.
    pub(crate) address: String,
    /// Whether a self-check of it has ended.
    pub(crate) is_checked: bool,
    /// Whether it is trusted.
    pub(crate) is_trusted: bool,
}

/// Why an endpoint is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// Other endpoints have not been checked yet.
    Undecided,
    /// It belongs to another cluster.
    OtherCluster(OtherCluster),
}

/// An endpoint belongs to another cluster than the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherCluster {
    /// The object.
    pub(crate) object: IdentityObject,
    /// The UID of the cluster.
    pub(crate) expected: String,
    /// The UID of the endpoint's.
    pub(crate) found: String,
    /// Whether the endpoint was a member. Then the object may have been created again, and the trusted members are to be
    /// checked.
    pub(crate) was_member: bool,
}

impl ClusterIdentity {
    /// The same UIDs, for the endpoints of new settings for the same cluster.
    pub(crate) fn inherit(&self, before: &Self) {
        let seen = lock(&before.0).clone();
        *lock(&self.0) = seen;
    }

    /// Checks the UID that the endpoint at `address` has shown. `all` are the endpoints in the configuration's order, with
    /// this one. After the decision, a new UID is accepted only from a member, when no other member that is trusted still
    /// shows the old one: the object was created again, or all that is left of the cluster is new. An endpoint that never
    /// was a member cannot take over, even while all members are down.
    // threat: mixed-clusters
    pub(crate) fn admit(
        &self,
        object: IdentityObject,
        address: &str,
        found: &str,
        all: &[PeerEndpoint],
    ) -> Result<(), NotAdmitted> {
        let mut objects = lock(&self.0);
        let seen = objects.entry(object).or_default();
        let Some(expected) = seen.cluster.clone() else {
            seen.shown.insert(address.to_owned(), found.to_owned());
            let decided = seen.decide(all).ok_or(NotAdmitted::Undecided)?;
            seen.shown.retain(|_, uid| *uid == decided);
            seen.cluster = Some(decided.clone());
            return refuse_other(object, decided, found, false);
        };
        if expected == found {
            seen.shown.insert(address.to_owned(), found.to_owned());
            // Those that discovery has found once are not remembered forever.
            if seen.shown.len() > 2 * all.len() {
                seen.shown.retain(|shown, _| all.iter().any(|peer| peer.address == *shown));
            }
            return Ok(());
        }
        let was_member = seen.shown.contains_key(address);
        if was_member {
            seen.shown.insert(address.to_owned(), found.to_owned());
        }
        let shows_old = |peer: &PeerEndpoint| {
            let shown = seen.shown.get(&peer.address);
            peer.address != address && peer.is_trusted && shown.is_some_and(|uid| *uid == expected)
        };
        if !was_member || all.iter().any(shows_old) {
            return refuse_other(object, expected, found, was_member);
        }
        seen.cluster = Some(found.to_owned());
        Ok(())
    }
}

/// Refuses an endpoint that shows another UID than the cluster's.
fn refuse_other(
    object: IdentityObject,
    expected: String,
    found: &str,
    was_member: bool,
) -> Result<(), NotAdmitted> {
    if expected == found {
        return Ok(());
    }
    let found = found.to_owned();
    Err(NotAdmitted::OtherCluster(OtherCluster { object, expected, found, was_member }))
}

impl Seen {
    /// The UID that most endpoints show, and among equals that of the first in the configuration. `None` if endpoints that
    /// are not checked yet could change it, and there is still time.
    fn decide(&mut self, all: &[PeerEndpoint]) -> Option<String> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let mut votes: Vec<(&str, usize)> = Vec::new();
        let mut open = 0;
        for peer in all {
            match self.shown.get(&peer.address) {
                Some(uid) => match votes.iter_mut().find(|(voted, _)| voted == uid) {
                    Some((_, count)) => *count += 1,
                    None => votes.push((uid, 1)),
                },
                None => open += usize::from(!peer.is_checked),
            }
        }
        let most = votes.iter().map(|(_, count)| *count).max()?;
        let (first, _) = votes.iter().find(|(_, count)| *count == most)?;
        let is_final = open == 0 || 2 * most > all.len() || since.elapsed() >= DECISION_TIMEOUT;
        is_final.then(|| (*first).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: IdentityObject = IdentityObject::AuthenticationConfigMap;

    /// Endpoints by name, `(is_checked, is_trusted)` each.
    fn peers(states: [(bool, bool); 3]) -> Vec<PeerEndpoint> {
        let peer = |(name, (is_checked, is_trusted)): (&str, (bool, bool))| PeerEndpoint {
            address: name.to_owned(),
            is_checked,
            is_trusted,
        };
        ["one", "two", "three"].into_iter().zip(states).map(peer).collect()
    }

    fn down() -> Vec<PeerEndpoint> {
        peers([(true, false); 3])
    }

    fn up() -> Vec<PeerEndpoint> {
        peers([(true, true); 3])
    }

    fn admitted(identity: &ClusterIdentity, name: &str, uid: &str, all: &[PeerEndpoint]) -> &'static str {
        match identity.admit(OBJECT, name, uid, all) {
            Ok(()) => "yes",
            Err(NotAdmitted::Undecided) => "undecided",
            Err(NotAdmitted::OtherCluster(other)) if other.was_member => "changed",
            Err(NotAdmitted::OtherCluster(_)) => "other",
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_majority_decides_whichever_endpoint_answers_first() {
        let orders = [["one", "two", "three"], ["two", "three", "one"], ["three", "one", "two"]];
        for order in orders {
            let identity = ClusterIdentity::default();
            let unchecked = peers([(false, false); 3]);
            let uid = |name: &str| if name == "one" { "wrong" } else { "a" };
            for name in order {
                admitted(&identity, name, uid(name), &unchecked);
            }
            let again = order.map(|name| (name, admitted(&identity, name, uid(name), &unchecked)));
            for (name, outcome) in again {
                assert_eq!(outcome, if name == "one" { "other" } else { "yes" }, "{order:?} {name}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_majority_the_order_of_the_configuration_decides() {
        let identity = ClusterIdentity::default();
        let unchecked = peers([(false, false), (false, false), (true, false)]);
        assert_eq!(admitted(&identity, "two", "b", &unchecked), "undecided");
        assert_eq!(admitted(&identity, "one", "a", &unchecked), "yes");
        assert_eq!(admitted(&identity, "two", "b", &unchecked), "other");
    }

    #[tokio::test(start_paused = true)]
    async fn the_decision_does_not_wait_for_endpoints_that_are_down_or_silent() {
        let identity = ClusterIdentity::default();
        assert_eq!(admitted(&identity, "three", "a", &down()), "yes");
        let identity = ClusterIdentity::default();
        let silent = peers([(false, false), (true, false), (false, false)]);
        assert_eq!(admitted(&identity, "three", "a", &silent), "undecided");
        tokio::time::advance(DECISION_TIMEOUT).await;
        assert_eq!(admitted(&identity, "three", "a", &silent), "yes");
    }

    #[test]
    fn an_endpoint_of_another_cluster_is_refused_even_while_the_others_are_down() {
        let identity = ClusterIdentity::default();
        for name in ["one", "two"] {
            assert_eq!(admitted(&identity, name, "a", &up()), "yes");
        }
        for all in [up(), down()] {
            assert_eq!(admitted(&identity, "three", "b", &all), "other", "{all:?}");
        }
        assert_eq!(admitted(&identity, "one", "a", &down()), "yes");
        // New settings for the same cluster.
        let next = ClusterIdentity::default();
        next.inherit(&identity);
        assert_eq!(admitted(&next, "four", "b", &down()), "other");
        assert_eq!(admitted(&next, "four", "a", &down()), "yes");
    }

    #[test]
    fn an_object_that_was_created_again_is_accepted_once_all_trusted_members_show_it() {
        let identity = ClusterIdentity::default();
        for name in ["one", "two", "three"] {
            assert_eq!(admitted(&identity, name, "a", &up()), "yes");
        }
        assert_eq!(admitted(&identity, "one", "b", &up()), "changed");
        assert_eq!(admitted(&identity, "two", "b", &up()), "changed", "the third still shows the old one");
        assert_eq!(admitted(&identity, "three", "b", &up()), "yes");
        for name in ["one", "two", "three"] {
            assert_eq!(admitted(&identity, name, "b", &up()), "yes");
        }
        assert_eq!(admitted(&identity, "one", "a", &up()), "changed");
    }

    #[test]
    fn endpoints_are_compared_by_the_same_object_and_few_are_remembered() {
        let identity = ClusterIdentity::default();
        assert_eq!(admitted(&identity, "one", "a", &down()), "yes");
        assert_eq!(identity.admit(IdentityObject::KubeSystem, "two", "n", &down()), Ok(()));
        assert_eq!(admitted(&identity, "two", "n", &down()), "other");
        for number in 0..1000 {
            assert_eq!(admitted(&identity, &format!("10.0.0.{number}"), "a", &down()), "yes");
        }
        assert!(lock(&identity.0)[&OBJECT].shown.len() <= 7);
    }
}
