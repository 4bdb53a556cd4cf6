//! What can be wrong with a cache, and several processes that use it.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use crate::cli::login::settings::tests::settings;

fn entry(directory: &Path) -> CacheEntry {
    CacheEntry::open(directory, &settings(&[])).unwrap()
}

fn tokens() -> CachedTokens {
    let mut tokens = CachedTokens::new(&settings(&[]), "a.b.c", 2_000, 1_000);
    tokens.refresh_token = Some(SecretText::new("refresh"));
    tokens
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn tokens_are_for_their_user_alone() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("a/b");
    let entry = entry(&directory);
    assert_eq!(entry.read().unwrap(), None);
    entry.write(&tokens()).unwrap();
    assert_eq!((mode(&directory), mode(&entry.file("json"))), (0o700, 0o600));
    assert_eq!(entry.read().unwrap(), Some(tokens()));
    assert!(!format!("{:?}", tokens()).contains("refresh\"") && !format!("{:?}", tokens()).contains("a.b.c"));
    assert_eq!(CacheEntry::all(&directory).unwrap().len(), 1);
    entry.remove().unwrap();
    entry.remove().unwrap();
    assert_eq!(entry.read().unwrap(), None);
}

/// A name, what happens to the file, and whether the error says so.
type DamageCase<'a> = (&'a str, &'a dyn Fn(), fn(&CacheError) -> bool);

#[test]
fn a_bad_cache_is_named_and_replaced() {
    let home = tempfile::tempdir().unwrap();
    let entry = entry(home.path());
    let file = entry.file("json");
    let other = home.path().join("other");
    entry.write(&tokens()).unwrap();
    let good = fs::read_to_string(&file).unwrap();
    let cases: [DamageCase<'_>; 7] = [
        ("cut off", &|| fs::write(&file, good.split_at(20).0).unwrap(), |error| {
            matches!(error, CacheError::Damaged(_))
        }),
        ("empty", &|| fs::write(&file, "").unwrap(), |error| matches!(error, CacheError::Damaged(_))),
        ("noise", &|| fs::write(&file, [0xff; 64]).unwrap(), |error| matches!(error, CacheError::Damaged(_))),
        ("another version", &|| fs::write(&file, r#"{"version":2,"tokens":[]}"#).unwrap(), |error| {
            matches!(error, CacheError::Version(_))
        }),
        (
            "readable for others",
            &|| {
                fs::write(&file, &good).unwrap();
                fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
            },
            |error| matches!(error, CacheError::Readable(_)),
        ),
        (
            "a symbolic link",
            &|| {
                fs::write(&other, &good).unwrap();
                fs::remove_file(&file).unwrap();
                symlink(&other, &file).unwrap();
            },
            |error| matches!(error, CacheError::Io(..)),
        ),
        (
            "a directory",
            &|| {
                fs::remove_file(&file).unwrap();
                fs::create_dir(&file).unwrap();
            },
            |error| matches!(error, CacheError::Io(..) | CacheError::Readable(_)),
        ),
    ];
    for (name, damage, is_expected) in cases {
        damage();
        let error = entry.read().expect_err(name);
        assert!(is_expected(&error), "{name}: {error}");
        if name != "a directory" {
            entry.write(&tokens()).unwrap();
            assert_eq!(entry.read().unwrap(), Some(tokens()), "{name}");
        }
    }
    assert!(fs::read(&other).unwrap() == good.as_bytes(), "the link's target is untouched");
}

#[test]
fn a_directory_that_others_can_write_to_is_not_used() {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = CacheEntry::open(home.path(), &settings(&[])).unwrap_err();
    assert!(matches!(error, CacheError::Writable(_)), "{error}");
    let below_a_file = home.path().join("file");
    fs::write(&below_a_file, "").unwrap();
    assert!(matches!(CacheEntry::open(&below_a_file, &settings(&[])), Err(CacheError::Io(..))));
}

#[test]
fn a_write_that_fails_leaves_the_old_tokens_and_no_other_file() {
    let home = tempfile::tempdir().unwrap();
    let entry = entry(home.path());
    entry.write(&tokens()).unwrap();
    // Of a process that was killed.
    fs::write(entry.file("partial"), "half").unwrap();
    entry.write(&tokens()).unwrap();
    assert!(!entry.file("partial").exists());
    // The rename fails, as it would on a full disk.
    fs::remove_file(entry.file("json")).unwrap();
    fs::create_dir(entry.file("json")).unwrap();
    assert!(entry.write(&tokens()).is_err());
    assert!(!entry.file("partial").exists());
}

#[test]
fn each_login_has_its_own_entry() {
    let variants: [&[&str]; 9] = [
        &[],
        &["--scope=groups"],
        &["--scope=groups,email"],
        &["--user=bob"],
        &["--token=access"],
        &["--extra-parameter=audience=x"],
        &["--client-id=other"],
        &["--issuer=https://other.test"],
        &["--scope=groups", "--user=bob"],
    ];
    let names: std::collections::BTreeSet<_> =
        variants.iter().map(|flags| name_of(&settings(flags))).collect();
    assert_eq!(names.len(), variants.len());
    // How the user logs in makes no difference.
    assert_eq!(name_of(&settings(&[])), name_of(&settings(&["--flow=device", "--callback-port=8000"])));
    assert_eq!(name_of(&settings(&["--scope=a,b"])), name_of(&settings(&["--scope=b,openid,a"])));
}

#[test]
fn the_directory_is_that_of_xdg() {
    let path = |text: &str| Some(PathBuf::from(text));
    let cases = [
        (path("/x"), path("/home/a"), Some("/x/portcullis/login")),
        (path("relative"), path("/home/a"), Some("/home/a/.cache/portcullis/login")),
        (None, path("/home/a"), Some("/home/a/.cache/portcullis/login")),
        (None, path(""), None),
        (None, None, None),
    ];
    for (xdg, home, expected) in cases {
        assert_eq!(directory_of(None, xdg, home).ok(), expected.map(PathBuf::from));
    }
    assert_eq!(directory_of(Some(Path::new("d")), None, None).unwrap(), PathBuf::from("d"));
}

#[tokio::test]
async fn one_process_at_a_time_and_a_dead_one_holds_nothing() {
    let home = tempfile::tempdir().unwrap();
    let entry = entry(home.path());
    let held = entry.lock(Duration::from_secs(1), || ()).await.unwrap();
    let mut waited = 0;
    let second = entry.lock(LOCK_INTERVAL, || waited += 1).await;
    assert!(matches!(second, Err(CacheError::Locked(_))));
    assert_eq!(waited, 1);
    // As the kernel does when the process ends: the file stays, the lock does not.
    drop(held);
    assert!(entry.file("lock").exists());
    // A program that another test starts may have inherited the lock for an instant.
    entry.lock(Duration::from_mins(1), || ()).await.unwrap();
}

#[test]
fn files_of_others_are_no_entries() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("package.json"), "{}").unwrap();
    assert!(CacheEntry::all(home.path()).unwrap().is_empty());
}

#[test]
fn an_entry_is_of_one_set_of_authorities() {
    let of_authority = |name: &str| {
        let pem = testkit::pki::Ca::new(name).cert_pem();
        let data = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
        name_of(&settings(&[&format!("--issuer-certificate-authority-data={data}")]))
    };
    let names = [name_of(&settings(&[])), of_authority("company"), of_authority("company")];
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), 3, "of two CAs of one name, too");
    assert!(names.iter().all(|name| is_name(name)));
}
