//! Recordings line by line, and lists of sessions block by block: neither is held as a whole.

use std::io::IsTerminal as _;
use std::ops::Range;
use std::process::ExitCode;

use portcullis_sessions::recording::reader::{LineError, LineReader, RecordedLine};
use portcullis_sessions::storage::verify::verify;
use portcullis_sessions::storage::{
    ObjectName, PartForm, RecordingDirectory, RecordingStore as _, SessionName,
};
use serde::Serialize;

use crate::certs::error::CommandError;
use crate::certs::progress::with_spinner;
use crate::output::{Output, print};
use crate::table;
use crate::terminal::sanitized;

/// The number of rows that are printed together.
pub(super) const BLOCK: usize = 500;

/// Reads the lines of a recording, one part at a time.
#[derive(Debug)]
pub(super) struct RecordingReader<'a> {
    directory: &'a RecordingDirectory,
    session: &'a SessionName,
    parts: std::vec::IntoIter<ObjectName>,
    form: PartForm,
    lines: LineReader,
    part: CurrentPart,
    problems: Vec<String>,
}

/// The part that is read.
#[derive(Debug, Default)]
struct CurrentPart {
    object: String,
    content: Vec<u8>,
    position: usize,
    line: u64,
    /// The first line that cannot be read, and the number of others.
    broken: Option<(u64, LineError, u64)>,
}

impl<'a> RecordingReader<'a> {
    pub(super) fn open(
        directory: &'a RecordingDirectory,
        session: &'a SessionName,
    ) -> Result<Self, CommandError> {
        let objects = directory.objects(session).map_err(|error| CommandError::about(session, error))?;
        let parts: Vec<_> =
            objects.into_iter().filter(|object| matches!(object, ObjectName::Part(..))).collect();
        let form = match parts.first() {
            Some(ObjectName::Part(_, form)) => *form,
            _ => PartForm::Cast,
        };
        Ok(Self {
            directory,
            session,
            parts: parts.into_iter(),
            form,
            lines: LineReader::new(form),
            part: CurrentPart::default(),
            problems: Vec::new(),
        })
    }

    /// The form of the parts.
    pub(super) fn form(&self) -> PartForm {
        self.form
    }

    /// The next line that can be read, and its text.
    pub(super) fn next_line(&mut self) -> Option<(&[u8], RecordedLine)> {
        let (text, line) = self.advance()?;
        Some((self.part.content.get(text).unwrap_or_default(), line))
    }

    fn advance(&mut self) -> Option<(Range<usize>, RecordedLine)> {
        loop {
            let Some(text) = self.part.next_line() else {
                self.next_part()?;
                continue;
            };
            match self.lines.read(self.part.content.get(text.clone()).unwrap_or_default()) {
                Ok(line) => return Some((text, line)),
                Err(error) => self.part.note_broken(error),
            }
        }
    }

    fn next_part(&mut self) -> Option<()> {
        self.problems.extend(std::mem::take(&mut self.part).problem());
        let object = self.parts.next()?;
        let name = object.to_string();
        match self.directory.get(self.session, &object) {
            Ok(Some(content)) => self.part = CurrentPart { object: name, content, ..CurrentPart::default() },
            Ok(None) => self.problems.push(format!("{name} is missing")),
            Err(error) => self.problems.push(format!("{name} cannot be read: {error}")),
        }
        Some(())
    }

    /// The lines and parts that could not be read, and the problems of the hash chain. To be called after the last line.
    pub(super) fn problems(self) -> Result<Vec<String>, CommandError> {
        let Self { directory, session, mut problems, .. } = self;
        let verified = with_spinner("verifying the recording", || verify(directory, session));
        let verified = verified.map_err(|error| CommandError::about(session, error))?;
        for problem in verified.problems {
            let text = problem.to_string();
            if !problems.contains(&text) {
                problems.push(text);
            }
        }
        Ok(problems)
    }
}

impl CurrentPart {
    fn next_line(&mut self) -> Option<Range<usize>> {
        let rest = self.content.get(self.position..).filter(|rest| !rest.is_empty())?;
        let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let line = self.position..self.position + length;
        self.position = line.end + 1;
        self.line += 1;
        Some(line)
    }

    fn note_broken(&mut self, error: LineError) {
        match &mut self.broken {
            Some((_, _, others)) => *others += 1,
            None => self.broken = Some((self.line, error, 0)),
        }
    }

    fn problem(self) -> Option<String> {
        let (line, error, others) = self.broken?;
        let others = if others > 0 { format!(", nor can {others} others be read") } else { String::new() };
        Some(format!("line {line} of {} {error}{others}", self.object))
    }
}

/// Prints a list in blocks.
pub(super) struct ListPrinter<'a, const COLUMNS: usize> {
    output: Output,
    heading: Option<[&'static str; COLUMNS]>,
    rows: Vec<[String; COLUMNS]>,
    /// Rendered items of JSON or YAML.
    items: Vec<String>,
    has_items: bool,
    /// Whether a terminal shows the output.
    is_terminal: bool,
    print: Box<dyn FnMut(&str) -> ExitCode + 'a>,
    printed: ExitCode,
}

impl<'a, const COLUMNS: usize> ListPrinter<'a, COLUMNS> {
    pub(super) fn to_stdout(output: Output, heading: [&'static str; COLUMNS]) -> Self {
        Self::new(output, heading, std::io::stdout().is_terminal(), print)
    }

    pub(super) fn new(
        output: Output,
        heading: [&'static str; COLUMNS],
        is_terminal: bool,
        print: impl FnMut(&str) -> ExitCode + 'a,
    ) -> Self {
        Self {
            output,
            heading: Some(heading),
            rows: Vec::new(),
            items: Vec::new(),
            has_items: false,
            is_terminal,
            print: Box::new(print),
            printed: ExitCode::SUCCESS,
        }
    }

    /// Adds an item: to a table these cells.
    pub(super) fn add(&mut self, item: &impl Serialize, cells: [String; COLUMNS]) {
        match self.output {
            Output::Text => self.rows.push(cells),
            // A list of one, whose items are those of the whole list.
            Output::Json | Output::Yaml => self.items.extend(self.output.rendered(&[item])),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.rows.len().max(self.items.len()) >= BLOCK
    }

    /// Whether the output is still read.
    pub(super) fn is_open(&self) -> bool {
        self.printed == ExitCode::SUCCESS
    }

    /// Prints the items since the last block.
    pub(super) fn print_block(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        if !rows.is_empty() {
            // Columns are as wide as a block needs.
            let text = match self.heading.take() {
                Some(heading) => table::columns(heading, rows),
                None => table::rows(rows),
            };
            self.has_items = true;
            self.write(&text);
        }
        for item in std::mem::take(&mut self.items) {
            let text = match (self.output, self.has_items) {
                (Output::Json, has_items) => {
                    let inner = item.trim().strip_prefix('[').and_then(|item| item.strip_suffix(']'));
                    let inner = inner.unwrap_or_default().trim_end();
                    format!("{}{inner}", if has_items { "," } else { "[" })
                }
                _ => item,
            };
            self.has_items = true;
            self.write(&text);
        }
    }

    /// Ends the list; `none` is printed in place of a table without rows.
    pub(super) fn finish(mut self, none: &str) -> ExitCode {
        self.print_block();
        match (self.output, self.has_items) {
            (Output::Text, false) => self.write(none),
            (Output::Json | Output::Yaml, false) => self.write("[]\n"),
            (Output::Json, true) => self.write("\n]\n"),
            (Output::Text | Output::Yaml, true) => {}
        }
        self.printed
    }

    fn write(&mut self, text: &str) {
        if self.is_open() {
            self.printed = (self.print)(&for_terminal(text, self.is_terminal));
        }
    }
}

/// JSON and YAML for a terminal, which would obey some characters that they may contain.
pub(super) fn for_terminal(text: &str, is_terminal: bool) -> String {
    if !is_terminal {
        return text.to_owned();
    }
    text.split('\n').map(sanitized).collect::<Vec<_>>().join("\n")
}
