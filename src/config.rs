//! Configuration: wire types ([`flags`], the configuration file, kubeconfig), what they resolve to ([`settings`]), and
//! the step between ([`resolve`]), which reads every file and reports every error at once.

pub mod error;
mod file;
pub mod flags;
pub mod inputs;
mod kubeconfig;
pub mod resolve;
pub mod sections;
pub mod settings;
pub mod source;
mod yaml;

pub use error::{ConfigError, ConfigErrors};
