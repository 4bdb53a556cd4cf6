//! The controller `tokencleaner`: deletes bootstrap tokens when they expire.

use std::convert::Infallible;
use std::sync::atomic::AtomicU64;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use portcullis_pki::bootstrap_tokens::secret::{EXPIRATION, NAMESPACE, SECRET_TYPE, TokenData, is_token};
use portcullis_pki::bootstrap_tokens::token_cleaner::{CleanupAction, cleanup_action};
use tracing::{info, warn};

use super::ControllerContext;
use super::name::ControllerName;
use super::queue::{AttemptOutcome, RetryPolicy};
use super::worker::{self, ObjectKey};

const NAME: ControllerName = ControllerName::TokenCleaner;

/// Checks every token when it changes and when it expires.
// kube-controller-manager: pkg/controller/bootstrap/tokencleaner.go
pub(crate) async fn run(context: ControllerContext) -> Infallible {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), NAMESPACE);
    let tokens = watcher::Config::default().fields(&format!("type={SECRET_TYPE}"));
    let (store, changes) = worker::watch(&context, "secrets", secrets.clone(), tokens, |secret| {
        worker::trim_token(secret, &[EXPIRATION]);
    });
    let check = async |key: ObjectKey| match key.within(&store) {
        // The list contains tokens only; the type is checked again before a deletion.
        Some(secret) if is_token(&secret) => {
            let now = context.clock.now();
            match cleanup_action(&TokenData::of(&secret), now) {
                CleanupAction::Keep => AttemptOutcome::Done,
                CleanupAction::KeepFor(remaining) => AttemptOutcome::After(remaining),
                CleanupAction::Delete => delete(&context, &secrets, &secret).await,
            }
        }
        _ => AttemptOutcome::Done,
    };
    worker::work(&context, NAME, RetryPolicy::CERTIFICATES, changes, &AtomicU64::new(0), check).await
}

/// Deletes a token unless it has changed since it was checked; then the watch delivers the newer version.
async fn delete(context: &ControllerContext, secrets: &Api<Secret>, secret: &Secret) -> AttemptOutcome {
    let name = secret.name_any();
    let preconditions = Preconditions { uid: secret.uid(), resource_version: secret.resource_version() };
    let options = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let cluster = &*context.cluster;
    match secrets.delete(&name, &options).await {
        Ok(_) => {
            info!(cluster, secret = name, "expired bootstrap token deleted");
            AttemptOutcome::Done
        }
        Err(kube::Error::Api(status)) if status.is_not_found() => AttemptOutcome::Done,
        Err(kube::Error::Api(status)) if status.is_conflict() => {
            context.metrics.controllers.conflicts.with_label_values(&[cluster, NAME.alias()]).inc();
            AttemptOutcome::Done
        }
        // kube-controller-manager does not retry; an expired token would stay until it changes.
        Err(error) => {
            warn!(cluster, secret = name, "cannot delete expired bootstrap token: {error}");
            AttemptOutcome::Retry
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Method;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::super::testing::{FakeCluster, Silent};
    use super::*;

    const PATH: &str = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef";

    fn token(expiration: Option<&str>) -> Value {
        let mut data = json!({"token-id": "YWJjZGVm"});
        if let Some(expiration) = expiration {
            data["expiration"] = serde_json::to_value(k8s_openapi::ByteString(expiration.into())).unwrap();
        }
        json!({"type": SECRET_TYPE, "data": data})
    }

    /// A cluster whose clock begins at 2023-11-14T22:13:20Z, and a context for it.
    fn begin() -> (FakeCluster, ControllerContext) {
        let cluster = FakeCluster::new();
        let context = cluster.context();
        (cluster, context)
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_token_is_deleted_and_another_one_stays() {
        // kube-controller-manager: pkg/controller/bootstrap/tokencleaner_test.go
        let (cluster, context) = begin();
        let path = |id: &str| PATH.replace("abcdef", id);
        for (id, expiration) in [
            ("noexpi", None),
            ("expire", Some("2023-11-14T21:13:20Z")),
            ("longer", Some("2023-11-14T23:13:20Z")),
            ("garbag", Some("garbage")),
        ] {
            cluster.put(&path(id), token(expiration));
        }
        tokio::spawn(run(context));
        sleep(Duration::from_secs(1)).await;
        let mut deleted = cluster.writes();
        deleted.sort_by(|one, other| one.1.cmp(&other.1));
        assert_eq!(deleted, ["expire", "garbag"].map(|id| (Method::DELETE, path(id), 200)));
        assert!(cluster.get(&path("noexpi")).is_some() && cluster.get(&path("longer")).is_some());
    }

    // Two clusters, of which one has tokens without end.
    #[tokio::test(start_paused = true)]
    async fn the_tokens_of_a_cluster_take_a_bounded_memory_and_long_ones_no_more_than_others() {
        let (flooded, mut context) = begin();
        context.max_stored_bytes = 64 << 10;
        let (calm, calm_context) = begin();
        let path = |number: usize| PATH.replace("abcdef", &format!("{number:06}"));
        let mut long = token(Some("2023-11-14T21:13:20Z"));
        long["data"]["description"] =
            serde_json::to_value(k8s_openapi::ByteString(vec![b'x'; 1 << 20])).unwrap();
        flooded.put(&path(0), long);
        for number in 1..200 {
            flooded.put(&path(number), token(Some("2023-11-14T23:13:20Z")));
        }
        calm.put(PATH, token(Some("2023-11-14T21:13:20Z")));
        tokio::spawn(run(context));
        tokio::spawn(run(calm_context));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(flooded.writes(), [(Method::DELETE, path(0), 200)]);
        assert_eq!(calm.writes(), [(Method::DELETE, PATH.to_owned(), 200)]);
        sleep(Duration::from_hours(1)).await;
        let deleted = flooded.writes().len();
        assert!(
            (10..100).contains(&deleted),
            "{deleted} of 200 tokens were kept, and deleted when they expired"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_of_another_type_stays_even_if_the_list_returns_it() {
        let (cluster, context) = begin();
        let mut other = token(Some("garbage"));
        other["type"] = json!("Opaque");
        cluster.put(PATH, other);
        tokio::spawn(run(context));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(cluster.writes(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_deleted_when_it_expires() {
        let (cluster, context) = begin();
        tokio::spawn(run(context));
        cluster.put(PATH, token(Some("2023-11-14T23:13:20Z")));
        sleep(Duration::from_millis(3_599_900)).await;
        assert_eq!(cluster.writes(), []);
        sleep(Duration::from_millis(200)).await;
        assert_eq!(cluster.writes(), [(Method::DELETE, PATH.to_owned(), 200)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_whose_expiration_is_extended_stays() {
        let (cluster, context) = begin();
        tokio::spawn(run(context));
        cluster.put(PATH, token(Some("2023-11-14T22:14:20Z")));
        sleep(Duration::from_secs(30)).await;
        cluster.put(PATH, token(Some("2023-11-14T23:13:20Z")));
        sleep(Duration::from_mins(50)).await;
        assert_eq!(cluster.writes(), []);
        cluster.put(PATH, token(None));
        sleep(Duration::from_hours(1000)).await;
        assert_eq!(cluster.writes(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_is_counted_and_left_to_the_next_change() {
        for (code, conflicts) in [(409, 1), (404, 0)] {
            let (cluster, context) = begin();
            let metrics = std::sync::Arc::clone(&context.metrics);
            cluster.refuse(code);
            cluster.put(PATH, token(Some("2023-11-14T21:13:20Z")));
            tokio::spawn(run(context));
            sleep(Duration::from_secs(100)).await;
            assert_eq!(cluster.writes(), [(Method::DELETE, PATH.to_owned(), code)]);
            let counted = metrics.controllers.conflicts.with_label_values(&["c", "tokencleaner"]).get();
            assert_eq!(counted, conflicts);
            cluster.put(PATH, token(Some("2023-11-14T21:13:21Z")));
            sleep(Duration::from_secs(1)).await;
            assert_eq!(cluster.writes(), [(Method::DELETE, PATH.to_owned(), 200)]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_deletion_is_retried() {
        let (cluster, context) = begin();
        cluster.refuse(500);
        cluster.put(PATH, token(Some("2023-11-14T21:13:20Z")));
        tokio::spawn(run(context));
        sleep(Duration::from_secs(1)).await;
        let path = PATH.to_owned();
        assert_eq!(cluster.writes(), [(Method::DELETE, path.clone(), 500), (Method::DELETE, path, 200)]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_stops_answering_is_retried_until_it_answers() {
        for far_end in Silent::ALL {
            let (cluster, mut context) = begin();
            context.client = far_end.client(context.client);
            tokio::spawn(run(context));
            sleep(Duration::from_secs(1)).await;
            cluster.put(PATH, token(Some("2023-11-14T21:13:20Z")));
            sleep(Silent::DURATION + Duration::from_mins(4)).await;
            assert_eq!(cluster.writes(), [(Method::DELETE, PATH.to_owned(), 200)], "{far_end:?}");
        }
    }
}
