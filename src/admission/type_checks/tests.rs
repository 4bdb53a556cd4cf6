//! Which documents are read, what is logged, and when it ends. That a gateway logs it is in `tests/it/admission/policies.rs`.

use std::convert::Infallible;
use std::future::pending;

use http::{Request, Response, StatusCode};
use kube::client::Body;
use portcullis_admission::configuration::manifest::Manifests;
use portcullis_kubernetes::release::Release;
use portcullis_limits::ClusterOwner;
use portcullis_limits::cache_budget::CacheShare;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::admission::cached_reads::DocumentReader;
use crate::admission::memory::ReviewMemory;
use crate::admission::schemas::PublishedSchemas;
use crate::tasks::compute::ComputePool;

/// An API server.
#[derive(Default)]
struct Server {
    asked: Vec<String>,
    hash: u32,
    is_failing: bool,
    is_silent: bool,
}

type SharedServer = Arc<Mutex<Server>>;

fn discovery(path: &str, hash: u32) -> Value {
    let kinds = json!([{"group": "g", "version": "v1", "kind": "Box"}]);
    match path {
        "/apis/g" => json!({"versions": [{"version": "v1"}]}),
        "/apis/g/v1" => json!({"resources": [{"name": "boxes", "kind": "Box"}]}),
        "/openapi/v3" => {
            json!({"paths": {"apis/g/v1": {"serverRelativeURL": format!("/openapi/v3/apis/g/v1?hash={hash}")}}})
        }
        "/openapi/v3/apis/g/v1" => json!({"components": {"schemas": {"Box": {
            "type": "object", "x-kubernetes-group-version-kind": kinds, "properties": {"size": {"type": "integer"}},
        }}}}),
        _ => Value::Null,
    }
}

fn sources(server: &SharedServer) -> TypeSources {
    let server = Arc::clone(server);
    let service = service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let mut server = lock(&server);
        server.asked.push(path.clone());
        let is_silent = server.is_silent;
        let found = if server.is_failing { Value::Null } else { discovery(&path, server.hash) };
        async move {
            if is_silent {
                pending::<()>().await;
            }
            let status = if found.is_null() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
            let body = Body::from(found.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        }
    });
    let reader = DocumentReader::of_test(kube::Client::new(service, "default"));
    let compute = ComputePool::of_test().of_cluster("c");
    let memory = ReviewMemory::default().of_cluster(&ClusterOwner::operator("c"));
    let caches = CacheShare::UNBOUNDED;
    let schemas = Arc::new(PublishedSchemas::new(&reader, &compute, &memory, &caches));
    TypeSources {
        cluster: "c".to_owned(),
        owner: Owner::Gateway,
        served: Arc::new(ServedResources::new(&reader)),
        declarations: schemas.declarations(&reader, &caches),
        schemas,
        compute,
        memory,
    }
}

fn policies(group: &str, expressions: &[&str]) -> Policies {
    let rule =
        json!({"operations": ["*"], "apiGroups": [group], "apiVersions": ["v1"], "resources": ["boxes"]});
    let validations: Vec<Value> =
        expressions.iter().map(|expression| json!({"expression": expression})).collect();
    let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": validations});
    let mut folder = Manifests::policies(Release::default());
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p.static.k8s.io"}, "spec": spec});
    folder.add("m.yaml", 0, &object);
    let validating = folder.finish().unwrap().into_iter().map(Arc::new).collect();
    Policies { mutating: Vec::new(), validating }
}

/// Starts the checks, and waits until they end.
#[expect(
    clippy::used_underscore_binding,
    reason = "the task is kept to end it, and only a test waits for it"
)]
async fn checked(server: &SharedServer, policies: &Policies, before: Option<&TypeChecks>) -> TypeChecks {
    let mut checks = TypeChecks::start(policies, sources(server), &Handle::current(), before);
    if let Some(task) = checks._task.take() {
        task.await.unwrap();
    }
    checks
}

fn asked(server: &SharedServer) -> Vec<String> {
    std::mem::take(&mut lock(server).asked)
}

#[tokio::test(start_paused = true)]
async fn a_document_is_checked_once_for_the_same_policies() {
    let server = SharedServer::default();
    let of_document =
        |asked: Vec<String>| asked.iter().filter(|path| *path == "/openapi/v3/apis/g/v1").count();
    let one = policies("g", &["object.size > 1", "object.absent > 1"]);
    let first = checked(&server, &one, None).await;
    assert_eq!(of_document(asked(&server)), 1);
    let again = checked(&server, &one, Some(&first)).await;
    assert_eq!(of_document(asked(&server)), 0, "it has the same hash");
    lock(&server).hash = 1;
    let again = checked(&server, &one, Some(&again)).await;
    assert_eq!(of_document(asked(&server)), 1, "it has another hash");
    checked(&server, &policies("g", &["object.size > 2"]), Some(&again)).await;
    assert_eq!(of_document(asked(&server)), 1, "the policies are others");
}

#[tokio::test(start_paused = true)]
async fn policies_whose_rules_name_no_kind_read_nothing() {
    let server = SharedServer::default();
    checked(&server, &policies("*", &["object.absent > 1"]), None).await;
    assert!(asked(&server).is_empty());
    checked(&server, &policies("absent/..", &["object.absent > 1"]), None).await;
    assert!(asked(&server).is_empty(), "it would name another path");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_read_again_until_the_deadline() {
    let server = SharedServer::default();
    for (is_failing, is_silent) in [(true, false), (false, true)] {
        (lock(&server).is_failing, lock(&server).is_silent) = (is_failing, is_silent);
        let before = Instant::now();
        let checks = checked(&server, &policies("g", &["object.absent > 1"]), None).await;
        let took = before.elapsed();
        assert!(took <= TIMEOUT && TIMEOUT <= took + PAUSES.1, "{took:?}");
        assert!(asked(&server).len() < 40);
        assert!(lock(&checks.checked).documents.is_empty());
    }
    // It comes back.
    (lock(&server).is_failing, lock(&server).is_silent) = (true, false);
    let checks = TypeChecks::start(&policies("g", &["true"]), sources(&server), &Handle::current(), None);
    sleep(Duration::from_secs(20)).await;
    lock(&server).is_failing = false;
    sleep(PAUSES.1 * 2).await;
    assert_eq!(lock(&checks.checked).documents.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_checks_end_with_their_generation() {
    let server = SharedServer::default();
    lock(&server).is_failing = true;
    let checks = TypeChecks::start(&policies("g", &["true"]), sources(&server), &Handle::current(), None);
    sleep(Duration::from_secs(5)).await;
    drop(checks);
    asked(&server);
    sleep(TIMEOUT).await;
    assert!(asked(&server).is_empty());
}

#[test]
fn a_line_has_the_errors_and_not_the_expression() {
    let text = "ERROR: <input>:1:1: a\n | x\n | ^\nERROR: <input>:1:2: b\n | x\n | .^";
    assert_eq!(heads(text), "ERROR: <input>:1:1: a; ERROR: <input>:1:2: b");
    assert_eq!(heads("cannot be checked now"), "cannot be checked now");
    assert_eq!(shortened(&"é".repeat(1000)).chars().count(), MAX_LOGGED_CHARACTERS);
}

#[test]
fn lines_are_bounded() {
    let mut log = WarningLog { cluster: "c".to_owned(), logged: 0, omitted: 0 };
    let one = policies("g", &["object.absent > 1"]);
    let document = discovery("/openapi/v3/apis/g/v1", 0).to_string();
    let declarations = Declarations::read(document.as_bytes()).unwrap();
    let kind = GroupVersionKind { group: "g".to_owned(), version: "v1".to_owned(), kind: "Box".to_owned() };
    let kinds = [(kind, declarations.of("g", "v1", "Box").unwrap())];
    let warnings = one.all().next().unwrap().type_warnings(&kinds);
    for _ in 0..60 {
        log.warn("p", &warnings[0]);
    }
    assert_eq!((log.logged, log.omitted), (MAX_WARNINGS, 10));
}
