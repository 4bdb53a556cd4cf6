//! The lanes of a contended buffer, one for each owner: lanes take turns, and the longest one gives way.
//!
//! The groups of owners take turns as well, so that many tenants or networks get no more turns than the operator's users.

use std::collections::{BTreeMap, HashMap, VecDeque};

use portcullis_limits::Owner;
use portcullis_limits::weights::Weights;
use tokio::sync::oneshot::Sender;

use super::lines::{Chunk, Lines, RemovedLine};
use super::load::{Load, Measure};
use super::owner::{EventOwner, OwnerGroup, PerGroup};

/// The events of one turn.
const TURN_EVENTS: usize = 16;
/// The bytes of one turn. What a large event lacks is saved up over several turns.
const TURN_BYTES: usize = 64 << 10;

/// Lines by owner.
#[derive(Debug)]
pub(super) struct Lanes {
    by_id: BTreeMap<LaneId, Lane>,
    ids: HashMap<Owner, LaneId>,
    groups: PerGroup<LaneGroup>,
    /// The group whose turn is next.
    turn: OwnerGroup,
    next_id: LaneId,
}

type LaneId = u64;

#[derive(Debug)]
struct Lane {
    owner: Owner,
    group: OwnerGroup,
    /// There is at least one.
    lines: Lines,
    /// The bytes that it may take in this turn.
    credit: usize,
}

#[derive(Debug, Default)]
struct LaneGroup {
    /// The lanes, in the order in which they take turns.
    turns: VecDeque<LaneId>,
    events: Weights<LaneId>,
    bytes: Weights<LaneId>,
}

/// What a batch has room for.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchRoom {
    /// The events.
    pub(super) events: usize,
    /// Their text, unless the first one is larger.
    pub(super) text: usize,
    /// The bytes that may be stored at a time, of all owners.
    pub(super) all: StoreRoom,
    /// The same of each group.
    pub(super) groups: PerGroup<StoreRoom>,
    /// What was taken.
    taken: Load,
}

/// How much more may be stored at a time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StoreRoom {
    /// In bytes.
    pub(super) bytes: usize,
    /// Whether nothing is being stored: then any event may be.
    pub(super) is_idle: bool,
}

/// How a turn has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnEnd {
    /// It is the turn of the next lane.
    Over,
    /// Too much of the group is being stored.
    GroupIsFull,
    /// The batch is full.
    BatchIsFull {
        /// Whether because of the text of the next event.
        by_text: bool,
    },
}

impl Lanes {
    /// Distributes lines. Returns also the chunks that are not used any more.
    pub(super) fn of(chunks: impl Iterator<Item = Chunk>) -> (Self, Vec<Chunk>) {
        let mut lanes = Self {
            by_id: BTreeMap::new(),
            ids: HashMap::new(),
            groups: PerGroup::default(),
            turn: OwnerGroup::Operator,
            next_id: 0,
        };
        let unused = chunks.filter_map(|chunk| lanes.add(chunk)).collect();
        for (id, lane) in &lanes.by_id {
            lanes.groups.of_mut(lane.group).change(*id, Load::default(), lane.lines.load());
        }
        (lanes, unused)
    }

    /// Distributes the lines of a chunk, without their weights. Returns the chunk if it is not used any more.
    fn add(&mut self, mut chunk: Chunk) -> Option<Chunk> {
        while let Some(owner) = chunk.owner(0).cloned() {
            let id = self.lane(&owner);
            let lane = self.by_id.get_mut(&id)?;
            if chunk.has_one_owner() {
                lane.lines.append(chunk);
                return None;
            }
            chunk.move_first_run(&mut lane.lines);
        }
        Some(chunk)
    }

    /// The lane of an owner. A new one has the last turn.
    fn lane(&mut self, owner: &EventOwner) -> LaneId {
        if let Some(id) = self.ids.get(owner.owner()) {
            return *id;
        }
        let (id, group) = (self.next_id, owner.group());
        self.next_id += 1;
        self.ids.insert(owner.owner().clone(), id);
        self.groups.of_mut(group).turns.push_back(id);
        self.by_id.insert(id, Lane { owner: owner.owner().clone(), group, lines: Lines::lean(), credit: 0 });
        id
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// What an owner has.
    pub(super) fn load_of(&self, owner: &EventOwner) -> Load {
        let lane = self.ids.get(owner.owner()).and_then(|id| self.by_id.get(id));
        lane.map_or_else(Load::default, |lane| lane.lines.load())
    }

    /// Adds a line to the lane of its owner.
    pub(super) fn push(&mut self, owner: &EventOwner, line: &[u8], stored: Option<Sender<bool>>) {
        let id = self.lane(owner);
        self.change(id, |lane| lane.lines.push(owner, line, stored));
    }

    /// How much the lanes of these groups that have more than `kept` can give up, at most `enough`.
    pub(super) fn surplus(
        &self,
        groups: &[OwnerGroup],
        measure: Measure,
        kept: usize,
        enough: usize,
    ) -> usize {
        groups.iter().fold(0, |surplus, group| {
            surplus + self.groups.of(*group).weights(measure).surplus(kept, enough - surplus)
        })
    }

    /// Removes the newest line of the longest lane of these groups.
    pub(super) fn evict(&mut self, groups: &[OwnerGroup], measure: Measure) -> Option<RemovedLine> {
        let of_groups = groups.iter().map(|group| (group, self.groups.of(*group).weights(measure)));
        let heaviest = of_groups.filter_map(|(group, weights)| Some((weights.heaviest()?, *group)));
        let ((_, id), group) = heaviest.max_by_key(|((weight, _), _)| *weight)?;
        let id = *id;
        let removed = self.change(id, |lane| lane.lines.remove_last())?;
        if !self.by_id.contains_key(&id) {
            self.groups.of_mut(group).turns.retain(|other| *other != id);
        }
        removed
    }

    /// Moves the lines of a batch to `to`, in turns. Returns whether the next one was left behind because of its text.
    pub(super) fn take(&mut self, mut room: BatchRoom, to: &mut Lines) -> bool {
        let mut passed = 0;
        while passed < OwnerGroup::ALL.len() {
            let group = self.turn;
            match self.take_turn(group, &mut room, to) {
                Some(TurnEnd::BatchIsFull { by_text }) => return by_text,
                Some(TurnEnd::Over) => passed = 0,
                Some(TurnEnd::GroupIsFull) | None => passed += 1,
            }
            self.turn = group.next();
        }
        false
    }

    /// The turn of the next lane of a group; `None` if there is none.
    fn take_turn(&mut self, group: OwnerGroup, room: &mut BatchRoom, to: &mut Lines) -> Option<TurnEnd> {
        let id = self.groups.of_mut(group).turns.pop_front()?;
        let end = self.change(id, |lane| lane.take_turn(room, to))?;
        if self.by_id.contains_key(&id) {
            let turns = &mut self.groups.of_mut(group).turns;
            match end {
                TurnEnd::Over => turns.push_back(id),
                TurnEnd::GroupIsFull | TurnEnd::BatchIsFull { .. } => turns.push_front(id),
            }
        }
        Some(end)
    }

    /// Changes a lane, and its weight. One that is empty then is removed, but for its turn.
    fn change<R>(&mut self, id: LaneId, change: impl FnOnce(&mut Lane) -> R) -> Option<R> {
        let lane = self.by_id.get_mut(&id)?;
        let before = lane.lines.load();
        let result = change(lane);
        self.groups.of_mut(lane.group).change(id, before, lane.lines.load());
        if lane.lines.is_empty()
            && let Some(lane) = self.by_id.remove(&id)
        {
            self.ids.remove(&lane.owner);
        }
        Some(result)
    }
}

impl LaneGroup {
    fn weights(&self, measure: Measure) -> &Weights<LaneId> {
        match measure {
            Measure::Events => &self.events,
            Measure::Bytes => &self.bytes,
        }
    }

    fn change(&mut self, id: LaneId, before: Load, after: Load) {
        self.events.change(&id, before.events, after.events);
        self.bytes.change(&id, before.bytes, after.bytes);
    }
}

impl Lane {
    fn take_turn(&mut self, room: &mut BatchRoom, to: &mut Lines) -> TurnEnd {
        self.credit += TURN_BYTES;
        for _ in 0..TURN_EVENTS {
            let Some(length) = self.lines.first_len() else { return TurnEnd::Over };
            let load = Load::of(1, length);
            if load.bytes > self.credit && !room.is_full() {
                return TurnEnd::Over;
            }
            if let Err(end) = room.take(self.group, load) {
                // It has its turn again with the next batch.
                self.credit = self.credit.saturating_sub(TURN_BYTES);
                return end;
            }
            self.credit -= load.bytes;
            self.lines.move_first(to);
        }
        self.credit = 0;
        TurnEnd::Over
    }
}

impl BatchRoom {
    pub(super) fn new(events: usize, text: usize, all: StoreRoom, groups: PerGroup<StoreRoom>) -> Self {
        Self { events: events.max(1), text, all, groups, taken: Load::default() }
    }

    fn is_full(&self) -> bool {
        self.taken.events >= self.events
    }

    /// Takes an event, if there is room for it.
    fn take(&mut self, group: OwnerGroup, load: Load) -> Result<(), TurnEnd> {
        let by_text = self.taken.events > 0 && self.taken.text() + load.text() > self.text;
        if self.is_full() || by_text || !self.all.holds(load) {
            return Err(TurnEnd::BatchIsFull { by_text });
        }
        let of_group = self.groups.of_mut(group);
        if !of_group.holds(load) {
            return Err(TurnEnd::GroupIsFull);
        }
        of_group.take(load);
        self.all.take(load);
        self.taken += load;
        Ok(())
    }
}

impl StoreRoom {
    /// The room beside what is being stored, of so much in all.
    pub(super) fn beside(storing: Load, max: usize) -> Self {
        Self { bytes: max.saturating_sub(storing.bytes), is_idle: storing.events == 0 }
    }

    pub(super) fn holds(self, load: Load) -> bool {
        self.is_idle || load.bytes <= self.bytes
    }

    fn take(&mut self, load: Load) {
        *self = Self { bytes: self.bytes.saturating_sub(load.bytes), is_idle: false };
    }
}
