//! The log file: when it is replaced, how the old ones are named, and which of them stay.
//!
//! Follows lumberjack, with these differences, none of which loses an event that lumberjack keeps: two files that are
//! replaced in the same millisecond get two names; a file that was deleted is made anew at the next write, and one that was renamed is left for the new one; a write that
//! fails halfway leaves no half line; only regular files are replaced; a new directory is of mode 0700 as the first one.
// gopkg.in/natefinch/lumberjack.v2: lumberjack.go, chown_linux.go; apiserver: pkg/server/options/audit.go, ensureLogFile

mod backups;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown,
};
use std::path::{Path, PathBuf};

use super::clock::WallClock;
use super::lines::Chunk;
use super::options::RotationOptions;
use backups::Mill;

const MEGABYTE: u64 = 1 << 20;
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Makes the directory of a log and the log, unless they exist. Fails if the log cannot be opened.
// apiserver: pkg/server/options/audit.go, ensureLogFile
pub(super) fn ensure_log_file(path: &Path) -> io::Result<()> {
    make_directory(path)?;
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true).mode(FILE_MODE).open(path).map(drop)
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory(path))
}

/// The directory of a file.
pub(super) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A log file that is replaced when it is full.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    options: RotationOptions,
    clock: WallClock,
    file: Option<File>,
    size: u64,
    /// Whether the file is a regular one.
    is_regular: bool,
    /// Whether the file ends with a part of a line.
    half_line: bool,
    mill: Mill,
}

/// Lines of a chunk that go into the same file, by their indexes.
struct Run<'a> {
    chunk: &'a Chunk,
    lines: Range<usize>,
}

impl LogFile {
    /// Opens nothing yet.
    pub(super) fn new(path: PathBuf, options: RotationOptions, clock: WallClock) -> Self {
        let mill = Mill::new(path.clone(), clock.clone());
        Self { path, options, clock, file: None, size: 0, is_regular: true, half_line: false, mill }
    }

    /// Uses other options from the next write on.
    pub(super) fn set_options(&mut self, options: RotationOptions) {
        if self.options != options {
            self.options = options;
            self.mill.start(options);
        }
    }

    /// Writes lines; calls `report` for each in order.
    pub(super) fn write(&mut self, chunk: &Chunk, mut report: impl FnMut(Result<(), &io::Error>)) {
        let mut run = Run { chunk, lines: 0..0 };
        for line in chunk.lines() {
            if let Err(error) = self.room_for(&mut run, line.len(), &mut report) {
                self.write_run(&mut run, &mut report);
                report(Err(&error));
                run.lines.start += 1;
            }
            run.lines.end += 1;
        }
        self.write_run(&mut run, &mut report);
    }

    /// Makes sure that the file is open and that the line fits into it behind the run.
    // lumberjack.go, Write
    fn room_for(
        &mut self,
        run: &mut Run<'_>,
        length: usize,
        report: &mut impl FnMut(Result<(), &io::Error>),
    ) -> io::Result<()> {
        let length = size_of(length);
        let max = self.max_size();
        if let Some(max) = max.filter(|max| length > *max) {
            let text = format!("write length {length} exceeds maximum file size {max}");
            return Err(io::Error::other(text));
        }
        if run.lines.is_empty() {
            self.close_moved();
        }
        if self.file.is_none() {
            self.open_existing_or_new(length)?;
        }
        let waiting = size_of(run.text().len());
        if max.is_some_and(|max| self.is_regular && self.size + waiting + length > max) {
            self.write_run(run, report);
            self.rotate()?;
        }
        Ok(())
    }

    /// The size at which the file is replaced.
    fn max_size(&self) -> Option<u64> {
        (self.options.max_size > 0).then(|| u64::from(self.options.max_size) * MEGABYTE)
    }

    /// Writes the run. The next one begins behind it.
    fn write_run(&mut self, run: &mut Run<'_>, report: &mut impl FnMut(Result<(), &io::Error>)) {
        if run.lines.is_empty() {
            return;
        }
        let (written, error) = match self.file.as_mut() {
            Some(file) => end_half_line(file, &mut self.half_line, &mut self.size)
                .map_or_else(|error| (0, Some(error)), |()| write_all(file, run.text())),
            None => (0, Some(io::Error::other("the log file is not open"))),
        };
        match error {
            None => {
                self.size += size_of(written);
                run.lines.clone().for_each(|_| report(Ok(())));
            }
            Some(error) => {
                let whole = run.ends().take_while(|end| *end <= written).last().unwrap_or(0);
                self.size += size_of(whole);
                self.cut_half_line(size_of(written - whole));
                run.ends().for_each(|end| report(if end <= whole { Ok(()) } else { Err(&error) }));
            }
        }
        run.lines.start = run.lines.end;
    }

    /// Removes what was written of a line. Where that fails, a newline will end it before the next line.
    fn cut_half_line(&mut self, rest: u64) {
        let Some(file) = self.file.as_ref().filter(|_| rest > 0) else { return };
        // Nothing of another writer is removed.
        let is_ours = file.metadata().is_ok_and(|metadata| metadata.len() == self.size + rest);
        if !(self.is_regular && is_ours && file.set_len(self.size).is_ok()) {
            self.size += rest;
            self.half_line = true;
        }
    }

    /// Closes a file that has no name any longer, in which what is written would be lost, and one that has another name, while there
    /// is a new file with its own: logrotate renames it, and makes a new one or sends SIGHUP, upon which a reload makes it.
    fn close_moved(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.is_regular) else { return };
        let Ok(open) = file.metadata() else { return };
        let path = self.path.display();
        if open.nlink() == 0 {
            tracing::warn!(%path, "the audit log was deleted: it is made anew");
            self.file = None;
        } else if std::fs::metadata(&self.path)
            .is_ok_and(|named| (named.dev(), named.ino()) != (open.dev(), open.ino()))
        {
            tracing::info!(%path, "the audit log was renamed: the new file is opened");
            self.file = None;
        }
    }

    /// Closes the file until the next write, and waits for the work on old files.
    pub(super) fn close(&mut self) {
        self.file = None;
        self.mill.stop();
    }

    // lumberjack.go, openExistingOrNew
    fn open_existing_or_new(&mut self, length: u64) -> io::Result<()> {
        self.mill.start(self.options);
        let metadata = match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.open_new(),
            metadata => metadata?,
        };
        self.is_regular = metadata.is_file();
        if self.max_size().is_some_and(|max| self.is_regular && metadata.len() + length >= max) {
            return self.rotate();
        }
        match OpenOptions::new().append(true).open(&self.path) {
            Ok(file) => (self.file, self.size) = (Some(file), metadata.len()),
            // As lumberjack: one that cannot be opened is replaced.
            Err(_) if self.options.max_size > 0 && self.is_regular => return self.open_new(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    // lumberjack.go, rotate
    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        self.open_new()?;
        self.mill.start(self.options);
        Ok(())
    }

    /// Makes a new file, of the mode and owner of the one that it replaces.
    // lumberjack.go, openNew
    fn open_new(&mut self) -> io::Result<()> {
        make_directory(&self.path)?;
        let old = std::fs::metadata(&self.path).ok();
        if old.is_some() {
            std::fs::rename(&self.path, backups::unused_name(&self.path, self.clock.now()))?;
        }
        let mode = old.as_ref().map_or(FILE_MODE, |old| old.permissions().mode() & 0o7777);
        let file = OpenOptions::new().create(true).append(true).mode(mode).open(&self.path)?;
        if let Some(old) = old {
            let new = file.metadata()?;
            if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
                chown(&self.path, Some(old.uid()), Some(old.gid()))?;
            }
        }
        (self.file, self.size, self.is_regular, self.half_line) = (Some(file), 0, true, false);
        Ok(())
    }
}

impl<'a> Run<'a> {
    fn text(&self) -> &'a [u8] {
        self.chunk.slice(&self.lines)
    }

    /// Where each line ends in the text.
    fn ends(&self) -> impl Iterator<Item = usize> {
        let Range { start, end } = self.lines;
        self.chunk.lines().skip(start).take(end - start).scan(0, |length, line| {
            *length += line.len();
            Some(*length)
        })
    }
}

fn size_of(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Ends a line of which only a part was written.
fn end_half_line(file: &mut File, half_line: &mut bool, size: &mut u64) -> io::Result<()> {
    if *half_line {
        file.write_all(b"\n")?;
        *half_line = false;
        *size += 1;
    }
    Ok(())
}

/// Writes; returns how much was written, and the error.
pub(super) fn write_all(file: &mut (impl Write + ?Sized), mut text: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while !text.is_empty() {
        match file.write(text) {
            Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
            Ok(length) => {
                written += length;
                text = text.get(length..).unwrap_or_default();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}
