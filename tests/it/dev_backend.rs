//! The embedded backend of `portcullis dev`, called over TLS as by the gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use portcullis::internal::Clock;
use portcullis::internal::{Dev, DevError, DevOptions};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpStream;

type Sender = SendRequest<Full<Bytes>>;

const ALICE: &[(&str, &str)] = &[("x-remote-user", "alice"), ("x-remote-group", "developers")];
const ADMIN: &[(&str, &str)] = &[("x-remote-user", "admin"), ("x-remote-group", "system:masters")];
const ANONYMOUS: &[(&str, &str)] =
    &[("x-remote-user", "system:anonymous"), ("x-remote-group", "system:unauthenticated")];
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn start() -> (tempfile::TempDir, Dev) {
    let dir = tempfile::tempdir().unwrap();
    let options = DevOptions { dir: dir.path().join("dev"), port: 0, full: false, tour: false };
    let dev = Dev::start(&options, Clock::system()).await.unwrap();
    (dir, dev)
}

/// Connects with or without a client certificate of the PKI.
async fn connect(dev: &Dev, certificate: Option<&str>) -> std::io::Result<Sender> {
    let file = |name: String| dev.paths().pki(&name);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("server-ca.crt".to_owned())).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match certificate {
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_file(file(format!("{name}.crt"))).unwrap()];
            let key = PrivateKeyDer::from_pem_file(file(format!("{name}.key"))).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let socket = TcpStream::connect(dev.backend_address()).await?;
    let name = "localhost".try_into().unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn gateway(dev: &Dev) -> Sender {
    connect(dev, Some("gateway-client")).await.unwrap()
}

async fn send(
    sender: &mut Sender,
    headers: &[(&str, &str)],
    method: Method,
    path: &str,
    media_type: &str,
    body: &Value,
) -> http::Response<Incoming> {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if !body.is_null() {
        request = request.header("content-type", media_type);
    }
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    sender.ready().await.unwrap();
    sender.send_request(request.body(Full::new(body)).unwrap()).await.unwrap()
}

/// Status code and body.
async fn call(
    sender: &mut Sender,
    headers: &[(&str, &str)],
    method: Method,
    path: &str,
    body: Value,
) -> (u16, Value) {
    let patch = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let response = send(sender, headers, method, path, patch, &body).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

fn configmap(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

#[tokio::test]
async fn only_the_gateway_is_accepted() {
    let (_dir, dev) = start().await;
    // A refused certificate shows in the handshake or, with TLS 1.3, at the first use.
    for certificate in [None, Some("alice")] {
        if let Ok(mut sender) = connect(&dev, certificate).await {
            let request = Request::get("/version").header("host", "localhost").body(Full::default()).unwrap();
            assert!(sender.send_request(request).await.is_err(), "{certificate:?}");
        }
    }
    let mut other = connect(&dev, Some("front-proxy")).await.unwrap();
    assert_eq!(call(&mut other, ADMIN, Method::GET, "/version", Value::Null).await.0, 401);
    let mut gateway = gateway(&dev).await;
    assert_eq!(call(&mut gateway, &[], Method::GET, "/version", Value::Null).await.0, 401);
    assert_eq!(call(&mut gateway, ANONYMOUS, Method::GET, "/version", Value::Null).await.0, 200);
}

#[tokio::test]
async fn requests_are_answered_with_kube_apiservers_codes() {
    let (_dir, dev) = start().await;
    let mut sender = gateway(&dev).await;
    let carol = &[ALICE, &[("impersonate-user", "carol")]].concat()[..];
    let admin_as_carol = &[ADMIN, &[("impersonate-user", "carol")]].concat()[..];
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let approval = "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval";
    let cases = [
        (ALICE, Method::POST, CONFIGMAPS, configmap("a", &json!({"k": "v"})), 201, ""),
        (ALICE, Method::POST, CONFIGMAPS, configmap("a", &json!({})), 409, "AlreadyExists"),
        (ALICE, Method::POST, CONFIGMAPS, configmap("b", &json!({"k": 1})), 400, "BadRequest"),
        (ALICE, Method::POST, CONFIGMAPS, json!({"kind": "Secret"}), 400, "BadRequest"),
        (ALICE, Method::POST, CONFIGMAPS, json!([]), 400, "BadRequest"),
        (
            ALICE,
            Method::POST,
            "/api/v1/namespaces/none/configmaps",
            configmap("a", &json!({})),
            404,
            "NotFound",
        ),
        (ALICE, Method::GET, "/api/v1/namespaces/default/configmaps/none", Value::Null, 404, "NotFound"),
        (ALICE, Method::GET, "/api/v1/namespaces/default/deployments", Value::Null, 404, "NotFound"),
        (ALICE, Method::GET, "/apis/apps/v1", Value::Null, 404, "NotFound"),
        (ALICE, Method::PUT, CONFIGMAPS, configmap("a", &json!({})), 405, "MethodNotAllowed"),
        (ALICE, Method::GET, "/api/v1/configmaps?labelSelector=a,,(", Value::Null, 400, "BadRequest"),
        (ALICE, Method::GET, "/api/v1/configmaps?fieldSelector=a", Value::Null, 400, "BadRequest"),
        (ALICE, Method::GET, "/api/v1/configmaps?watch=1&resourceVersion=x", Value::Null, 400, "BadRequest"),
        (ALICE, Method::GET, "/api/v1/namespaces/kube-system/secrets", Value::Null, 403, "Forbidden"),
        (ADMIN, Method::GET, "/api/v1/namespaces/kube-system/secrets", Value::Null, 200, ""),
        (ALICE, Method::PUT, approval, json!({}), 403, "Forbidden"),
        (ADMIN, Method::PUT, approval, json!({}), 404, "NotFound"),
        (ANONYMOUS, Method::GET, "/api", Value::Null, 403, "Forbidden"),
        (ANONYMOUS, Method::POST, reviews, review.clone(), 403, "Forbidden"),
        (carol, Method::POST, reviews, review.clone(), 403, "Forbidden"),
        (admin_as_carol, Method::POST, reviews, review.clone(), 201, ""),
        (ALICE, Method::GET, "/api/v1/namespaces/default", Value::Null, 200, ""),
        (ALICE, Method::DELETE, CONFIGMAPS, Value::Null, 405, "MethodNotAllowed"),
        (ALICE, Method::GET, "/api", Value::Null, 200, ""),
        (ALICE, Method::GET, "/apis/certificates.k8s.io/v1", Value::Null, 200, ""),
        (ALICE, Method::GET, "/openapi/v3/all", Value::Null, 200, ""),
    ];
    for (headers, method, path, body, code, reason) in cases {
        let (got, answer) = call(&mut sender, headers, method.clone(), path, body).await;
        assert_eq!(
            (got, answer["reason"].as_str().unwrap_or_default()),
            (code, reason),
            "{method} {path}: {answer}"
        );
        if !reason.is_empty() {
            assert_eq!(
                (answer["kind"].as_str(), answer["code"].as_u64()),
                (Some("Status"), Some(code.into()))
            );
        }
    }
    let (_, answer) = call(&mut sender, admin_as_carol, Method::POST, reviews, review).await;
    assert_eq!(
        answer["status"]["userInfo"],
        json!({"username": "carol", "groups": ["system:authenticated"]})
    );
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"verb": "get", "path": "/version"}},
        "status": {"allowed": false, "denied": true, "reason": "of the client"},
    });
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let (_, answer) = call(&mut sender, ALICE, Method::POST, reviews, review).await;
    assert_eq!(answer["status"], json!({"allowed": true}), "nothing of the client's own status");
}

#[tokio::test]
async fn an_object_lives_from_create_to_delete() {
    let (_dir, dev) = start().await;
    let mut sender = gateway(&dev).await;
    let one = &format!("{CONFIGMAPS}/a");
    let dry = &format!("{CONFIGMAPS}?dryRun=All");
    let (code, rehearsed) = call(&mut sender, ALICE, Method::POST, dry, configmap("a", &json!({}))).await;
    assert_eq!((code, &rehearsed["metadata"]["resourceVersion"]), (201, &Value::Null));
    assert_eq!(
        call(&mut sender, ALICE, Method::GET, one, Value::Null).await.0,
        404,
        "a dry run leaves nothing"
    );

    let (_, made) =
        call(&mut sender, ALICE, Method::POST, CONFIGMAPS, configmap("a", &json!({"k": "v"}))).await;
    assert!(
        made["metadata"]["uid"].is_string() && made["metadata"]["creationTimestamp"].is_string(),
        "{made}"
    );
    let patch = json!({"data": {"k": null, "l": "w"}});
    let dry = &format!("{one}?dryRun=All");
    let (code, rehearsed) = call(&mut sender, ALICE, Method::PATCH, dry, patch.clone()).await;
    assert_eq!((code, &rehearsed["data"]), (200, &json!({"l": "w"})));
    assert_eq!(
        rehearsed["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"],
        "what a write can be pinned to"
    );
    let (code, patched) = call(&mut sender, ALICE, Method::PATCH, one, patch).await;
    assert_eq!((code, &patched["data"]), (200, &json!({"l": "w"})));
    let (code, stale) = call(&mut sender, ALICE, Method::PUT, one, made.clone()).await;
    assert_eq!((code, stale["reason"].as_str()), (409, Some("Conflict")));
    let (_, same) = call(&mut sender, ALICE, Method::PUT, one, patched.clone()).await;
    assert_eq!(
        same["metadata"]["resourceVersion"], patched["metadata"]["resourceVersion"],
        "nothing changed"
    );

    let show = json!({"dryRun": ["All"]});
    assert_eq!(call(&mut sender, ALICE, Method::DELETE, one, show).await.0, 200);
    let (code, gone) = call(&mut sender, ALICE, Method::DELETE, one, Value::Null).await;
    assert_eq!((code, &gone["details"]["uid"]), (200, &made["metadata"]["uid"]));
    assert_eq!(call(&mut sender, ALICE, Method::GET, one, Value::Null).await.0, 404);
}

#[tokio::test]
async fn deleting_a_namespace_deletes_its_content() {
    let (_dir, dev) = start().await;
    let mut sender = gateway(&dev).await;
    let (namespaces, content) = ("/api/v1/namespaces", "/api/v1/namespaces/n/configmaps");
    call(&mut sender, ALICE, Method::POST, namespaces, json!({"metadata": {"name": "n"}})).await;
    assert_eq!(call(&mut sender, ALICE, Method::POST, content, configmap("a", &json!({}))).await.0, 201);
    assert_eq!(call(&mut sender, ALICE, Method::DELETE, "/api/v1/namespaces/n", Value::Null).await.0, 200);
    let (_, left) = call(&mut sender, ALICE, Method::GET, content, Value::Null).await;
    assert_eq!(left["items"], json!([]));
}

#[tokio::test]
async fn the_requester_of_a_certificate_is_always_the_caller() {
    let (_dir, dev) = start().await;
    let mut sender = gateway(&dev).await;
    let csr = {
        let spec = json!({"request": "AA==", "signerName": "a.b/c", "usages": ["client auth"],
            "username": "root", "groups": ["system:masters"], "uid": "0"});
        json!({"metadata": {"name": "x"}, "spec": spec, "status": {"conditions": [{"type": "Approved", "status": "True"}]}})
    };
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let (code, made) = call(&mut sender, ALICE, Method::POST, path, csr).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["spec"]["username"], "alice");
    assert_eq!(made["spec"]["groups"], json!(["developers", "system:authenticated"]));
    assert!(made["spec"]["uid"].is_null() && made["status"]["conditions"].is_null(), "{made}");
}

#[tokio::test]
async fn watches_deliver_events_of_selected_objects() {
    let (_dir, dev) = start().await;
    let (mut sender, mut watcher) = (gateway(&dev).await, gateway(&dev).await);
    let path = "/api/v1/configmaps?watch=true&labelSelector=app%3Dweb&sendInitialEvents=true";
    let watch = send(&mut watcher, ALICE, Method::GET, path, "", &Value::Null).await;
    assert_eq!(watch.status(), StatusCode::OK);
    let one = &format!("{CONFIGMAPS}/a");
    let label = |value: &str| json!({"metadata": {"labels": {"app": value}}});
    call(&mut sender, ALICE, Method::POST, CONFIGMAPS, configmap("a", &json!({}))).await;
    call(&mut sender, ALICE, Method::PATCH, one, label("web")).await;
    call(&mut sender, ALICE, Method::PATCH, one, json!({"data": {"k": "v"}})).await;
    call(&mut sender, ALICE, Method::PATCH, one, label("db")).await;
    call(&mut sender, ALICE, Method::DELETE, one, Value::Null).await;

    let events = event_types(watch, 4).await;
    assert_eq!(events, ["BOOKMARK", "ADDED", "MODIFIED", "DELETED"]);

    let path = "/api/v1/configmaps?watch=true&resourceVersion=1";
    let history = send(&mut sender, ALICE, Method::GET, path, "", &Value::Null).await;
    assert_eq!(event_types(history, 5).await.len(), 5, "the whole history");
}

/// The types of the first events of a watch, which then closes.
async fn event_types(mut watch: http::Response<Incoming>, count: usize) -> Vec<String> {
    let mut events = Vec::new();
    while events.len() < count {
        let frame =
            tokio::time::timeout(Duration::from_secs(20), watch.frame()).await.unwrap().unwrap().unwrap();
        for line in frame.into_data().unwrap().split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let event: Value = serde_json::from_slice(line).unwrap();
            events.push(event["type"].as_str().unwrap().to_owned());
        }
    }
    events
}

#[tokio::test]
async fn lists_are_tables_on_request() {
    let (_dir, dev) = start().await;
    let mut sender = gateway(&dev).await;
    let headers =
        &[ALICE, &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")]].concat()[..];
    let (_, table) = call(&mut sender, headers, Method::GET, "/api/v1/namespaces", Value::Null).await;
    let names = table["columnDefinitions"].as_array().unwrap().iter().map(|column| column["name"].clone());
    assert_eq!(names.collect::<Vec<_>>(), ["Name", "Status", "Age"]);
    assert_eq!(table["rows"][0]["cells"][0], "default");
    assert_eq!(table["rows"][0]["object"]["kind"], "Namespace");
}

#[tokio::test]
async fn a_port_or_directory_in_use_is_an_error_with_a_fix() {
    let (dir, dev) = start().await;
    let again = DevOptions { dir: dir.path().join("dev"), port: 0, full: false, tour: false };
    let error = Dev::start(&again, Clock::system()).await.unwrap_err();
    assert!(matches!(error, DevError::DirTaken(_)) && error.to_string().contains("--dir"), "{error}");
    let taken = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let other = dir.path().join("other");
    let error =
        Dev::start(&DevOptions { dir: other.clone(), port, full: false, tour: false }, Clock::system())
            .await
            .unwrap_err();
    assert!(matches!(error, DevError::PortTaken(..)) && error.to_string().contains("--port"), "{error}");
    assert!(!other.exists(), "nothing is written before the port is known to be free");

    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("precious"), "").unwrap();
    let foreign = DevOptions { dir: other.clone(), port: 0, full: false, tour: false };
    let error = Dev::start(&foreign, Clock::system()).await.unwrap_err();
    assert!(matches!(error, DevError::DirForeign(_)) && error.to_string().contains("--dir"), "{error}");
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1, "nothing is added to it");

    let address = dev.backend_address();
    drop(dev);
    let gone = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone).await.expect("the backend ends with its owner");
    Dev::start(&again, Clock::system()).await.unwrap();
}

#[tokio::test]
async fn the_announcement_names_endpoints_and_example_commands() {
    let (_dir, dev) = start().await;
    let text = dev.announcement(Some(SocketAddr::from(([127, 0, 0, 1], 9))), false).to_string();
    assert!(!text.contains('\u{1b}'), "colours are for terminals");
    for wanted in
        ["KUBECONFIG=", "auth whoami", "http://127.0.0.1:9/metrics", "portcullis serve", "for trying only"]
    {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    for flag in dev.gateway_flags() {
        assert!(text.contains(&flag), "{flag}");
    }
    let token = std::fs::read_to_string(dev.paths().token()).unwrap();
    assert!(!text.contains(token.trim()), "the token is never printed");
    assert!(dev.announcement(None, true).to_string().contains("\u{1b}["));
}

#[derive(clap::Parser)]
struct Serve {
    #[command(flatten)]
    flags: portcullis::internal::ServeFlags,
}

#[tokio::test]
async fn gateway_starts_with_the_printed_flags_from_a_relative_directory() {
    use clap::Parser as _;
    let dir = tempfile::tempdir().unwrap();
    let up =
        std::env::current_dir().unwrap().components().skip(1).map(|_| "..").collect::<std::path::PathBuf>();
    let relative = up.join(dir.path().strip_prefix("/").unwrap()).join("dev");
    let dev = Dev::start(&DevOptions { dir: relative, port: 0, full: false, tour: false }, Clock::system())
        .await
        .unwrap();
    let flags = dev.gateway_flags();
    let parsed = Serve::parse_from(std::iter::once("serve".to_owned()).chain(flags)).flags;
    let mut source = portcullis::internal::ConfigSource::new(parsed);
    let resolved = source.load().unwrap();
    let server = portcullis::internal::Server::start(&resolved, source).unwrap();
    TcpStream::connect(server.address()).await.unwrap();
}
