//! Bootstrap tokens, which establish mutual trust between a joining node and a cluster.
//!
//! Decides the format of a token ([`token`]), the validity of its Secret ([`secret`]), the signatures
//! of the `ConfigMap` `cluster-info` ([`jws`], [`cluster_info`]), the pinned CA keys ([`pins`]) and the deletion of
//! expired tokens ([`token_cleaner`]). Follows `k8s.io/cluster-bootstrap`; pure functions without I/O. Must never put a
//! token secret into a log or an error.

pub(crate) mod cluster_info;
pub(crate) mod jws;
pub(crate) mod pins;
pub(crate) mod secret;
pub(crate) mod token;
pub(crate) mod token_cleaner;
