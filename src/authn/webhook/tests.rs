//! By upstream's `webhook_v1_test.go`, `webhook_v1beta1_test.go` and `metrics_test.go`, against a real server.

use std::sync::Mutex;

use futures_util::future::BoxFuture;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use serde_json::{Value, json};
use testkit::pki::{Ca, Issued};

use super::super::testing::audiences_of;
use super::*;
use crate::authn::trace::{Remarks, Step};
use crate::clock::UnixTime;
use crate::http::client_tls::Tls;
use crate::http::https_client::testing::{
    Asked, H1, H2, Peer, Reply, full, reply, serving, showing, trusting,
};

const VERSIONS: [Version; 2] = [Version::V1, Version::V1Beta1];
const TOKEN: &str = "my-s3cr3t-t0ken";
/// "Forever".
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

    /// What both sides accept.
    fn tls(&self) -> Tls {
        showing(&self.client, &self.servers)
    }

    fn serving(&self, alpn: &[&[u8]]) -> ServerConfig {
        serving(&self.server, Some(&self.clients), alpn)
    }
}

/// A webhook that answers what it is told, once it was asked as it should be.
struct Service {
    peer: Peer,
    says: Arc<Mutex<(u16, Value)>>,
}

impl Service {
    async fn start(config: ServerConfig, version: Version) -> Self {
        let says = Arc::new(Mutex::new((200, json!({}))));
        let told = Arc::clone(&says);
        let peer = Peer::start(config, "127.0.0.1:0", move |asked| {
            let (status, said) = told.lock().unwrap().clone();
            let reply = answer(&asked, version, status, &said);
            Box::pin(async { reply })
        })
        .await;
        Self { peer, says }
    }

    fn say(&self, code: u16, status: Value) {
        *self.says.lock().unwrap() = (code, status);
    }

    fn allow(&self) {
        self.say(200, json!({"authenticated": true, "user": {"username": "realHooman@email.com"}}));
    }

    fn deny(&self) {
        self.say(200, json!({"authenticated": false}));
    }

    fn webhook(&self, tls: Tls, version: Version) -> Webhook {
        webhook(self.peer.url("/testserver"), tls, version)
    }

    /// The questions since the last time.
    fn take(&self) -> Vec<Value> {
        self.peer.take().iter().map(|asked| serde_json::from_slice(&asked.body).unwrap()).collect()
    }
}

fn answer(asked: &Asked, version: Version, status: u16, said: &Value) -> Reply {
    if asked.method != "POST" || asked.target != "/testserver?timeout=30s" {
        return reply(404, format!("unexpected {} {}", asked.method, asked.target));
    }
    let review: Value = serde_json::from_slice(&asked.body).unwrap();
    if review["apiVersion"] != version.api_version() || review["kind"] != "TokenReview" {
        return reply(400, "wrong api version");
    }
    if !(200..300).contains(&status) {
        return reply(status, "HTTP Error\n");
    }
    reply(
        status,
        json!({"kind": "TokenReview", "apiVersion": version.api_version(), "status": said}).to_string(),
    )
}

fn webhook(url: String, tls: Tls, version: Version) -> Webhook {
    Webhook { url, tls, bearer_token: None, version, cache_ttl: LONG }
}

/// One that does not wait for long.
fn asking(webhook: &Webhook, implicit: &[&str], metrics: &Metrics) -> WebhookAuthenticator {
    let provider = Arc::new(default_provider());
    let made = WebhookAuthenticator::new(webhook, audiences_of(implicit), &provider, metrics).unwrap();
    WebhookAuthenticator { first_wait: Duration::from_millis(5), ..made }
}

/// What an authenticator makes of a token, and by which steps.
async fn judged(
    authenticator: &dyn TokenAuthenticator,
    token: &str,
    audiences: &[&str],
) -> (Verdict, Vec<Step>) {
    let (token, audiences, remarks) = (BearerToken::new(token), audiences_of(audiences), Remarks::traced());
    let context =
        TokenContext { audiences: &audiences, now: UnixTime::from_secs(1_700_000_000), remarks: &remarks };
    let verdict = authenticator.authenticate(&token, context).await;
    (verdict, remarks.take().steps)
}

async fn verdict(webhook: &Webhook) -> Verdict {
    judged(&asking(webhook, &[], &Metrics::new()), TOKEN, &[]).await.0
}

/// The same, as a request asks: nobody wants to know the steps.
async fn plainly(authenticator: &dyn TokenAuthenticator, token: &str) -> Verdict {
    let (token, remarks) = (BearerToken::new(token), Remarks::default());
    let context = TokenContext { audiences: &[], now: UnixTime::from_secs(1_700_000_000), remarks: &remarks };
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
        // A server that speaks no TLS.
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
    says: Value,
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
    let case = |name, implicit, requested, says, expected| Case { name, implicit, requested, says, expected };
    vec![
        case("a user with a name alone", NONE, NONE, yes(), Some((somebody(), NONE))),
        case(
            "everything of a user",
            NONE,
            NONE,
            json!({"authenticated": true, "user": {"username": "person@place.com", "uid": "abcd-1234",
                "groups": ["stuff-dev", "main-eng"], "extra": {"foo": ["bar", "baz"]}}}),
            Some((person, NONE)),
        ),
        case(
            "a name of the system",
            NONE,
            NONE,
            json!({"authenticated": true, "user": {"username": "system:admin", "groups": ["system:masters"]}}),
            Some((system, NONE)),
        ),
        case(
            "nothing of somebody unknown",
            NONE,
            NONE,
            json!({"authenticated": false, "user": {"username": "garbage", "uid": "abcd-1234",
                "groups": ["not-actually-used"]}}),
            None,
        ),
        case("somebody unknown", NONE, NONE, no(), None),
        case("good audience", API, API, yes(), Some((somebody(), API))),
        case("good audience among more", &["api", "other-api", "other"], API, yes(), Some((somebody(), API))),
        case("bad audiences, unknown", API, &["other"], no(), None),
        case("bad audiences of a webhook that knows none", API, &["other"], yes(), None),
        case("audience aware", API, API, yes_for(API), Some((somebody(), API))),
        case("audience aware, none asked for", NONE, NONE, yes_for(API), Some((somebody(), NONE))),
        case("audience aware, another one", API, API, yes_for(&["other"]), None),
        case(
            "audience aware, some",
            API,
            API,
            yes_for(&["x", "other-api"]),
            Some((somebody(), &["other-api"])),
        ),
        case("a wrong audience hides an error", API, &["other"], json!({"error": "expired"}), None),
    ]
}

#[tokio::test]
async fn users_and_audiences_are_those_of_the_answer() {
    let pki = Pki::new();
    let metrics = Metrics::new();
    for version in VERSIONS {
        let service = Service::start(pki.serving(H2), version).await;
        for case in cases() {
            service.say(200, case.says);
            let webhook = asking(&service.webhook(pki.tls(), version), case.implicit, &metrics);
            let (verdict, _) = judged(&webhook, TOKEN, case.requested).await;
            let expected = case.expected.map(|(user, audiences)| Authenticated {
                user: user.into(),
                audiences: audiences_of(audiences),
                method: "webhook",
                expires: None,
            });
            assert_eq!(verdict, Ok(expected), "{}", case.name);
            let question = service.take().remove(0);
            assert_eq!(question["spec"]["token"], TOKEN, "{}", case.name);
            let asked_for = (!case.requested.is_empty()).then(|| json!(case.requested));
            assert_eq!(question["spec"].get("audiences"), asked_for.as_ref(), "{}", case.name);
        }
    }
}

#[tokio::test]
async fn good_and_bad_answers_are_remembered_and_errors_are_not() {
    let pki = Pki::new();
    for version in VERSIONS {
        let service = Service::start(pki.serving(H1), version).await;
        let metrics = Metrics::new();
        let asked = asking(&service.webhook(pki.tls(), version), &[], &metrics);
        let remembered = asked.remembered(LONG, Handle::current(), &metrics.token_cache);
        for (token, code, is_error, is_known, calls) in [
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
            service.says.lock().unwrap().0 = code;
            let verdict = plainly(&remembered, token).await;
            assert_eq!(verdict.is_err(), is_error, "{token} {code}: {verdict:?}");
            assert_eq!(matches!(verdict, Ok(Some(_))), is_known, "{token} {code}");
            assert_eq!(service.take().len(), calls, "{token} {code}");
        }
        service.deny();
        for calls in [1, 0, 0] {
            assert_eq!(plainly(&remembered, "unknown").await, Ok(None));
            assert_eq!(service.take().len(), calls, "what nobody knows is remembered");
        }
        service.say(200, json!({"authenticated": false, "error": "expired"}));
        for _ in 0..3 {
            let expired = Err(AuthnError::Invalid("expired".to_owned()));
            assert_eq!(plainly(&remembered, "0ld_t0k3n").await, expired);
            assert_eq!(service.take().len(), 1, "errors are not");
        }
    }
}

#[tokio::test]
async fn answers_hold_for_the_time_that_is_configured() {
    let pki = Pki::new();
    let service = Service::start(pki.serving(H2), Version::V1).await;
    service.allow();
    for (cache_ttl, calls) in [(Duration::ZERO, 2), (LONG, 1)] {
        let webhook = Webhook { cache_ttl, ..service.webhook(pki.tls(), Version::V1) };
        let provider = Arc::new(default_provider());
        let made = remembered(&webhook, Vec::new(), &provider, Handle::current(), &Metrics::new()).unwrap();
        for _ in 0..2 {
            assert!(matches!(plainly(&made, TOKEN).await, Ok(Some(_))));
        }
        assert_eq!(service.take().len(), calls, "{cache_ttl:?}");
    }
}

#[tokio::test]
async fn each_call_is_a_step() {
    let pki = Pki::new();
    let service = Service::start(pki.serving(H2), Version::V1).await;
    let webhook = asking(&service.webhook(pki.tls(), Version::V1), &[], &Metrics::new());
    service.allow();
    let told = |steps: Vec<Step>| {
        steps
            .into_iter()
            .map(|step| format!("{} {:?} {}", step.check, step.outcome, step.detail))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        told(judged(&webhook, TOKEN, &[]).await.1),
        ["answer Passed the webhook answered 200 OK", "authenticated Passed as \"realHooman@email.com\""]
    );
    service.say(500, json!({}));
    let steps = told(judged(&webhook, TOKEN, &[]).await.1);
    assert_eq!(steps, ["answer Failed the webhook answered 500 Internal Server Error"; CALLS]);
}

#[tokio::test]
async fn nobody_waits_longer_than_a_question_may_take() {
    let pki = Pki::new();
    for (hint, calls) in [(0, CALLS), (31, 1)] {
        let peer = Peer::of(&pki.servers, H2, move |_| {
            let response = http::Response::builder().status(429).header("retry-after", hint);
            Ok(response.body(full("")).unwrap())
        })
        .await;
        let verdict = verdict(&webhook(peer.url(""), trusting(&pki.servers), Version::V1)).await;
        assert!(matches!(verdict, Err(AuthnError::Unavailable(_))), "{verdict:?}");
        assert_eq!(peer.take().len(), calls, "{hint}");
    }
}

#[tokio::test]
async fn a_lost_connection_is_worth_another_call_and_none_is_not() {
    let pki = Pki::new();
    let peer = Peer::of(&pki.servers, H1, |_| Err(std::io::Error::other("ends"))).await;
    let lost = webhook(peer.url("/"), trusting(&pki.servers), Version::V1);
    assert!(matches!(verdict(&lost).await, Err(AuthnError::Unavailable(_))));
    assert_eq!(peer.take().len(), CALLS);
    drop(peer);
    let (gone, steps) = judged(&asking(&lost, &[], &Metrics::new()), TOKEN, &[]).await;
    assert!(matches!(gone, Err(AuthnError::Unavailable(_))), "{gone:?}");
    assert_eq!(steps.len(), 1, "{steps:?}");
}

#[tokio::test]
async fn nothing_but_an_answer_lets_anybody_in() {
    let pki = Pki::new();
    let good = json!({"status": {"authenticated": true, "user": {"username": "mallory"}}}).to_string();
    let bodies: Vec<(&str, u16, String)> = vec![
        ("a page", 200, "<html><body>hello</body></html>".to_owned()),
        ("another kind", 200, good.replacen('{', r#"{"kind":"Pod","#, 1)),
        ("another version", 200, good.replacen('{', r#"{"apiVersion":"authentication.k8s.io/v1beta1","#, 1)),
        ("an empty user name", 200, good.replace("mallory", "")),
        ("half an answer", 200, good.trim_end_matches('}').to_owned()),
        ("nothing", 200, String::new()),
        ("too much", 200, format!("{good}{}", " ".repeat(1 << 20))),
        ("a list", 200, "[]".to_owned()),
        ("a failure", 403, good.clone()),
        ("a redirect", 302, good.clone()),
        ("an odd code", 299, good.clone()),
    ];
    for (name, code, body) in bodies {
        let peer = Peer::of(&pki.servers, H2, move |_| reply(code, body.clone())).await;
        let verdict = verdict(&webhook(peer.url(""), trusting(&pki.servers), Version::V1)).await;
        assert!(matches!(verdict, Err(AuthnError::Unavailable(_))), "{name}: {verdict:?}");
        assert_eq!(peer.take().len(), 1, "{name}");
    }
    let peer = Peer::of(&pki.servers, H2, move |_| reply(200, good.clone())).await;
    let allowed = verdict(&webhook(peer.url(""), trusting(&pki.servers), Version::V1)).await;
    assert!(matches!(allowed, Ok(Some(_))), "and the good one does: {allowed:?}");
}

#[tokio::test]
async fn no_text_has_the_token_or_a_credential() {
    let pki = Pki::new();
    let echo = |asked: &Asked, code: u16| -> Reply {
        assert_eq!(asked.headers["authorization"], "Bearer own-s3cr3t");
        reply(code, format!("{{\"status\":{{\"error\":\"{TOKEN} is bad\"}}}}"))
    };
    for code in [200, 500, 403] {
        let peer = Peer::of(&pki.servers, H2, move |asked| echo(asked, code)).await;
        let webhook = Webhook {
            bearer_token: Some(BearerToken::new("own-s3cr3t")),
            ..webhook(peer.url(""), trusting(&pki.servers), Version::V1)
        };
        let asked = asking(&webhook, &[], &Metrics::new());
        let (verdict, steps) = judged(&asked, TOKEN, &[]).await;
        let error = verdict.unwrap_err();
        let shown = format!("{error} {error:?} {steps:?} {asked:?} {webhook:?}");
        assert!(error.to_string().contains("[the token]"), "{error}");
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }
}

#[tokio::test]
async fn a_certificate_without_names_is_counted() {
    let pki = Pki::new();
    let nameless = pki.servers.leaf().cn("127.0.0.1").eku(&["1.3.6.1.5.5.7.3.1"]).issue();
    let answer = |_| -> BoxFuture<'static, Reply> { Box::pin(async { reply(200, "{}") }) };
    let peer = Peer::start(serving(&nameless, None, H2), "127.0.0.1:0", answer).await;
    let metrics = Metrics::new();
    let webhook = webhook(peer.url(""), trusting(&pki.servers), Version::V1);
    let (verdict, _) = judged(&asking(&webhook, &[], &metrics), TOKEN, &[]).await;
    assert!(verdict.unwrap_err().is_unavailable());
    assert_eq!(metrics.webhook_missing_san.get(), 1);
}

#[test]
fn waits_grow_by_half_and_by_a_fifth_at_most_of_chance() {
    let millis =
        |chance: f64| waits(FIRST_WAIT, move || chance).map(|wait| wait.as_millis()).collect::<Vec<_>>();
    assert_eq!(millis(0.0), [500, 750, 1125, 1687]);
    assert_eq!(millis(1.0), [600, 900, 1350, 2025]);
    assert!((0..100).map(|_| random()).all(|chance| (0.0..=1.0).contains(&chance)));
}
