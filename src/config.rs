//! Configuration: wire types ([`flags`], the configuration file, kubeconfig), the validated [`settings`], and
//! [`resolve`], which turns the former into the latter.
//!
//! `resolve` reads every file and reports every error at once. A configuration with an error is never served in part,
//! and no error text shows a secret.

mod authentication_configuration;
mod controller_flags;
pub mod error;
mod file;
pub mod flags;
pub mod inputs;
pub(crate) mod kubeconfig;
pub mod resolve;
pub mod sections;
pub mod settings;
pub mod source;
mod validity;
mod yaml;

pub use error::{ConfigError, ConfigErrors};
