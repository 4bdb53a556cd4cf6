//! What `deploy/release/build` and `deploy/release/release` say before they build, and the pages and completions that a release takes
//! from the programs.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

/// Programs of the system that the scripts read files with. Nothing else of it is found.
const SYSTEM: [&str; 12] =
    ["bash", "cat", "cut", "dirname", "git", "grep", "head", "ls", "mkdir", "sed", "sha256sum", "tr"];

/// Runs a script of `deploy/release` with these programs alone: name and script.
fn refused(script: &str, arguments: &[&str], programs: &[(&str, &str)]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    for name in SYSTEM {
        let mut found = std::env::split_paths(&path).map(|directory| directory.join(name));
        symlink(found.find(|file| file.is_file()).unwrap(), directory.path().join(name)).unwrap();
    }
    for (name, script) in programs {
        let file = directory.path().join(name);
        std::fs::remove_file(&file).ok();
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new("bash")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/release").join(script))
        .args(arguments)
        .env("PATH", directory.path())
        .env("CARGO_TARGET_DIR", directory.path())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// A script, the programs that it finds, its arguments, and what it says.
type Refusal = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str], &'static str);

const CARGO: (&str, &str) = ("cargo", "exit 1");
const RUSTC: (&str, &str) = (
    "rustc",
    "case \"$*\" in *sysroot*) echo /nowhere;; *--version*) echo 'rustc 1.95.0 (x)';; \
     *) printf 'host: x86_64-unknown-linux-gnu\\nLLVM version: 99.1.2\\n';; esac",
);
const OLD_RUSTC: (&str, &str) = ("rustc", "echo 'rustc 1.94.0 (x)'");
const NO_TARGET: (&str, &str) =
    ("rustc", "case \"$*\" in *cfg*) exit 1;; *) printf 'host: x86_64-unknown-linux-gnu\\n';; esac");
/// It has every target.
const WHOLE_RUSTC: (&str, &str) = (
    "rustc",
    "here=$(dirname \"$0\"); for target in x86_64 aarch64; do mkdir -p \"$here/lib/rustlib/$target-unknown-linux-musl/lib\"; done; \
     case \"$*\" in *sysroot*) echo \"$here\";; *--version*) echo 'rustc 1.95.0 (x)';; *) echo 'host: x86_64-unknown-linux-gnu';; esac",
);
const PYTHON: (&str, &str) = ("python3", "exit 0");
const OLD_PYTHON: (&str, &str) =
    ("python3", "case \"$*\" in --version) echo Python 3.9.2;; *) exit 1;; esac");
const DPKG: (&str, &str) = ("dpkg-deb", "exit 0");
const GO: (&str, &str) = ("go", "exit 0");
const TAGGED: (&str, &str) =
    ("git", "case \"$*\" in *rev-parse*) echo 0123;; *tag*) echo v9.9.9;; *) exit 0;; esac");
const CHANGED: (&str, &str) =
    ("git", "case \"$*\" in *rev-parse*) echo 0123;; *status*) echo ' M src/lib.rs';; *) exit 0;; esac");
const NO_CLONE: (&str, &str) = ("git", "exit 128");

const REFUSALS: [Refusal; 26] = [
    ("build", &[], &["--fast"], "unknown option --fast; see --help"),
    ("build", &[], &["--out"], "--out needs a value; see --help"),
    ("build", &[], &["--target"], "--target needs a value; see --help"),
    ("build", &[], &["--plain", "--keep", "p"], "--plain has no profile: leave out --keep and --use"),
    (
        "build",
        &[],
        &["--use", "/absent"],
        "--use /absent: there is no such file; give one that --keep has written",
    ),
    (
        "build",
        &[RUSTC, CARGO],
        &[],
        "llvm-profdata of LLVM 99 is missing: rustup component add llvm-tools, or install llvm-99",
    ),
    (
        "build",
        &[NO_TARGET, CARGO],
        &["--target", "pdp11"],
        "rustc knows no target pdp11; see rustc --print target-list",
    ),
    (
        "build",
        &[RUSTC, CARGO],
        &["--target", "aarch64-unknown-linux-musl"],
        "the standard library of aarch64-unknown-linux-musl is missing: rustup target add aarch64-unknown-linux-musl",
    ),
    (
        "build",
        &[WHOLE_RUSTC, CARGO],
        &["--target", "x86_64-unknown-linux-musl"],
        "cargo-zigbuild is missing: pip install --require-hashes --requirement deploy/release/requirements.txt",
    ),
    ("release", &[], &["--fast"], "unknown option --fast; see --help"),
    ("release", &[], &["--targets"], "--targets needs a value; see --help"),
    (
        "release",
        &[],
        &["--targets", "x86_64,arm"],
        "--targets arm: is no target of releases; give x86_64, aarch64, or both with a comma",
    ),
    ("release", &[], &["--targets", "x86_64,x86_64"], "x86_64 is there twice; leave one out"),
    ("release", &[], &["--targets", ","], "--targets is empty; give x86_64, aarch64, or both with a comma"),
    (
        "release",
        &[],
        &["--use", "/absent"],
        "--use /absent: there is no such file; give the .profdata of a release",
    ),
    (
        "release",
        &[],
        &["--base-url", "http://x"],
        "--base-url http://x: krew fetches from https:// alone; give such a URL",
    ),
    ("release", &[], &["--maintainer", "me"], "--maintainer me: give it as NAME <ADDRESS>"),
    ("release", &[], &[], "cargo is missing: install Rust, see rust-toolchain.toml"),
    (
        "release",
        &[CARGO, RUSTC, PYTHON],
        &[],
        "dpkg-deb is missing: install dpkg, which makes the Debian packages",
    ),
    (
        "release",
        &[CARGO, RUSTC, PYTHON, DPKG],
        &[],
        "go is missing: install Go, see tests/deploy/helm/go.mod",
    ),
    (
        "release",
        &[CARGO, RUSTC, OLD_PYTHON, DPKG, GO],
        &[],
        "Python 3.9.2 is too old: install Python 3.11 or later",
    ),
    (
        "release",
        &[CARGO, OLD_RUSTC, PYTHON, DPKG, GO],
        &[],
        "rustc is 1.94.0, and rust-toolchain.toml names 1.95.0: rustup toolchain install 1.95.0",
    ),
    (
        "release",
        &[CARGO, RUSTC, PYTHON, DPKG, GO],
        &["--targets", "aarch64"],
        "the standard library of aarch64-unknown-linux-musl is missing: rustup target add aarch64-unknown-linux-musl",
    ),
    (
        "release",
        &[CARGO, WHOLE_RUSTC, PYTHON, DPKG, GO, NO_CLONE],
        &[],
        "this is no clone of the repository: git clone it, for its commit is in the release",
    ),
    (
        "release",
        &[CARGO, WHOLE_RUSTC, PYTHON, DPKG, GO, TAGGED],
        &[],
        "HEAD has the tag v9.9.9, and Cargo.toml the version 0.1.0: move the tag, or change the version",
    ),
    (
        "release",
        &[CARGO, WHOLE_RUSTC, PYTHON, DPKG, GO, CHANGED],
        &[],
        "the clone has changes: commit them, or give --dirty to try",
    ),
];

#[test]
fn what_is_wrong_is_one_line_with_its_fix() {
    let mut wrong = Vec::new();
    for (script, programs, arguments, expected) in REFUSALS {
        let (code, text) = refused(script, arguments, programs);
        let expected = expected.replace("0.1.0", env!("CARGO_PKG_VERSION"));
        let is_refused = code != Some(0) && text.lines().count() == 1;
        if !is_refused
            || !text.starts_with(&format!("deploy/release/{script}: "))
            || !text.contains(&expected)
        {
            wrong.push(format!("{script} {arguments:?}: {code:?} {text}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_release_is_of_both_architectures_and_one_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chart = std::fs::read_to_string(root.join("deploy/chart/portcullis/Chart.yaml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(chart.contains(&format!("\nversion: {version}\nappVersion: \"{version}\"\n")), "{chart}");
}

#[test]
fn each_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let write = |out: &Path| {
        Command::new(crate::gateway::PORTCULLIS).args(["man", "--out"]).arg(out).output().unwrap()
    };
    let pages = directory.path().join("man/man1");
    let output = write(&pages);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let mut names: Vec<String> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for name in ["portcullis.1", "portcullis-serve.1", "portcullis-certs-issue.1", "portcullis-login.1"] {
        assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("help") || name.contains("-man")), "{names:?}");
    let read = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    for name in &names {
        let page = read(name);
        assert!(
            page.contains(".SH NAME") && page.contains(".SH SYNOPSIS") && !page.contains('\x1b'),
            "{name}: {page}"
        );
    }
    assert!(read("portcullis-serve.1").contains("audit\\-webhook\\-mode"), "every flag");
    // The flags of `serve` are in its page alone.
    let check = read("portcullis-check.1");
    assert!(check.contains("\\-\\-config") && !check.contains("audit\\-webhook\\-mode"), "{check}");
    let refused = write(&pages.join("portcullis.1"));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8(refused.stderr).unwrap().starts_with("portcullis: --out "));
}
