//! The credentials that plugins gave, kept from one reading of the configuration to the next: a plugin is run when
//! its credential is needed first, some time before it expires, and when the backend has refused it.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use super::exec::{Issued, Plugin, PluginError};
use crate::clock::{Clock, UnixTime};

/// How long a plugin is left in peace after it failed, or after what it gave was refused.
const PAUSE: Duration = Duration::from_secs(10);
/// How soon after a success it is run again at the earliest, however short the life of what it gave.
const SHORTEST_USE: Duration = Duration::from_secs(1);

/// What plugins gave; no more of them than the last two readings of the configuration used.
#[derive(Clone, Default)]
pub(in crate::config) struct Plugins(HashMap<Plugin, Held>);

#[derive(Clone, Default)]
struct Held {
    issued: Option<Issued>,
    ran: UnixTime,
    /// When to run it again.
    due: Option<UnixTime>,
    /// Why the last run gave nothing.
    failure: Option<String>,
    /// Whether this reading of the configuration needs it.
    used: bool,
}

impl Plugins {
    /// A new reading begins: what the one before did not use is forgotten.
    pub(in crate::config) fn begin(&mut self) {
        self.0.retain(|_, held| std::mem::take(&mut held.used));
    }

    /// The credential that `plugin` gives, from a run of it now if none is held or it is due. If that fails, what is
    /// held serves on, whether expired or not: the backend decides whether it is still good.
    pub(in crate::config) fn credential(
        &mut self,
        plugin: &Plugin,
        clock: &Clock,
    ) -> Result<Issued, PluginError> {
        let held = self.0.entry(plugin.clone()).or_default();
        held.used = true;
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
                // A plugin may give the same credential again until shortly before its end; then the pauses shrink
                // with what is left of its life.
                held.due = issued.expires.map(|end| now + SHORTEST_USE.max(end.saturating_sub(now) * 4 / 5));
                held.failure = None;
                held.issued = Some(issued.clone());
                Ok(issued)
            }
            (Err(error), old) => {
                held.due = Some(now + PAUSE);
                held.failure = Some(error.to_string());
                old.clone().ok_or(error)
            }
        }
    }

    /// When the first of the plugins in use should be run again.
    pub(in crate::config) fn due(&self) -> Option<UnixTime> {
        self.in_use().filter_map(|(_, held)| held.due).min()
    }

    /// Makes every plugin in use due, though none sooner than [`PAUSE`] after its last run.
    pub(in crate::config) fn expire(&mut self) {
        for held in self.0.values_mut().filter(|held| held.used) {
            let soonest = held.ran + PAUSE;
            held.due = Some(held.due.map_or(soonest, |due| due.min(soonest)));
        }
    }

    /// What failed and is bridged with the credential of an earlier run.
    pub(in crate::config) fn warnings(&self) -> Vec<String> {
        let bridged = self.in_use().filter(|(_, held)| held.issued.is_some());
        let mut warnings: Vec<String> = bridged
            .filter_map(|(_, held)| held.failure.as_ref())
            .map(|failure| format!("exec: {failure}; the credential it gave before is still used"))
            .collect();
        warnings.sort();
        warnings
    }

    fn in_use(&self) -> impl Iterator<Item = (&Plugin, &Held)> {
        self.0.iter().filter(|(_, held)| held.used)
    }
}

impl fmt::Debug for Plugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys().map(Plugin::command)).finish()
    }
}
