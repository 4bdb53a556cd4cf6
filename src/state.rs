//! The configuration in force ([`snapshot`]), how it is replaced ([`reload`]), and the handle by which every thread
//! reaches both ([`Live`]).
//!
//! A snapshot is built whole and never changed. A reload that fails leaves the old one in force.

pub(crate) mod live;
pub(crate) mod reload;
pub(crate) mod snapshot;

pub(crate) use live::Live;
pub(crate) use snapshot::Snapshot;
