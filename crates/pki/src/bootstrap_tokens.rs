//! Bootstrap tokens, which establish mutual trust between a joining node and a cluster.
//!
//! Decides the format of a token ([`token`]), the validity of its Secret ([`secret`]), the signatures
//! of the `ConfigMap` `cluster-info` ([`jws`], [`cluster_info`]), the pinned CA keys ([`pins`]) and the deletion of
//! expired tokens ([`token_cleaner`]). Follows `k8s.io/cluster-bootstrap`; pure functions without I/O. Must never put a
//! token secret into a log or an error.

pub mod cluster_info;
pub mod jws;
pub mod pins;
pub mod secret;
pub mod token;
pub mod token_cleaner;
