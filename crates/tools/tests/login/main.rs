//! `portcullis-login` as people and machines run it, with a provider and clusters in this process.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test program: a panic is a failed test")]

mod kubeconfigs;
mod machine;
mod proxies;
