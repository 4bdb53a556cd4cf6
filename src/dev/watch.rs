//! Watches: response bodies that stream events until they time out.
//!
//! A client that allows bookmarks gets one each minute, and one shortly before the end of the watch. They show that the
//! watch still works: a client ends a watch that is silent for minutes.
// apiserver: pkg/storage/cacher/cache_watcher.go, nextBookmarkTime

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::{Body, Frame};
use portcullis_kubernetes::status::Status;
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};

use super::json::set;
use super::request::ResourceRequest;
use super::resources::ResourceType;
use super::store::ObjectChange;

/// The timeout of a watch without `timeoutSeconds`.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(30);
const BOOKMARK_INTERVAL: Duration = Duration::from_mins(1);
/// How long before its end a watch sends its last bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

struct ObjectWatch {
    request: ResourceRequest,
    revisions: Receiver<u64>,
    position: u64,
    /// Encoded events that the client has not received.
    pending: String,
    deadline: Instant,
    /// When the next bookmark is sent; `None` if the client allows none, and after the last one.
    next_bookmark: Option<Instant>,
}

/// Starts a watch. Events of the existing objects come first, unless the client gives a revision.
pub(super) fn start(
    request: ResourceRequest,
) -> Result<impl Body<Data = Bytes, Error = Infallible> + Send, Status> {
    let version = request.parameter("resourceVersion");
    let position = if version.is_empty() { Ok(0) } else { version.parse() };
    let position =
        position.map_err(|_| Status::bad_request(format!("invalid resource version {version:?}")))?;
    // apiserver: endpoints/handlers/get.go — zero is as none
    let timeout = request.parameter("timeoutSeconds").parse().ok().filter(|seconds| *seconds > 0);
    let deadline = Instant::now() + timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let allows_bookmarks = request.parameter("allowWatchBookmarks") == "true";
    let send_initial_events = request.parameter("sendInitialEvents") == "true";
    let mut watch = ObjectWatch {
        revisions: request.store.revision.subscribe(),
        position,
        pending: String::new(),
        deadline,
        next_bookmark: None,
        request,
    };
    watch.next_bookmark = allows_bookmarks.then(|| watch.bookmark_after(Instant::now())).flatten();
    let state = watch.request.store.read().clone();
    let (resource, namespace) = (watch.request.resource, &watch.request.namespace);
    if position == 0 || send_initial_events {
        for object in
            state.list(resource.plural, namespace).filter(|object| watch.request.selector.matches(object))
        {
            watch.pending += &event("ADDED", &watch.request.render(object));
        }
        watch.position = state.revision;
    } else {
        state.since(position, resource.plural, namespace).map(drop)?;
    }
    if send_initial_events {
        let annotations = json!({"annotations": {"k8s.io/initial-events-end": "true"}});
        watch.pending += &bookmark(resource, state.revision, annotations);
    }
    Ok(StreamBody::new(stream::unfold(watch, |mut watch| async {
        let bytes = watch.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), watch))
    })))
}

impl ObjectWatch {
    /// The next events. The watch ends if its changes have left the history; the client's next watch gets the error.
    async fn next(&mut self) -> Option<Bytes> {
        while self.pending.is_empty() {
            // Before the changes, which may never pause.
            if Instant::now() >= self.deadline {
                return None;
            }
            // Before the read of the state, so that a later change wakes the watch.
            self.revisions.mark_unchanged();
            let state = self.request.store.read().clone();
            for change in
                state.since(self.position, self.request.resource.plural, &self.request.namespace).ok()?
            {
                if let Some(kind) = self.event_type(change) {
                    self.pending += &event(kind, &self.request.render(&change.object));
                }
            }
            self.position = state.revision;
            let now = Instant::now();
            if self.next_bookmark.is_some_and(|due| due <= now) {
                self.next_bookmark = self.bookmark_after(now);
                self.pending += &bookmark(self.request.resource, self.position, json!({}));
            }
            if self.pending.is_empty() {
                let wake = self.next_bookmark.unwrap_or(self.deadline);
                tokio::select! {
                    changed = self.revisions.changed() => changed.ok()?,
                    () = sleep_until(wake) => {}
                }
            }
        }
        Some(std::mem::take(&mut self.pending).into())
    }

    /// When the bookmark after this time is due: in a minute, or shortly before the end of the watch.
    fn bookmark_after(&self, now: Instant) -> Option<Instant> {
        let last = self.deadline - LAST_BOOKMARK;
        (now < last).then(|| last.min(now + BOOKMARK_INTERVAL))
    }

    /// For a watch with a selector, an object that stops matching is deleted.
    fn event_type(&self, change: &ObjectChange) -> Option<&'static str> {
        let before = change.before.as_ref().is_some_and(|object| self.request.selector.matches(object));
        let after = !change.deleted && self.request.selector.matches(&change.object);
        match (before, after) {
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
            (false, false) => None,
        }
    }
}

/// A bookmark: an object of the resource that has only a revision and, after the initial events, an annotation.
fn bookmark(resource: &ResourceType, revision: u64, mut metadata: Value) -> String {
    set(&mut metadata, "/resourceVersion", revision.to_string());
    let ResourceType { kind, api_version, .. } = resource;
    event("BOOKMARK", &json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}))
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use portcullis_go::json::JsonValue;
    use portcullis_kubernetes::user::UserInfo;
    use portcullis_system::clock::Clock;

    use super::super::json::text;
    use super::super::request::ObjectSelector;
    use super::super::resources::find;
    use super::super::store::{ObjectKey, ObjectStore};
    use super::*;

    /// A watch of all ConfigMaps.
    fn request(query: &str) -> ResourceRequest {
        ResourceRequest {
            store: Arc::new(ObjectStore::new(Clock::system())),
            user: UserInfo::named("alice"),
            verb: "watch".to_owned(),
            resource: find("", "configmaps").unwrap(),
            namespace: String::new(),
            name: String::new(),
            subresource: String::new(),
            query: query.to_owned(),
            selector: ObjectSelector::parse("", "").unwrap(),
            table: false,
            media_type: String::new(),
            body: Bytes::new(),
        }
    }

    fn put(store: &ObjectStore, name: &str) {
        let key = ObjectKey { plural: "configmaps", namespace: "n".to_owned(), name: name.to_owned() };
        store.write(false, |state| Ok(state.put(key, json!({"metadata": {"name": name}}), false))).unwrap();
    }

    /// The seconds after which events arrive until the watch ends, their types and revisions.
    async fn events(request: ResourceRequest) -> (Vec<(u64, String, String)>, u64) {
        let (began, mut seen) = (Instant::now(), Vec::new());
        let mut body = pin!(start(request).unwrap_or_else(|_| panic!("refused")));
        while let Some(frame) = body.frame().await {
            for line in frame.unwrap().into_data().unwrap().split(|&byte| byte == b'\n') {
                if let Ok(JsonValue(event)) = serde_json::from_slice::<JsonValue>(line) {
                    let version = text(&event, "/object/metadata/resourceVersion").to_owned();
                    seen.push((began.elapsed().as_secs(), text(&event, "/type").to_owned(), version));
                }
            }
        }
        (seen, began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn idle_watches_have_bookmarks_and_end_at_their_timeout() {
        let watch = request("resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=150");
        let (seen, ended) = events(watch).await;
        let of = |second| (second, "BOOKMARK".to_owned(), "1".to_owned());
        assert_eq!(seen, [of(60), of(120), of(148)]);
        assert_eq!(ended, 150);
        for query in ["resourceVersion=1&timeoutSeconds=150", "timeoutSeconds=150"] {
            assert_eq!(
                events(request(query)).await,
                (vec![], 150),
                "{query}: no bookmark that is not allowed"
            );
        }
        let (seen, ended) = events(request("allowWatchBookmarks=true&timeoutSeconds=2")).await;
        assert_eq!((seen.len(), ended), (0, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_without_a_timeout_has_the_default_one() {
        for query in ["", "timeoutSeconds=0", "timeoutSeconds=x"] {
            assert_eq!(events(request(query)).await, (vec![], DEFAULT_TIMEOUT.as_secs()), "{query}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bookmarks_have_the_latest_revision_and_busy_watches_end() {
        let watch = request("resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=90");
        let store = Arc::clone(&watch.store);
        let writer = tokio::spawn(async move {
            for round in 0.. {
                put(&store, &format!("a{}", round % 2));
                tokio::time::sleep(Duration::from_secs(50)).await;
            }
        });
        let (seen, ended) = events(watch).await;
        writer.abort();
        let seen = seen.iter().map(|(second, kind, version)| (*second, &**kind, &**version));
        let want = [(0, "ADDED", "2"), (50, "ADDED", "3"), (60, "BOOKMARK", "3"), (88, "BOOKMARK", "3")];
        assert_eq!(seen.collect::<Vec<_>>(), want);
        assert_eq!(ended, 90);

        let watch = request("resourceVersion=1&timeoutSeconds=1");
        let store = Arc::clone(&watch.store);
        let began = Instant::now();
        let mut body = pin!(start(watch).unwrap_or_else(|_| panic!("refused")));
        while began.elapsed() < Duration::from_secs(2) {
            put(&store, "a");
            if body.frame().await.is_none() {
                break;
            }
            tokio::time::advance(Duration::from_millis(300)).await;
        }
        assert_eq!(began.elapsed().as_millis(), 1200, "changes that never pause do not keep a watch open");
    }
}
