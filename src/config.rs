//! Configuration: wire types ([`flags`], kubeconfig), what they resolve to ([`settings`]), and the step between
//! ([`resolve`]), which reads every file and reports every error at once.

pub mod error;
pub mod flags;
mod kubeconfig;
pub mod resolve;
pub mod settings;

pub use error::{ConfigError, ConfigErrors};

/// Reads a kubeconfig as [`resolve`] does.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn load_kubeconfig(
    file: &std::path::Path,
    identity: crate::forward::settings::IdentityMode,
    errors: &mut Vec<ConfigError>,
) -> Option<crate::forward::settings::Backend> {
    kubeconfig::load("--backend-kubeconfig", file, identity, errors)
}
