//! The Merkle tree of RFC 6962: hashes, proofs and their verification (RFC 9162, sections 2.1.3 and 2.1.4).

use aws_lc_rs::digest::{Context, SHA256};

/// A SHA-256 hash of the tree.
pub type Hash = [u8; 32];

/// The hash of an entry.
pub fn leaf_hash(entry: &[u8]) -> Hash {
    let mut context = Context::new(&SHA256);
    context.update(&[0]);
    context.update(entry);
    finish(context)
}

/// The hash of a node above two others.
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    let mut context = Context::new(&SHA256);
    context.update(&[1]);
    context.update(left);
    context.update(right);
    finish(context)
}

/// The hash of a tree without entries.
pub fn empty_root() -> Hash {
    finish(Context::new(&SHA256))
}

fn finish(context: Context) -> Hash {
    // SHA-256 has 32 octets.
    context.finish().as_ref().try_into().unwrap_or_default()
}

/// The hashes of complete subtrees.
pub trait HashReader {
    /// Why a hash cannot be read.
    type Error;

    /// The hash of the subtree with `2^level` entries that begins at the entry `index * 2^level`.
    fn hash(&self, level: u32, index: u64) -> Result<Hash, Self::Error>;
}

/// The root of the tree with the first `size` entries.
pub fn root<R: HashReader>(reader: &R, size: u64) -> Result<Hash, R::Error> {
    if size == 0 { Ok(empty_root()) } else { subtree(reader, 0, size) }
}

/// The hash of the entries from `low` to before `high`: at least one, and `low` is a multiple of the split of each part.
fn subtree<R: HashReader>(reader: &R, low: u64, high: u64) -> Result<Hash, R::Error> {
    let size = high.saturating_sub(low);
    if size <= 1 || size.is_power_of_two() {
        let level = size.max(1).trailing_zeros();
        return reader.hash(level, low >> level);
    }
    let split = low.saturating_add(split(size));
    Ok(node_hash(&subtree(reader, low, split)?, &subtree(reader, split, high)?))
}

/// The largest power of two below `size`, which is at least 2.
fn split(size: u64) -> u64 {
    1 << size.saturating_sub(1).max(1).ilog2()
}

/// The proof that the entry `index` is in the tree of `size` entries; empty if it is not.
// RFC 6962, section 2.1.1
pub fn prove_inclusion<R: HashReader>(reader: &R, index: u64, size: u64) -> Result<Vec<Hash>, R::Error> {
    let (mut low, mut high) = (0, size);
    let mut proof = Vec::new();
    if index >= size {
        return Ok(proof);
    }
    while high - low > 1 {
        let middle = low + split(high - low);
        if index < middle {
            proof.push(subtree(reader, middle, high)?);
            high = middle;
        } else {
            proof.push(subtree(reader, low, middle)?);
            low = middle;
        }
    }
    proof.reverse();
    Ok(proof)
}

/// The proof that the tree of `old` entries is the beginning of that of `new` entries; empty if there is nothing to prove.
// RFC 6962, section 2.1.2
pub fn prove_consistency<R: HashReader>(reader: &R, old: u64, new: u64) -> Result<Vec<Hash>, R::Error> {
    let mut proof = Vec::new();
    if old == 0 || old >= new {
        return Ok(proof);
    }
    let (mut low, mut high) = (0, new);
    // Whether the verifier knows the root of the part: that of the old tree.
    let mut is_known = true;
    while high != old {
        let middle = low + split(high - low);
        if old <= middle {
            proof.push(subtree(reader, middle, high)?);
            high = middle;
        } else {
            proof.push(subtree(reader, low, middle)?);
            (low, is_known) = (middle, false);
        }
    }
    if !is_known {
        proof.push(subtree(reader, low, high)?);
    }
    proof.reverse();
    Ok(proof)
}

/// Whether a proof shows that the entry with this hash is in the tree.
// RFC 9162, section 2.1.3.2
pub fn is_included(proof: &[Hash], index: u64, leaf: &Hash, size: u64, root: &Hash) -> bool {
    if index >= size {
        return false;
    }
    let (mut node, mut last) = (index, size - 1);
    let mut hash = *leaf;
    for sibling in proof {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            hash = node_hash(sibling, &hash);
            while node & 1 == 0 && node != 0 {
                (node, last) = (node >> 1, last >> 1);
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        (node, last) = (node >> 1, last >> 1);
    }
    last == 0 && hash == *root
}

/// Whether a proof shows that the old tree is the beginning of the new one.
// RFC 9162, section 2.1.4.2
pub fn is_consistent(proof: &[Hash], old: (u64, &Hash), new: (u64, &Hash)) -> bool {
    let ((old_size, old_root), (new_size, new_root)) = (old, new);
    if old_size > new_size {
        return false;
    }
    if old_size == new_size {
        return proof.is_empty() && old_root == new_root;
    }
    if old_size == 0 {
        return proof.is_empty() && *old_root == empty_root();
    }
    let mut hashes = proof.iter();
    let first = if old_size.is_power_of_two() { Some(old_root) } else { hashes.next() };
    let Some(first) = first else { return false };
    let (mut node, mut last) = (old_size - 1, new_size - 1);
    while node & 1 == 1 {
        (node, last) = (node >> 1, last >> 1);
    }
    let (mut old_hash, mut new_hash) = (*first, *first);
    for sibling in hashes {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            old_hash = node_hash(sibling, &old_hash);
            new_hash = node_hash(sibling, &new_hash);
            while node & 1 == 0 && node != 0 {
                (node, last) = (node >> 1, last >> 1);
            }
        } else {
            new_hash = node_hash(&new_hash, sibling);
        }
        (node, last) = (node >> 1, last >> 1);
    }
    last == 0 && old_hash == *old_root && new_hash == *new_root
}

#[cfg(test)]
mod tests;
