//! Admission webhooks of the gateway, where a real API server cannot show it: API servers without dry runs, webhooks that
//! misbehave, and what the API server receives. The rest is in the twin group `admission`.

mod bounds;
mod mutations;
pub(crate) mod policies;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use futures_util::future::{join_all, pending};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::self_check::{self, respond};
use testkit::{BoxedBody, FakeBackend, Gateway, H2, Pki, flags, full, text, until};
use tokio::net::TcpListener;

use crate::gateway::InProcess as _;

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");
const MAPS: &str = "/api/v1/namespaces/n/configmaps";
const WIDGETS: &str = "/apis/aggregated.test/v1/namespaces/n/widgets";
const GADGETS: &str = "/apis/aggregated.test/v1/namespaces/n/gadgets";
/// In a group that kube-apiserver serves itself, and has not published yet.
const FRESH: &str = "/apis/fresh.test/v1/namespaces/n/things";
/// What discovery lists of it.
const DISCOVERY: [&str; 2] = ["/apis/fresh.test", "/apis/fresh.test/v1"];
/// What discovery lists of the core group, if it does.
const CORE_DISCOVERY: [&str; 2] = ["/api", "/api/v1"];
/// Objects in two versions.
const AUTOSCALERS: &str = "/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers";
const AUTOSCALERS_V1: &str = "/apis/autoscaling/v1/namespaces/n/horizontalpodautoscalers";
/// In a group that is not listed: the API server does not answer.
const SILENT: &str = "/apis/silent.test/v1/namespaces/n/things";
const SILENT_DISCOVERY: &str = "/apis/silent.test";
/// An object and a namespace of which the API server answers no read.
const SILENT_MAP: &str = "/api/v1/namespaces/n/configmaps/silent";
const SILENT_NAMESPACE: &str = "/api/v1/namespaces/silent";
const OPENAPI: &str = "/openapi/v3/apis/aggregated.test/v1";
const NAMESPACE: &str = "/api/v1/namespaces/n";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices/";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// A request as the API server has received it.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    method: Method,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    body: Value,
}

impl Received {
    /// Whether it could store something.
    fn is_write(&self) -> bool {
        let options = self.target.contains("dryRun=All") || self.body["dryRun"] == json!(["All"]);
        self.method != Method::GET && !options && !self.target.starts_with(REVIEWS)
    }

    fn line(&self) -> String {
        format!("{} {}", self.method, self.target)
    }
}

/// An API server with one stored object, and a webhook.
pub(crate) struct Admitting {
    pub(crate) pki: Pki,
    backend: FakeBackend,
    pub(crate) webhook: FakeBackend,
    pub(crate) received: Arc<Mutex<Vec<Received>>>,
    /// The reviews, and what the webhook answers; `None`: never.
    pub(crate) reviews: Arc<Mutex<Vec<Value>>>,
    /// The schemas of the core group.
    published: Arc<Mutex<Published>>,
    /// Whether discovery has the core group.
    lists_core: Arc<AtomicBool>,
}

/// What the API server publishes of the core group.
#[derive(Debug, Clone)]
enum Published {
    Document(String),
    Absent,
    /// It does not answer.
    Silent,
}

impl Published {
    /// The index, or the document.
    async fn serve(self, path: &str) -> Response<BoxedBody> {
        let paths = json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=1"}}});
        match self {
            Self::Silent => pending().await,
            Self::Absent => respond(StatusCode::OK, &json!({"paths": {}})),
            Self::Document(_) if path == "/openapi/v3" => respond(StatusCode::OK, &paths),
            Self::Document(text) => Response::new(full(text)),
        }
    }
}

/// The document with the schema of a `ConfigMap`.
fn config_map_schema() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    let metadata = json!({"type": "object", "properties": {"name": text, "namespace": text, "uid": text, "labels": texts}});
    json!({"components": {"schemas": {"io.k8s.api.core.v1.ConfigMap": {
        "type": "object",
        "properties": {"apiVersion": text, "kind": text, "metadata": metadata, "data": texts},
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "ConfigMap"}],
    }}}})
}

type Answer = dyn Fn(&Value) -> Option<Response<BoxedBody>> + Send + Sync;

impl Admitting {
    pub(crate) async fn start(
        answer: impl Fn(&Value) -> Option<Response<BoxedBody>> + Send + Sync + 'static,
    ) -> Self {
        let pki = Pki::new();
        let (received, reviews) =
            (Arc::<Mutex<Vec<Received>>>::default(), Arc::<Mutex<Vec<Value>>>::default());
        let record = Arc::clone(&received);
        let published = Arc::new(Mutex::new(Published::Document(config_map_schema().to_string())));
        let publishing = Arc::clone(&published);
        let lists_core = Arc::<AtomicBool>::default();
        let is_listed = Arc::clone(&lists_core);
        let self_check = move |request: &Request<Incoming>| {
            let path = request.uri().path();
            if is_listed.load(Ordering::Relaxed) && CORE_DISCOVERY.contains(&path) {
                return Some(core_discovery(path));
            }
            let is_answered =
                [REVIEWS, NAMESPACE, DISCOVERY[0], DISCOVERY[1], SILENT_DISCOVERY, SILENT_NAMESPACE]
                    .contains(&path)
                    || ["/openapi/v3", API_SERVICES, "/apis/autoscaling"]
                        .iter()
                        .any(|known| path.starts_with(known));
            if is_answered { None } else { self_check::answer(request) }
        };
        let backend = FakeBackend::with_self_check(&pki, H2, self_check, move |request| {
            let (record, publishing) = (Arc::clone(&record), Arc::clone(&publishing));
            Box::pin(async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let target = head.uri.path_and_query().unwrap().as_str().to_owned();
                let received = Received { method: head.method, target, headers: head.headers, body };
                record.lock().unwrap().push(received.clone());
                let is_read = received.method == Method::GET;
                if is_read && [SILENT_DISCOVERY, SILENT_MAP, SILENT_NAMESPACE].contains(&&*received.target) {
                    pending::<()>().await;
                }
                if ["/openapi/v3", "/openapi/v3/api/v1"].contains(&&*received.target) {
                    let published = publishing.lock().unwrap().clone();
                    return published.serve(&received.target).await;
                }
                serve(&received)
            })
        })
        .await;
        let answer: Arc<Answer> = Arc::new(answer);
        let record = Arc::clone(&reviews);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let webhook = FakeBackend::without_client_auth(&pki, listener, move |request| {
            let (record, answer) = (Arc::clone(&record), Arc::clone(&answer));
            Box::pin(async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let review: Value =
                    serde_json::from_slice(&body).unwrap_or_else(|_| bounds::deep_review(&body));
                record.lock().unwrap().push(review.clone());
                match answer(&review) {
                    Some(answer) => answer,
                    None => pending().await,
                }
            })
        });
        Self { pki, backend, webhook, received, reviews, published, lists_core }
    }

    /// Writes the files of one validating webhook for everything.
    pub(crate) fn write(&self, failure_policy: &str, timeout: u32) {
        self.write_webhook((&["*"], "*"), failure_policy, timeout);
    }

    /// The same for one version of these groups.
    fn write_rule(&self, groups: &[&str], version: &str, failure_policy: &str) {
        self.write_webhook((groups, version), failure_policy, 5);
    }

    fn write_webhook(&self, (groups, version): (&[&str], &str), failure_policy: &str, timeout: u32) {
        let manifest = self.manifest((groups, version), failure_policy, timeout);
        self.write_manifest(&manifest.to_string());
    }

    fn manifest(&self, (groups, version): (&[&str], &str), failure_policy: &str, timeout: u32) -> Value {
        let ca = self.ca_bundle();
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "policy.static.k8s.io"}, "webhooks": [{"name": "policy.example.com",
                "clientConfig": {"url": format!("https://{}/validate", self.webhook.address), "caBundle": ca},
                "rules": [{"operations": ["*"], "apiGroups": groups, "apiVersions": [version], "resources": ["*/*"]}],
                "failurePolicy": failure_policy, "timeoutSeconds": timeout,
                "sideEffects": "None", "admissionReviewVersions": ["v1"]}]})
    }

    fn ca_bundle(&self) -> String {
        base64::engine::general_purpose::STANDARD.encode(self.pki.servers.cert_pem())
    }

    fn write_manifest(&self, manifest: &str) {
        let folder = self.directory().join("validating");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("policy.yaml"), manifest).unwrap();
        let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
            {"name": "ValidatingAdmissionWebhook", "configuration": {"apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "WebhookAdmissionConfiguration", "staticManifestsDir": folder}}]});
        std::fs::write(self.directory().join("admission.json"), configuration.to_string()).unwrap();
    }

    fn directory(&self) -> &Path {
        self.pki.directory.path()
    }

    fn gateway(&self, mode: &str) -> Gateway {
        self.gateway_with(mode, &[])
    }

    pub(crate) fn gateway_with(&self, mode: &str, more: &[&str]) -> Gateway {
        Gateway::with(self.flags(mode, more))
    }

    fn flags(&self, mode: &str, more: &[&str]) -> Vec<String> {
        let mut flags = flags(&self.pki, self.backend.address);
        flags.extend(more.iter().map(ToString::to_string));
        let file = self.directory().join("admission.json");
        flags.push(format!("--admission-control-config-file={}", file.display()));
        flags.push(format!("--admission-mode={mode}"));
        flags
    }

    /// What the API server has received since the last call, except the gateway's own questions.
    fn received(&self) -> Vec<Received> {
        let mut received = std::mem::take(&mut *self.received.lock().unwrap());
        received.retain(|received| {
            let of_gateway = ["/openapi/v3", REVIEWS, API_SERVICES];
            !of_gateway.iter().any(|path| received.target.starts_with(path))
        });
        received
    }

    fn lines(&self) -> Vec<String> {
        self.received().iter().map(Received::line).collect()
    }

    fn reviews(&self) -> usize {
        std::mem::take(&mut *self.reviews.lock().unwrap()).len()
    }
}

/// The API server: an aggregated API has dry runs of widgets, and not of gadgets.
fn serve(received: &Received) -> Response<BoxedBody> {
    let path = received.target.split('?').next().unwrap();
    let stored = |resource_version: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "m", "namespace": "n", "uid": "u", "resourceVersion": resource_version}})
    };
    let created = || {
        let mut object = received.body.clone();
        object["metadata"]["uid"] = json!("new");
        respond(StatusCode::CREATED, &object)
    };
    match (&received.method, path) {
        // One that the API server cannot decide.
        (_, REVIEWS) if received.body["spec"]["resourceAttributes"]["resource"] == "undecided" => respond(
            StatusCode::INTERNAL_SERVER_ERROR,
            &json!({"kind": "Status", "apiVersion": "v1", "code": 500}),
        ),
        (_, REVIEWS) => {
            let is_allowed = received.body["spec"]["user"] != "system:anonymous";
            respond(StatusCode::CREATED, &json!({"status": {"allowed": is_allowed}}))
        }
        (_, "/openapi/v3/apis/fresh.test/v1") => respond(StatusCode::NOT_FOUND, &json!({})),
        (_, path) if path.starts_with(API_SERVICES) => {
            let service = json!({"name": "server", "namespace": "n"});
            let spec = if path.ends_with("fresh.test") { json!({}) } else { json!({"service": service}) };
            respond(StatusCode::OK, &json!({"spec": spec}))
        }
        (method, _) if path.starts_with("/apis/autoscaling") && *method != Method::POST => {
            autoscaling(path, &received.body)
        }
        (method, _) if path.contains("/sized-") || path.contains("/deep-") => bounds::serve(method, path),
        (&Method::GET, NAMESPACE) => {
            let labels = json!({"kubernetes.io/metadata.name": "n"});
            respond(
                StatusCode::OK,
                &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": labels}}),
            )
        }
        (_, OPENAPI) => {
            let dry_run = json!({"post": {"parameters": [{"name": "dryRun", "in": "query"}]}});
            let paths = json!({"/apis/aggregated.test/v1/namespaces/{namespace}/widgets": dry_run,
                "/apis/aggregated.test/v1/namespaces/{namespace}/gadgets": {"post": {}, "delete": {}}});
            respond(StatusCode::OK, &json!({"paths": paths}))
        }
        (&Method::GET, path) if path.ends_with("/absent") => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
            respond(StatusCode::NOT_FOUND, &status)
        }
        (&Method::GET, "/apis/fresh.test") => {
            respond(StatusCode::OK, &json!({"kind": "APIGroup", "versions": [{"version": "v1"}]}))
        }
        (&Method::GET, "/apis/fresh.test/v1") => {
            respond(StatusCode::OK, &json!({"resources": [{"name": "things", "kind": "Thing"}]}))
        }
        (&Method::POST | &Method::PUT, _) if received.body["metadata"]["labels"]["drift"] == "yes" => {
            drifted(received)
        }
        (&Method::POST, _) => created(),
        (&Method::DELETE, _) => {
            respond(StatusCode::OK, &json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        }
        _ => respond(StatusCode::OK, &stored("5")),
    }
}

fn core_discovery(path: &str) -> Response<BoxedBody> {
    let list = match path {
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"]}),
        _ => json!({"resources": [{"name": "configmaps", "kind": "ConfigMap"}]}),
    };
    respond(StatusCode::OK, &list)
}

/// Discovery and objects of the group. Of the object `later` the gateway does not know all fields.
fn autoscaling(path: &str, body: &Value) -> Response<BoxedBody> {
    let segments: Vec<&str> = path.trim_start_matches("/apis/autoscaling").split('/').skip(1).collect();
    let value = match segments.as_slice() {
        [] => json!({"kind": "APIGroup", "versions": [{"version": "v2"}, {"version": "v1"}]}),
        [_] => {
            json!({"resources": [{"name": "horizontalpodautoscalers", "kind": "HorizontalPodAutoscaler"}]})
        }
        [version, .., name] => {
            let mut object = json!({"kind": "HorizontalPodAutoscaler", "spec": {"maxReplicas": 3}, "metadata":
                {"name": name, "namespace": "n", "uid": "u", "resourceVersion": "5"}});
            if *name == "later" {
                object["spec"]["later"] = json!(1);
            }
            // A JSON patch that replaces the whole object.
            if body[0]["op"] == "replace" {
                object = body[0]["value"].clone();
            }
            object["apiVersion"] = json!(format!("autoscaling/{version}"));
            object
        }
    };
    respond(StatusCode::OK, &value)
}

/// The object of a request, to which the API server adds a label unless it is a dry run.
fn drifted(received: &Received) -> Response<BoxedBody> {
    let mut object = received.body.clone();
    (object["metadata"]["uid"], object["metadata"]["resourceVersion"]) = (json!("u"), json!("5"));
    if received.is_write() {
        object["metadata"]["labels"]["drifted"] = json!("yes");
        object["metadata"]["resourceVersion"] = json!("6");
    }
    let code = if received.method == Method::POST { StatusCode::CREATED } else { StatusCode::OK };
    respond(code, &object)
}

fn allow(review: &Value) -> Response<BoxedBody> {
    respond(
        StatusCode::OK,
        &json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], "allowed": true}}),
    )
}

fn map() -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "n"}}).to_string()
}

async fn send(
    gateway: &Gateway,
    method: Method,
    target: &str,
    headers: &[(&str, &str)],
    body: String,
) -> (StatusCode, String) {
    let mut request = Request::builder().method(method).uri(target).header("host", "localhost");
    request = request.header(TOKEN.0, TOKEN.1);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = gateway.http1(None).await.send(request.body(full(body)).unwrap()).await.unwrap();
    (response.status(), text(response).await)
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn the_backend_receives_a_dry_run_and_then_what_was_reviewed() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway("pinnedDryRun");
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    let received = admitting.received();
    let lines: Vec<String> = received.iter().map(Received::line).collect();
    assert_eq!(lines, [format!("POST {MAPS}?dryRun=All"), format!("POST {MAPS}")]);
    for received in &received {
        assert_eq!(received.headers["x-remote-user"], "carol");
        assert!(!received.headers.contains_key("authorization"));
    }
    assert_eq!(admitting.reviews(), 1);

    let merge = ("content-type", "application/merge-patch+json");
    let own = format!("{MAPS}/m");
    let (code, body) = send(&gateway, Method::PATCH, &own, &[merge], "{\"data\":{}}".to_owned()).await;
    assert_eq!(code, StatusCode::OK, "{body}");
    let received = admitting.received();
    assert_eq!(received.last().unwrap().body, json!({"metadata": {"resourceVersion": "5"}, "data": {}}));

    let (code, body) =
        send(&gateway, Method::DELETE, &format!("{own}?gracePeriodSeconds=3"), &[], String::new()).await;
    assert_eq!(code, StatusCode::OK, "{body}");
    assert_eq!(
        admitting.received().last().unwrap().body,
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 3,
            "preconditions": {"uid": "u", "resourceVersion": "5"}})
    );
    // Reads are not reviewed.
    admitting.reviews();
    send(&gateway, Method::GET, &own, &[], String::new()).await;
    assert_eq!((admitting.lines(), admitting.reviews()), (vec![format!("GET {own}")], 0));
}

/// An API server whose admission decides otherwise in the write than in the dry run: the stored object is reviewed again, and what
/// the webhook refuses is undone.
#[tokio::test]
async fn an_object_that_is_stored_otherwise_is_reviewed_again_and_undone() {
    for (refused, outcome) in [(true, "undone"), (false, "allowed")] {
        let admitting = Admitting::start(move |review| {
            if !refused || review["request"]["object"]["metadata"]["labels"]["drifted"].is_null() {
                return Some(allow(review));
            }
            let response = json!({"uid": review["request"]["uid"], "allowed": false, "status": {"code": 403, "message": "drifted"}});
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            Some(respond(StatusCode::OK, &review))
        })
        .await;
        admitting.write("Fail", 5);
        let gateway = admitting.gateway("pinnedDryRun");
        let mut object: Value = serde_json::from_str(&map()).unwrap();
        object["metadata"]["labels"] = json!({"drift": "yes"});
        let own = format!("{MAPS}/m");

        let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], object.to_string()).await;
        assert_eq!(code, if refused { StatusCode::FORBIDDEN } else { StatusCode::CREATED }, "{body}");
        assert!(body.contains("drifted"), "{body}");
        let received = admitting.received();
        let lines: Vec<String> = received.iter().map(Received::line).collect();
        let mut expected = vec![format!("POST {MAPS}?dryRun=All"), format!("POST {MAPS}")];
        if refused {
            expected.push(format!("DELETE {own}?fieldValidation=Ignore"));
            let options = &received.last().unwrap().body;
            assert_eq!(
                (&options["preconditions"], &options["gracePeriodSeconds"]),
                (&json!({"uid": "u"}), &json!(0))
            );
        }
        assert_eq!((lines, admitting.reviews()), (expected, 2));

        let (code, body) = send(&gateway, Method::PUT, &own, &[JSON], object.to_string()).await;
        assert_eq!(code, if refused { StatusCode::FORBIDDEN } else { StatusCode::OK }, "{body}");
        if refused {
            let last = admitting.received().pop().unwrap();
            let stored = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "m", "namespace": "n", "uid": "u", "resourceVersion": "6"}});
            assert_eq!((last.line(), last.body), (format!("PUT {own}?fieldValidation=Ignore"), stored));
        }
        let counted = format!("portcullis_admission_stored_differences_total{{outcome=\"{outcome}\"}} 2");
        gateway.until_counted(&counted).await;
    }
}

/// A client that goes away while its write is reviewed again, or whose deadline passes, does not keep what it has stored.
#[tokio::test]
async fn a_write_is_undone_although_its_client_is_gone() {
    for target in [MAPS.to_owned(), format!("{MAPS}?timeout=1s")] {
        let admitting = Admitting::start(|review| {
            let is_drifted = !review["request"]["object"]["metadata"]["labels"]["drifted"].is_null();
            (!is_drifted).then(|| allow(review))
        })
        .await;
        admitting.write("Fail", 2);
        let gateway = admitting.gateway("pinnedDryRun");
        let mut object: Value = serde_json::from_str(&map()).unwrap();
        object["metadata"]["labels"] = json!({"drift": "yes"});
        let sending = send(&gateway, Method::POST, &target, &[JSON], object.to_string());
        tokio::select! {
            (code, body) = sending => assert!(target != MAPS && code == StatusCode::GATEWAY_TIMEOUT, "{code} {body}"),
            () = until("a second review", || target == MAPS && admitting.reviews.lock().unwrap().len() == 2) => {}
        }
        until("a deletion", || {
            admitting.received.lock().unwrap().iter().any(|received| received.method == Method::DELETE)
        })
        .await;
    }
}

/// The gateway reads the response to a write in JSON, and the client gets it in the encoding that it accepts.
#[tokio::test]
async fn a_client_gets_what_it_has_written_in_its_own_encoding() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway("pinnedDryRun");
    for accept in ["application/vnd.kubernetes.protobuf", "application/json;as=Table;v=v1;g=meta.k8s.io"] {
        let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON, ("accept", accept)], map()).await;
        assert_eq!(code, StatusCode::CREATED, "{body}");
        // It is the one that is read: of the write it would have the UID `new`.
        assert!(body.contains("\"uid\":\"u\""), "{body}");
        let received = admitting.received();
        let lines: Vec<String> = received.iter().map(Received::line).collect();
        assert_eq!(
            lines,
            [format!("POST {MAPS}?dryRun=All"), format!("POST {MAPS}"), format!("GET {MAPS}/m")]
        );
        let accepted: Vec<&str> =
            received.iter().map(|received| received.headers["accept"].to_str().unwrap()).collect();
        assert_eq!(accepted, ["application/json", "application/json", accept]);
    }
}

/// The dry run, the reads and the write of one request share its place among the requests in flight, which is free again
/// after it, whether it was stored or refused.
#[tokio::test]
async fn a_reviewed_write_takes_one_place_among_the_requests_in_flight() {
    let admitting = Admitting::start(|review| {
        let is_refused = review["request"]["operation"] == "DELETE";
        (!is_refused).then(|| allow(review)).or_else(|| Some(respond(StatusCode::BAD_REQUEST, &json!({}))))
    })
    .await;
    admitting.write("Fail", 5);
    let limits = ["--max-requests-inflight=1", "--max-mutating-requests-inflight=1"];
    let gateway = admitting.gateway_with("pinnedDryRun", &limits);
    for _ in 0..3 {
        let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
        assert_eq!(code, StatusCode::CREATED, "{body}");
        let (code, body) = send(&gateway, Method::DELETE, &format!("{MAPS}/m"), &[], String::new()).await;
        assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
        let free = "portcullis_inflight_requests{cluster=\"backend\",request_kind=\"mutating\"} 0";
        gateway.until_counted(free).await;
    }
}

/// A name, a request, and the status: 500 is that of the webhook's `failurePolicy`, 400 that of a form that the client has chosen.
type RefusedCase<'a> = (&'a str, Method, &'a str, &'a [(&'a str, &'a str)], &'a str, u16);

/// What the webhook cannot be shown is refused; no request of it could have stored anything.
#[tokio::test]
async fn nothing_is_stored_that_a_webhook_has_not_seen() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway("pinnedDryRun");
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
    let yaml = [("content-type", "application/yaml")];
    let own = format!("{MAPS}/m");
    let token = "/api/v1/namespaces/n/serviceaccounts/s/token";
    let console = format!("{WIDGETS}/w/console");
    let many = format!("{own}?{}", "&".repeat(9_999));
    let posted = format!("{MAPS}?{}", "a=b&".repeat(2_000));
    let cases: &[RefusedCase<'_>] = &[
        ("a collection of an API server without dry runs", Method::DELETE, GADGETS, &[], "", 500),
        ("an API server without dry runs", Method::POST, GADGETS, &[JSON], "{\"kind\":\"Gadget\"}", 500),
        ("an upgrade of an aggregated API", Method::GET, &console, &upgrade, "", 500),
        ("more parameters than Go reads", Method::DELETE, &many, &[], "", 400),
        ("many parameters", Method::POST, &posted, &[JSON], "{}", 400),
        ("options that are not JSON", Method::DELETE, &own, &[], "a: b", 400),
        (
            "options with a key twice",
            Method::DELETE,
            &own,
            &[JSON],
            "{\"dryRun\":[\"All\"],\"dryRun\":[]}",
            400,
        ),
        ("options in two cases", Method::DELETE, &own, &[JSON], "{\"dryRun\":[\"All\"],\"DryRun\":[]}", 400),
        ("options in another case", Method::DELETE, &own, &[JSON], "{\"dryrun\":[]}", 400),
        ("a token in YAML", Method::POST, token, &yaml, "kind: TokenRequest", 400),
        (
            "a token with a key twice",
            Method::POST,
            token,
            &[JSON],
            "{\"kind\":\"TokenRequest\",\"spec\":{},\"spec\":{}}",
            400,
        ),
        ("a token without a kind", Method::POST, token, &[JSON], "{}", 400),
    ];
    for (name, method, target, headers, body, expected) in cases {
        let (code, text) = send(&gateway, method.clone(), target, headers, (*body).to_owned()).await;
        assert_eq!(code.as_u16(), *expected, "{name}: {text}");
        let message = if *expected == 400 {
            "admission webhooks or policies match the request: "
        } else {
            "failed calling webhook \\\"policy.example.com\\\": "
        };
        assert!(text.contains(message), "{name}: {text}");
        let received = admitting.received();
        assert!(!received.iter().any(Received::is_write), "{name}: {received:?}");
        assert!(!received.iter().any(|received| received.target.contains("/token")), "{name}");
        assert_eq!(admitting.reviews(), 0, "{name}");
    }
    let (code, body) =
        send(&gateway, Method::POST, WIDGETS, &[JSON], "{\"kind\":\"Widget\",\"metadata\":{}}".to_owned())
            .await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    assert_eq!(admitting.lines(), [format!("POST {WIDGETS}?dryRun=All"), format!("POST {WIDGETS}")]);

    // kube-apiserver serves it, so it has dry runs. What an aggregated API server does not list is not there.
    let thing = "{\"kind\":\"Thing\",\"metadata\":{}}".to_owned();
    let (code, body) = send(&gateway, Method::POST, FRESH, &[JSON], thing.clone()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    assert_eq!(admitting.lines(), [format!("POST {FRESH}?dryRun=All"), format!("POST {FRESH}")]);
    let absent = FRESH.replace("fresh.test", "aggregated.test");
    let (code, body) = send(&gateway, Method::POST, &absent, &[JSON], thing).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
    assert!(!admitting.received().iter().any(Received::is_write));
    admitting.reviews();

    // An upgrade header does not make a connection of a write.
    let upgraded = [JSON, upgrade[0], upgrade[1]];
    let widget = "{\"kind\":\"Widget\",\"metadata\":{}}".to_owned();
    let (code, body) = send(&gateway, Method::POST, WIDGETS, &upgraded, widget).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    assert_eq!(admitting.lines(), [format!("POST {WIDGETS}?dryRun=All"), format!("POST {WIDGETS}")]);
    assert_eq!(admitting.reviews(), 1);

    admitting.write("Ignore", 5);
    let ignoring = admitting.gateway("pinnedDryRun");
    for (name, method, target, headers, body, expected) in
        cases.iter().filter(|case| !case.3.contains(&upgrade[1]))
    {
        admitting.received();
        let (code, text) = send(&ignoring, method.clone(), target, headers, (*body).to_owned()).await;
        let received = admitting.received();
        if *expected == 400 {
            assert_eq!(code, StatusCode::BAD_REQUEST, "{name}: {text}");
            assert!(!received.iter().any(Received::is_write), "{name}: {received:?}");
        } else {
            assert!(
                code.is_success() && received.last().is_some_and(Received::is_write),
                "{name}: {text} {received:?}"
            );
        }
    }
    let failed_open =
        "apiserver_admission_webhook_fail_open_count{name=\"policy.example.com\",type=\"validating\"}";
    assert!(ignoring.metrics("/metrics").await.contains(failed_open));
}

/// With `requestLevel`, only CREATE is reviewed, without dry runs.
/// A webhook for another version: that version is not served, or the gateway cannot tell. The `failurePolicy` decides nothing, since
/// the client chooses the version.
#[tokio::test]
async fn a_version_that_may_be_served_is_refused_and_one_that_is_not_matches_no_rule() {
    for failure_policy in ["Fail", "Ignore"] {
        let admitting = Admitting::start(|review| Some(allow(review))).await;
        admitting.write_rule(&["fresh.test", "aggregated.test"], "v2", failure_policy);
        let gateway = admitting.gateway("pinnedDryRun");
        let (code, body) = send(&gateway, Method::POST, FRESH, &[JSON], map()).await;
        assert_eq!(code, StatusCode::CREATED, "{body}");
        // Discovery does not list it.
        let widgets = GADGETS.replace("gadgets", "widgets");
        let (code, body) = send(&gateway, Method::POST, &widgets, &[JSON], map()).await;
        let text = "its rules may match another version or group of widgets than aggregated.test/v1 only";
        assert!(code == StatusCode::INTERNAL_SERVER_ERROR && body.contains(text), "{code} {body}");
        let stored = admitting.received().into_iter().filter(Received::is_write).count();
        assert_eq!((stored, admitting.reviews()), (1, 0));
    }
}

#[tokio::test]
async fn request_level_shows_what_the_client_has_sent() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway("requestLevel");
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    assert_eq!((admitting.lines(), admitting.reviews()), (vec![format!("POST {MAPS}")], 1));
    for (method, body) in [(Method::PUT, map()), (Method::DELETE, String::new())] {
        let (code, body) = send(&gateway, method, &format!("{MAPS}/m"), &[JSON], body).await;
        assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
        assert!(body.contains("with requestLevel"), "{body}");
    }
    let twice = "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"data\":{},\"data\":{\"a\":\"b\"}}";
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], twice.to_owned()).await;
    assert_eq!(code, StatusCode::BAD_REQUEST, "{body}");
    assert!(body.contains("is there twice"), "{body}");
    assert!(admitting.lines().is_empty());
}

/// A request for the object of a name, and why it is refused.
type CreationCase<'a> = (Method, &'a str, &'a [(&'a str, &'a str)], Option<&'a str>);

/// A webhook that is away with `failurePolicy: Fail` locks no user out, except as in older releases.
#[tokio::test]
async fn reviews_are_shown_to_webhooks_only_in_older_releases() {
    let admitting = Admitting::start(|_| Some(respond(StatusCode::OK, &json!({})))).await;
    admitting.write("Fail", 5);
    let body =
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}});
    for (more, expected) in [
        (&[][..], StatusCode::CREATED),
        (&["--emulated-version=kube=1.37"], StatusCode::CREATED),
        (&["--emulated-version=1.36"], StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        let gateway = admitting.gateway_with("requestLevel", more);
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let (code, text) = send(&gateway, Method::POST, path, &[JSON], body.to_string()).await;
        assert_eq!(code, expected, "{more:?}: {text}");
        assert_eq!(admitting.reviews() > 0, expected != StatusCode::CREATED, "{more:?}");
    }
}

/// With `requestLevel` and `Ignore`, a client cannot create an object by a form that webhooks are not shown.
#[tokio::test]
async fn a_creation_is_shown_to_webhooks_or_refused() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Ignore", 5);
    let gateway = admitting.gateway("requestLevel");
    let apply = [("content-type", "application/apply-patch+yaml")];
    let merge = [("content-type", "application/merge-patch+json")];
    let table: [CreationCase<'_>; 6] = [
        (Method::PUT, "m", &[JSON], None),
        (Method::PATCH, "m", &apply, None),
        (Method::PUT, "absent", &[JSON], Some("only objects that POST creates")),
        (Method::PATCH, "absent", &apply, Some("only objects that POST creates")),
        // It creates nothing.
        (Method::PATCH, "absent", &merge, None),
        (Method::DELETE, "m", &[JSON], None),
    ];
    for (method, name, headers, refused) in table {
        let target = format!("{MAPS}/{name}");
        let (code, body) = send(&gateway, method.clone(), &target, headers, map()).await;
        let writes = admitting.received().iter().filter(|received| received.is_write()).count();
        match refused {
            None => assert_eq!((code, writes), (StatusCode::OK, 1), "{method} {name}: {body}"),
            Some(why) => {
                assert_eq!((code, writes), (StatusCode::INTERNAL_SERVER_ERROR, 0), "{method} {name}: {body}");
                assert!(body.contains(why), "{method} {name}: {body}");
            }
        }
    }
    assert_eq!(admitting.reviews(), 0);
}

/// An API server that does not list a method for a resource that it has answers it with 405, and asks no webhook.
#[tokio::test]
async fn a_method_that_a_resource_does_not_have_is_not_allowed() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    for policy in ["Fail", "Ignore"] {
        admitting.write(policy, 5);
        let gateway = admitting.gateway("pinnedDryRun");
        let target = format!("{GADGETS}/g");
        for method in [Method::PUT, Method::PATCH] {
            let (code, body) = send(&gateway, method.clone(), &target, &[JSON], map()).await;
            assert_eq!(code, StatusCode::METHOD_NOT_ALLOWED, "{method}: {body}");
            let message = "the server does not allow this method on the requested resource";
            assert!(body.contains(message) && body.contains("\"MethodNotAllowed\""), "{method}: {body}");
        }
        assert_eq!((admitting.lines(), admitting.reviews()), (vec![], 0));
    }
}

#[tokio::test]
async fn answers_of_webhooks_are_bounded_and_redirects_not_followed() {
    let admitting = Admitting::start(|review| {
        let name = review["request"]["name"].as_str().unwrap_or_default();
        Some(if name == "redirect" {
            Response::builder().status(307).header("location", "/elsewhere").body(full("")).unwrap()
        } else {
            Response::new(full(vec![b' '; 20 << 20]))
        })
    })
    .await;
    admitting.write("Fail", 20);
    let gateway = admitting.gateway("pinnedDryRun");
    for (name, expected) in [("redirect", "redirect"), ("large", "larger than")] {
        let object = map().replace("\"m\"", &format!("\"{name}\""));
        let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], object).await;
        assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
        assert!(body.contains(expected), "{body}");
        assert_eq!(admitting.reviews(), 1);
        assert_eq!(admitting.lines(), [format!("POST {MAPS}?dryRun=All")]);
    }
    let large = map().replace("\"m\"", &format!("\"{}\"", "x".repeat(3 << 20)));
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], large).await;
    assert_eq!(code, StatusCode::PAYLOAD_TOO_LARGE, "{body}");
}

/// A user whose requests wait for a webhook that never answers delays no other user's.
#[tokio::test]
async fn a_silent_webhook_delays_only_the_user_whose_requests_wait_for_it() {
    let admitting = Admitting::start(|review| {
        if review["request"]["userInfo"]["username"] == "carol" { None } else { Some(allow(review)) }
    })
    .await;
    admitting.write("Fail", 30);
    let gateway = admitting.gateway("pinnedDryRun");
    let clients = [gateway.http2(None).await, gateway.http2(None).await];
    let flood = join_all((0..200).map(|number| {
        let mut client = clients[number % 2].share();
        let request =
            Request::post(format!("https://localhost{MAPS}")).header(TOKEN.0, TOKEN.1).header(JSON.0, JSON.1);
        async move { client.send(request.body(full(map())).unwrap()).await }
    }));
    let bob = admitting.pki.clients.leaf().cn("bob").issue();
    let calm = async {
        // The share of one user, and no more.
        until("a flood of reviews", || admitting.reviews.lock().unwrap().len() >= 30).await;
        let mut request = Request::post(MAPS).header("host", "localhost").header(JSON.0, JSON.1);
        request.headers_mut().unwrap().insert("accept", "application/json".parse().unwrap());
        let sent = gateway.http1(Some(&bob)).await.send(request.body(full(map())).unwrap()).await.unwrap();
        sent.status()
    };
    tokio::select! {
        answers = flood => panic!("the webhook has answered {}", answers.len()),
        code = calm => assert_eq!(code, StatusCode::CREATED),
    }
    assert!(admitting.reviews.lock().unwrap().len() <= 34, "the share of a user is bounded");
}

/// `config/admission/` with the URL of a webhook that runs here.
#[tokio::test]
async fn the_sample_policy_sees_deployments_only() {
    let admitting = Admitting::start(|review| {
        let denied =
            json!({"uid": review["request"]["uid"], "allowed": false, "status": {"message": "no owner"}});
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": denied});
        Some(respond(StatusCode::OK, &review))
    })
    .await;
    let url =
        format!("https://{}/labels\n    caBundle: {}", admitting.webhook.address, admitting.ca_bundle());
    let manifest = include_str!("../../config/admission/validating/labels.yaml");
    admitting.write_manifest(&manifest.replace("https://policy.example.com/labels", &url));
    let gateway = admitting.gateway("pinnedDryRun");
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    let deployments = "/apis/apps/v1/namespaces/n/deployments";
    let deployment =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"}});
    let (code, body) = send(&gateway, Method::POST, deployments, &[JSON], deployment.to_string()).await;
    assert_eq!(code, StatusCode::BAD_REQUEST, "{body}");
    let message = "admission webhook \\\"labels.policy.example.com\\\" denied the request: no owner";
    assert!(body.contains(message), "{body}");
    assert_eq!(admitting.reviews(), 1);
}

/// `portcullis admit` prints what each webhook would do, with no API server.
#[tokio::test(flavor = "multi_thread")]
async fn admit_shows_what_each_webhook_would_do() {
    let admitting = Admitting::start(|review| {
        let response = json!({"uid": review["request"]["uid"], "allowed": false, "warnings": ["beware"],
            "status": {"message": format!("no {} by {}", review["request"]["resource"]["resource"],
                review["request"]["userInfo"]["username"]), "code": 403}});
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        Some(respond(StatusCode::OK, &review))
    })
    .await;
    admitting.write("Fail", 5);
    let object = admitting
        .pki
        .write("object.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: m, namespace: n}}");
    let mut arguments = flags(&admitting.pki, admitting.backend.address);
    arguments.push(format!(
        "--admission-control-config-file={}",
        admitting.directory().join("admission.json").display()
    ));
    arguments.push("--admission-mode=pinnedDryRun".to_owned());
    let admit = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"));
        let output = command.arg("admit").args(&arguments).args(more).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let file = object.display().to_string();
    let (code, shown, _) = admit(&["-f", &file, "--user=alice"]);
    assert_eq!(code, Some(1), "{shown}");
    for text in ["policy.example.com", "denied (403)", "beware", "no \"configmaps\" by \"alice\""] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let (code, shown, _) = admit(&["-f", &file, "--output=json", "--operation=delete"]);
    let report: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((code, &report["allowed"], &report["code"]), (Some(1), &json!(false), &json!(403)));
    let list = admitting.pki.write(
        "list.yaml",
        "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}, \
         {apiVersion: apps/v1, kind: Deployment, metadata: {name: two, namespace: space}}]}",
    );
    let list = list.display().to_string();
    let (code, shown, _) = admit(&["-f", &list, "--output=json"]);
    let report: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((code, &report["allowed"]), (Some(1), &json!(false)));
    let requests: Vec<_> = report["items"].as_array().unwrap().iter().map(|item| &item["request"]).collect();
    assert_eq!(requests, ["CREATE v1/configmaps one", "CREATE apps/v1/deployments space/two"]);
    let (_, shown, _) = admit(&["-f", &list]);
    for text in ["# CREATE v1/configmaps one", "# CREATE apps/v1/deployments space/two", "2 of 2 refused"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let (code, _, error) = admit(&["-f", &list, "--old", &file]);
    assert!(code == Some(1) && error.contains("--old and --resource go with one object"), "{error}");
    let (code, _, error) = admit(&["-f", "/absent.yaml"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("/absent.yaml"), "{error}");
    assert!(admitting.received().is_empty(), "no API server is asked");
    let seen = admitting.reviews.lock().unwrap().clone();
    assert!(seen.len() == 6 && seen.iter().all(|review| review["request"]["dryRun"] == true));
}

/// `portcullis admit` says which webhooks were not called, and why.
#[tokio::test(flavor = "multi_thread")]
async fn admit_says_why_a_webhook_is_not_called() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    let webhook = |name: &str, resource: &str, more: Value| {
        let mut webhook = json!({"name": format!("{name}.example.com"),
            "clientConfig": {"url": format!("https://{}/{name}", admitting.webhook.address), "caBundle": admitting.ca_bundle()},
            "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": [resource]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"]});
        for (field, value) in more.as_object().unwrap() {
            webhook[field] = value.clone();
        }
        webhook
    };
    let labels = json!({"matchLabels": {"a": "b"}});
    let webhooks = [
        webhook("called", "configmaps", json!({})),
        webhook("other-rules", "pods", json!({})),
        webhook("other-object", "configmaps", json!({"objectSelector": labels})),
        webhook("other-namespace", "configmaps", json!({"namespaceSelector": labels})),
        webhook(
            "other-condition",
            "configmaps",
            json!({"matchConditions": [{"name": "no", "expression": "false"}]}),
        ),
    ];
    let manifest = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "policy.static.k8s.io"}, "webhooks": webhooks});
    admitting.write_manifest(&manifest.to_string());
    let object = admitting
        .pki
        .write("object.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: m, namespace: space}}");
    let admit = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.arg("admit").args(admitting.flags("pinnedDryRun", &[])).arg("-f").arg(&object).args(more);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = admit(&[]);
    let row = |name: &str| {
        shown.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {shown}"))
    };
    assert!(row("called.").ends_with("allowed"));
    assert!(row("other-object.").ends_with("not called: its objectSelector does not match"));
    assert!(row("other-namespace.").contains("--namespace-label"));
    assert!(row("other-condition.").ends_with("excluded by matchConditions"));
    assert!(!shown.contains("other-rules"), "{shown}");
    assert!(shown.contains("1 webhook, whose rules do not match"), "{shown}");
    let report: Value = serde_json::from_str(&admit(&["--namespace-label=a=b", "--output=json"])).unwrap();
    let named = |list: &str| -> Vec<_> {
        report[list].as_array().unwrap().iter().map(|row| row["webhook"].as_str().unwrap()).collect()
    };
    assert_eq!(named("notCalled"), ["other-rules.example.com", "other-object.example.com"]);
    assert_eq!(named("webhooks").len(), 3);
}

/// The gateway itself converts a `HorizontalPodAutoscaler` for a webhook with a rule for another version, without a request. One with
/// fields of a later release is converted by the API server, which cannot convert a new one.
#[tokio::test]
async fn the_api_server_converts_autoscalers_of_which_the_gateway_does_not_know_all_fields() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write_rule(&["autoscaling"], "v1", "Fail");
    let gateway = admitting.gateway("pinnedDryRun");
    let merge = ("content-type", "application/merge-patch+json");
    let own = |name: &str| format!("{AUTOSCALERS}/{name}");
    let dry_run = |path: &str| format!("PATCH {path}?dryRun=All");
    let at_v1 = format!("{AUTOSCALERS_V1}/later");
    for (name, expected) in [
        ("web", vec![dry_run(&own("web")), format!("GET {}", own("web")), format!("PATCH {}", own("web"))]),
        (
            "later",
            vec![
                dry_run(&own("later")),
                format!("GET {}", own("later")),
                format!("{}&fieldValidation=Ignore", dry_run(&at_v1)),
                format!("GET {at_v1}"),
                format!("PATCH {}", own("later")),
            ],
        ),
    ] {
        admitting.received();
        let (code, body) = send(&gateway, Method::PATCH, &own(name), &[merge], "{}".to_owned()).await;
        assert_eq!(code, StatusCode::OK, "{body}");
        let lines: Vec<String> =
            admitting.lines().into_iter().filter(|line| line.contains("/namespaces/")).collect();
        assert_eq!(lines, expected);
        let review = admitting.reviews.lock().unwrap().pop().unwrap();
        let request = &review["request"];
        for object in ["object", "oldObject"] {
            assert_eq!(request[object]["apiVersion"], "autoscaling/v1", "{name}: {review}");
        }
    }
    let created = |spec: Value| {
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "new", "namespace": "n"}, "spec": spec})
        .to_string()
    };
    let (code, body) =
        send(&gateway, Method::POST, AUTOSCALERS, &[JSON], created(json!({"maxReplicas": 3}))).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    let (code, body) =
        send(&gateway, Method::POST, AUTOSCALERS, &[JSON], created(json!({"maxReplicas": 3, "later": 1})))
            .await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
    assert!(body.contains("it has a field that the gateway does not know"), "{body}");
}

/// No request waits for a webhook that is called without effect, also if it never answers.
#[tokio::test]
async fn a_silent_shadow_webhook_delays_no_request() {
    let admitting = Admitting::start(|_| None).await;
    admitting.write("Fail", 30);
    let gateway = admitting.gateway_with("pinnedDryRun", &["--admission-shadow-webhooks=policy.example.com"]);
    // More than the gateway calls at a time.
    for _ in 0..40 {
        let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
        assert_eq!(code, StatusCode::CREATED, "{body}");
    }
    until("the webhook is called", || !admitting.reviews.lock().unwrap().is_empty()).await;
}

/// A webhook for another version of a group may match: discovery tells. If it does not answer, the request waits no longer than it
/// may for a webhook without effect, and the webhook counts as failed.
#[tokio::test]
async fn silent_discovery_delays_no_request_of_a_shadow_webhook() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write_rule(&["silent.test"], "v2", "Fail");
    let gateway = admitting.gateway_with("pinnedDryRun", &["--admission-shadow-webhooks=policy.example.com"]);
    let began = Instant::now();
    let (code, body) = send(&gateway, Method::POST, SILENT, &[JSON], map()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    // A read of discovery is given up after ten seconds.
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(admitting.reviews(), 0);
    let counted = "portcullis_admission_shadow_webhook_total{name=\"policy.example.com\",operation=\"CREATE\",\
                   type=\"validating\",would=\"fail\"} 1";
    gateway.until_counted(counted).await;
    assert!(admitting.received().iter().any(|received| received.target == SILENT_DISCOVERY));
}

/// The stored object, which a shadow webhook would see beside the new one, is not read for longer than that either.
#[tokio::test]
async fn a_silent_read_of_the_stored_object_delays_no_request_of_a_shadow_webhook() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway_with("pinnedDryRun", &["--admission-shadow-webhooks=policy.example.com"]);
    let merge = ("content-type", "application/merge-patch+json");
    for (method, operation, content, body) in
        [(Method::PATCH, "UPDATE", merge, "{}"), (Method::DELETE, "DELETE", JSON, "")]
    {
        admitting.received();
        let began = Instant::now();
        let (code, answer) = send(&gateway, method.clone(), SILENT_MAP, &[content], body.to_owned()).await;
        assert_eq!(code, StatusCode::OK, "{answer}");
        // The request itself has 60 seconds.
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        assert_eq!(admitting.lines(), [format!("GET {SILENT_MAP}"), format!("{method} {SILENT_MAP}")]);
        let counted = format!(
            "portcullis_admission_shadow_webhook_total{{name=\"policy.example.com\",operation=\"{operation}\",\
             type=\"validating\",would=\"fail\"}} 1"
        );
        gateway.until_counted(&counted).await;
    }
    assert_eq!(admitting.reviews(), 0);
}

/// What decides after the write whether a shadow webhook matches may not come either: here the labels of the namespace.
#[tokio::test]
async fn silence_after_the_write_delays_no_response_of_a_shadow_webhook() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    let mut manifest = admitting.manifest((&["*"], "*"), "Fail", 5);
    manifest["webhooks"][0]["namespaceSelector"] = json!({"matchLabels": {"a": "b"}});
    admitting.write_manifest(&manifest.to_string());
    let gateway = admitting.gateway_with("pinnedDryRun", &["--admission-shadow-webhooks=policy.example.com"]);
    let maps = format!("{SILENT_NAMESPACE}/configmaps");
    let began = Instant::now();
    let (code, body) = send(&gateway, Method::POST, &maps, &[JSON], map()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let counted = "portcullis_admission_shadow_webhook_total{name=\"policy.example.com\",operation=\"CREATE\",\
                   type=\"validating\",would=\"fail\"} 1";
    gateway.until_counted(counted).await;
    let lines = admitting.lines();
    assert_eq!(lines, [format!("POST {maps}"), format!("GET {SILENT_NAMESPACE}")]);
    assert_eq!(admitting.reviews(), 0);
}

/// What a shadow webhook would have done is counted, after the response.
#[tokio::test]
async fn a_shadow_webhook_is_counted_beside_the_request() {
    let deny = |review: &Value| {
        let response = json!({"uid": review["request"]["uid"], "allowed": false, "status": {"code": 403}});
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        Some(respond(StatusCode::OK, &review))
    };
    let admitting = Admitting::start(deny).await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway_with("pinnedDryRun", &["--admission-shadow-webhooks=policy.example.com"]);
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    let counted = "portcullis_admission_shadow_webhook_total{name=\"policy.example.com\",operation=\"CREATE\",\
                   type=\"validating\",would=\"deny\"} 1";
    gateway.until_counted(counted).await;
}

/// A request, the requests that the API server gets, and the operation that the webhook is shown.
type Observed<'a> = (Method, &'a str, (&'a str, &'a str), &'a str, Vec<String>, Option<&'a str>);

/// A request that only shadow webhooks match reaches the API server as it was sent, also in forms that the gateway cannot review.
#[tokio::test]
async fn a_request_that_only_shadow_webhooks_match_is_forwarded_as_it_is() {
    const YAML: (&str, &str) = ("content-type", "application/apply-patch+yaml");
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway_with("pinnedDryRun", &["--admission-shadow-webhooks=policy.example.com"]);
    let (named, applied) = (format!("{MAPS}/m"), format!("{MAPS}/m?fieldManager=f"));
    let (read, apply) = (format!("GET {named}"), format!("PATCH {applied}"));
    let cases: [Observed<'_>; 5] = [
        (Method::POST, MAPS, JSON, &map(), vec![format!("POST {MAPS}")], Some("CREATE")),
        (Method::PUT, &named, JSON, &map(), vec![read.clone(), format!("PUT {named}")], Some("UPDATE")),
        (Method::PATCH, &applied, YAML, "a: [1", vec![read.clone(), apply], Some("UPDATE")),
        (Method::DELETE, &named, JSON, "", vec![read, format!("DELETE {named}")], Some("DELETE")),
        (Method::DELETE, MAPS, JSON, "", vec![format!("DELETE {MAPS}")], None),
    ];
    for (method, target, content, body, expected, operation) in cases {
        admitting.received();
        let (code, answer) = send(&gateway, method.clone(), target, &[content], body.to_owned()).await;
        assert!(code.is_success(), "{method} {target}: {code} {answer}");
        assert_eq!(admitting.lines(), expected, "{method} {target}");
        if let Some(operation) = operation {
            let is_shown = || {
                let reviews = admitting.reviews.lock().unwrap();
                reviews.iter().any(|review| review["request"]["operation"] == operation)
            };
            until("the webhook is shown the object", is_shown).await;
        }
        admitting.reviews();
    }
    let counted = "portcullis_admission_shadow_webhook_total{name=\"policy.example.com\",operation=\"DELETE\",\
                   type=\"validating\",would=\"fail\"} 1";
    gateway.until_counted(counted).await;
}

/// A manifest of this many webhooks, each for the resource that it is given.
fn many(admitting: &Admitting, count: usize, resource: impl Fn(usize) -> String) -> String {
    let ca = admitting.ca_bundle();
    let webhook = |index: usize| {
        json!({"name": format!("policy-{index}.example.com"),
            "clientConfig": {"url": format!("https://{}/validate", admitting.webhook.address), "caBundle": ca},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource(index)]}],
            "failurePolicy": "Fail", "timeoutSeconds": 5,
            "sideEffects": "None", "admissionReviewVersions": ["v1"]})
    };
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "policy.static.k8s.io"}, "webhooks": (0..count).map(webhook).collect::<Value>()})
    .to_string()
}

/// Of ten thousand webhooks, those that match are called. A request that more match than may be called at once for one user is
/// refused, and stores nothing.
#[tokio::test]
async fn of_ten_thousand_webhooks_those_that_match_are_called() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    let of_maps = |index: usize| {
        if index.is_multiple_of(1000) { "configmaps".to_owned() } else { format!("things{index}") }
    };
    admitting.write_manifest(&many(&admitting, 10_000, of_maps));
    let gateway = admitting.gateway("pinnedDryRun");
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
    assert_eq!((code, admitting.reviews()), (StatusCode::CREATED, 10), "{body}");
    admitting.received();
    let secrets = "/api/v1/namespaces/n/secrets";
    let (code, body) = send(&gateway, Method::POST, secrets, &[JSON], "{}".to_owned()).await;
    assert_eq!((code, admitting.reviews()), (StatusCode::CREATED, 0), "{body}");
    assert_eq!(
        admitting.lines(),
        [format!("POST {secrets}")],
        "a request that no webhook matches is not rehearsed"
    );

    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write_manifest(&many(&admitting, 10_000, |_| "configmaps".to_owned()));
    let gateway = admitting.gateway("pinnedDryRun");
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
    assert_eq!(code, StatusCode::TOO_MANY_REQUESTS, "{body}");
    assert!(admitting.received().iter().all(|received| !received.is_write()));
}
