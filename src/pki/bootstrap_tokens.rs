//! Bootstrap tokens and what they sign: how a node that knows a token comes to trust a cluster, and the cluster it.
//!
//! Follows `k8s.io/cluster-bootstrap`. Everything here is a function of what it is given: [`token`] is the token itself,
//! [`secret`] the Secret it lives in, [`jws`] what it signs with, [`cluster_info`] what is signed, and
//! [`token_cleaner`] when its Secret goes. No token is ever in a log or an error.

pub mod cluster_info;
pub mod jws;
pub mod pins;
pub mod secret;
pub mod token;
pub mod token_cleaner;
