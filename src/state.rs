//! The configuration in force and its replacement.

pub(crate) mod reload;
pub(crate) mod snapshot;
