//! The source matches its documentation: imports point down, in the gateway and between the packages below it, and the
//! request path has the documented stages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The modules from the top to the bottom, as the map of `src/lib.rs` lists them. A module may import only modules
/// below it.
fn order() -> Vec<String> {
    let lib = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let (_, map) = lib.split_once("//! | module |").unwrap();
    let rows = map.lines().skip(2).map_while(|line| line.strip_prefix("//! | "));
    let names = rows.map(|row| row.split('`').nth(1).unwrap().to_owned());
    ["main".to_owned()].into_iter().chain(names).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folders of the product's sources: the gateway's, and those of the packages below it.
fn source_folders() -> Vec<PathBuf> {
    let packages = std::fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let packages = packages.filter(|package| !package.ends_with("testkit"));
    let mut folders: Vec<PathBuf> = packages.map(|package| package.join("src")).collect();
    folders.push(root().join("src"));
    folders
}

/// The source files outside tests, each with its path from the root of the repository and its code outside tests.
fn product_code() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for folder in source_folders() {
        sources(&folder, &mut files);
    }
    let is_test = |file: &Path| {
        let names = ["tests", "tests.rs", "testing", "testing.rs", "fuzzing"];
        file.iter().any(|part| names.iter().any(|name| part == *name))
    };
    let files = files.into_iter().map(|file| file.strip_prefix(root()).unwrap().to_owned());
    let files = files.filter(|file| !is_test(file));
    files
        .map(|file| {
            let text = std::fs::read_to_string(root().join(&file)).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned();
            (file, code)
        })
        .collect()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
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

/// The packages that each package of the workspace depends on, outside tests.
fn package_dependencies() -> BTreeMap<String, Vec<String>> {
    let mut packages = BTreeMap::new();
    for package in std::fs::read_dir(root().join("crates")).unwrap() {
        let package = package.unwrap().path();
        let manifest = std::fs::read_to_string(package.join("Cargo.toml")).unwrap();
        let (_, section) = manifest.split_once("\n[dependencies]\n").unwrap();
        let section = section.split("\n[").next().unwrap().lines();
        let names = section.filter(|line| !line.contains("optional = true"));
        let names = names.filter_map(|line| line.strip_prefix("portcullis-")?.split(' ').next());
        let name = package.file_name().unwrap().to_str().unwrap().to_owned();
        packages.insert(name, names.map(str::to_owned).collect());
    }
    packages
}

/// The table of packages in `src/lib.rs` has each package, from the top to the bottom.
#[test]
fn packages_are_listed_and_depend_downwards() {
    let lib = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let (_, map) = lib.split_once("//! | package |").unwrap();
    let rows = map.lines().skip(2).map_while(|line| line.strip_prefix("//! | `crates/"));
    let order: Vec<&str> = rows.map(|row| row.split('`').next().unwrap()).collect();
    let packages = package_dependencies();
    let mut listed: Vec<&str> = order.clone();
    listed.sort_unstable();
    assert_eq!(listed, packages.keys().map(String::as_str).collect::<Vec<_>>(), "the table of src/lib.rs");
    let rank = |package: &str| order.iter().position(|known| *known == package).unwrap();
    for (package, dependencies) in &packages {
        for dependency in dependencies {
            assert!(rank(dependency) > rank(package), "{package} depends on {dependency}, above it");
        }
    }
}

/// A privilege in the process is that of a user whom the operator names: one file vouches for these, and few compare groups.
#[test]
fn only_the_origin_of_a_cluster_vouches_for_users() {
    let code = product_code();
    let with = |text: &str| {
        let files = code.iter().filter(|(_, code)| code.contains(text));
        let mut files: Vec<_> = files.map(|(file, _)| file.to_str().unwrap()).collect();
        files.sort_unstable();
        files
    };
    assert_eq!(with("OperatorUser::vouched("), ["src/cluster/settings.rs"]);
    // Within one cluster, as its API server does; and for the whole process, of an operator's user.
    let comparing =
        ["src/authz/impersonation.rs", "src/dev/auth.rs", "src/operator.rs", "src/pipeline/stages/shares.rs"];
    assert_eq!(with(" == MASTERS").len() + with("is_in(MASTERS)").len(), comparing.len());
    assert!(
        comparing.iter().all(|file| [with(" == MASTERS"), with("is_in(MASTERS)")].concat().contains(file))
    );
}

/// All PEM is parsed by Go's rules, which decide about approval and trust; another parser may find other blocks in a
/// text.
#[test]
fn pem_has_one_parser() {
    const OTHERS: [&str; 6] =
        ["PemObject", "x509_parser::pem", "parse_x509_pem", "rustls_pemfile", "pem_rfc7468", "DecodePem"];
    let code = product_code();
    assert!(code.iter().any(|(file, _)| file.ends_with("crates/go/src/pem.rs")), "the sources were not read");
    let found: Vec<_> = code
        .iter()
        .flat_map(|(file, code)| {
            OTHERS.iter().filter(|other| code.contains(**other)).map(move |other| (file, other))
        })
        .collect();
    assert!(found.is_empty(), "PEM is parsed by other means than portcullis_go::pem: {found:#?}");
}

/// `serde_json::Value` treats some member names specially; `portcullis_go::json::JsonValue` does not. In a file that uses both,
/// each call must name its type, so that no type is inferred.
#[test]
fn untrusted_json_is_not_parsed_as_serde_json_value() {
    // The operator writes the configuration, and its values are parsed from YAML.
    const TRUSTED: [&str; 3] =
        ["src/config", "crates/admission/src/configuration", "crates/kubernetes/src/metadata.rs"];
    let has_word = |text: &str, word: &str| {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
    };
    let (mut found, mut readings) = (Vec::new(), 0);
    let files = product_code();
    assert!(files.iter().any(|(file, _)| file.starts_with("crates")), "the packages were not read");
    for (file, code) in
        files.iter().filter(|(file, _)| !TRUSTED.iter().any(|trusted| file.starts_with(trusted)))
    {
        let name = file.display();
        let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
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

/// The commands of people's machines build for Windows, too: one module knows what differs between systems.
#[test]
fn the_commands_of_people_name_no_system() {
    const ONLY_UNIX: [&str; 4] = ["os::unix", "os::fd", "rustix::", "signal::unix"];
    const FOLDERS: [&str; 9] = [
        "crates/go",
        "crates/http",
        "crates/kubernetes",
        "crates/limits",
        "crates/openid",
        "crates/pki",
        "crates/system",
        "crates/tools/src/login",
        "crates/tools/src/login.rs",
    ];
    // The module itself, and the keyring, which is built for Linux alone.
    const EXEMPT: [&str; 2] = ["crates/system/src/platform", "crates/tools/src/login/cache/keyring"];
    let is_in = |file: &Path, folders: &[&str]| folders.iter().any(|folder| file.starts_with(folder));
    let (mut found, mut read) = (Vec::new(), 0);
    for (file, code) in product_code() {
        if is_in(&file, &EXEMPT) || !is_in(&file, &FOLDERS) {
            continue;
        }
        read += usize::from(file.starts_with("crates/tools/src/login"));
        found.extend(ONLY_UNIX.iter().filter(|name| code.contains(**name)).map(|name| (file.clone(), *name)));
    }
    assert!(read > 10, "the sources were not read");
    assert!(found.is_empty(), "belongs into crates/system/src/platform: {found:#?}");
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
fn declared_differences_have_one_heading_each() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("docs/conformance.md")).unwrap();
    let mut ids: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("### D-")).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert!(all > 10 && ids.len() == all, "{ids:?}");
}
