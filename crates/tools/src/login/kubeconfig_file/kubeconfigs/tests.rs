//! Which files are read and written, and what is left of them.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};

use serde_json::json;

use super::super::tests::{EXISTING, target};
use super::*;

fn paths(files: &[&Path]) -> KubeconfigPaths {
    let variable = std::env::join_paths(files).unwrap();
    KubeconfigPaths::from(None, Some(variable), None).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Adds a target as a login does, and makes it the current context.
async fn log_in(
    paths: &KubeconfigPaths,
    target: &KubeconfigTarget,
) -> Result<Vec<ReplacedKubeconfig>, LoginError> {
    let before = paths.read()?;
    let mut all = before.all();
    all.merge(target, false).unwrap();
    let mut after = before.clone();
    after.copy(target, &all);
    after.set_current_context(&target.context);
    let locks = KubeconfigLocks::acquire(&after.changed_paths(&before)).await?;
    after.write(&before, &locks)
}

/// A file with one context, whose cluster and user have the same name.
fn of_context(name: &str, more: &str) -> String {
    format!(
        "{more}\nclusters: [{{name: {name}, cluster: {{server: 'https://{name}.test'}}}}]\n\
         users: [{{name: {name}, user: {{token: t}}}}]\n\
         contexts: [{{name: {name}, context: {{cluster: {name}, user: {name}}}}}]\n"
    )
}

#[test]
fn the_files_are_those_of_the_flag_the_variable_or_the_home_directory() {
    let of = |flag: Option<&str>, variable: Option<&str>, home: Option<&str>| {
        KubeconfigPaths::from(flag.map(Path::new), variable.map(OsString::from), home.map(PathBuf::from))
    };
    let expected = |paths: &[&str], others: &[&str]| KubeconfigPaths {
        paths: paths.iter().map(PathBuf::from).collect(),
        others: others.iter().map(PathBuf::from).collect(),
    };
    for (flag, variable, home, paths, others) in [
        (None, None, Some("h"), &["h"][..], &[][..]),
        (None, Some(""), Some("h"), &["h"], &[]),
        (None, Some(":"), Some("h"), &["h"], &[]),
        (None, Some("a:b::a"), Some("h"), &["a", "b"], &[]),
        (Some("f"), Some("a:b"), Some("h"), &["f"], &[]),
        (Some("b"), Some("a:b"), Some("h"), &["b"], &["a"]),
    ] {
        assert_eq!(of(flag, variable, home).unwrap(), expected(paths, others), "{flag:?} {variable:?}");
    }
    assert!(of(None, None, None).unwrap_err().to_string().contains("--kubeconfig"));
}

#[test]
fn the_first_file_that_has_an_entry_wins() {
    let home = tempfile::tempdir().unwrap();
    let [absent, first, second] = ["absent", "first", "second"].map(|name| home.path().join(name));
    fs::write(&first, of_context("a", "")).unwrap();
    let both = format!(
        "{}\nextensions: []\n",
        of_context("b", "current-context: b")
            .replace("clusters: [", "clusters: [{name: a, cluster: {server: x}}, ")
    );
    fs::write(&second, both).unwrap();
    let read = paths(&[&absent, &first, &second]).read().unwrap();
    let current = read.target(None).unwrap();
    assert_eq!((current.context.as_str(), &current.cluster["server"]), ("b", &json!("https://b.test")));
    assert_eq!(read.target(Some("a")).unwrap().cluster["server"], "https://a.test", "not that of the second");
    assert_eq!((read.cluster_path("a"), read.user_path("b")), (first.as_path(), second.as_path()));
    let error = read.target(Some("c")).unwrap_err().to_string();
    for part in ["absent:", "first:", "second: there is no context \"c\"", "a, b"] {
        assert!(error.contains(part), "{error}");
    }
    fs::write(&second, "[").unwrap();
    let error = paths(&[&first, &second]).read().unwrap_err().to_string();
    assert!(error.contains(&second.display().to_string()), "{error}");
}

/// The files that exist, the file of the new entries, and what kubectl then reads.
#[tokio::test]
async fn an_entry_goes_back_to_its_file_and_a_new_one_to_the_first_that_exists() {
    let mut entry = target();
    for (exist, of_entry, written) in [
        (&["a", "b", "c"][..], None, "a"),
        (&["b", "c"], None, "b"),
        (&[], None, "c"),
        (&["a", "b", "c"], Some("c"), "c"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let files = ["a", "b", "c"].map(|name| home.path().join(name));
        for name in exist {
            fs::write(home.path().join(name), of_context(name, "")).unwrap();
        }
        if let Some(name) = of_entry {
            let mut file = KubeconfigFile::read(&home.path().join(name)).unwrap();
            file.merge(&entry, false).unwrap();
            fs::write(home.path().join(name), file.to_yaml().unwrap()).unwrap();
            // Another argument: the entry changes.
            entry.user["exec"]["args"] = json!(["credential", "--issuer=https://other.test"]);
        }
        let files = files.each_ref().map(PathBuf::as_path);
        let replaced = log_in(&paths(&files), &entry).await.unwrap();
        let default = exist.first().copied().unwrap_or("c");
        for name in ["a", "b", "c"] {
            let file = KubeconfigFile::read(&home.path().join(name)).unwrap();
            assert_eq!(file.contexts().contains(&"gateway"), name == written, "{exist:?}: {name}");
            assert_eq!(file.current_context(), (name == default).then_some("gateway"), "{exist:?}: {name}");
        }
        let is_written = |name: &str| name == written || name == default;
        let expected: Vec<_> = ["a", "b", "c"].into_iter().filter(|name| is_written(name)).collect();
        let names: Vec<_> =
            replaced.iter().map(|file| file.path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, expected, "{exist:?}");
        let read = paths(&files).read().unwrap();
        assert_eq!(read.target(None).unwrap(), entry, "{exist:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_is_locked_as_the_file_is() {
    let directory = tempfile::tempdir().unwrap();
    let [file, link] = ["file", "link"].map(|name| directory.path().join(name));
    fs::write(&file, EXISTING).unwrap();
    symlink(&file, &link).unwrap();
    for locked in [&file, &link] {
        let lock = locked.with_added_extension("lock");
        fs::write(&lock, "").unwrap();
        let error = KubeconfigLocks::check(&[&link]).await.unwrap_err();
        assert!(error.to_string().contains(&format!("remove {}", lock.display())), "{error}");
        fs::remove_file(&lock).unwrap();
    }
    // One directory under two names, and a file that is listed with its link.
    symlink(directory.path(), directory.path().join("here")).unwrap();
    let same = directory.path().join("here").join("link");
    KubeconfigLocks::check(&[&link, &file, &same]).await.unwrap();
    log_in(&paths(&[&link]), &target()).await.unwrap();
    assert!(link.is_symlink());
    assert_eq!(names(directory.path()), ["file", "file.portcullis-backup", "here", "link"]);
}

#[tokio::test]
async fn a_link_to_a_file_that_is_not_there_yet_is_written_through() {
    let home = tempfile::tempdir().unwrap();
    for name in ["kube", "dotfiles"] {
        fs::create_dir(home.path().join(name)).unwrap();
    }
    let (link, between) = (home.path().join("kube/config"), home.path().join("dotfiles/link"));
    symlink("../dotfiles/link", &link).unwrap();
    symlink("config", &between).unwrap();
    KubeconfigLocks::check(&[&link]).await.unwrap();
    let replaced = log_in(&paths(&[&link]), &target()).await.unwrap();
    assert_eq!(replaced, [ReplacedKubeconfig { path: link.clone(), backup: None }]);
    assert!(link.is_symlink() && between.is_symlink());
    let file = home.path().join("dotfiles/config");
    assert_eq!((mode(&file), KubeconfigFile::read(&file).unwrap().contexts()), (0o600, vec!["gateway"]));
    // As for kubectl, its directory must be there. The login would be in vain.
    let astray = home.path().join("kube/astray");
    symlink("../nowhere/config", &astray).unwrap();
    let error = KubeconfigLocks::check(&[&astray]).await.unwrap_err().to_string();
    assert!(error.contains("nowhere/config, whose directory does not exist"), "{error}");
    symlink("round", home.path().join("kube/round")).unwrap();
    assert!(KubeconfigLocks::check(&[&home.path().join("kube/round")]).await.is_err());
    assert_eq!(names(&home.path().join("kube")), ["astray", "config", "round"]);
}

#[tokio::test]
async fn a_file_is_replaced_and_no_old_content_is_lost() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(".kube/config");
    let empty = paths(&[&path]);
    KubeconfigLocks::check(&[&path]).await.unwrap();
    assert!(!home.path().join(".kube").exists(), "a check creates nothing");
    let first = log_in(&empty, &target()).await.unwrap();
    assert_eq!(first, [ReplacedKubeconfig { path: path.clone(), backup: None }]);
    assert_eq!((mode(&path), mode(&home.path().join(".kube"))), (0o600, 0o700));
    assert_eq!(log_in(&empty, &target()).await.unwrap(), [], "nothing to do");
    // A file that others can read becomes private.
    fs::write(&path, EXISTING).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let backup = |suffix: &str| home.path().join(format!(".kube/config.portcullis-backup{suffix}"));
    let replaced = log_in(&empty, &target()).await.unwrap();
    assert_eq!(replaced[0].backup, Some(backup("")));
    assert_eq!((mode(&path), mode(&backup(""))), (0o600, 0o600));
    // Every further change keeps another one, and the same content once.
    for (more, suffix) in [("# mine\n", "-2"), ("# again\n", "-3"), ("# mine\n", "-2")] {
        fs::write(&path, format!("{more}{EXISTING}")).unwrap();
        let replaced = log_in(&empty, &target()).await.unwrap();
        assert_eq!(replaced[0].backup, Some(backup(suffix)));
        assert_eq!(fs::read_to_string(backup(suffix)).unwrap(), format!("{more}{EXISTING}"));
    }
    assert_eq!(fs::read_to_string(backup("")).unwrap(), EXISTING, "the first one stays");
    assert_eq!(names(&home.path().join(".kube")).len(), 4, "nothing else is left");
}

/// What is there under the name of the old content counts only if it is a file of the user with that content.
#[test]
fn nothing_under_the_name_of_a_backup_is_waited_for_or_followed() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("config");
    let backup = |number: usize| match number {
        1 => home.path().join("config.portcullis-backup"),
        number => home.path().join(format!("config.portcullis-backup-{number}")),
    };
    let old = b"old".as_slice();
    assert_eq!(backup_of(&file, old).unwrap(), (backup(1), false));
    rustix::fs::mkfifoat(rustix::fs::CWD, backup(1), rustix::fs::Mode::RUSR).unwrap();
    fs::write(home.path().join("same"), old).unwrap();
    symlink("same", backup(2)).unwrap();
    symlink("absent", backup(3)).unwrap();
    fs::create_dir(backup(4)).unwrap();
    fs::write(backup(5), "older").unwrap();
    fs::write(backup(6), "older content").unwrap();
    let (done, outcome) = std::sync::mpsc::channel();
    let searched = file.clone();
    std::thread::spawn(move || done.send(backup_of(&searched, b"old").unwrap()));
    let found = outcome.recv_timeout(Duration::from_secs(10)).expect("a FIFO has no writer");
    assert_eq!(found, (backup(7), false));
    fs::write(backup(7), old).unwrap();
    // Only root can give a file to another user.
    if fs::metadata(file.with_file_name("same")).unwrap().uid() == 0 {
        chown(backup(7), Some(1001), None).unwrap();
        assert_eq!(backup_of(&file, old).unwrap(), (backup(8), false));
        fs::write(backup(8), old).unwrap();
        assert_eq!(backup_of(&file, old).unwrap(), (backup(8), true));
    } else {
        assert_eq!(backup_of(&file, old).unwrap(), (backup(7), true));
    }
}

#[tokio::test]
async fn a_link_of_another_user_in_a_shared_directory_is_not_written_through() {
    let shared = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let link = shared.path().join("config");
    symlink(home.path().join(".bash_profile"), &link).unwrap();
    log_in(&paths(&[&link]), &target()).await.unwrap();
    fs::remove_file(home.path().join(".bash_profile")).unwrap();
    if fs::symlink_metadata(&link).unwrap().uid() != 0 {
        // Only root can give a link to another user.
        return;
    }
    lchown(&link, Some(1001), None).unwrap();
    let refused = KubeconfigLocks::check(&[&link]).await.unwrap_err().to_string();
    assert!(refused.contains("a symbolic link of the user 1001"), "{refused}");
    assert!(log_in(&paths(&[&link]), &target()).await.is_err());
    assert!(names(home.path()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_awaited_after_a_login_and_then_named() {
    let home = tempfile::tempdir().unwrap();
    let [path, other] = ["config", "other"].map(|name| home.path().join(name));
    let lock = path.with_added_extension("lock");
    fs::write(&lock, "").unwrap();
    let began = Instant::now();
    let error = KubeconfigLocks::acquire(&[&other, &path]).await.unwrap_err().to_string();
    assert!(error.contains(&format!("remove {}", lock.display())), "{error}");
    assert!(began.elapsed() >= LOCK_TIMEOUT);
    assert_eq!(names(home.path()), ["config.lock"], "the other one is free again");
    let freed = async {
        sleep(LOCK_TIMEOUT / 2).await;
        fs::remove_file(&lock).unwrap();
    };
    let (locks, ()) =
        tokio::join!(async { KubeconfigLocks::acquire(&[&other, &path]).await.unwrap() }, freed);
    assert_eq!(names(home.path()), ["config.lock", "other.lock"]);
    drop(locks);
    assert!(names(home.path()).is_empty());
}
