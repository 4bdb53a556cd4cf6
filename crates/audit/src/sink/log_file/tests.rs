use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flate2::read::GzDecoder;
use portcullis_limits::Owner;
use tempfile::TempDir;

use super::super::lines::Lines;
use super::super::owner::EventOwner;
use super::backups::tidy;
use super::*;

const NO_ROTATION: RotationOptions =
    RotationOptions { max_size: 0, max_age: 0, max_backups: 0, compress: false };
const ONE_MEGABYTE: RotationOptions = RotationOptions { max_size: 1, ..NO_ROTATION };

/// A directory, and a clock that stands still until it is set.
struct Place {
    dir: TempDir,
    millis: Arc<AtomicU64>,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), millis: Arc::new(AtomicU64::new(1_577_836_800_000)) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("audit.log")
    }

    fn clock(&self) -> WallClock {
        let millis = Arc::clone(&self.millis);
        WallClock::new(move || Duration::from_millis(millis.load(Ordering::Relaxed)))
    }

    fn file(&self, options: RotationOptions) -> LogFile {
        LogFile::new(self.path(), options, self.clock())
    }

    /// The names in the directory, sorted.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap()
    }
}

/// Writes lines; returns for each whether it was written.
fn write(file: &mut LogFile, lines: &[&str]) -> Vec<bool> {
    let (mut waiting, owner) = (Lines::default(), EventOwner::new(Owner::Gateway, "prod"));
    for line in lines {
        waiting.push(&owner, line.as_bytes(), None);
    }
    let chunks: Vec<_> = waiting.take_all().collect();
    let mut written = Vec::new();
    for chunk in &chunks {
        file.write(chunk, |result| written.push(result.is_ok()));
    }
    assert_eq!(written.len(), lines.len());
    written
}

/// A line of this length.
fn line(fill: char, length: usize) -> String {
    fill.to_string().repeat(length - 1) + "\n"
}

const MIB: usize = 1 << 20;

#[test]
fn the_log_and_its_directory_are_for_the_owner_only() {
    let place = Place::new();
    let path = place.dir.path().join("a/b/audit.log");
    ensure_log_file(&path).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    // What is there already stays.
    std::fs::write(&path, "before\n").unwrap();
    ensure_log_file(&path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "before\n");
    assert!(ensure_log_file(&path.join("under-a-file")).is_err());
    assert!(ensure_log_file(place.dir.path()).is_err());
}

#[test]
fn a_log_is_appended_to_and_replaced_when_it_is_full() {
    let place = Place::new();
    std::fs::write(place.path(), "before\n").unwrap();
    let mut file = place.file(ONE_MEGABYTE);
    assert_eq!(write(&mut file, &["one\n", "two\n"]), [true, true]);
    assert_eq!(place.read("audit.log"), "before\none\ntwo\n");
    // Exactly full is not too full.
    let fill = line('x', MIB - "before\none\ntwo\n".len());
    write(&mut file, &[&fill]);
    assert_eq!(place.names(), ["audit.log"]);
    write(&mut file, &["three\n"]);
    assert_eq!(place.names(), ["audit-2020-01-01T00-00-00.000.log", "audit.log"]);
    assert_eq!(place.read("audit.log"), "three\n");
    assert_eq!(place.read("audit-2020-01-01T00-00-00.000.log").len(), MIB);
}

#[test]
fn lines_that_are_written_together_are_replaced_like_single_ones() {
    for together in [true, false] {
        let place = Place::new();
        let mut file = place.file(ONE_MEGABYTE);
        let lines = [('a', 600), ('b', 300), ('c', 300), ('d', 500)].map(|(fill, kib)| line(fill, kib << 10));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        if together {
            assert_eq!(write(&mut file, &lines), [true; 4]);
        } else {
            for line in &lines {
                assert_eq!(write(&mut file, &[line]), [true]);
            }
        }
        assert_eq!(place.read("audit-2020-01-01T00-00-00.000.log"), lines[..2].concat());
        assert_eq!(place.read("audit.log"), lines[2..].concat());
    }
}

/// lumberjack would give the second one the name of the first, which would be lost.
#[test]
fn two_logs_of_one_millisecond_have_two_names() {
    let place = Place::new();
    let mut file = place.file(ONE_MEGABYTE);
    let lines: Vec<String> = ('a'..='e').map(|fill| line(fill, MIB)).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_eq!(write(&mut file, &lines), [true; 5]);
    let millis: Vec<String> = (0..4).map(|ms| format!("audit-2020-01-01T00-00-00.00{ms}.log")).collect();
    let first: String = millis.iter().map(|name| place.read(name).chars().next().unwrap()).collect();
    assert_eq!((first.as_str(), place.read("audit.log").starts_with('e')), ("abcd", true));
}

#[test]
fn a_line_larger_than_a_file_is_refused_alone() {
    let place = Place::new();
    let mut file = place.file(ONE_MEGABYTE);
    let large = line('x', MIB + 1);
    assert_eq!(write(&mut file, &["one\n", &large, "two\n"]), [true, false, true]);
    assert_eq!(place.read("audit.log"), "one\ntwo\n");
    // Without rotation there is no limit.
    file.set_options(NO_ROTATION);
    assert_eq!(write(&mut file, &[&large]), [true]);
    assert_eq!(place.names(), ["audit.log"]);
}

/// As lumberjack: `>=` when it opens a file, `>` later.
#[test]
fn a_full_log_is_replaced_at_the_start() {
    for (size, is_replaced) in [(MIB - 5, false), (MIB - 4, true), (2 * MIB, true)] {
        let place = Place::new();
        std::fs::write(place.path(), line('x', size)).unwrap();
        write(&mut place.file(ONE_MEGABYTE), &["one\n"]);
        assert_eq!(place.names().len() == 2, is_replaced, "{size}");
    }
}

#[test]
fn a_new_log_has_the_mode_of_the_old_one() {
    let place = Place::new();
    let mut file = place.file(ONE_MEGABYTE);
    write(&mut file, &["one\n"]);
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
    write(&mut file, &[&line('x', MIB)]);
    assert_eq!(place.names().len(), 2);
    assert_eq!(place.path().metadata().unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_deleted_log_and_directory_are_made_anew() {
    for options in [NO_ROTATION, ONE_MEGABYTE] {
        let place = Place::new();
        let path = place.dir.path().join("logs/audit.log");
        let mut file = LogFile::new(path.clone(), options, place.clock());
        assert_eq!(write(&mut file, &["one\n"]), [true]);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        assert_eq!(write(&mut file, &["two\n"]), [true]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
        // A file in the place of the directory is an error, and no end.
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path.parent().unwrap(), "").unwrap();
        assert_eq!(write(&mut file, &["three\n"]), [false]);
        std::fs::remove_file(path.parent().unwrap()).unwrap();
        assert_eq!(write(&mut file, &["four\n"]), [true]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "four\n");
    }
}

/// As logrotate does it, without `copytruncate`.
#[test]
fn a_renamed_log_is_left_for_the_new_one() {
    for options in [NO_ROTATION, ONE_MEGABYTE] {
        let place = Place::new();
        let path = place.dir.path().join("audit.log");
        let renamed = place.dir.path().join("audit.log.1");
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        let mut file = LogFile::new(path.clone(), options, place.clock());
        assert_eq!(write(&mut file, &["one\n"]), [true]);
        std::fs::rename(&path, &renamed).unwrap();
        // No new file yet: nothing of it is lost.
        assert_eq!(write(&mut file, &["two\n"]), [true]);
        assert_eq!(text(&renamed), "one\ntwo\n");
        ensure_log_file(&path).unwrap();
        assert_eq!(write(&mut file, &["three\n"]), [true]);
        assert_eq!((text(&renamed).as_str(), text(&path).as_str()), ("one\ntwo\n", "three\n"));
    }
}

#[test]
fn backups_are_compressed_and_removed() {
    let place = Place::new();
    let options = RotationOptions { max_backups: 2, compress: true, ..ONE_MEGABYTE };
    let mut file = place.file(options);
    for fill in ['a', 'b', 'c', 'd'] {
        write(&mut file, &[&line(fill, MIB)]);
        place.millis.fetch_add(1000, Ordering::Relaxed);
    }
    // Waits for the thread.
    file.close();
    tidy(&place.path(), options, Duration::ZERO).unwrap();
    let expected =
        ["audit-2020-01-01T00-00-02.000.log.gz", "audit-2020-01-01T00-00-03.000.log.gz", "audit.log"];
    assert_eq!(place.names(), expected);
    let compressed = File::open(place.dir.path().join(expected[1])).unwrap();
    let mut text = String::new();
    GzDecoder::new(compressed).read_to_string(&mut text).unwrap();
    assert_eq!(text, line('c', MIB));
    // By age, after a while.
    let now = Duration::from_millis(place.millis.load(Ordering::Relaxed)) + Duration::from_hours(49);
    std::fs::write(place.dir.path().join("audit-notes.log"), "").unwrap();
    tidy(&place.path(), RotationOptions { max_age: 2, ..ONE_MEGABYTE }, now).unwrap();
    assert_eq!(place.names(), ["audit-notes.log", "audit.log"]);
}

#[test]
fn what_a_full_disk_does_not_take_is_reported_line_by_line() {
    let mut file = LogFile::new("/dev/full".into(), ONE_MEGABYTE, Place::new().clock());
    assert_eq!(write(&mut file, &["one\n", "two\n"]), [false, false]);
    // A device is never renamed.
    assert_eq!(write(&mut file, &[&line('x', MIB), "three\n"]), [false, false]);
    assert!(Path::new("/dev/full").exists());
}

const FULL_DISK: &str = "PORTCULLIS_TEST_FULL_DISK";

/// Runs itself with a limit on the size of files, which a file reaches in the middle of a line.
#[test]
fn a_full_disk_leaves_no_half_line() {
    if let Some(dir) = std::env::var_os(FULL_DISK) {
        return with_full_disk(Path::new(&dir));
    }
    let place = Place::new();
    let mut child = Command::new("sh");
    // 8 blocks of 512 or 1,024 bytes, by the shell.
    child.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact \"$1\" --nocapture"]);
    child.arg(std::env::current_exe().unwrap());
    child.arg("sink::log_file::tests::a_full_disk_leaves_no_half_line");
    let output = child.env(FULL_DISK, place.dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(place.path().exists(), "the child has run no test: {output:?}");
}

fn with_full_disk(dir: &Path) {
    let path = dir.join("audit.log");
    let clock = WallClock::new(|| Duration::ZERO);
    let mut file = LogFile::new(path.clone(), NO_ROTATION, clock);
    let lines: Vec<String> = (0..200).map(|at| format!("{at:0>99}\n")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let written = write(&mut file, &lines);
    let count = written.iter().filter(|written| **written).count();
    assert!((1..200).contains(&count), "{count}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), lines[..count].concat());
    // Then shorter lines fill the rest, and after them there is none.
    let written = write(&mut file, &["x\n"; 60]);
    let small = written.iter().filter(|written| **written).count();
    assert!(small < 60);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), lines[..count].concat() + &"x\n".repeat(small));
}

/// Where nothing can be cut off, as in a device, a newline ends what was written of a line.
#[test]
fn a_half_line_that_stays_is_ended() {
    let place = Place::new();
    let mut file = place.file(NO_ROTATION);
    write(&mut file, &["one\n"]);
    std::fs::write(place.path(), "one\nhalf").unwrap();
    file.half_line = true;
    assert_eq!(write(&mut file, &["two\n", "three\n"]), [true, true]);
    assert_eq!(place.read("audit.log"), "one\nhalf\ntwo\nthree\n");
}
