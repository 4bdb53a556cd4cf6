//! Reads the folder of a plugin.

use std::collections::BTreeMap;
use std::path::Path;

use portcullis_admission::configuration::manifest::{
    FolderContent, ManifestError, ManifestWarning, Manifests,
};
use portcullis_kubernetes::yaml::{self, KeyLines, MAX_MANIFEST_NODES};

use super::super::ConfigResolver;
use crate::config::error::ConfigError;
use crate::config::manifest_files::{Document, documents};

/// Limits of a folder.
const MAX_FILES: usize = 10_000;
const MAX_TOTAL_BYTES: usize = 64 << 20;

impl ConfigResolver<'_> {
    /// What a folder has, of which nothing is read yet, in the order in which it is asked. With any error there is nothing.
    // apiserver: pkg/admission/plugin/{webhook,policy}/manifest/loader/loader.go, LoadManifests
    pub(super) fn manifests<C: FolderContent>(
        &mut self,
        key: &str,
        folder: &Path,
        mut manifests: Manifests<C>,
    ) -> Vec<C::Item> {
        let listed = self.inputs.manifests(folder).map_err(|error| {
            let fix = "give a readable folder";
            ConfigError::new(key, format!("failed to read manifest directory: {error}"))
                .in_file(folder)
                .fix(fix)
        });
        let Some(files) = self.ok(listed) else { return Vec::new() };
        if files.len() > MAX_FILES {
            let problem = format!("has {} manifests, more than {MAX_FILES}", files.len());
            let fix = "join manifests: a file may have several documents";
            self.errors.push(ConfigError::new(key, problem).in_file(folder).fix(fix));
            return Vec::new();
        }
        let before = self.errors.len();
        let mut lines = BTreeMap::new();
        let mut total = 0;
        for file in &files {
            let Some(content) = self.read(key, file) else { continue };
            total += content.len();
            if total > MAX_TOTAL_BYTES {
                let problem = format!("has more than {} MiB of manifests", MAX_TOTAL_BYTES >> 20);
                let error = ConfigError::new(key, problem).in_file(folder);
                self.errors.push(error.fix("remove manifests, or managedFields in them"));
                return Vec::new();
            }
            self.manifest(key, file, &content, &mut manifests, &mut lines);
        }
        for ManifestWarning { file, document, field, text } in manifests.take_warnings() {
            let at = line(&lines, &file, document, &field);
            self.warnings.push(format!("{key}: {file}: line {at}: {text}"));
        }
        let content = manifests.finish().unwrap_or_else(|errors| {
            self.errors.extend(errors.into_iter().map(|error| located(key, error, &lines)));
            Vec::new()
        });
        if self.errors.len() > before { Vec::new() } else { content }
    }

    fn manifest<C: FolderContent>(
        &mut self,
        key: &str,
        file: &Path,
        content: &[u8],
        manifests: &mut Manifests<C>,
        lines: &mut DocumentLines,
    ) {
        let bad = |problem: String, fix: &str| ConfigError::new(key, problem).in_file(file).fix(fix);
        let Ok(text) = str::from_utf8(content) else {
            return self.errors.push(bad("it is not valid UTF-8".to_owned(), "give YAML or JSON in UTF-8"));
        };
        let documents = match documents(text) {
            Ok(documents) => documents,
            Err(problem) => {
                let problem = format!("failed to split YAML documents: {problem}");
                return self.errors.push(bad(problem, "give --- on a line of its own"));
            }
        };
        let name = file.display().to_string();
        for (number, Document { text, lines_before }) in documents.into_iter().enumerate() {
            match yaml::parse_bounded(text.as_bytes(), MAX_MANIFEST_NODES) {
                Ok(document) => {
                    manifests.add(&name, number, &document.value);
                    lines.insert((name.clone(), number), (lines_before, document.lines));
                }
                Err(problem) => {
                    let problem = format!("document {}: {problem}", number + 1);
                    let fix = "indent by spaces, write each key once; separate documents by ---";
                    self.errors.push(bad(problem, fix));
                }
            }
        }
    }
}

/// The lines of each document of a file, and the number of lines before it.
type DocumentLines = BTreeMap<(String, usize), (u64, KeyLines)>;

/// The line of a value in its file.
fn line(lines: &DocumentLines, file: &str, document: usize, field: &str) -> u64 {
    let place = (file.to_owned(), document);
    lines.get(&place).map_or(1, |(before, lines)| before + lines.of(field))
}

fn located(key: &str, error: ManifestError, lines: &DocumentLines) -> ConfigError {
    let ManifestError { file, object: _, document, field, problem, fix } = error;
    let path = Path::new(&file).to_owned();
    let line = line(lines, &file, document, &field);
    ConfigError::new(key, problem.to_string()).in_file(&path).fix(format!("line {line}: {fix}"))
}
