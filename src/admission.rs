//! Admission webhooks that the gateway calls for a cluster. `crates/admission` decides which webhooks see a request and
//! what follows from their responses; here is what they need of the gateway.

pub(crate) mod settings;
