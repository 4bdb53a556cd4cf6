//! When the harness proves itself. The tests `proof::same` and `proof::differs` are half of all, and look at the harness
//! and the reference servers alone, not at the gateway. They run if files of these have changed since the proof passed,
//! and once a day.
//!
//! `proven.txt` holds the fingerprint of the files with which the whole proof has passed, and the day. The time of the
//! last proof here is the time of the file's last modification, in a fresh clone that of the checkout. A proof that
//! fails sets it back, so that the next run has the proof again. CI compares the fingerprint: a change of the harness
//! without its proof is proven there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use libtest_mimic::Arguments;
use testkit::paths;

/// The variable that overrides the age of the proof and its fingerprint.
const VARIABLE: &str = "PORTCULLIS_TWIN_PROOF";

const DAY: Duration = Duration::from_hours(24);

/// The tests that are the proof, but for the quick ones without servers (`proof::rules`), which always run.
pub(crate) fn is_part(test: &str) -> bool {
    test.starts_with("proof::same::") || test.starts_with("proof::differs::")
}

/// Whether the proof runs: it does if the variable or a filter of the arguments says so, or if it is due.
pub(crate) fn is_wanted(arguments: &Arguments) -> Result<bool, String> {
    if arguments.list || arguments.filter.as_ref().is_some_and(|filter| filter.contains("proof")) {
        return Ok(true);
    }
    match std::env::var(VARIABLE).as_deref() {
        Ok("always") => return Ok(true),
        Ok("never") => {
            eprintln!("twin: the proof of the harness does not run, because {VARIABLE} is never");
            return Ok(false);
        }
        Ok(other) if !other.is_empty() => {
            return Err(format!("{VARIABLE} is {other}: neither always nor never"));
        }
        _ => {}
    }
    match due() {
        Some(reason) => {
            eprintln!("twin: the proof of the harness runs: {reason}");
            Ok(true)
        }
        None => Ok(false),
    }
}

/// Why the proof must run. If it need not, prints since when the harness is proven.
fn due() -> Option<String> {
    if !are_servers_pinned() {
        return Some("the servers are those of KUBEBUILDER_ASSETS".to_owned());
    }
    let file = proven_file();
    let Ok(text) = fs::read_to_string(&file) else { return Some(format!("{} is absent", file.display())) };
    let (proven, day) = text.trim().split_once(' ').unwrap_or_default();
    if proven != fingerprint() {
        return Some("the harness or the reference servers have changed".to_owned());
    }
    let modified = fs::metadata(&file).and_then(|metadata| metadata.modified());
    let age = modified.ok().and_then(|then| then.elapsed().ok());
    match age.filter(|age| *age < DAY) {
        None => Some("it runs once a day".to_owned()),
        Some(age) => {
            eprintln!(
                "twin: the proof of the harness is SKIPPED: it has passed with the same files on {day}, the last time \
                 here, or a checkout, is {} h ago; {VARIABLE}=always runs it",
                age.as_secs() / 3600
            );
            None
        }
    }
}

/// The results of the proof's tests in this run.
#[derive(Debug)]
pub(crate) struct Record {
    /// How many tests there are without filters.
    tests: usize,
    /// Of the files when the run began: they may change meanwhile.
    fingerprint: String,
    begun: AtomicUsize,
    passed: AtomicUsize,
}

impl Record {
    pub(crate) fn new(tests: usize) -> Self {
        Self { tests, fingerprint: fingerprint(), begun: AtomicUsize::new(0), passed: AtomicUsize::new(0) }
    }

    /// Runs a test, and remembers its result if it is part of the proof.
    pub(crate) fn run<E>(&self, test: &str, run: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let one = usize::from(is_part(test));
        self.begun.fetch_add(one, Ordering::SeqCst);
        run()?;
        self.passed.fetch_add(one, Ordering::SeqCst);
        Ok(())
    }

    /// Writes down that the proof has passed if all of it has, and that it must run again if a test has failed.
    pub(crate) fn finish(&self) -> io::Result<()> {
        let file = proven_file();
        let passed = self.passed.load(Ordering::SeqCst);
        if self.begun.load(Ordering::SeqCst) > passed {
            return if file.exists() {
                File::options().write(true).open(&file)?.set_modified(SystemTime::UNIX_EPOCH)
            } else {
                Ok(())
            };
        }
        if passed < self.tests || !are_servers_pinned() {
            return Ok(());
        }
        let fingerprint = &self.fingerprint;
        let known = fs::read_to_string(&file).ok().filter(|text| text.starts_with(fingerprint));
        // The same text gives the file a new time.
        let text = known.unwrap_or_else(|| {
            eprintln!("twin: the harness is proven; commit {}", file.display());
            format!("{fingerprint} {}\n", time::OffsetDateTime::now_utc().date())
        });
        fs::write(&file, text)
    }
}

/// Whether the servers are those of `tests/go/go.mod`.
fn are_servers_pinned() -> bool {
    std::env::var_os("KUBEBUILDER_ASSETS").is_none_or(|directory| directory.is_empty())
}

fn proven_file() -> PathBuf {
    paths::workspace_root().join("tests/twin/proven.txt")
}

/// A hash over the files of the harness, the versions of the reference servers, and those of the harness' libraries.
fn fingerprint() -> String {
    let root = paths::workspace_root();
    let mut files = vec![root.join("tests/go/go.mod"), root.join("tests/go/go.sum")];
    for directory in ["tests/twin", "crates/testkit", "tests/go/webhook"] {
        files_below(&root.join(directory), &mut files);
    }
    files.retain(|file| *file != proven_file());
    files.sort();
    let mut hash = digest::Context::new(&digest::SHA256);
    let mut add = |name: &str, content: &[u8]| {
        for part in [name.as_bytes(), content] {
            hash.update(&u64::try_from(part.len()).expect("a length").to_be_bytes());
            hash.update(part);
        }
    };
    for file in files {
        let name = file.strip_prefix(root).expect("a file of the workspace").to_string_lossy().into_owned();
        add(&name, &fs::read(&file).expect("a file of the workspace can be read"));
    }
    // The workspace's own packages have no source. Those of them that the twin uses are hashed above.
    let lock = fs::read_to_string(root.join("Cargo.lock")).expect("Cargo.lock can be read");
    let libraries: String = lock.split("[[package]]").filter(|entry| entry.contains("\nsource = ")).collect();
    add("Cargo.lock", libraries.as_bytes());
    URL_SAFE_NO_PAD.encode(hash.finish())
}

fn files_below(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of the workspace can be read") {
        let path = entry.expect("a directory of the workspace can be read").path();
        if path.is_dir() {
            files_below(&path, files);
        } else {
            files.push(path);
        }
    }
}
