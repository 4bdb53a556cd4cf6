//! Turns wire types into settings: reads every file, applies every rule and collects every error. Must never return
//! settings if there is an error.

mod admission;
mod audit;
mod authentication;
mod authorization;
mod clusters;
mod controllers;
mod limits;
mod management_cluster;
mod page;
mod separate_clusters;
mod serving;
mod sessions;
mod tracing;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use portcullis_cel::CelGo;
use portcullis_go::duration::parse_duration;
use portcullis_kubernetes::release::Release;
use portcullis_pki::x509::certificate::Certificate;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::cluster_authorities::ClusterAuthorities;
use super::error::{ConfigError, ConfigErrors};
use super::file::{GatewayFile, KeyPositions};
use super::flags::{CommandLineFindings, MetricsAddress, OperationFlags, ServeFlags};
use super::inputs::InputReader;
use super::management_cluster::is_in_secret;
use super::sections::{ConfigLayer, MergedSection};
use super::separate_cluster::{Claims, FileDigest, Recording, ResolvedCluster, SeparateCluster};
use super::settings::{MaxBufferedBytes, Operation, Settings, Shutdown};
use super::validity;
pub use admission::compared::{admission_configuration_errors, webhook_manifest, webhook_request};
pub(crate) use admission::is_backend_plugin;
pub use authorization::compared::authorization_configuration_error;
pub(crate) use controllers::signer_profiles;
use page::GatewayNames;
pub(crate) use page::{page_host_claim, page_host_conflict, unknown_issuer_warning};
use separate_clusters::inherited_digest;

/// What the inputs of the gateway say, whatever is in force: its settings, and those of each cluster that is configured by
/// itself.
#[derive(Debug)]
pub struct ResolvedConfig {
    /// The settings of the gateway. Its clusters are those of the configuration file.
    pub settings: Settings,
    /// Warnings, which `check` prints and `serve` logs.
    pub warnings: Vec<String>,
    /// The claims of the clusters of the configuration file.
    pub(crate) claims: Claims,
    /// Their CAs.
    pub(crate) authorities: Vec<ClusterAuthorities>,
    /// The clusters of the cluster directory and of Secrets. Several may claim the same.
    pub(crate) separate: Vec<SeparateCluster>,
    /// The digest of all that these inherit from the configuration file.
    inherited: Option<FileDigest>,
    /// The files of the clusters of Secrets in use, as they are now.
    in_use: Recording,
    /// The positions in the configuration file.
    positions: Option<KeyPositions>,
}

impl ResolvedConfig {
    /// Whether a cluster of a Secret, which an earlier configuration resolved, may stay in force although its settings are
    /// refused now: what it has inherited is still the same. The files that the configuration file names may have changed
    /// if the refusal is a fault of the operator, such as half of a file, and the tenant has changed nothing.
    pub(crate) fn lets_keep(&self, cluster: &ResolvedCluster, is_fault_of_operator: bool) -> bool {
        let Recording { files, folders, inherited, .. } = &cluster.recording;
        let now = &self.in_use;
        let are_same = |of_tenant: bool| {
            let mut files = files.iter().filter(|(file, _)| is_in_secret(file) == of_tenant);
            files.all(|(file, before)| now.files.get(file) == Some(before))
        };
        let is_same_folder = |(folder, before)| now.folders.get(folder) == Some(before);
        let are_same_of_operator = are_same(false) && folders.iter().all(is_same_folder);
        *inherited == self.inherited && (are_same_of_operator || is_fault_of_operator && are_same(true))
    }

    /// Adds to each error the line of its key in the configuration file.
    pub(crate) fn locate(&self, errors: &mut [ConfigError]) {
        if let Some(positions) = &self.positions {
            positions.locate(errors);
        }
    }
}

/// Validates the command line and the configuration file, and reads every file they name. Records the files in
/// `inputs`, also when it fails.
pub fn resolve(flags: &ServeFlags, inputs: &mut InputReader) -> Result<ResolvedConfig, ConfigErrors> {
    inputs.begin();
    let CommandLineFindings { errors: of_command_line, meant, warnings } = flags.command_line.clone();
    let mut unread = of_command_line.clone();
    let file = flags.config.as_deref().map(|file| GatewayFile::load(file, inputs, &mut unread));
    let file = file
        .transpose()
        .map_err(|error| ConfigErrors(of_command_line.into_iter().chain([error]).collect()))?;
    let leaves_to_backend = flags.ignore_unknown_apiserver_flags;
    let resolver = ConfigResolver::new(inputs, leaves_to_backend, Release::default());
    let mut resolver = ConfigResolver { unread, warnings, ..resolver };
    let sections = file.as_ref().map(|file| &file.sections);
    let operation = sections.map(|file| file.below("operation", &file.values.operation));
    let operation = resolver.section([operation, Some(flags.operation.layer())]);
    // Before the clusters, which inherit it.
    let emulated = operation.as_ref().and_then(|given| resolver.emulated_version(given));
    resolver.release = emulated.unwrap_or_default();
    let serving = sections.map(|file| file.below("serving", &file.values.serving));
    let serving = resolver.section([serving, Some(flags.serving.layer())]);
    let serving = serving.and_then(|given| resolver.serving(&given));
    let management = resolver.management_cluster(sections);
    let (clusters, claims, authorities) = resolver.clusters(sections, flags, management.as_deref());
    let inherited = sections.and_then(|file| inherited_digest(&file.values, resolver.release));
    let separate =
        sections.and_then(|file| resolver.separate_clusters(file, flags, management.as_deref(), inherited));
    let in_use = management.as_ref().map(|_| resolver.inputs.read_in_use()).unwrap_or_default();
    resolver.warnings.extend(resolver.inputs.warnings());
    let operation = operation.and_then(|given| resolver.operation(&given));
    let page = sections.map(|file| file.below("page", &file.values.page));
    let page = resolver.section([page, Some(flags.page.layer())]);
    let gateway = GatewayNames::of(serving.as_ref(), operation.as_ref(), &clusters, management.as_deref());
    let page = page.and_then(|given| resolver.page(&given, &gateway));
    let warnings = std::mem::take(&mut resolver.warnings);
    let mut errors = resolver.into_errors();
    errors.retain(|error| !meant.contains(&error.key));
    match (serving, operation) {
        (Some(serving), Some(operation)) if errors.is_empty() => {
            let page = page.map(Arc::new);
            Ok(ResolvedConfig {
                settings: Settings { serving, clusters, management, operation, page },
                warnings: without_duplicates(warnings),
                claims,
                authorities,
                separate: separate.unwrap_or_default(),
                inherited,
                in_use,
                positions: file.map(|file| file.positions),
            })
        }
        _ => {
            if let Some(file) = file {
                file.positions.locate(&mut errors);
                errors.sort_by_key(|error| error.position.as_ref().map(|position| position.line));
            }
            Err(ConfigErrors(errors))
        }
    }
}

/// Whether an error of `key` may be a consequence of `unread`, a key that could not be read: the two are the same, or
/// one contains the other.
fn overlaps(key: &str, unread: &str) -> bool {
    let is_part = |whole: &str, part: &str| {
        part.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    is_part(key, unread) || is_part(unread, key)
}

/// Removes duplicates: several clusters may share an error.
fn without_duplicates<T: PartialEq>(items: Vec<T>) -> Vec<T> {
    let mut once: Vec<T> = Vec::with_capacity(items.len());
    for item in items {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    once
}

struct ConfigResolver<'a> {
    /// Errors of keys that are unknown or have a value of the wrong type.
    unread: Vec<ConfigError>,
    /// Errors of values.
    errors: Vec<ConfigError>,
    warnings: Vec<String>,
    inputs: &'a mut InputReader,
    /// Whether what only the backend has is left to it with a warning (`--ignore-unknown-apiserver-flags`), or is an
    /// error.
    leaves_to_backend: bool,
    /// The release of Kubernetes that is emulated.
    release: Release,
}

impl<'a> ConfigResolver<'a> {
    /// Without errors and warnings yet.
    fn new(inputs: &'a mut InputReader, leaves_to_backend: bool, release: Release) -> Self {
        let (unread, errors, warnings) = (Vec::new(), Vec::new(), Vec::new());
        Self { unread, errors, warnings, inputs, leaves_to_backend, release }
    }
}

impl ConfigResolver<'_> {
    /// Merges layers into a section.
    fn section<T: Args + Serialize + DeserializeOwned>(
        &mut self,
        layers: impl IntoIterator<Item = Option<ConfigLayer>>,
    ) -> Option<MergedSection<T>> {
        MergedSection::read(layers.into_iter().flatten(), &mut self.unread)
    }

    fn fail<T>(&mut self, error: ConfigError) -> Option<T> {
        self.errors.push(error);
        None
    }

    fn ok<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    /// All errors, without those that an unreadable key may have caused.
    fn into_errors(self) -> Vec<ConfigError> {
        let Self { mut unread, mut errors, .. } = self;
        errors.retain(|error| !unread.iter().any(|unread| overlaps(&error.key, &unread.key)));
        unread.append(&mut errors);
        without_duplicates(unread)
    }

    fn read(&mut self, key: &str, file: &Path) -> Option<Vec<u8>> {
        let result = self
            .inputs
            .read(file)
            .map_err(|error| ConfigError::new(key, error.to_string()).in_file(file).fix(error.fix()));
        self.ok(result)
    }

    /// Warns about certificates that are expired or not yet valid.
    fn warn_of_dates(&mut self, key: &str, file: &Path, field: &str, certificates: &[Certificate]) {
        self.inputs.note_validity(certificates);
        self.warnings.extend(validity::warning(key, file, field, certificates, self.inputs.now()));
    }

    fn duration(&mut self, key: &str, text: &str) -> Option<Duration> {
        let parsed = parse_duration(text).map_err(|error| error.to_string()).and_then(|nanoseconds| {
            u64::try_from(nanoseconds)
                .map(Duration::from_nanos)
                .map_err(|_| "must not be negative".to_owned())
        });
        let result = parsed
            .map_err(|problem| ConfigError::new(key, problem).fix("give a duration such as 60s or 1m30s"));
        self.ok(result)
    }

    /// Warns about a flag that has no effect without another.
    fn warn_of_no_effect<T>(&mut self, given: &MergedSection<T>, flag: &str, other: &str) {
        let (flag, other) = (given.key(flag), given.key(other));
        self.warnings.push(format!("{flag} has no effect without {other}"));
    }

    /// The release of CEL in the release that the gateway emulates.
    fn cel_go(&self) -> CelGo {
        CelGo::of_kubernetes(self.release.minor())
    }

    /// The release of Kubernetes that the gateway emulates.
    fn emulated_version(&mut self, given: &MergedSection<OperationFlags>) -> Option<Release> {
        let release = Release::emulated(&listed(&given.values.emulated_version)).map_err(|error| {
            let known = Release::ALL.map(|release| release.to_string()).join(", ");
            ConfigError::new(given.key("emulated-version"), error.to_string())
                .fix(format!("give one of {known}, or remove it"))
        });
        self.ok(release)
    }

    fn operation(&mut self, given: &MergedSection<OperationFlags>) -> Option<Operation> {
        let flags = &given.values;
        let timeout_key = given.key("request-timeout");
        let request_timeout = self.duration(&timeout_key, &flags.request_timeout);
        let grace_period = self.duration(&given.key("shutdown-grace-period"), &flags.shutdown_grace_period);
        let watches = self.duration(
            &given.key("shutdown-watch-termination-grace-period"),
            &flags.shutdown_watch_termination_grace_period,
        );
        let delay = self.duration(&given.key("shutdown-delay-duration"), &flags.shutdown_delay_duration);
        let livez_grace_period = self.duration(&given.key("livez-grace-period"), &flags.livez_grace_period);
        if request_timeout.is_some_and(|timeout| timeout.is_zero()) {
            self.errors.push(ConfigError::new(timeout_key, "must be positive").fix("give 1m0s"));
        }
        let metrics = MetricsAddress::parse(&flags.metrics_bind_address).map_err(|error| {
            ConfigError::new(given.key("metrics-bind-address"), error.to_string())
                .fix("give IP:PORT, or 0 to turn it off")
        });
        let metrics = self.ok(metrics);
        let tracing = self.tracing(given);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Some(Operation {
            request_timeout: request_timeout?,
            max_requests_inflight_total: limits::number(flags.max_requests_inflight_total),
            max_requests_per_second_per_tenant: flags.max_requests_per_second_per_tenant,
            max_buffered_bytes: match flags.max_buffered_bytes {
                0 => MaxBufferedBytes::OfMemory,
                bytes => MaxBufferedBytes::Bytes(bytes),
            },
            shutdown: Shutdown {
                delay: delay?,
                send_retry_after: flags.shutdown_send_retry_after,
                grace_period: grace_period?,
                watch_termination_grace_period: watches?,
            },
            livez_grace_period: livez_grace_period?,
            metrics: metrics?,
            exposes_cluster_status: flags.metrics_expose_cluster_status,
            workers: if flags.workers == 0 { cores } else { flags.workers },
            verbosity: flags.verbosity,
            log_format: flags.logging_format,
            tracing,
        })
    }
}

/// A list flag's values; an empty value alone (`--flag=`) is an empty list.
fn listed(values: &[String]) -> Vec<String> {
    match values {
        [only] if only.is_empty() => Vec::new(),
        values => values.to_vec(),
    }
}
