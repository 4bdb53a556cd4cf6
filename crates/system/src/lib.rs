//! What the process takes from its machine, with the rules that the gateway adds: an injected clock, input files that
//! cannot block or fill the memory, its memory limit, locks that survive a panic, text of strangers on a terminal, and what
//! differs between the systems of people's machines.

pub mod clock;
pub mod expiring_lru;
pub mod input_file;
pub mod memory;
pub mod platform;
pub mod sync;
pub mod text;
