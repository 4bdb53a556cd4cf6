use std::collections::BTreeMap;

use super::*;
use crate::merkle::{is_consistent, is_included, prove_consistency, prove_inclusion};

pub(crate) fn signer() -> NoteSigner {
    NoteSigner::from_pem("example.com/log", NoteSigner::generate().unwrap().as_bytes()).unwrap()
}

fn entry(number: u64) -> Vec<u8> {
    format!("entry {number}").into_bytes()
}

fn entries(from: u64, to: u64) -> Vec<Vec<u8>> {
    (from..to).map(entry).collect()
}

fn append(log: &LogDirectory, signer: &NoteSigner, from: u64, to: u64) {
    let mut locked = log.open(signer, Duration::ZERO).unwrap();
    assert_eq!(locked.append(&entries(from, to)).unwrap(), from);
    assert_eq!(locked.checkpoint().size, to);
}

/// All files below a directory, with their contents.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                found.insert(path.clone(), fs::read(path).unwrap());
            }
        }
    }
    found
}

/// Entries, proofs and root of a log with this number of entries.
fn check(log: &LogDirectory, verifier: &Verifier, size: u64) {
    let checkpoint = log.checkpoint(verifier).unwrap();
    assert_eq!(checkpoint.size, size);
    let tree = log.tree(size);
    assert_eq!(root(&tree, size).unwrap(), checkpoint.root);
    for index in 0..size {
        let tile = Tile::containing(TileKind::Entries, index, size);
        let found = log.entries(tile).unwrap()[usize::try_from(index % WIDTH).unwrap()].clone();
        assert_eq!(found, entry(index));
        let proof = prove_inclusion(&tree, index, size).unwrap();
        assert!(is_included(&proof, index, &leaf_hash(&found), size, &checkpoint.root));
    }
}

#[test]
fn a_log_is_read_as_it_was_written_however_it_grew() {
    let key = signer();
    for steps in [vec![0, 1, 2, 3], vec![0, 255, 256, 257], vec![0, 300, 300, 520], vec![0, 1000]] {
        let directory = tempfile::tempdir().unwrap();
        let log = LogDirectory::create(&directory.path().join("log"), &key).unwrap();
        let mut heads = vec![log.checkpoint(key.verifier()).unwrap()];
        for pair in steps.windows(2) {
            append(&log, &key, pair[0], pair[1]);
            check(&log, key.verifier(), pair[1]);
            heads.push(log.checkpoint(key.verifier()).unwrap());
        }
        let last = heads.last().unwrap();
        let tree = log.tree(last.size);
        for head in &heads {
            let proof = prove_consistency(&tree, head.size, last.size).unwrap();
            assert!(is_consistent(&proof, (head.size, &head.root), (last.size, &last.root)));
        }
    }
}

#[test]
fn the_files_of_a_level_with_a_second_one_have_their_places() {
    let (key, directory) = (signer(), tempfile::tempdir().unwrap());
    let log = LogDirectory::create(directory.path(), &key).unwrap();
    append(&log, &key, 0, 257);
    let names: Vec<String> = files(directory.path())
        .keys()
        .map(|path| path.strip_prefix(directory.path()).unwrap().display().to_string())
        .collect();
    let expected = [
        ".lock",
        "checkpoint",
        "tile/0/000",
        "tile/0/001.p/1",
        "tile/1/000.p/1",
        "tile/entries/000",
        "tile/entries/001.p/1",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_log_that_grows_by_one_entry_keeps_the_last_partial_tiles_alone() {
    let (key, directory) = (signer(), tempfile::tempdir().unwrap());
    let log = LogDirectory::create(directory.path(), &key).unwrap();
    for size in 0..40 {
        append(&log, &key, size, size + 1);
    }
    let partial = |kind: &str| {
        let found = fs::read_dir(directory.path().join(format!("tile/{kind}/000.p"))).unwrap();
        let mut names: Vec<_> =
            found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(
        (partial("0"), partial("entries")),
        (vec!["39".to_owned(), "40".to_owned()], vec!["39".to_owned(), "40".to_owned()])
    );
    check(&log, key.verifier(), 40);
}

/// The states of a directory if the process is killed after each of its writes: each file is written as a whole, so a state
/// has the first files of the write, in their order.
fn killed_states(
    before: &BTreeMap<PathBuf, Vec<u8>>,
    after: &BTreeMap<PathBuf, Vec<u8>>,
) -> Vec<BTreeMap<PathBuf, Vec<u8>>> {
    let order = |path: &Path| {
        let text = path.display().to_string();
        (!text.contains("/tile/entries/"), !text.contains("/tile/"), text)
    };
    let mut changed: Vec<_> =
        after.iter().filter(|(path, content)| before.get(*path) != Some(content)).collect();
    changed.sort_by_key(|(path, _)| order(path));
    (0..changed.len())
        .map(|count| {
            let mut state = before.clone();
            state
                .extend(changed[..count].iter().map(|(path, content)| ((*path).clone(), (*content).clone())));
            state
        })
        .collect()
}

#[test]
fn killed_at_any_time_nothing_is_lost_or_forked() {
    let key = signer();
    for (from, to) in [(0, 1), (3, 4), (254, 258), (256, 300), (511, 513)] {
        let directory = tempfile::tempdir().unwrap();
        let log = LogDirectory::create(directory.path(), &key).unwrap();
        append(&log, &key, 0, from);
        let before = files(directory.path());
        append(&log, &key, from, to);
        let after = files(directory.path());
        let states = killed_states(&before, &after);
        assert!(states.len() >= 3, "entries, hashes and the checkpoint");
        for state in states {
            fs::remove_dir_all(directory.path().join("tile")).ok();
            for (path, content) in &state {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            // The checkpoint is the old one, and what it states is there.
            check(&log, key.verifier(), from);
            let old = log.checkpoint(key.verifier()).unwrap();
            // Other entries than those that were on their way.
            let mut locked = log.open(&key, Duration::ZERO).unwrap();
            let others: Vec<Vec<u8>> = (0..3).map(|number| format!("other {number}").into_bytes()).collect();
            locked.append(&others).unwrap();
            drop(locked);
            let new = log.checkpoint(key.verifier()).unwrap();
            assert_eq!(new.size, from + 3);
            let proof = prove_consistency(&log.tree(new.size), old.size, new.size).unwrap();
            assert!(is_consistent(&proof, (old.size, &old.root), (new.size, &new.root)));
            fs::write(directory.path().join("checkpoint"), old.signed(&key)).unwrap();
        }
    }
}

#[test]
fn a_write_that_fails_leaves_the_log_as_it_was() {
    let key = signer();
    for (from, to) in [(0, 1), (3, 4), (254, 258), (511, 513)] {
        let reference = tempfile::tempdir().unwrap();
        let log = LogDirectory::create(reference.path(), &key).unwrap();
        append(&log, &key, 0, from);
        let before = files(reference.path());
        append(&log, &key, from, to);
        let new = files(reference.path()).into_keys().filter(|path| !before.contains_key(path));
        let new: Vec<PathBuf> =
            new.map(|path| path.strip_prefix(reference.path()).unwrap().to_owned()).collect();
        assert!(new.len() >= 2, "{new:?}");
        for name in new {
            let directory = tempfile::tempdir().unwrap();
            let log = LogDirectory::create(directory.path(), &key).unwrap();
            append(&log, &key, 0, from);
            // As on a full disk: this file cannot be written.
            let place = directory.path().join(&name);
            fs::create_dir_all(&place).unwrap();
            let mut locked = log.open(&key, Duration::ZERO).unwrap();
            let failed = locked.append(&entries(from, to));
            assert!(matches!(failed, Err(LogError::Io { .. })), "{name:?}: {failed:?}");
            assert_eq!(locked.checkpoint().size, from);
            drop(locked);
            check(&log, key.verifier(), from);
            fs::remove_dir(&place).unwrap();
            append(&log, &key, from, to);
            check(&log, key.verifier(), to);
        }
    }
}

#[test]
fn a_changed_tile_is_never_signed() {
    let key = signer();
    for name in ["tile/0/000", "tile/0/001.p/4", "tile/1/000.p/1", "tile/entries/001.p/4"] {
        let directory = tempfile::tempdir().unwrap();
        let log = LogDirectory::create(directory.path(), &key).unwrap();
        append(&log, &key, 0, 260);
        let path = directory.path().join(name);
        let mut content = fs::read(&path).unwrap();
        *content.last_mut().unwrap() ^= 1;
        fs::write(&path, &content).unwrap();
        let checkpoint = log.signed_checkpoint().unwrap();
        let failed =
            log.open(&key, Duration::ZERO).and_then(|mut locked| locked.append(&entries(260, 261)).map(drop));
        // A full tile below the right edge is read by `verify` alone: its hash in the level above is what is signed.
        if name == "tile/0/000" {
            failed.unwrap();
            continue;
        }
        assert!(matches!(failed, Err(LogError::Damaged { .. })), "{name}: {failed:?}");
        assert_eq!(log.signed_checkpoint().unwrap(), checkpoint, "{name}");
        fs::remove_file(&path).unwrap();
        let failed =
            log.open(&key, Duration::ZERO).and_then(|mut locked| locked.append(&entries(260, 261)).map(drop));
        assert!(matches!(failed, Err(LogError::Io { .. })), "{name}: {failed:?}");
    }
}

#[test]
fn a_reader_of_an_older_checkpoint_reads_the_wider_tiles_that_have_replaced_its_own() {
    let key = signer();
    for (old, new) in [(3, 5), (3, 256), (250, 600), (257, 300)] {
        let directory = tempfile::tempdir().unwrap();
        let log = LogDirectory::create(directory.path(), &key).unwrap();
        append(&log, &key, 0, old);
        let checkpoint = log.checkpoint(key.verifier()).unwrap();
        append(&log, &key, old, new);
        append(&log, &key, new, new + 1);
        for kind in ["0", "1", "entries"] {
            let partial = Tile::containing(TileKind::Entries, old - 1, old);
            let number = partial.path().replace("tile/entries", &format!("tile/{kind}"));
            fs::remove_file(directory.path().join(number)).ok();
        }
        assert_eq!(root(&log.tree(old), old).unwrap(), checkpoint.root, "{old} of {new}");
        let tile = Tile::containing(TileKind::Entries, old - 1, old);
        assert_eq!(log.entries(tile).unwrap().last(), Some(&entry(old - 1)), "{old} of {new}");
    }
}

#[test]
fn two_writers_wait_for_each_other_and_readers_do_not() {
    let (key, directory) = (signer(), tempfile::tempdir().unwrap());
    let log = LogDirectory::create(directory.path(), &key).unwrap();
    let locked = log.open(&key, Duration::ZERO).unwrap();
    let other = LogDirectory::new(directory.path());
    assert!(matches!(other.open(&key, Duration::ZERO), Err(LogError::Locked { .. })));
    assert_eq!(other.checkpoint(key.verifier()).unwrap().size, 0);
    drop(locked);
    other.open(&key, Duration::ZERO).unwrap();
}

#[test]
fn a_log_is_created_once_and_written_with_its_own_key_alone() {
    let (key, directory) = (signer(), tempfile::tempdir().unwrap());
    let absent = LogDirectory::new(&directory.path().join("absent"));
    assert!(matches!(absent.open(&key, Duration::ZERO), Err(LogError::NoLog(_))));
    assert!(!directory.path().join("absent").exists());
    let log = LogDirectory::create(directory.path(), &key).unwrap();
    assert!(matches!(LogDirectory::create(directory.path(), &key), Err(LogError::Exists(_))));
    let error = log.open(&signer(), Duration::ZERO).unwrap_err().to_string();
    assert!(error.ends_with("checkpoint: has no signature of the key example.com/log"), "{error}");
    let large = vec![entry(0), vec![0; 65_536]];
    let mut locked = log.open(&key, Duration::ZERO).unwrap();
    assert!(matches!(locked.append(&large), Err(LogError::TooLarge(65_536))));
    assert_eq!(locked.append(&[]).unwrap(), 0);
    assert_eq!(locked.checkpoint().size, 0);
}

#[test]
fn a_full_tile_of_a_killed_batch_is_not_taken_for_a_partial_one() {
    let (key, directory) = (signer(), tempfile::tempdir().unwrap());
    let log = LogDirectory::create(directory.path(), &key).unwrap();
    append(&log, &key, 0, 250);
    let old = log.checkpoint(key.verifier()).unwrap();
    append(&log, &key, 250, 252);
    // Killed when it had written the full tiles of other entries, which never came into the log.
    let others: Vec<Vec<u8>> = (0..256_u16).map(|number| number.to_be_bytes().to_vec()).collect();
    let mut content = Vec::new();
    assert!(others.iter().all(|other| tile::push_entry(&mut content, other)));
    fs::write(directory.path().join("tile/entries/000"), content).unwrap();
    let hashes: Vec<Hash> = others.iter().map(|other| leaf_hash(other)).collect();
    fs::write(directory.path().join("tile/0/000"), hashes.concat()).unwrap();
    append(&log, &key, 252, 254);
    append(&log, &key, 254, 255);
    assert!(!directory.path().join("tile/0/000.p/250").exists());
    assert_eq!(root(&log.tree(250), 250).unwrap(), old.root);
    let tile = Tile::containing(TileKind::Entries, 249, 250);
    assert_eq!(log.entries(tile).unwrap().last(), Some(&entry(249)));
    append(&log, &key, 255, 300);
    check(&log, key.verifier(), 300);
}

#[cfg(unix)]
#[test]
fn a_fifo_in_the_place_of_a_file_is_an_error_and_does_not_block() {
    for name in ["checkpoint", "tile/0/000.p/3", "tile/entries/000.p/3"] {
        let (key, directory) = (signer(), tempfile::tempdir().unwrap());
        let log = LogDirectory::create(directory.path(), &key).unwrap();
        append(&log, &key, 0, 3);
        let path = directory.path().join(name);
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let failed = log.open(&key, Duration::ZERO).and_then(|mut locked| locked.append(&entries(3, 4)));
        let error = failed.unwrap_err().to_string();
        assert!(error.ends_with(&format!("{name}: is not a regular file")), "{error}");
    }
}
