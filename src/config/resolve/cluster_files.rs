//! Resolves the clusters of the cluster directory and of Secrets, one by one. An error in one changes only its own cluster,
//! which keeps its earlier state, if it has one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use serde_json::Value;

use super::ConfigResolver;
use super::clusters::ListedCluster;
use super::controllers::Tenant;
use super::management_cluster::secret_cluster;
use crate::config::cluster_files::{
    Claim, Contender, MAX_CLUSTERS, RefusedCluster, ResolvedCluster, Seat, seats,
};
use crate::config::error::{ConfigError, FilePosition};
use crate::config::file::{FileEnvelope, FileSections, document};
use crate::config::flags::ServeFlags;
use crate::config::inputs::FileDigest;
use crate::config::management_cluster::{ManagementSettings, directory};
use crate::config::sections::{ConfigLayer, MergedSection, ValueOrigin};
use crate::config::settings::{Cluster, ClusterOrigin};
use crate::config::yaml::KeyLines;

pub(super) const ENVELOPE: FileEnvelope =
    [("apiVersion", "portcullis.dev/v1alpha1"), ("kind", "ClusterConfiguration")];
/// The key that names the directory.
const KEY: &str = "clusterDirectory";
/// Sections that no cluster inherits.
const NOT_INHERITED: [&str; 4] = ["serving", "operation", "clusters", KEY];

/// The clusters of the configuration file, of which those of the directory take nothing.
pub(super) struct MainClusters {
    pub(super) claims: BTreeMap<Claim, String>,
    pub(super) tenants: Vec<Tenant>,
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
    /// The clusters of the directory and of Secrets that are in force with this load, and those that are refused.
    pub(super) fn separate_clusters(
        &mut self,
        file: &MergedSection<FileSections>,
        flags: &ServeFlags,
        management: Option<&ManagementSettings>,
        main: &MainClusters,
    ) -> (Vec<Arc<Cluster>>, Vec<RefusedCluster>) {
        let Some(paths) = self.cluster_files(file) else { return Default::default() };
        let inherited = inherited_digest(&file.values);
        let in_force = self.inputs.cluster_files.in_force.clone();
        self.inputs.cluster_files.resolved = 0;
        let mut origins: Vec<ClusterOrigin> = paths.into_iter().map(ClusterOrigin::File).collect();
        if let Some(management @ ManagementSettings { namespace, .. }) = management {
            let names = self.inputs.secret_names(management.scope()).into_iter();
            origins.extend(names.map(|name| ClusterOrigin::Secret { namespace: namespace.clone(), name }));
        }
        let mut sources = Vec::with_capacity(origins.len());
        for origin in origins {
            let held = in_force.get(&origin).cloned();
            let wanted = match &held {
                Some(held)
                    if held.recording.inherited == inherited && self.inputs.replay(&held.recording) =>
                {
                    Ok(Arc::clone(held))
                }
                _ => self.separate_cluster(&origin, management, file, flags, inherited),
            };
            sources.push(Source { origin, held, wanted });
        }
        self.refuse_rejected(&mut sources);
        self.refuse_shared_authorities(&mut sources, main);
        self.keep_main_out(&sources, main);
        self.seated(sources, main)
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
            Some(ListedCluster { cluster, tenant }) if errors.is_empty() => {
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
                let (values, lines) = secret_cluster(management, name, self.inputs)?;
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
    fn refuse_rejected(&mut self, sources: &mut [Source]) {
        let rejected = &mut self.inputs.cluster_files.rejected;
        rejected.retain(|origin, _| sources.iter().any(|source| source.origin == *origin));
        for source in sources {
            let Some((recording, error)) = rejected.get(&source.origin) else { continue };
            if source.wanted.as_ref().is_ok_and(|wanted| wanted.recording.is_same(recording)) {
                source.wanted = Err(vec![error.clone()]);
            }
        }
    }

    /// Refuses clusters whose signing CA another cluster trusts, and clusters that trust one of another. Compares with
    /// all that others have or want: what one of them gives up is free with the next load.
    fn refuse_shared_authorities(&mut self, sources: &mut [Source], main: &MainClusters) {
        let mut tenants: Vec<(Option<usize>, Tenant)> =
            main.tenants.iter().map(|tenant| (None, tenant.clone())).collect();
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
    fn keep_main_out(&mut self, sources: &[Source], main: &MainClusters) {
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

    /// Decides which clusters are in force.
    fn seated(
        &mut self,
        sources: Vec<Source>,
        main: &MainClusters,
    ) -> (Vec<Arc<Cluster>>, Vec<RefusedCluster>) {
        let contenders: Vec<_> = sources
            .iter()
            .map(|source| Contender {
                wanted: source.wanted.as_ref().ok().map(|wanted| &wanted.claims),
                held: source.held.as_ref().map(|held| &held.claims),
                name: source.origin.to_string(),
            })
            .collect();
        let seats = seats(&main.claims, &contenders);
        let mut next = BTreeMap::new();
        let mut refused = Vec::new();
        for (Source { origin, held, wanted }, seat) in sources.into_iter().zip(seats) {
            let errors = match (wanted, seat) {
                (Ok(wanted), Seat::Wanted) => {
                    next.insert(origin, wanted);
                    continue;
                }
                (Ok(wanted), Seat::Unchanged(conflict)) => {
                    conflict.iter().map(|conflict| taken(&origin, &wanted, conflict)).collect()
                }
                (Err(errors), _) => errors,
            };
            let in_force = held.as_ref().map(|held| held.cluster.name.clone());
            refused.push(RefusedCluster { origin: origin.clone(), in_force, errors });
            next.extend(held.map(|held| (origin, held)));
        }
        let clusters = next.values().map(|resolved| Arc::clone(&resolved.cluster)).collect();
        self.inputs.cluster_files.next = Some(next);
        (clusters, refused)
    }
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
