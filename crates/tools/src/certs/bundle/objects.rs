//! The `ClusterTrustBundle`s of a cluster, in the best version that it serves.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::certificates::{v1, v1beta1};
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::super::super::cluster::{ClusterClient, ClusterFlags};
use super::super::error::CommandError;
use crate::output::runtime;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "clustertrustbundles";
/// The gateway's record of its trust anchors.
const ANCHORS: &str = "portcullis.dev/trust-anchors";

/// A bundle, of either version.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PublishedBundle(v1::ClusterTrustBundle);

/// What the gateway records of an anchor; only of former ones it has a time.
#[derive(Debug, Deserialize)]
struct AnchorRecord {
    until: Option<String>,
}

impl PublishedBundle {
    pub(super) fn name(&self) -> &str {
        self.0.metadata.name.as_deref().unwrap_or_default()
    }

    /// Empty for a bundle of no signer.
    pub(super) fn signer_name(&self) -> &str {
        self.0.spec.signer_name.as_deref().unwrap_or_default()
    }

    pub(super) fn pem(&self) -> &str {
        &self.0.spec.trust_bundle
    }

    /// Until when the gateway publishes a former CA.
    pub(super) fn needed_until(&self, sha256: &str) -> Option<String> {
        let text = self.0.metadata.annotations.as_ref()?.get(ANCHORS)?;
        let mut records = serde_json::from_str::<BTreeMap<String, AnchorRecord>>(text).ok()?;
        records.remove(sha256)?.until
    }
}

impl From<v1::ClusterTrustBundle> for PublishedBundle {
    fn from(bundle: v1::ClusterTrustBundle) -> Self {
        Self(bundle)
    }
}

impl From<v1beta1::ClusterTrustBundle> for PublishedBundle {
    fn from(v1beta1::ClusterTrustBundle { metadata, spec }: v1beta1::ClusterTrustBundle) -> Self {
        let v1beta1::ClusterTrustBundleSpec { signer_name, trust_bundle } = spec;
        let spec = v1::ClusterTrustBundleSpec { signer_name, trust_bundle };
        Self(v1::ClusterTrustBundle { metadata, spec })
    }
}

/// The bundles of a cluster that match.
pub(super) fn published(
    flags: &ClusterFlags,
    selector: Option<&str>,
    is_wanted: impl Fn(&PublishedBundle) -> bool,
) -> Result<Vec<PublishedBundle>, CommandError> {
    let failed = |error: &dyn std::fmt::Display| CommandError::Failed(error.to_string());
    let runtime = runtime().map_err(|error| failed(&error))?;
    let found = runtime.block_on(async {
        let cluster = flags.connect().await.map_err(|error| failed(&error))?;
        if serves(&cluster, "v1").await? {
            return list::<v1::ClusterTrustBundle>(&cluster, selector).await;
        }
        if serves(&cluster, "v1beta1").await? {
            return list::<v1beta1::ClusterTrustBundle>(&cluster, selector).await;
        }
        Err(CommandError::Failed(format!(
            "{} serves no {PLURAL}: they need Kubernetes 1.37, or before that \
             --feature-gates=ClusterTrustBundle=true --runtime-config={GROUP}/v1beta1/{PLURAL}=true",
            cluster.server()
        )))
    })?;
    Ok(found.into_iter().filter(is_wanted).collect())
}

async fn serves(cluster: &ClusterClient, version: &str) -> Result<bool, CommandError> {
    let group_version = format!("{GROUP}/{version}");
    match cluster.client.list_api_group_resources(&group_version).await {
        Ok(list) => Ok(list.resources.iter().any(|resource| resource.name == PLURAL)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(CommandError::Failed(cluster.refusal("list the API's resources", &error))),
    }
}

async fn list<K>(
    cluster: &ClusterClient,
    selector: Option<&str>,
) -> Result<Vec<PublishedBundle>, CommandError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Into<PublishedBundle>,
{
    let api = Api::<K>::all(cluster.client.clone());
    let params = ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() };
    let asked = cluster.ask("list trust bundles", api.list(&params));
    let found = asked.await.map_err(CommandError::Failed)?;
    Ok(found.items.into_iter().map(Into::into).collect())
}

#[cfg(test)]
pub(super) mod testing {
    use k8s_openapi::api::certificates::v1;
    use serde_json::{Value, json};

    use super::{ANCHORS, PublishedBundle};

    /// A bundle with this content, and this record of the gateway.
    pub(in crate::certs::bundle) fn bundle(name: &str, pem: &str, records: &Value) -> PublishedBundle {
        let annotations = json!({ANCHORS: records.to_string()});
        let object = json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"signerName": "example.com/service", "trustBundle": pem}});
        serde_json::from_value::<v1::ClusterTrustBundle>(object).unwrap().into()
    }
}
