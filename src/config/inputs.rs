//! What a configuration was read from, so that a change of any of it can be noticed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;

/// Files, each with a digest of what it held when it was read; `None` if it could not be read.
///
/// The content counts, not the time stamp: a mounted Secret changes by a symbolic link that is swapped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    files: BTreeMap<PathBuf, Option<[u8; digest::SHA256_OUTPUT_LEN]>>,
}

impl Inputs {
    /// Reads a file and remembers what it held.
    pub fn read(&mut self, file: &Path) -> io::Result<Vec<u8>> {
        let content = std::fs::read(file);
        // The first time counts: if it has changed before it was read again, that is a change to be noticed.
        self.files.entry(file.to_owned()).or_insert_with(|| content.as_deref().ok().map(digest_of));
        content
    }

    /// Whether any of the files holds something else now.
    pub fn changed(&self) -> bool {
        self.files.iter().any(|(file, before)| {
            let now = std::fs::read(file).ok();
            now.as_deref().map(digest_of) != *before
        })
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
