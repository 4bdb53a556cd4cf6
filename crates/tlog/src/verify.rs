//! Reads a whole log: each entry, each hash of it in each level, and the root that the checkpoint states.

use crate::checkpoint::Checkpoint;
use crate::directory::LogDirectory;
use crate::error::LogError;
use crate::merkle::{Hash, is_consistent, leaf_hash, prove_consistency, root};
use crate::note::Verifier;
use crate::tile::{Tile, TileKind, WIDTH, complete, fold};

/// Verifies a log against its checkpoint, which it returns with its note; calls `visit` with the place of each entry and the entry.
// threat: rewritten-log
pub fn verified(
    log: &LogDirectory,
    verifier: &Verifier,
    mut visit: impl FnMut(u64, &[u8]) -> Result<(), LogError>,
) -> Result<(Checkpoint, Vec<u8>), LogError> {
    let note = log.signed_checkpoint()?;
    let checkpoint = log.opened(verifier, &note)?;
    let size = checkpoint.size;
    let mut above = Vec::new();
    for index in 0..size.div_ceil(WIDTH) {
        let first = index * WIDTH;
        let entries = log.entries(Tile::containing(TileKind::Entries, first, size))?;
        let tile = Tile::containing(TileKind::Hashes(0), first, size);
        let hashes: Vec<Hash> = entries.iter().map(|entry| leaf_hash(entry)).collect();
        compare(log, tile, &hashes)?;
        above.extend(fold(&hashes).filter(|_| tile.width == WIDTH));
        for (place, entry) in (first..).zip(&entries) {
            visit(place, entry)?;
        }
    }
    for level in 1.. {
        if complete(size, level) == 0 {
            break;
        }
        let hashes = std::mem::take(&mut above);
        for (index, hashes) in (0..).zip(hashes.chunks(256)) {
            let tile = Tile::containing(TileKind::Hashes(level), index * WIDTH, size);
            compare(log, tile, hashes)?;
            above.extend(fold(hashes).filter(|_| tile.width == WIDTH));
        }
    }
    if root(&log.tree(size), size)? != checkpoint.root {
        let problem = format!("the root of the {size} entries is not that of the checkpoint");
        return Err(LogError::damaged(log.path(), problem));
    }
    Ok((checkpoint, note))
}

fn compare(log: &LogDirectory, tile: Tile, hashes: &[Hash]) -> Result<(), LogError> {
    if log.hashes(tile)? == hashes {
        return Ok(());
    }
    let path = log.path().join(tile.path());
    Err(LogError::damaged(&path, "has other hashes than the entries below it"))
}

/// Fails if an older checkpoint is not the beginning of the log: entries were removed or changed, or there are two logs.
pub fn check_continues(log: &LogDirectory, old: &Checkpoint, new: &Checkpoint) -> Result<(), LogError> {
    if old.size > new.size {
        return Err(LogError::Mismatch(format!(
            "the log has {} entries, and had {} at the earlier checkpoint: entries were removed",
            new.size, old.size
        )));
    }
    let proof = prove_consistency(&log.tree(new.size), old.size, new.size)?;
    if is_consistent(&proof, (old.size, &old.root), (new.size, &new.root)) {
        return Ok(());
    }
    Err(LogError::Mismatch(format!(
        "the first {} entries are others than at the earlier checkpoint: the log was rewritten",
        old.size
    )))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::note::NoteSigner;

    fn signer() -> NoteSigner {
        NoteSigner::from_pem("log", NoteSigner::generate().unwrap().as_bytes()).unwrap()
    }

    fn log_of(key: &NoteSigner, count: u64) -> (tempfile::TempDir, LogDirectory) {
        let directory = tempfile::tempdir().unwrap();
        let log = LogDirectory::create(directory.path(), key).unwrap();
        let entries: Vec<Vec<u8>> = (0..count).map(|number| number.to_be_bytes().to_vec()).collect();
        log.open(key, Duration::ZERO).unwrap().append(&entries).unwrap();
        (directory, log)
    }

    #[test]
    fn each_changed_octet_is_found() {
        let key = signer();
        let (directory, log) = log_of(&key, 600);
        let mut visited = 0;
        let checkpoint = verified(&log, key.verifier(), |place, entry| {
            assert_eq!(entry, place.to_be_bytes());
            visited += 1;
            Ok(())
        });
        assert_eq!((checkpoint.unwrap().0.size, visited), (600, 600));
        let names = [
            "checkpoint",
            "tile/0/000",
            "tile/0/002.p/88",
            "tile/1/000.p/2",
            "tile/entries/000",
            "tile/entries/001",
            "tile/entries/002.p/88",
        ];
        for name in names {
            let path = directory.path().join(name);
            let content = fs::read(&path).unwrap();
            for place in [0, content.len() / 2, content.len() - 2] {
                let mut changed = content.clone();
                changed[place] ^= 1;
                fs::write(&path, &changed).unwrap();
                verified(&log, key.verifier(), |_, _| Ok(())).unwrap_err();
            }
            fs::remove_file(&path).unwrap();
            verified(&log, key.verifier(), |_, _| Ok(())).unwrap_err();
            fs::write(&path, &content).unwrap();
            verified(&log, key.verifier(), |_, _| Ok(())).unwrap();
        }
    }

    /// Below the right edge: the root is computed without it.
    #[test]
    fn a_changed_hash_in_a_full_tile_of_an_upper_level_is_found() {
        let key = signer();
        let (directory, log) = log_of(&key, WIDTH * WIDTH + 1);
        let path = directory.path().join("tile/1/000");
        let mut content = fs::read(&path).unwrap();
        content[0] ^= 1;
        fs::write(&path, &content).unwrap();
        let error = verified(&log, key.verifier(), |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.ends_with("tile/1/000: has other hashes than the entries below it"), "{error}");
    }

    #[test]
    fn a_signed_root_of_another_tree_is_found() {
        let key = signer();
        let (directory, log) = log_of(&key, 3);
        let wrong = Checkpoint { root: [0; 32], ..log.checkpoint(key.verifier()).unwrap() };
        fs::write(directory.path().join("checkpoint"), wrong.signed(&key)).unwrap();
        let error = verified(&log, key.verifier(), |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.ends_with("the root of the 3 entries is not that of the checkpoint"), "{error}");
    }

    #[test]
    fn a_log_that_was_rewritten_by_the_holder_of_its_key_is_not_a_continuation() {
        let key = signer();
        let (_one, log) = log_of(&key, 300);
        let old = log.checkpoint(key.verifier()).unwrap();
        log.open(&key, Duration::ZERO).unwrap().append(&[b"new".to_vec()]).unwrap();
        let new = log.checkpoint(key.verifier()).unwrap();
        check_continues(&log, &old, &new).unwrap();
        check_continues(&log, &Checkpoint::empty("log"), &new).unwrap();
        let (_shorter, shorter) = log_of(&key, 299);
        let cut = shorter.checkpoint(key.verifier()).unwrap();
        let error = check_continues(&shorter, &old, &cut).unwrap_err().to_string();
        assert!(error.ends_with("entries were removed"), "{error}");
        shorter.open(&key, Duration::ZERO).unwrap().append(&[b"x".to_vec(), b"y".to_vec()]).unwrap();
        let other = shorter.checkpoint(key.verifier()).unwrap();
        let error = check_continues(&shorter, &old, &other).unwrap_err().to_string();
        assert!(error.ends_with("the log was rewritten"), "{error}");
    }
}
