use std::convert::Infallible;

use super::*;

/// The hashes of a tree in memory, by the definition of RFC 6962.
struct Leaves(Vec<Hash>);

impl Leaves {
    fn new(count: u64) -> Self {
        Self((0..count).map(|number| leaf_hash(&number.to_be_bytes())).collect())
    }

    /// RFC 6962, section 2.1: MTH(D[n]).
    fn defined_root(hashes: &[Hash]) -> Hash {
        match hashes {
            [] => empty_root(),
            [one] => *one,
            all => {
                let mut split = 1;
                while split * 2 < all.len() {
                    split *= 2;
                }
                node_hash(&Self::defined_root(&all[..split]), &Self::defined_root(&all[split..]))
            }
        }
    }
}

impl HashReader for Leaves {
    type Error = Infallible;

    fn hash(&self, level: u32, index: u64) -> Result<Hash, Infallible> {
        let from = usize::try_from(index << level).unwrap();
        Ok(Self::defined_root(&self.0[from..from + (1 << level)]))
    }
}

/// The sizes with all shapes of trees up to 70, and a few around the width of a tile.
fn sizes() -> impl Iterator<Item = u64> {
    (0..70).chain([127, 128, 129, 255, 256, 257, 300])
}

#[test]
fn the_root_is_that_of_the_definition() {
    let leaves = Leaves::new(300);
    for size in sizes() {
        let defined = Leaves::defined_root(&leaves.0[..usize::try_from(size).unwrap()]);
        assert_eq!(root(&leaves, size), Ok(defined), "{size}");
    }
}

#[test]
fn each_entry_is_proven_and_nothing_else() {
    let leaves = Leaves::new(300);
    for size in sizes() {
        let root = root(&leaves, size).unwrap();
        for index in 0..size {
            let proof = prove_inclusion(&leaves, index, size).unwrap();
            let leaf = &leaves.0[usize::try_from(index).unwrap()];
            assert!(is_included(&proof, index, leaf, size, &root), "{index} of {size}");
            let wrong = [
                is_included(&proof, index, &[0; 32], size, &root),
                is_included(&proof, index, leaf, size, &[0; 32]),
                is_included(&proof, size, leaf, size, &root),
                is_included(&[&proof[..], &[[0; 32]]].concat(), index, leaf, size, &root),
                !proof.is_empty() && is_included(&proof[1..], index, leaf, size, &root),
                index + 1 < size && is_included(&proof, index + 1, leaf, size, &root),
            ];
            assert_eq!(wrong, [false; 6], "{index} of {size}");
        }
        assert_eq!(prove_inclusion(&leaves, size, size), Ok(Vec::new()));
    }
}

#[test]
fn each_beginning_is_proven_and_nothing_else() {
    let leaves = Leaves::new(300);
    for new in sizes() {
        let new_root = root(&leaves, new).unwrap();
        for old in 0..=new {
            let old_root = root(&leaves, old).unwrap();
            let proof = prove_consistency(&leaves, old, new).unwrap();
            assert!(is_consistent(&proof, (old, &old_root), (new, &new_root)), "{old} in {new}");
            let wrong = [
                is_consistent(&proof, (old, &[0; 32]), (new, &new_root)),
                // The new root of an empty old tree is not proven by anything.
                old != 0 && is_consistent(&proof, (old, &old_root), (new, &[0; 32])),
                is_consistent(&[&proof[..], &[[0; 32]]].concat(), (old, &old_root), (new, &new_root)),
                !proof.is_empty() && is_consistent(&proof[1..], (old, &old_root), (new, &new_root)),
                new > old && is_consistent(&proof, (new, &new_root), (old, &old_root)),
            ];
            assert_eq!(wrong, [false; 5], "{old} in {new}");
        }
    }
}
