//! Tiles: files with up to 256 hashes, or entries, of the tree.
//!
//! The tile `index` of a level has the hashes of the subtrees with `256^level` entries from `256 * index` on. A tile with
//! fewer than 256 is partial: its width is in its path, and a wider one replaces it.

use crate::merkle::{Hash, HashReader, node_hash};

/// The number of hashes or entries in a full tile.
pub const WIDTH: u64 = 256;
/// The levels of the tree in a tile.
const HEIGHT: u32 = 8;

/// What a tile has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileKind {
    /// The hashes of a level.
    Hashes(u32),
    /// The entries.
    Entries,
}

/// A tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// What it has.
    pub kind: TileKind,
    /// Its place in its level.
    pub index: u64,
    /// From 1 to 256.
    pub width: u64,
}

impl Tile {
    /// The tile with the hash or entry at a position of its level, in a tree of `size` entries.
    pub fn containing(kind: TileKind, position: u64, size: u64) -> Self {
        let in_level = match kind {
            TileKind::Hashes(level) => complete(size, level),
            TileKind::Entries => size,
        };
        let index = position / WIDTH;
        Self { kind, index, width: in_level.saturating_sub(index * WIDTH).min(WIDTH) }
    }

    /// The path in the log's directory.
    // c2sp.org/tlog-tiles, section Merkle Tree
    pub fn path(&self) -> String {
        let kind = match self.kind {
            TileKind::Hashes(level) => level.to_string(),
            TileKind::Entries => "entries".to_owned(),
        };
        let mut number = format!("{:03}", self.index % 1000);
        let mut rest = self.index / 1000;
        while rest > 0 {
            number = format!("x{:03}/{number}", rest % 1000);
            rest /= 1000;
        }
        let width = if self.width == WIDTH { String::new() } else { format!(".p/{}", self.width) };
        format!("tile/{kind}/{number}{width}")
    }
}

/// The number of hashes in a level of tiles: complete subtrees with `256^level` entries.
pub fn complete(size: u64, level: u32) -> u64 {
    size.checked_shr(level * HEIGHT).unwrap_or(0)
}

/// The hash of all hashes of a part of a tile, whose number is a power of two.
pub fn fold(hashes: &[Hash]) -> Option<Hash> {
    let mut row = hashes.to_vec();
    while row.len() > 1 {
        row = row
            .chunks(2)
            .map(|pair| match pair {
                [left, right] => node_hash(left, right),
                rest => rest.first().copied().unwrap_or_default(),
            })
            .collect();
    }
    row.first().copied()
}

/// The hashes in a tile's file; `None` if its length is not that of the width.
pub fn hashes(content: &[u8], width: u64) -> Option<Vec<Hash>> {
    let (hashes, rest) = content.as_chunks::<32>();
    let is_whole = rest.is_empty() && u64::try_from(hashes.len()).is_ok_and(|count| count == width);
    is_whole.then(|| hashes.to_vec())
}

/// The entries in a tile's file; `None` if it is not made of as many as its width says.
// c2sp.org/tlog-tiles, section Log Entries: each is preceded by its length, big-endian uint16
pub fn entries(mut content: &[u8], width: u64) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    while let Some((length, rest)) = content.split_first_chunk::<2>() {
        // 16 MiB may have eight million empty ones.
        if u64::try_from(found.len()).is_ok_and(|count| count >= width) {
            return None;
        }
        let (entry, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        found.push(entry.to_vec());
        content = rest;
    }
    let is_whole = content.is_empty() && u64::try_from(found.len()).is_ok_and(|count| count == width);
    is_whole.then_some(found)
}

/// Appends an entry to the content of a tile; `false` if it is too large.
#[must_use]
pub fn push_entry(content: &mut Vec<u8>, entry: &[u8]) -> bool {
    let Ok(length) = u16::try_from(entry.len()) else { return false };
    content.extend_from_slice(&length.to_be_bytes());
    content.extend_from_slice(entry);
    true
}

/// Reads the hashes of a tree of a certain size from its tiles.
#[derive(Debug)]
pub struct TileHashes<F> {
    size: u64,
    read: F,
}

impl<F> TileHashes<F> {
    /// `read` returns the hashes of a tile.
    pub fn new(size: u64, read: F) -> Self {
        Self { size, read }
    }
}

impl<E, F: Fn(Tile) -> Result<Vec<Hash>, E>> HashReader for TileHashes<F> {
    type Error = E;

    fn hash(&self, level: u32, index: u64) -> Result<Hash, E> {
        let (tile_level, height) = (level / HEIGHT, level % HEIGHT);
        let first = index << height;
        let tile = Tile::containing(TileKind::Hashes(tile_level), first, self.size);
        let hashes = (self.read)(tile)?;
        // A tile has as many hashes as its width, so the range is always in it.
        let from = usize::try_from(first % WIDTH).unwrap_or_default();
        let part = hashes.get(from..).unwrap_or_default();
        let part = part.get(..1_usize << height).unwrap_or(part);
        Ok(fold(part).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_specification() {
        let hashes = |level, index, width| Tile { kind: TileKind::Hashes(level), index, width }.path();
        let cases = [
            (hashes(0, 0, 256), "tile/0/000"),
            (hashes(3, 1_234_067, 256), "tile/3/x001/x234/067"),
            (hashes(1, 1_000_000, 256), "tile/1/x001/x000/000"),
            (hashes(0, 273, 112), "tile/0/273.p/112"),
            (hashes(2, 1_000, 1), "tile/2/x001/000.p/1"),
            (Tile { kind: TileKind::Entries, index: 999, width: 256 }.path(), "tile/entries/999"),
            (
                Tile { kind: TileKind::Entries, index: 1_000, width: 255 }.path(),
                "tile/entries/x001/000.p/255",
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_tiles_of_a_tree_have_the_widths_of_the_specification() {
        // c2sp.org/tlog-tiles has the example of a tree of 70,000 entries.
        let at = |kind, position| Tile::containing(kind, position, 70_000).path();
        assert_eq!(at(TileKind::Hashes(0), 0), "tile/0/000");
        assert_eq!(at(TileKind::Hashes(0), 69_999), "tile/0/273.p/112");
        assert_eq!(at(TileKind::Hashes(1), 272), "tile/1/001.p/17");
        assert_eq!(at(TileKind::Hashes(2), 0), "tile/2/000.p/1");
        assert_eq!(at(TileKind::Entries, 69_999), "tile/entries/273.p/112");
    }

    #[test]
    fn a_tile_of_another_length_is_refused() {
        assert_eq!(hashes(&[0; 64], 2).unwrap().len(), 2);
        for (length, width) in [(64, 1), (64, 3), (63, 2), (65, 2), (0, 1)] {
            assert_eq!(hashes(&vec![0; length], width), None, "{length} {width}");
        }
        let mut content = Vec::new();
        assert!(push_entry(&mut content, b"one") && push_entry(&mut content, b""));
        assert!(!push_entry(&mut content, &vec![0; 65_536]));
        assert_eq!(entries(&content, 2).unwrap(), [b"one".to_vec(), Vec::new()]);
        for (content, width) in [(&content[..], 1), (&content[..], 3), (&content[..4], 1), (&content[..6], 2)]
        {
            assert_eq!(entries(content, width), None, "{content:?}");
        }
    }
}
