//! The files of a log, as a web server could publish them: `checkpoint`, and the tiles below `tile/`.
//!
//! Each file is written beside its place, synced and renamed. The order makes a process that is killed at any time leave a
//! log that continues: entries, then hashes, then the checkpoint that states them. Tiles beyond the checkpoint are nothing
//! that was promised, and are written again. A process that writes holds the lock, and begins with the checkpoint on disk,
//! whose root it compares with the tiles: it never signs a tree that is not a continuation of the last one.

mod lock;

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_system::platform::{create_public_directory, open_input, set_mode, sync_directory};
use tempfile::NamedTempFile;

use crate::checkpoint::Checkpoint;
use crate::error::LogError;
use crate::merkle::{Hash, leaf_hash, root};
use crate::note::{NoteSigner, Verifier};
use crate::tile::{self, Tile, TileHashes, TileKind, WIDTH};
use lock::lock;

const CHECKPOINT: &str = "checkpoint";
const LOCK: &str = ".lock";
const TILES: &str = "tile";
/// The maximum size of a file: 256 entries with their lengths.
const MAX_FILE: u64 = 256 * 65_537;
/// Monitors, which run as other users, read tiles and checkpoints.
const MODE: u32 = 0o644;

/// A log in a directory.
#[derive(Debug, Clone)]
pub struct LogDirectory {
    path: PathBuf,
}

/// A log that this process alone writes, until it drops the value.
#[derive(Debug)]
pub struct LockedLog<'a> {
    directory: &'a LogDirectory,
    signer: &'a NoteSigner,
    checkpoint: Checkpoint,
    _lock: File,
}

impl LogDirectory {
    /// The log in this directory.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a log without entries.
    pub fn create(path: &Path, signer: &NoteSigner) -> Result<Self, LogError> {
        let directory = Self::new(path);
        directory.create_directory(path).map_err(LogError::io(path))?;
        let _lock = lock(&directory.file(LOCK), Duration::ZERO)?;
        if directory.file(CHECKPOINT).try_exists().map_err(LogError::io(path))? {
            return Err(LogError::Exists(path.to_owned()));
        }
        let checkpoint = Checkpoint::empty(signer.verifier().name());
        directory.write(CHECKPOINT, checkpoint.signed(signer).as_bytes())?;
        Ok(directory)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The signed checkpoint, not verified.
    pub fn signed_checkpoint(&self) -> Result<Vec<u8>, LogError> {
        let path = self.file(CHECKPOINT);
        match read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(LogError::NoLog(self.path.clone())),
            read => read.map_err(LogError::io(&path)),
        }
    }

    /// The checkpoint, if this key has signed it.
    pub fn checkpoint(&self, verifier: &Verifier) -> Result<Checkpoint, LogError> {
        self.opened(verifier, &self.signed_checkpoint()?)
    }

    pub(crate) fn opened(&self, verifier: &Verifier, note: &[u8]) -> Result<Checkpoint, LogError> {
        Checkpoint::open(verifier, note)
            .map_err(|error| LogError::damaged(&self.file(CHECKPOINT), error.to_string()))
    }

    /// The hashes of a tile.
    pub fn hashes(&self, tile: Tile) -> Result<Vec<Hash>, LogError> {
        let (path, content, width) = self.tile(tile)?;
        let mut hashes = tile::hashes(&content, width)
            .ok_or_else(|| LogError::damaged(&path, format!("does not have {width} hashes")))?;
        hashes.truncate(usize::try_from(tile.width).unwrap_or(usize::MAX));
        Ok(hashes)
    }

    /// The entries of a tile.
    pub fn entries(&self, tile: Tile) -> Result<Vec<Vec<u8>>, LogError> {
        let (path, content, width) = self.tile(tile)?;
        let mut entries = tile::entries(&content, width)
            .ok_or_else(|| LogError::damaged(&path, format!("does not have {width} entries")))?;
        entries.truncate(usize::try_from(tile.width).unwrap_or(usize::MAX));
        Ok(entries)
    }

    /// Reads the hashes of the log with this size.
    pub fn tree(&self, size: u64) -> TileHashes<impl Fn(Tile) -> Result<Vec<Hash>, LogError> + '_> {
        TileHashes::new(size, |tile| self.hashes(tile))
    }

    /// The content of a tile, and its width. A partial tile that is gone was replaced by a wider one, which begins with it:
    /// the log has grown since its checkpoint was read.
    fn tile(&self, tile: Tile) -> Result<(PathBuf, Vec<u8>, u64), LogError> {
        let path = self.file(&tile.path());
        let error = match read(&path) {
            Ok(content) => return Ok((path, content, tile.width)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => error,
            Err(error) => return Err(LogError::io(&path)(error)),
        };
        // From the narrowest: a full tile may be one of a batch that was killed, which is written again when it is reached.
        for width in tile.width + 1..=WIDTH {
            let wider = self.file(&Tile { width, ..tile }.path());
            if let Ok(content) = read(&wider) {
                return Ok((wider, content, width));
            }
        }
        Err(LogError::io(&path)(error))
    }

    /// Locks the log, and checks that its tiles are those of its checkpoint.
    pub fn open<'a>(&'a self, signer: &'a NoteSigner, timeout: Duration) -> Result<LockedLog<'a>, LogError> {
        // Without a log, no lock file is left.
        self.signed_checkpoint()?;
        let lock = lock(&self.file(LOCK), timeout)?;
        let checkpoint = self.checkpoint(signer.verifier())?;
        if root(&self.tree(checkpoint.size), checkpoint.size)? != checkpoint.root {
            let problem = format!(
                "the hashes in tile/ are not those of the checkpoint with {} entries; restore both from one backup",
                checkpoint.size
            );
            return Err(LogError::damaged(&self.path, problem));
        }
        Ok(LockedLog { directory: self, signer, checkpoint, _lock: lock })
    }

    /// Writes a file so that it is there as a whole, or not at all.
    fn write(&self, name: &str, content: &[u8]) -> Result<(), LogError> {
        let path = self.file(name);
        let written = || -> io::Result<()> {
            let parent = path.parent().unwrap_or(&self.path);
            self.create_directory(parent)?;
            let mut builder = tempfile::Builder::new();
            builder.prefix(".new-");
            let mut file: NamedTempFile = builder.tempfile_in(parent)?;
            // Exactly, whatever the umask: a service often has one that leaves nothing to others.
            set_mode(file.as_file(), MODE)?;
            file.write_all(content)?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            sync_directory(parent)
        };
        written().map_err(LogError::io(&path))
    }

    /// Creates a directory of the log, and syncs the entries of each new one. Monitors can enter it.
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if parent.starts_with(&self.path) {
            self.create_directory(parent)?;
        } else {
            fs::create_dir_all(parent)?;
        }
        create_public_directory(path)?;
        sync_directory(parent)
    }

    /// Fails if the log cannot be written: takes the lock for a moment, and creates a file that it removes.
    pub fn check_writable(&self, timeout: Duration) -> Result<(), LogError> {
        let _lock = lock(&self.file(LOCK), timeout)?;
        let directory =
            Some(self.file(TILES)).filter(|tiles| tiles.exists()).unwrap_or_else(|| self.path.clone());
        for directory in [&self.path, &directory] {
            tempfile::Builder::new()
                .prefix(".new-")
                .tempfile_in(directory)
                .map_err(LogError::io(directory))?;
        }
        Ok(())
    }
}

/// Reads a regular file: a FIFO or a device could block the writer for ever.
// threat: endless-file
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let check = |metadata: fs::Metadata| {
        if metadata.is_file() { Ok(()) } else { Err(io::Error::other("is not a regular file")) }
    };
    check(fs::metadata(path)?)?;
    // The path may name another file by now.
    let file = open_input(path)?;
    check(file.metadata()?)?;
    let mut content = Vec::new();
    let length = file.take(MAX_FILE + 1).read_to_end(&mut content)?;
    if u64::try_from(length).is_ok_and(|length| length <= MAX_FILE) {
        Ok(content)
    } else {
        Err(io::Error::other("is larger than any file of a log"))
    }
}

impl LockedLog<'_> {
    /// The head of the log.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Appends entries; returns the place of the first. They are in the log when it returns. If it fails none is, unless only the sync
    /// of the directory has failed, after the checkpoint was in its place.
    pub fn append(&mut self, entries: &[Vec<u8>]) -> Result<u64, LogError> {
        let first = self.checkpoint.size;
        if let Some(entry) = entries.iter().find(|entry| u16::try_from(entry.len()).is_err()) {
            return Err(LogError::TooLarge(entry.len()));
        }
        if entries.is_empty() {
            return Ok(first);
        }
        let size = first + u64::try_from(entries.len()).unwrap_or_default();
        self.write_entries(first, size, entries)?;
        self.write_hashes(first, size, entries.iter().map(|entry| leaf_hash(entry)).collect())?;
        let root = root(&self.directory.tree(size), size)?;
        let checkpoint = Checkpoint { origin: self.checkpoint.origin.clone(), size, root };
        self.directory.write(CHECKPOINT, checkpoint.signed(self.signer).as_bytes())?;
        self.checkpoint = checkpoint;
        self.remove_partial(first, size);
        Ok(first)
    }

    fn write_entries(&self, first: u64, size: u64, entries: &[Vec<u8>]) -> Result<(), LogError> {
        let mut pending = match first % WIDTH {
            0 => Vec::new(),
            _ => self.known_entries(first)?,
        };
        pending.extend_from_slice(entries);
        for (number, entries) in (first / WIDTH..).zip(pending.chunks(256)) {
            let tile = Tile::containing(TileKind::Entries, number * WIDTH, size);
            let mut content = Vec::new();
            for entry in entries {
                if !tile::push_entry(&mut content, entry) {
                    return Err(LogError::TooLarge(entry.len()));
                }
            }
            self.directory.write(&tile.path(), &content)?;
        }
        Ok(())
    }

    /// The entries of the last tile, which is partial. Their hashes must be those of the checkpoint: what was changed on disk
    /// is not copied into the next tile.
    fn known_entries(&self, size: u64) -> Result<Vec<Vec<u8>>, LogError> {
        let tile = Tile::containing(TileKind::Entries, size - 1, size);
        let entries = self.directory.entries(tile)?;
        // They are read once: there may be 255.
        let hashes = self.directory.hashes(Tile { kind: TileKind::Hashes(0), ..tile })?;
        for (index, (entry, hash)) in (tile.index * WIDTH..).zip(entries.iter().zip(&hashes)) {
            if *hash != leaf_hash(entry) {
                let path = self.directory.file(&tile.path());
                return Err(LogError::damaged(
                    &path,
                    format!("the entry {index} has another hash in tile/0"),
                ));
            }
        }
        Ok(entries)
    }

    /// Writes the tiles of all levels whose hashes change.
    fn write_hashes(&self, first: u64, size: u64, mut added: Vec<Hash>) -> Result<(), LogError> {
        for level in 0.. {
            if added.is_empty() {
                break;
            }
            let before = tile::complete(first, level);
            let mut hashes = match before % WIDTH {
                0 => Vec::new(),
                _ => self.directory.hashes(Tile::containing(TileKind::Hashes(level), before - 1, first))?,
            };
            hashes.append(&mut added);
            for (number, hashes) in (before / WIDTH..).zip(hashes.chunks(256)) {
                let tile = Tile::containing(TileKind::Hashes(level), number * WIDTH, size);
                self.directory.write(&tile.path(), hashes.concat().as_slice())?;
                if tile.width == WIDTH {
                    added.extend(tile::fold(hashes));
                }
            }
        }
        Ok(())
    }

    /// Removes the partial tiles before the last one, so that a log that grows by one entry at a time does not keep 255
    /// copies of each. A reader of the checkpoint before can still read its own.
    // c2sp.org/tlog-tiles: partial tiles may be removed once a wider one is there
    fn remove_partial(&self, first: u64, size: u64) {
        let levels = (0..8).map(TileKind::Hashes).chain([TileKind::Entries]);
        for kind in levels {
            let count = |size: u64| match kind {
                TileKind::Hashes(level) => tile::complete(size, level),
                TileKind::Entries => size,
            };
            if count(first) == 0 {
                continue;
            }
            let before = Tile::containing(kind, count(first) - 1, first);
            let path = self.directory.file(&Tile { width: 1, ..before }.path());
            let keeps: Vec<String> = [first, size]
                .into_iter()
                .map(|size| Tile::containing(kind, before.index * WIDTH, size).width.to_string())
                .collect();
            let Some(partial) = path.parent() else { continue };
            let Ok(found) = fs::read_dir(partial) else { continue };
            for entry in found.flatten() {
                if !keeps.iter().any(|keep| entry.file_name() == keep.as_str()) {
                    // One that stays takes only room.
                    fs::remove_file(entry.path()).ok();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
