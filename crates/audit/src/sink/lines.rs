//! Encoded events, one behind the other in few allocations: each of them passes from a worker thread to the thread that
//! stores it, and a gateway makes one for each request.

use std::collections::VecDeque;
use std::ops::Range;

use tokio::sync::oneshot::Sender;

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
    bytes: usize,
}

/// Lines in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    text: Vec<u8>,
    /// Where each line ends in `text`.
    ends: Vec<usize>,
    /// How many of the lines were taken out.
    taken: usize,
    /// By the index in `ends`: takes whether the line was stored. Dropped without a value: it was not.
    stored: VecDeque<(usize, Sender<bool>)>,
}

/// The requests that wait for the lines of a chunk.
#[derive(Debug)]
pub(super) struct Reports {
    next: usize,
    stored: VecDeque<(usize, Sender<bool>)>,
}

impl Lines {
    /// The number of lines.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes of all lines.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a line. `stored` takes whether it was stored.
    pub(super) fn push(&mut self, line: &[u8], stored: Option<Sender<bool>>) {
        if !self.chunks.back().is_some_and(|chunk| chunk.has_room(line.len())) {
            let spare = if line.len() <= CHUNK_BYTES { self.spare.pop() } else { None };
            self.chunks.push_back(spare.unwrap_or_else(|| Chunk::for_line(line.len())));
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.push(line, stored);
            self.count += 1;
            self.bytes += line.len();
        }
    }

    /// Takes lines from the front: at least one, at most `max`, and not more than `max_bytes` unless the first is larger.
    /// Returns also whether the next line was left behind because of its bytes.
    pub(super) fn take(&mut self, max: usize, max_bytes: usize) -> (Vec<Chunk>, bool) {
        let mut taken = Vec::new();
        let (mut count, mut bytes) = (0, 0);
        while let Some(chunk) = self.chunks.front_mut() {
            let is_whole = count + chunk.len() <= max && bytes + chunk.text().len() <= max_bytes;
            let part = if is_whole {
                self.chunks.pop_front()
            } else {
                chunk.take(max - count, max_bytes.saturating_sub(bytes), count == 0)
            };
            let Some(part) = part else { break };
            count += part.len();
            bytes += part.text().len();
            taken.push(part);
            if !is_whole {
                break;
            }
        }
        self.chunks.pop_front_if(|chunk| chunk.len() == 0);
        self.count -= count;
        self.bytes -= bytes;
        let next = self.chunks.front().and_then(|chunk| chunk.lines().next());
        (taken, next.is_some_and(|next| bytes + next.len() > max_bytes))
    }

    /// Keeps the memory of chunks whose lines are stored.
    pub(super) fn recycle(&mut self, chunks: impl IntoIterator<Item = Chunk>) {
        let room = MAX_SPARE_CHUNKS - self.spare.len();
        let usual = chunks.into_iter().filter(|chunk| chunk.text.capacity() == CHUNK_BYTES).take(room);
        self.spare.extend(usual.map(Chunk::emptied));
    }
}

impl Chunk {
    fn for_line(length: usize) -> Self {
        Self { text: Vec::with_capacity(length.max(CHUNK_BYTES)), ..Self::default() }
    }

    fn has_room(&self, length: usize) -> bool {
        self.text.capacity() - self.text.len() >= length
    }

    fn push(&mut self, line: &[u8], stored: Option<Sender<bool>>) {
        self.stored.extend(stored.map(|stored| (self.ends.len(), stored)));
        self.text.extend_from_slice(line);
        self.ends.push(self.text.len());
    }

    /// The number of lines.
    pub(super) fn len(&self) -> usize {
        self.ends.len() - self.taken
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

    /// Moves the first lines into a chunk of their own; `None` if not one fits. With `one_at_least`, the first one fits.
    fn take(&mut self, max: usize, max_bytes: usize, one_at_least: bool) -> Option<Self> {
        let start = self.start(0);
        let fitting =
            self.ends.iter().skip(self.taken).take(max).take_while(|end| **end - start <= max_bytes);
        let count = fitting.count().max(usize::from(one_at_least));
        if count == 0 {
            return None;
        }
        let text = self.slice(&(0..count)).to_vec();
        let ends = self.ends.iter().skip(self.taken).take(count).map(|end| end - start).collect();
        let (before, after) = (self.taken, self.taken + count);
        let mut stored = VecDeque::new();
        while let Some((line, sender)) = self.stored.pop_front_if(|(line, _)| *line < after) {
            stored.push_back((line - before, sender));
        }
        self.taken = after;
        Some(Self { text, ends, taken: 0, stored })
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

    use super::*;

    fn texts(chunks: &[Chunk]) -> Vec<&str> {
        chunks.iter().flat_map(Chunk::lines).map(|line| str::from_utf8(line).unwrap()).collect()
    }

    fn lines(all: &[&str]) -> Lines {
        let mut lines = Lines::default();
        for line in all {
            lines.push(line.as_bytes(), None);
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
            let (first, pressed) = lines.take(max, max_bytes);
            assert_eq!((texts(&first).as_slice(), pressed), (expected, is_pressed), "{max}, {max_bytes}");
            assert_eq!(lines.len(), all.len() - expected.len());
            let (rest, _) = lines.take(usize::MAX, usize::MAX);
            assert_eq!(texts(&rest), all[expected.len()..], "{max}, {max_bytes}");
            assert_eq!((lines.len(), lines.bytes(), lines.is_empty()), (0, 0, true));
        }
    }

    #[test]
    fn a_chunk_is_left_when_it_is_full_and_used_again() {
        let mut lines = Lines::default();
        let half = vec![b'x'; CHUNK_BYTES / 2];
        let large = vec![b'y'; CHUNK_BYTES + 1];
        for line in [&half, &half, &half, &large, &half] {
            lines.push(line, None);
        }
        let (chunks, _) = lines.take(usize::MAX, usize::MAX);
        assert_eq!(chunks.iter().map(Chunk::len).collect::<Vec<_>>(), [2, 1, 1, 1]);
        let memory = chunks[0].text.as_ptr();
        lines.recycle(chunks);
        assert_eq!(lines.spare.len(), 3, "all but the large one");
        lines.spare.truncate(1);
        lines.push(b"z", None);
        let (chunks, _) = lines.take(usize::MAX, usize::MAX);
        assert_eq!((chunks[0].text.as_ptr(), texts(&chunks)), (memory, vec!["z"]));
        for _ in 0..9 {
            lines.recycle([Chunk::for_line(0)]);
        }
        assert_eq!(lines.spare.len(), MAX_SPARE_CHUNKS);
    }

    #[test]
    fn each_request_learns_of_its_own_line() {
        let mut lines = Lines::default();
        let mut waits = Vec::new();
        for (line, is_awaited) in [("a", true), ("b", false), ("c", true), ("d", false), ("e", true)] {
            let (stored, wait) = oneshot::channel();
            waits.push(wait);
            lines.push(line.as_bytes(), is_awaited.then_some(stored));
        }
        let (first, _) = lines.take(2, usize::MAX);
        let (rest, _) = lines.take(usize::MAX, usize::MAX);
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
