//! The controller `bootstrapsigner`: signs `kube-public/cluster-info` with every bootstrap token that allows signing.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use futures_util::StreamExt as _;
use futures_util::stream::select;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use portcullis_pki::bootstrap_tokens::cluster_info;
use portcullis_pki::bootstrap_tokens::secret::{
    EXPIRATION, ID, NAMESPACE, SECRET, SECRET_TYPE, TokenData, TokenUsage, is_token,
};
use portcullis_system::sync::lock;
use tracing::{info, warn};

use super::ControllerContext;
use super::bounded_store::BoundedStore;
use super::name::ControllerName;
use super::queue::{AttemptOutcome, RetryPolicy, WorkItem};
use super::worker;

const NAME: ControllerName = ControllerName::BootstrapSigner;

/// The only work item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ClusterInfo;

impl fmt::Display for ClusterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", cluster_info::NAMESPACE, cluster_info::NAME)
    }
}

impl WorkItem for ClusterInfo {}

/// Updates the signatures when the `ConfigMap` or a token changes. Expiry is not a change; `tokencleaner` deletes the
/// expired token, which is one.
// kube-controller-manager: pkg/controller/bootstrap/bootstrapsigner.go
pub(crate) async fn run(context: ControllerContext) -> Infallible {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), NAMESPACE);
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), cluster_info::NAMESPACE);
    let tokens = watcher::Config::default().fields(&format!("type={SECRET_TYPE}"));
    let one = watcher::Config::default().fields(&format!("metadata.name={}", cluster_info::NAME));
    let (tokens, token_changes) = worker::watch(&context, "secrets", secrets, tokens, |secret| {
        worker::trim_token(secret, &[ID, SECRET, EXPIRATION, TokenUsage::Signing.key()]);
    });
    let (found, map_changes) = worker::watch(&context, "configmaps", maps.clone(), one, |_| {});
    let changes = select(token_changes, map_changes).map(|_| ClusterInfo);
    let replaced = Mutex::default();
    let sign = async |ClusterInfo| sign(&context, &maps, &found, &tokens, &replaced).await;
    worker::work(&context, NAME, RetryPolicy::CERTIFICATES, changes, &AtomicU64::new(0), sign).await
}

async fn sign(
    context: &ControllerContext,
    maps: &Api<ConfigMap>,
    found: &Store<ConfigMap>,
    tokens: &BoundedStore<Secret>,
    replaced: &Mutex<Option<String>>,
) -> AttemptOutcome {
    // Until the first list of tokens completes, every signature would look superfluous.
    if tokens.wait_until_ready().await.is_err() || found.wait_until_ready().await.is_err() {
        return AttemptOutcome::Retry;
    }
    // The signatures of those that are left out would look superfluous, too.
    if tokens.leaves_out() {
        return AttemptOutcome::Done;
    }
    let one = ObjectRef::new(cluster_info::NAME).within(cluster_info::NAMESPACE);
    let Some(map) = found.get(&one) else { return AttemptOutcome::Done };
    // The watch has not delivered our own last write yet.
    if map.resource_version() == *lock(replaced) {
        return AttemptOutcome::Done;
    }
    let now = context.clock.now();
    let tokens = tokens.state();
    let keys: BTreeMap<_, _> = tokens
        .iter()
        .filter(|secret| is_token(secret))
        .filter_map(|secret| TokenData::of(secret).signing_key(&secret.name_any(), now))
        .collect();
    let data = map.data.clone().unwrap_or_default();
    let Some(wanted) = cluster_info::wanted(&data, &keys) else { return AttemptOutcome::Done };
    let signed = ConfigMap { data: Some(wanted), ..ConfigMap::clone(&map) };
    let cluster = &*context.cluster;
    match maps.replace(cluster_info::NAME, &PostParams::default(), &signed).await {
        Ok(_) => {
            info!(cluster, signatures = keys.len(), "cluster-info signed");
            *lock(replaced) = map.resource_version();
            AttemptOutcome::Done
        }
        Err(kube::Error::Api(status)) if status.is_not_found() => AttemptOutcome::Done,
        // The watch will deliver the newer version.
        Err(kube::Error::Api(status)) if status.is_conflict() => {
            context.metrics.controllers.conflicts.with_label_values(&[cluster, NAME.alias()]).inc();
            AttemptOutcome::Done
        }
        // kube-controller-manager does not retry; nodes could not join with a new token until something changes.
        Err(error) => {
            warn!(cluster, "cannot sign cluster-info: {error}");
            AttemptOutcome::Retry
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Method;
    use k8s_openapi::ByteString;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::super::testing::{FakeCluster, Silent};
    use super::*;

    const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
    const TOKEN: &str = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abc123";
    const INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
    const SIGNATURE: &str =
        "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiYzEyMyJ9..QSxpUG7Q542CirTI2ECPSZjvBOJURUW5a7XqFpNI958";

    fn token() -> Value {
        let data = [
            ("token-id", "abc123"),
            ("token-secret", "tokenSecret"),
            ("usage-bootstrap-signing", "true"),
            ("expiration", "2023-11-14T23:13:20Z"),
        ];
        let data: BTreeMap<_, _> = data.map(|(key, value)| (key, ByteString(value.into()))).into();
        json!({"type": SECRET_TYPE, "data": data})
    }

    fn info(more: &[(&str, &str)]) -> Value {
        let data: BTreeMap<_, _> = [("kubeconfig", "payload")].iter().chain(more).copied().collect();
        json!({"data": data})
    }

    fn data(cluster: &FakeCluster) -> Value {
        cluster.get(INFO).unwrap()["data"].clone()
    }

    fn put(code: u16) -> (Method, String, u16) {
        (Method::PUT, INFO.to_owned(), code)
    }

    async fn a_moment() {
        sleep(Duration::from_secs(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn signatures_of_tokens_that_do_not_fit_stay() {
        let cluster = FakeCluster::new();
        let mut context = cluster.context();
        context.max_stored_bytes = 3 << 10;
        for number in 0..20 {
            cluster.put(&TOKEN.replace("abc123", &format!("abc{number:03}")), token());
        }
        let signed = info(&[("jws-kubeconfig-abc123", SIGNATURE)]);
        cluster.put(TOKEN, token());
        cluster.put(INFO, signed.clone());
        tokio::spawn(run(context));
        a_moment().await;
        assert_eq!((data(&cluster), cluster.writes()), (signed["data"].clone(), vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn cluster_info_is_signed_when_it_or_a_token_changes() {
        // kube-controller-manager: pkg/controller/bootstrap/bootstrapsigner_test.go
        let cluster = FakeCluster::new();
        tokio::spawn(run(cluster.context()));
        a_moment().await;
        assert_eq!(cluster.writes(), [], "nothing to sign");
        cluster.put(TOKEN, token());
        a_moment().await;
        assert_eq!(cluster.writes(), []);
        cluster.put(INFO, info(&[]));
        a_moment().await;
        let key = "jws-kubeconfig-abc123";
        assert_eq!(
            (data(&cluster), cluster.writes()),
            (info(&[(key, SIGNATURE)])["data"].clone(), vec![put(200)])
        );
        // The signature is current: no write.
        cluster.put(INFO, info(&[(key, SIGNATURE)]));
        cluster.put(TOKEN, token());
        a_moment().await;
        assert_eq!(cluster.writes(), []);
        cluster.put(INFO, info(&[(key, "old signature")]));
        a_moment().await;
        assert_eq!(
            (data(&cluster), cluster.writes()),
            (info(&[(key, SIGNATURE)])["data"].clone(), vec![put(200)])
        );
        cluster.remove(TOKEN);
        a_moment().await;
        assert_eq!((data(&cluster), cluster.writes()), (info(&[])["data"].clone(), vec![put(200)]));
        // The controller never creates the ConfigMap.
        cluster.remove(INFO);
        a_moment().await;
        cluster.put(TOKEN, token());
        a_moment().await;
        assert_eq!(cluster.writes(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_expires_signs_until_something_changes() {
        let cluster = FakeCluster::new();
        cluster.put(TOKEN, token());
        cluster.put(INFO, info(&[]));
        tokio::spawn(run(cluster.context()));
        sleep(Duration::from_hours(2)).await;
        assert_eq!(cluster.writes(), [put(200)]);
        cluster.put(TOKEN, token());
        a_moment().await;
        assert_eq!((data(&cluster), cluster.writes()), (info(&[])["data"].clone(), vec![put(200)]));
    }

    #[tokio::test(start_paused = true)]
    async fn no_signature_is_removed_before_all_tokens_are_known() {
        let cluster = FakeCluster::new();
        cluster.put(INFO, info(&[("jws-kubeconfig-abc123", SIGNATURE)]));
        cluster.put(TOKEN, token());
        cluster.hold(SECRETS, true);
        tokio::spawn(run(cluster.context()));
        sleep(Duration::from_mins(5)).await;
        assert_eq!(cluster.writes(), []);
        // A token deleted in the meantime loses its signature, although no event reports the deletion.
        cluster.remove(TOKEN);
        cluster.hold(SECRETS, false);
        sleep(Duration::from_mins(20)).await;
        assert_eq!((data(&cluster), cluster.writes()), (info(&[])["data"].clone(), vec![put(200)]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_signature_of_a_token_whose_deletion_the_watch_missed_is_removed() {
        let cluster = FakeCluster::new();
        cluster.put(TOKEN, token());
        cluster.put(INFO, info(&[]));
        tokio::spawn(run(cluster.context()));
        a_moment().await;
        assert_eq!(cluster.writes(), [put(200)]);
        // The API server has compacted its history; by the next list the token is gone.
        cluster.hold(SECRETS, true);
        cluster.expire(SECRETS);
        a_moment().await;
        cluster.remove(TOKEN);
        cluster.hold(SECRETS, false);
        sleep(Duration::from_mins(5)).await;
        assert_eq!((data(&cluster), cluster.writes()), (info(&[])["data"].clone(), vec![put(200)]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_of_another_type_signs_nothing_even_if_the_list_returns_it() {
        let cluster = FakeCluster::new();
        let mut other = token();
        other["type"] = json!("Opaque");
        cluster.put(TOKEN, other);
        cluster.put(INFO, info(&[]));
        tokio::spawn(run(cluster.context()));
        a_moment().await;
        assert_eq!(cluster.writes(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_is_retried_and_a_conflict_is_left_to_the_next_change() {
        for (code, then) in [(409, vec![]), (404, vec![]), (500, vec![put(200)])] {
            let cluster = FakeCluster::new();
            let context = cluster.context();
            let metrics = std::sync::Arc::clone(&context.metrics);
            cluster.put(TOKEN, token());
            cluster.put(INFO, info(&[("other", "stays")]));
            tokio::spawn(run(context));
            a_moment().await;
            assert_eq!(cluster.writes(), [put(200)]);
            cluster.refuse(code);
            cluster.put(INFO, info(&[("other", "stays")]));
            sleep(Duration::from_secs(100)).await;
            let expected: Vec<_> = std::iter::once(put(code)).chain(then).collect();
            assert_eq!(cluster.writes(), expected);
            let counted = metrics.controllers.conflicts.with_label_values(&["c", "bootstrapsigner"]).get();
            assert_eq!(counted, u64::from(code == 409));
            cluster.put(TOKEN, token());
            a_moment().await;
            assert_eq!(data(&cluster)["jws-kubeconfig-abc123"], SIGNATURE);
            assert_eq!(data(&cluster)["other"], "stays");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_stops_answering_is_retried_until_it_answers() {
        for far_end in Silent::ALL {
            let cluster = FakeCluster::new();
            let mut context = cluster.context();
            context.client = far_end.client(context.client);
            tokio::spawn(run(context));
            a_moment().await;
            cluster.put(TOKEN, token());
            cluster.put(INFO, info(&[]));
            sleep(Silent::DURATION + Duration::from_mins(4)).await;
            assert_eq!(cluster.writes(), [put(200)], "{far_end:?}");
            assert_eq!(data(&cluster)["jws-kubeconfig-abc123"], SIGNATURE, "{far_end:?}");
        }
    }
}
