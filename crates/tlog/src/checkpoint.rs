//! The head of a log: its name, its size and its root, signed as a note.
// c2sp.org/tlog-checkpoint

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::merkle::{Hash, empty_root};
use crate::note::{NoteError, NoteSigner, Verifier};

/// The head of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The name of the log.
    pub origin: String,
    /// The number of entries.
    pub size: u64,
    /// The root of the tree.
    pub root: Hash,
}

/// Why a checkpoint is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The note.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The text in the note has another form.
    #[error("is not a checkpoint: it needs lines with the log's name, its size and its root")]
    Malformed,
    /// It is that of another log.
    #[error("is a checkpoint of {found}, not of {expected}")]
    OtherLog {
        /// The name in the text.
        found: String,
        /// The name of the key.
        expected: String,
    },
}

impl Checkpoint {
    /// The head of a log without entries.
    pub fn empty(origin: &str) -> Self {
        Self { origin: origin.to_owned(), size: 0, root: empty_root() }
    }

    /// Opens a checkpoint that this key has signed.
    pub fn open(verifier: &Verifier, note: &[u8]) -> Result<Self, CheckpointError> {
        let checkpoint = Self::parse(verifier.open(note)?).ok_or(CheckpointError::Malformed)?;
        if checkpoint.origin != verifier.name() {
            let expected = verifier.name().to_owned();
            return Err(CheckpointError::OtherLog { found: checkpoint.origin, expected });
        }
        Ok(checkpoint)
    }

    fn parse(text: &str) -> Option<Self> {
        // Further lines are extensions.
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let origin = lines.next().filter(|origin| !origin.is_empty())?.to_owned();
        let size = lines.next()?;
        let is_decimal =
            size == "0" || (!size.starts_with('0') && size.bytes().all(|byte| byte.is_ascii_digit()));
        let size = size.parse().ok().filter(|_| is_decimal)?;
        let root = STANDARD.decode(lines.next()?).ok()?.try_into().ok()?;
        Some(Self { origin, size, root })
    }

    /// The signed note.
    pub fn signed(&self, signer: &NoteSigner) -> String {
        let Self { origin, size, root } = self;
        signer.sign(&format!("{origin}\n{size}\n{}\n", STANDARD.encode(root)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_read_as_it_was_signed() {
        let signer = NoteSigner::from_pem("log", NoteSigner::generate().unwrap().as_bytes()).unwrap();
        let checkpoint = Checkpoint { origin: "log".to_owned(), size: 20_852_163, root: [7; 32] };
        let note = checkpoint.signed(&signer);
        assert_eq!(Checkpoint::open(signer.verifier(), note.as_bytes()), Ok(checkpoint.clone()));
        let extended = signer.sign(&format!("log\n1\n{}\nextension\n", STANDARD.encode([0; 32])));
        assert_eq!(Checkpoint::open(signer.verifier(), extended.as_bytes()).unwrap().size, 1);
        let other = Checkpoint { origin: "other".to_owned(), ..checkpoint }.signed(&signer);
        let (found, expected) = ("other".to_owned(), "log".to_owned());
        assert_eq!(
            Checkpoint::open(signer.verifier(), other.as_bytes()),
            Err(CheckpointError::OtherLog { found, expected })
        );
    }

    #[test]
    fn another_text_is_refused() {
        let signer = NoteSigner::from_pem("log", NoteSigner::generate().unwrap().as_bytes()).unwrap();
        let root = STANDARD.encode([0; 32]);
        let cases = [
            "log\n".to_owned(),
            "log\n1\n".to_owned(),
            format!("\n1\n{root}\n"),
            format!("log\n01\n{root}\n"),
            format!("log\n+1\n{root}\n"),
            format!("log\n-1\n{root}\n"),
            format!("log\n99999999999999999999\n{root}\n"),
            "log\n1\nAAAA\n".to_owned(),
        ];
        for text in cases {
            let note = signer.sign(&text);
            assert_eq!(
                Checkpoint::open(signer.verifier(), note.as_bytes()),
                Err(CheckpointError::Malformed),
                "{text}"
            );
        }
    }
}
