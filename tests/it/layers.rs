//! The source matches its documentation: imports point down, and the request path has the documented stages.

use std::collections::BTreeMap;
use std::path::Path;

/// The modules from the top to the bottom, as the map of `src/lib.rs` lists them. A module may import only modules
/// below it.
fn order() -> Vec<String> {
    let lib = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let (_, map) = lib.split_once("//! | module |").unwrap();
    let rows = map.lines().skip(2).map_while(|line| line.strip_prefix("//! | "));
    let names = rows.map(|row| row.split('`').nth(1).unwrap().to_owned());
    ["main".to_owned()].into_iter().chain(names).collect()
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

/// Each module's imports from the crate, as written in `use crate::…`, except those of tests.
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
    let order = order();
    let rank = |module: &str| order.iter().position(|known| known == module);
    let mut upward = Vec::new();
    let mut seen = 0;
    for (module, targets) in imports() {
        if module == "lib" {
            continue;
        }
        let Some(from) = rank(&module) else { panic!("{module} is not in the map of src/lib.rs") };
        for (target, file) in targets {
            seen += 1;
            let Some(to) = rank(&target) else {
                panic!("{target}, imported by {file}, is not in the map of src/lib.rs")
            };
            if target != module && to < from {
                upward.push(format!("{file} imports {target}"));
            }
        }
    }
    assert!(seen > 50, "the sources were not read");
    assert!(upward.is_empty(), "upward imports:\n{}", upward.join("\n"));
}

/// All PEM is parsed by Go's rules, which decide about approval and trust; another parser may find other blocks in a
/// text.
#[test]
fn pem_has_one_parser() {
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
    assert!(found.is_empty(), "PEM is parsed by other means than x509::pem: {found:#?}");
}

/// `serde_json::Value` treats some member names specially; `go::json::JsonValue` does not. In a file that uses both,
/// each call must name its type, so that no type is inferred.
#[test]
fn untrusted_json_is_not_parsed_as_serde_json_value() {
    // The operator writes the configuration, and its values are parsed from YAML.
    const TRUSTED: [&str; 1] = ["config"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let is_left_out = |file: &Path| {
        let names = ["tests", "tests.rs", "testing.rs", "fuzzing"];
        let file = file.strip_prefix(&root).unwrap();
        file.iter().any(|part| names.iter().chain(&TRUSTED).any(|name| part == *name))
    };
    let has_word = |text: &str, word: &str| {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
    };
    let (mut found, mut readings) = (Vec::new(), 0);
    for file in files.iter().filter(|file| !is_left_out(file)) {
        let text = std::fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let name = file.strip_prefix(&root).unwrap().display();
        let knows_values = code.split(';').any(|item| {
            item.contains("use serde_json::")
                && !item.contains("use serde_json::value")
                && has_word(item, "Value")
        });
        for reader in ["from_slice", "from_str", "from_reader", "from_value"] {
            for (at, call) in code.match_indices(&format!("serde_json::{reader}")) {
                readings += 1;
                let generics = code[at + call.len()..].split('(').next().unwrap();
                if has_word(generics, "Value")
                    || (knows_values && generics.is_empty() && reader != "from_value")
                {
                    found.push(format!("{name}: {call}{generics}"));
                }
            }
        }
        if code.contains("Value::deserialize") && !code.contains("JsonValue::deserialize") {
            found.push(format!("{name}: Value::deserialize"));
        }
        // The fields of types that derive Deserialize.
        for item in code.split("#[derive(").skip(1) {
            let Some((traits, rest)) = item.split_once(")]") else { continue };
            let body = rest.split(['}', ';']).next().unwrap();
            if has_word(traits, "Deserialize") && has_word(body, "Value") {
                found.push(format!("{name}: derives Deserialize with a Value"));
            }
        }
    }
    assert!(readings > 10, "the sources were not read");
    assert!(found.is_empty(), "read as serde_json::Value: {found:#?}");
}

#[test]
fn the_request_path_has_the_documented_stages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documented = std::fs::read_to_string(root.join("docs/request-path.md")).unwrap();
    let documented: Vec<&str> =
        documented.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let code = std::fs::read_to_string(root.join("src/pipeline/stages.rs")).unwrap();
    let (head, _) = code.split_once('\n').unwrap();
    let chain = head.split('`').nth(1).unwrap();
    assert_eq!(
        documented,
        chain.split(" → ").collect::<Vec<_>>(),
        "the stages of docs/request-path.md and of src/pipeline/stages.rs"
    );
    // The request path constructs each of them, in this order.
    let path = std::fs::read_to_string(root.join("src/pipeline.rs")).unwrap();
    let answer = path.split("async fn respond").nth(1).unwrap().split("\n    }\n").next().unwrap();
    let mut at = 0;
    for stage in &documented {
        let stage = stage.to_lowercase();
        let variables = [format!("let {stage} = "), format!("let mut {stage} = "), format!("({stage}) =>")];
        let found = variables
            .iter()
            .find_map(|variable| answer[at..].find(variable))
            .unwrap_or_else(|| panic!("{stage} is not constructed, or too early"));
        at += found;
    }
    assert!(answer[at..].contains("self.forward(") && path.contains("forward::send("));
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
