//! A fake cluster for controller tests: an API server that stores objects, serves watches, and refuses stale writes.
//! Its clock is tokio's, which tests pause.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_system::clock::Clock;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tower::{BoxError, service_fn};

use super::ControllerContext;
use super::settings::ControllerSettings;
use crate::backend::bounded_client::bounded;
use crate::metrics::Metrics;

/// The start of its clock: 2023-11-14T22:13:20Z.
pub(crate) const BEGINNING: Duration = Duration::from_secs(1_700_000_000);

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// The objects of a cluster, by their paths.
#[derive(Clone)]
pub(crate) struct FakeCluster {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    /// The watch events: revision, collection and event.
    events: Vec<(u64, String, Value)>,
    revision: u64,
    /// The write requests of controllers: method, path and status code.
    writes: Vec<(Method, String, u16)>,
    /// Status codes that the next writes fail with.
    refusals: Vec<u16>,
    /// Collections whose lists fail.
    held: Vec<String>,
    /// Those that the API server does not serve.
    retired: Vec<String>,
}

impl FakeCluster {
    pub(crate) fn new() -> Self {
        Self { state: Arc::default(), changed: watch::Sender::new(0) }
    }

    /// A controller context for this cluster.
    pub(crate) fn context(&self) -> ControllerContext {
        let cluster = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let cluster = cluster.clone();
            async move { Ok::<_, Infallible>(cluster.answer(request).await) }
        });
        let begun = Instant::now();
        ControllerContext {
            cluster: "c".into(),
            identity: "test".into(),
            client: Client::new(service, "default"),
            settings: Arc::new(ControllerSettings {
                names: BTreeSet::new(),
                signers: Vec::new(),
                pod_signers: Vec::new(),
                signing_duration: Duration::from_hours(8760),
                published: Vec::new(),
                log: None,
                election: None,
            }),
            metrics: Arc::new(Metrics::new()),
            clock: Clock::from_fn(move || BEGINNING + begun.elapsed()),
            writes: TaskTracker::new(),
            lists: Arc::new(Semaphore::new(1)),
            max_stored_bytes: super::bounded_store::MAX_BYTES,
            caches: CacheShare::UNBOUNDED,
            problems: Arc::default(),
        }
    }

    /// Creates or changes an object, as another client.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.store(path, object);
    }

    /// Deletes an object, as another client.
    pub(crate) fn remove(&self, path: &str) {
        self.delete(path);
    }

    /// The current object.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    /// The write requests since the last call.
    pub(crate) fn writes(&self) -> Vec<(Method, String, u16)> {
        std::mem::take(&mut self.state.lock().unwrap().writes)
    }

    /// Fails the next write with this code.
    pub(crate) fn refuse(&self, code: u16) {
        self.state.lock().unwrap().refusals.push(code);
    }

    /// Fails lists of a collection while `held`.
    pub(crate) fn hold(&self, collection: &str, held: bool) {
        let mut state = self.state.lock().unwrap();
        state.held.retain(|known| known != collection);
        if held {
            state.held.push(collection.to_owned());
        }
    }

    /// Serves a collection no longer: lists get 404, and watches end.
    pub(crate) fn retire(&self, collection: &str) {
        self.state.lock().unwrap().retired.push(collection.to_owned());
        self.expire(collection);
    }

    /// Ends watches of a collection with 410 Expired: watchers have to list again.
    pub(crate) fn expire(&self, collection: &str) {
        let mut state = self.state.lock().unwrap();
        state.revision += 1;
        let revision = state.revision;
        let status =
            json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": ""});
        let event = json!({"type": "ERROR", "object": status});
        state.events.push((revision, collection.to_owned(), event));
        drop(state);
        self.changed.send_replace(revision);
    }

    fn store(&self, path: &str, mut object: Value) -> Value {
        let mut state = self.state.lock().unwrap();
        state.revision += 1;
        let (revision, known) = (state.revision, state.objects.contains_key(path));
        let (collection, name) = path.rsplit_once('/').unwrap();
        let parts: Vec<_> = collection.split('/').collect();
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = parts[parts.len() - 2].into();
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{revision}").into();
        }
        let event = if known { "MODIFIED" } else { "ADDED" };
        let event = json!({"type": event, "object": object});
        state.events.push((revision, collection.to_owned(), event));
        state.objects.insert(path.to_owned(), object.clone());
        drop(state);
        self.changed.send_replace(revision);
        object
    }

    fn delete(&self, path: &str) -> Option<Value> {
        let mut state = self.state.lock().unwrap();
        let mut object = state.objects.remove(path)?;
        state.revision += 1;
        let revision = state.revision;
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        let event = json!({"type": "DELETED", "object": object});
        let (collection, _) = path.rsplit_once('/').unwrap();
        state.events.push((revision, collection.to_owned(), event));
        drop(state);
        self.changed.send_replace(revision);
        Some(object)
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = head.uri.path().to_owned();
        let query: BTreeMap<_, _> =
            url::form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).collect();
        if head.method == Method::GET {
            if query.contains_key("watch") {
                let since = query.get("resourceVersion").unwrap().parse().unwrap();
                return Response::new(self.watch(path, since));
            }
            if let Some(object) = self.get(&path) {
                return reply(200, object);
            }
            return self.list(&path);
        }
        let path = path.strip_suffix("/status").map_or(path.clone(), str::to_owned);
        let code = self.write(&head.method, &path, &body);
        self.state.lock().unwrap().writes.push((head.method, path.clone(), code));
        reply(code, self.get(&path).unwrap_or_else(|| json!({"kind": "Status", "status": "Success"})))
    }

    fn write(&self, method: &Method, path: &str, body: &Value) -> u16 {
        let refusal = self.state.lock().unwrap().refusals.pop();
        if let Some(code) = refusal {
            return code;
        }
        if *method == Method::POST {
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
            if self.get(&path).is_some() {
                return 409;
            }
            self.store(&path, body.clone());
            return 201;
        }
        let Some(known) = self.get(path) else { return 404 };
        let given = if *method == Method::DELETE { &body["preconditions"] } else { &body["metadata"] };
        let fits = |key: &str| given[key].is_null() || given[key] == known["metadata"][key];
        // Every write of a controller must carry the version that it read.
        assert!(given["resourceVersion"].is_string() && given["uid"].is_string(), "{method} {path}: {body}");
        if !fits("resourceVersion") || !fits("uid") {
            return 409;
        }
        if *method == Method::DELETE {
            self.delete(path);
        } else {
            self.store(path, body.clone());
        }
        200
    }

    fn list(&self, path: &str) -> Answer {
        let state = self.state.lock().unwrap();
        if state.held.iter().any(|held| held == path) {
            drop(state);
            return reply(500, Value::Null);
        }
        if state.retired.iter().any(|retired| retired == path) {
            drop(state);
            return reply(404, Value::Null);
        }
        let within = |(object, _): &(&String, &Value)| is_in(path, object.rsplit_once('/').unwrap().0);
        let items: Vec<_> = state.objects.iter().filter(within).map(|(_, object)| object.clone()).collect();
        reply(200, json!({"metadata": {"resourceVersion": state.revision.to_string()}, "items": items}))
    }

    fn watch(&self, path: String, since: u64) -> UnsyncBoxBody<Bytes, Infallible> {
        let (state, changed) = (Arc::clone(&self.state), self.changed.subscribe());
        let events = unfold((state, changed, since), move |(state, mut changed, mut since)| {
            let path = path.clone();
            async move {
                loop {
                    let next = {
                        let state = state.lock().unwrap();
                        let mut new = state.events.iter().filter(|(revision, ..)| *revision > since);
                        new.find(|(_, collection, _)| is_in(&path, collection)).cloned()
                    };
                    if let Some((revision, _, event)) = next {
                        since = revision;
                        let frame = Frame::data(Bytes::from(format!("{event}\n")));
                        return Some((Ok::<_, Infallible>(frame), (state, changed, since)));
                    }
                    changed.changed().await.ok()?;
                }
            }
        });
        StreamBody::new(events).boxed_unsync()
    }
}

/// Whether a collection is another one, or its part of one namespace.
fn is_in(collection: &str, other: &str) -> bool {
    let whole = other.split_once("/namespaces/").and_then(|(start, rest)| {
        let (_, resource) = rest.split_once('/')?;
        Some(format!("{start}/{resource}"))
    });
    collection == other || whole.as_deref() == Some(collection)
}

/// The requests that a silent API server accepts and never answers, or whose response body never comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silent {
    List,
    ListBody,
    Watch,
    WatchBody,
}

impl Silent {
    pub(crate) const ALL: [Self; 4] = [Self::List, Self::ListBody, Self::Watch, Self::WatchBody];
    pub(crate) const DURATION: Duration = Duration::from_mins(10);

    /// `client` with the controllers' bounds, of an API server that is silent for [`Self::DURATION`] from now. Requests
    /// from that time are never answered.
    pub(crate) fn client(self, client: Client) -> Client {
        let begun = Instant::now();
        let service = service_fn(move |request: Request<Body>| {
            let client = client.clone();
            async move {
                let is_watch = request.uri().query().is_some_and(|query| query.contains("watch"));
                let is_silent = request.method() == Method::GET
                    && is_watch == matches!(self, Self::Watch | Self::WatchBody);
                if !is_silent || begun.elapsed() >= Self::DURATION {
                    return Ok(client
                        .send(request)
                        .await?
                        .map(|body| body.map_err(BoxError::from).boxed_unsync()));
                }
                if matches!(self, Self::List | Self::Watch) {
                    std::future::pending::<()>().await;
                }
                let never = futures_util::stream::pending::<Result<Frame<Bytes>, BoxError>>();
                Ok::<_, BoxError>(Response::new(StreamBody::new(never).boxed_unsync()))
            }
        });
        bounded(Client::new(service, "default"))
    }
}

fn reply(code: u16, body: Value) -> Answer {
    let body = if code < 400 {
        body
    } else {
        json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason(code)})
    };
    Response::builder().status(code).body(Full::new(Bytes::from(body.to_string())).boxed_unsync()).unwrap()
}

fn reason(code: u16) -> &'static str {
    match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    }
}
