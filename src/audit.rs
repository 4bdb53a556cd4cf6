//! Audit in the gateway: the connections of its webhooks. `crates/audit` decides what is audited, and stores the events.

mod sinks;
