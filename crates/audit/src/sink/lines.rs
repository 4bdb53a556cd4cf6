//! Encoded events, one behind the other in few allocations: each of them passes from a worker thread to the thread that
//! stores it, and a gateway makes one for each request.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use tokio::sync::oneshot::Sender;

use super::load::Load;
use super::owner::{EventOwner, PerGroup};

/// The memory of a chunk. A line that is larger has a chunk of its own.
const CHUNK_BYTES: usize = 256 << 10;
/// How many empty chunks are kept for further lines.
const MAX_SPARE_CHUNKS: usize = 4;

/// Lines that wait, in order.
#[derive(Debug, Default)]
pub(super) struct Lines {
    chunks: VecDeque<Chunk>,
    spare: Vec<Chunk>,
    count: usize,
    text: usize,
    /// Whether chunks begin with the memory of their first line: there are many `Lines`, most of them short.
    is_lean: bool,
    /// Whether there may be lines of several owners.
    is_mixed: bool,
}

/// Lines in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    text: Vec<u8>,
    /// Where each line ends in `text`.
    ends: Vec<usize>,
    /// The owners, each with the first of its successive lines, by the index in `ends`.
    owners: Vec<(usize, EventOwner)>,
    /// How many of the lines were taken out.
    taken: usize,
    /// By the index in `ends`: takes whether the line was stored. Dropped without a value: it was not.
    stored: VecDeque<(usize, Sender<bool>)>,
}

/// How much is taken at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct TakeLimits {
    /// The lines.
    pub(super) lines: usize,
    /// Their text, unless the first line is larger.
    pub(super) text: usize,
    /// Their [`Load`] in bytes.
    pub(super) bytes: usize,
    /// Whether the first line may be larger than `bytes`.
    pub(super) takes_any: bool,
}

/// The requests that wait for the lines of a chunk.
#[derive(Debug)]
pub(super) struct Reports {
    next: usize,
    stored: VecDeque<(usize, Sender<bool>)>,
}

/// A line that was removed.
#[derive(Debug)]
pub(super) struct RemovedLine {
    pub(super) owner: EventOwner,
    pub(super) load: Load,
    /// The request that waits for it.
    pub(super) stored: Option<Sender<bool>>,
}

impl Lines {
    /// Lines that begin with little memory.
    pub(super) fn lean() -> Self {
        Self { is_lean: true, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn load(&self) -> Load {
        Load::of(self.count, self.text)
    }

    /// Whether there may be a line of another owner.
    pub(super) fn has_others(&self, owner: &EventOwner) -> bool {
        self.is_mixed || self.chunks.back().is_some_and(|chunk| !chunk.ends_with(owner))
    }

    /// Whether there may be lines of several owners.
    pub(super) fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// Adds a line. `stored` takes whether it was stored.
    pub(super) fn push(&mut self, owner: &EventOwner, line: &[u8], stored: Option<Sender<bool>>) {
        self.count += 1;
        self.text += line.len();
        if let Some(chunk) = self.chunks.back_mut() {
            let is_other = !chunk.ends_with(owner);
            self.is_mixed |= is_other;
            if chunk.has_room(line.len()) {
                chunk.push(is_other.then_some(owner), line, stored);
                return;
            }
        }
        let mut chunk = self.new_chunk(line.len());
        chunk.push(Some(owner), line, stored);
        self.chunks.push_back(chunk);
    }

    /// A chunk for a line of this length, and for further ones.
    fn new_chunk(&mut self, length: usize) -> Chunk {
        let spare = if length <= CHUNK_BYTES { self.spare.pop() } else { None };
        let least = if self.is_lean { 0 } else { CHUNK_BYTES };
        spare.unwrap_or_else(|| Chunk::with_capacity(length.max(least)))
    }

    /// Takes lines from the front, within the limits. Returns also whether the next line was left behind because of its text.
    pub(super) fn take(&mut self, limits: TakeLimits) -> (Vec<Chunk>, bool) {
        let mut taken = Vec::new();
        let mut load = Load::default();
        while let Some(chunk) = self.chunks.front_mut() {
            let is_whole = limits.hold(load + chunk.load());
            let part = if is_whole {
                self.chunks.pop_front()
            } else {
                chunk.take(limits.left(load), load.events == 0)
            };
            let Some(part) = part else { break };
            load += part.load();
            taken.push(part);
            if !is_whole {
                break;
            }
        }
        self.chunks.pop_front_if(|chunk| chunk.len() == 0);
        self.removed(load);
        let next = self.chunks.front().and_then(|chunk| chunk.lines().next());
        (taken, next.is_some_and(|next| load.text() + next.len() > limits.text))
    }

    /// Takes all chunks.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Chunk> {
        self.removed(self.load());
        std::mem::take(&mut self.chunks).into_iter()
    }

    /// Adds a chunk of one owner behind the others.
    pub(super) fn append(&mut self, chunk: Chunk) {
        self.count += chunk.len();
        self.text += chunk.text().len();
        self.chunks.push_back(chunk);
    }

    /// The length of the first line.
    pub(super) fn first_len(&self) -> Option<usize> {
        self.chunks.front()?.lines().next().map(<[u8]>::len)
    }

    /// Moves the first line behind those of `to`.
    pub(super) fn move_first(&mut self, to: &mut Self) {
        let Some(chunk) = self.chunks.front_mut() else { return };
        let load = chunk.move_first(to);
        self.chunks.pop_front_if(|chunk| chunk.len() == 0);
        self.removed(load);
    }

    /// Removes the last line.
    pub(super) fn remove_last(&mut self) -> Option<RemovedLine> {
        let removed = self.chunks.back_mut()?.remove_last()?;
        self.chunks.pop_back_if(|chunk| chunk.len() == 0);
        self.removed(removed.load);
        Some(removed)
    }

    fn removed(&mut self, load: Load) {
        self.count -= load.events;
        self.text -= load.text();
        self.is_mixed &= self.count > 0;
    }

    /// Keeps the memory of chunks whose lines are stored.
    pub(super) fn recycle(&mut self, chunks: impl IntoIterator<Item = Chunk>) {
        let room = MAX_SPARE_CHUNKS - self.spare.len();
        let usual = chunks.into_iter().filter(|chunk| chunk.text.capacity() == CHUNK_BYTES).take(room);
        self.spare.extend(usual.map(Chunk::emptied));
    }
}

impl TakeLimits {
    fn hold(self, load: Load) -> bool {
        load.events <= self.lines && load.text() <= self.text && load.bytes <= self.bytes
    }

    /// What is left of the limits.
    fn left(self, load: Load) -> Self {
        let Self { lines, text, bytes, takes_any } = self;
        Self {
            lines: lines.saturating_sub(load.events),
            text: text.saturating_sub(load.text()),
            bytes: bytes.saturating_sub(load.bytes),
            takes_any: takes_any && load.events == 0,
        }
    }
}

impl Chunk {
    fn with_capacity(length: usize) -> Self {
        Self { text: Vec::with_capacity(length), ..Self::default() }
    }

    fn has_room(&self, length: usize) -> bool {
        self.text.len() + length <= CHUNK_BYTES
    }

    fn ends_with(&self, owner: &EventOwner) -> bool {
        self.owners.last().is_some_and(|(_, last)| last == owner)
    }

    /// Adds a line, of the owner of the last one if no other is given.
    fn push(&mut self, owner: Option<&EventOwner>, line: &[u8], stored: Option<Sender<bool>>) {
        let at = self.ends.len();
        if let Some(owner) = owner {
            self.owners.push((at, owner.clone()));
        }
        if let Some(stored) = stored {
            self.stored.push_back((at, stored));
        }
        self.text.extend_from_slice(line);
        self.ends.push(self.text.len());
    }

    /// The number of lines.
    pub(super) fn len(&self) -> usize {
        self.ends.len() - self.taken
    }

    pub(super) fn load(&self) -> Load {
        Load::of(self.len(), self.text().len())
    }

    /// All lines.
    pub(super) fn text(&self) -> &[u8] {
        self.text.get(self.start(0)..).unwrap_or_default()
    }

    /// These lines, by their indexes.
    pub(super) fn slice(&self, lines: &Range<usize>) -> &[u8] {
        self.text.get(self.start(lines.start)..self.start(lines.end)).unwrap_or_default()
    }

    /// The lines one by one.
    pub(super) fn lines(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let mut start = self.start(0);
        self.ends.iter().skip(self.taken).map(move |end| {
            let line = self.text.get(start..*end).unwrap_or_default();
            start = *end;
            line
        })
    }

    /// Where a line begins, or the last one ends.
    fn start(&self, line: usize) -> usize {
        (self.taken + line).checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0)
    }

    /// The owner of a line, by its index.
    pub(super) fn owner(&self, line: usize) -> Option<&EventOwner> {
        let behind = self.owners.partition_point(|(first, _)| *first <= self.taken + line);
        self.owners.get(behind.checked_sub(1)?).map(|(_, owner)| owner)
    }

    /// Successive lines of one owner, by their indexes.
    fn runs(&self) -> impl Iterator<Item = (&EventOwner, Range<usize>)> {
        let firsts = self.owners.iter().map(|(first, _)| *first).skip(1);
        let ends = firsts.chain([self.ends.len()]);
        let runs = self.owners.iter().zip(ends);
        let runs = runs.map(|((start, owner), end)| {
            (owner, start.saturating_sub(self.taken)..end.saturating_sub(self.taken))
        });
        runs.filter(|(_, lines)| !lines.is_empty())
    }

    /// Whether all lines are of one owner.
    pub(super) fn has_one_owner(&self) -> bool {
        self.runs().nth(1).is_none()
    }

    /// The load of each group.
    pub(super) fn add_loads(&self, loads: &mut PerGroup<Load>) {
        for (owner, lines) in self.runs() {
            *loads.of_mut(owner.group()) += Load::of(lines.len(), self.slice(&lines).len());
        }
    }

    /// The lines of each cluster.
    pub(super) fn add_clusters(&self, clusters: &mut BTreeMap<Arc<str>, u64>) {
        for (owner, lines) in self.runs() {
            let lines = u64::try_from(lines.len()).unwrap_or(u64::MAX);
            *clusters.entry(Arc::clone(owner.cluster())).or_default() += lines;
        }
    }

    /// Moves the first lines into a chunk of their own; `None` if not one fits.
    fn take(&mut self, limits: TakeLimits, is_first: bool) -> Option<Self> {
        let start = self.start(0);
        let ends = self.ends.iter().skip(self.taken).enumerate();
        let fitting = ends.take_while(|(before, end)| limits.hold(Load::of(before + 1, **end - start)));
        let first = self.lines().next()?.len();
        let takes_one = is_first && (limits.takes_any || Load::of(1, first).bytes <= limits.bytes);
        let count = fitting.count().max(usize::from(takes_one));
        if count == 0 {
            return None;
        }
        let text = self.slice(&(0..count)).to_vec();
        let ends = self.ends.iter().skip(self.taken).take(count).map(|end| end - start).collect();
        let runs = self.runs().filter(|(_, lines)| lines.start < count);
        let owners = runs.map(|(owner, lines)| (lines.start, owner.clone())).collect();
        let (before, after) = (self.taken, self.taken + count);
        let mut stored = VecDeque::new();
        while let Some((line, sender)) = self.stored.pop_front_if(|(line, _)| *line < after) {
            stored.push_back((line - before, sender));
        }
        self.taken = after;
        Some(Self { text, ends, owners, taken: 0, stored })
    }

    /// Moves the first lines, all of one owner, behind those of `to`.
    pub(super) fn move_first_run(&mut self, to: &mut Lines) {
        let lines = self.runs().next().map_or(0, |(_, lines)| lines.len());
        for _ in 0..lines {
            self.move_first(to);
        }
    }

    /// Moves the first line behind those of `to`.
    fn move_first(&mut self, to: &mut Lines) -> Load {
        let taken = self.taken;
        let stored = self.stored.pop_front_if(|(line, _)| *line == taken).map(|(_, stored)| stored);
        let Some((owner, line)) = self.owner(0).zip(self.lines().next()) else { return Load::default() };
        to.push(owner, line, stored);
        let load = Load::of(1, line.len());
        self.taken += 1;
        load
    }

    fn remove_last(&mut self) -> Option<RemovedLine> {
        let line = self.len().checked_sub(1)?;
        let owner = self.owner(line)?.clone();
        let load = Load::of(1, self.slice(&(line..line + 1)).len());
        self.text.truncate(self.start(line));
        self.ends.pop();
        let last = self.ends.len();
        self.owners.pop_if(|(first, _)| *first == last);
        let stored = self.stored.pop_back_if(|(line, _)| *line == last).map(|(_, stored)| stored);
        Some(RemovedLine { owner, load, stored })
    }

    /// Takes the requests that wait for the lines.
    pub(super) fn take_reports(&mut self) -> Reports {
        Reports { next: self.taken, stored: std::mem::take(&mut self.stored) }
    }

    /// The number of lines for which a request waits.
    pub(super) fn awaited(&self) -> usize {
        self.stored.len()
    }

    fn emptied(mut self) -> Self {
        self.text.clear();
        self.ends.clear();
        self.owners.clear();
        self.stored.clear();
        Self { taken: 0, ..self }
    }
}

impl Reports {
    /// Reports whether the next line was stored.
    pub(super) fn report(&mut self, is_stored: bool) {
        let line = self.next;
        self.next += 1;
        if let Some((_, stored)) = self.stored.pop_front_if(|(waiting, _)| *waiting == line) {
            // The request may have ended.
            let _unheard = stored.send(is_stored);
        }
    }

    /// Reports the same of all lines.
    pub(super) fn report_all(self, is_stored: bool) {
        for (_, stored) in self.stored {
            let _unheard = stored.send(is_stored);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use portcullis_limits::Owner;

    use super::*;

    fn owner(name: &str) -> EventOwner {
        EventOwner::new(Owner::flow("prod", name), "prod")
    }

    fn limits(lines: usize, text: usize) -> TakeLimits {
        TakeLimits { lines, text, bytes: usize::MAX, takes_any: true }
    }

    fn texts(chunks: &[Chunk]) -> Vec<&str> {
        chunks.iter().flat_map(Chunk::lines).map(|line| str::from_utf8(line).unwrap()).collect()
    }

    fn lines(all: &[&str]) -> Lines {
        let mut lines = Lines::default();
        for line in all {
            lines.push(&owner("alice"), line.as_bytes(), None);
        }
        lines
    }

    #[test]
    fn lines_are_taken_in_order_within_the_bounds() {
        let all = ["a", "bb", "", "cccc", "d"];
        // Bounds of lines and bytes, the lines that are taken, and whether bytes leave the next one behind.
        let cases: [(usize, usize, &[&str], bool); 8] = [
            (9, 99, &all, false),
            (5, 8, &all, false),
            (2, 99, &["a", "bb"], false),
            (2, 2, &["a"], true),
            (9, 3, &["a", "bb", ""], true),
            (9, 0, &["a"], true),
            (1, 1, &["a"], true),
            (0, 0, &["a"], true),
        ];
        for (max, max_bytes, expected, is_pressed) in cases {
            let mut lines = lines(&all);
            let (first, pressed) = lines.take(limits(max, max_bytes));
            assert_eq!((texts(&first).as_slice(), pressed), (expected, is_pressed), "{max}, {max_bytes}");
            assert_eq!(lines.load().events, all.len() - expected.len());
            let (rest, _) = lines.take(limits(usize::MAX, usize::MAX));
            assert_eq!(texts(&rest), all[expected.len()..], "{max}, {max_bytes}");
            assert_eq!((lines.load(), lines.is_empty()), (Load::default(), true));
        }
    }

    #[test]
    fn a_chunk_is_left_when_it_is_full_and_used_again() {
        let mut lines = Lines::default();
        let half = vec![b'x'; CHUNK_BYTES / 2];
        let large = vec![b'y'; CHUNK_BYTES + 1];
        for line in [&half, &half, &half, &large, &half] {
            lines.push(&owner("alice"), line, None);
        }
        let (chunks, _) = lines.take(limits(usize::MAX, usize::MAX));
        assert_eq!(chunks.iter().map(Chunk::len).collect::<Vec<_>>(), [2, 1, 1, 1]);
        let memory = chunks[0].text.as_ptr();
        lines.recycle(chunks);
        assert_eq!(lines.spare.len(), 3, "all but the large one");
        lines.spare.truncate(1);
        lines.push(&owner("alice"), b"z", None);
        let (chunks, _) = lines.take(limits(usize::MAX, usize::MAX));
        assert_eq!((chunks[0].text.as_ptr(), texts(&chunks)), (memory, vec!["z"]));
        for _ in 0..9 {
            lines.recycle([Chunk::with_capacity(CHUNK_BYTES)]);
        }
        assert_eq!(lines.spare.len(), MAX_SPARE_CHUNKS);
    }

    #[test]
    fn the_last_line_is_removed_with_its_owner_and_its_request() {
        let mut lines = Lines::default();
        let (stored, mut wait) = oneshot::channel();
        lines.push(&owner("alice"), b"1", None);
        lines.push(&owner("bob"), b"22", Some(stored));
        assert!(lines.is_mixed());
        let removed = lines.remove_last().unwrap();
        assert_eq!((&removed.owner, removed.load), (&owner("bob"), Load::of(1, 2)));
        drop(removed);
        assert_eq!(wait.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert_eq!(lines.load(), Load::of(1, 1));
        assert_eq!(lines.remove_last().map(|removed| removed.owner), Some(owner("alice")));
        assert!(lines.remove_last().is_none() && lines.is_empty() && !lines.is_mixed());
    }

    #[test]
    fn few_lines_of_one_owner_among_many_take_little_memory() {
        let mut lines = Lines::lean();
        lines.push(&owner("alice"), &[b'x'; 300], None);
        assert!(lines.chunks[0].text.capacity() < 1000);
        for _ in 0..2000 {
            lines.push(&owner("alice"), &[b'x'; 300], None);
        }
        assert_eq!(lines.chunks.len(), 3, "chunks grow to the usual size");
    }

    #[test]
    fn each_request_learns_of_its_own_line() {
        let mut lines = Lines::default();
        let mut waits = Vec::new();
        for (line, is_awaited) in [("a", true), ("b", false), ("c", true), ("d", false), ("e", true)] {
            let (stored, wait) = oneshot::channel();
            waits.push(wait);
            lines.push(&owner("alice"), line.as_bytes(), is_awaited.then_some(stored));
        }
        let (first, _) = lines.take(limits(2, usize::MAX));
        let (rest, _) = lines.take(limits(usize::MAX, usize::MAX));
        assert_eq!((first[0].awaited(), rest[0].awaited()), (1, 2));
        for (mut chunks, failing) in [(first, 0), (rest, 1)] {
            let chunk = &mut chunks[0];
            let mut reports = chunk.take_reports();
            (0..chunk.len()).for_each(|line| reports.report(line >= failing));
        }
        let heard: Vec<_> = waits.iter_mut().map(|wait| wait.try_recv().ok()).collect();
        assert_eq!(heard, [Some(true), None, Some(false), None, Some(true)]);
    }
}
