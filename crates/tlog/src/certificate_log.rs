//! The log as signers use it: a certificate is in the log before its requester gets it.
//!
//! Certificates that several threads append at the same time are written together: the thread that gets the log writes what
//! waits, and the others find their results.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_system::clock::UnixTime;
use portcullis_system::input_file;
use portcullis_system::platform::{open_private, set_mode};
use portcullis_system::sync::lock;

use crate::checkpoint::Checkpoint;
use crate::directory::LogDirectory;
use crate::entry::LogEntry;
use crate::error::LogError;
use crate::note::{NoteError, NoteSigner, Verifier};
use crate::verify::check_continues;

/// How long a signature waits for another process that writes the log.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of certificates that are written together.
const MAX_BATCH: usize = 256;

/// A log with its key.
pub struct CertificateLog {
    directory: LogDirectory,
    signer: NoteSigner,
    /// The last head that was seen. The log never goes back behind it, also if its directory does.
    last: Mutex<Checkpoint>,
    pending: Mutex<Vec<PendingEntry>>,
    /// Held by the thread that writes.
    writing: Mutex<()>,
}

struct PendingEntry {
    entry: Vec<u8>,
    result: Arc<Mutex<Option<AppendResult>>>,
}

/// The place of a certificate. Certificates that are written together fail together.
pub type AppendResult = Result<u64, Arc<LogError>>;

/// The file of a log's private key: beside the directory, which may be published.
pub fn key_file(directory: &Path) -> PathBuf {
    beside(directory, "key")
}

/// The file of a log's public key.
pub fn verifier_file(directory: &Path) -> PathBuf {
    beside(directory, "vkey")
}

fn beside(directory: &Path, extension: &str) -> PathBuf {
    // `log/` names the same directory as `log`.
    let mut path: PathBuf = directory.components().collect();
    path.as_mut_os_string().push(".");
    path.as_mut_os_string().push(extension);
    path
}

/// Reads the public key beside a log's directory, or of another file.
pub fn read_verifier(path: &Path) -> Result<Verifier, LogError> {
    let failed = |problem: String| LogError::Key { path: path.to_owned(), problem };
    let content = input_file::read(path).map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8(content).map_err(|_| failed(NoteError::NotVerifier.to_string()))?;
    Verifier::parse(&text).map_err(|error| failed(error.to_string()))
}

impl CertificateLog {
    /// Opens a log with the private key in PEM and the public key, which has its name.
    pub fn new(directory: &Path, key: &[u8], verifier: &[u8]) -> Result<Self, LogError> {
        let key_failed =
            |error: NoteError| LogError::Key { path: key_file(directory), problem: error.to_string() };
        let verifier_failed = |problem: String| LogError::Key { path: verifier_file(directory), problem };
        let text =
            std::str::from_utf8(verifier).map_err(|_| verifier_failed(NoteError::NotVerifier.to_string()))?;
        let verifier = Verifier::parse(text).map_err(|error| verifier_failed(error.to_string()))?;
        let signer = NoteSigner::from_pem(verifier.name(), key).map_err(key_failed)?;
        if *signer.verifier() != verifier {
            return Err(verifier_failed("is not the public key of the key beside it".to_owned()));
        }
        let directory = LogDirectory::new(directory);
        directory.checkpoint(&verifier)?;
        // Found at the start, and not with the first certificate.
        directory.check_writable(LOCK_TIMEOUT)?;
        // Read when it could be locked, so that none is missed that another process has written before.
        let last = directory.checkpoint(&verifier)?;
        Ok(Self {
            directory,
            signer,
            last: Mutex::new(last),
            pending: Mutex::default(),
            writing: Mutex::default(),
        })
    }

    /// Opens a log whose keys are beside its directory.
    pub fn open(directory: &Path) -> Result<Self, LogError> {
        let read = |path: PathBuf| {
            input_file::read(&path).map_err(|error| LogError::Key { path, problem: error.to_string() })
        };
        Self::new(directory, &read(key_file(directory))?, &read(verifier_file(directory))?)
    }

    /// The directory of the log.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The public key.
    pub fn verifier(&self) -> &Verifier {
        self.signer.verifier()
    }

    /// The head of the log.
    pub fn checkpoint(&self) -> Result<Checkpoint, LogError> {
        self.directory.checkpoint(self.verifier())
    }

    /// Appends a certificate; returns its place. Blocks: it syncs files. `details` is a JSON object.
    // threat: unlogged-certificate
    pub fn append(&self, certificate: &[u8], details: &str, now: UnixTime) -> AppendResult {
        let entry = LogEntry {
            timestamp: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            certificate: certificate.to_vec(),
            details: details.to_owned(),
        };
        let encoded = entry.encode()?;
        let result = Arc::default();
        lock(&self.pending).push(PendingEntry { entry: encoded, result: Arc::clone(&result) });
        loop {
            let _writing = lock(&self.writing);
            if let Some(result) = lock(&result).take() {
                return result;
            }
            self.write_pending();
        }
    }

    /// Appends entries to what must be a continuation of the last head.
    // threat: rewritten-log
    fn write(&self, entries: &[Vec<u8>]) -> Result<u64, LogError> {
        let mut log = self.directory.open(&self.signer, LOCK_TIMEOUT)?;
        let mut last = lock(&self.last);
        check_continues(&self.directory, &last, log.checkpoint()).map_err(|error| match error {
            LogError::Mismatch(problem) => LogError::damaged(self.path(), problem),
            error => error,
        })?;
        last.clone_from(log.checkpoint());
        let first = log.append(entries)?;
        last.clone_from(log.checkpoint());
        Ok(first)
    }

    /// Writes what waits, and tells each its result.
    fn write_pending(&self) {
        let batch: Vec<PendingEntry> = {
            let mut pending = lock(&self.pending);
            let count = pending.len().min(MAX_BATCH);
            pending.drain(..count).collect()
        };
        let entries: Vec<Vec<u8>> = batch.iter().map(|pending| pending.entry.clone()).collect();
        let written = self.write(&entries).map_err(Arc::new);
        for (number, pending) in (0..).zip(batch) {
            *lock(&pending.result) = Some(written.clone().map(|first| first + number));
        }
    }
}

impl fmt::Debug for CertificateLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateLog").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// Creates a log and its keys; the private key is for the user alone.
pub fn create(directory: &Path, origin: &str) -> Result<Verifier, LogError> {
    let (key, verifier) = (key_file(directory), verifier_file(directory));
    let failed = |error: NoteError| LogError::Key { path: key.clone(), problem: error.to_string() };
    let pem = NoteSigner::generate().map_err(failed)?;
    let signer = NoteSigner::from_pem(origin, pem.as_bytes()).map_err(failed)?;
    for file in [&key, &verifier] {
        if file.try_exists().map_err(LogError::io(file))? {
            return Err(LogError::Exists(file.clone()));
        }
    }
    new_file(&key, pem.as_bytes(), true)?;
    new_file(&verifier, format!("{}\n", signer.verifier()).as_bytes(), false)?;
    LogDirectory::create(directory, &signer)?;
    Ok(signer.verifier().clone())
}

/// Creates a file that is not there.
fn new_file(path: &Path, content: &[u8], is_private: bool) -> Result<(), LogError> {
    use std::io::Write as _;

    let written = || {
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent)?;
        }
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        let mut file = if is_private {
            open_private(&mut options, path)?
        } else {
            let file = options.open(path)?;
            set_mode(&file, 0o644)?;
            file
        };
        file.write_all(content)?;
        file.sync_all()
    };
    written().map_err(LogError::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::verified;

    fn created() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("log");
        create(&directory, "example.com/log").unwrap();
        (parent, directory)
    }

    #[test]
    fn the_keys_are_beside_the_directory() {
        let (_parent, directory) = created();
        let log = CertificateLog::open(&directory).unwrap();
        assert_eq!(read_verifier(&verifier_file(&directory)).unwrap(), *log.verifier());
        assert_eq!(key_file(Path::new("a/log/")), Path::new("a/log.key"));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::metadata(key_file(&directory)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert!(matches!(create(&directory, "example.com/log"), Err(LogError::Exists(_))));
    }

    #[test]
    fn another_key_is_refused() {
        let ((_one, directory), (_other, other)) = (created(), created());
        std::fs::copy(key_file(&other), key_file(&directory)).unwrap();
        let error = CertificateLog::open(&directory).unwrap_err().to_string();
        assert!(error.ends_with("log.vkey: is not the public key of the key beside it"), "{error}");
    }

    #[test]
    fn certificates_of_many_threads_and_logs_are_all_there_once() {
        let (_parent, directory) = created();
        // Two values have two locks in this process, as two processes would.
        let logs = [CertificateLog::open(&directory).unwrap(), CertificateLog::open(&directory).unwrap()];
        let mut places: Vec<u64> = std::thread::scope(|scope| {
            let appended: Vec<_> = (0..8_u8)
                .map(|thread| {
                    let log = &logs[usize::from(thread % 2)];
                    scope.spawn(move || {
                        (0..10_u8)
                            .map(|number| log.append(&[thread, number], "{}", UnixTime::ZERO).unwrap())
                            .collect::<Vec<u64>>()
                    })
                })
                .collect();
            appended.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        places.sort_unstable();
        assert_eq!(places, (0..80).collect::<Vec<u64>>());
        let mut certificates = Vec::new();
        let (checkpoint, _) = verified(&LogDirectory::new(&directory), logs[0].verifier(), |_, entry| {
            certificates.push(LogEntry::decode(entry).unwrap().certificate);
            Ok(())
        })
        .unwrap();
        certificates.sort();
        certificates.dedup();
        assert_eq!((checkpoint.size, certificates.len()), (80, 80));
    }

    #[test]
    fn a_certificate_that_does_not_fit_is_an_error_of_its_own() {
        let (_parent, directory) = created();
        let log = CertificateLog::open(&directory).unwrap();
        let error = log.append(&vec![0; 70_000], "{}", UnixTime::ZERO).unwrap_err();
        assert!(matches!(*error, LogError::TooLarge(70_019)), "{error}");
        assert_eq!(log.append(&[0; 10], "{}", UnixTime::ZERO).unwrap(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_log_that_is_rolled_back_under_its_writer_is_not_continued() {
        let (parent, directory) = created();
        let copy = parent.path().join("copy");
        let log = CertificateLog::open(&directory).unwrap();
        let append = |log: &CertificateLog, number: u8| log.append(&[number], "{}", UnixTime::ZERO);
        append(&log, 0).unwrap();
        let backup = std::process::Command::new("cp").arg("-r").args([&directory, &copy]).status().unwrap();
        assert!(backup.success());
        append(&log, 1).unwrap();
        // Another process continues it: that is no problem.
        append(&CertificateLog::open(&directory).unwrap(), 2).unwrap();
        append(&log, 3).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        std::fs::rename(&copy, &directory).unwrap();
        let note = log.directory.signed_checkpoint().unwrap();
        let error = append(&log, 4).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "log: the log has 1 entries, and had 4 at the earlier checkpoint: entries were removed"
            ),
            "{error}"
        );
        assert_eq!(log.directory.signed_checkpoint().unwrap(), note);
        // Made as long as before, with others.
        let other = CertificateLog::open(&directory).unwrap();
        for number in 10..15 {
            append(&other, number).unwrap();
        }
        let error = append(&log, 4).unwrap_err().to_string();
        assert!(error.ends_with("the log was rewritten"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_log_that_cannot_be_written_is_not_opened() {
        use std::os::unix::fs::PermissionsExt as _;

        // Root writes everywhere, but not with a file in the place of the directory.
        let (_parent, directory) = created();
        std::fs::write(directory.join("tile"), "").unwrap();
        let error = CertificateLog::open(&directory).unwrap_err().to_string();
        assert!(error.contains("log/tile: Not a directory"), "{error}");
        std::fs::remove_file(directory.join("tile")).unwrap();
        CertificateLog::open(&directory).unwrap();
        let left: Vec<_> =
            std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "the checkpoint and the lock: {left:?}");
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o500)).unwrap();
        let can_write = std::fs::write(directory.join("probe"), "").is_ok();
        assert_eq!(CertificateLog::open(&directory).is_ok(), can_write);
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
}
