//! A log that is written with a narrow umask, as the shipped unit of systemd has it, is still for its readers. A process of its own,
//! because the umask is that of the whole process.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test: a panic is a failed test")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use portcullis_tlog::certificate_log::{self, CertificateLog};
use rustix::fs::Mode;

fn modes(path: &Path, found: &mut Vec<(String, u32)>) {
    let metadata = std::fs::metadata(path).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    found.push((name, metadata.permissions().mode() & 0o777));
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            modes(&entry.unwrap().path(), found);
        }
    }
}

#[test]
fn readers_can_read_whatever_the_umask_is() {
    let parent = tempfile::tempdir().unwrap();
    for (name, umask) in [("narrow", 0o077), ("wide", 0o000)] {
        rustix::process::umask(Mode::from_raw_mode(umask));
        let directory = parent.path().join(name);
        certificate_log::create(&directory, "example.com/log").unwrap();
        let log = CertificateLog::open(&directory).unwrap();
        log.append(b"certificate", "{}", Duration::ZERO).unwrap();
        let mut found = Vec::new();
        modes(&directory, &mut found);
        modes(&certificate_log::key_file(&directory), &mut found);
        modes(&certificate_log::verifier_file(&directory), &mut found);
        found.sort();
        let vkey = format!("{name}.vkey");
        let key = format!("{name}.key");
        let mut expected = [
            (".lock", 0o600),
            ("0", 0o755),
            ("000.p", 0o755),
            ("000.p", 0o755),
            ("1", 0o644),
            ("1", 0o644),
            ("checkpoint", 0o644),
            ("entries", 0o755),
            (name, 0o755),
            (&key, 0o600),
            (&vkey, 0o644),
            ("tile", 0o755),
        ]
        .map(|(name, mode)| (name.to_owned(), mode));
        expected.sort();
        assert_eq!(found, expected);
    }
}
