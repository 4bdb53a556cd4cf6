//! What can be wrong with a cache, and several processes that use it.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use crate::login::settings::tests::settings;

fn cache(directory: &Path) -> LoginCache {
    LoginCache::open(Some(directory), CredentialStoreKind::File, false).unwrap()
}

fn entry(directory: &Path) -> CacheEntry {
    cache(directory).entry(&settings(&[])).unwrap()
}

fn file(entry: &CacheEntry, suffix: &str) -> PathBuf {
    entry.cache.directory.join(format!("{}.{suffix}", entry.name))
}

fn tokens() -> CachedTokens {
    let mut tokens = CachedTokens::new(&settings(&[]), "a.b.c", 2_000, 1_000);
    tokens.refresh_token = Some(SecretText::new("refresh"));
    tokens
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn tokens_are_for_their_user_alone() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("a/b");
    let entry = entry(&directory);
    assert_eq!(entry.read().await.unwrap(), None);
    entry.write(&tokens()).await.unwrap();
    assert_eq!((mode(&directory), mode(&file(&entry, "json"))), (0o700, 0o600));
    assert_eq!(entry.read().await.unwrap(), Some(tokens()));
    assert!(!format!("{:?}", tokens()).contains("refresh\"") && !format!("{:?}", tokens()).contains("a.b.c"));
    assert_eq!(cache(&directory).entries().await.unwrap().len(), 1);
    entry.remove().await.unwrap();
    entry.remove().await.unwrap();
    assert_eq!(entry.read().await.unwrap(), None);
}

/// A name, what happens to the file, and whether the error says so.
type DamageCase<'a> = (&'a str, &'a dyn Fn(), fn(&CacheError) -> bool);

#[tokio::test]
async fn a_bad_cache_is_named_and_replaced() {
    let home = tempfile::tempdir().unwrap();
    let entry = entry(home.path());
    let path = file(&entry, "json");
    let other = home.path().join("other");
    entry.write(&tokens()).await.unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let cases: [DamageCase<'_>; 7] = [
        ("cut off", &|| fs::write(&path, good.split_at(20).0).unwrap(), |error| {
            matches!(error, CacheError::Damaged(_))
        }),
        ("empty", &|| fs::write(&path, "").unwrap(), |error| matches!(error, CacheError::Damaged(_))),
        ("noise", &|| fs::write(&path, [0xff; 64]).unwrap(), |error| matches!(error, CacheError::Damaged(_))),
        ("another version", &|| fs::write(&path, r#"{"version":2,"tokens":[]}"#).unwrap(), |error| {
            matches!(error, CacheError::Version(_))
        }),
        (
            "readable for others",
            &|| {
                fs::write(&path, &good).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            },
            |error| matches!(error, CacheError::Readable(_)),
        ),
        (
            "a symbolic link",
            &|| {
                fs::write(&other, &good).unwrap();
                fs::remove_file(&path).unwrap();
                symlink(&other, &path).unwrap();
            },
            |error| matches!(error, CacheError::Io(..)),
        ),
        (
            "a directory",
            &|| {
                fs::remove_file(&path).unwrap();
                fs::create_dir(&path).unwrap();
            },
            |error| matches!(error, CacheError::Io(..) | CacheError::Readable(_)),
        ),
    ];
    for (name, damage, is_expected) in cases {
        damage();
        let error = entry.read().await.expect_err(name);
        assert!(is_expected(&error), "{name}: {error}");
        if name != "a directory" {
            entry.write(&tokens()).await.unwrap();
            assert_eq!(entry.read().await.unwrap(), Some(tokens()), "{name}");
        }
    }
    assert!(fs::read(&other).unwrap() == good.as_bytes(), "the link's target is untouched");
}

#[test]
fn a_directory_that_others_can_write_to_is_not_used() {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = cache(home.path()).entry(&settings(&[])).unwrap_err();
    assert!(matches!(error, CacheError::Writable(_)), "{error}");
    let below_a_file = home.path().join("file");
    fs::write(&below_a_file, "").unwrap();
    assert!(matches!(cache(&below_a_file).entry(&settings(&[])), Err(CacheError::Io(..))));
}

#[tokio::test]
async fn a_write_that_fails_leaves_the_old_tokens_and_no_other_file() {
    let home = tempfile::tempdir().unwrap();
    let entry = entry(home.path());
    entry.write(&tokens()).await.unwrap();
    // Of a process that was killed.
    fs::write(file(&entry, "partial"), "half").unwrap();
    entry.write(&tokens()).await.unwrap();
    assert!(!file(&entry, "partial").exists());
    // The rename fails, as it would on a full disk.
    fs::remove_file(file(&entry, "json")).unwrap();
    fs::create_dir(file(&entry, "json")).unwrap();
    assert!(entry.write(&tokens()).await.is_err());
    assert!(!file(&entry, "partial").exists());
}

#[test]
fn each_login_has_its_own_entry() {
    let variants: [&[&str]; 10] = [
        &[],
        &["--scope=openid"],
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
fn the_directory_is_below_that_of_the_users_caches() {
    let default = directory(None).ok();
    assert_eq!(default, platform::cache_home().map(|caches| caches.join("portcullis/login")));
    assert_eq!(directory(Some(Path::new("d"))).unwrap(), PathBuf::from("d"));
    let text = CacheError::NoHome.to_string();
    assert!(text.contains("set HOME or XDG_CACHE_HOME, or give --cache-dir DIR"), "{text}");
}

#[tokio::test]
async fn one_process_at_a_time_and_a_dead_one_holds_nothing() {
    let home = tempfile::tempdir().unwrap();
    let entry = entry(home.path());
    let held = entry.lock(Duration::from_secs(1), || ()).await.unwrap();
    let mut waited = 0;
    let second = entry.lock(LOCK_INTERVAL, || waited += 1).await;
    assert!(matches!(second, Err(CacheError::Locked(..))));
    assert_eq!(waited, 1);
    // As the kernel does when the process ends: the file stays, the lock does not.
    drop(held);
    assert!(file(&entry, "lock").exists());
    // A program that another test starts may have inherited the lock for an instant.
    entry.lock(Duration::from_mins(1), || ()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_must_not_ask_waits_longer_for_a_refresh_than_for_a_login() {
    let home = tempfile::tempdir().unwrap();
    let entry = entry(home.path());
    let held = entry.lock(Duration::from_secs(1), || ()).await.unwrap();
    let limits = LockLimits { all: Duration::from_mins(6), login: Duration::from_secs(10) };
    for (is_login, limit, part) in
        [(false, limits.all, "has used this login"), (true, limits.login, "logs in")]
    {
        if is_login {
            held.begin_login();
        }
        let (began, mut seen) = (Instant::now(), None);
        let error = entry.lock_within(limits, |holder| seen = holder.cloned()).await.unwrap_err();
        assert!((limit..limit + Duration::from_secs(1)).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert_eq!(seen.unwrap().process, std::process::id());
        let (process, error) = (format!("process {}, since 20", std::process::id()), error.to_string());
        let fix = format!("`kill {}`", std::process::id());
        for part in [part, process.as_str(), fix.as_str()] {
            assert!(error.contains(part), "{error}");
        }
    }
    // On another machine, the ID is that of another process.
    let elsewhere = LockHolder { machine: Some("another".to_owned()), ..held.holder.clone() };
    LockRecord { holder: Some(elsewhere), ..LockRecord::default() }.write(&held.file);
    let error = entry.lock_within(limits, |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("end it on its machine") && !error.contains("kill"), "{error}");
    // A file of an earlier version names no holder.
    fs::write(file(&entry, "lock"), r#"{"id":"a","attempt":"b","problem":"c","is_temporary":true}"#).unwrap();
    let error = entry.lock(LOCK_INTERVAL, || ()).await.unwrap_err();
    assert!(error.to_string().contains("fix: end the other portcullis"), "{error}");
}

#[test]
fn a_user_has_a_name_with_the_subject_behind_it() {
    use serde_json::json;

    let payload = |claims: serde_json::Value| {
        let part =
            |text: String| base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, text);
        let token =
            [part(r#"{"alg":"ES256"}"#.to_owned()), part(claims.to_string()), part("x".to_owned())].join(".");
        let mut tokens = CachedTokens::new(&settings(&[]), &token, 2_000, 1_000);
        tokens.subject = Some("00u1".to_owned());
        tokens.user().unwrap()
    };
    assert_eq!(payload(json!({"sub": "00u1", "email": "alice@a.test"})), "alice@a.test (00u1)");
    assert_eq!(payload(json!({"sub": "00u1", "name": "a\u{1b}[2J "})), "\"a\u{fffd}[2J \" (00u1)");
    assert_eq!(payload(json!({"sub": "00u1"})), "00u1");
    assert_eq!(payload(json!({"sub": "another", "email": "alice@a.test"})), "00u1");
}

#[tokio::test]
async fn files_of_others_are_no_entries() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("package.json"), "{}").unwrap();
    assert!(cache(home.path()).entries().await.unwrap().is_empty());
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

#[test]
fn a_keyring_that_is_not_built_is_an_error_that_names_the_feature() {
    use no_keyring::KeyringError as UnbuiltKeyring;

    let error = UnbuiltKeyring::not_built();
    let text = error.to_string();
    for part in ["--credential-store=keyring", "the cargo feature `keyring`", "--credential-store=file"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(error.is_usage() && error.is_absent());
    assert_eq!(stores(false), [CredentialStoreKind::File], "`logout --all` looks for no keyring");
}
