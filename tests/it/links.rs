//! The relative links of the documentation lead to files and headings that exist, and README and the table of contents lead to each page.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The directories with pages.
const DIRECTORIES: [&str; 8] = ["", "certs", "deploy", "docs", "fuzz", "tests", "tests/attacks", "tests/go"];

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = DIRECTORIES.iter().flat_map(|directory| std::fs::read_dir(root.join(directory)).unwrap());
    let paths = files.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// The anchors of a page, by GitHub's rule.
fn anchors(page: &str) -> HashSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let slug = |heading: &str| -> String {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(slug).collect()
}

#[test]
fn relative_links_lead_to_files_and_headings() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let (mut broken, mut seen) = (Vec::new(), 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in link.captures_iter(&text).map(|found| found.get(1).unwrap().as_str()) {
            if target.contains("://") {
                continue;
            }
            seen += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let is_good = file.exists()
                && (anchor.is_empty()
                    || anchors(&std::fs::read_to_string(&file).unwrap_or_default()).contains(anchor));
            if !is_good {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(seen > 50, "the links were not found");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn readme_and_the_table_of_contents_list_each_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = pages().into_iter().filter(|page| page.parent() == Some(&root.join("docs")));
    let names = pages.map(|page| page.file_name().unwrap().to_str().unwrap().to_owned());
    let names: Vec<String> = names.filter(|name| name != "SUMMARY.md").collect();
    assert!(names.len() > 20, "the pages were not found");
    for (file, folder) in [("README.md", "docs/"), ("docs/SUMMARY.md", "")] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let missing: Vec<&String> =
            names.iter().filter(|name| !text.contains(&format!("]({folder}{name})"))).collect();
        assert!(missing.is_empty(), "{file} does not list {missing:?}");
    }
}

#[test]
fn readme_fits_150_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lines = std::fs::read_to_string(root.join("README.md")).unwrap().lines().count();
    assert!(lines <= 150, "{lines} lines");
}
