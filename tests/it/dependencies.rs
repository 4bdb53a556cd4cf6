//! `docs/dependencies.md` has one row for each direct dependency of the workspace, and no other row.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

type Names = BTreeSet<String>;

/// The crate of the tests' own tools, whose dependencies are not the product's.
const TEST_CRATE: &str = "testkit";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The crates of other authors in the sections that `is_wanted` accepts.
fn dependencies(manifest: &str, is_wanted: fn(&str) -> bool) -> Names {
    let mut section = "";
    let mut names = Names::new();
    for line in manifest.lines() {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            assert!(!section.contains("dependencies."), "write [{section}] as a line of its table");
        } else if is_wanted(section)
            && let Some((name, value)) = line.split_once(" = ")
            && !line.starts_with('#')
            && !value.contains("path = ")
        {
            names.insert(name.to_owned());
        }
    }
    names
}

/// The product's dependencies, and those of tests alone.
fn direct_dependencies() -> (Names, Names) {
    let crates = std::fs::read_dir(root().join("crates")).unwrap();
    let mut packages: Vec<PathBuf> = crates.map(|entry| entry.unwrap().path()).collect();
    packages.push(root().to_owned());
    let (mut product, mut all) = (Names::new(), Names::new());
    for package in packages {
        let manifest = std::fs::read_to_string(package.join("Cargo.toml")).unwrap();
        all.extend(dependencies(&manifest, |section| section.ends_with("dependencies")));
        if !package.ends_with(TEST_CRATE) {
            let is_product =
                |section: &str| section.ends_with("dependencies") && !section.ends_with("dev-dependencies");
            product.extend(dependencies(&manifest, is_product));
        }
    }
    let tests = all.difference(&product).cloned().collect();
    (product, tests)
}

/// The crates in the table with this header, each with all its cells.
fn documented(page: &str, header: &str) -> Names {
    let rows = page.lines().skip_while(|line| *line != header).skip(2);
    let mut names = Names::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), header.trim_matches('|').split('|').count(), "cells of {row}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "an empty cell: {row}");
        let name = cells[0].trim_matches('`').to_owned();
        assert!(names.insert(name), "listed twice: {row}");
    }
    names
}

#[test]
fn each_direct_dependency_has_a_row() {
    let page = std::fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let (product, tests) = direct_dependencies();
    assert!(product.len() > 40 && tests.len() > 3, "the manifests were not read");
    let tables = [
        ("| crate | used for | why this one | would be replaced by |", product),
        ("| test crate | used for |", tests),
    ];
    for (header, used) in tables {
        let documented = documented(&page, header);
        let missing: Vec<_> = used.difference(&documented).collect();
        let stale: Vec<_> = documented.difference(&used).collect();
        assert!(missing.is_empty(), "docs/dependencies.md has no row for {missing:?} under {header:?}");
        assert!(stale.is_empty(), "docs/dependencies.md has rows for {stale:?}, which no manifest names");
    }
}
