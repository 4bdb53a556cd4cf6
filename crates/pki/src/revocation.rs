//! What names a revoked credential: the certificates of a verified path, and the entries of a deny list.

pub mod deny_list;
pub mod path;
