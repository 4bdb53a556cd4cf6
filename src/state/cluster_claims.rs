//! Of two clusters that want one name, which is served? Decides which clusters of the cluster directory and of Secrets get
//! the names, routes and endpoints that they request, and which keep those that they have. The table of
//! [`ClusterOutcome`] says what is served of one that gets nothing.
//!
//! 1. The configuration file goes before files of the directory, and these go before Secrets, which the operator of the
//!    gateway does not write: [`decide_clusters`].
//! 2. Among files, and among Secrets, a cluster in force keeps what it has until it gives it up: a new or changed one takes
//!    nothing from it. The others come in the order of their names: [`decide_claims`].
//! 3. A cluster gets all that it requests, or nothing.
//! 4. No two clusters that are served have the same claim, or share a signing CA. So the configuration file is refused as a
//!    whole if it wants what a file of the directory keeps, and a Secret gives way if it has what a file or the configuration
//!    file wants. The host name of the page belongs to the configuration file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::cluster_outcome::{ClusterOutcome, ClusterOutcomes, UnbuildableClusters};
use crate::cluster::settings::ClusterOrigin;
use crate::config::cluster_authorities::{ClusterAuthorities, authorities_shared_with};
use crate::config::management_cluster::SecretScope;
use crate::config::resolve::{ResolvedConfig, page_host_claim};
use crate::config::separate_cluster::{
    Claim, Claims, MAX_ENDPOINTS, PREFIX, ResolvedCluster, SERVER_NAME, SeparateCluster,
};
use crate::config::{ConfigError, ConfigErrors};

/// A cluster with the settings that it requests and those that it has.
#[derive(Clone)]
struct ClusterRequest {
    origin: ClusterOrigin,
    /// Its settings in the configuration, or why they are refused.
    requested: Result<Arc<ResolvedCluster>, Vec<ConfigError>>,
    /// Whether they are refused for what only the operator can mend, as long as its own files are the same.
    is_fault_of_operator: bool,
    in_force: Option<Arc<ResolvedCluster>>,
}

/// The clusters that go before others: those of the configuration file, and those decided on so far. They keep what they
/// have.
struct DecidedClusters<'a> {
    config: &'a ResolvedConfig,
    outcomes: ClusterOutcomes,
}

/// Decides what is served of each cluster of the directory and of Secrets. Fails if the configuration file wants what a file
/// of the directory keeps.
// threat: secret-against-operator
pub(super) fn decide_clusters(
    config: &ResolvedConfig,
    before: &ClusterOutcomes,
    unbuildable: &UnbuildableClusters,
) -> Result<ClusterOutcomes, ConfigErrors> {
    let mut decided = DecidedClusters { config, outcomes: ClusterOutcomes::default() };
    let (mut secrets, mut files): (Vec<_>, Vec<_>) =
        requests(config, before, unbuildable).into_iter().partition(|request| request.origin.is_of_tenant());
    for request in &mut files {
        decided.refuse_page_host(request);
    }
    decided.grant(files, unbuildable);
    decided.take_from_secrets(&mut secrets);
    decided.grant(secrets, unbuildable);
    let mut errors = decided.conflicts_of_configuration_file();
    config.locate(&mut errors);
    let DecidedClusters { mut outcomes, .. } = decided;
    outcomes.scope = match scopes(config) {
        Some((own, read)) if own == *read => Some(own),
        Some(_) => before.scope.clone(),
        None => None,
    };
    outcomes.locate_errors(config);
    if errors.is_empty() { Ok(outcomes) } else { Err(ConfigErrors(errors)) }
}

/// What each cluster requests and has. While the Secrets of a new scope have not been read, the clusters of the old one that
/// are in force stay, and none is added.
fn requests(
    config: &ResolvedConfig,
    before: &ClusterOutcomes,
    unbuildable: &UnbuildableClusters,
) -> Vec<ClusterRequest> {
    let request = |(origin, resolved): &SeparateCluster| {
        let (requested, is_fault_of_operator) = match resolved {
            Ok(cluster) => {
                let requested = unbuildable.check(origin, cluster).map(|()| Arc::clone(cluster));
                let is_unbuildable = requested.is_err();
                (requested, is_unbuildable)
            }
            Err(errors) => (Err(errors.clone()), errors.iter().all(ConfigError::is_in_file_of_operator)),
        };
        let in_force = before.in_force(origin).cloned();
        ClusterRequest { origin: origin.clone(), requested, is_fault_of_operator, in_force }
    };
    let mut requests: Vec<_> = config.separate.iter().map(request).collect();
    if let Some((_, read)) = scopes(config).filter(|(own, read)| own != *read) {
        requests.retain(|request| !request.origin.is_of_tenant() || request.in_force.is_some());
        if before.scope.as_ref() != Some(read) {
            requests.extend(unread_requests(before, &requests));
        }
    }
    requests
}

/// Where the configuration reads Secrets, and where those are from that were read.
fn scopes(config: &ResolvedConfig) -> Option<(SecretScope, &SecretScope)> {
    let management = config.settings.management.as_deref()?;
    Some((management.scope(), management.read_scope.as_ref()?))
}

/// The clusters of Secrets in force that are not among `requests`, of a third scope: the Secrets that were read never took
/// effect.
fn unread_requests(before: &ClusterOutcomes, requests: &[ClusterRequest]) -> Vec<ClusterRequest> {
    let known: BTreeSet<_> = requests.iter().map(|request| &request.origin).collect();
    let unread = before.served().filter(|(origin, _)| origin.is_of_tenant() && !known.contains(origin));
    let request = |(origin, cluster): (&ClusterOrigin, &Arc<ResolvedCluster>)| {
        let error = ConfigError::new("managementCluster", "its Secrets have not been read yet");
        let error = error.fix("see /readyz/management-cluster for the reason");
        let (requested, in_force) = (Err(vec![error]), Some(Arc::clone(cluster)));
        ClusterRequest { origin: origin.clone(), requested, is_fault_of_operator: false, in_force }
    };
    unread.map(request).collect()
}

impl DecidedClusters<'_> {
    /// Their claims, each with the key or the cluster that has it.
    fn claims(&self) -> Claims {
        let of_others = self.outcomes.served().flat_map(|(origin, cluster)| {
            cluster.claims.keys().map(|claim| (claim.clone(), origin.to_string()))
        });
        self.config.claims.clone().into_iter().chain(of_others).collect()
    }

    fn authorities(&self) -> impl Iterator<Item = &ClusterAuthorities> {
        let of_others = self.outcomes.served().map(|(_, cluster)| &cluster.authorities);
        self.config.authorities.iter().chain(of_others)
    }

    /// Refuses a cluster that wants the host name of the page.
    fn refuse_page_host(&self, ClusterRequest { origin, requested, .. }: &mut ClusterRequest) {
        if let Ok(cluster) = requested
            && let Some(error) = self.page_host_claim(cluster)
        {
            *requested = Err(vec![in_file_of(origin, error)]);
        }
    }

    fn page_host_claim(&self, cluster: &ResolvedCluster) -> Option<ConfigError> {
        let page = self.config.settings.page.as_deref()?;
        page_host_claim(page, cluster)
    }

    /// Takes from Secrets what these clusters and the page want, and refuses the Secrets: no writer of Secrets may stop a
    /// change of the operator.
    fn take_from_secrets(&self, secrets: &mut [ClusterRequest]) {
        let claims = self.claims();
        for request in secrets {
            self.refuse_page_host(request);
            let ClusterRequest { origin, requested, in_force, .. } = request;
            if let Ok(cluster) = requested
                && let Some(error) = conflict_or_part(origin, cluster, &claims)
            {
                *requested = Err(vec![error]);
            }
            in_force.take_if(|cluster| {
                conflict_or_part(origin, cluster, &claims).is_some()
                    || self.page_host_claim(cluster).is_some()
                    || !authorities_shared_with(&cluster.authorities, self.authorities()).is_empty()
            });
        }
    }

    /// Decides which clusters get what they request, and adds their outcomes.
    fn grant(&mut self, requests: Vec<ClusterRequest>, unbuildable: &UnbuildableClusters) {
        for request in self.without_conflicts(requests) {
            let ClusterRequest { origin, requested, is_fault_of_operator, in_force } = request;
            let outcome = match requested {
                Ok(requested) => ClusterOutcome::Current(requested),
                Err(errors) => {
                    // A tenant who breaks a Secret must not keep with it what the operator has withdrawn since.
                    // threat: withdrawn-setting
                    let is_kept = |cluster: &Arc<ResolvedCluster>| {
                        !origin.is_of_tenant() || self.config.lets_keep(cluster, is_fault_of_operator)
                    };
                    unbuildable.fall_back(&origin, in_force.filter(is_kept), errors)
                }
            };
            self.outcomes.insert(origin, outcome);
        }
    }

    /// Refuses requests until each of the others gets all that it requests. Each round compares those that the rounds before
    /// did not refuse, so that none is refused for the signing CA or the endpoints of one that does not get its claims.
    fn without_conflicts(&self, mut requests: Vec<ClusterRequest>) -> Vec<ClusterRequest> {
        loop {
            let mut others = requests.clone();
            self.refuse_shared_authorities(&mut others);
            self.refuse_excess(&mut others);
            let conflicts = self.conflicts(&others);
            if conflicts.iter().all(Option::is_none) {
                return others;
            }
            for (request, conflict) in requests.iter_mut().zip(conflicts) {
                if let Some(errors) = conflict {
                    request.requested = Err(errors);
                }
            }
        }
    }

    /// The errors of each request that wants a claim of another cluster.
    fn conflicts(&self, requests: &[ClusterRequest]) -> Vec<Option<Vec<ConfigError>>> {
        let claims = requests.iter().map(|request| ClaimRequest {
            requested: request.requested.as_ref().ok().map(|cluster| &cluster.claims),
            in_force: request.in_force.as_ref().map(|cluster| &cluster.claims),
            name: request.origin.to_string(),
        });
        let decisions = decide_claims(&self.claims(), &claims.collect::<Vec<_>>());
        let conflict = |(request, decision): (&ClusterRequest, ClaimDecision)| {
            let (Ok(requested), ClaimDecision::Refused(conflict)) = (&request.requested, decision) else {
                return None;
            };
            let error = conflict.map(|(claim, owner)| taken(&request.origin, requested, &claim, &owner));
            Some(error.into_iter().collect())
        };
        requests.iter().zip(decisions).map(conflict).collect()
    }

    /// Refuses clusters whose signing CA another cluster trusts, and clusters that trust one of another. Compares with
    /// all that others have or request: what one of them gives up is free with the next load.
    fn refuse_shared_authorities(&self, requests: &mut [ClusterRequest]) {
        let has = |(index, request): (usize, &ClusterRequest)| Some((index, request.in_force.clone()?));
        let mut others: Vec<_> = requests.iter().enumerate().filter_map(has).collect();
        for (index, request) in requests.iter_mut().enumerate() {
            let Ok(requested) = &request.requested else { continue };
            let of_others = others.iter().filter(|(other, _)| *other != index);
            let of_others = of_others.map(|(_, cluster)| &cluster.authorities);
            let errors = authorities_shared_with(&requested.authorities, self.authorities().chain(of_others));
            if errors.is_empty() {
                others.push((index, Arc::clone(requested)));
            } else {
                request.requested = Err(errors);
            }
        }
    }

    /// Refuses clusters with which the process would have too many endpoints.
    fn refuse_excess(&self, requests: &mut [ClusterRequest]) {
        let own = self.config.settings.clusters.iter().map(|cluster| cluster.backend.endpoints.len());
        let taken = own.chain(self.outcomes.served().map(|(_, cluster)| cluster.endpoints())).sum();
        let wanted = requests.iter().map(|request| EndpointRequest {
            requested: request.requested.as_ref().ok().map(|cluster| cluster.endpoints()),
            in_force: request.in_force.as_ref().map(|cluster| cluster.endpoints()),
        });
        let decisions = decide_endpoints(taken, MAX_ENDPOINTS, &wanted.collect::<Vec<_>>());
        for (ClusterRequest { requested, in_force, .. }, decision) in requests.iter_mut().zip(decisions) {
            in_force.take_if(|_| !decision.keeps);
            if requested.is_ok() && !decision.is_granted {
                let problem = format!("the clusters have more than {MAX_ENDPOINTS} endpoints together");
                let fix = "spread the clusters over several gateways";
                *requested = Err(vec![ConfigError::new("endpoints", problem).fix(fix)]);
            }
        }
    }

    /// An error for each claim of the configuration file that a cluster of the directory keeps, and for each signing CA that
    /// it shares with one.
    // threat: other-cluster
    fn conflicts_of_configuration_file(&self) -> Vec<ConfigError> {
        let conflict = |(claim, key): (&Claim, &String)| {
            let has = |(_, cluster): &(_, &Arc<ResolvedCluster>)| cluster.claims.contains_key(claim);
            let (owner, _) = self.outcomes.served().find(has)?;
            let error = ConfigError::new(key, format!("{:?} is already used by {owner}", claim.1));
            Some(error.fix("give each cluster its own, or remove that file first"))
        };
        let shared = self.config.authorities.iter().flat_map(|own| {
            let others = self.outcomes.served().map(|(_, cluster)| &cluster.authorities);
            authorities_shared_with(own, others)
        });
        self.config.claims.iter().filter_map(conflict).chain(shared).collect()
    }
}

/// The error of a cluster of a Secret that wants what is taken, or a part of it: an exact name goes before one with `*`, and a
/// longer path before a shorter one.
// threat: secret-takes-route
fn conflict_or_part(
    origin: &ClusterOrigin,
    cluster: &ResolvedCluster,
    claims: &Claims,
) -> Option<ConfigError> {
    cluster.claims.keys().find_map(|claim @ (kind, value)| {
        let whole = |value: String| claims.get_key_value(&(*kind, value));
        let around = match *kind {
            SERVER_NAME => value.split_once('.').and_then(|(_, rest)| whole(format!("*.{rest}"))),
            PREFIX => value.match_indices('/').find_map(|(end, _)| whole(value.get(..end)?.to_owned())),
            _ => None,
        };
        let ((_, taken_value), owner) = claims.get_key_value(claim).or(around)?;
        let mut error = taken(origin, cluster, claim, owner);
        if taken_value != value {
            error.problem = format!("{kind} {value:?} is a part of {taken_value:?}, which {owner} has");
        }
        Some(error)
    })
}

/// The error of a claim that another cluster has.
fn taken(origin: &ClusterOrigin, requested: &ResolvedCluster, claim: &Claim, owner: &str) -> ConfigError {
    let key = requested.claims.get(claim).cloned().unwrap_or_default();
    let (kind, value) = claim;
    let error = ConfigError::new(key, format!("{kind} {value:?} is already used by {owner}"));
    in_file_of(origin, error.fix("give each cluster its own; the cluster that has it keeps it"))
}

/// Adds the file of a cluster of the directory to an error.
fn in_file_of(origin: &ClusterOrigin, error: ConfigError) -> ConfigError {
    match origin {
        ClusterOrigin::File(file) => error.in_file(file),
        ClusterOrigin::Configuration | ClusterOrigin::Secret { .. } => error,
    }
}

/// The claims that a cluster requests and those that it has.
#[derive(Debug)]
struct ClaimRequest<'a> {
    /// `None` if its settings in the configuration are refused.
    requested: Option<&'a Claims>,
    /// `None` if it is not in force.
    in_force: Option<&'a Claims>,
    /// Its name in the errors of others.
    name: String,
}

/// Whether a cluster gets the claims that it requests.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ClaimDecision {
    /// It gets all of them.
    Granted,
    /// It keeps those that it has, if any; with the claim that another cluster has, and the name of that one.
    Refused(Option<(Claim, String)>),
}

/// Decides which clusters get the claims that they request. None gets one that is taken, each with its owner.
// threat: other-cluster
fn decide_claims(taken: &Claims, requests: &[ClaimRequest<'_>]) -> Vec<ClaimDecision> {
    // The clusters that have a claim now, by their index; `None`: it is taken.
    let mut owners: BTreeMap<&Claim, Option<usize>> = taken.keys().map(|claim| (claim, None)).collect();
    for (index, request) in requests.iter().enumerate() {
        for claim in request.in_force.iter().flat_map(|claims| claims.keys()) {
            owners.entry(claim).or_insert(Some(index));
        }
    }
    let mut is_granted = vec![false; requests.len()];
    // Those in force first. A claim that one gives up may be what another waits for.
    let mut order: Vec<(usize, &ClaimRequest<'_>)> = requests.iter().enumerate().collect();
    order.sort_by_key(|(_, request)| request.in_force.is_none());
    let mut progress = true;
    while std::mem::take(&mut progress) {
        for (index, request) in &order {
            let (Some(requested), Some(granted @ false)) = (request.requested, is_granted.get_mut(*index))
            else {
                continue;
            };
            if requested.keys().all(|claim| owners.get(claim).is_none_or(|owner| *owner == Some(*index))) {
                owners.retain(|_, owner| *owner != Some(*index));
                owners.extend(requested.keys().map(|claim| (claim, Some(*index))));
                *granted = true;
                progress = true;
            }
        }
    }
    let owner_of = |claim: &Claim, index: usize| match owners.get(claim)? {
        Some(owner) if *owner == index => None,
        Some(owner) => requests.get(*owner).map(|request| request.name.clone()),
        None => taken.get(claim).cloned(),
    };
    let decision = |(index, (request, granted)): (usize, (&ClaimRequest<'_>, bool))| {
        let mut requested = request.requested.into_iter().flat_map(|claims| claims.keys());
        let mut conflict = || requested.find_map(|claim| Some((claim.clone(), owner_of(claim, index)?)));
        if granted { ClaimDecision::Granted } else { ClaimDecision::Refused(conflict()) }
    };
    requests.iter().zip(is_granted).enumerate().map(decision).collect()
}

/// The numbers of endpoints that a cluster requests and has.
#[derive(Debug)]
struct EndpointRequest {
    /// `None` if its settings in the configuration are refused.
    requested: Option<usize>,
    /// `None` if it is not in force.
    in_force: Option<usize>,
}

/// Whether a cluster gets the endpoints that it requests, and otherwise keeps those that it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct EndpointDecision {
    is_granted: bool,
    keeps: bool,
}

/// Decides which clusters get the endpoints that they request, where others have taken some of `max`. A cluster in force
/// loses its own only to these; then clusters in force may grow, and then new ones come. What a cluster gives up is free with
/// the next load.
// threat: many-endpoints
fn decide_endpoints(taken: usize, max: usize, requests: &[EndpointRequest]) -> Vec<EndpointDecision> {
    let mut total = taken;
    let mut decisions = vec![EndpointDecision::default(); requests.len()];
    for (EndpointRequest { in_force, .. }, decision) in requests.iter().zip(&mut decisions) {
        if let Some(own) = in_force
            && total + own <= max
        {
            total += own;
            decision.keeps = true;
        }
    }
    let mut order: Vec<_> = requests.iter().zip(&mut decisions).collect();
    order.sort_by_key(|(request, _)| request.in_force.is_none());
    for (EndpointRequest { requested, in_force }, decision) in order {
        let Some(requested) = requested else { continue };
        let more = requested.saturating_sub(in_force.filter(|_| decision.keeps).unwrap_or(0));
        decision.is_granted = total + more <= max;
        if decision.is_granted {
            total += more;
        }
    }
    decisions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(names: &str) -> Claims {
        names.split_whitespace().map(|name| (("server name", name.to_owned()), String::new())).collect()
    }

    /// Requests are written `in force > requested`, with `-` for none; the decision is `+`, or the claim and its owner.
    fn decisions(taken: &str, requests: &[&str]) -> Vec<String> {
        let given: Vec<_> = requests
            .iter()
            .map(|text| {
                let (in_force, requested) = text.split_once('>').unwrap();
                let read = |part: &str| (part.trim() != "-").then(|| claims(part));
                (read(in_force), read(requested))
            })
            .collect();
        let requests: Vec<_> = given
            .iter()
            .zip(0..)
            .map(|((in_force, requested), index): (_, u32)| ClaimRequest {
                requested: requested.as_ref(),
                in_force: in_force.as_ref(),
                name: index.to_string(),
            })
            .collect();
        let mut taken = claims(taken);
        for key in taken.values_mut() {
            "file".clone_into(key);
        }
        let text = |decision| match decision {
            ClaimDecision::Granted => "+".to_owned(),
            ClaimDecision::Refused(None) => "=".to_owned(),
            ClaimDecision::Refused(Some(((_, claim), owner))) => format!("{claim}:{owner}"),
        };
        decide_claims(&taken, &requests).into_iter().map(text).collect()
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
            // A removed cluster requests nothing: what it had is free.
            ("", &["- > a"], &["+"]),
        ];
        for (taken, requests, expected) in cases {
            assert_eq!(decisions(taken, requests), *expected, "{taken} {requests:?}");
        }
    }

    #[test]
    fn no_cluster_in_force_loses_its_endpoints_to_one_of_its_rank() {
        // Requests are written `in force > requested`, with `-` for none; the decision is `+` granted, `=` kept, `-` neither.
        let cases: &[(usize, &[&str], &str)] = &[
            (0, &["- > 6", "- > 4", "- > 1"], "++-"),
            (0, &["4 > 4", "6 > 6"], "++"),
            // The first ones grow before the others have grown, but not at their cost.
            (0, &["1 > 8", "1 > 8", "1 > 1"], "+=+"),
            (0, &["1 > 16", "1 > 16"], "=="),
            (0, &["2 > 6", "6 > -"], "=="),
            // A newcomer comes after the growth of those in force.
            (0, &["- > 4", "6 > 8"], "-+"),
            // What one gives up is free with the next load.
            (0, &["8 > 1", "- > 4"], "+-"),
            // Clusters that go before them have taken the room.
            (8, &["1 > 1", "1 > 1", "1 > 1"], "++-"),
            (8, &["3 > 3", "2 > 2"], "-+"),
            (12, &["1 > -", "- > 1"], "--"),
        ];
        for (taken, requests, expected) in cases {
            let requests: Vec<_> = requests
                .iter()
                .map(|text| {
                    let (in_force, requested) = text.split_once('>').unwrap();
                    let read = |part: &str| (part.trim() != "-").then(|| part.trim().parse().unwrap());
                    EndpointRequest { requested: read(requested), in_force: read(in_force) }
                })
                .collect();
            let text = |decision| match decision {
                EndpointDecision { is_granted: true, .. } => '+',
                EndpointDecision { keeps: true, .. } => '=',
                EndpointDecision { .. } => '-',
            };
            let decisions: String = decide_endpoints(*taken, 10, &requests).into_iter().map(text).collect();
            assert_eq!(decisions, *expected, "{taken} {requests:?}");
        }
    }
}
