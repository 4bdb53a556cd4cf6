//! How much events take of a buffer, and what one more lacks.

use std::ops::{Add, AddAssign, SubAssign};

use super::observer::DropCause;

/// What an event counts beside its text.
pub(super) const OVERHEAD: usize = 128;

/// What events take, or may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) events: usize,
    /// Their text, and [`OVERHEAD`] for each.
    pub(super) bytes: usize,
}

/// What is bounded of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    Events,
    Bytes,
}

/// What events take in a buffer and behind it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) waiting: Load,
    /// Those that are being stored.
    pub(super) storing: Load,
}

/// What an event lacks to keep a bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Shortage {
    events: usize,
    bytes: usize,
}

impl Load {
    /// That of events with so much text in all.
    pub(super) fn of(events: usize, text: usize) -> Self {
        Self { events, bytes: text + events * OVERHEAD }
    }

    pub(super) fn by(self, measure: Measure) -> usize {
        match measure {
            Measure::Events => self.events,
            Measure::Bytes => self.bytes,
        }
    }

    /// The text of the events.
    pub(super) fn text(self) -> usize {
        self.bytes.saturating_sub(self.events * OVERHEAD)
    }

    /// One of so many parts.
    pub(super) fn divided_by(self, parts: usize) -> Self {
        Self { events: (self.events / parts).max(1), bytes: self.bytes / parts }
    }
}

impl Held {
    /// Everything that takes memory.
    pub(super) fn all(self) -> Load {
        self.waiting + self.storing
    }

    /// What an event of this size lacks to keep a bound: of the events that wait, and of the bytes of all. One event may be as
    /// large as it likes.
    pub(super) fn shortage(self, size: usize, max: Load) -> Shortage {
        let held = self.all().bytes;
        let bytes = if held > 0 { held.saturating_add(size).saturating_sub(max.bytes) } else { 0 };
        Shortage { events: (self.waiting.events + 1).saturating_sub(max.events), bytes }
    }
}

impl Shortage {
    /// What is missing the most, and how much of it; `None` if nothing is.
    pub(super) fn first(self) -> Option<(Measure, usize)> {
        match self {
            Self { events: 0, bytes: 0 } => None,
            Self { events: 0, bytes } => Some((Measure::Bytes, bytes)),
            Self { events, .. } => Some((Measure::Events, events)),
        }
    }

    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }

    pub(super) fn by(self, measure: Measure) -> usize {
        match measure {
            Measure::Events => self.events,
            Measure::Bytes => self.bytes,
        }
    }
}

impl Measure {
    pub(super) const ALL: [Self; 2] = [Self::Events, Self::Bytes];

    /// Why an event is lost that lacks it.
    pub(super) fn cause(self) -> DropCause {
        match self {
            Self::Events => DropCause::BufferEvents,
            Self::Bytes => DropCause::BufferBytes,
        }
    }
}

impl Add for Load {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { events: self.events + other.events, bytes: self.bytes + other.bytes }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Self) {
        self.events -= other.events;
        self.bytes -= other.bytes;
    }
}
