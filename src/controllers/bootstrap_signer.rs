//! The controller `bootstrapsigner`: signs `kube-public/cluster-info` with every bootstrap token that signs.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;

use futures_util::StreamExt as _;
use futures_util::stream::select;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use tracing::{info, warn};

use super::Context;
use super::name::Name;
use super::queue::{Outcome, Pace};
use super::worker;
use crate::bootstrap::cluster_info;
use crate::bootstrap::secret::{NAMESPACE, SECRET_TYPE, TokenData};

const NAME: Name = Name::BootstrapSigner;

/// The one thing there is to sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ClusterInfo;

impl fmt::Display for ClusterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", cluster_info::NAMESPACE, cluster_info::NAME)
    }
}

/// Looks at the ConfigMap when it or a token changes. A token that expires is no change: `tokencleaner` makes it one.
// kube-controller-manager: pkg/controller/bootstrap/bootstrapsigner.go
pub(crate) async fn run(context: Context) -> Infallible {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), NAMESPACE);
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), cluster_info::NAMESPACE);
    let tokens = watcher::Config::default().fields(&format!("type={SECRET_TYPE}"));
    let one = watcher::Config::default().fields(&format!("metadata.name={}", cluster_info::NAME));
    let (tokens, token_changes) = worker::watch(&context, "secrets", secrets, tokens);
    let (found, map_changes) = worker::watch(&context, "configmaps", maps.clone(), one);
    let changes = select(token_changes, map_changes).map(|_| ClusterInfo);
    let sign = async |ClusterInfo| sign(&context, &maps, &found, &tokens).await;
    worker::work(&context, NAME, Pace::CERTIFICATES, changes, sign).await
}

async fn sign(
    context: &Context,
    maps: &Api<ConfigMap>,
    found: &Store<ConfigMap>,
    tokens: &Store<Secret>,
) -> Outcome {
    // Before all tokens are known, every signature would look like one too many.
    if tokens.wait_until_ready().await.is_err() || found.wait_until_ready().await.is_err() {
        return Outcome::Retry;
    }
    let one = ObjectRef::new(cluster_info::NAME).within(cluster_info::NAMESPACE);
    let Some(map) = found.get(&one) else { return Outcome::Done };
    let now = context.clock.now();
    let tokens = tokens.state();
    let keys: BTreeMap<_, _> = tokens
        .iter()
        .filter_map(|secret| TokenData::of(secret).signing_key(&secret.name_any(), now))
        .collect();
    let data = map.data.clone().unwrap_or_default();
    let Some(wanted) = cluster_info::wanted(&data, &keys) else { return Outcome::Done };
    let signed = ConfigMap { data: Some(wanted), ..ConfigMap::clone(&map) };
    let cluster = &*context.cluster;
    match maps.replace(cluster_info::NAME, &PostParams::default(), &signed).await {
        Ok(_) => {
            info!(cluster, signatures = keys.len(), "cluster-info is signed");
            Outcome::Done
        }
        Err(kube::Error::Api(status)) if status.is_not_found() => Outcome::Done,
        // The watch tells of what it is now.
        Err(kube::Error::Api(status)) if status.is_conflict() => {
            context.metrics.controllers.conflicts.with_label_values(&[cluster, NAME.alias()]).inc();
            Outcome::Done
        }
        // kube-controller-manager leaves it at that; no node could join with a new token until something changes.
        Err(error) => {
            warn!(cluster, "cluster-info cannot be signed: {error}");
            Outcome::Retry
        }
    }
}
