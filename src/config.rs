//! Configuration: wire types ([`flags`], the configuration file, kubeconfig), the validated [`settings`], and
//! [`resolve`], which turns the former into the latter.
//!
//! `resolve` reads every file and reports every error at once. A configuration with an error is never served in part,
//! and no error text shows a secret.

mod admission_configuration;
mod admission_flags;
mod apiserver_config;
mod audit_flags;
mod authentication_configuration;
pub(crate) mod authorization_configuration;
mod authorization_flags;
pub(crate) mod cluster_authorities;
mod controller_flags;
pub(crate) mod error;
mod file;
pub(crate) mod flags;
pub(crate) mod inputs;
pub(crate) mod kubeconfig;
mod limit_flags;
pub(crate) mod management_cluster;
mod manifest_files;
mod page_flags;
pub(crate) mod page_settings;
pub(crate) mod resolve;
pub(crate) mod sections;
pub(crate) mod separate_cluster;
mod session_flags;
pub(crate) mod settings;
pub(crate) mod source;
mod validity;

pub(crate) use error::{ConfigError, ConfigErrors};
