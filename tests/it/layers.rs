//! The source as its documents describe it: imports point down, and the request path is the one that is told.

use std::collections::BTreeMap;
use std::path::Path;

/// The modules from the top to the bottom; a module may import what stands below it. Leaves import leaves alone.
const ORDER: &[&str] = &[
    "main",
    "fuzzing",
    "cli",
    "dev",
    "server",
    "reload",
    "self_check",
    "pipeline",
    "health",
    "token_review",
    "snapshot",
    "telemetry",
    "config",
    "listen",
    "methods",
    "lookups",
    "controllers",
    "forward",
    "stage",
    "clusters",
    "authn",
    "bootstrap",
    "certificates",
    "outbound",
    "request",
];
const LEAVES: [&str; 10] =
    ["cel", "status", "query", "escape", "user", "clock", "input_file", "metrics", "transport", "x509"];

fn rank(module: &str) -> Option<usize> {
    let leaf = LEAVES.contains(&module).then_some(ORDER.len());
    ORDER.iter().position(|known| *known == module).or(leaf)
}

fn sources(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Each module's imports of the crate, as written in `use crate::…`, tests left out.
fn imports() -> BTreeMap<String, Vec<(String, String)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut imports: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for file in files {
        let relative = file.strip_prefix(&root).unwrap();
        let module = relative
            .components()
            .next()
            .unwrap()
            .as_os_str()
            .to_str()
            .unwrap()
            .trim_end_matches(".rs")
            .to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for part in code.split("crate::").skip(1) {
            let target: String =
                part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            imports.entry(module.clone()).or_default().push((target, relative.display().to_string()));
        }
    }
    imports
}

#[test]
fn imports_point_down() {
    let mut upward = Vec::new();
    let mut seen = 0;
    for (module, targets) in imports() {
        if module == "lib" {
            continue;
        }
        let Some(from) = rank(&module) else { panic!("{module} has no place in the order") };
        for (target, file) in targets {
            seen += 1;
            let Some(to) = rank(&target) else {
                panic!("{target}, imported by {file}, has no place in the order")
            };
            if target != module && to < from.max(1) {
                upward.push(format!("{file} imports {target}"));
            }
        }
    }
    assert!(seen > 50, "the sources were not read");
    assert!(upward.is_empty(), "upward imports:\n{}", upward.join("\n"));
}

/// Go's reading of PEM decides what is approved and trusted; a second reader may find other blocks in the same text.
#[test]
fn pem_has_one_reader() {
    const OTHERS: [&str; 6] =
        ["PemObject", "x509_parser::pem", "parse_x509_pem", "rustls_pemfile", "pem_rfc7468", "DecodePem"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let is_test = |file: &Path| {
        let names = ["tests", "tests.rs", "testing.rs", "fuzzing"];
        file.strip_prefix(&root).unwrap().iter().any(|part| names.iter().any(|name| part == *name))
    };
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !is_test(file)) {
        let text = std::fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        found.extend(OTHERS.iter().filter(|other| code.contains(*other)).map(|other| (file, other)));
    }
    assert!(found.is_empty(), "PEM is read by other means than x509::pem: {found:#?}");
}

#[test]
fn the_request_path_is_the_one_that_is_told() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let told = std::fs::read_to_string(root.join("docs/request-path.md")).unwrap();
    let told: Vec<&str> =
        told.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let code = std::fs::read_to_string(root.join("src/stage.rs")).unwrap();
    let (head, _) = code.split_once('\n').unwrap();
    let chain = head.split('`').nth(1).unwrap();
    assert_eq!(
        told,
        chain.split(" → ").collect::<Vec<_>>(),
        "the stages of docs/request-path.md and of src/stage.rs"
    );
    // And the path makes each of them, in this order.
    let path = std::fs::read_to_string(root.join("src/pipeline.rs")).unwrap();
    let answer = path.split("async fn answer").nth(1).unwrap().split("\n    }\n").next().unwrap();
    let mut at = 0;
    for stage in &told {
        let variable = format!("let {} = ", stage.to_lowercase());
        let found = answer[at..]
            .find(&variable)
            .unwrap_or_else(|| panic!("{variable}is not made, or made too early"));
        at += found;
    }
    assert!(answer[at..].contains("forward::send("));
}

#[test]
fn declared_differences_have_one_row_each() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("docs/conformance.md")).unwrap();
    let mut ids: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("| D-")?.split(' ').next()).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert!(all > 10 && ids.len() == all, "{ids:?}");
}
