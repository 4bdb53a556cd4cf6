//! Follows Kubernetes' `webhook_v1_test.go`, `webhook_v1beta1_test.go` and `metrics_test.go`, against a real server.

use std::sync::Mutex;

use futures_util::future::BoxFuture;
use portcullis_http::client_tls::ClientTls;
use portcullis_http::https_client::testing::{
    H1, H2, RecordedRequest, Reply, TestServer, full, reply, serving, showing, trusting,
};
use portcullis_http::webhook::MAX_ATTEMPTS;
use portcullis_limits::Owner;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_system::clock::UnixTime;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use serde_json::{Value, json};
use testkit::pki::{Ca, Issued};

use super::super::testing::audiences_of;
use super::*;
use crate::authn::trace::{AuthnTrace, TraceStep};
use crate::tasks::compute::ComputePool;

const VERSIONS: [TokenReviewVersion; 2] = [TokenReviewVersion::V1, TokenReviewVersion::V1Beta1];
const TOKEN: &str = "my-s3cr3t-t0ken";
/// Longer than any test.
const LONG: Duration = Duration::from_hours(2400);

struct Pki {
    servers: Ca,
    clients: Ca,
    others: Ca,
    server: Issued,
    client: Issued,
}

impl Pki {
    fn new() -> Self {
        let (servers, clients) = (Ca::new("servers"), Ca::new("clients"));
        let (server, client) = (servers.server(&["127.0.0.1"]), clients.leaf().cn("client").issue());
        Self { servers, clients, others: Ca::new("others"), server, client }
    }

    /// Client settings that the server accepts.
    fn tls(&self) -> ClientTls {
        showing(&self.client, &self.servers)
    }

    fn serving(&self, alpn: &[&[u8]]) -> ServerConfig {
        serving(&self.server, Some(&self.clients), alpn)
    }
}

/// A webhook with a configurable response; rejects malformed requests.
struct Service {
    peer: TestServer,
    response: Arc<Mutex<(u16, Value)>>,
}

impl Service {
    async fn start(config: ServerConfig, version: TokenReviewVersion) -> Self {
        let response = Arc::new(Mutex::new((200, json!({}))));
        let current = Arc::clone(&response);
        let peer = TestServer::start(config, "127.0.0.1:0", move |asked| {
            let (code, status) = current.lock().unwrap().clone();
            let reply = answer(&asked, version, code, &status);
            Box::pin(async { reply })
        })
        .await;
        Self { peer, response }
    }

    fn respond(&self, code: u16, status: Value) {
        *self.response.lock().unwrap() = (code, status);
    }

    fn allow(&self) {
        self.respond(200, json!({"authenticated": true, "user": {"username": "realHooman@email.com"}}));
    }

    fn deny(&self) {
        self.respond(200, json!({"authenticated": false}));
    }

    fn webhook(&self, tls: ClientTls, version: TokenReviewVersion) -> WebhookSettings {
        webhook(self.peer.url("/testserver"), tls, version)
    }

    /// The requests since the last call.
    fn take(&self) -> Vec<Value> {
        self.peer.take().iter().map(|asked| serde_json::from_slice(&asked.body).unwrap()).collect()
    }
}

fn answer(asked: &RecordedRequest, version: TokenReviewVersion, code: u16, status: &Value) -> Reply {
    if asked.method != "POST" || asked.target != "/testserver?timeout=30s" {
        return reply(404, format!("unexpected {} {}", asked.method, asked.target));
    }
    let review: Value = serde_json::from_slice(&asked.body).unwrap();
    if review["apiVersion"] != version.api_version() || review["kind"] != "TokenReview" {
        return reply(400, "wrong api version");
    }
    if !(200..300).contains(&code) {
        return reply(code, "HTTP Error\n");
    }
    reply(
        code,
        json!({"kind": "TokenReview", "apiVersion": version.api_version(), "status": status}).to_string(),
    )
}

fn webhook(url: String, tls: ClientTls, version: TokenReviewVersion) -> WebhookSettings {
    WebhookSettings { url, tls, bearer_token: None, version, cache_ttl: LONG }
}

fn authenticator(webhook: &WebhookSettings, implicit: &[&str], metrics: &Metrics) -> WebhookAuthenticator {
    let provider = Arc::new(default_provider());
    WebhookAuthenticator::new(webhook, audiences_of(implicit), &provider, metrics).unwrap()
}

/// Authenticates a token; returns the verdict and the trace.
async fn authenticate_traced(
    authenticator: &dyn TokenAuthenticator,
    token: &str,
    audiences: &[&str],
) -> (AuthnVerdict, Vec<TraceStep>) {
    let (token, audiences, trace) =
        (BearerToken::new(token), audiences_of(audiences), AuthnTrace::with_steps());
    let context = TokenContext {
        audiences: &audiences,
        owner: &Owner::Gateway,
        now: UnixTime::from_secs(1_700_000_000),
        trace: &trace,
    };
    let verdict = authenticator.authenticate(&token, context).await;
    (verdict, trace.take().steps)
}

async fn verdict(webhook: &WebhookSettings) -> AuthnVerdict {
    authenticate_traced(&authenticator(webhook, &[], &Metrics::new()), TOKEN, &[]).await.0
}

/// Authenticates a token without recording steps.
async fn authenticate_untraced(authenticator: &dyn TokenAuthenticator, token: &str) -> AuthnVerdict {
    let (token, trace) = (BearerToken::new(token), AuthnTrace::default());
    let context = TokenContext {
        audiences: &[],
        owner: &Owner::Gateway,
        now: UnixTime::from_secs(1_700_000_000),
        trace: &trace,
    };
    authenticator.authenticate(&token, context).await
}

#[tokio::test]
async fn both_sides_must_trust_each_other() {
    let pki = Pki::new();
    let Pki { servers, clients, others, server, client } = &pki;
    let alone = |ca| serving(server, ca, H1);
    for version in VERSIONS {
        for (name, tls, config, is_good) in [
            ("TLS setup between client and server", pki.tls(), alone(Some(clients)), true),
            ("server does not require client auth", trusting(servers), alone(None), true),
            ("server does not require client auth, client provides it", pki.tls(), alone(None), true),
            ("client does not trust server", showing(client, others), alone(None), false),
            ("server does not trust client", pki.tls(), alone(Some(others)), false),
        ] {
            let service = Service::start(config, version).await;
            let webhook = service.webhook(tls, version);
            service.allow();
            let allowed = verdict(&webhook).await;
            if !is_good {
                assert!(matches!(allowed, Err(AuthnError::Unavailable(_))), "{name}: {allowed:?}");
                assert!(service.take().is_empty(), "{name}");
                continue;
            }
            assert!(matches!(allowed, Ok(Some(_))), "{name}: {allowed:?}");
            service.deny();
            assert_eq!(verdict(&webhook).await, Ok(None), "{name}");
        }
        // A server without TLS.
        let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/testserver", plain.local_addr().unwrap());
        let answering = tokio::spawn(async move {
            let (mut stream, _) = plain.accept().await.unwrap();
            let answer = b"HTTP/1.0 400 Bad Request\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
        });
        let refused = verdict(&webhook(url, pki.tls(), version)).await;
        assert!(matches!(refused, Err(AuthnError::Unavailable(_))), "{refused:?}");
        answering.await.unwrap();
    }
}

struct Case {
    name: &'static str,
    implicit: &'static [&'static str],
    requested: &'static [&'static str],
    status: Value,
    /// The user and the audiences.
    expected: Option<(UserInfo, &'static [&'static str])>,
}

fn cases() -> Vec<Case> {
    const API: &[&str] = &["api", "other-api"];
    const NONE: &[&str] = &[];
    let yes = || json!({"authenticated": true, "user": {"username": "somebody"}});
    let no = || json!({"authenticated": false});
    let yes_for = |audience: &[&str]| json!({"authenticated": true, "user": {"username": "somebody"}, "audiences": audience});
    let somebody = || UserInfo::named("somebody");
    let person = UserInfo {
        uid: Some("abcd-1234".to_owned()),
        groups: ["stuff-dev", "main-eng"].map(str::to_owned).to_vec(),
        extra: [("foo".to_owned(), ["bar", "baz"].map(str::to_owned).to_vec())].into(),
        ..UserInfo::named("person@place.com")
    };
    let system = UserInfo { groups: vec!["system:masters".to_owned()], ..UserInfo::named("system:admin") };
    let case =
        |name, implicit, requested, status, expected| Case { name, implicit, requested, status, expected };
    vec![
        case("a user with a name only", NONE, NONE, yes(), Some((somebody(), NONE))),
        case(
            "a user with all attributes",
            NONE,
            NONE,
            json!({"authenticated": true, "user": {"username": "person@place.com", "uid": "abcd-1234",
                "groups": ["stuff-dev", "main-eng"], "extra": {"foo": ["bar", "baz"]}}}),
            Some((person, NONE)),
        ),
        case(
            "a system user",
            NONE,
            NONE,
            json!({"authenticated": true, "user": {"username": "system:admin", "groups": ["system:masters"]}}),
            Some((system, NONE)),
        ),
        case(
            "attributes of an unauthenticated user",
            NONE,
            NONE,
            json!({"authenticated": false, "user": {"username": "garbage", "uid": "abcd-1234",
                "groups": ["not-actually-used"]}}),
            None,
        ),
        case("an unauthenticated user", NONE, NONE, no(), None),
        case("good audience", API, API, yes(), Some((somebody(), API))),
        case(
            "good audience, more implicit audiences",
            &["api", "other-api", "other"],
            API,
            yes(),
            Some((somebody(), API)),
        ),
        case("bad audiences, unauthenticated", API, &["other"], no(), None),
        case("bad audiences, webhook without audience support", API, &["other"], yes(), None),
        case("audience aware", API, API, yes_for(API), Some((somebody(), API))),
        case("audience aware, none requested", NONE, NONE, yes_for(API), Some((somebody(), NONE))),
        case("audience aware, another one", API, API, yes_for(&["other"]), None),
        case(
            "audience aware, some match",
            API,
            API,
            yes_for(&["x", "other-api"]),
            Some((somebody(), &["other-api"])),
        ),
        case("a wrong audience hides an error", API, &["other"], json!({"error": "expired"}), None),
    ]
}

#[tokio::test]
async fn users_and_audiences_come_from_the_response() {
    let pki = Pki::new();
    let metrics = Metrics::new();
    for version in VERSIONS {
        let service = Service::start(pki.serving(H2), version).await;
        for case in cases() {
            service.respond(200, case.status);
            let webhook = authenticator(&service.webhook(pki.tls(), version), case.implicit, &metrics);
            let (verdict, _) = authenticate_traced(&webhook, TOKEN, case.requested).await;
            let expected = case.expected.map(|(user, audiences)| Authenticated {
                user: user.into(),
                audiences: audiences_of(audiences),
                method: AuthnMethod::Webhook,
                certificates: None,
                expires: None,
            });
            assert_eq!(verdict, Ok(expected), "{}", case.name);
            let request = service.take().remove(0);
            assert_eq!(request["spec"]["token"], TOKEN, "{}", case.name);
            let audiences = (!case.requested.is_empty()).then(|| json!(case.requested));
            assert_eq!(request["spec"].get("audiences"), audiences.as_ref(), "{}", case.name);
        }
    }
}

#[tokio::test]
async fn verdicts_are_cached_and_errors_are_not() {
    let pki = Pki::new();
    for version in VERSIONS {
        let service = Service::start(pki.serving(H1), version).await;
        let metrics = Metrics::new();
        let authenticator = authenticator(&service.webhook(pki.tls(), version), &[], &metrics);
        let cached = authenticator.cached(
            LONG,
            ComputePool::of_test().of_cluster("c"),
            &metrics.token_cache,
            &CacheShare::UNBOUNDED,
        );
        for (token, code, is_error, is_known, attempts) in [
            ("t0k3n", 500, true, false, 5),
            ("t0k3n", 404, true, false, 1),
            ("t0k3n", 503, true, false, 1),
            ("t0k3n", 200, false, true, 1),
            ("t0k3n", 500, false, true, 0),
            ("an0th3r_t0k3n", 500, true, false, 5),
            ("an0th3r_t0k3n", 429, true, false, 5),
            ("an0th3r_t0k3n", 504, true, false, 5),
            ("an0th3r_t0k3n", 200, false, true, 1),
            ("an0th3r_t0k3n", 500, false, true, 0),
        ] {
            service.allow();
            service.response.lock().unwrap().0 = code;
            let verdict = authenticate_untraced(&cached, token).await;
            assert_eq!(verdict.is_err(), is_error, "{token} {code}: {verdict:?}");
            assert_eq!(matches!(verdict, Ok(Some(_))), is_known, "{token} {code}");
            assert_eq!(service.take().len(), attempts, "{token} {code}");
        }
        service.deny();
        for attempts in [1, 0, 0] {
            assert_eq!(authenticate_untraced(&cached, "unknown").await, Ok(None));
            assert_eq!(service.take().len(), attempts, "a negative verdict is cached");
        }
        service.respond(200, json!({"authenticated": false, "error": "expired"}));
        for _ in 0..3 {
            let expired = Err(AuthnError::Invalid("expired".to_owned()));
            assert_eq!(authenticate_untraced(&cached, "0ld_t0k3n").await, expired);
            assert_eq!(service.take().len(), 1, "errors are not cached");
        }
    }
}

#[tokio::test]
async fn verdicts_are_cached_for_the_configured_ttl() {
    let pki = Pki::new();
    let service = Service::start(pki.serving(H2), TokenReviewVersion::V1).await;
    service.allow();
    for (cache_ttl, attempts) in [(Duration::ZERO, 2), (LONG, 1)] {
        let webhook = WebhookSettings { cache_ttl, ..service.webhook(pki.tls(), TokenReviewVersion::V1) };
        let provider = Arc::new(default_provider());
        let checks = ComputePool::of_test().of_cluster("c");
        let made =
            cached(&webhook, Vec::new(), &provider, checks, &Metrics::new(), &CacheShare::UNBOUNDED).unwrap();
        for _ in 0..2 {
            assert!(matches!(authenticate_untraced(&made, TOKEN).await, Ok(Some(_))));
        }
        assert_eq!(service.take().len(), attempts, "{cache_ttl:?}");
    }
}

#[tokio::test]
async fn each_attempt_is_traced() {
    let pki = Pki::new();
    let service = Service::start(pki.serving(H2), TokenReviewVersion::V1).await;
    let webhook = authenticator(&service.webhook(pki.tls(), TokenReviewVersion::V1), &[], &Metrics::new());
    service.allow();
    let lines = |steps: Vec<TraceStep>| {
        steps
            .into_iter()
            .map(|step| format!("{} {:?} {}", step.check, step.outcome, step.detail))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        lines(authenticate_traced(&webhook, TOKEN, &[]).await.1),
        ["answer Passed the webhook answered 200 OK", "authenticated Passed as \"realHooman@email.com\""]
    );
    service.respond(500, json!({}));
    let steps = lines(authenticate_traced(&webhook, TOKEN, &[]).await.1);
    assert_eq!(steps, ["answer Failed the webhook answered 500 Internal Server Error"; MAX_ATTEMPTS]);
}

#[tokio::test]
async fn a_retry_after_beyond_the_request_timeout_is_not_awaited() {
    let pki = Pki::new();
    for (hint, attempts) in [(0, MAX_ATTEMPTS), (31, 1)] {
        let peer = TestServer::of(&pki.servers, H2, move |_| {
            let response = http::Response::builder().status(429).header("retry-after", hint);
            Ok(response.body(full("")).unwrap())
        })
        .await;
        let verdict = verdict(&webhook(peer.url(""), trusting(&pki.servers), TokenReviewVersion::V1)).await;
        assert!(matches!(verdict, Err(AuthnError::Unavailable(_))), "{verdict:?}");
        assert_eq!(peer.take().len(), attempts, "{hint}");
    }
}

#[tokio::test]
async fn a_lost_connection_is_retried_and_a_refused_one_is_not() {
    let pki = Pki::new();
    let peer = TestServer::of(&pki.servers, H1, |_| Err(std::io::Error::other("ends"))).await;
    let lost = webhook(peer.url("/"), trusting(&pki.servers), TokenReviewVersion::V1);
    assert!(matches!(verdict(&lost).await, Err(AuthnError::Unavailable(_))));
    assert_eq!(peer.take().len(), MAX_ATTEMPTS);
    drop(peer);
    let (gone, steps) = authenticate_traced(&authenticator(&lost, &[], &Metrics::new()), TOKEN, &[]).await;
    assert!(matches!(gone, Err(AuthnError::Unavailable(_))), "{gone:?}");
    assert_eq!(steps.len(), 1, "{steps:?}");
}

#[tokio::test]
async fn only_a_valid_token_review_authenticates() {
    let pki = Pki::new();
    let good = json!({"status": {"authenticated": true, "user": {"username": "mallory"}}}).to_string();
    let bodies: Vec<(&str, u16, String)> = vec![
        ("an HTML page", 200, "<html><body>hello</body></html>".to_owned()),
        ("another kind", 200, good.replacen('{', r#"{"kind":"Pod","#, 1)),
        ("another version", 200, good.replacen('{', r#"{"apiVersion":"authentication.k8s.io/v1beta1","#, 1)),
        ("an empty user name", 200, good.replace("mallory", "")),
        ("a truncated response", 200, good.trim_end_matches('}').to_owned()),
        ("empty", 200, String::new()),
        ("too large", 200, format!("{good}{}", " ".repeat(1 << 20))),
        ("a list", 200, "[]".to_owned()),
        ("a failure", 403, good.clone()),
        ("a redirect", 302, good.clone()),
        ("an odd code", 299, good.clone()),
    ];
    for (name, code, body) in bodies {
        let peer = TestServer::of(&pki.servers, H2, move |_| reply(code, body.clone())).await;
        let verdict = verdict(&webhook(peer.url(""), trusting(&pki.servers), TokenReviewVersion::V1)).await;
        assert!(matches!(verdict, Err(AuthnError::Unavailable(_))), "{name}: {verdict:?}");
        assert_eq!(peer.take().len(), 1, "{name}");
    }
    let peer = TestServer::of(&pki.servers, H2, move |_| reply(200, good.clone())).await;
    let allowed = verdict(&webhook(peer.url(""), trusting(&pki.servers), TokenReviewVersion::V1)).await;
    assert!(matches!(allowed, Ok(Some(_))), "the valid response authenticates: {allowed:?}");
}

#[tokio::test]
async fn errors_and_debug_output_omit_the_token_and_the_credential() {
    let pki = Pki::new();
    let echo = |asked: &RecordedRequest, code: u16| -> Reply {
        assert_eq!(asked.headers["authorization"], "Bearer own-s3cr3t");
        reply(code, format!("{{\"status\":{{\"error\":\"{TOKEN} is bad\"}}}}"))
    };
    for code in [200, 500, 403] {
        let peer = TestServer::of(&pki.servers, H2, move |asked| echo(asked, code)).await;
        let webhook = WebhookSettings {
            bearer_token: Some(BearerToken::new("own-s3cr3t")),
            ..webhook(peer.url(""), trusting(&pki.servers), TokenReviewVersion::V1)
        };
        let authenticator = authenticator(&webhook, &[], &Metrics::new());
        let (verdict, steps) = authenticate_traced(&authenticator, TOKEN, &[]).await;
        let error = verdict.unwrap_err();
        let shown = format!("{error} {error:?} {steps:?} {authenticator:?} {webhook:?}");
        assert!(error.to_string().contains("[the token]"), "{error}");
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }
}

#[tokio::test]
async fn a_certificate_without_a_san_is_counted() {
    let pki = Pki::new();
    let nameless = pki.servers.leaf().cn("127.0.0.1").eku(&["1.3.6.1.5.5.7.3.1"]).issue();
    let answer = |_| -> BoxFuture<'static, Reply> { Box::pin(async { reply(200, "{}") }) };
    let peer = TestServer::start(serving(&nameless, None, H2), "127.0.0.1:0", answer).await;
    let metrics = Metrics::new();
    let webhook = webhook(peer.url(""), trusting(&pki.servers), TokenReviewVersion::V1);
    let (verdict, _) = authenticate_traced(&authenticator(&webhook, &[], &metrics), TOKEN, &[]).await;
    assert!(verdict.unwrap_err().is_unavailable());
    assert_eq!(metrics.authentication.webhook_missing_san.get(), 1);
}
