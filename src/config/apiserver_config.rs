//! The files of kube-apiserver's API group `apiserver.config.k8s.io`: how each kind is decoded, and the errors of its
//! fields.

pub(super) mod decode;
pub(super) mod field;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The API group.
const GROUP: &str = "apiserver.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];

/// A kind of the group. Its three versions have the same fields. Serializing writes every field, so that
/// [`decode`] finds the unknown ones.
pub(super) trait ConfigKind: Default + Serialize + DeserializeOwned {
    /// The value of `kind`.
    const KIND: &'static str;
    /// Whether an empty file is the default configuration, not an error.
    const EMPTY_IS_DEFAULT: bool;
}
