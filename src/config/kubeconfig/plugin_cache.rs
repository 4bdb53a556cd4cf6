//! A cache of plugin credentials across configuration loads. Runs a plugin when its credential is first needed, after
//! 80 % of the credential's lifetime, and after the backend has rejected it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use portcullis_system::clock::{Clock, UnixTime};

use super::exec::{ExecPlugin, PluginCredential, PluginError};

/// The minimum interval between runs after a failure, or after the backend rejected the credential.
const RETRY_BACKOFF: Duration = Duration::from_secs(10);
/// A plugin runs again after this share of its credential's remaining lifetime.
const REFRESH_AT_PERCENT: u32 = 80;
/// The minimum interval between runs after a success, however soon the credential expires.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The gateway's connection for which a plugin runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CredentialUser {
    /// That to the API servers of the cluster of this name.
    Cluster(String),
    /// That to the management cluster.
    ManagementCluster,
}

/// The cached credentials, limited to the plugins that the last two loads used.
#[derive(Clone, Default)]
pub(in crate::config) struct PluginCache(HashMap<ExecPlugin, CachedCredential>);

#[derive(Clone, Default)]
struct CachedCredential {
    issued: Option<PluginCredential>,
    ran: UnixTime,
    /// When to run the plugin again.
    due: Option<UnixTime>,
    /// The error of the last run.
    failure: Option<String>,
    /// Whether the current load uses it.
    used: bool,
    /// For which connections to API servers the current load uses it; webhooks have plugins, too.
    users: BTreeSet<CredentialUser>,
}

impl PluginCache {
    /// Begins a load: forgets the plugins that the previous one did not use.
    pub(in crate::config) fn begin(&mut self) {
        self.0.retain(|_, held| {
            held.users.clear();
            std::mem::take(&mut held.used)
        });
    }

    /// The credential of `plugin`, for `user`. Runs the plugin if none is cached or it is due. If the run fails, returns the cached
    /// credential, expired or not: the backend decides whether it is still valid.
    pub(in crate::config) fn credential(
        &mut self,
        plugin: &ExecPlugin,
        user: Option<&CredentialUser>,
        clock: &Clock,
    ) -> Result<PluginCredential, PluginError> {
        let held = self.0.entry(plugin.clone()).or_default();
        held.used = true;
        held.users.extend(user.cloned());
        if let Some(issued) = &held.issued
            && held.due.is_none_or(|due| clock.now() < due)
        {
            return Ok(issued.clone());
        }
        let result = plugin.run(clock);
        let now = clock.now();
        held.ran = now;
        match (result, &held.issued) {
            (Ok(issued), _) => {
                // A plugin may return the same credential until shortly before it expires; the interval then shrinks
                // with the remaining lifetime.
                let refresh_in = |end: UnixTime| end.saturating_sub(now) * REFRESH_AT_PERCENT / 100;
                held.due = issued.expires.map(|end| now + MIN_REFRESH_INTERVAL.max(refresh_in(end)));
                held.failure = None;
                held.issued = Some(issued.clone());
                Ok(issued)
            }
            (Err(error), old) => {
                held.due = Some(now + RETRY_BACKOFF);
                held.failure = Some(error.to_string());
                old.clone().ok_or(error)
            }
        }
    }

    /// When the first plugin in use is due.
    pub(in crate::config) fn due(&self) -> Option<UnixTime> {
        self.in_use().filter_map(|(_, held)| held.due).min()
    }

    /// Makes the plugins of these users due, but none sooner than [`RETRY_BACKOFF`] after its last run. Returns whether
    /// there are any.
    // threat: foreign-refusal
    pub(in crate::config) fn expire(&mut self, users: &BTreeSet<CredentialUser>) -> bool {
        let mut has_any = false;
        for held in self.0.values_mut().filter(|held| held.used && !held.users.is_disjoint(users)) {
            let soonest = held.ran + RETRY_BACKOFF;
            held.due = Some(held.due.map_or(soonest, |due| due.min(soonest)));
            has_any = true;
        }
        has_any
    }

    /// The failures of plugins whose earlier credential remains in use.
    pub(in crate::config) fn warnings(&self) -> Vec<String> {
        let with_credential = self.in_use().filter(|(_, held)| held.issued.is_some());
        let mut warnings: Vec<String> = with_credential
            .filter_map(|(_, held)| held.failure.as_ref())
            .map(|failure| format!("exec: {failure}; the previous credential remains in use"))
            .collect();
        warnings.sort();
        warnings
    }

    fn in_use(&self) -> impl Iterator<Item = (&ExecPlugin, &CachedCredential)> {
        self.0.iter().filter(|(_, held)| held.used)
    }
}

impl fmt::Debug for PluginCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys().map(ExecPlugin::command)).finish()
    }
}
