//! The commands of people and machines that need no gateway: logins, certificates, bootstrap tokens, recorded sessions. Nothing
//! printed may contain a credential or control characters from remote text.

#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]

pub mod certs;
mod cluster;
pub mod cluster_info;
pub mod help;
mod interrupt;
mod kube_client;
pub mod login;
pub mod man;
pub mod output;
pub mod sessions;
pub mod table;
pub mod terminal;
pub mod token;

use output::{BAD_CONFIGURATION, failed, print_error};
