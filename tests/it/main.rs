//! The gateway in-process, small real servers around it.

mod chains;
#[path = "../support/pki.rs"]
mod pki;
mod support;

mod failures;
mod identity;
mod streaming;
