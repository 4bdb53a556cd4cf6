//! Proofs that an entry is in a log, as text: they are checked without the log.
// c2sp.org/tlog-proof

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::merkle::{Hash, is_included, leaf_hash};
use crate::note::Verifier;

const HEADER: &str = "c2sp.org/tlog-proof@v1";

/// A proof that an entry is in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InclusionProof {
    /// The place of the entry.
    pub index: u64,
    /// The hashes beside the path to the root.
    pub hashes: Vec<Hash>,
    /// The signed checkpoint.
    pub checkpoint: String,
}

/// Why a proof does not prove.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The text has another form.
    #[error("is not a proof ({HEADER})")]
    Malformed,
    /// The checkpoint in it.
    #[error("the checkpoint in it {0}")]
    Checkpoint(#[from] CheckpointError),
    /// It is a proof of another entry.
    #[error("does not prove that the entry is in the log")]
    NotIncluded,
}

impl InclusionProof {
    /// The proof as text. `entry` is what it proves; readers compute its hash.
    pub fn text(&self, entry: &[u8]) -> String {
        let Self { index, hashes, checkpoint } = self;
        let hashes: String = hashes.iter().map(|hash| STANDARD.encode(hash) + "\n").collect();
        format!("{HEADER}\nextra {}\nindex {index}\n{hashes}\n{checkpoint}", STANDARD.encode(entry))
    }

    /// Reads a proof, and the entry in it.
    pub fn parse(text: &str) -> Result<(Self, Vec<u8>), ProofError> {
        let parsed = || {
            let rest = text.strip_prefix(HEADER)?.strip_prefix("\nextra ")?;
            let (entry, rest) = rest.split_once("\nindex ")?;
            let (proof, checkpoint) = rest.split_once("\n\n")?;
            let mut lines = proof.split('\n');
            let index = lines.next()?.parse().ok()?;
            let hashes: Option<Vec<Hash>> =
                lines.map(|line| STANDARD.decode(line).ok()?.try_into().ok()).collect();
            let proof = Self { index, hashes: hashes?, checkpoint: checkpoint.to_owned() };
            Some((proof, STANDARD.decode(entry).ok()?))
        };
        parsed().ok_or(ProofError::Malformed)
    }

    /// The checkpoint, if the proof proves that the entry is in the log of this key.
    pub fn check(&self, verifier: &Verifier, entry: &[u8]) -> Result<Checkpoint, ProofError> {
        let checkpoint = Checkpoint::open(verifier, self.checkpoint.as_bytes())?;
        let leaf = leaf_hash(entry);
        if is_included(&self.hashes, self.index, &leaf, checkpoint.size, &checkpoint.root) {
            Ok(checkpoint)
        } else {
            Err(ProofError::NotIncluded)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::NoteSigner;

    #[test]
    fn a_proof_is_read_as_it_was_written_and_proves_its_entry_alone() {
        let signer = NoteSigner::from_pem("log", NoteSigner::generate().unwrap().as_bytes()).unwrap();
        let (one, two) = (leaf_hash(b"one"), leaf_hash(b"two"));
        let root = crate::merkle::node_hash(&one, &two);
        let checkpoint = Checkpoint { origin: "log".to_owned(), size: 2, root };
        let proof = InclusionProof { index: 1, hashes: vec![one], checkpoint: checkpoint.signed(&signer) };
        let (read, entry) = InclusionProof::parse(&proof.text(b"two")).unwrap();
        assert_eq!((&read, entry.as_slice()), (&proof, &b"two"[..]));
        assert_eq!(read.check(signer.verifier(), b"two"), Ok(checkpoint));
        assert_eq!(read.check(signer.verifier(), b"one"), Err(ProofError::NotIncluded));
        let text = proof.text(b"two");
        for bad in ["", HEADER, &text.replace("index 1", "index x"), &text.replace("@v1", "@v2")] {
            assert_eq!(InclusionProof::parse(bad), Err(ProofError::Malformed), "{bad}");
        }
    }
}
