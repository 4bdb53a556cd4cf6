//! Each attack in `docs/threat-model.md` lists the files that prevent it, and `// threat: ID` marks the code in these
//! files.

use std::collections::BTreeSet;
use std::path::Path;

/// An attack's id and a file.
type Places = BTreeSet<(String, String)>;

/// The places that the sections list: of each attack the heading is its id, and a paragraph has the files.
fn documented(page: &str) -> Places {
    let (_, attacks) = page.split_once("\n## Attacks and defences\n").expect("the attacks");
    let (attacks, _) = attacks.split_once("\n## ").expect("a section after the attacks");
    let mut places = Places::new();
    let mut ids = BTreeSet::new();
    for section in attacks.split("\n### ").skip(1) {
        let (id, text) = section.split_once('\n').expect("a heading and a text");
        assert!(ids.insert(id), "the id {id} is listed twice");
        assert!(text.contains("\n- "), "{id} has no defence");
        let (_, code) = text.split_once("\nCode: ").unwrap_or_else(|| panic!("{id} names no code"));
        for file in code.split(',') {
            places.insert((id.to_owned(), file.trim().trim_matches('`').to_owned()));
        }
    }
    assert!(ids.len() > 50, "the attacks were not found");
    places
}

/// Collects the places that the code marks.
fn marked(root: &Path, directory: &Path, places: &mut Places) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            marked(root, &path, places);
            continue;
        }
        if path.extension() != Some("rs".as_ref()) {
            continue;
        }
        let file = path.strip_prefix(root).unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for ids in text.lines().filter_map(|line| line.trim().strip_prefix("// threat: ")) {
            places.extend(ids.split(", ").map(|id| (id.to_owned(), file.to_owned())));
        }
    }
}

#[test]
fn documented_attacks_and_marked_code_match() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documented = documented(&std::fs::read_to_string(root.join("docs/threat-model.md")).unwrap());
    let mut marked_places = Places::new();
    marked(root, &root.join("src"), &mut marked_places);
    for package in std::fs::read_dir(root.join("crates")).unwrap() {
        marked(root, &package.unwrap().path().join("src"), &mut marked_places);
    }
    let missing = |from: &Places, of: &Places| -> Vec<String> {
        from.difference(of).map(|(id, file)| format!("{id} in {file}")).collect()
    };
    assert_eq!(missing(&documented, &marked_places), [""; 0], "documented, but without a marker");
    assert_eq!(missing(&marked_places, &documented), [""; 0], "marked, but not documented");
}
