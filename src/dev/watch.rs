//! Watches of the embedded backend: a body that never ends before its time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::{Body, Frame};
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::ask::Ask;
use super::json::set;
use super::resources::Resource;
use super::selector::Selector;
use super::store::{Change, Store};
use super::table::Table;
use crate::status::Status;
use crate::status::render::{Negotiation, render};

/// How long a watch lasts when the client does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(30);
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);

struct Watcher {
    store: Arc<Store>,
    resource: &'static Resource,
    namespace: Option<String>,
    selector: Selector,
    table: Option<Table>,
    revisions: tokio::sync::watch::Receiver<u64>,
    position: u64,
    pending: VecDeque<Bytes>,
    columns_sent: bool,
    bookmarks: Option<Interval>,
    end: Instant,
    ended: bool,
}

/// Starts a watch. What is already there comes first unless the client names the revision it knows.
pub(super) fn watch(
    ask: &Ask<'_>,
) -> Result<impl Body<Data = Bytes, Error = Infallible> + Send + use<>, Status> {
    let from = ask.parameter("resourceVersion");
    let asked = if from.is_empty() { Ok(0) } else { from.parse::<u64>() };
    let asked = asked.map_err(|_| Status::bad_request(format!("invalid resource version {from:?}")))?;
    let initial = ask.is_true("sendInitialEvents");
    let bookmarks = ask.is_true("allowWatchBookmarks").then(|| {
        let mut interval = tokio::time::interval_at(Instant::now() + BOOKMARK_EVERY, BOOKMARK_EVERY);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    });
    let mut watcher = Watcher {
        revisions: ask.store.subscribe(),
        store: Arc::clone(ask.store),
        resource: ask.resource,
        namespace: ask.scope().map(str::to_owned),
        selector: Selector::parse(ask)?,
        table: ask.table,
        position: asked,
        pending: VecDeque::new(),
        columns_sent: false,
        bookmarks,
        end: Instant::now()
            + ask.parameter("timeoutSeconds").parse().map_or(DEFAULT_TIMEOUT, Duration::from_secs),
        ended: false,
    };
    if asked == 0 || initial {
        let (revision, objects) = ask.store.list(ask.resource, ask.scope());
        for (_, object) in &objects {
            if watcher.selector.matches(object) {
                watcher.push("ADDED", object);
            }
        }
        watcher.position = revision;
        if initial {
            watcher.bookmark(true);
        }
    }
    Ok(StreamBody::new(stream::unfold(watcher, |mut watcher| async {
        let bytes = watcher.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), watcher))
    })))
}

impl Watcher {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let (bookmarks, revisions) = (&mut self.bookmarks, &mut self.revisions);
            // Marked as seen before reading: a change in between wakes the next turn again.
            revisions.mark_unchanged();
            match self.store.since(self.position, self.resource, self.namespace.as_deref()) {
                Ok((revision, changes)) => {
                    self.position = revision;
                    if !changes.is_empty() {
                        for change in &changes {
                            self.tell(change);
                        }
                        continue;
                    }
                }
                Err(status) => {
                    let status = render(
                        &status,
                        &Negotiation { accept: "application/json".into(), ..Negotiation::default() },
                    );
                    let object = serde_json::from_slice::<Value>(status.body()).unwrap_or_default();
                    self.pending.push_back(line("ERROR", &object));
                    self.ended = true;
                    continue;
                }
            }
            let bookmark = async {
                match bookmarks {
                    Some(bookmarks) => drop(bookmarks.tick().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = revisions.changed() => self.ended = changed.is_err(),
                () = bookmark => self.bookmark(false),
                () = tokio::time::sleep_until(self.end) => self.ended = true,
            }
        }
    }

    /// What a change means to this watch: an object that stops matching is gone for it.
    fn tell(&mut self, change: &Change) {
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
        let object = match self.table {
            Some(table) => {
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                let now = self.store.now();
                table.render(self.resource, std::iter::once(object), None, columns, now)
            }
            None => object.clone(),
        };
        self.pending.push_back(line(event, &object));
    }

    /// Tells the position without a change; the first one after the initial events says so.
    fn bookmark(&mut self, initial: bool) {
        let mut object = json!({
            "kind": self.resource.kind, "apiVersion": self.resource.api_version(),
            "metadata": {"resourceVersion": self.position.to_string()},
        });
        if initial {
            set(&mut object, "/metadata/annotations/k8s.io~1initial-events-end", "true");
        }
        self.pending.push_back(line("BOOKMARK", &object));
    }
}

fn line(event: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({"type": event, "object": object})).into()
}
