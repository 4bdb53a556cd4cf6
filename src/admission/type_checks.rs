//! Warns in the log of expressions of policies that do not fit the objects that they are about, by the schemas that the API servers
//! publish.
//!
//! When the policies of a cluster are loaded, a task reads which kinds their rules name, and the documents of these kinds, and checks
//! each expression by them. It never delays a request, and a policy does the same whatever it finds. What cannot be read is tried
//! again for [`TIMEOUT`]. A load of the same policies checks again only the documents that have another hash.
// threat: published-schemas
// kubernetes: pkg/controller/validatingadmissionpolicystatus/controller.go

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_admission::{
    AnyPolicy, GroupVersionKind, GroupVersionResource, KindError, Policies, TypeWarning,
};
use portcullis_limits::Owner;
use portcullis_merge::{Declarations, DeclaredType};
use portcullis_system::sync::lock;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::cached_reads::ReadError;
use super::memory::ClusterReviewMemory;
use super::schemas::{ParsedDocuments, PublishedSchemas};
use super::served::ServedResources;
use crate::tasks::compute::ClusterComputePool;

/// How long what cannot be read is tried again.
// threat: silent-backend
const TIMEOUT: Duration = Duration::from_mins(2);
/// The pauses between tries: the first one, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// The most API groups whose kinds are looked for.
const MAX_GROUPS: usize = 64;
/// The most warnings of a load.
// threat: log-flood
const MAX_WARNINGS: usize = 50;
/// How much of an error, and of its fix, is logged.
const MAX_LOGGED_CHARACTERS: usize = 300;
/// The flow of the gateway itself.
const FLOW: &str = "";
const FIX: &str = "name a field that the schema has, compare values of one type, or put dyn() around a part whose type the \
                   schema does not say";

/// The checks of the policies of a cluster, of one generation of the configuration.
#[derive(Debug)]
pub(super) struct TypeChecks {
    checked: Arc<Mutex<Checked>>,
    _task: Option<AbortOnDropHandle<()>>,
}

/// What was checked.
#[derive(Debug, Clone, Default)]
struct Checked {
    policies: Policies,
    /// What the index said of each document, by group and version.
    documents: BTreeMap<(String, String), String>,
}

/// The sources of the kinds and their types, and the owner of the work.
#[derive(Debug)]
pub(super) struct TypeSources {
    pub(super) cluster: String,
    pub(super) owner: Owner,
    pub(super) served: Arc<ServedResources>,
    pub(super) schemas: Arc<PublishedSchemas>,
    pub(super) declarations: ParsedDocuments<Declarations>,
    pub(super) compute: ClusterComputePool,
    pub(super) memory: ClusterReviewMemory,
}

impl TypeChecks {
    /// Starts the checks that are not those of `before`.
    pub(super) fn start(
        policies: &Policies,
        sources: TypeSources,
        runtime: &Handle,
        before: Option<&Self>,
    ) -> Self {
        let known = before.map(|before| lock(&before.checked).clone());
        let checked = match known.filter(|known| known.policies == *policies) {
            Some(known) => known,
            None => Checked { policies: policies.clone(), documents: BTreeMap::new() },
        };
        let checked = Arc::new(Mutex::new(checked));
        let named: BTreeSet<(String, String)> =
            policies.all().flat_map(AnyPolicy::named_group_versions).collect();
        let task = (!named.is_empty()).then(|| {
            let (policies, checked) = (policies.clone(), Arc::clone(&checked));
            let log = WarningLog { cluster: sources.cluster.clone(), logged: 0, omitted: 0 };
            let task = CheckTask { policies, named, sources, checked, log };
            AbortOnDropHandle::new(runtime.spawn(task.run()))
        });
        Self { checked, _task: task }
    }
}

struct CheckTask {
    policies: Policies,
    /// The groups and versions that rules name.
    named: BTreeSet<(String, String)>,
    sources: TypeSources,
    checked: Arc<Mutex<Checked>>,
    log: WarningLog,
}

impl CheckTask {
    async fn run(mut self) {
        let until = Instant::now() + TIMEOUT;
        let (mut pause, longest) = PAUSES;
        let groups: BTreeSet<String> = self.named.iter().map(|(group, _)| group.clone()).collect();
        let omitted = groups.len().saturating_sub(MAX_GROUPS);
        // The groups that are left to check, with what was wrong when they were tried.
        let mut left: Vec<(String, String)> =
            groups.into_iter().take(MAX_GROUPS).map(|group| (group, String::new())).collect();
        loop {
            let mut failed = Vec::new();
            for (group, before) in left {
                match timeout_at(until, self.check_group(&group)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => failed.push((group, error.to_string())),
                    Err(_) if before.is_empty() => failed.push((group, "no response in time".to_owned())),
                    Err(_) => failed.push((group, before)),
                }
            }
            left = failed;
            if left.is_empty() || Instant::now() + pause >= until {
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        self.log.end(&left, omitted);
    }

    /// Checks the expressions of all policies by the kinds of a group that their rules name.
    async fn check_group(&mut self, group: &str) -> Result<(), ReadError> {
        let served = self.sources.served.group(FLOW, group).await?;
        let policies = self.policies.clone();
        // What the rules of each policy name in the group.
        let kind_of = |resource: &GroupVersionResource| {
            (resource.group == group).then(|| served.kind(&resource.version, &resource.resource)).flatten()
        };
        let kinds: Vec<Vec<GroupVersionKind>> =
            policies.all().map(|policy| policy.kinds_to_check(kind_of)).collect();
        let versions: BTreeSet<(String, String)> =
            kinds.iter().flatten().map(|kind| (kind.group.clone(), kind.version.clone())).collect();
        for (group, version) in versions {
            let document = self.sources.schemas.document(FLOW, &group, &version).await?;
            let Some(document) = document else { continue };
            let (key, url) = ((group.clone(), version.clone()), document.url.clone());
            if lock(&self.checked).documents.get(&key) == Some(&url) {
                continue;
            }
            let owner = self.sources.owner.clone();
            let _turn = self.sources.memory.turn_to_check().await.map_err(|_| ReadError::Busy)?;
            let declarations = self.sources.declarations.of((FLOW, &owner), document).await?;
            let mut found = Vec::new();
            for (number, kinds) in kinds.iter().enumerate() {
                for kind in kinds.iter().filter(|kind| kind.group == group && kind.version == version) {
                    let Some(object) = declarations.of(&group, &version, &kind.kind) else { continue };
                    let (policies, kind) = (policies.clone(), kind.clone());
                    // One kind at a time, so that no turn lasts long.
                    let check = move || warnings_of(&policies, number, (kind, object));
                    let warnings = self.sources.compute.compute(owner.clone(), check).await;
                    let cancelled = || ReadError::Unreadable("the check was cancelled".to_owned());
                    found.extend(warnings.ok_or_else(cancelled)?);
                }
            }
            // Only now, since a check that fails begins again.
            for (policy, warning) in found {
                self.log.warn(&policy, &warning);
            }
            lock(&self.checked).documents.insert(key, url);
        }
        Ok(())
    }
}

/// The warnings about one of the policies, with its name.
fn warnings_of(
    policies: &Policies,
    number: usize,
    kind: (GroupVersionKind, DeclaredType),
) -> Vec<(String, TypeWarning)> {
    let Some(policy) = policies.all().nth(number) else { return Vec::new() };
    let warnings = policy.type_warnings(&[kind]).into_iter();
    warnings.map(|warning| (policy.scope().name.clone(), warning)).collect()
}

/// The lines of one load.
struct WarningLog {
    cluster: String,
    logged: usize,
    omitted: usize,
}

impl WarningLog {
    fn warn(&mut self, policy: &str, TypeWarning { field, errors }: &TypeWarning) {
        for KindError { kind, error } in errors {
            if self.logged == MAX_WARNINGS {
                self.omitted += 1;
                continue;
            }
            self.logged += 1;
            let (cluster, kind) = (&self.cluster, kind.to_string());
            let fix = shortened(error.fix().unwrap_or(FIX));
            let error = shortened(&heads(&error.to_string()));
            tracing::warn!(
                cluster,
                policy,
                field,
                kind,
                error,
                fix,
                "an expression of a policy does not fit the objects of this kind"
            );
        }
    }

    /// What was left out, and what could not be read.
    fn end(&self, failed: &[(String, String)], omitted_groups: usize) {
        let (cluster, omitted) = (&self.cluster, self.omitted);
        if omitted > 0 {
            tracing::warn!(
                cluster,
                omitted,
                "more expressions of policies do not fit the objects of a kind; portcullis admit --openapi shows all"
            );
        }
        if omitted_groups > 0 {
            tracing::warn!(
                cluster,
                omitted_groups,
                checked_groups = MAX_GROUPS,
                "the expressions of policies are not checked for all API groups that their rules name"
            );
        }
        for (group, error) in failed {
            tracing::warn!(
                cluster,
                group,
                error,
                "cannot check the expressions of policies by the schemas of an API group"
            );
        }
    }
}

/// The errors without the expression, which the policy has.
fn heads(text: &str) -> String {
    let heads: Vec<&str> = text.lines().filter(|line| line.starts_with("ERROR: ")).collect();
    if heads.is_empty() { text.to_owned() } else { heads.join("; ") }
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_LOGGED_CHARACTERS).collect()
}

#[cfg(test)]
mod tests;
