//! The gateway in-process, small real servers around it.

#[path = "../support/pki.rs"]
mod pki;
mod support;

mod failures;
mod identity;
mod streaming;
