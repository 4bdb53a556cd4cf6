//! The table of releases and rows, as docs/releases.md has it.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;

use testkit::paths::workspace_root;
use testkit::real::{newest_release, older_releases};

use crate::rows::ROWS;

/// What each row has shown with each release.
#[derive(Debug, Default)]
pub(crate) struct Table(Mutex<BTreeMap<String, BTreeMap<&'static str, String>>>);

impl Table {
    pub(crate) fn add(&self, release: &str, row: &'static str, shown: String) {
        self.0.lock().unwrap().entry(release.to_owned()).or_default().insert(row, shown);
    }

    /// The rows of Markdown.
    pub(crate) fn markdown(&self) -> String {
        let table = self.0.lock().unwrap();
        let releases: Vec<&String> = table.keys().collect();
        let head = header(releases.iter().map(|release| release.as_str()));
        let mut lines = vec![head, format!("|---|{}", "---|".repeat(releases.len()))];
        for row in ROWS {
            let cells = table.values().map(|cells| cells.get(row.name).map_or("", String::as_str));
            lines.push(format!("| {} | {} |", row.name, cells.collect::<Vec<_>>().join(" | ")));
        }
        lines.join("\n")
    }
}

fn header<'a>(releases: impl Iterator<Item = &'a str>) -> String {
    let releases: Vec<&str> = releases.map(|release| release.trim_start_matches('v')).collect();
    format!("| | {} |", releases.join(" | "))
}

/// The page has the releases that the tests use, and every row.
pub(crate) fn is_of_the_pinned_releases() -> Result<(), String> {
    let page = workspace_root().join("docs/releases.md");
    let page = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    let mut releases = older_releases();
    releases.push(newest_release()?);
    let expected = header(releases.iter().map(String::as_str));
    let mut missing: Vec<String> = ROWS.iter().map(|row| format!("| {} |", row.name)).collect();
    missing.push(expected);
    missing.retain(|line| !page.lines().any(|of_page| of_page.starts_with(line)));
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "docs/releases.md has no {missing:#?}; PORTCULLIS_SKEW=all cargo test --test skew prints the table"
    ))
}
