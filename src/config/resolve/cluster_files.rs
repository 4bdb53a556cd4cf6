//! Resolves the clusters of the cluster directory and of Secrets, one by one. An error in one changes only its own cluster,
//! which keeps its earlier state, if it has one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use portcullis_kubernetes::yaml::KeyLines;
use serde_json::Value;

use super::ConfigResolver;
use super::clusters::{ListedCluster, MAX_ENDPOINTS, PREFIX, SERVER_NAME};
use super::controllers::Tenant;
use super::management_cluster::secret_cluster;
use crate::config::cluster_files::{
    Claim, Contender, MAX_CLUSTERS, RefusedCluster, ResolvedCluster, Seat, seats,
};
use crate::config::error::{ConfigError, FilePosition};
use crate::config::file::{FileEnvelope, FileSections, document};
use crate::config::flags::ServeFlags;
use crate::config::inputs::FileDigest;
use crate::config::management_cluster::{MAX_SECRET_BYTES, ManagementSettings, directory};
use crate::config::sections::{ConfigLayer, MergedSection, ValueOrigin};
use crate::config::settings::{Cluster, ClusterOrigin};

pub(super) const ENVELOPE: FileEnvelope =
    [("apiVersion", "portcullis.dev/v1alpha1"), ("kind", "ClusterConfiguration")];
/// The key that names the directory.
const KEY: &str = "clusterDirectory";
/// The most bytes of the names of client CAs in a Secret. Every TLS handshake sends the names of all clusters, or none if there
/// are too many.
const MAX_SECRET_CA_NAMES_LENGTH: usize = 4 << 10;
/// Sections that no cluster inherits.
const NOT_INHERITED: [&str; 4] = ["serving", "operation", "clusters", KEY];

/// What the clusters of higher ranks have, of which those of a lower one take nothing. The configuration file goes before
/// the files of the directory, and these go before Secrets.
pub(super) struct HigherRank {
    /// Their claims, each with the key or the cluster that has it.
    pub(super) claims: BTreeMap<Claim, String>,
    pub(super) tenants: Vec<Tenant>,
    /// The number of their endpoints.
    pub(super) endpoints: usize,
}

/// What becomes of the clusters of a load.
#[derive(Default)]
struct Outcome {
    /// Those in force.
    next: BTreeMap<ClusterOrigin, Arc<ResolvedCluster>>,
    refused: Vec<RefusedCluster>,
    /// Those in force whose new state is refused.
    stale: BTreeSet<ClusterOrigin>,
}

/// One file: what it says now, and the cluster in force.
struct Source {
    origin: ClusterOrigin,
    held: Option<Arc<ResolvedCluster>>,
    wanted: Result<Arc<ResolvedCluster>, Vec<ConfigError>>,
}

/// The document of a cluster.
struct ClusterDocument {
    keys: ConfigLayer,
    /// Begins the paths of its keys, which tells them from those of the configuration file.
    prefix: String,
    path: PathBuf,
    lines: KeyLines,
}

impl ConfigResolver<'_> {
    /// The clusters of the directory and of Secrets that are in force with this load, and those that are refused. Files go
    /// before Secrets, which the operator of the gateway does not write.
    // threat: secret-against-operator
    pub(super) fn separate_clusters(
        &mut self,
        file: &MergedSection<FileSections>,
        flags: &ServeFlags,
        management: Option<&ManagementSettings>,
        main: HigherRank,
    ) -> (Vec<Arc<Cluster>>, Vec<RefusedCluster>) {
        let Some(paths) = self.cluster_files(file) else { return Default::default() };
        let inherited = inherited_digest(&file.values);
        let in_force = self.inputs.cluster_files.in_force.clone();
        self.inputs.cluster_files.resolved = 0;
        let files: Vec<ClusterOrigin> = paths.into_iter().map(ClusterOrigin::File).collect();
        let secrets =
            management.map(|management| self.secret_origins(management, &in_force)).unwrap_or_default();
        let mut sources = [files, secrets].map(|origins| {
            let source = |origin: ClusterOrigin| {
                let held = in_force.get(&origin).cloned();
                let wanted = match &held {
                    Some(held)
                        if held.recording.inherited == inherited && self.inputs.replay(&held.recording) =>
                    {
                        Ok(Arc::clone(held))
                    }
                    _ => self.separate_cluster(&origin, management, file, flags, inherited),
                };
                Source { origin, held, wanted }
            };
            origins.into_iter().map(source).collect::<Vec<_>>()
        });
        self.refuse_rejected(&mut sources);
        let [mut files, mut secrets] = sources;
        let (mut above, mut outcome) = (main, Outcome::default());
        refuse_around_secrets(&mut files, management);
        self.refuse_shared_authorities(&mut files, &above);
        refuse_excess(&mut files, above.endpoints);
        self.keep_main_out(&files, &above);
        self.seat(files, &mut above, &mut outcome);
        self.yield_to_operator(&mut secrets, &above);
        self.refuse_shared_authorities(&mut secrets, &above);
        refuse_excess(&mut secrets, above.endpoints);
        self.seat(secrets, &mut above, &mut outcome);
        let clusters = outcome.next.values().map(|resolved| Arc::clone(&resolved.cluster)).collect();
        self.inputs.cluster_files.next = Some(outcome.next);
        self.inputs.cluster_files.stale = outcome.stale;
        (clusters, outcome.refused)
    }

    /// The Secrets that are clusters. While those of a new scope have not been read, the ones in force stay.
    fn secret_origins(
        &mut self,
        management: &ManagementSettings,
        in_force: &BTreeMap<ClusterOrigin, Arc<ResolvedCluster>>,
    ) -> Vec<ClusterOrigin> {
        let Some(names) = self.inputs.secret_names(management.scope()) else {
            let is_secret = |origin: &&ClusterOrigin| matches!(origin, ClusterOrigin::Secret { .. });
            return in_force.keys().filter(is_secret).cloned().collect();
        };
        let namespace = &management.namespace;
        let origin = |name| ClusterOrigin::Secret { namespace: namespace.clone(), name };
        names.into_iter().map(origin).collect()
    }

    /// The files of the directory. Dotfiles are left out: they are half-written, or of an editor.
    fn cluster_files(&mut self, file: &MergedSection<FileSections>) -> Option<Vec<PathBuf>> {
        let Some(directory) = &file.values.cluster_directory else { return Some(Vec::new()) };
        let place = file.place("cluster-directory");
        let (key, directory) = (&place.key, &place.path(directory));
        let listed = self.inputs.manifests(directory).map_err(|error| {
            let fix = "create the directory, or give another one; it has one cluster in each *.yaml";
            ConfigError::new(key, error.to_string()).in_file(directory).fix(fix)
        });
        let mut files = self.ok(listed)?;
        files.retain(|file| !file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")));
        if files.len() > MAX_CLUSTERS {
            let problem = format!("has {} files, more than {MAX_CLUSTERS}", files.len());
            let error = ConfigError::new(key, problem).in_file(directory);
            return self.fail(error.fix("spread the clusters over several gateways"));
        }
        Some(files)
    }

    /// Resolves one cluster by itself. All errors are its own, also those of what it inherits: another cluster may replace
    /// it.
    fn separate_cluster(
        &mut self,
        origin: &ClusterOrigin,
        management: Option<&ManagementSettings>,
        file: &MergedSection<FileSections>,
        flags: &ServeFlags,
        inherited: Option<FileDigest>,
    ) -> Result<Arc<ResolvedCluster>, Vec<ConfigError>> {
        self.inputs.cluster_files.resolved += 1;
        self.inputs.record();
        let document = match self.cluster_document(origin, management) {
            Ok(document) => document,
            Err(error) => {
                self.inputs.recorded();
                return Err(vec![error]);
            }
        };
        let ClusterDocument { keys, prefix, path, lines } = document;
        let path = path.as_path();
        let has_client_cas = keys.values.get("authentication").is_some_and(|keys| {
            ["clientCAFile", "requestheaderClientCAFile"].iter().any(|key| keys.get(key).is_some())
        });
        let mut alone = ConfigResolver {
            unread: Vec::new(),
            errors: Vec::new(),
            warnings: Vec::new(),
            inputs: self.inputs,
        };
        let mut listed = alone.listed_clusters(vec![(keys, origin.clone())], true, Some(file), flags);
        let warnings = std::mem::take(&mut alone.warnings);
        let errors = alone.into_errors();
        let mut recording = self.inputs.recorded();
        recording.inherited = inherited;
        recording.warnings.extend(warnings.iter().cloned());
        self.warnings.extend(warnings);
        let locate = |error| located(error, &prefix, path, &lines);
        let mut errors: Vec<_> = errors.into_iter().map(locate).collect();
        errors.sort_by_key(|error| error.position.as_ref().map(|position| position.line));
        match listed.clusters.pop() {
            Some(ListedCluster { mut cluster, tenant }) if errors.is_empty() => {
                if let (ClusterOrigin::Secret { .. }, Some(management)) = (origin, management) {
                    Arc::make_mut(&mut cluster).backend.addresses = management.addresses;
                    if has_client_cas {
                        check_ca_names(&cluster).map_err(|error| vec![error])?;
                    }
                }
                let own_key = |(claim, key)| (claim, locate(ConfigError::new(key, "")).key);
                let claims = listed.unique.into_iter().map(own_key).collect();
                Ok(Arc::new(ResolvedCluster { cluster, tenant, claims, recording }))
            }
            _ => Err(errors),
        }
    }

    /// The keys of a cluster, with their places.
    fn cluster_document(
        &mut self,
        origin: &ClusterOrigin,
        management: Option<&ManagementSettings>,
    ) -> Result<ClusterDocument, ConfigError> {
        let (path, values, lines, prefix) = match (origin, management) {
            (ClusterOrigin::Secret { name, .. }, Some(management)) => {
                let found = secret_cluster(management, name, self.inputs);
                if self.inputs.is_too_large_secret(name) {
                    let error = ConfigError::new("data", format!("has more than {MAX_SECRET_BYTES} bytes"));
                    return Err(error.fix("remove what the cluster does not need"));
                }
                let (values, lines) = found?;
                (directory(name).join("cluster"), values, lines, format!("managementCluster[{name}]"))
            }
            (ClusterOrigin::File(path), _) => {
                let (values, lines) = document(KEY, path, ENVELOPE, self.inputs)?;
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                (path.clone(), values, lines, format!("{KEY}[{name}]"))
            }
            (ClusterOrigin::Configuration | ClusterOrigin::Secret { .. }, _) => {
                return Err(ConfigError::new(KEY, "is not a separate cluster"));
            }
        };
        let home = path.parent().unwrap_or(Path::new("")).to_owned();
        let origin = ValueOrigin::File { path: prefix.clone(), directory: home };
        Ok(ClusterDocument { keys: ConfigLayer { values, origin }, prefix, path, lines })
    }

    /// Refuses clusters that could not be built, until one of their files changes.
    fn refuse_rejected(&mut self, sources: &mut [Vec<Source>; 2]) {
        let rejected = &mut self.inputs.cluster_files.rejected;
        rejected.retain(|origin, _| sources.iter().flatten().any(|source| source.origin == *origin));
        for source in sources.iter_mut().flatten() {
            let Some((recording, error)) = rejected.get(&source.origin) else { continue };
            if source.wanted.as_ref().is_ok_and(|wanted| wanted.recording.is_same(recording)) {
                source.wanted = Err(vec![error.clone()]);
            }
        }
    }

    /// Refuses clusters whose signing CA another cluster trusts, and clusters that trust one of another. Compares with
    /// all that others have or want: what one of them gives up is free with the next load.
    fn refuse_shared_authorities(&mut self, sources: &mut [Source], above: &HigherRank) {
        let mut tenants: Vec<(Option<usize>, Tenant)> =
            above.tenants.iter().map(|tenant| (None, tenant.clone())).collect();
        for (index, source) in sources.iter().enumerate() {
            tenants.extend(source.held.iter().map(|held| (Some(index), held.tenant.clone())));
        }
        let signs = |source: &Source| source.wanted.as_ref().is_ok_and(|one| !one.tenant.signing.is_empty());
        if !sources.iter().any(signs) && tenants.iter().all(|(_, tenant)| tenant.signing.is_empty()) {
            return;
        }
        for (index, source) in sources.iter_mut().enumerate() {
            let Ok(wanted) = &source.wanted else { continue };
            let others = tenants.iter().filter(|(other, _)| *other != Some(index));
            let all: Vec<Tenant> =
                others.map(|(_, tenant)| tenant.clone()).chain([wanted.tenant.clone()]).collect();
            let before = self.errors.len();
            self.keep_tenants_apart(&all);
            let errors = self.errors.split_off(before);
            if errors.is_empty() {
                tenants.push((Some(index), wanted.tenant.clone()));
            } else {
                source.wanted = Err(errors);
            }
        }
    }

    /// Reports an error for each cluster of the configuration file that wants what a cluster of the directory has.
    fn keep_main_out(&mut self, sources: &[Source], main: &HigherRank) {
        for (claim, key) in &main.claims {
            let owner = sources.iter().find(|source| {
                let has = |one: &Arc<ResolvedCluster>| one.claims.contains_key(claim);
                source.held.as_ref().is_some_and(has) && source.wanted.as_ref().map_or(true, has)
            });
            if let Some(owner) = owner {
                let error =
                    ConfigError::new(key, format!("{:?} is already used by {}", claim.1, owner.origin));
                self.errors.push(error.fix("give each cluster its own, or remove that file first"));
            }
        }
    }

    /// Takes from Secrets what clusters of the configuration file and the directory want, and refuses the Secrets: no
    /// writer of Secrets may stop a change of the operator.
    fn yield_to_operator(&mut self, secrets: &mut [Source], above: &HigherRank) {
        for Source { origin, held, wanted } in secrets {
            if let Ok(cluster) = wanted
                && let Some(error) = conflict_above(origin, cluster, above)
            {
                *wanted = Err(vec![error]);
            }
            let is_against = |held: &mut Arc<ResolvedCluster>| {
                conflict_above(origin, held, above).is_some() || self.shares_authority(&held.tenant, above)
            };
            held.take_if(is_against);
        }
    }

    /// Whether the cluster of a Secret trusts or has a signing CA of another cluster.
    fn shares_authority(&mut self, tenant: &Tenant, above: &HigherRank) -> bool {
        if tenant.signing.is_empty() && above.tenants.iter().all(|tenant| tenant.signing.is_empty()) {
            return false;
        }
        let before = self.errors.len();
        let mut count = |tenants: &[Tenant]| {
            self.keep_tenants_apart(tenants);
            self.errors.split_off(before).len()
        };
        let known = count(&above.tenants);
        let all: Vec<Tenant> = above.tenants.iter().chain([tenant]).cloned().collect();
        count(&all) > known
    }

    /// Decides which clusters of a rank are in force, and adds what they have to that of higher ranks.
    fn seat(&mut self, sources: Vec<Source>, above: &mut HigherRank, outcome: &mut Outcome) {
        let contenders: Vec<_> = sources
            .iter()
            .map(|source| Contender {
                wanted: source.wanted.as_ref().ok().map(|wanted| &wanted.claims),
                held: source.held.as_ref().map(|held| &held.claims),
                name: source.origin.to_string(),
            })
            .collect();
        let seats = seats(&above.claims, &contenders);
        for (Source { origin, held, wanted }, seat) in sources.into_iter().zip(seats) {
            let mut errors: Vec<ConfigError> = match (wanted, seat) {
                (Ok(wanted), Seat::Wanted) => {
                    above.add(&origin, &wanted);
                    outcome.next.insert(origin, wanted);
                    continue;
                }
                (Ok(wanted), Seat::Unchanged(conflict)) => {
                    conflict.iter().map(|conflict| taken(&origin, &wanted, conflict)).collect()
                }
                (Err(errors), _) => errors,
            };
            let dropped = self.inputs.cluster_files.dropped.get(&origin);
            let held = held.filter(|_| dropped.is_none());
            errors.extend(dropped.filter(|error| !errors.contains(error)).cloned());
            let in_force = held.as_ref().map(|held| held.cluster.name.clone());
            outcome.refused.push(RefusedCluster { origin: origin.clone(), in_force, errors });
            if let Some(held) = held {
                above.add(&origin, &held);
                outcome.stale.insert(origin.clone());
                outcome.next.insert(origin, held);
            }
        }
    }
}

impl HigherRank {
    /// Adds what a cluster in force has.
    fn add(&mut self, origin: &ClusterOrigin, cluster: &ResolvedCluster) {
        self.claims.extend(cluster.claims.keys().map(|claim| (claim.clone(), origin.to_string())));
        self.tenants.push(cluster.tenant.clone());
        self.endpoints += endpoints(cluster);
    }
}

/// Limits the names of the client CAs of a Secret.
// threat: many-ca-names
fn check_ca_names(cluster: &Cluster) -> Result<(), ConfigError> {
    let length: usize = cluster.authentication.client_ca_names().map(|name| name.as_ref().len()).sum();
    if length > MAX_SECRET_CA_NAMES_LENGTH {
        let problem = format!(
            "the names of the client CAs have {length} bytes, more than {MAX_SECRET_CA_NAMES_LENGTH}"
        );
        return Err(ConfigError::new("authentication", problem).fix("remove the CAs that sign for no client"));
    }
    Ok(())
}

fn endpoints(cluster: &ResolvedCluster) -> usize {
    cluster.cluster.backend.endpoints.len()
}

/// Refuses clusters with which the process would have too many endpoints; first those that are not in force. `above` have
/// the clusters of higher ranks.
// threat: many-endpoints
fn refuse_excess(sources: &mut [Source], above: usize) {
    let mut total = above;
    let mut order: Vec<&mut Source> = sources.iter_mut().collect();
    order.sort_by_key(|source| source.held.is_none());
    for Source { held, wanted, .. } in order {
        // A higher rank has taken the room.
        held.take_if(|held| total + endpoints(held) > MAX_ENDPOINTS);
        if let Ok(cluster) = wanted
            && total + endpoints(cluster) > MAX_ENDPOINTS
        {
            let problem = format!("the clusters have more than {MAX_ENDPOINTS} endpoints together");
            let fix = "spread the clusters over several gateways";
            *wanted = Err(vec![ConfigError::new("endpoints", problem).fix(fix)]);
        }
        let wanted = wanted.as_ref().map_or(0, |cluster| endpoints(cluster));
        total += held.as_ref().map_or(0, |held| endpoints(held)).max(wanted);
    }
}

/// Refuses files with routes of which the clusters of Secrets would take a part.
fn refuse_around_secrets(files: &mut [Source], management: Option<&ManagementSettings>) {
    let Some(management) = management else { return };
    for Source { origin, wanted, .. } in files {
        let Ok(cluster) = wanted else { continue };
        let around = cluster.claims.iter().find_map(|(claim, key)| around_secrets(claim, key, management));
        if let Some(error) = around {
            *wanted = Err(vec![match origin {
                ClusterOrigin::File(file) => error.in_file(file),
                ClusterOrigin::Configuration | ClusterOrigin::Secret { .. } => error,
            }]);
        }
    }
}

/// The error of a route of which the clusters of Secrets would take a part: an exact name goes before one with `*`, and a
/// longer path before a shorter one.
// threat: secret-takes-route
pub(super) fn around_secrets(
    (kind, value): &Claim,
    key: &str,
    management: &ManagementSettings,
) -> Option<ConfigError> {
    let around = match *kind {
        SERVER_NAME => {
            let domain = management.domain.as_ref().filter(|domain| value.strip_prefix("*.") == Some(domain));
            domain.map(|domain| ("domain", domain))
        }
        PREFIX => {
            let prefix = management.path_prefix.as_ref().filter(|prefix| is_below(prefix, value));
            prefix.map(|prefix| ("pathPrefix", prefix))
        }
        _ => None,
    };
    let (of_management, given) = around?;
    let problem = format!(
        "{value:?} includes managementCluster.{of_management} {given:?}: Secrets would take a part of it"
    );
    Some(
        ConfigError::new(key, problem)
            .fix("give the management cluster a domain and a pathPrefix of their own"),
    )
}

/// The error of a cluster of a Secret that wants what a higher rank has, or a part of it.
// threat: secret-takes-route
fn conflict_above(
    origin: &ClusterOrigin,
    cluster: &ResolvedCluster,
    above: &HigherRank,
) -> Option<ConfigError> {
    cluster.claims.keys().find_map(|claim @ (kind, value)| {
        let whole = |value: String| above.claims.get_key_value(&(*kind, value));
        let around = match *kind {
            SERVER_NAME => value.split_once('.').and_then(|(_, rest)| whole(format!("*.{rest}"))),
            PREFIX => value.match_indices('/').find_map(|(end, _)| whole(value.get(..end)?.to_owned())),
            _ => None,
        };
        let ((_, taken_value), owner) = above.claims.get_key_value(claim).or(around)?;
        let mut error = taken(origin, cluster, &(claim.clone(), owner.clone()));
        if taken_value != value {
            error.problem = format!("{kind} {value:?} is a part of {taken_value:?}, which {owner} has");
        }
        Some(error)
    })
}

/// Whether a path is `prefix`, or below it.
fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The error of a claim that another cluster has.
fn taken(origin: &ClusterOrigin, wanted: &ResolvedCluster, (claim, owner): &(Claim, String)) -> ConfigError {
    let key = wanted.claims.get(claim).cloned().unwrap_or_default();
    let (kind, value) = claim;
    let error = ConfigError::new(key, format!("{kind} {value:?} is already used by {owner}"));
    let error = error.fix("give each cluster its own; the cluster that has it keeps it");
    match origin {
        ClusterOrigin::File(file) => error.in_file(file),
        ClusterOrigin::Configuration | ClusterOrigin::Secret { .. } => error,
    }
}

/// The error with the key as the file has it, and its line. A key that the cluster inherits is left as it is.
fn located(mut error: ConfigError, prefix: &str, file: &Path, lines: &KeyLines) -> ConfigError {
    let Some(key) = error.key.strip_prefix(prefix) else { return error };
    let key = key.strip_prefix('.').unwrap_or(key).to_owned();
    if error.position.is_none() {
        error.position = Some(FilePosition { file: file.to_owned(), line: lines.of(&key) });
    }
    error.key = if key.is_empty() { KEY.to_owned() } else { key };
    error
}

/// The digest of all that a cluster inherits from the configuration file.
fn inherited_digest(sections: &FileSections) -> Option<FileDigest> {
    let mut values = serde_json::to_value(sections).ok()?;
    if let Value::Object(values) = &mut values {
        values.retain(|key, _| !NOT_INHERITED.contains(&key.as_str()));
    }
    let text = serde_json::to_vec(&values).ok()?;
    digest::digest(&digest::SHA256, &text).as_ref().try_into().ok()
}
