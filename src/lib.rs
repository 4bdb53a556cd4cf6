//! Portcullis: an authenticating and admitting front proxy for Kubernetes-style API servers.

pub mod authn;
pub mod bootstrap;
pub mod cel;
pub mod certificates;
pub mod cli;
pub mod clock;
pub mod clusters;
pub mod config;
pub mod controllers;
#[cfg(feature = "dev")]
pub mod dev;
pub mod escape;
mod forward;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod health;
mod input_file;
mod listen;
mod lookups;
mod methods;
mod metrics;
pub mod outbound;
mod pipeline;
pub mod query;
mod reload;
pub mod request;
mod self_check;
pub mod server;
mod snapshot;
mod stage;
pub mod status;
mod telemetry;
mod token_review;
mod transport;
pub mod user;
pub mod x509;
