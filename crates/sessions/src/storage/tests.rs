use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::chain::{ChainHash, Link};
use super::verify::{Problem, ProblemKind, Verification, verify};
use super::*;
use crate::recording::metadata::{SessionEnd, SessionStart};

const LIMITS: PartLimits = PartLimits { size: 10, age: Duration::from_secs(5) };

fn name() -> SessionName {
    SessionName::new(
        Duration::from_millis(1_767_323_045_678),
        "2c7bb2b6-1f6f",
        [10, 27, 44, 61, 78, 95, 96, 113],
    )
}

struct Recorded {
    root: tempfile::TempDir,
    store: RecordingDirectory,
}

impl Recorded {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let store = RecordingDirectory::open(&root.path().join("recordings")).unwrap();
        Self { root, store }
    }

    fn begin(&self) -> SessionWriter<RecordingDirectory> {
        SessionWriter::begin(self.store.clone(), name(), &SessionStart::default(), PartForm::Cast, LIMITS)
            .unwrap()
    }

    /// A session of three parts that has ended.
    fn ended() -> Self {
        let recorded = Self::new();
        let mut writer = recorded.begin();
        for _ in 0..3 {
            assert!(writer.write(Duration::ZERO, b"0123456789").unwrap());
        }
        writer.end(&SessionEnd::default()).unwrap();
        recorded
    }

    fn path(&self, object: &str) -> PathBuf {
        self.root.path().join("recordings").join(name().as_str()).join(object)
    }

    fn verify(&self) -> Verification {
        verify(&self.store, &name()).unwrap()
    }

    fn problems(&self) -> Vec<String> {
        self.verify().problems.iter().map(ToString::to_string).collect()
    }
}

#[test]
fn a_session_that_has_ended_verifies() {
    let recorded = Recorded::ended();
    let found = recorded.verify();
    assert_eq!((found.parts, found.bytes, found.has_ended, found.problems.len()), (3, 30, true, 0));
    let mut files: Vec<String> = fs::read_dir(recorded.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let expected = "000000.cast 000000.link 000001.cast 000001.link 000002.cast 000002.link end.json end.link session.json session.link";
    assert_eq!(files.join(" "), expected);
    let end: SessionEnd = serde_json::from_slice(&fs::read(recorded.path("end.json")).unwrap()).unwrap();
    assert_eq!(end.parts, 3);
    assert_eq!(recorded.store.sessions().unwrap(), [name()]);
}

#[test]
fn the_files_are_the_owners_alone() {
    let recorded = Recorded::ended();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&recorded.path("..")), 0o700);
    assert_eq!(mode(&recorded.path("")), 0o700);
    for entry in fs::read_dir(recorded.path("")).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
}

#[test]
fn a_part_is_written_when_it_is_large_or_old() {
    let recorded = Recorded::new();
    let mut writer = recorded.begin();
    let at = Duration::from_secs;
    assert!(!writer.write(at(1), b"12345").unwrap());
    assert!(!writer.write(at(5), b"1").unwrap());
    assert!(!writer.write(at(5), b"").unwrap());
    assert!(writer.write(at(6), b"").unwrap());
    assert_eq!(fs::read(recorded.path("000000.cast")).unwrap(), b"123451");
    // Nothing is pending.
    assert!(!writer.write(at(100), b"").unwrap());
    assert!(!writer.write(at(104), b"x").unwrap());
    assert!(writer.write(at(104), b"0123456789").unwrap());
    assert_eq!(fs::read(recorded.path("000001.cast")).unwrap(), b"x0123456789");
    assert!(!writer.flush().unwrap());
}

#[test]
fn a_killed_writer_loses_at_most_its_last_part() {
    let recorded = Recorded::new();
    let mut writer = recorded.begin();
    assert_eq!(recorded.verify(), Verification { head: writer.head(), ..Verification::default() });
    for _ in 0..3 {
        writer.write(Duration::ZERO, b"0123456789").unwrap();
    }
    writer.write(Duration::ZERO, b"lost").unwrap();
    let head = writer.head();
    drop(writer);
    assert_eq!(recorded.verify(), Verification { parts: 3, bytes: 30, head, ..Verification::default() });
    // Between a part and its link.
    fs::remove_file(recorded.path("000002.link")).unwrap();
    let found = recorded.verify();
    assert_eq!((found.parts, found.has_ended, found.problems.len()), (2, false, 0));
    // Within a part.
    fs::rename(recorded.path("000002.cast"), recorded.path(".new-abc")).unwrap();
    assert_eq!(recorded.problems(), [""; 0]);
    // Between the last document and its link.
    let ended = Recorded::ended();
    fs::remove_file(ended.path("end.link")).unwrap();
    let found = ended.verify();
    assert_eq!((found.parts, found.has_ended, found.problems.len()), (3, false, 0));
    // Before the first document.
    assert!(Recorded::new().store.sessions().unwrap().is_empty());
}

/// A change of an ended session, and the problems that it makes.
type Change<'a> = (&'a str, &'a dyn Fn(&Recorded), &'a [&'a str]);

#[test]
fn a_change_shows() {
    let replace = |recorded: &Recorded, object: &str, content: &[u8]| {
        fs::write(recorded.path(object), content).unwrap();
    };
    let remove = |recorded: &Recorded, objects: &[&str]| {
        for object in objects {
            fs::remove_file(recorded.path(object)).unwrap();
        }
    };
    let changes: [Change<'_>; 15] = [
        ("a changed part", &|r| replace(r, "000001.cast", b"0123456780"), &["000001.cast was changed"]),
        ("a longer part", &|r| replace(r, "000001.cast", b"01234567890"), &["000001.cast was changed"]),
        (
            "a truncated part",
            &|r| replace(r, "000001.cast", b"0123"),
            &["000001.cast was truncated: it has 4 of 10 bytes"],
        ),
        (
            "an empty part",
            &|r| replace(r, "000002.cast", b""),
            &["000002.cast was truncated: it has 0 of 10 bytes"],
        ),
        ("a missing part", &|r| remove(r, &["000001.cast"]), &["000001.cast is missing"]),
        (
            "a missing part with its link",
            &|r| remove(r, &["000001.cast", "000001.link"]),
            &["000001.cast is missing"],
        ),
        ("the last part", &|r| remove(r, &["000002.cast", "000002.link"]), &["000002.cast is missing"]),
        (
            "all parts",
            &|r| {
                remove(
                    r,
                    &[
                        "000000.cast",
                        "000000.link",
                        "000001.cast",
                        "000001.link",
                        "000002.cast",
                        "000002.link",
                    ],
                );
            },
            &["000000.cast is missing"],
        ),
        ("a missing link", &|r| remove(r, &["000000.link"]), &["the link of 000000.cast is missing"]),
        (
            "a broken link",
            &|r| replace(r, "000000.link", b"{"),
            &["the link of 000000.cast was changed, or does not follow the one before"],
        ),
        (
            "the first document",
            &|r| replace(r, "session.json", b"{}"),
            &["session.json was truncated: it has 2 of 255 bytes"],
        ),
        (
            "no first document",
            &|r| remove(r, &["session.json", "session.link"]),
            &["session.json is missing"],
        ),
        ("the last document", &|r| replace(r, "end.json", &[b' '; 1000]), &["end.json was changed"]),
        ("no last document", &|r| remove(r, &["end.json"]), &["end.json is missing"]),
        (
            "a part that is added",
            &|r| replace(r, "000003.cast", b"more"),
            &["the link of 000003.cast is missing"],
        ),
    ];
    for (name, change, problems) in changes {
        let recorded = Recorded::ended();
        change(&recorded);
        assert_eq!(recorded.problems(), problems, "{name}");
    }
}

/// A part with a new link of its own does not follow the one before.
#[test]
fn a_part_of_another_session_shows() {
    let recorded = Recorded::ended();
    let content = b"replaced";
    let forged = Link::new(ChainHash::default(), &ObjectName::Part(1, PartForm::Cast), content);
    fs::write(recorded.path("000001.cast"), content).unwrap();
    fs::write(recorded.path("000001.link"), forged.to_line()).unwrap();
    assert_eq!(
        recorded.problems(),
        ["the link of 000001.cast was changed, or does not follow the one before"]
    );
    // With the right hash before it, the next link does not follow.
    let before: Link = serde_json::from_slice(&fs::read(recorded.path("000000.link")).unwrap()).unwrap();
    let before = ChainHash::from_hex(&before.link).unwrap();
    let forged = Link::new(before, &ObjectName::Part(1, PartForm::Cast), content);
    fs::write(recorded.path("000001.link"), forged.to_line()).unwrap();
    assert_eq!(
        recorded.problems(),
        ["the link of 000002.cast was changed, or does not follow the one before"]
    );
}

/// The last hash depends on every object and on its name.
#[test]
fn the_head_covers_all_that_was_written() {
    let (first, second) = (ObjectName::Part(0, PartForm::Cast), ObjectName::Part(1, PartForm::Cast));
    let head = |objects: [(ObjectName, &[u8]); 2]| {
        objects
            .iter()
            .fold(ChainHash::default(), |head, (object, content)| head.next(object, content))
            .to_hex()
    };
    let known = head([(first, b"a"), (second, b"b")]);
    for other in [
        [(first, &b"x"[..]), (second, b"b")],
        [(first, b"a"), (second, b"x")],
        [(second, b"b"), (first, b"a")],
        [(first, b"a"), (first, b"b")],
    ] {
        assert_ne!(head(other), known);
    }
}

#[test]
fn a_gap_is_one_problem_whatever_its_size() {
    let recorded = Recorded::ended();
    fs::write(recorded.path("4294967295.cast"), b"").unwrap();
    let found = recorded.problems();
    assert_eq!(found, ["000003.cast is missing", "the link of 4294967295.cast is missing"]);
}

#[test]
fn what_is_no_regular_file_or_too_large_is_a_problem() {
    let recorded = Recorded::ended();
    fs::remove_file(recorded.path("000001.cast")).unwrap();
    fs::create_dir(recorded.path("000001.cast")).unwrap();
    fs::File::options().write(true).open(recorded.path("000002.cast")).unwrap().set_len(17 << 20).unwrap();
    let unreadable = |object: &str, problem: &str| Problem {
        object: object.to_owned(),
        kind: ProblemKind::Unreadable(problem.to_owned()),
    };
    let expected = [
        unreadable("000001.cast", "is not a regular file"),
        unreadable("000002.cast", "is larger than any object of a recording"),
    ];
    assert_eq!(recorded.verify().problems, expected);
}

#[test]
fn nothing_is_written_over() {
    let recorded = Recorded::ended();
    let (store, part) = (&recorded.store, ObjectName::Part(0, PartForm::Cast));
    assert_eq!(store.put(&name(), &part, b"new").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(store.get(&name(), &part).unwrap().unwrap(), b"0123456789");
    let again = SessionWriter::begin(store.clone(), name(), &SessionStart::default(), PartForm::Cast, LIMITS);
    assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    // No file stays from an attempt.
    assert!(
        fs::read_dir(recorded.path("")).unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .starts_with('.'))
    );
}

#[test]
fn a_part_that_could_not_be_written_is_tried_again() {
    let recorded = Recorded::new();
    let mut writer = recorded.begin();
    // The link cannot be written.
    fs::create_dir(recorded.path("000000.link")).unwrap();
    writer.write(Duration::ZERO, b"0123456789").unwrap_err();
    assert_eq!(writer.pending(), 10);
    fs::remove_dir(recorded.path("000000.link")).unwrap();
    assert!(writer.flush().unwrap());
    let head = writer.end(&SessionEnd::default()).unwrap();
    let found = recorded.verify();
    assert_eq!((found.parts, found.has_ended, found.problems.len(), found.head), (1, true, 0, head));
}

#[test]
fn a_link_in_the_place_of_a_session_is_not_followed() {
    let recorded = Recorded::new();
    let other = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(other.path(), recorded.path("")).ok();
    std::os::unix::fs::symlink(other.path(), recorded.root.path().join("recordings").join(name().as_str()))
        .ok();
    SessionWriter::begin(recorded.store.clone(), name(), &SessionStart::default(), PartForm::Cast, LIMITS)
        .unwrap_err();
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}

#[test]
fn names_have_no_text_of_a_client_that_is_not_plain() {
    let started = Duration::from_millis(1_767_323_045_678);
    let named = |audit_id: &str| SessionName::new(started, audit_id, [0; 8]).to_string();
    let around = |id: &str| format!("20260102T030405.678Z-{id}-0000000000000000");
    assert_eq!(named("2c7bb2b6-1f6f"), around("2c7bb2b6-1f6f"));
    assert_eq!(named(&"a".repeat(64)), around(&"a".repeat(64)));
    for audit_id in ["", "../../etc", "a/b", "a\0", "ü", "a b", "a.b", &"a".repeat(65)] {
        let name = named(audit_id);
        assert!(
            name.starts_with("20260102T030405.678Z-sha256-") && name.len() == 20 + 1 + 7 + 32 + 17,
            "{name}"
        );
    }
    assert_ne!(named("../a"), named("../b"));
    for audit_id in ["2c7bb2b6-1f6f", "../../etc", "-", &"-".repeat(64)] {
        let name = named(audit_id);
        assert_eq!(SessionName::parse(&name).unwrap().as_str(), name);
    }
    for text in [
        "",
        ".",
        "..",
        "20260102T030405.678Z",
        &around("a/b"),
        &around(""),
        &around(".."),
        &format!("x{}", around("a")),
    ] {
        assert_eq!(SessionName::parse(text), None, "{text}");
    }
    let last = SessionName::new(Duration::MAX, "a", [255; 8]).to_string();
    assert!(last.starts_with("99991231T235959.") && SessionName::parse(&last).is_some(), "{last}");
}

#[test]
fn names_of_objects_are_unique() {
    for text in [
        "session.json",
        "session.link",
        "end.json",
        "end.link",
        "000000.cast",
        "000017.jsonl",
        "000000.link",
        "4294967295.cast",
    ] {
        assert_eq!(ObjectName::parse(text).unwrap().to_string(), text);
    }
    for text in [
        "",
        "0.cast",
        "00000.cast",
        "0000000.cast",
        "4294967296.cast",
        "000000.txt",
        "000000",
        "-00001.cast",
        "+00001.cast",
        "../000000.cast",
    ] {
        assert_eq!(ObjectName::parse(text), None, "{text}");
    }
}

#[test]
fn a_session_that_did_not_begin_is_removed_and_no_other() {
    let recorded = Recorded::new();
    drop(recorded.begin());
    recorded.store.discard(&name()).unwrap();
    assert_eq!(recorded.store.sessions().unwrap(), []);
    // Its writer was killed between the document and its link.
    drop(recorded.begin());
    fs::remove_file(recorded.path("session.link")).unwrap();
    recorded.store.discard(&name()).unwrap();
    assert_eq!(recorded.store.sessions().unwrap(), []);

    let mut writer = recorded.begin();
    assert!(writer.write(Duration::ZERO, b"0123456789").unwrap());
    assert!(recorded.store.discard(&name()).is_err());
    assert_eq!((recorded.problems(), recorded.verify().parts), (Vec::new(), 1));
    fs::write(recorded.path("notes"), "of a person").unwrap();
    assert!(recorded.store.discard(&name()).is_err());
    assert!(recorded.path("notes").exists() && recorded.path("session.json").exists());
}

#[test]
fn a_directory_that_was_removed_is_not_made_again() {
    let recorded = Recorded::new();
    fs::remove_dir(recorded.root.path().join("recordings")).unwrap();
    let begun = SessionWriter::begin(
        recorded.store.clone(),
        name(),
        &SessionStart::default(),
        PartForm::Cast,
        LIMITS,
    );
    assert_eq!(begun.unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(!recorded.root.path().join("recordings").exists());
}
