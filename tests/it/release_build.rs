//! What `deploy/release/build` says before it builds.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Runs the script with these programs, in a directory of their own, before those of the system: name and script.
fn refused(arguments: &[&str], programs: &[(&str, &str)]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    for (name, script) in programs {
        let file = directory.path().join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new("bash")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/release/build"))
        .args(arguments)
        .env("PATH", format!("{}:/usr/bin:/bin", directory.path().display()))
        .env("CARGO_TARGET_DIR", directory.path())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn what_is_wrong_is_one_line_with_its_fix() {
    let rustc = (
        "rustc",
        "case \"$*\" in *sysroot*) echo /nowhere;; *) printf 'host: some-target\\nLLVM version: 99.1.2\\n';; esac",
    );
    let cargo = ("cargo", "exit 1");
    for (arguments, programs, expected) in [
        (&["--fast"][..], &[][..], "unknown option --fast; see --help"),
        (&["--out"], &[], "--out needs a value; see --help"),
        (
            &[],
            &[rustc, cargo],
            "llvm-profdata of LLVM 99 is missing: rustup component add llvm-tools, or install llvm-99",
        ),
    ] {
        let (code, text) = refused(arguments, programs);
        assert_ne!(code, Some(0), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(expected), "{text}");
    }
}
