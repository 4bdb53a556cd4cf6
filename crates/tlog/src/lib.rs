//! An append-only log of issued certificates: a Merkle tree (RFC 6962) whose hashes and entries are files, and signed
//! checkpoints of it. A reader with an older checkpoint finds out whether an entry was removed or changed since.
//!
//! Follows C2SP's tlog-tiles, tlog-checkpoint, tlog-proof and signed-note. The few rules of the tree are here, and compared
//! with Go's `golang.org/x/mod/sumdb/{tlog,note}`: the crates that have them bring a second implementation of signatures
//! and hashes, and end the process on unexpected input.
//!
//! | module | what it has |
//! |---|---|
//! | `certificate_log` | what signers use: appends, many at once, from several threads and processes |
//! | `directory` | the files of a log, and the order in which they are written |
//! | `verify` | reads a whole log, and compares it with its checkpoint |
//! | `entry` | a certificate as an entry |
//! | `proof` | proofs as text |
//! | `checkpoint`, `note` | the signed head of the log |
//! | `tile`, `merkle` | the tree |

pub mod certificate_log;
pub mod checkpoint;
pub mod directory;
pub mod entry;
mod error;
pub mod merkle;
pub mod note;
pub mod proof;
pub mod tile;
pub mod verify;

pub use certificate_log::CertificateLog;
pub use directory::LogDirectory;
pub use error::LogError;
