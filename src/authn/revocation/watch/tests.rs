//! Changes of a file, check by check.

use portcullis_kubernetes::user::UserInfo;

use super::*;

const NOW: UnixTime = UnixTime::from_hours(500_000);

struct Watched {
    directory: tempfile::TempDir,
    list: WatchedDenyList,
}

impl Watched {
    fn new(content: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("denied");
        std::fs::write(&path, content).unwrap();
        let list = WatchedDenyList::new(&LoadedDenyList::load(&path).unwrap());
        let watched = Self { directory, list };
        assert_eq!(watched.check(), Change::None);
        watched
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("denied")
    }

    fn write(&self, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(), content).unwrap();
    }

    fn check(&self) -> Change {
        self.list.check(NOW)
    }

    fn denies(&self, name: &str) -> bool {
        self.list.list().denies_user(&UserInfo::named(name), NOW).is_some()
    }
}

#[test]
fn a_new_entry_counts_with_the_next_check() {
    let watched = Watched::new("user=alice\n");
    watched.write("user=alice\nuser=bob\n");
    assert_eq!(watched.check(), Change::Replaced(2));
    assert!(watched.denies("alice") && watched.denies("bob"));
    assert_eq!(watched.check(), Change::None);
}

#[test]
fn an_entry_that_is_missing_counts_until_two_checks_have_missed_it() {
    let watched = Watched::new("user=alice\nuser=bob\n");
    // An editor truncates the file before it writes.
    watched.write("");
    assert_eq!(watched.check(), Change::None);
    assert!(watched.denies("alice"));
    watched.write("user=alice\nuser=bob\nuser=carol\n");
    assert_eq!(watched.check(), Change::Replaced(3));
    watched.write("user=bob\n");
    assert_eq!(watched.check(), Change::None);
    assert!(watched.denies("alice"));
    assert_eq!(watched.check(), Change::Replaced(1));
    assert!(!watched.denies("alice") && watched.denies("bob"));
}

#[test]
fn a_broken_line_is_refused_once_and_the_old_list_stays() {
    let watched = Watched::new("user=alice\n");
    watched.write("user=alice\nuser bob\n");
    assert_eq!(watched.check(), Change::None, "the file may not be complete yet");
    let Change::Refused(problem) = watched.check() else { panic!("refused") };
    assert!(problem.starts_with("line 2: "), "{problem}");
    for _ in 0..9 {
        assert_eq!(watched.check(), Change::None);
    }
    assert!(watched.denies("alice"));
    // Another mistake is another error; then the repaired list counts.
    watched.write("nonsense\n");
    assert_eq!(watched.check(), Change::None);
    assert!(matches!(watched.check(), Change::Refused(_)));
    watched.write("user=alice\nuser=bob\n");
    assert_eq!(watched.check(), Change::Replaced(2));
    // The same mistake again is an error again.
    watched.write("nonsense\n");
    assert_eq!(watched.check(), Change::None);
    assert!(matches!(watched.check(), Change::Refused(_)));
}

#[test]
fn a_file_that_is_gone_or_unreadable_is_refused_once_and_the_old_list_stays() {
    let watched = Watched::new("user=alice\n");
    std::fs::remove_file(watched.path()).unwrap();
    assert_eq!(watched.check(), Change::None);
    assert!(matches!(watched.check(), Change::Refused(_)));
    assert_eq!(watched.check(), Change::None);
    std::fs::create_dir(watched.path()).unwrap();
    assert_eq!(watched.check(), Change::None);
    assert!(matches!(watched.check(), Change::Refused(_)));
    assert!(watched.denies("alice"));
    std::fs::remove_dir(watched.path()).unwrap();
    // A list of 16 MiB and a byte.
    let large = std::fs::File::create(watched.path()).unwrap();
    large.set_len(input_file::MAX_FILE_SIZE + 1).unwrap();
    assert_eq!(watched.check(), Change::None);
    assert!(matches!(watched.check(), Change::Refused(_)));
    assert!(watched.denies("alice"));
    watched.write("user=alice\n");
    assert_eq!(watched.check(), Change::None);
    assert!(watched.denies("alice"));
}

#[test]
fn a_write_that_leaves_the_metadata_as_it_was_is_found_by_a_later_check() {
    let watched = Watched::new("user=alice\n");
    watched.write("user=carol\nuser=alice\n");
    assert_eq!(watched.check(), Change::Replaced(2));
    let stamp = watched.list.state().stamp;
    watched.write("user=david\nuser=alice\nuser=carol\n");
    // As if the times of the file had not changed.
    let now = std::fs::metadata(watched.path()).map(|metadata| super::stamp(&metadata)).unwrap();
    assert_ne!(Some(now), stamp);
    watched.list.state().stamp = Some(now);
    let changes: Vec<_> = (0..READ_INTERVAL).map(|_| watched.check()).collect();
    assert!(changes.contains(&Change::Replaced(3)), "{changes:?}");
}

#[test]
fn clusters_that_name_a_file_share_its_list() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| {
        let path = directory.path().join(name);
        std::fs::write(&path, "user=alice\n").unwrap();
        LoadedDenyList::load(&path).unwrap()
    });
    let watch = RevocationWatch::new();
    let first = watch.deny_list(&one);
    assert!(Arc::ptr_eq(&first, &watch.deny_list(&one)));
    assert!(!Arc::ptr_eq(&first, &watch.deny_list(&other)));
    drop(first);
    watch.deny_list(&one);
    assert!(lock(&watch.lists).len() <= 2, "lists that no cluster uses are forgotten");
}

/// The far end of a watch is a file system: one that does not answer holds up its own list only.
#[tokio::test(start_paused = true)]
async fn a_file_system_that_never_answers_holds_up_its_own_list_only() {
    let directory = tempfile::tempdir().unwrap();
    let [silent, good] = ["silent", "good"].map(|name| {
        let path = directory.path().join(name);
        std::fs::write(&path, "user=alice\n").unwrap();
        LoadedDenyList::load(&path).unwrap()
    });
    let watch = RevocationWatch::new();
    let (silent, list) = (watch.deny_list(&silent), watch.deny_list(&good));
    // Its check has begun, and does not end.
    let running = RunningCheck::begin(Arc::clone(&silent)).unwrap();
    assert!(RunningCheck::begin(Arc::clone(&silent)).is_none());
    let mut changes = watch.subscribe();
    std::fs::write(directory.path().join("good"), "user=alice\nuser=bob\n").unwrap();
    std::fs::write(directory.path().join("silent"), "user=alice\nuser=bob\n").unwrap();
    let metrics = Arc::new(Metrics::new());
    let clock = Clock::from_fn(|| NOW);
    let task = {
        let (watch, metrics) = (Arc::clone(&watch), Arc::clone(&metrics));
        tokio::spawn(async move { watch.run(&metrics, &clock).await })
    };
    changes.changed().await.unwrap();
    assert_eq!(list.list().count(), 2);
    assert_eq!(silent.list().count(), 1);
    drop(running);
    changes.changed().await.unwrap();
    assert_eq!(silent.list().count(), 2);
    assert_eq!(metrics.revocation.deny_list_reloads.with_label_values(&["success"]).get(), 2);
    task.abort();
}
