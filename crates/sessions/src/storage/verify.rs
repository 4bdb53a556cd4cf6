//! Compares the objects of a session with its hash chain.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use super::chain::{ChainHash, Link};
use super::name::PartForm;
use super::{ObjectName, RecordingStore, SessionName};
use crate::recording::metadata::SessionEnd;

/// What a session's objects show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verification {
    /// The number of parts that are as they were written.
    pub parts: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether the session was ended by its writer. Otherwise it goes on, or the writer was killed: then at most the last
    /// part is lost. Parts removed from the end of such a session do not show.
    pub has_ended: bool,
    /// The last hash of the chain.
    pub head: ChainHash,
    /// The problems, in the order of the objects.
    pub problems: Vec<Problem>,
}

/// A problem of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The object.
    pub object: String,
    /// What is wrong.
    pub kind: ProblemKind,
}

/// What is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProblemKind {
    /// It is missing.
    Missing,
    /// Its content is not that of its link.
    Changed,
    /// It has only these bytes.
    Truncated {
        /// Its size.
        size: u64,
        /// The size that its link has.
        expected: u64,
    },
    /// Its link is missing, though others follow.
    LinkMissing,
    /// Its link cannot be read, or does not follow the one before.
    LinkChanged,
    /// It cannot be read.
    Unreadable(String),
}

/// Compares all objects of a session with its chain. Fails if the store cannot list them.
pub fn verify(store: &impl RecordingStore, session: &SessionName) -> io::Result<Verification> {
    let mut parts = BTreeMap::new();
    let mut form = PartForm::Cast;
    let mut has_end = false;
    for object in store.objects(session)? {
        match object {
            ObjectName::Part(number, part) => {
                form = part;
                parts.insert(number, Some(part));
            }
            ObjectName::PartLink(number) => drop(parts.entry(number).or_default()),
            ObjectName::End | ObjectName::EndLink => has_end = true,
            ObjectName::Start | ObjectName::StartLink => {}
        }
    }
    let last = parts.last_key_value().map(|(number, _)| *number);
    let mut chain =
        ChainReader { store, session, head: Some(ChainHash::default()), found: Verification::default() };
    chain.read(ObjectName::Start, last.is_none() && !has_end);
    let mut next = 0;
    for (number, part) in parts {
        // A gap is one problem, whatever its size.
        if number > next {
            chain.missing(ObjectName::Part(next, form));
        }
        next = number.saturating_add(1);
        chain.read(ObjectName::Part(number, part.unwrap_or(form)), last == Some(number) && !has_end);
    }
    if has_end {
        if chain.parts_of_end() > u64::from(next) {
            chain.missing(ObjectName::Part(next, form));
        }
        chain.found.has_ended = chain.read(ObjectName::End, true);
    }
    chain.found.head = chain.head.unwrap_or_default();
    Ok(chain.found)
}

struct ChainReader<'a, S> {
    store: &'a S,
    session: &'a SessionName,
    /// The hash of the link before; `None` after a problem. Then the next link is believed, so that one problem is not many.
    head: Option<ChainHash>,
    found: Verification,
}

impl<S: RecordingStore> ChainReader<'_, S> {
    /// Reads an object with its link; returns whether both are as they were written. `is_last` is whether the writer may have been
    /// killed before it wrote the link.
    fn read(&mut self, object: ObjectName, is_last: bool) -> bool {
        let (content, link) = match (self.get(object), self.get(object.link())) {
            (Ok(content), Ok(link)) => (content, link),
            (Err(error), _) | (_, Err(error)) => {
                return self.problem(object, ProblemKind::Unreadable(error.to_string()));
            }
        };
        let is_linked = link.is_some();
        let link = link.and_then(|link| serde_json::from_slice::<Link>(&link).ok());
        match (content, link) {
            (None, link) => {
                self.missing(object);
                self.head = link.and_then(|link| ChainHash::from_hex(&link.link));
                false
            }
            (Some(_), None) if is_linked => self.problem(object, ProblemKind::LinkChanged),
            (Some(_), None) if is_last => false,
            (Some(_), None) => self.problem(object, ProblemKind::LinkMissing),
            (Some(content), Some(link)) => self.compare(object, &content, &link),
        }
    }

    fn compare(&mut self, object: ObjectName, content: &[u8], link: &Link) -> bool {
        let Some(previous) = self.head.or_else(|| ChainHash::from_hex(&link.previous)) else {
            return self.problem(object, ProblemKind::LinkChanged);
        };
        let expected = Link::new(previous, &object, content);
        if expected == *link {
            self.head = Some(previous.next(&object, content));
            if matches!(object, ObjectName::Part(..)) {
                self.found.parts += 1;
                self.found.bytes += expected.size;
            }
            return true;
        }
        self.problem(
            object,
            if expected.sha256 == link.sha256 {
                ProblemKind::LinkChanged
            } else if expected.size < link.size {
                ProblemKind::Truncated { size: expected.size, expected: link.size }
            } else {
                ProblemKind::Changed
            },
        )
    }

    /// The number of parts that the last document states.
    fn parts_of_end(&self) -> u64 {
        let end = self.get(ObjectName::End).ok().flatten();
        end.and_then(|end| serde_json::from_slice::<SessionEnd>(&end).ok()).map_or(0, |end| end.parts)
    }

    fn get(&self, object: ObjectName) -> io::Result<Option<Vec<u8>>> {
        self.store.get(self.session, &object)
    }

    fn missing(&mut self, object: ObjectName) {
        self.problem(object, ProblemKind::Missing);
    }

    fn problem(&mut self, object: ObjectName, kind: ProblemKind) -> bool {
        self.head = None;
        self.found.problems.push(Problem { object: object.to_string(), kind });
        false
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, kind } = self;
        match kind {
            ProblemKind::Missing => write!(f, "{object} is missing"),
            ProblemKind::Changed => write!(f, "{object} was changed"),
            ProblemKind::Truncated { size, expected } => {
                write!(f, "{object} was truncated: it has {size} of {expected} bytes")
            }
            ProblemKind::LinkMissing => write!(f, "the link of {object} is missing"),
            ProblemKind::LinkChanged => {
                write!(f, "the link of {object} was changed, or does not follow the one before")
            }
            ProblemKind::Unreadable(problem) => write!(f, "{object} cannot be read: {problem}"),
        }
    }
}
