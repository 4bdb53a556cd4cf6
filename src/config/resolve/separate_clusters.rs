//! Resolves the clusters of the cluster directory and of Secrets, one by one: an error in one is an error of that cluster
//! alone. Does not know which of them are in force, nor compares them with each other: that is `state::cluster_claims`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::yaml::KeyLines;
use serde_json::Value;

use super::ConfigResolver;
use super::management_cluster::secret_cluster;
use crate::config::error::{ConfigError, FilePosition};
use crate::config::file::{FileEnvelope, FileSections, document};
use crate::config::flags::ServeFlags;
use crate::config::management_cluster::{
    MAX_BYTES, MAX_SECRET_BYTES, ManagementSettings, SecretRefusal, directory,
};
use crate::config::sections::{ConfigLayer, MergedSection, ValueOrigin};
use crate::config::separate_cluster::{
    Claim, Claims, FileDigest, MAX_CLUSTERS, PREFIX, ResolvedCluster, SERVER_NAME, SeparateCluster,
};
use crate::config::settings::{Cluster, ClusterOrigin};

pub(super) const ENVELOPE: FileEnvelope =
    [("apiVersion", "portcullis.dev/v1alpha1"), ("kind", "ClusterConfiguration")];
/// The key that names the directory.
const KEY: &str = "clusterDirectory";
/// The most bytes of the names of client CAs in a Secret. Every TLS handshake sends the names of all clusters, or none if there
/// are too many.
const MAX_SECRET_CA_NAMES_LENGTH: usize = 4 << 10;
/// Sections that no cluster inherits.
const NOT_INHERITED: [&str; 5] = ["serving", "operation", "page", "clusters", KEY];
/// The keys of `managementCluster` that tell which Secrets are read.
const WHICH_SECRETS: [&str; 3] = ["kubeconfig", "namespace", "labelSelector"];

/// The document of a cluster.
struct ClusterDocument {
    keys: ConfigLayer,
    /// Begins the paths of its keys, which tells them from those of the configuration file.
    prefix: String,
    path: PathBuf,
    lines: KeyLines,
}

impl ConfigResolver<'_> {
    /// The clusters of the directory and of Secrets. `None` if the directory cannot be read; then `self.errors` has the error.
    pub(super) fn separate_clusters(
        &mut self,
        file: &MergedSection<FileSections>,
        flags: &ServeFlags,
        management: Option<&ManagementSettings>,
        inherited: Option<FileDigest>,
    ) -> Option<Vec<SeparateCluster>> {
        let files = self.cluster_files(file)?.into_iter().map(ClusterOrigin::File);
        let secrets = management.map(|management| self.inputs.secret_clusters(management.scope()));
        let origins = files.chain(secrets.into_iter().flatten());
        let resolve = |origin: ClusterOrigin| {
            let resolved = match self.inputs.unchanged_cluster(&origin, inherited) {
                Some(unchanged) => Ok(unchanged),
                None => self.separate_cluster(&origin, management, file, flags, inherited),
            };
            (origin, resolved)
        };
        Some(origins.map(resolve).collect())
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
        let mut alone = ConfigResolver::new(self.inputs, self.leaves_to_backend, self.release);
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
            Some((mut cluster, authorities)) if errors.is_empty() => {
                if let (ClusterOrigin::Secret { .. }, Some(management)) = (origin, management) {
                    Arc::make_mut(&mut cluster).backend.policy.addresses = management.addresses;
                    if has_client_cas {
                        check_ca_names(&cluster).map_err(|error| vec![error])?;
                    }
                }
                let own_key = |(claim, key)| (claim, locate(ConfigError::new(key, "")).key);
                let claims: Claims = listed.claims.into_iter().map(own_key).collect();
                if let (ClusterOrigin::File(file), Some(management)) = (origin, management) {
                    let around =
                        claims.iter().find_map(|(claim, key)| around_secrets(claim, key, management));
                    around.map_or(Ok(()), |error| Err(vec![error.in_file(file)]))?;
                }
                let resolved = Arc::new(ResolvedCluster { cluster, authorities, claims, recording });
                self.inputs.resolved(origin, &resolved);
                Ok(resolved)
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
                if let Some(refused) = self.inputs.secret_refusal(name) {
                    let problem = match refused {
                        SecretRefusal::TooLarge => format!("has more than {MAX_SECRET_BYTES} bytes"),
                        SecretRefusal::NoRoom(bytes) => format!(
                            "has {bytes} bytes, for which there is no room: all Secrets together may have {MAX_BYTES}, and \
                             no other has more"
                        ),
                    };
                    let error = ConfigError::new("data", problem);
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

/// Whether a path is `prefix`, or below it.
fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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

/// The digest of all that a cluster inherits from the configuration file, and of the emulated release.
pub(super) fn inherited_digest(sections: &FileSections, release: Release) -> Option<FileDigest> {
    let mut values = serde_json::to_value(sections).ok()?;
    if let Value::Object(values) = &mut values {
        values.retain(|key, _| !NOT_INHERITED.contains(&key.as_str()));
        if let Some(Value::Object(keys)) = values.get_mut("managementCluster") {
            keys.retain(|key, _| !WHICH_SECRETS.contains(&key.as_str()));
        }
    }
    let text = serde_json::to_vec(&(values, release.to_string())).ok()?;
    digest::digest(&digest::SHA256, &text).as_ref().try_into().ok()
}
