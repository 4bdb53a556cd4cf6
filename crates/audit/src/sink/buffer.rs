//! The events that wait for one backend or are being stored, with a share of the room for each owner.
//!
//! Usually there is room for all: events wait in the order in which they came, and the owner of each costs a comparison. Once
//! owners contend, because the buffer is full or more wait than the next two batches take, each of them has a lane. The lanes
//! take turns, and when the buffer is full, an event of an owner that has less than another one displaces the newest event of
//! the one that has most, by number or by bytes. So an owner that has no more than its part loses nothing, whatever others do.
//! Clusters of Secrets together have at most half of the room, and networks of unauthenticated clients a quarter.
// threat: tenant-audit-flood

use tokio::sync::oneshot::Sender;

use super::lanes::{BatchRoom, Lanes, StoreRoom};
use super::lines::{Chunk, Lines, RemovedLine, TakeLimits};
use super::load::{Held, Load, Measure};
use super::observer::DropCause;
use super::owner::{EventOwner, OwnerGroup, PerGroup};

/// The events of a backend.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// In the order in which they came; empty while there are lanes.
    arrivals: Lines,
    /// While owners contend.
    lanes: Option<Box<Lanes>>,
    held: PerGroup<Held>,
    /// That of all groups.
    held_by_all: Held,
    /// The events that wait and for which a request waits.
    awaited: usize,
    /// Whether an event found no room for its bytes or in the part of its group, or a batch left events behind because of
    /// their text: then nothing waits for more events.
    is_pressed: bool,
}

/// Whether there is room for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// There is.
    Room,
    /// There is for an owner that has as little: by displacing events of others, which have more.
    WithinPart,
    /// There is not.
    Full(DropCause),
}

/// An event that was displaced.
#[derive(Debug)]
pub(super) struct Displaced {
    pub(super) line: RemovedLine,
    pub(super) cause: DropCause,
}

/// A batch that was taken.
#[derive(Debug)]
pub(super) struct Taken {
    /// None if too much is being stored.
    pub(super) chunks: Vec<Chunk>,
    /// What they take, until they are stored.
    pub(super) loads: PerGroup<Load>,
}

/// Owners that share a bound: a group, and all.
struct Scope {
    groups: &'static [OwnerGroup],
    divisor: usize,
}

impl Buffer {
    pub(super) fn held(&self) -> Held {
        self.held_by_all
    }

    fn held_by(&self, scope: &Scope) -> Held {
        match scope.groups {
            [group] => *self.held.of(*group),
            _ => self.held_by_all,
        }
    }

    /// Changes what a group holds.
    fn change(&mut self, group: OwnerGroup, change: impl Fn(&mut Held)) {
        change(self.held.of_mut(group));
        change(&mut self.held_by_all);
    }

    /// The events that wait and for which a request waits.
    pub(super) fn awaited(&self) -> usize {
        self.awaited
    }

    pub(super) fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    /// Whether there is room for an event with so much text.
    pub(super) fn entry(&mut self, owner: &EventOwner, text: usize, max: Load) -> Entry {
        let Some(first) = self.shortage(owner, text, max) else { return Entry::Room };
        if !self.has_others(owner) {
            return Entry::Full(first.cause());
        }
        let lanes = self.contended();
        let own = lanes.load_of(owner) + Load::of(1, text);
        for scope in Scope::of(owner) {
            let shortage = self.held_by(&scope).shortage(Load::of(1, text).bytes, scope.bound(max));
            for measure in Measure::ALL {
                let missing = shortage.by(measure);
                let lanes = self.contended();
                if lanes.surplus(scope.groups, measure, own.by(measure), missing) < missing {
                    return Entry::Full(measure.cause());
                }
            }
        }
        Entry::WithinPart
    }

    /// Whether an event keeps all bounds: of nearly every event, so it costs little.
    fn has_room(&self, owner: &EventOwner, text: usize, max: Load) -> bool {
        let (group, size) = (owner.group(), Load::of(1, text).bytes);
        let fits = |held: &Held, max: Load| held.shortage(size, max).is_none();
        fits(&self.held_by_all, max)
            && (group == OwnerGroup::Operator || fits(self.held.of(group), max.divided_by(group.divisor())))
    }

    /// What an event lacks first; `None` if there is room.
    fn shortage(&mut self, owner: &EventOwner, text: usize, max: Load) -> Option<Measure> {
        if self.has_room(owner, text, max) {
            return None;
        }
        let mut lacking = None;
        for scope in Scope::of(owner) {
            let held = self.held_by(&scope);
            if let Some((measure, _)) = held.shortage(Load::of(1, text).bytes, scope.bound(max)).first() {
                self.is_pressed |= measure == Measure::Bytes || scope.divisor > 1;
                lacking = lacking.or(Some(measure));
            }
        }
        lacking
    }

    /// Displaces events of others until there is room, after [`Self::entry`] has found that it can.
    pub(super) fn displace(&mut self, owner: &EventOwner, text: usize, max: Load) -> Vec<Displaced> {
        let mut displaced = Vec::new();
        for scope in Scope::of(owner) {
            let lacks = |held: Held| held.shortage(Load::of(1, text).bytes, scope.bound(max)).first();
            while let Some((measure, _)) = lacks(self.held_by(&scope)) {
                let Some(line) = self.contended().evict(scope.groups, measure) else { break };
                self.change(line.owner.group(), |held| held.waiting -= line.load);
                self.awaited -= usize::from(line.stored.is_some());
                displaced.push(Displaced { line, cause: measure.cause() });
            }
        }
        displaced
    }

    /// Adds an event.
    pub(super) fn push(&mut self, owner: &EventOwner, line: &[u8], stored: Option<Sender<bool>>) {
        let load = Load::of(1, line.len());
        self.change(owner.group(), |held| held.waiting += load);
        self.awaited += usize::from(stored.is_some());
        match &mut self.lanes {
            Some(lanes) => lanes.push(owner, line, stored),
            None => self.arrivals.push(owner, line, stored),
        }
    }

    /// Whether events of others may be waiting.
    fn has_others(&self, owner: &EventOwner) -> bool {
        self.lanes.is_some() || self.arrivals.has_others(owner)
    }

    /// The lanes, from now on.
    fn contended(&mut self) -> &mut Lanes {
        let Self { lanes, arrivals, .. } = self;
        lanes.get_or_insert_with(|| {
            let (lanes, unused) = Lanes::of(arrivals.take_all());
            arrivals.recycle(unused);
            Box::new(lanes)
        })
    }

    /// Takes a batch, of at least one event unless too much is being stored; `max_bytes` is the bound of all bytes.
    pub(super) fn take(&mut self, events: usize, text: usize, max_bytes: usize) -> Taken {
        let room = self.batch_room(events, text, max_bytes);
        if self.lanes.is_none() && self.arrivals.is_mixed() && !self.is_taken_soon(&room) {
            self.contended();
        }
        let (chunks, is_pressed) = match &mut self.lanes {
            None => self.arrivals.take(self.limits(&room)),
            Some(lanes) => {
                let is_pressed = lanes.take(room, &mut self.arrivals);
                (self.arrivals.take_all().collect(), is_pressed)
            }
        };
        drop(self.lanes.take_if(|lanes| lanes.is_empty()));
        if !chunks.is_empty() {
            self.is_pressed = is_pressed;
        }
        self.taken(chunks)
    }

    fn batch_room(&self, events: usize, text: usize, max_bytes: usize) -> BatchRoom {
        // The last eighth waits: what is being stored cannot be displaced.
        let max_bytes = max_bytes / 8 * 7;
        let mut groups = PerGroup::default();
        for (group, held) in self.held.iter() {
            *groups.of_mut(group) = StoreRoom::beside(held.storing, max_bytes / group.divisor());
        }
        BatchRoom::new(events, text, StoreRoom::beside(self.held().storing, max_bytes), groups)
    }

    /// Whether all that wait are in this batch or the next one: then they need no turns.
    fn is_taken_soon(&self, room: &BatchRoom) -> bool {
        let waiting = self.held().waiting;
        let is_stored =
            |(group, held): (OwnerGroup, &Held)| held.waiting.bytes <= room.groups.of(group).bytes;
        waiting.events / 2 <= room.events
            && waiting.text() / 2 <= room.text
            && waiting.bytes <= room.all.bytes
            && self.held.iter().all(is_stored)
    }

    /// The limits of a batch in the order in which events came: that of one owner, or of several that are all taken soon.
    fn limits(&self, room: &BatchRoom) -> TakeLimits {
        let mut store_room = room.all;
        for (group, _) in self.held.iter().filter(|(_, held)| held.waiting.events > 0) {
            let StoreRoom { bytes, .. } = *room.groups.of(group);
            store_room.bytes =
                if self.arrivals.is_mixed() { store_room.bytes } else { store_room.bytes.min(bytes) };
        }
        TakeLimits {
            lines: room.events,
            text: room.text,
            bytes: store_room.bytes,
            takes_any: store_room.is_idle,
        }
    }

    fn taken(&mut self, chunks: Vec<Chunk>) -> Taken {
        let mut loads = PerGroup::default();
        for chunk in &chunks {
            chunk.add_loads(&mut loads);
            self.awaited -= chunk.awaited();
        }
        for (group, load) in loads.iter() {
            self.change(group, |held| {
                held.waiting -= *load;
                held.storing += *load;
            });
        }
        Taken { chunks, loads }
    }

    /// Frees what a batch has taken: it is stored, or lost.
    pub(super) fn stored(&mut self, loads: &PerGroup<Load>) {
        for (group, load) in loads.iter() {
            self.change(group, |held| held.storing -= *load);
        }
    }

    /// Keeps the memory of chunks whose lines are stored.
    pub(super) fn recycle(&mut self, chunks: impl IntoIterator<Item = Chunk>) {
        self.arrivals.recycle(chunks);
    }
}

impl Scope {
    /// Those of an owner.
    fn of(owner: &EventOwner) -> impl Iterator<Item = Self> {
        let group = owner.group();
        let of_group = Self { groups: group.alone(), divisor: group.divisor() };
        let of_all = Self { groups: &OwnerGroup::ALL, divisor: 1 };
        (of_group.divisor > 1).then_some(of_group).into_iter().chain([of_all])
    }

    fn bound(&self, max: Load) -> Load {
        max.divided_by(self.divisor)
    }
}
