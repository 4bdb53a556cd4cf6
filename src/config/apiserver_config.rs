//! The files of kube-apiserver's API group `apiserver.config.k8s.io`: how each kind is decoded, and the errors of its
//! fields.

pub(super) mod decode;

pub(super) use portcullis_apimachinery::field;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The API group.
const GROUP: &str = "apiserver.config.k8s.io";

/// A kind of the group. Its versions have the same fields. Serializing writes every field, so that
/// [`decode`] finds the unknown ones.
pub(super) trait ConfigKind: Default + Serialize + DeserializeOwned {
    /// The value of `kind`.
    const KIND: &'static str;
    /// The versions that kube-apiserver accepts.
    const VERSIONS: &'static [&'static str];
    /// Whether an empty file is the default configuration, not an error.
    const EMPTY_IS_DEFAULT: bool;
}
