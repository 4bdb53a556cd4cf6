//! An API server that never answers, never ends its response, or sends too much.

use std::convert::Infallible;

use futures_util::stream::{self, StreamExt as _};
use futures_util::{TryStreamExt as _, future};
use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};

use super::*;
use crate::backend::response_size::is_too_large;

/// A client of an API server that sends these pieces of a body and never ends it.
fn sending(pieces: Vec<Vec<u8>>) -> kube::Client {
    let service = service_fn(move |_: Request<Body>| {
        let pieces = stream::iter(pieces.clone()).map(|piece| Ok::<_, Infallible>(Frame::data(piece.into())));
        let body = StreamBody::new(pieces.chain(stream::pending())).boxed_unsync();
        future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    bounded(kube::Client::new(service, "default"))
}

fn silent() -> kube::Client {
    let service = service_fn(|_: Request<Body>| future::pending::<Result<Response<Body>, Infallible>>());
    bounded(kube::Client::new(service, "default"))
}

fn maps(client: kube::Client) -> Api<ConfigMap> {
    Api::namespaced(client, "n")
}

fn error_of<T>(result: kube::Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_response_that_never_comes_or_never_ends_times_out() {
    let late = ResponseError::TimedOut.to_string();
    for client in [silent(), sending(vec![b"{\"kind\":".to_vec()])] {
        let begun = Instant::now();
        assert!(error_of(maps(client.clone()).get("m").await).contains(&late));
        assert_eq!(begun.elapsed(), REQUEST_TIMEOUT, "get");
        let begun = Instant::now();
        assert!(error_of(maps(client).list(&ListParams::default().limit(10)).await).contains(&late));
        assert_eq!(begun.elapsed(), REQUEST_TIMEOUT, "list");
    }
}

fn event(padding: usize) -> Vec<u8> {
    let object = serde_json::json!({"metadata": {"name": "m"}, "data": {"k": "x".repeat(padding)}});
    format!("{}\n", serde_json::json!({"type": "ADDED", "object": object})).into_bytes()
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_times_out() {
    let begun = Instant::now();
    let opened = maps(silent()).watch(&WatchParams::default(), "1").await;
    assert!(error_of(opened.map(drop)).contains("does not answer in time"));
    assert_eq!(begun.elapsed(), REQUEST_TIMEOUT);
    // Two events, then silence.
    let client = sending(vec![event(1), event(1)]);
    let begun = Instant::now();
    let events = maps(client).watch(&WatchParams::default(), "1").await.unwrap();
    let events: Vec<_> = std::pin::pin!(events).collect().await;
    assert!(matches!(events[..2], [Ok(WatchEvent::Added(_)), Ok(WatchEvent::Added(_))]));
    assert!(events[2].as_ref().unwrap_err().to_string().contains("does not answer in time"));
    assert_eq!(begun.elapsed(), WATCH_IDLE_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_too_large_fails_and_watch_events_are_measured_one_by_one() {
    let piece = || vec![b' '; MAX_OBJECT / 2];
    let got = maps(sending(vec![piece(), piece(), piece()])).get("m").await.unwrap_err();
    assert!(is_too_large(&got), "{got}");
    let page = vec![piece(); 2 * MAX_PAGE / MAX_OBJECT + 1];
    let listed = maps(sending(page)).list(&ListParams::default().limit(10)).await.unwrap_err();
    assert!(is_too_large(&listed), "{listed}");
    // A single object is never too large: JSON is at most six times as long as the object in etcd.
    let one = vec![piece(); 2 * MAX_PAGE / MAX_OBJECT + 1];
    let listed = maps(sending(one)).list(&ListParams::default().limit(1)).await.unwrap_err();
    assert!(error_of::<()>(Err(listed)).contains("does not answer in time"));
    let large = vec![event(MAX_OBJECT / 2); 8];
    let events = maps(sending(large)).watch(&WatchParams::default(), "1").await.unwrap();
    assert_eq!(std::pin::pin!(events).take(8).try_collect::<Vec<_>>().await.unwrap().len(), 8);
    let events = maps(sending(vec![event(MAX_SINGLE)])).watch(&WatchParams::default(), "1").await.unwrap();
    let error = std::pin::pin!(events).try_next().await.unwrap_err();
    assert!(is_too_large(&error) && error.to_string().contains("larger than"), "{error}");
}
