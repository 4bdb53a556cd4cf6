//! The endpoints of a backend: selection, failover, and endpoints that fail the self-check.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use http::{Method, Request, Response, StatusCode};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use testkit::body::fed;
use testkit::config_reload::replace;
use testkit::self_check::{self, respond, user_info};
use testkit::wire;
use testkit::{
    BoxedBody, FakeBackend, Gateway, H2, Pki, ResponseFuture, TEST_TIMEOUT, flags, full, in_time, kubeconfig,
    status, text, until,
};

use crate::gateway::InProcess as _;
use crate::gateway::start_process;
use crate::tcp_balancer::Balancer;

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

/// Responds with the name of the backend.
fn named(name: &'static str) -> impl Fn(Request<Incoming>) -> ResponseFuture + Send + Sync + 'static {
    move |_| Box::pin(async move { Response::new(full(name)) })
}

/// Answers the self-check with the user info of the request, changed by `change`.
fn misread(request: &Request<Incoming>, change: impl Fn(&mut Value)) -> Option<Response<BoxedBody>> {
    let good = self_check::answer(request)?;
    if request.method() != Method::POST {
        return Some(good);
    }
    let mut user = user_info(request.headers(), "x-remote-");
    change(&mut user);
    Some(respond(StatusCode::CREATED, &json!({"status": {"userInfo": user}})))
}

/// A gateway with one cluster of several endpoints.
pub(crate) fn several(pki: &Pki, endpoints: &[&FakeBackend]) -> Gateway {
    at(pki, &endpoints.iter().map(|backend| backend.address).collect::<Vec<_>>())
}

pub(crate) fn at(pki: &Pki, endpoints: &[SocketAddr]) -> Gateway {
    at_with(pki, endpoints, "")
}

/// The same, with additional keys of the cluster.
pub(crate) fn at_with(pki: &Pki, endpoints: &[SocketAddr], keys: &str) -> Gateway {
    Gateway::with(configuration_of(pki, endpoints, keys))
}

/// The flags of such a gateway.
pub(crate) fn configuration_of(pki: &Pki, endpoints: &[SocketAddr], keys: &str) -> Vec<String> {
    flags(pki, endpoints[0]);
    let urls: Vec<String> = endpoints.iter().map(|address| format!("'https://{address}'")).collect();
    let file = pki.write(
        "gateway.yaml",
        format!(
            "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {{bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}}
operation: {{metricsBindAddress: '127.0.0.1:0', workers: 1}}
authentication: {{tokenAuthFile: tokens.csv}}
clusters: [{{name: c, kubeconfig: backend.kubeconfig, endpoints: [{}]{keys}}}]
",
            urls.join(", ")
        ),
    );
    vec![format!("--config={}", file.display())]
}

pub(crate) async fn trusts(gateway: &Gateway, backend: &FakeBackend, trusted: bool) {
    trusts_at(gateway, backend.address, trusted).await;
}

pub(crate) async fn trusts_at(gateway: &Gateway, address: SocketAddr, trusted: bool) {
    let value = i32::from(trusted);
    let line = format!("portcullis_endpoint_trusted{{cluster=\"c\",endpoint=\"{address}\"}} {value}");
    gateway.until_counted(&line).await;
}

#[tokio::test]
async fn a_stopped_endpoint_fails_no_request() {
    let pki = Pki::new();
    let first = FakeBackend::start(&pki, H2, named("first")).await;
    let second = FakeBackend::start(&pki, H2, named("second")).await;
    let gateway = several(&pki, &[&first, &second]);
    trusts(&gateway, &first, true).await;
    trusts(&gateway, &second, true).await;
    let mut client = gateway.http1(None).await;
    in_time(async { while text(client.get("/api", &[TOKEN]).await).await != "first" {} }).await;
    let before = second.pending();
    let address = first.address;
    drop(first);
    until("its end", || std::net::TcpStream::connect(address).is_err()).await;
    for index in 0..20 {
        // The first request finds the connection closed; a write that was partly sent would not be retried.
        let method = if index % 2 == 1 { Method::POST } else { Method::GET };
        let request = Request::builder().method(method).uri("/api").header(TOKEN.0, TOKEN.1);
        let response = client.send(request.body(full("{}")).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "request {index}");
        assert_eq!(text(response).await, "second");
    }
    assert_eq!(second.pending() - before, 20, "each request was sent once");
}

/// The endpoint answers its self-check and sends nothing on later connections.
#[tokio::test]
async fn an_unresponsive_endpoint_is_skipped() {
    let pki = Pki::new();
    let (mute, _connections) = wire::bare(&pki, H2).await;
    let second = FakeBackend::start(&pki, H2, named("second")).await;
    let gateway = at(&pki, &[mute, second.address]);
    trusts_at(&gateway, mute, true).await;
    trusts(&gateway, &second, true).await;
    let mut client = gateway.http1(None).await;
    assert_eq!(text(in_time(client.get("/api", &[TOKEN])).await).await, "second");
}

#[tokio::test]
async fn an_endpoint_that_misidentifies_users_gets_no_request() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 5] = [
        ("another name", |user| user["username"] = json!("front-proxy-client")),
        ("nobody", |user| user["username"] = json!("system:anonymous")),
        ("other groups", |user| user["groups"] = json!(["system:authenticated"])),
        ("no extra", |user| user["extra"] = json!({})),
        ("another uid", |user| user["uid"] = json!("0")),
    ];
    for (name, change) in changes {
        let pki = Pki::new();
        let bad =
            FakeBackend::with_self_check(&pki, H2, move |request| misread(request, change), named("bad"))
                .await;
        let good = FakeBackend::start(&pki, H2, named("good")).await;
        let gateway = several(&pki, &[&bad, &good]);
        trusts(&gateway, &bad, false).await;
        trusts(&gateway, &good, true).await;
        let mut client = gateway.http1(None).await;
        for _ in 0..5 {
            assert_eq!(text(client.get("/api", &[TOKEN]).await).await, "good", "{name}");
        }
        // If it is the only endpoint, every request is refused.
        let alone = several(&pki, &[&bad]);
        trusts(&alone, &bad, false).await;
        let (code, body) = status(alone.http1(None).await.get("/api", &[TOKEN]).await).await;
        assert_eq!(
            (code, body["reason"].as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, Some("ServiceUnavailable"))
        );
        assert_eq!(bad.pending(), 0, "{name}");
    }
}

#[tokio::test]
async fn an_endpoint_that_only_drops_uids_is_used() {
    let pki = Pki::new();
    let forget = |request: &Request<Incoming>| misread(request, |user| user["uid"] = json!(""));
    let backend = FakeBackend::with_self_check(&pki, H2, forget, named("it")).await;
    let gateway = several(&pki, &[&backend]);
    trusts(&gateway, &backend, true).await;
    let address = backend.address;
    let counted = format!(
        "portcullis_self_checks_total{{cluster=\"c\",endpoint=\"{address}\",result=\"uid_missing\"}} 1"
    );
    gateway.until_counted(&counted).await;
    assert_eq!(text(gateway.http1(None).await.get("/api", &[TOKEN]).await).await, "it");
}

/// Clients may not set the additional identity headers of an API server.
#[tokio::test]
async fn identity_headers_of_the_backends_configuration_are_removed_from_requests() {
    let pki = Pki::new();
    let answer_self_check = |request: &Request<Incoming>| {
        let own = self_check::answer(request)?;
        if request.uri().path()
            != "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
        {
            return Some(own);
        }
        let data = json!({
            "requestheader-username-headers": r#"["X-Remote-User","X-Corp-User"]"#,
            "requestheader-group-headers": r#"["X-Remote-Group","X-Corp-Group"]"#,
            "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-","X-Corp-Extra-"]"#,
        });
        Some(respond(StatusCode::OK, &json!({"kind": "ConfigMap", "data": data})))
    };
    let backend = FakeBackend::with_self_check(&pki, H2, answer_self_check, named("it")).await;
    let gateway = several(&pki, &[&backend]);
    trusts(&gateway, &backend, true).await;
    let headers = [
        TOKEN,
        ("x-corp-user", "admin"),
        ("x-corp-group", "system:masters"),
        ("x-corp-extra-scopes", "all"),
        ("x-corp-other", "stays"),
    ];
    text(gateway.http1(None).await.get("/api", &headers).await).await;
    let seen = backend.take().unwrap();
    let left: Vec<&str> =
        seen.headers.keys().map(http::HeaderName::as_str).filter(|name| name.starts_with("x-corp")).collect();
    assert_eq!(left, ["x-corp-other"]);
    assert_eq!(seen.all("x-remote-user"), ["carol"]);
}

/// An API server whose identity headers are `X-Remote-User` and `X-Corp-User`. Requests for its header configuration
/// get the status code `code`.
async fn reads_corp_headers(pki: &Pki, code: &Arc<AtomicU16>) -> FakeBackend {
    const MAP: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let current = Arc::clone(code);
    let answer_self_check = move |request: &Request<Incoming>| {
        let own = self_check::answer(request)?;
        if request.uri().path() != MAP {
            return Some(own);
        }
        let data = json!({"requestheader-username-headers": r#"["X-Remote-User","X-Corp-User"]"#});
        let code = StatusCode::from_u16(current.load(Ordering::SeqCst)).unwrap();
        Some(respond(code, &json!({"kind": "ConfigMap", "data": data})))
    };
    FakeBackend::with_self_check(pki, H2, answer_self_check, named("it")).await
}

/// Whether the API server receives a client's header that only its own configuration declares an identity header.
async fn corp_header_arrives(gateway: &Gateway, backend: &FakeBackend) -> bool {
    let mut client = gateway.http1(None).await;
    let headers = [TOKEN, ("x-corp-user", "admin")];
    in_time(async { while client.get("/api", &headers).await.status() != StatusCode::OK {} }).await;
    backend.take().unwrap().headers.contains_key("x-corp-user")
}

/// A request that was received before the identity headers were known, and whose body ends after that, names no user by them.
#[tokio::test]
async fn a_request_that_waits_while_the_identity_headers_are_learnt_is_refused() {
    let pki = Pki::new();
    let code = Arc::new(AtomicU16::new(500));
    let backend = reads_corp_headers(&pki, &code).await;
    let gateway = several(&pki, &[&backend]);
    trusts(&gateway, &backend, false).await;
    let mut client = gateway.http2(None).await;
    let (frames, body, _gone) = fed();
    let request = Request::post("https://localhost/api").header("x-corp-user", "admin").body(body).unwrap();
    let mut shared = client.share();
    let waiting = tokio::spawn(async move { shared.send(request).await });
    frames.send(Frame::data("x".into())).unwrap();
    // Of one connection, the requests are prepared in order.
    let request = Request::get("https://localhost/api").header(TOKEN.0, TOKEN.1).body(full("")).unwrap();
    assert_eq!(client.send(request).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    code.store(200, Ordering::SeqCst);
    trusts(&gateway, &backend, true).await;
    frames.send(Frame::data("y".into())).unwrap();
    drop(frames);
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    // A request that comes now is forwarded without them.
    assert!(!corp_header_arrives(&gateway, &backend).await);
    assert!(backend.take().is_none(), "no other request has reached the API server");
}

/// No request is forwarded before the identity headers are known; later, the last known configuration counts.
#[tokio::test]
async fn an_endpoint_with_unknown_identity_headers_is_not_used() {
    for (first, used) in [(500, false), (429, false), (401, false), (404, true)] {
        let pki = Pki::new();
        let code = Arc::new(AtomicU16::new(first));
        let backend = reads_corp_headers(&pki, &code).await;
        let gateway = several(&pki, &[&backend]);
        trusts(&gateway, &backend, used).await;
        let mut client = gateway.http1(None).await;
        let headers = [TOKEN, ("x-corp-user", "admin")];
        let expected = if used { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        assert_eq!(client.get("/api", &headers).await.status(), expected, "{first}");
        assert_eq!(backend.take().is_some(), used, "{first}");
        // The gateway retries soon.
        code.store(200, Ordering::SeqCst);
        in_time(async { while corp_header_arrives(&gateway, &backend).await {} }).await;
        // The known headers remain in use, and the endpoint stays trusted.
        code.store(first, Ordering::SeqCst);
        let result = if used { "ok" } else { "inconclusive" };
        let checks = async || {
            let labels = format!("cluster=\"c\",endpoint=\"{}\",result=\"{result}\"", backend.address);
            gateway.count(&format!("portcullis_self_checks_total{{{labels}}}")).await
        };
        let before = checks().await;
        in_time(async { while checks().await == before {} }).await;
        assert!(!corp_header_arrives(&gateway, &backend).await, "{first}");
    }
}

#[tokio::test]
async fn an_endpoint_with_unreadable_identity_headers_is_not_used() {
    let pki = Pki::new();
    let code = Arc::new(AtomicU16::new(403));
    let backend = reads_corp_headers(&pki, &code).await;
    let gateway = several(&pki, &[&backend]);
    trusts(&gateway, &backend, false).await;
    let labels = format!("cluster=\"c\",endpoint=\"{}\",result=\"header_names_forbidden\"", backend.address);
    assert!(gateway.count(&format!("portcullis_self_checks_total{{{labels}}}")).await > 0);
    let refused = gateway.http1(None).await.get("/api", &[TOKEN, ("x-corp-user", "admin")]).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(backend.pending(), 0);
    // Once the gateway may read the configuration, it removes these headers from requests.
    code.store(200, Ordering::SeqCst);
    trusts(&gateway, &backend, true).await;
    assert!(!corp_header_arrives(&gateway, &backend).await);
    // The headers may have changed since the API server began to forbid the read.
    code.store(403, Ordering::SeqCst);
    trusts(&gateway, &backend, false).await;
}

#[tokio::test]
async fn configured_identity_headers_need_not_be_readable() {
    for code in [403, 404, 200] {
        let pki = Pki::new();
        let backend = reads_corp_headers(&pki, &Arc::new(AtomicU16::new(code))).await;
        let keys = ", requestheaderUsernameHeaders: [X-Remote-User, X-Corp-User], \
                    requestheaderGroupHeaders: [X-Corp-Group], requestheaderUIDHeaders: [X-Corp-Uid], \
                    requestheaderExtraHeadersPrefix: [X-Corp-Extra-]";
        let gateway = at_with(&pki, &[backend.address], keys);
        trusts(&gateway, &backend, true).await;
        let headers = [
            TOKEN,
            ("x-corp-user", "admin"),
            ("x-corp-group", "system:masters"),
            ("x-corp-uid", "1"),
            ("x-corp-extra-a", "b"),
            ("x-corp-other", "stays"),
        ];
        text(gateway.http1(None).await.get("/api", &headers).await).await;
        let seen = backend.take().unwrap();
        let left: Vec<_> = seen.headers.keys().filter(|name| name.as_str().starts_with("x-corp")).collect();
        assert_eq!(left, ["x-corp-other"], "{code}");
    }
}

/// An administrator who takes the right to review oneself from users, as hardening guides advise, takes no cluster from them.
#[tokio::test]
async fn an_endpoint_that_begins_to_refuse_the_review_stays_in_use() {
    let pki = Pki::new();
    let (forbids, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_forbidden, is_changed) = (Arc::clone(&forbids), Arc::clone(&changes));
    let own = move |request: &Request<Incoming>| {
        let is_review = request.method() == Method::POST;
        if is_review && is_forbidden.load(Ordering::SeqCst) {
            let user = request.headers().get("x-remote-user")?.to_str().ok()?;
            let message = format!(
                "selfsubjectreviews.authentication.k8s.io is forbidden: User \"{user}\" cannot create resource \
                 \"selfsubjectreviews\" in API group \"authentication.k8s.io\" at the cluster scope"
            );
            return Some(respond(StatusCode::FORBIDDEN, &json!({"message": message})));
        }
        let is_changed = is_changed.load(Ordering::SeqCst);
        misread(request, |user| {
            if is_changed {
                user["groups"] = json!([]);
            }
        })
    };
    let backend = FakeBackend::with_self_check(&pki, H2, own, named("it")).await;
    let gateway = several(&pki, &[&backend]);
    trusts(&gateway, &backend, true).await;
    let mut client = gateway.http1(None).await;
    assert_eq!(text(client.get("/api", &[TOKEN]).await).await, "it");
    forbids.store(true, Ordering::SeqCst);
    let address = backend.address;
    let forbidden =
        format!("portcullis_self_checks_total{{cluster=\"c\",endpoint=\"{address}\",result=\"forbidden\"}}");
    in_time(async { while gateway.count(&forbidden).await < 3 {} }).await;
    assert_eq!(text(client.get("/api", &[TOKEN]).await).await, "it");
    trusts(&gateway, &backend, true).await;
    // A gateway that has not seen it pass does not use it, and says what is missing.
    let fresh = several(&pki, &[&backend]);
    trusts(&fresh, &backend, false).await;
    let status = fresh.metrics("/clusters").await;
    assert!(status.contains("its RBAC forbids SelfSubjectReviews"), "{status}");
    assert!(status.contains("apply deploy/rbac.yaml"), "{status}");
    let refused = fresh.http1(None).await.get("/api", &[TOKEN]).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    // What an identity shows still counts.
    changes.store(true, Ordering::SeqCst);
    forbids.store(false, Ordering::SeqCst);
    trusts(&gateway, &backend, false).await;
    changes.store(false, Ordering::SeqCst);
    trusts(&gateway, &backend, true).await;
}

/// A renewed serving certificate of the same CA interrupts nothing; one of another CA is refused, and the log says why.
#[tokio::test]
async fn an_endpoint_may_renew_its_certificate() {
    let (pki, other) = (Pki::new(), Pki::new());
    let first = FakeBackend::start(&pki, H2, named("first")).await;
    let renewed = FakeBackend::start(&pki, H2, named("renewed")).await;
    let foreign = FakeBackend::start(&other, H2, named("foreign")).await;
    let balancer = Balancer::to(first.address).await;
    let process = start_process(flags(&pki, balancer.address)).await;
    let gateway = &process.gateway;
    let mut client = gateway.http1(None).await;
    in_time(async { while client.get("/api", &[TOKEN]).await.status() != StatusCode::OK {} }).await;
    balancer.switch(renewed.address);
    drop(first);
    in_time(async {
        loop {
            let response = client.get("/api", &[TOKEN]).await;
            if response.status() == StatusCode::OK && text(response).await == "renewed" {
                break;
            }
        }
    })
    .await;
    balancer.switch(foreign.address);
    drop(renewed);
    until("the diagnosis", || !process.said("is not signed by the CA of the kubeconfig").is_empty()).await;
    let refused = client.get("/api", &[TOKEN]).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(foreign.pending(), 0);
    let (_, log) = process.end().await;
    assert!(log.contains("add the new one to certificate-authority"), "{log}");
}

/// A rotated credential that the backend refuses does not interrupt requests, and does not block other changes.
#[tokio::test]
async fn a_refused_credential_leaves_the_old_one_in_use() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, named("it")).await;
    let gateway = Gateway::with(flags(&pki, backend.address));
    gateway.checked().await;
    let mut open = gateway.http1(None).await;
    assert_eq!(text(open.get("/api", &[TOKEN]).await).await, "it");
    let before = backend.connections();

    let directory = pki.directory.path();
    let write = |name: &str, front: &testkit::pki::Issued| {
        let (cert, key) = pki.write_pair(name, front);
        let content = kubeconfig(backend.address, &directory.join("servers-ca.crt"), &cert, &key);
        replace(&directory.join("backend.kubeconfig"), content);
    };
    // A certificate of a CA that the backend does not trust; the same reload revokes a token.
    write("forged", &pki.clients.leaf().cn("portcullis").issue());
    replace(&directory.join("tokens.csv"), "other-token,dave,1\n");
    // The next generation may result from a reload that read the files before all of them were written.
    for _ in 0..2 {
        let generation = gateway.generation().await;
        gateway.server().reload();
        gateway.reloaded(generation).await;
    }
    assert_eq!(open.get("/api", &[TOKEN]).await.status(), StatusCode::UNAUTHORIZED, "revoked at once");
    let other = ("authorization", "Bearer other-token");
    for _ in 0..5 {
        assert_eq!(text(open.get("/api", &[other]).await).await, "it", "with the old credential");
    }
    // The new credential is pending for the same address; the metric shows the active one.
    let endpoint = format!("endpoint=\"{}\"", backend.address);
    let labels = format!("cluster=\"backend\",{endpoint}");
    let unreachable = format!("portcullis_self_checks_total{{{labels},result=\"unreachable\"}}");
    in_time(async { while gateway.count(&unreachable).await == 0 {} }).await;
    let trusted = format!("portcullis_endpoint_trusted{{{labels}}}");
    assert_eq!(gateway.count(&trusted).await, 1);

    // A valid credential is used once its self-check has passed, without another reload.
    write("renewed", &pki.front.leaf().cn("portcullis").issue());
    let generation = gateway.generation().await;
    gateway.server().reload();
    gateway.reloaded(generation + 1).await;
    let dialled = backend.connections();
    assert!(dialled > before, "the new credential was tried");
    in_time(async {
        loop {
            assert_eq!(text(open.get("/api", &[other]).await).await, "it");
            if backend.connections() > dialled {
                break;
            }
        }
    })
    .await;
    // The metric survives the removal of the old endpoint.
    assert_eq!(gateway.count(&trusted).await, 1);
}

/// A pending credential holds back nothing by which the configuration permits less.
#[tokio::test]
async fn a_removed_endpoint_and_a_lower_bound_apply_at_once_while_a_credential_is_pending() {
    const WATCH: &str = "/api/v1/pods?watch=true";
    let pki = Pki::new();
    let (opened, mut watches) = tokio::sync::mpsc::unbounded_channel();
    let stays = move |request: Request<Incoming>| -> ResponseFuture {
        if request.uri().query() != Some("watch=true") {
            return Box::pin(async { Response::new(full("second")) });
        }
        let (frames, body, _) = fed();
        opened.send(frames).unwrap();
        Box::pin(async { Response::new(body) })
    };
    let first = FakeBackend::start(&pki, H2, named("first")).await;
    let second = FakeBackend::start(&pki, H2, stays).await;
    let gateway = several(&pki, &[&first, &second]);
    for backend in [&first, &second] {
        trusts(&gateway, backend, true).await;
    }
    let mut client = gateway.http2(None).await;
    in_time(async { while text(client.get("/api", &[TOKEN]).await).await != "first" {} }).await;
    // The API servers refuse the new credential.
    let (cert, key) = pki.write_pair("forged", &pki.clients.leaf().cn("portcullis").issue());
    let ca = pki.directory.path().join("servers-ca.crt");
    let generation = gateway.generation().await;
    replace(&pki.directory.path().join("backend.kubeconfig"), kubeconfig(first.address, &ca, &cert, &key));
    gateway.reloaded(generation).await;
    gateway.until_counted("portcullis_cluster_stale{cause=\"pending\",cluster=\"c\"} 1").await;
    let generation = gateway.generation().await;
    let file = pki.directory.path().join("gateway.yaml");
    let listed = |one: &FakeBackend| format!("'https://{}'", one.address);
    let config = std::fs::read_to_string(&file).unwrap();
    let fewer = config.replace(&format!("{}, ", listed(&first)), "");
    assert_ne!(fewer, config);
    replace(&file, fewer.replace("]}]", "], maxWatchesPerEndpoint: 1}]"));
    gateway.reloaded(generation).await;
    while first.take().is_some() {}
    for _ in 0..20 {
        assert_eq!(text(client.get("/api", &[TOKEN]).await).await, "second");
    }
    assert_eq!(first.pending(), 0);
    let _one = client.get(WATCH, &[TOKEN]).await;
    let _frames = in_time(watches.recv()).await.unwrap();
    assert_eq!(client.get(WATCH, &[TOKEN]).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    gateway.until_counted("portcullis_cluster_stale{cause=\"pending\",cluster=\"c\"} 1").await;
}

/// One log line per outage, for any number of requests.
#[tokio::test]
async fn an_outage_is_logged_once() {
    const MESSAGE: &str = "no answer from the backend";
    let pki = Pki::new();
    let bad = Arc::new(AtomicBool::new(false));
    let is_bad = Arc::clone(&bad);
    let answer_self_check = move |request: &Request<Incoming>| {
        let is_bad = is_bad.load(Ordering::SeqCst);
        misread(request, |user| {
            if is_bad {
                user["groups"] = json!([]);
            }
        })
    };
    let backend = FakeBackend::with_self_check(&pki, H2, answer_self_check, named("it")).await;
    let process = start_process(flags(&pki, backend.address)).await;
    let mut client = process.gateway.http1(None).await;
    for outage in 1..=2 {
        assert_eq!(client.get("/api", &[TOKEN]).await.status(), StatusCode::OK);
        bad.store(true, Ordering::SeqCst);
        in_time(async { while client.get("/api", &[TOKEN]).await.status() == StatusCode::OK {} }).await;
        for _ in 0..5 {
            assert_eq!(client.get("/api", &[TOKEN]).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        }
        until("the log line", || process.said(MESSAGE).len() >= outage).await;
        bad.store(false, Ordering::SeqCst);
        in_time(async { while client.get("/api", &[TOKEN]).await.status() != StatusCode::OK {} }).await;
    }
    let (_, log) = process.end().await;
    assert_eq!(log.matches(MESSAGE).count(), 2, "{log}");
}

/// A user that only the new configuration authenticates is never forwarded to the cluster of the old configuration.
#[tokio::test]
async fn the_old_cluster_gets_no_requests_of_the_new_configuration() {
    let (pki, other) = (Pki::new(), Pki::new());
    let before = FakeBackend::start(&pki, H2, named("before")).await;
    let gateway = Gateway::with(flags(&pki, before.address));
    gateway.checked().await;
    let mut client = gateway.http1(None).await;
    assert_eq!(text(client.get("/api", &[TOKEN]).await).await, "before");
    before.take().unwrap();

    let forgetful = |request: &Request<Incoming>| misread(request, |user| user["groups"] = json!([]));
    let after = FakeBackend::with_self_check(&other, H2, forgetful, named("after")).await;
    let directory: &Path = pki.directory.path();
    let ca = pki.write("other-ca.crt", other.servers.cert_pem());
    let (cert, key) = pki.write_pair("other-front", &other.front.leaf().cn("portcullis").issue());
    replace(&directory.join("tokens.csv"), "good-token,carol,7,\"system:masters\"\n");
    let generation = gateway.generation().await;
    replace(&directory.join("backend.kubeconfig"), kubeconfig(after.address, &ca, &cert, &key));
    gateway.server().reload();
    gateway.reloaded(generation).await;
    let checked = format!(
        "portcullis_self_checks_total{{cluster=\"backend\",endpoint=\"{}\",result=\"identity_changed\"}}",
        after.address
    );
    in_time(async { while gateway.count(&checked).await == 0 {} }).await;
    assert_eq!(client.get("/api", &[TOKEN]).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!((before.pending(), after.pending()), (0, 0));
}

#[tokio::test]
async fn a_backend_that_starts_later_is_used_then() {
    let pki = Pki::new();
    // Bound but not listening, so that no other process can take the port.
    let unheard = tokio::net::TcpSocket::new_v4().unwrap();
    unheard.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let gateway = Gateway::with(flags(&pki, unheard.local_addr().unwrap()));
    gateway.checked().await;
    let mut client = gateway.http1(None).await;
    let response = client.get("/api", &[TOKEN]).await;
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(status(response).await.0, StatusCode::SERVICE_UNAVAILABLE);

    let backend = FakeBackend::start(&pki, H2, named("late")).await;
    let directory: &Path = pki.directory.path();
    let [ca, cert, key] = ["servers-ca.crt", "front.crt", "front.key"].map(|name| directory.join(name));
    replace(&directory.join("backend.kubeconfig"), kubeconfig(backend.address, &ca, &cert, &key));
    gateway.server().reload();
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    while client.get("/api", &[TOKEN]).await.status() != StatusCode::OK {
        assert!(tokio::time::Instant::now() < deadline, "the endpoint is never used");
    }
}
