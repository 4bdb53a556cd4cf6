//! `docs/dependencies.md` has a row for every dependency of the product, and for no other crate.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The crates that a manifest's `[dependencies]` name, without those of this workspace.
fn dependencies(manifest: &Path) -> Vec<String> {
    let text = fs::read_to_string(manifest).unwrap();
    let section = text.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let entries = section.take_while(|line| !line.starts_with('['));
    let names = entries.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.to_owned());
    names.filter(|name| !name.starts_with("portcullis-")).collect()
}

#[test]
fn every_dependency_has_its_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let crates = crates.filter(|path| !path.ends_with("testkit"));
    let manifests = crates.chain([root.to_owned()]).map(|path| path.join("Cargo.toml"));
    let used: BTreeSet<String> = manifests.flat_map(|manifest| dependencies(&manifest)).collect();
    assert!(used.contains("rustls") && used.contains("cel"), "{used:?}");

    let page = fs::read_to_string(root.join("docs/dependencies.md")).unwrap();
    let (_, tables) = page.split_once("## Every dependency").unwrap();
    let rows = tables.lines().filter(|line| line.starts_with("| `"));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split(','));
    let listed: BTreeSet<String> = names.map(|name| name.trim().trim_matches('`').to_owned()).collect();
    let missing: Vec<_> = used.difference(&listed).collect();
    let stale: Vec<_> = listed.difference(&used).collect();
    assert!(missing.is_empty() && stale.is_empty(), "without a row: {missing:?}; without a use: {stale:?}");
}
