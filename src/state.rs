//! What is in force: the [`snapshot`], how it is replaced ([`reload`]), and the handle by which every thread reaches both
//! ([`Live`]). `config` reads what the configuration says; which of it takes effect is decided here, against the snapshot:
//! [`cluster_claims`] for names and routes that several clusters want, [`cluster_outcome`] for clusters whose settings are
//! refused or cannot be built.
//!
//! A snapshot is built whole and never changed. A reload that fails leaves the old one in force.

mod cluster_claims;
pub(crate) mod cluster_outcome;
pub(crate) mod effective_config;
pub(crate) mod live;
pub(crate) mod reload;
pub(crate) mod snapshot;

pub(crate) use live::{Live, ReloadProgress};
pub(crate) use snapshot::Snapshot;
