//! Clusters that are configured one by one, each in a file of its own: what is in force of each, and which of them may
//! have a name or a route that several want. A cluster that is in force keeps its own, so that a new or changed file
//! takes nothing from another cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::error::ConfigError;
use super::inputs::FileDigest;
use super::resolve::Tenant;
use super::settings::{Cluster, ClusterOrigin};

/// The most clusters that may be configured one by one.
pub(crate) const MAX_CLUSTERS: usize = 4096;

/// A value that only one cluster may have: its kind, and the value.
pub(super) type Claim = (&'static str, String);

/// The clusters of the cluster directory across loads.
#[derive(Debug, Clone, Default)]
pub(super) struct ClusterFiles {
    /// The clusters in force.
    pub(super) in_force: BTreeMap<ClusterOrigin, Arc<ResolvedCluster>>,
    /// Those of the last load, until it is in force.
    pub(super) next: Option<BTreeMap<ClusterOrigin, Arc<ResolvedCluster>>>,
    /// The clusters of the last load that keep their state in force, because their new one is refused.
    pub(super) stale: BTreeSet<ClusterOrigin>,
    /// Clusters that were valid but could not be built, with what was read for them.
    pub(super) rejected: BTreeMap<ClusterOrigin, (Recording, ConfigError)>,
    /// Clusters whose state in force cannot be built with the rest. They are not served. Counts for one attempt.
    pub(super) dropped: BTreeMap<ClusterOrigin, ConfigError>,
    /// The clusters that the last load resolved anew.
    pub(super) resolved: usize,
}

/// A cluster that is valid by itself.
#[derive(Debug)]
pub(super) struct ResolvedCluster {
    pub(super) cluster: Arc<Cluster>,
    pub(super) tenant: Tenant,
    /// Its claims, each with the key that has the value.
    pub(super) claims: BTreeMap<Claim, String>,
    pub(super) recording: Recording,
}

/// What was read to resolve a cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recording {
    pub(super) files: BTreeMap<PathBuf, Option<FileDigest>>,
    pub(super) folders: BTreeMap<PathBuf, Option<Vec<PathBuf>>>,
    /// The digest of the sections that every cluster inherits.
    pub(super) inherited: Option<FileDigest>,
    pub(super) warnings: Vec<String>,
    /// The number of warnings before.
    pub(super) warnings_before: usize,
    /// Whether the result depends on more than files.
    pub(super) is_volatile: bool,
}

impl Recording {
    /// Whether the same was read.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.files == other.files && self.folders == other.folders && self.inherited == other.inherited
    }
}

/// A cluster whose configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedCluster {
    /// What configures it.
    pub origin: ClusterOrigin,
    /// The name of the cluster that stays in force; `None`: there was none before.
    pub in_force: Option<String>,
    /// The errors.
    pub errors: Vec<ConfigError>,
}

impl ClusterFiles {
    /// The last load is in force.
    pub(super) fn commit(&mut self) {
        if let Some(next) = self.next.take() {
            self.in_force = next;
        }
    }

    /// Refuses a cluster of the last load, until a file of it changes; then its state in force, too, if that cannot be
    /// built either. Returns whether the next load leaves out something more.
    // threat: unbuildable-cluster
    pub(super) fn reject(&mut self, origin: &ClusterOrigin, error: ConfigError) -> bool {
        let loaded = self.next.as_ref().and_then(|next| next.get(origin));
        let Some(resolved) = loaded else { return false };
        if self.stale.contains(origin) {
            return self.dropped.insert(origin.clone(), error).is_none();
        }
        let rejected = self.rejected.insert(origin.clone(), (resolved.recording.clone(), error));
        !rejected.is_some_and(|(before, _)| before.is_same(&resolved.recording))
    }
}

/// A cluster that wants names and routes.
#[derive(Debug)]
pub(super) struct Contender<'a> {
    /// What it wants; `None` if it is invalid.
    pub(super) wanted: Option<&'a BTreeMap<Claim, String>>,
    /// What it has, if it is in force.
    pub(super) held: Option<&'a BTreeMap<Claim, String>>,
    /// Its name in the errors of others.
    pub(super) name: String,
}

/// What becomes of a contender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seat {
    /// It gets what it wants.
    Wanted,
    /// It keeps what it has, or has nothing; with the claim that another cluster has, and the name of that one.
    Unchanged(Option<(Claim, String)>),
}

/// Decides who gets which claims. `taken` are those of the configuration file, which no contender gets.
// threat: other-cluster
pub(super) fn seats(taken: &BTreeMap<Claim, String>, contenders: &[Contender<'_>]) -> Vec<Seat> {
    let mut owners: BTreeMap<&Claim, Option<usize>> = taken.keys().map(|claim| (claim, None)).collect();
    for (index, contender) in contenders.iter().enumerate() {
        for claim in contender.held.iter().flat_map(|held| held.keys()) {
            owners.entry(claim).or_insert(Some(index));
        }
    }
    let mut seats: Vec<Option<Seat>> = contenders
        .iter()
        .map(|contender| contender.wanted.is_none().then_some(Seat::Unchanged(None)))
        .collect();
    // Those in force first. A claim that one gives up may be what another waits for.
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    order.sort_by_key(|index| contenders.get(*index).is_some_and(|contender| contender.held.is_none()));
    let mut progress = true;
    while std::mem::take(&mut progress) {
        for &index in &order {
            let (Some(contender), Some(seat @ None)) = (contenders.get(index), seats.get_mut(index)) else {
                continue;
            };
            let Some(wanted) = contender.wanted else { continue };
            if wanted.keys().all(|claim| owners.get(claim).is_none_or(|owner| *owner == Some(index))) {
                owners.retain(|_, owner| *owner != Some(index));
                owners.extend(wanted.keys().map(|claim| (claim, Some(index))));
                *seat = Some(Seat::Wanted);
                progress = true;
            }
        }
    }
    let name = |claim: &Claim, owner: Option<usize>| match owner {
        Some(owner) => contenders.get(owner).map(|owner| owner.name.clone()),
        None => taken.get(claim).cloned(),
    };
    let refused = |(index, seat): (usize, Option<Seat>)| {
        seat.unwrap_or_else(|| {
            let wanted = contenders.get(index).and_then(|contender| contender.wanted);
            let conflict = wanted.into_iter().flat_map(|wanted| wanted.keys()).find_map(|claim| {
                let owner = owners.get(claim).filter(|owner| **owner != Some(index))?;
                Some((claim.clone(), name(claim, *owner)?))
            });
            Seat::Unchanged(conflict)
        })
    };
    seats.into_iter().enumerate().map(refused).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(names: &str) -> BTreeMap<Claim, String> {
        names.split_whitespace().map(|name| (("server name", name.to_owned()), String::new())).collect()
    }

    /// Contenders are written `held > wanted`, with `-` for none; the outcome is `+`, or the claim and its owner.
    fn outcome(taken: &str, contenders: &[&str]) -> Vec<String> {
        let given: Vec<_> = contenders
            .iter()
            .map(|text| {
                let (held, wanted) = text.split_once('>').unwrap();
                let read = |part: &str| (part.trim() != "-").then(|| claims(part));
                (read(held), read(wanted))
            })
            .collect();
        let contenders: Vec<_> = given
            .iter()
            .zip(0..)
            .map(|((held, wanted), index): (_, u32)| Contender {
                wanted: wanted.as_ref(),
                held: held.as_ref(),
                name: index.to_string(),
            })
            .collect();
        let mut taken = claims(taken);
        for key in taken.values_mut() {
            "file".clone_into(key);
        }
        let text = |seat| match seat {
            Seat::Wanted => "+".to_owned(),
            Seat::Unchanged(None) => "=".to_owned(),
            Seat::Unchanged(Some(((_, claim), owner))) => format!("{claim}:{owner}"),
        };
        seats(&taken, &contenders).into_iter().map(text).collect()
    }

    #[test]
    fn a_cluster_in_force_keeps_what_others_want() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("", &["- > a", "- > b"], &["+", "+"]),
            ("", &["- > a", "- > a b"], &["+", "a:0"]),
            // Not even a newcomer that comes first.
            ("", &["- > a", "a > a"], &["a:1", "+"]),
            ("f", &["- > f", "- > a"], &["f:file", "+"]),
            // An invalid one keeps its own, and others do not get it.
            ("", &["a > -", "- > a", "- > b"], &["=", "a:0", "+"]),
            // What one gives up, another may have at once, in any order.
            ("", &["- > a", "a > b"], &["+", "+"]),
            ("", &["a > b", "b > c", "c > d"], &["+", "+", "+"]),
            ("", &["c > d", "b > c", "a > b"], &["+", "+", "+"]),
            // Two that swap would for a moment both have what the other has.
            ("", &["a > b", "b > a"], &["b:1", "a:0"]),
            // All or nothing.
            ("", &["a > a", "b > b a c", "- > c"], &["+", "a:0", "+"]),
            // A removed cluster is no contender: what it had is free.
            ("", &["- > a"], &["+"]),
        ];
        for (taken, contenders, expected) in cases {
            assert_eq!(outcome(taken, contenders), *expected, "{taken} {contenders:?}");
        }
    }
}
