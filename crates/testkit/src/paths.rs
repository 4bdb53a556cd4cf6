//! Directories of the workspace.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("crates/testkit is two levels below the root")
}

/// The Go module of the real servers and of the comparison programs.
pub fn go_module() -> PathBuf {
    workspace_root().join("tests/go")
}

/// Cargo's target directory, which this test program was built into.
pub fn target_dir() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    // Cargo marks the directory with this file.
    let marked = program.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    marked.map_or_else(|| workspace_root().join("target"), Path::to_owned)
}

/// A directory below the target directory for the files that tests build.
pub fn temporary_dir() -> PathBuf {
    let dir = target_dir().join("tmp");
    std::fs::create_dir_all(&dir).expect("the directory can be made");
    dir
}

/// A directory of the target directory that is named after the content of `files`.
pub fn cache_dir<'a>(prefix: &str, files: impl IntoIterator<Item = &'a Path>) -> PathBuf {
    use std::fmt::Write as _;
    let mut digest = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    for file in files {
        digest.update(&std::fs::read(file).unwrap_or_default());
    }
    let mut name = format!("{prefix}-");
    for byte in digest.finish().as_ref().iter().take(8) {
        write!(name, "{byte:02x}").expect("a string can be written");
    }
    target_dir().join(name)
}
