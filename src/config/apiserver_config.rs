//! The files of kube-apiserver's API group `apiserver.config.k8s.io`: how each kind is decoded, and the errors of its
//! fields.

pub(super) mod decode;

pub(super) use portcullis_kubernetes::field;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The API group.
const GROUP: &str = "apiserver.config.k8s.io";
/// All of its versions.
pub(super) const ALL_VERSIONS: &[&str] =
    &["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];

/// A kind of the group. Its versions have the same fields. Serializing writes every field, so that
/// [`decode`] finds the unknown ones.
pub(super) trait ConfigKind: Default + Serialize + DeserializeOwned {
    /// The value of `kind`.
    const KIND: &'static str;
    /// The values of `apiVersion` that kube-apiserver accepts.
    const API_VERSIONS: &'static [&'static str];
    /// Whether an empty file is the default configuration, not an error.
    const EMPTY_IS_DEFAULT: bool;

    /// Adapts the known fields to those of the given document.
    fn prune(_given: &Value, _known: &mut Value) {}
}
