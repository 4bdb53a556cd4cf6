//! JSON as Go's `encoding/json` reads and writes it. Each part has a reader's or writer's own rule:
//!
//! | part | purpose |
//! |---|---|
//! | [`mod@write`] | writes values: escapes, floating-point numbers, compact form |
//! | [`raw`] | reads values without losing their bytes, with Go's error texts: admission reviews and their patches |
//! | [`values`] | reads untrusted values and objects through serde, none of whose member names has a meaning |
// go: encoding/json

pub mod raw;
pub mod values;
pub mod write;

pub use values::{DistinctObject, JsonObject, JsonValue, Object};
pub use write::{compact_into, encode, escaped_into, string_into};
