//! Configuration: wire types ([`flags`], kubeconfig), what they resolve to ([`settings`]), and the step between
//! ([`resolve`]), which reads every file and reports every error at once.

pub mod error;
pub mod flags;
pub mod inputs;
mod kubeconfig;
pub mod resolve;
pub mod settings;
pub mod source;

pub use error::{ConfigError, ConfigErrors};
