//! The files that a log file has left behind: their names, compression and removal.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use portcullis_go::time::{Date, Time};

use super::directory;
use crate::sink::clock::WallClock;
use crate::sink::options::RotationOptions;

const COMPRESSED: &[u8] = b".gz";
const DAY: Duration = Duration::from_hours(24);
/// The length of a time in a name: `2006-01-02T15-04-05.000`.
const TIME_LENGTH: usize = 23;

/// The name of a backup that no file has.
// lumberjack.go, backupName
pub(super) fn unused_name(path: &Path, now: Duration) -> PathBuf {
    let mut time = now;
    loop {
        let name = backup_name(path, time);
        let mut compressed = name.clone().into_os_string();
        compressed.push(OsStr::from_bytes(COMPRESSED));
        let exists = |path: &Path| path.symlink_metadata().is_ok();
        if !exists(&name) && !exists(Path::new(&compressed)) {
            return name;
        }
        time += Duration::from_millis(1);
    }
}

fn backup_name(path: &Path, time: Duration) -> PathBuf {
    let (mut name, extension) = prefix_and_extension(path);
    let Date { year, month, day, hour, minute, second, .. } =
        Date::of(i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
    let millis = time.subsec_millis();
    let time = format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}.{millis:03}");
    name.extend(time.as_bytes());
    name.extend(extension);
    directory(path).join(OsString::from_vec(name))
}

/// What comes before and after the time in the name of a backup.
// lumberjack.go, prefixAndExt
fn prefix_and_extension(path: &Path) -> (Vec<u8>, Vec<u8>) {
    let name = path.file_name().unwrap_or_default().as_bytes();
    // Go's extension begins at the last dot, wherever it is.
    let at = name.iter().rposition(|byte| *byte == b'.').unwrap_or(name.len());
    let (prefix, extension) = name.split_at_checked(at).unwrap_or((name, &[]));
    ([prefix, b"-"].concat(), extension.to_vec())
}

/// A file that the log file has left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Backup {
    name: OsString,
    /// Since 1970; backups of earlier years do not exist.
    time: Duration,
    is_compressed: bool,
}

impl Backup {
    // lumberjack.go, timeFromName
    fn parse(name: &OsStr, prefix: &[u8], extension: &[u8]) -> Option<Self> {
        let rest = name.as_bytes().strip_prefix(prefix)?;
        let plain = rest.strip_suffix(extension).and_then(parse_time);
        let (time, is_compressed) = match plain {
            Some(time) => (time, false),
            None => (parse_time(rest.strip_suffix(COMPRESSED)?.strip_suffix(extension)?)?, true),
        };
        Some(Self { name: name.to_owned(), time, is_compressed })
    }

    /// The name without the ending of compressed files.
    fn plain_name(&self) -> &[u8] {
        let name = self.name.as_bytes();
        name.strip_suffix(COMPRESSED).unwrap_or(name)
    }
}

/// A time as it is written in a name.
fn parse_time(text: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() == TIME_LENGTH)?;
    let (date, time) = text.split_once('T')?;
    if !matches!(time.as_bytes(), [_, _, b'-', _, _, b'-', _, _, b'.', _, _, _]) {
        return None;
    }
    let time = Time::parse_rfc3339(&format!("{date}T{}Z", time.replace('-', ":")))?;
    Some(Duration::new(u64::try_from(time.seconds).ok()?, time.nanoseconds))
}

/// What is to be done with the backups.
#[derive(Debug, Default, PartialEq, Eq)]
struct Chores {
    remove: Vec<OsString>,
    compress: Vec<OsString>,
}

/// Decides which backups are removed and compressed.
// lumberjack.go, millRunOnce
fn chores(mut backups: Vec<Backup>, options: RotationOptions, now: Duration) -> Chores {
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.time));
    let mut chores = Chores::default();
    let max = usize::try_from(options.max_backups).unwrap_or(usize::MAX);
    // A file and its compressed form count once.
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let cutoff = now.saturating_sub(DAY.saturating_mul(options.max_age));
    for backup in backups {
        if kept.last().is_none_or(|kept| kept != backup.plain_name()) {
            kept.push(backup.plain_name().to_vec());
        }
        let is_surplus = max > 0 && kept.len() > max;
        let is_old = options.max_age > 0 && backup.time < cutoff;
        if is_surplus || is_old {
            chores.remove.push(backup.name);
        } else if options.compress && !backup.is_compressed {
            chores.compress.push(backup.name);
        }
    }
    chores
}

/// Removes and compresses backups of a log file. Returns the first error, and does the rest all the same.
pub(super) fn tidy(path: &Path, options: RotationOptions, now: Duration) -> io::Result<()> {
    if options.max_backups == 0 && options.max_age == 0 && !options.compress {
        return Ok(());
    }
    let directory = directory(path);
    let (prefix, extension) = prefix_and_extension(path);
    let mut backups = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            continue;
        }
        backups.extend(Backup::parse(&entry.file_name(), &prefix, &extension));
    }
    let Chores { remove, compress } = chores(backups, options, now);
    let mut result = Ok(());
    for name in remove {
        result = result.and(std::fs::remove_file(directory.join(name)));
    }
    for name in compress {
        result = result.and(compress_file(&directory.join(name)));
    }
    result
}

/// Replaces a file by its compressed form.
// lumberjack.go, compressLogFile
fn compress_file(source: &Path) -> io::Result<()> {
    let mut target = source.as_os_str().to_owned();
    target.push(OsStr::from_bytes(COMPRESSED));
    let target = Path::new(&target);
    let compressed = write_compressed(source, target);
    match compressed {
        Ok(()) => std::fs::remove_file(source),
        Err(error) => {
            // The next run tries again; a half file would be taken for a backup.
            let _may_not_exist = std::fs::remove_file(target);
            Err(error)
        }
    }
}

fn write_compressed(source: &Path, target: &Path) -> io::Result<()> {
    let mut file = File::open(source)?;
    let old = file.metadata()?;
    let mut options = OpenOptions::new();
    // An existing one is of an earlier run that has not ended.
    options.create(true).write(true).truncate(true).mode(old.permissions().mode() & 0o7777);
    let new = options.open(target)?;
    let metadata = new.metadata()?;
    if (old.uid(), old.gid()) != (metadata.uid(), metadata.gid()) {
        chown(target, Some(old.uid()), Some(old.gid()))?;
    }
    let mut gzip = GzEncoder::new(new, Compression::default());
    io::copy(&mut file, &mut gzip)?;
    // The source is removed next.
    gzip.finish()?.sync_all()
}

/// The thread that removes and compresses backups, so that no event waits for it.
#[derive(Debug)]
pub(super) struct Mill {
    path: PathBuf,
    clock: WallClock,
    worker: Option<(SyncSender<RotationOptions>, JoinHandle<()>)>,
}

impl Mill {
    pub(super) fn new(path: PathBuf, clock: WallClock) -> Self {
        Self { path, clock, worker: None }
    }

    /// Starts a run, unless one waits already.
    // lumberjack.go, mill
    pub(super) fn start(&mut self, options: RotationOptions) {
        if options.max_size == 0 {
            // Without rotation, upstream does not use lumberjack at all.
            return;
        }
        if self.worker.is_none() {
            let (sender, runs) = sync_channel::<RotationOptions>(1);
            let (path, clock) = (self.path.clone(), self.clock.clone());
            let thread = std::thread::Builder::new().name("audit-log-mill".to_owned());
            let spawned = thread.spawn(move || {
                while let Ok(options) = runs.recv() {
                    if let Err(error) = tidy(&path, options, clock.now()) {
                        tracing::error!(path = %path.display(), %error, "old audit logs cannot be tidied up");
                    }
                }
            });
            match spawned {
                Ok(worker) => self.worker = Some((sender, worker)),
                Err(error) => tracing::error!(%error, "old audit logs cannot be tidied up: no thread"),
            }
        }
        if let Some((sender, _)) = &self.worker {
            // A full channel: the run that waits will see all files.
            let _waits_already = sender.try_send(options);
        }
    }
}

impl Mill {
    /// Waits for the run in progress: another mill must not work on the same files.
    pub(super) fn stop(&mut self) {
        if let Some((sender, worker)) = self.worker.take() {
            drop(sender);
            let _panicked = worker.join();
        }
    }
}

impl Drop for Mill {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
