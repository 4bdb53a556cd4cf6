//! Watches that go on as client-go's reflector does: from the last resource version, and by a new list if the API server
//! no longer has the events since then. Compares the events with the successful writes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt as _;
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::client::{Call, Client};
use super::record::{Kind, Recorder, StreamEnd};

/// Clients pause before they watch again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// The successful writes: the namespace and the resource version.
#[derive(Default)]
pub struct Ledger(Mutex<Vec<(usize, u64)>>);

impl Ledger {
    /// Adds a write.
    pub fn add(&self, namespace: usize, version: u64) {
        self.0.lock().unwrap().push((namespace, version));
    }

    /// The number of writes.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One watch of the ConfigMaps of a namespace.
pub struct Watch {
    namespace: usize,
    state: Arc<Mutex<State>>,
    relists: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// The version of the first list; 0 before it.
    first: u64,
    last: u64,
    seen: HashSet<u64>,
    /// What lists have replaced: after the first version, up to the second.
    relisted: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    code: u16,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(rename = "resourceVersion", default)]
    version: String,
}

/// Why a watch must go on in another way.
enum Ended {
    /// From the last version.
    Resume,
    /// By a list.
    Relist,
}

/// The resource version of an object or a list.
pub(super) fn version_of(body: &[u8]) -> Option<u64> {
    let object: Object = serde_json::from_slice(body).ok()?;
    object.metadata.version.parse().ok()
}

impl Watch {
    /// Starts a watch.
    pub fn start(client: Client, namespace: usize, recorder: Arc<Recorder>) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let relists = Arc::new(AtomicUsize::new(0));
        let (shared, counted) = (Arc::clone(&state), Arc::clone(&relists));
        let task = tokio::spawn(async move {
            let mut lists = true;
            loop {
                if lists && !list(&client, namespace, &shared).await {
                    sleep(RECONNECT_PAUSE).await;
                    continue;
                }
                lists = matches!(follow(&client, namespace, &shared, &recorder).await, Ended::Relist);
                counted.fetch_add(usize::from(lists), Ordering::Relaxed);
                sleep(RECONNECT_PAUSE).await;
            }
        });
        Self { namespace, state, relists, task }
    }

    /// Whether the first list has ended.
    pub fn has_begun(&self) -> bool {
        self.state.lock().unwrap().first > 0
    }

    /// How often the API server had no events since the last version.
    pub fn relists(&self) -> usize {
        self.relists.load(Ordering::Relaxed)
    }

    /// The number of events so far.
    pub fn events(&self) -> usize {
        self.state.lock().unwrap().seen.len()
    }

    /// The number of writes since its begin, among this many of the first ones, that neither an event nor a list has
    /// shown.
    pub fn missing(&self, ledger: &Ledger, writes: usize) -> usize {
        let state = self.state.lock().unwrap();
        let is_missing = |(namespace, version): &&(usize, u64)| {
            *namespace == self.namespace
                && *version > state.first
                && !state.seen.contains(version)
                && !state.relisted.iter().any(|(after, to)| (after + 1..=*to).contains(version))
        };
        ledger.0.lock().unwrap().iter().take(writes).filter(is_missing).count()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads the version to begin at. As a reflector, it accepts no state before the one it has.
async fn list(client: &Client, namespace: usize, state: &Mutex<State>) -> bool {
    let path = format!("/api/v1/namespaces/load-{namespace}/configmaps?limit=1");
    let Some(version) = client.call(&Call::get(&path)).await.and_then(|body| version_of(&body)) else {
        return false;
    };
    let mut state = state.lock().unwrap();
    if state.first == 0 {
        state.first = version;
    } else {
        let after = state.last;
        state.relisted.push((after, version));
    }
    state.last = version;
    true
}

async fn follow(client: &Client, namespace: usize, state: &Mutex<State>, recorder: &Recorder) -> Ended {
    let from = state.lock().unwrap().last;
    let path = format!(
        "/api/v1/namespaces/load-{namespace}/configmaps?watch=1&allowWatchBookmarks=true&resourceVersion={from}"
    );
    let (gateway, response) = match client.open(&Call::get(&path)).await {
        Ok(opened) => opened,
        Err(StatusCode::GONE) => return Ended::Relist,
        Err(_) => return Ended::Resume,
    };
    let mut body = response.into_body();
    let mut line = Vec::new();
    let is_clean = loop {
        let data = match body.frame().await {
            None => break true,
            Some(Err(_)) => break false,
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        };
        for part in data.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if !line.ends_with(b"\n") {
                continue;
            }
            let Ok(event) = serde_json::from_slice::<Event>(&line) else { break };
            line.clear();
            if event.kind == "ERROR" {
                return if event.object.code == 410 { Ended::Relist } else { Ended::Resume };
            }
            let Ok(version) = event.object.metadata.version.parse() else { continue };
            let mut state = state.lock().unwrap();
            state.last = version;
            if event.kind != "BOOKMARK" {
                state.seen.insert(version);
            }
        }
    };
    recorder.add_end(StreamEnd { kind: Kind::Watch, gateway, server: None, is_clean, at: Instant::now() });
    Ended::Resume
}
