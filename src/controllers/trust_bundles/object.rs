//! The `ClusterTrustBundle` object, of `certificates.k8s.io/v1` and `v1beta1` alike: both versions have the same fields.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The API group.
pub(super) const GROUP: &str = "certificates.k8s.io";
/// The plural of the resource.
pub(super) const PLURAL: &str = "clustertrustbundles";
/// The label of objects that the gateway manages, and its value.
pub(super) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "portcullis");
/// The annotation with the lease of the gateways that publish the object.
pub(super) const PUBLISHER: &str = "portcullis.dev/publisher";
/// The annotation with the trust anchors of the object, and until when each is needed.
pub(super) const ANCHORS: &str = "portcullis.dev/trust-anchors";
/// The maximum size of `spec.trustBundle`.
// kubernetes: pkg/apis/certificates/types.go, MaxTrustBundleSize
pub(super) const MAX_TRUST_BUNDLE: usize = 1024 * 1024;

/// The last part of the name of the gateway's bundles.
const NAME: &str = "portcullis";

/// A bundle of trust anchors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TrustBundle {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: TrustBundleSpec,
}

/// The content of a bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TrustBundleSpec {
    /// Empty for bundles of no signer.
    #[serde(default)]
    pub(super) signer_name: String,
    /// The certificates in PEM.
    #[serde(default)]
    pub(super) trust_bundle: String,
}

/// The name of the gateway's bundle of a signer: `example.com/service` is `example.com:service:portcullis`.
// kubernetes: pkg/apis/core/validation/names.go, ValidateClusterTrustBundleName
pub(super) fn bundle_name(signer: &str) -> String {
    format!("{}:{NAME}", signer.replace('/', ":"))
}

impl TrustBundle {
    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        Some(self.metadata.annotations.as_ref()?.get(key)?.as_str())
    }

    /// Whether the label says that a gateway manages the object.
    pub(super) fn is_managed(&self) -> bool {
        let (key, value) = MANAGED_BY;
        self.metadata.labels.iter().flatten().any(|(label, text)| label == key && text == value)
    }

    /// Sets a label or an annotation.
    pub(super) fn set(map: &mut Option<BTreeMap<String, String>>, key: &str, value: &str) {
        map.get_or_insert_default().insert(key.to_owned(), value.to_owned());
    }

    /// The body of a write.
    pub(super) fn body(&self, api_version: &str) -> Value {
        json!({
            "apiVersion": api_version, "kind": "ClusterTrustBundle",
            "metadata": self.metadata, "spec": self.spec,
        })
    }
}

impl Resource for TrustBundle {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ClusterTrustBundle".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
