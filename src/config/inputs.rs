//! What a configuration was read from, so that a change of any of it can be noticed: files, and the credentials that
//! plugins give for a time. And the authorities that were made of files that have not changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;

use super::kubeconfig::{Issued, Plugin, PluginError, Plugins};
use crate::clock::{Clock, UnixTime};
use crate::input_file::{self, ReadFileError};
use crate::pki::issuance::authority::Authority;

/// Files, each with a digest of what it held when it was read; `None` if it could not be read. And what credential
/// plugins gave, with the time when they are to be run again.
///
/// The content counts, not the time stamp: a mounted Secret changes by a symbolic link that is swapped.
#[derive(Debug, Clone)]
pub struct Inputs {
    files: BTreeMap<PathBuf, Option<[u8; digest::SHA256_OUTPUT_LEN]>>,
    plugins: Plugins,
    authorities: BTreeMap<Vec<u8>, Held>,
    warnings: Vec<String>,
    clock: Clock,
}

/// An authority, and whether the last reading used it.
#[derive(Debug, Clone)]
struct Held {
    authority: Arc<Authority>,
    used: bool,
}

impl Default for Inputs {
    fn default() -> Self {
        Self::new(Clock::system())
    }
}

impl Inputs {
    /// Nothing read yet; `clock` tells what has expired.
    pub fn new(clock: Clock) -> Self {
        Self {
            files: BTreeMap::new(),
            plugins: Plugins::default(),
            authorities: BTreeMap::new(),
            warnings: Vec::new(),
            clock,
        }
    }

    /// Forgets the files of an earlier reading, and the credentials and authorities that it did not use.
    pub(super) fn begin(&mut self) {
        self.files.clear();
        self.plugins.begin();
        self.authorities.retain(|_, held| std::mem::take(&mut held.used));
        self.warnings.clear();
    }

    /// Reads a file and remembers what it held.
    pub fn read(&mut self, file: &Path) -> Result<Vec<u8>, ReadFileError> {
        let content = input_file::read(file);
        // The first time counts: if it has changed before it was read again, that is a change to be noticed.
        self.files.entry(file.to_owned()).or_insert_with(|| content.as_deref().ok().map(digest_of));
        content
    }

    /// What a plugin gives, from a run of it only if nothing is held or it is due.
    pub(super) fn credential(&mut self, plugin: &Plugin) -> Result<Issued, PluginError> {
        self.plugins.credential(plugin, &self.clock)
    }

    /// The authority of this digest: the one that is held, so that a key in a token is asked for only if something about
    /// it has changed, or the one that is made now.
    pub(super) fn authority<E>(
        &mut self,
        digest: &[u8],
        make: impl FnOnce() -> Result<Authority, E>,
    ) -> Result<Arc<Authority>, E> {
        if let Some(held) = self.authorities.get_mut(digest) {
            held.used = true;
            return Ok(Arc::clone(&held.authority));
        }
        let authority = Arc::new(make()?);
        let held = Held { authority: Arc::clone(&authority), used: true };
        self.authorities.insert(digest.to_vec(), held);
        Ok(authority)
    }

    /// The time by which things expire.
    pub(super) fn now(&self) -> UnixTime {
        self.clock.now()
    }

    /// Remembers what is odd in what was read.
    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// What is odd, and which refreshes failed, so that an earlier credential serves on.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.warnings.iter().cloned().chain(self.plugins.warnings()).collect()
    }

    /// Whether any of the files holds something else now.
    pub fn changed(&self) -> bool {
        self.files.iter().any(|(file, before)| {
            let now = input_file::read(file).ok();
            now.as_deref().map(digest_of) != *before
        })
    }

    /// When the configuration should be read again though no file has changed, because a credential comes to its end.
    pub fn due(&self) -> Option<UnixTime> {
        self.plugins.due()
    }

    /// To be called when a backend has refused the gateway's credential: plugins become due, at once or, if they ran
    /// just now, after a few seconds, so that a backend that refuses everything does not keep them running.
    pub fn expire_credentials(&mut self) {
        self.plugins.expire();
    }
}

fn digest_of(content: &[u8]) -> [u8; digest::SHA256_OUTPUT_LEN] {
    let digest = digest::digest(&digest::SHA256, content);
    digest.as_ref().try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_while_it_is_read_twice_has_changed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tokens.csv");
        let mut inputs = Inputs::default();
        std::fs::write(&file, "before").unwrap();
        inputs.read(&file).unwrap();
        assert!(!inputs.changed());
        std::fs::write(&file, "after").unwrap();
        inputs.read(&file).unwrap();
        assert!(inputs.changed());
    }
}
