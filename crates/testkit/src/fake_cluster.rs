//! A fake API server that stores objects with the semantics of kube-apiserver that controllers depend on: resource
//! versions, watches, conflicts, certificates that are written once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use futures_util::stream::unfold;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Collected, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fake_backend::{FakeBackend, H2};
use crate::messages::{BoxedBody, BoxedError, ResponseFuture, full};
use crate::self_check::{self, respond};
use crate::test_pki::Pki;
use crate::waiting::until;

/// The path of certificate signing requests.
pub const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// The path of requests of certificates for pods, of all namespaces.
pub const POD_REQUESTS: &str = "/apis/certificates.k8s.io/v1/podcertificaterequests";
const CERTIFICATES: &str = "/apis/certificates.k8s.io/v1";
/// The path of leases.
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/kube-system/events";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// The objects, by their paths.
#[derive(Default)]
struct State {
    revision: u64,
    objects: BTreeMap<String, Value>,
    history: Vec<(u64, &'static str, &'static str, Value)>,
    /// The objects whose next write fails with a conflict.
    conflicts: BTreeSet<String>,
    refused: usize,
    /// Every certificate that was written, by the name of its request.
    certificates: Vec<(String, String)>,
}

/// The objects, and switches for tests.
pub struct FakeCluster {
    state: Mutex<State>,
    revision: watch::Sender<u64>,
    /// The answer of access reviews.
    pub allows: AtomicBool,
    /// Whether leases can be written.
    pub leases: AtomicBool,
    /// Whether responses to lease requests are delayed.
    pub slow: AtomicBool,
    /// Whether responses to writes of certificates are delayed.
    pub late: AtomicBool,
}

/// Access reviews refuse requesters whose names have this prefix.
pub const STRANGER: &str = "stranger";

/// Whether the path is that of an object that a request for a pod names: a pod, a service account or a node.
fn is_of_pods(path: &str) -> bool {
    let mut segments = path.strip_prefix("/api/v1/").unwrap_or_default().split('/');
    match (segments.next(), segments.next(), segments.next()) {
        (Some("nodes"), Some(_), None) => true,
        (Some("namespaces"), Some(_), Some(resource)) => ["pods", "serviceaccounts"].contains(&resource),
        _ => false,
    }
}

/// The collection, the path of the object in it, and the subresource.
fn place(path: &str) -> Option<(&'static str, Option<String>, String)> {
    let within = path.strip_prefix(CERTIFICATES).and_then(|rest| rest.strip_prefix("/namespaces/"));
    if let Some((namespace, rest)) = within.and_then(|rest| rest.split_once('/')) {
        let name = rest.strip_prefix("podcertificaterequests/")?;
        let (name, subresource) = name.split_once('/').unwrap_or((name, ""));
        return Some((
            POD_REQUESTS,
            Some(format!("{POD_REQUESTS}/{namespace}/{name}")),
            subresource.to_owned(),
        ));
    }
    let collection =
        [CSRS, POD_REQUESTS, LEASES, EVENTS].into_iter().find(|collection| path.starts_with(collection))?;
    let rest = path.strip_prefix(collection)?.trim_start_matches('/');
    let (name, subresource) = rest.split_once('/').unwrap_or((rest, ""));
    let object = (!name.is_empty()).then(|| format!("{collection}/{name}"));
    Some((collection, object, subresource.to_owned()))
}

fn failure(code: StatusCode, reason: &str) -> Response<BoxedBody> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16()});
    respond(code, &status)
}

impl FakeCluster {
    /// A cluster without objects.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State { revision: 1, ..State::default() }),
            revision: watch::Sender::new(1),
            allows: AtomicBool::new(true),
            leases: AtomicBool::new(true),
            slow: AtomicBool::new(false),
            late: AtomicBool::new(false),
        })
    }

    /// Serves it over TLS.
    pub async fn serve(self: &Arc<Self>, pki: &Pki) -> FakeBackend {
        let cluster = Arc::clone(self);
        let say = move |request: &Request<Incoming>| {
            let path = request.uri().path();
            let is_served =
                path == REVIEWS || path == CERTIFICATES || is_of_pods(path) || place(path).is_some();
            if is_served { None } else { self_check::answer(request) }
        };
        let answer = move |request| -> ResponseFuture { Box::pin(Arc::clone(&cluster).answer(request)) };
        FakeBackend::with_self_check(pki, H2, say, answer).await
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<BoxedBody> {
        let (head, body) = request.into_parts();
        // A gateway that ends breaks its requests off, and an API server stores nothing of those.
        let Ok(body) = body.collect().await.map(Collected::to_bytes) else {
            return failure(StatusCode::BAD_REQUEST, "BadRequest");
        };
        let mut value: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = head.uri.path();
        if path == REVIEWS {
            let is_strangers = value["spec"]["user"].as_str().is_some_and(|user| user.starts_with(STRANGER));
            value["status"] = json!({"allowed": !is_strangers && self.allows.load(Ordering::SeqCst)});
            return respond(StatusCode::CREATED, &value);
        }
        if path == CERTIFICATES {
            return respond(StatusCode::OK, &json!({"resources": [{"name": "podcertificaterequests"}]}));
        }
        let Some((collection, object, subresource)) = place(path) else {
            return match self.get(path) {
                Some(object) => respond(StatusCode::OK, &object),
                None if is_of_pods(path) => failure(StatusCode::NOT_FOUND, "NotFound"),
                None => Response::new(full("ok")),
            };
        };
        if collection == LEASES && self.slow.load(Ordering::SeqCst) {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        if collection == LEASES && head.method != Method::GET && !self.leases.load(Ordering::SeqCst) {
            return failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
        }
        match (head.method, object) {
            (Method::GET, None) => self.list(collection, head.uri.query().unwrap_or_default()),
            (Method::GET, Some(object)) => match self.state().objects.get(&object) {
                Some(value) => respond(StatusCode::OK, value),
                None => failure(StatusCode::NOT_FOUND, "NotFound"),
            },
            (Method::POST, None) => {
                let object = format!("{collection}/{}", value["metadata"]["name"].as_str().unwrap());
                if self.state().objects.contains_key(&object) {
                    return failure(StatusCode::CONFLICT, "AlreadyExists");
                }
                respond(StatusCode::CREATED, &self.put(collection, object, value, "ADDED"))
            }
            (Method::PUT, Some(object)) => {
                let written = self.replace(collection, object, &subresource, value);
                if subresource == "status" && self.late.load(Ordering::SeqCst) {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
                written
            }
            // A repeated event increments the count of its series.
            (Method::PATCH, Some(object)) if collection == EVENTS => {
                match self.state().objects.get(&object) {
                    Some(event) => respond(StatusCode::OK, event),
                    None => failure(StatusCode::NOT_FOUND, "NotFound"),
                }
            }
            (Method::DELETE, Some(object)) => self.delete(collection, &object, &value["preconditions"]),
            (method, _) => panic!("{method} {path} is not supported"),
        }
    }

    fn list(self: Arc<Self>, collection: &'static str, query: &str) -> Response<BoxedBody> {
        let parameters: BTreeMap<String, String> =
            url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let parameter = |name: &str| parameters.get(name).map(String::as_str);
        // The only field selector of requests that controllers use.
        let signer =
            parameter("fieldSelector").and_then(|selector| selector.strip_prefix("spec.signerName="));
        let signer = signer.map(str::to_owned);
        let is_selected = move |object: &Value| {
            signer.as_ref().is_none_or(|signer| object["spec"]["signerName"].as_str() == Some(signer))
        };
        if parameter("watch") == Some("true") {
            let from: u64 = parameter("resourceVersion").unwrap().parse().unwrap();
            let changes = self.revision.subscribe();
            let start = (self, changes, from, is_selected);
            let stream = unfold(start, move |(cluster, mut changes, from, is_selected)| async move {
                changes.wait_for(|revision| *revision > from).await.ok()?;
                let (text, to) = {
                    let state = cluster.state();
                    let begin = state.history.partition_point(|(at, ..)| *at <= from);
                    let new = state.history[begin..].iter();
                    let new = new.filter(|(_, of, _, object)| *of == collection && is_selected(object));
                    let lines =
                        new.map(|(_, _, kind, object)| json!({"type": kind, "object": object}).to_string());
                    (lines.map(|line| line + "\n").collect::<String>(), state.revision)
                };
                let next = (cluster, changes, to, is_selected);
                Some((Ok::<_, BoxedError>(Frame::data(Bytes::from(text))), next))
            });
            return Response::new(StreamBody::new(stream).boxed());
        }
        let state = self.state();
        let below = format!("{collection}/");
        let limit = parameter("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
        // A continue token is the path of the last object of the previous page.
        let after = parameter("continue").unwrap_or_default().to_owned();
        let of_collection =
            state.objects.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below));
        let mut rest = of_collection.filter(|(path, value)| **path > after && is_selected(value)).peekable();
        let (mut items, mut last) = (Vec::new(), String::new());
        while items.len() < limit
            && let Some((path, value)) = rest.next()
        {
            items.push(value);
            last.clone_from(path);
        }
        let token = if rest.peek().is_some() { last } else { String::new() };
        let metadata = json!({"resourceVersion": state.revision.to_string(), "continue": token});
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items});
        respond(StatusCode::OK, &list)
    }

    fn replace(
        &self,
        collection: &'static str,
        object: String,
        subresource: &str,
        mut value: Value,
    ) -> Response<BoxedBody> {
        let before = {
            let mut state = self.state();
            let Some(before) = state.objects.get(&object).cloned() else {
                return failure(StatusCode::NOT_FOUND, "NotFound");
            };
            let version = &value["metadata"]["resourceVersion"];
            assert!(version.is_string(), "{object} is written without a resourceVersion: {value}");
            if state.conflicts.remove(&object) || *version != before["metadata"]["resourceVersion"] {
                state.refused += 1;
                return failure(StatusCode::CONFLICT, "Conflict");
            }
            before
        };
        let certificate = |value: &Value| value["status"]["certificate"].as_str().map(str::to_owned);
        match subresource {
            "" if collection == LEASES => {}
            "status" => {
                value["spec"] = before["spec"].clone();
                if let Some(written) = certificate(&value) {
                    if certificate(&before).is_some_and(|before| before != written) {
                        return failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid");
                    }
                    let name = object.rsplit('/').next().unwrap().to_owned();
                    self.state().certificates.push((name, written));
                }
            }
            "approval" => {
                value["spec"] = before["spec"].clone();
                let conditions = value["status"]["conditions"].take();
                value["status"] = before["status"].clone();
                value["status"]["conditions"] = conditions;
            }
            other => panic!("{object}/{other} is not supported"),
        }
        value["metadata"]["uid"] = before["metadata"]["uid"].clone();
        respond(StatusCode::OK, &self.put(collection, object, value, "MODIFIED"))
    }

    fn delete(&self, collection: &'static str, object: &str, preconditions: &Value) -> Response<BoxedBody> {
        let mut state = self.state();
        let Some(before) = state.objects.get(object).cloned() else {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        };
        let differs = |key: &str| preconditions[key] != before["metadata"][key];
        if differs("uid") || differs("resourceVersion") {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        state.objects.remove(object);
        self.change(&mut state, collection, "DELETED", before.clone());
        respond(StatusCode::OK, &before)
    }

    fn put(&self, collection: &'static str, object: String, mut value: Value, kind: &'static str) -> Value {
        let mut state = self.state();
        let metadata = &mut value["metadata"];
        metadata["resourceVersion"] = json!((state.revision + 1).to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", state.revision));
        }
        if [LEASES, EVENTS].contains(&collection) {
            metadata["namespace"] = json!("kube-system");
        }
        state.objects.insert(object, value.clone());
        self.change(&mut state, collection, kind, value.clone());
        value
    }

    fn change(&self, state: &mut State, collection: &'static str, kind: &'static str, mut value: Value) {
        state.revision += 1;
        value["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        state.history.push((state.revision, collection, kind, value));
        self.revision.send_replace(state.revision);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Adds a request with this spec and status.
    pub fn request(&self, name: &str, spec: &Value, status: &Value) {
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": spec, "status": status,
        });
        self.put(CSRS, format!("{CSRS}/{name}"), object, "ADDED");
    }

    /// Adds a request for a pod.
    pub fn pod_request(&self, namespace: &str, name: &str, spec: &Value) {
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest",
            "metadata": {"namespace": namespace, "name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": spec, "status": {},
        });
        self.put(POD_REQUESTS, format!("{POD_REQUESTS}/{namespace}/{name}"), object, "ADDED");
    }

    /// Adds an object that controllers read and do not watch: a pod, a service account or a node.
    pub fn unwatched(&self, path: &str, object: Value) {
        assert!(is_of_pods(path), "{path}");
        self.state().objects.insert(path.to_owned(), object);
    }

    /// Lets the next write of a request fail with a conflict.
    pub fn conflict_once(&self, name: &str) {
        self.state().conflicts.insert(format!("{CSRS}/{name}"));
    }

    /// The object at a path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).cloned()
    }

    /// The status of a request.
    pub fn status(&self, name: &str) -> Value {
        self.get(&format!("{CSRS}/{name}")).unwrap()["status"].clone()
    }

    /// Waits until the status of a request satisfies `holds`.
    pub async fn until_status(&self, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        until(&format!("the status of {name}"), || holds(&self.status(name))).await;
        self.status(name)
    }

    /// Every certificate that was written, by the name of its request.
    pub fn certificates(&self) -> Vec<(String, String)> {
        self.state().certificates.clone()
    }

    /// The holder of a lease; empty if it is free.
    pub fn holder(&self, lease: &str) -> Option<String> {
        let lease = self.get(&format!("{LEASES}/{lease}"))?;
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }

    /// The notes of all events.
    pub fn events(&self) -> Vec<String> {
        let state = self.state();
        let events = state.objects.iter().filter(|(path, _)| path.starts_with(EVENTS));
        events.map(|(_, event)| event["note"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// How many writes were refused as conflicts.
    pub fn refused(&self) -> usize {
        self.state().refused
    }
}
