//! The modules match their maps: imports point down, and the libraries are known by their trait alone.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::string_slice,
    reason = "a test program: a panic is a failed test"
)]

use std::path::{Path, PathBuf};

/// An import: the importing file, its module, and the module that it names, as paths from the root of the crate.
struct Import {
    file: String,
    from: Vec<String>,
    to: Vec<String>,
}

/// The modules of a map, from the top to the bottom.
fn map(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(sources().join(file)).unwrap();
    let (_, rows) = text.split_once("//! | module |").unwrap();
    let rows = rows.lines().skip(2).map_while(|line| line.strip_prefix("//! | "));
    rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect()
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The paths that a text begins with: `a::b`, or `a::{b, c::d}`.
fn paths(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let mut depth = 1;
        let mut starts = vec![0];
        for (at, character) in group.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth == 1 => break,
                '}' => depth -= 1,
                ',' if depth == 1 => starts.push(at + 1),
                _ => {}
            }
        }
        return starts.into_iter().flat_map(|start| paths(&group[start..])).collect();
    }
    let name: String = text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    if name.is_empty() {
        return Vec::new();
    }
    match text[name.len()..].strip_prefix("::") {
        Some(rest) if !rest.starts_with('<') => {
            let inner = paths(rest);
            inner.into_iter().map(|path| [vec![name.clone()], path].concat()).collect()
        }
        _ => vec![vec![name]],
    }
}

/// The imports of all files but `lib.rs`, from `use` and from paths in the code, except those of tests.
fn imports() -> Vec<Import> {
    let mut found = Vec::new();
    files(&sources(), &mut found);
    let mut imports = Vec::new();
    for path in found.iter().filter(|path| !path.ends_with("src/lib.rs")) {
        let file = path.strip_prefix(sources()).unwrap().display().to_string();
        let from: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        let text = std::fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let code: String =
            code.lines().map(|line| line.split("//").next().unwrap().to_owned() + "\n").collect();
        let start = |text: &str| !text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':');
        for (at, _) in code.match_indices("crate::").filter(|(at, _)| start(&code[..*at])) {
            let targets = paths(&code[at + "crate::".len()..]);
            imports.extend(targets.into_iter().map(|to| Import {
                file: file.clone(),
                from: from.clone(),
                to,
            }));
        }
        for (at, _) in code.match_indices("super::").filter(|(at, _)| start(&code[..*at])) {
            let mut base = from.clone();
            let mut rest = &code[at..];
            while let Some(after) = rest.strip_prefix("super::") {
                base.pop();
                rest = after;
            }
            let targets = paths(rest).into_iter().map(|path| [base.clone(), path].concat());
            imports.extend(targets.map(|to| Import { file: file.clone(), from: from.clone(), to }));
        }
    }
    assert!(imports.len() > 150, "the sources were not read");
    imports
}

/// The imports from a module to one above it, of the imports between two modules at this depth of the tree.
fn upward(order: &[String], imports: &[Import], depth: usize) -> Vec<String> {
    let rank = |file: &str, module: &str| match order.iter().position(|known| known == module) {
        Some(rank) => rank,
        None => panic!("{module}, named by {file}, is not in the map"),
    };
    let climbs = |import: &&Import| {
        let (Some(from), Some(to)) = (import.from.get(depth), import.to.get(depth)) else { return false };
        rank(&import.file, to) < rank(&import.file, from)
    };
    let shown = |import: &Import| format!("{} imports {}", import.file, import.to.join("::"));
    imports.iter().filter(climbs).map(shown).collect()
}

#[test]
fn imports_point_down() {
    assert_eq!(upward(&map("lib.rs"), &imports(), 0), [""; 0], "by the map of src/lib.rs");
}

#[test]
fn libraries_import_those_below_them() {
    let within = |path: &[String]| path.len() > 1 && path[0] == "libraries";
    let mut imports = imports();
    imports.retain(|import| within(&import.from) && within(&import.to));
    assert!(!imports.is_empty(), "the libraries were not read");
    assert_eq!(upward(&map("libraries.rs"), &imports, 1), [""; 0], "by the map of src/libraries.rs");
}

/// The checker, the planner and the evaluator call libraries through the registry of an environment.
#[test]
fn libraries_are_named_where_an_environment_is_built() {
    const BUILDERS: [&str; 3] = ["environment", "bindings", "conformance"];
    let imports = imports();
    let named = imports.iter().filter(|import| import.to[0] == "libraries" && import.from[0] != "libraries");
    let (builders, others): (Vec<&Import>, Vec<&Import>) =
        named.partition(|import| BUILDERS.contains(&import.from[0].as_str()));
    assert!(!builders.is_empty(), "the sources were not read");
    assert!(others.is_empty(), "{} names a library", others[0].file);
}
