use std::fs;

use testkit::pki::{Ca, Issued, SERVER_AUTH};

use super::entries::EntryRow;
use super::*;

const NOW: UnixTime = std::time::Duration::from_secs(1_900_000_000);

struct Log {
    parent: tempfile::TempDir,
    directory: PathBuf,
    ca: Ca,
}

impl Log {
    fn new() -> Self {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("log");
        certificate_log::create(&directory, "example.com/log").unwrap();
        Self { parent, directory, ca: Ca::new("ca") }
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.parent.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn append(&self, certificate: &Issued) -> u64 {
        let flags = LogFlags { log: Some(self.directory.clone()) };
        flags.append(certificate.leaf(), "client", NOW).unwrap().unwrap()
    }

    fn source(&self) -> LogSourceFlags {
        LogSourceFlags { dir: self.directory.clone(), vkey: None }
    }

    /// The rows of all entries.
    fn rows(&self) -> Vec<EntryRow> {
        let (log, verifier) = self.source().open().unwrap();
        let mut rows = Vec::new();
        verified(&log, &verifier, |index, entry| {
            rows.push(EntryRow::of(index, entry));
            Ok(())
        })
        .unwrap();
        rows
    }
}

#[test]
fn entries_are_found_by_each_kind_of_name() {
    let log = Log::new();
    let named = log
        .ca
        .leaf()
        .cn("system:node:worker-1")
        .eku(&[SERVER_AUTH])
        .san_dns("Worker-1.example.com")
        .san_ip("192.0.2.1".parse().unwrap())
        .san_uri("spiffe://example.com/a")
        .san_email("a@example.com")
        .issue();
    log.append(&named);
    log.append(&log.ca.leaf().cn("alice").issue());
    let rows = log.rows();
    let cases = [
        ("system:node:worker-1", [true, false]),
        ("system:node:*", [true, false]),
        ("worker-1.example.com", [true, false]),
        ("*.EXAMPLE.com", [true, false]),
        ("192.0.2.1", [true, false]),
        ("spiffe://example.com/*", [true, false]),
        ("a@example.com", [true, false]),
        ("ALICE", [false, true]),
        ("*", [true, true]),
        ("lic", [false, false]),
        ("*.example.org", [false, false]),
    ];
    for (pattern, expected) in cases {
        let found: Vec<bool> = rows.iter().map(|row| row.matches(&[pattern.to_owned()])).collect();
        assert_eq!(found, expected, "{pattern}");
    }
    assert!(rows.iter().all(|row| row.matches(&[])));
    assert_eq!(rows[0].alt_names.len(), 4);
    assert_eq!(rows[1].cells()[2..5], ["client".to_owned(), "CN=alice".to_owned(), "<none>".to_owned()]);
    assert_eq!(rows[1].logged_at, "2030-03-17T17:46:40Z");
    // What cannot be read is listed whatever the pattern.
    assert!(EntryRow::of(0, b"junk").matches(&["alice".to_owned()]));
}

#[test]
fn a_proof_is_checked_without_the_log_and_for_its_certificate_alone() {
    let log = Log::new();
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|name| log.ca.leaf().cn(name).issue());
    log.append(&alice);
    log.append(&bob);
    let out = log.parent.path().join("bob.proof");
    let bob_file = log.file("bob.crt", &bob.cert_pem());
    let flags = LogProveFlags {
        log: log.source(),
        certificate: bob_file.clone(),
        out: Some(out.clone()),
        force: false,
    };
    prove(&flags).unwrap();
    let vkey = log.file("trusted.vkey", &fs::read_to_string(verifier_file(&log.directory)).unwrap());
    log.append(&carol);
    fs::remove_dir_all(&log.directory).unwrap();
    let check = |certificate: &Path, vkey: &Path| {
        let arguments = ["verify", "--proof"].map(std::ffi::OsStr::new);
        let rest =
            [out.as_os_str(), std::ffi::OsStr::new("--vkey"), vkey.as_os_str(), certificate.as_os_str()];
        verify::run(&parsed(arguments.into_iter().chain(rest)))
    };
    check(&bob_file, &vkey).unwrap();
    let error = check(&log.file("alice.crt", &alice.cert_pem()), &vkey).unwrap_err().to_string();
    assert!(error.contains("bob.proof: proves another certificate than"), "{error}");
    let other = Log::new();
    let error = check(&bob_file, &verifier_file(&other.directory)).unwrap_err().to_string();
    assert!(error.ends_with("has no signature of the key example.com/log"), "{error}");
}

/// The flags of `verify`.
fn parsed<'a>(arguments: impl Iterator<Item = &'a std::ffi::OsStr>) -> verify::LogVerifyFlags {
    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        flags: verify::LogVerifyFlags,
    }
    <Command as clap::Parser>::parse_from(arguments).flags
}

#[test]
fn a_certificate_that_is_not_logged_has_no_proof() {
    let log = Log::new();
    log.append(&log.ca.leaf().cn("alice").issue());
    let file = log.file("bob.crt", &log.ca.leaf().cn("bob").issue().cert_pem());
    let flags = LogProveFlags { log: log.source(), certificate: file, out: None, force: false };
    let error = prove(&flags).unwrap_err().to_string();
    assert!(error.contains("bob.crt: is not among the 1 certificates of"), "{error}");
}

#[test]
fn the_monitor_finds_a_log_that_was_rewritten() {
    let log = Log::new();
    let state = log.parent.path().join("state");
    let arguments = |log: &Log| monitor_flags(&log.directory, &state);
    log.append(&log.ca.leaf().cn("alice").issue());
    monitor::run(&arguments(&log)).unwrap();
    log.append(&log.ca.leaf().cn("bob").issue());
    monitor::run(&arguments(&log)).unwrap();
    // The holder of the key writes another log.
    fs::remove_dir_all(&log.directory).unwrap();
    let keys = [certificate_log::key_file(&log.directory), verifier_file(&log.directory)];
    let [key, vkey] = keys.map(|file| fs::read(file).unwrap());
    let verifier = Verifier::parse(std::str::from_utf8(&vkey).unwrap()).unwrap();
    let signer = portcullis_tlog::note::NoteSigner::from_pem(verifier.name(), &key).unwrap();
    LogDirectory::create(&log.directory, &signer).unwrap();
    log.append(&log.ca.leaf().cn("mallory").issue());
    let kept = fs::read(&state).unwrap();
    let error = monitor::run(&arguments(&log)).unwrap_err().to_string();
    assert!(error.ends_with("entries were removed"), "{error}");
    log.append(&log.ca.leaf().cn("bob").issue());
    let error = monitor::run(&arguments(&log)).unwrap_err().to_string();
    assert!(error.ends_with("the log was rewritten"), "{error}");
    assert_eq!(fs::read(&state).unwrap(), kept, "the checkpoint that shows it stays");
}

#[test]
fn what_could_not_be_printed_is_listed_again() {
    let log = Log::new();
    let state = log.parent.path().join("state");
    log.append(&log.ca.leaf().cn("alice").issue());
    let flags = monitor_flags(&log.directory, &state);
    // As on a full disk, or with a closed standard output.
    let outcome = monitor::reported(&flags, |_| ExitCode::FAILURE).unwrap();
    assert_eq!((outcome, state.exists()), (ExitCode::FAILURE, false));
    for expected in ["CN=alice", "no certificates\n"] {
        let listed = |text: &str| {
            assert!(text.contains(expected), "{expected:?} in {text:?}");
            ExitCode::SUCCESS
        };
        assert_eq!(monitor::reported(&flags, listed).unwrap(), ExitCode::SUCCESS);
    }
}

fn monitor_flags(directory: &Path, state: &Path) -> monitor::LogMonitorFlags {
    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        flags: monitor::LogMonitorFlags,
    }
    let arguments =
        ["monitor".as_ref(), "--dir".as_ref(), directory.as_os_str(), "--state".as_ref(), state.as_os_str()];
    <Command as clap::Parser>::parse_from(arguments).flags
}

#[test]
fn without_its_log_no_certificate_is_issued() {
    let parent = tempfile::tempdir().unwrap();
    let flags = LogFlags { log: Some(parent.path().join("absent")) };
    let error = flags.append(b"certificate", "client", NOW).unwrap_err().to_string();
    assert!(error.contains("absent.key: "), "{error}");
    assert_eq!(LogFlags::default().append(b"certificate", "client", NOW).unwrap(), None);
}
