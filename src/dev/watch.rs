//! Watches of the embedded backend: a body that never ends before its time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::{Body, Frame};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::ask::Ask;
use super::resources::Resource;
use super::selector::Selector;
use super::store::{Change, Store};
use super::table;
use crate::http::status::Status;

/// How long a watch lasts when the client does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(30);

struct Watcher {
    store: Arc<Store>,
    resource: &'static Resource,
    namespace: String,
    selector: Selector,
    table: bool,
    revisions: tokio::sync::watch::Receiver<u64>,
    position: u64,
    pending: String,
    end: Instant,
}

/// Starts a watch. What is already there comes first unless the client names the revision it knows.
pub(super) fn watch(
    ask: &Ask<'_>,
) -> Result<impl Body<Data = Bytes, Error = Infallible> + Send + use<>, Status> {
    let from = ask.parameter("resourceVersion");
    let asked = if from.is_empty() { Ok(0) } else { from.parse::<u64>() };
    let position = asked.map_err(|_| Status::bad_request(format!("invalid resource version {from:?}")))?;
    let seconds = ask.parameter("timeoutSeconds").parse();
    let mut watcher = Watcher {
        store: Arc::clone(ask.store),
        resource: ask.resource,
        namespace: ask.namespace.to_owned(),
        selector: Selector::parse(ask)?,
        table: ask.table,
        revisions: ask.store.subscribe(),
        position,
        pending: String::new(),
        end: Instant::now() + seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
    };
    let initial = ask.parameter("sendInitialEvents") == "true";
    let state = ask.store.read();
    if position == 0 || initial {
        for object in state.list(ask.resource, ask.namespace) {
            if watcher.selector.matches(&object) {
                watcher.push("ADDED", &object);
            }
        }
        watcher.position = state.revision;
    } else {
        state.since(position, ask.resource, ask.namespace)?;
    }
    if initial {
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": state.revision.to_string(), "annotations": annotations});
        let (kind, version) = (ask.resource.kind, ask.resource.api_version());
        watcher.tell("BOOKMARK", &json!({"kind": kind, "apiVersion": version, "metadata": metadata}));
    }
    Ok(StreamBody::new(stream::unfold(watcher, |mut watcher| async {
        let bytes = watcher.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), watcher))
    })))
}

impl Watcher {
    /// The next events. A watch that fell behind the history ends; the client learns why when it comes again.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.pending.is_empty() {
                return Some(std::mem::take(&mut self.pending).into());
            }
            // Marked as seen before reading: a change in between wakes the next turn again.
            self.revisions.mark_unchanged();
            let (revision, changes) = {
                let state = self.store.read();
                (state.revision, state.since(self.position, self.resource, &self.namespace).ok()?)
            };
            self.position = revision;
            for change in changes {
                self.follow(&change);
            }
            if self.pending.is_empty() {
                tokio::select! {
                    changed = self.revisions.changed() => changed.ok()?,
                    () = sleep_until(self.end) => return None,
                }
            }
        }
    }

    /// What a change means to this watch: an object that stops matching is gone for it.
    fn follow(&mut self, change: &Change) {
        let before = change.before.as_ref().is_some_and(|object| self.selector.matches(object));
        let after = !change.deleted && self.selector.matches(&change.object);
        match (before, after) {
            (false, true) => self.push("ADDED", &change.object),
            (true, true) => self.push("MODIFIED", &change.object),
            (true, false) => self.push("DELETED", &change.object),
            (false, false) => {}
        }
    }

    fn push(&mut self, event: &str, object: &Value) {
        if self.table {
            self.tell(event, &table::of_one(self.resource, object, self.store.now()));
        } else {
            self.tell(event, object);
        }
    }

    fn tell(&mut self, event: &str, object: &Value) {
        self.pending += &json!({"type": event, "object": object}).to_string();
        self.pending.push('\n');
    }
}
