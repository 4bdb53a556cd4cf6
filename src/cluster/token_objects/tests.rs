//! Reads of a cluster's objects, label patches, and the caches while the API server fails in different ways.

mod freshness;

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response};
use kube::client::Body;
use tokio::time::timeout;
use tower::service_fn;

use super::*;
use crate::backend::response_size::ResponseSize;
use crate::backend::testing::backend;
use crate::backend::watched::watch_cache::CachedObjects;

#[tokio::test(start_paused = true)]
async fn a_label_is_patched_once_however_often_its_token_is_used() {
    let (backend, metrics) = (Arc::new(backend()), Arc::new(Metrics::new()));
    let mut cache =
        TokenObjectCache::start("c", &backend, TokenObjectKinds::default(), &Handle::current(), &metrics);
    let writes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&writes);
    let service = service_fn(move |request: Request<Body>| {
        assert_eq!(request.method(), Method::PATCH);
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok::<_, Infallible>(Response::builder().status(403).body(Body::empty()).unwrap()))
    });
    cache.client = Client::new(service, "default");
    let patches = async || {
        for name in ["a", "b"] {
            for _ in 0..100 {
                cache.label_secret("test", name, "label", "today".to_owned());
                tokio::task::yield_now().await;
            }
        }
        sleep(LABEL_PATCH_INTERVAL * 2).await;
        writes.load(Ordering::Relaxed)
    };
    assert_eq!(patches().await, 2, "one patch per secret");
    assert_eq!(patches().await, 4, "and another one later");
}

/// The API server answers every read with the service account `victim`.
#[tokio::test]
async fn an_object_of_another_name_proves_nothing() {
    let (backend, metrics) = (Arc::new(backend()), Arc::new(Metrics::new()));
    let mut cache =
        TokenObjectCache::start("c", &backend, TokenObjectKinds::default(), &Handle::current(), &metrics);
    let paths = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&paths);
    let service = service_fn(move |request: Request<Body>| {
        seen.lock().unwrap().push(request.uri().path().to_owned());
        let victim = json!({"metadata": {"name": "victim", "namespace": "test", "uid": "1"}}).to_string();
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(victim.into_bytes()))))
    });
    cache.client = Client::new(service, "default");
    let found = async |namespace: &str, name: &str| {
        let found = TokenGetter::service_account(&cache, namespace, name).await;
        (found.map(|account| account.is_some()).map_err(drop), std::mem::take(&mut *paths.lock().unwrap()))
    };
    let read = vec!["/api/v1/namespaces/test/serviceaccounts/victim".to_owned()];
    assert_eq!(found("test", "victim").await, (Ok(true), read));
    assert_eq!(found("test", "other").await.0, Err(()), "the API server returned another object");
    for (namespace, name) in [
        ("test", "victim?x"),
        ("test", "victim#x"),
        ("test", "x/../victim"),
        ("test", "x%2f..%2fvictim"),
        ("test", ".."),
        ("test", ""),
        ("test?x", "victim"),
        ("x/../test", "victim"),
    ] {
        assert_eq!(found(namespace, name).await, (Ok(false), Vec::new()), "{namespace} {name}");
    }
}

#[tokio::test]
async fn a_secret_is_reduced_to_its_token_and_two_labels() {
    let (backend, metrics) = (Arc::new(backend()), Arc::new(Metrics::new()));
    let mut cache =
        TokenObjectCache::start("c", &backend, TokenObjectKinds::default(), &Handle::current(), &metrics);
    let service = service_fn(move |_: Request<Body>| {
        let secret = json!({
            "metadata": {"name": "s", "namespace": "test", "uid": "1", "labels": {
                "kubernetes.io/legacy-token-last-used": "2023-11-14",
                "kubernetes.io/legacy-token-invalid-since": "2023-11-14",
                "other": "x",
            }},
            "type": "kubernetes.io/service-account-token",
            "data": {"token": "dA==", "ca.crt": "Y2E=", "password": "cGFzc3dvcmQ="},
        });
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(secret.to_string().into_bytes()))))
    });
    cache.client = Client::new(service, "default");
    let secret = TokenGetter::secret(&cache, "test", "s").await.unwrap().unwrap();
    assert_eq!(secret.identity.uid, "1");
    assert_eq!(secret.data.keys().collect::<Vec<_>>(), ["token"]);
    let labels: Vec<_> = secret.labels.keys().collect();
    assert_eq!(labels, ["kubernetes.io/legacy-token-invalid-since", "kubernetes.io/legacy-token-last-used"]);
}

/// Fewer objects fit in a response than the gateway asks for.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_too_large_is_asked_for_in_parts() {
    let (backend, metrics) = (Arc::new(backend()), Arc::new(Metrics::new()));
    let endpoint = &backend.endpoints()[0];
    assert!(endpoint.set_trusted(endpoint.trust_version()));
    let limits = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&limits);
    let service = service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let limit = query.split('&').find_map(|pair| pair.strip_prefix("limit=")?.parse::<u32>().ok());
        let limit = limit.filter(|_| request.uri().path() == "/api/v1/pods");
        seen.lock().unwrap().extend(limit);
        async move {
            let pods = json!({"metadata": {"resourceVersion": "5"},
                "items": [{"metadata": {"namespace": "n", "name": "p", "uid": "1"}}]});
            match limit {
                Some(limit) if limit > 7 => Err(ResponseSize::new(false, 0).add(b"x").unwrap_err()),
                Some(_) => Ok(Response::new(Body::from(pods.to_string().into_bytes()))),
                None => std::future::pending().await,
            }
        }
    });
    let kinds = TokenObjectKinds { service_accounts: true, ..TokenObjectKinds::default() };
    let client = Client::new(service, "default");
    let cache = TokenObjectCache::with_client(client, "c", &backend, kinds, &Handle::current(), &metrics);
    timeout(Duration::from_secs(10), cache.pods.until_fresh()).await.unwrap();
    assert_eq!(cache.pods.get("n", "p").unwrap().uid, "1");
    assert_eq!(*limits.lock().unwrap(), [500, 62, 7]);
}

#[tokio::test]
async fn dropping_the_cache_ends_all_tasks_of_an_unavailable_api_server() {
    let (backend, metrics) = (Arc::new(backend()), Arc::new(Metrics::new()));
    let kinds = TokenObjectKinds { bootstrap_tokens: true, service_accounts: true };
    let cache = TokenObjectCache::start("c", &backend, kinds, &Handle::current(), &metrics);
    for _ in 0..3 {
        cache.service_account_keys();
    }
    tokio::task::yield_now().await;
    drop(cache);
    let released = async {
        while Arc::strong_count(&backend) > 1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), released).await.unwrap();
}

#[test]
fn the_objects_of_a_watch_that_panics_are_forgotten() {
    let cache = WatchCache::<ObjectIdentity>::default();
    let key = (String::new(), "a".to_owned());
    let mut objects = CachedObjects::default();
    objects.insert(key, ObjectIdentity::default()).unwrap();
    cache.replace(objects, tokio::time::Instant::now());
    assert!(cache.is_fresh());
    let watch = std::panic::AssertUnwindSafe(|| {
        let _ended = watched::reflector::EndOnDrop(&cache);
        panic!("the watch panics");
    });
    assert!(std::panic::catch_unwind(watch).is_err());
    assert!(!cache.is_fresh() && cache.get("", "a").is_none());
}
