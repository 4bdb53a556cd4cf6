//! The gateway in-process, small real servers around it.

#![allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::many_single_char_names,
    clippy::explicit_auto_deref,
    reason = "tests"
)]

mod account_tokens;
mod authority;
mod bad_input;
#[cfg(feature = "dev")]
mod bootstrap;
mod bound_tokens;
mod cel;
mod certs;
mod chains;
mod cli;
mod clusters;
mod configuration;
mod configured_files;
mod connections;
mod controllers;
mod credentials;
#[cfg(feature = "dev")]
mod dev_backend;
mod drain;
mod early_answers;
mod endpoints;
mod explain;
mod failures;
mod flood;
mod gateway;
mod hardening;
mod health;
mod id_tokens;
mod identity;
mod layers;
mod limits;
mod log_lines;
mod parsers;
mod prefixes;
mod random_tokens;
mod reference;
mod reload;
mod service_accounts;
mod stalled;
mod streaming;
mod threat_model;
mod token_review;
mod tunnels;
mod webhook;
