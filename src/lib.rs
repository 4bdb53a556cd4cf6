//! Portcullis: an authenticating and admitting front proxy for Kubernetes-style API servers.

pub mod authn;
pub mod backend;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod controllers;
#[cfg(feature = "dev")]
pub mod dev;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod go;
pub mod http;
mod input_file;
mod listener;
mod metrics;
mod pipeline;
pub mod pki;
pub mod request;
pub mod server;
mod state;
mod sync;
mod tasks;
mod telemetry;
pub mod user;
