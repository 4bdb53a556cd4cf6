//! What happens inside exec, attach and port-forward: decoders of a copy of their streams ([`decoder`]), the form of a
//! recording ([`recording`]), the parts that it is stored in and their hash chain ([`storage`]), the rules that say which
//! sessions are recorded ([`policy`]), and the text of a recording for the terminal of a reader ([`playback`]).
//!
//! This crate knows nothing of the gateway and does no I/O but in [`storage::RecordingDirectory`]. It reads bytes from
//! clients: no input makes it panic or hold more than a stated bound.

pub mod decoder;
pub mod playback;
pub mod policy;
pub mod recording;
pub mod storage;
