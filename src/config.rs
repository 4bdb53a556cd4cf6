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

/// Reads the current context of a kubeconfig, as [`resolve`] does.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn load_kubeconfig(
    file: &std::path::Path,
    identity: crate::user::IdentityMode,
    errors: &mut Vec<ConfigError>,
) -> Option<crate::backend::settings::Backend> {
    kubeconfig::load(
        "--backend-kubeconfig",
        file,
        None,
        &[],
        identity,
        &mut inputs::ConfigInputs::default(),
        errors,
    )
}
