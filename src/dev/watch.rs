//! Watches: response bodies that stream events until they time out.

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

use super::request::ResourceRequest;
use super::resources::ResourceType;
use super::store::ObjectChange;

/// The timeout of a watch without `timeoutSeconds`.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(30);

struct ObjectWatch {
    request: ResourceRequest,
    revisions: Receiver<u64>,
    position: u64,
    /// Encoded events that the client has not received.
    pending: String,
    deadline: Instant,
}

/// Starts a watch. Events of the existing objects come first, unless the client gives a revision.
pub(super) fn start(
    request: ResourceRequest,
) -> Result<impl Body<Data = Bytes, Error = Infallible> + Send, Status> {
    let version = request.parameter("resourceVersion");
    let position = if version.is_empty() { Ok(0) } else { version.parse() };
    let position =
        position.map_err(|_| Status::bad_request(format!("invalid resource version {version:?}")))?;
    let timeout = request.parameter("timeoutSeconds").parse().map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let send_initial_events = request.parameter("sendInitialEvents") == "true";
    let mut watch = ObjectWatch {
        revisions: request.store.revision.subscribe(),
        position,
        pending: String::new(),
        deadline: Instant::now() + timeout,
        request,
    };
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
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": state.revision.to_string(), "annotations": annotations});
        let ResourceType { kind, api_version, .. } = resource;
        let bookmark = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        watch.pending += &event("BOOKMARK", &bookmark);
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
            if self.pending.is_empty() {
                tokio::select! {
                    changed = self.revisions.changed() => changed.ok()?,
                    () = sleep_until(self.deadline) => return None,
                }
            }
        }
        Some(std::mem::take(&mut self.pending).into())
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

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}
