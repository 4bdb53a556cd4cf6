//! Impersonation by the gateway: what clients are answered, and what the backend receives.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::self_check::{self, respond};
use testkit::{BoxedBody, FakeBackend, Gateway, H2, Pki, ReceivedRequest, flags, full, get, status, text};

use crate::endpoints::{at_with, trusts};
use crate::gateway::{InProcess as _, start_process};

pub(crate) const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

/// A backend that answers access reviews with `answer`, and everything else with the request's `Impersonate-*` and
/// `X-Remote-*` headers in its record.
pub(crate) struct Reviewing {
    pub(crate) backend: FakeBackend,
    reviews: Arc<Mutex<Vec<Value>>>,
}

impl Reviewing {
    pub(crate) async fn start(
        pki: &Pki,
        answer: impl Fn(&Value) -> Response<BoxedBody> + Send + Sync + 'static,
    ) -> Self {
        Self::of_version(pki, "v1.37.2", answer).await
    }

    /// The same of a release. An API server without a version does not say it.
    async fn of_version(
        pki: &Pki,
        version: &'static str,
        answer: impl Fn(&Value) -> Response<BoxedBody> + Send + Sync + 'static,
    ) -> Self {
        let reviews = Arc::<Mutex<Vec<Value>>>::default();
        let record = Arc::clone(&reviews);
        let answer = Arc::new(answer);
        // The gateway's questions are not a part of the self-check.
        let self_check = move |request: &Request<Incoming>| {
            let path = request.uri().path();
            if path == REVIEWS || path == RULES {
                return None;
            }
            let answered = self_check::answer(request)?;
            Some(match (path, version) {
                ("/version", "") => respond(StatusCode::FORBIDDEN, &json!({"kind": "Status"})),
                ("/version", version) => respond(StatusCode::OK, &json!({"gitVersion": version})),
                _ => answered,
            })
        };
        let backend = FakeBackend::with_self_check(pki, H2, self_check, move |request| {
            let (record, answer) = (Arc::clone(&record), Arc::clone(&answer));
            Box::pin(async move {
                if request.uri().path() != REVIEWS {
                    return Response::new(full("ok"));
                }
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let review: Value = serde_json::from_slice(&body).unwrap();
                record.lock().unwrap().push(review["spec"].clone());
                answer(&review["spec"])
            })
        })
        .await;
        Self { backend, reviews }
    }

    /// The next request that is not one of the gateway's questions.
    fn take(&self) -> Option<ReceivedRequest> {
        std::iter::from_fn(|| self.backend.take())
            .find(|seen| !seen.target.starts_with(REVIEWS) && !seen.target.starts_with(RULES))
    }
}

/// Flags of a gateway that logs every request, and decides on impersonations itself.
fn verbose(pki: &Pki, reviewing: &Reviewing) -> Vec<String> {
    let mut flags = flags(pki, reviewing.backend.address);
    flags.extend(["-v=3".to_owned(), "--impersonation=gateway".to_owned()]);
    flags
}

pub(crate) fn decision(allowed: bool) -> Response<BoxedBody> {
    respond(StatusCode::CREATED, &json!({"status": {"allowed": allowed, "reason": "because"}}))
}

/// Every identity header, sorted.
fn identity(seen: &ReceivedRequest) -> Vec<String> {
    let is_identity = |name: &str| {
        let name = name.replace(['_', '.'], "-");
        name.starts_with("x-remote-") || name.starts_with("impersonate-") || name == "authorization"
    };
    let mut lines: Vec<String> = seen
        .headers
        .iter()
        .filter(|(name, _)| is_identity(name.as_str()))
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
        .collect();
    lines.sort();
    lines
}

/// Whether the access review is for a verb of constrained impersonation.
fn is_constrained(review: &Value) -> bool {
    let attributes =
        ["resourceAttributes", "nonResourceAttributes"].iter().find_map(|field| review.get(field));
    attributes
        .and_then(|attributes| attributes["verb"].as_str())
        .is_some_and(|verb| verb.starts_with("impersonate:") || verb.starts_with("impersonate-on:"))
}

/// Any API server of the cluster may get the request, and to one before 1.36 the verbs of constrained impersonation mean
/// nothing. So they count if every API server is known to be newer.
#[tokio::test]
async fn constrained_verbs_count_if_every_api_server_knows_them() {
    for (versions, is_allowed) in [
        (["v1.37.2", "v1.37.2"], true),
        (["v1.36.3", "v1.37.2"], true),
        (["v1.34.4", "v1.37.2"], false),
        (["v1.37.2", "v1.35.6+k3s1"], false),
        (["v1.37.2", ""], false),
    ] {
        let pki = Pki::new();
        // The roles of the user have no other verbs.
        let answer = |review: &Value| decision(is_constrained(review));
        let [one, other] =
            [versions[0], versions[1]].map(|version| Reviewing::of_version(&pki, version, answer));
        let (one, other) = (one.await, other.await);
        let addresses = [one.backend.address, other.backend.address];
        let gateway = at_with(&pki, &addresses, ", impersonation: gateway");
        trusts(&gateway, &one.backend, true).await;
        trusts(&gateway, &other.backend, true).await;
        let mut client = gateway.http1(None).await;
        let (mut received, mut asked) = (0, Vec::new());
        for request in 0..20 {
            let user = format!("bob-{request}");
            let response = client.get("/api", &[TOKEN, ("impersonate-user", &user)]).await;
            let expected = if is_allowed { StatusCode::OK } else { StatusCode::FORBIDDEN };
            assert_eq!(response.status(), expected, "{versions:?}");
        }
        for server in [&one, &other] {
            received += std::iter::from_fn(|| server.take()).count();
            asked.extend(server.reviews.lock().unwrap().clone());
        }
        assert_eq!(received, if is_allowed { 20 } else { 0 }, "{versions:?}");
        assert_eq!(asked.iter().any(is_constrained), is_allowed, "{versions:?}");
    }
}

/// In both identity modes the backend receives the impersonated user, nothing of the client's headers, and nothing of the
/// client's own identity.
#[tokio::test]
async fn the_backend_receives_the_impersonated_user_alone() {
    for (mode, prefix) in [("requestHeader", "x-remote-"), ("impersonate", "impersonate-")] {
        let pki = Pki::new();
        let reviewing = Reviewing::start(&pki, |_| decision(true)).await;
        let mut flags = flags(&pki, reviewing.backend.address);
        flags.extend([format!("--identity={mode}"), "--impersonation=gateway".to_owned()]);
        let gateway = Gateway::with(flags);
        let expected = |lines: &[&str]| -> Vec<String> {
            let mut lines: Vec<String> = lines.iter().map(|line| format!("{prefix}{line}")).collect();
            lines.sort();
            lines
        };
        let bob = [TOKEN, ("impersonate-user", "bob")];
        for (more, lines) in [
            (&[][..], &["user: bob", "group: system:authenticated"][..]),
            (
                &[("impersonate-group", "x"), ("impersonate-uid", "9"), ("impersonate-extra-k%2Fl", "v")],
                &["user: bob", "uid: 9", "group: x", "group: system:authenticated", "extra-k%2fl: v"],
            ),
            (
                &[("connection", "Impersonate-User, Impersonate-Group"), ("impersonate-group", "x")],
                &["user: bob", "group: x", "group: system:authenticated"],
            ),
            (
                &[
                    ("impersonate_user", "eve"),
                    ("impersonate.group", "system:masters"),
                    ("x-remote-group", "y"),
                ],
                &["user: bob", "group: system:authenticated"],
            ),
        ] {
            for upgrade in [&[][..], &[("connection", "Upgrade"), ("upgrade", "websocket")]] {
                let headers = [&bob, more, upgrade].concat();
                let request = get("/api/v1/namespaces/n/pods/p/exec", &headers);
                let response = gateway.http1(None).await.send(request).await.unwrap();
                assert_eq!(response.status(), StatusCode::OK, "{mode} {headers:?}");
                assert_eq!(identity(&reviewing.take().unwrap()), expected(lines), "{mode} {headers:?}");
            }
        }
        // The client itself, whose empty header asks for no user.
        let own = expected(&["user: carol", "uid: 7", "group: a", "group: b", "group: system:authenticated"]);
        for headers in [&[TOKEN][..], &[TOKEN, ("impersonate-user", "")], &[TOKEN, ("impersonate-uid", "")]] {
            gateway.http1(None).await.get("/api", headers).await;
            assert_eq!(identity(&reviewing.take().unwrap()), own, "{mode} {headers:?}");
        }
        let questions = reviewing.reviews.lock().unwrap().clone();
        assert!(
            questions.iter().all(|question| question["user"] == "carol" && question["uid"] == "7"),
            "{questions:?}"
        );
    }
}

#[tokio::test]
async fn a_refused_impersonation_reaches_no_backend() {
    let pki = Pki::new();
    let reviewing = Reviewing::start(&pki, |_| decision(false)).await;
    let process = start_process(verbose(&pki, &reviewing)).await;
    let gateway = &process.gateway;
    for (headers, code, message) in [
        (
            &[("impersonate-user", "bob")][..],
            403,
            "cannot impersonate-on:user-info:get path \"/api\": because",
        ),
        (&[("impersonate-group", "g")], 400, "without impersonating a user name"),
        (&[("impersonate-user", ""), ("impersonate-extra-k", "v")], 400, "without impersonating a user name"),
        (&[("impersonate-user", "bob"), ("impersonate-tenant", "t")], 400, "unknown impersonation header"),
    ] {
        let headers = [&[TOKEN], headers].concat();
        let response = gateway.http1(None).await.get("/api", &headers).await;
        assert_eq!(response.headers().get("x-content-type-options").unwrap(), "nosniff");
        let (found, body) = status(response).await;
        assert_eq!(found.as_u16(), code, "{headers:?}: {body}");
        assert!(body["message"].as_str().unwrap().contains(message), "{headers:?}: {body}");
    }
    assert!(reviewing.take().is_none());
    let (_, log) = process.end().await;
    assert!(!log.contains("impersonated_user"), "{log}");
}

/// Without an answer the request is refused; the client does not learn why, the operator does.
#[tokio::test]
async fn without_an_answer_the_request_is_refused() {
    let cases = [
        (500, json!({"message": "secret cause"}), 503, "does not answer access reviews"),
        (403, json!({"message": "secret cause"}), 403, "this gateway cannot check"),
        (201, json!({"status": {"allowed": true, "denied": true}}), 403, "this gateway cannot check"),
        (201, json!([]), 403, "this gateway cannot check"),
    ];
    for (answer, body, code, expected) in cases {
        let pki = Pki::new();
        let answered = body.clone();
        let reviewing =
            Reviewing::start(&pki, move |_| respond(StatusCode::from_u16(answer).unwrap(), &answered)).await;
        let process = start_process(verbose(&pki, &reviewing)).await;
        let response =
            process.gateway.http1(None).await.get("/api", &[TOKEN, ("impersonate-user", "bob")]).await;
        let retry = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        let (found, seen) = status(response).await;
        assert_eq!((found.as_u16(), retry.is_some()), (code, code == 503), "{body}: {seen}");
        let message = seen["message"].as_str().unwrap();
        assert!(message.contains(expected) && !message.contains("secret"), "{message}");
        assert!(reviewing.take().is_none(), "{body}");
        let (_, log) = process.end().await;
        assert!(log.contains("impersonation could not be checked"), "{log}");
        assert_eq!(log.contains("deploy/rbac.yaml"), answer == 403, "{log}");
    }
}

/// Whoever decides.
#[tokio::test]
async fn the_access_log_names_both_users() {
    for by in ["gateway", "backend"] {
        let pki = Pki::new();
        let reviewing = Reviewing::start(&pki, |_| decision(true)).await;
        let mut flags = flags(&pki, reviewing.backend.address);
        flags.extend(["-v=3".to_owned(), format!("--impersonation={by}")]);
        let process = start_process(flags).await;
        let headers = [TOKEN, ("impersonate-user", "bob")];
        let response = process.gateway.http1(None).await.get("/api", &headers).await;
        assert_eq!(response.status(), StatusCode::OK);
        text(response).await;
        let (_, log) = process.end().await;
        let line = log.lines().find(|line| line.contains(r#""impersonated_user":"bob""#)).unwrap_or(&log);
        assert!(line.contains(r#""user":"carol""#), "{line}");
    }
}

/// By default the API server decides, and has both users for its audit log; unless the gateway needs the impersonated user.
#[tokio::test]
async fn the_backend_decides_unless_the_gateway_needs_the_user() {
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";
    for (flag, gateway_decides) in [
        ("--authorization-mode=AlwaysAllow", false),
        ("--identity=impersonate", true),
        ("--audit-policy-file", true),
        ("--max-requests-inflight=10", true),
    ] {
        let pki = Pki::new();
        let reviewing = Reviewing::start(&pki, |_| decision(true)).await;
        let mut flags = flags(&pki, reviewing.backend.address);
        if flag == "--audit-policy-file" {
            flags.push(format!("{flag}={}", pki.write("policy.yaml", policy).display()));
            flags.push(format!("--audit-log-path={}", pki.directory.path().join("audit.log").display()));
        } else {
            flags.push(flag.to_owned());
        }
        let gateway = Gateway::with(flags);
        let headers = [TOKEN, ("impersonate-user", "bob")];
        let response = gateway.http2(None).await.get("/api", &headers).await;
        assert_eq!(response.status(), StatusCode::OK, "{flag}");
        let seen = reviewing.take().unwrap();
        let user = |name: &str| seen.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let users = (user("x-remote-user"), user("impersonate-user"));
        let expected = match (gateway_decides, flag) {
            (false, _) => (Some("carol".to_owned()), Some("bob".to_owned())),
            (true, "--identity=impersonate") => (None, Some("bob".to_owned())),
            (true, _) => (Some("bob".to_owned()), None),
        };
        assert_eq!(users, expected, "{flag}");
    }
}

/// Headers that ask for a user never become those that say who the client is.
#[tokio::test]
async fn a_backend_that_reads_identities_from_impersonate_headers_decides_on_none() {
    let pki = Pki::new();
    let reviewing = Reviewing::start(&pki, |_| decision(true)).await;
    let mut flags = flags(&pki, reviewing.backend.address);
    flags.push("--backend-requestheader-username-headers=X-Remote-User".to_owned());
    flags.push("--backend-requestheader-group-headers=X-Remote-Group,Impersonate-Group".to_owned());
    let gateway = Gateway::with(flags);
    let headers = [TOKEN, ("impersonate-user", "bob"), ("impersonate-group", "system:masters")];
    let response = gateway.http2(None).await.get("/api", &headers).await;
    let (code, body) = status(response).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
    assert!(reviewing.take().is_none());
}

#[tokio::test]
async fn questions_are_asked_once_for_all_worker_threads() {
    let pki = Pki::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let reviewing = Reviewing::start(&pki, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        decision(true)
    })
    .await;
    let gateway = Gateway::with(verbose(&pki, &reviewing));
    for _ in 0..8 {
        let response = gateway.http2(None).await.get("/api", &[TOKEN, ("impersonate-user", "bob")]).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2, "the request, and the user");
}

/// The operator learns of the missing right at the start, not from the first user who is refused.
#[tokio::test]
async fn the_log_names_a_missing_right() {
    for (allowed, by, lines) in [(false, "gateway", 1), (true, "gateway", 0), (false, "backend", 0)] {
        let pki = Pki::new();
        let self_check = move |request: &Request<Incoming>| {
            if request.uri().path() == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" {
                return Some(respond(StatusCode::CREATED, &json!({"status": {"allowed": allowed}})));
            }
            self_check::answer(request)
        };
        let ok = |_| -> testkit::ResponseFuture { Box::pin(async { Response::new(full("ok")) }) };
        let backend = FakeBackend::with_self_check(&pki, H2, self_check, ok).await;
        let mut flags = flags(&pki, backend.address);
        flags.push(format!("--impersonation={by}"));
        let process = start_process(flags).await;
        if lines > 0 {
            testkit::until("a line", || !process.said("subjectaccessreviews").is_empty()).await;
        }
        process.gateway.http1(None).await.get("/api", &[TOKEN]).await;
        let (_, log) = process.end().await;
        let found: Vec<&str> = log.lines().filter(|line| line.contains("subjectaccessreviews")).collect();
        assert_eq!(found.len(), lines, "{log}");
        assert!(found.iter().all(|line| line.contains("deploy/rbac.yaml") && line.contains("WARN")), "{log}");
    }
}
