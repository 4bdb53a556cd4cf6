//! `portcullis dev`.
pub mod pki;
