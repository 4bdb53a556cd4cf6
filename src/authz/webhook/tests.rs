//! Follows `k8s.io/apiserver/plugin/pkg/authorizer/webhook/webhook_v1_test.go`, against a real server.

use std::sync::Mutex;
use std::time::Duration;

use http::Method;
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, ResourceAttributes};
use portcullis_cel::{Environment, Expression, ResultType};
use portcullis_http::https_client::testing::{H1, H2, Reply, TestServer, reply, trusting};
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::cache_budget::CacheShare;
use rustls::crypto::aws_lc_rs::default_provider;
use serde_json::{Value, json};
use testkit::pki::Ca;
use tokio::runtime::Handle;

use super::*;
use crate::authz::NO_TRACE;
use crate::authz::authorizer::{AccessError, AccessRefusal, AllowedAccess, Authorizer};
use crate::authz::settings::{Authorization, AuthorizerSettings, SubjectAccessReviewVersion};
use crate::request::info::RequestInfo;

const LONG: Duration = Duration::from_hours(2400);

/// A webhook with a configurable decision.
struct Service {
    ca: Ca,
    server: TestServer,
    decision: Arc<Mutex<(u16, Value)>>,
}

impl Service {
    async fn start() -> Self {
        let ca = Ca::new("servers");
        let decision = Arc::new(Mutex::new((200, json!({"allowed": true}))));
        let current = Arc::clone(&decision);
        let server = TestServer::of(&ca, H2, move |asked| -> Reply {
            let asked: Value = serde_json::from_slice(&asked.body).unwrap();
            let (code, status) = current.lock().unwrap().clone();
            if code != 200 {
                return reply(code, "HTTP Error\n");
            }
            let review =
                json!({"kind": "SubjectAccessReview", "apiVersion": asked["apiVersion"], "status": status});
            reply(200, review.to_string())
        })
        .await;
        Self { ca, server, decision }
    }

    fn decisions(&self, code: u16, status: Value) {
        *self.decision.lock().unwrap() = (code, status);
    }

    fn webhook(&self) -> AuthorizationWebhook {
        AuthorizationWebhook {
            name: "policy".to_owned(),
            url: self.server.url("/authorize"),
            tls: trusting(&self.ca),
            bearer_token: None,
            version: SubjectAccessReviewVersion::V1,
            timeout: Duration::from_secs(30),
            authorized_ttl: Duration::ZERO,
            unauthorized_ttl: Duration::ZERO,
            failure_policy: FailurePolicy::NoOpinion,
            match_conditions: Vec::new(),
        }
    }

    /// The reviews since the last call.
    fn take(&self) -> Vec<Value> {
        self.server.take().iter().map(|asked| serde_json::from_slice(&asked.body).unwrap()).collect()
    }
}

fn conditions(texts: &[&str]) -> Vec<Expression> {
    let compile = |text: &&str| {
        Expression::compile(text, Environment::SUBJECT_ACCESS_REVIEW, ResultType::Bool).unwrap()
    };
    texts.iter().map(compile).collect()
}

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new())
}

fn build(settings: Vec<AuthorizerSettings>, metrics: &Arc<Metrics>) -> Authorizer {
    build_of(Release::default(), settings, metrics)
}

fn build_of(release: Release, settings: Vec<AuthorizerSettings>, metrics: &Arc<Metrics>) -> Authorizer {
    let settings = Authorization { authorizers: settings };
    let provider = Arc::new(default_provider());
    let deps = AuthorizerDeps {
        provider: &provider,
        runtime: &Handle::current(),
        metrics,
        caches: &CacheShare::UNBOUNDED,
    };
    Authorizer::build(&settings, release, None, &deps).unwrap()
}

fn only(webhook: AuthorizationWebhook) -> Authorizer {
    build(vec![AuthorizerSettings::Webhook(Box::new(webhook))], &metrics())
}

fn on_pods(user: &str, verb: &str, namespace: &str) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: Some(user.to_owned()),
        resource_attributes: Some(ResourceAttributes {
            namespace: Some(namespace.to_owned()),
            verb: Some(verb.to_owned()),
            resource: Some("pods".to_owned()),
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    }
}

fn on_path(user: &str, verb: &str) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: Some(user.to_owned()),
        non_resource_attributes: Some(NonResourceAttributes { path: None, verb: Some(verb.to_owned()) }),
        ..SubjectAccessReviewSpec::default()
    }
}

fn forbidden(reason: &str, is_denied: bool) -> Result<AllowedAccess, AccessError> {
    Err(AccessError::Forbidden { reason: reason.to_owned(), is_denied })
}

fn failure(error: &str) -> AccessError {
    AccessError::Failed { error: error.to_owned(), reason: String::new() }
}

fn is_allowed(result: &Result<AllowedAccess, AccessError>) -> bool {
    result.is_ok()
}

// TestV1Webhook, TestV1beta1Webhook
#[tokio::test]
async fn the_review_is_kube_apiservers() {
    let service = Service::start().await;
    let user = UserInfo {
        uid: Some("1".to_owned()),
        groups: vec!["group1".to_owned(), "group2".to_owned()],
        extra: [("key".to_owned(), vec!["a".to_owned()])].into(),
        ..UserInfo::named("jane")
    };
    let cases = [
        (UserInfo::default(), "/", None, json!({"nonResourceAttributes": {"path": "/", "verb": "get"}})),
        (
            UserInfo::named("jane"),
            "/metrics",
            None,
            json!({"user": "jane", "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}),
        ),
        (
            user,
            "/apis/group3/v7beta3/namespaces/kittensandponies/pods/my-pod/proxy",
            None,
            json!({
                "user": "jane", "uid": "1", "groups": ["group1", "group2"], "extra": {"key": ["a"]},
                "resourceAttributes": {"verb": "get", "namespace": "kittensandponies", "group": "group3",
                    "version": "v7beta3", "resource": "pods", "subresource": "proxy", "name": "my-pod"},
            }),
        ),
        (
            UserInfo::named("jane"),
            "/api/v1/pods",
            Some("labelSelector=a%3Db&fieldSelector=spec.nodeName%3Dn"),
            json!({
                "user": "jane",
                "resourceAttributes": {"verb": "list", "version": "v1", "resource": "pods",
                    "fieldSelector": {"requirements":
                        [{"key": "spec.nodeName", "operator": "In", "values": ["n"]}]},
                    "labelSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}},
            }),
        ),
    ];
    for version in [SubjectAccessReviewVersion::V1, SubjectAccessReviewVersion::V1Beta1] {
        let authorizer = only(AuthorizationWebhook { version, ..service.webhook() });
        for (user, path, query, expected) in cases.clone() {
            let info = RequestInfo::parse(&Method::GET, path, query).unwrap();
            authorizer.authorize_request("asker", &user, (&info, path), &NO_TRACE).await.unwrap();
            let mut expected = expected.clone();
            if version == SubjectAccessReviewVersion::V1Beta1
                && let Some(groups) = expected.as_object_mut().unwrap().remove("groups")
            {
                expected["group"] = groups;
            }
            let review = json!({
                "kind": "SubjectAccessReview", "apiVersion": version.api_version(), "metadata": {},
                "spec": expected, "status": {"allowed": false},
            });
            assert_eq!(service.take(), [review]);
        }
    }
}

// TestV1WebhookCache
#[tokio::test]
async fn decisions_are_cached_and_errors_are_not() {
    let service = Service::start().await;
    let webhook = AuthorizationWebhook {
        authorized_ttl: LONG,
        unauthorized_ttl: LONG,
        match_conditions: conditions(&[
            "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'kittensandponies'",
        ]),
        ..service.webhook()
    };
    let authorizer = only(webhook);
    let of = |user: &str| on_pods(user, "get", "kittensandponies");
    let ridiculous = |user: &str| {
        let mut spec = of(user);
        spec.resource_attributes = spec.resource_attributes.map(|on| ResourceAttributes {
            verb: Some("v".repeat(2000)),
            group: Some("g".repeat(2000)),
            version: Some("a".repeat(2000)),
            resource: Some("r".repeat(2000)),
            name: Some("n".repeat(2000)),
            ..on
        });
        spec
    };
    let cases = [
        ("server errors are retried", of("alice"), 500, false, Err(()), 5),
        ("so is 429", of("alice"), 429, false, Err(()), 5),
        ("404 is not retried", of("alice"), 404, false, Err(()), 1),
        ("403 is not retried", of("alice"), 403, false, Err(()), 1),
        ("401 is not retried", of("alice"), 401, false, Err(()), 1),
        ("an allowed request", of("alice"), 200, true, Ok(true), 1),
        ("cached", of("alice"), 500, false, Ok(true), 0),
        ("another user, failed", of("bob"), 500, false, Err(()), 5),
        ("another user, refused", of("bob"), 200, false, Ok(false), 1),
        ("cached", of("bob"), 500, false, Ok(false), 0),
        ("long attributes, refused", ridiculous("bob"), 200, false, Ok(false), 1),
        ("not cached", ridiculous("bob"), 200, false, Ok(false), 1),
        ("long attributes, allowed", ridiculous("alice"), 200, true, Ok(true), 1),
        ("not cached", ridiculous("alice"), 200, true, Ok(true), 1),
    ];
    for (name, spec, code, allowed, expected, calls) in cases {
        service.decisions(code, json!({"allowed": allowed}));
        let result = match authorizer.authorize("asker", &spec, &NO_TRACE).await {
            Ok(_) => Ok(true),
            Err(AccessError::Forbidden { .. }) => Ok(false),
            Err(_) => Err(()),
        };
        assert_eq!((result, service.take().len()), (expected, calls), "{name}");
    }
}

#[tokio::test]
async fn without_a_ttl_each_request_is_asked() {
    let service = Service::start().await;
    let authorizer = only(AuthorizationWebhook { unauthorized_ttl: LONG, ..service.webhook() });
    let spec = on_pods("alice", "get", "n");
    for _ in 0..2 {
        let allowed = authorizer.authorize("asker", &spec, &NO_TRACE).await.unwrap();
        assert!(allowed.until.unwrap() <= Instant::now(), "an impersonation may not last longer");
    }
    assert_eq!(service.take().len(), 2);
    service.decisions(200, json!({"allowed": false}));
    for _ in 0..2 {
        assert_eq!(authorizer.authorize("asker", &spec, &NO_TRACE).await, forbidden("", false));
    }
    assert_eq!(service.take().len(), 1);
}

/// A name, the access review, the conditions, and whether they match.
type ConditionsCase<'a> = (&'a str, &'a SubjectAccessReviewSpec, &'a [&'a str], Result<bool, String>);

// TestV1WebhookMatchConditions
#[tokio::test]
async fn conditions_decide_whether_the_webhook_is_asked() {
    let service = Service::start().await;
    let alice = SubjectAccessReviewSpec {
        uid: Some("1".to_owned()),
        groups: Some(vec!["group1".to_owned(), "group2".to_owned()]),
        extra: Some([("key1".to_owned(), ["a", "b", "c"].map(str::to_owned).to_vec())].into()),
        ..on_pods("alice", "get", "kittensandponies")
    };
    let (bob, alice2) = (on_path("bob", "get"), on_path("alice2", ""));
    let in_namespace =
        "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'kittensandponies'";
    let of_namespace = "request.resourceAttributes.namespace == 'kittensandponies'";
    let missing = |expression: &str| {
        format!(
            "cel evaluation error: expression '{expression}' resulted in error: no such key: resourceAttributes"
        )
    };
    let cases: &[ConditionsCase<'_>] = &[
        ("no expressions", &alice, &[], Ok(true)),
        (
            "all hold",
            &alice,
            &[
                "request.user == 'alice'",
                "request.uid == '1'",
                "('group1' in request.groups)",
                "('key1' in request.extra)",
                "!('key2' in request.extra)",
                "('a' in request.extra['key1'])",
                "!('z' in request.extra['key1'])",
                in_namespace,
            ],
            Ok(true),
        ),
        (
            "all but the group",
            &alice,
            &["request.user == 'alice'", "request.uid == '1'", "('group3' in request.groups)", in_namespace],
            Ok(false),
        ),
        (
            "all but the uid",
            &alice,
            &["request.user == 'alice'", "request.uid == '2'", "('group1' in request.groups)", in_namespace],
            Ok(false),
        ),
        (
            "the user but not the namespace",
            &alice,
            &[
                "request.user == 'alice'",
                "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'kube-system'",
            ],
            Ok(false),
        ),
        ("another user", &bob, &["request.user == 'alice'"], Ok(false)),
        ("a path", &bob, &["request.user == 'bob'", in_namespace], Ok(false)),
        (
            "an error, and none is false",
            &alice2,
            &["request.user == 'alice2'", of_namespace],
            Err(missing(of_namespace)),
        ),
        (
            "one is false, an error is ignored",
            &alice2,
            &["request.user != 'alice2'", of_namespace],
            Ok(false),
        ),
        ("one is false after an error", &alice2, &[of_namespace, "request.user != 'alice2'"], Ok(false)),
        (
            "user and path",
            &bob,
            &[
                "request.user == 'bob'",
                "has(request.nonResourceAttributes) && request.nonResourceAttributes.verb == 'get'",
            ],
            Ok(true),
        ),
        (
            "several errors",
            &alice2,
            &[of_namespace, "request.resourceAttributes.verb == 'get'"],
            Err(format!(
                "[{}, {}]",
                missing(of_namespace),
                missing("request.resourceAttributes.verb == 'get'")
            )),
        ),
    ];
    for (name, spec, expressions, expected) in cases {
        for failure_policy in [FailurePolicy::NoOpinion, FailurePolicy::Deny] {
            let match_conditions = conditions(expressions);
            let webhook = AuthorizationWebhook { failure_policy, match_conditions, ..service.webhook() };
            let result = only(webhook.clone()).authorize("asker", spec, &NO_TRACE).await;
            match expected {
                Ok(true) => assert!(is_allowed(&result), "{name}: {result:?}"),
                Ok(false) => assert_eq!(result, forbidden("", false), "{name}"),
                Err(error) => assert_eq!(result, Err(failure(error)), "{name}"),
            }
            assert_eq!(service.take().len(), usize::from(*expected == Ok(true)), "{name}");
            // A condition that is false leaves the decision to the next one; an error does with `NoOpinion` alone.
            let webhook = AuthorizerSettings::Webhook(Box::new(webhook));
            let result = build(vec![webhook, AuthorizerSettings::AlwaysAllow], &metrics())
                .authorize("asker", spec, &NO_TRACE)
                .await;
            let refused = expected.is_err() && failure_policy == FailurePolicy::Deny;
            assert_eq!(is_allowed(&result), !refused, "{name}");
            service.take();
        }
    }
}

/// A user with many groups is matched elsewhere, with the same result.
#[tokio::test]
async fn conditions_on_large_users_hold_as_well() {
    let service = Service::start().await;
    let groups = (0..1000).map(|number| format!("group{number}")).collect();
    let spec = SubjectAccessReviewSpec { groups: Some(groups), ..on_pods("alice", "get", "n") };
    let matched = MatchConditions::new("policy", (&conditions(&["true"]), FailurePolicy::Deny), &metrics());
    assert!(matched.may_take_long(&spec));
    for (expression, asked) in [("'group999' in request.groups", 1), ("'group1000' in request.groups", 0)] {
        let match_conditions = conditions(&[expression]);
        let authorizer = only(AuthorizationWebhook { match_conditions, ..service.webhook() });
        assert_eq!(is_allowed(&authorizer.authorize("asker", &spec, &NO_TRACE).await), asked == 1);
        assert_eq!(service.take().len(), asked);
    }
}

#[tokio::test]
async fn a_condition_beyond_a_bound_of_the_gateway_is_not_ignored() {
    let service = Service::start().await;
    // A pattern that Go compiles, and that the client has sent; and what costs too much, which it might not there.
    let (user, limit) = ("a".repeat(10_001), "'a'.matches(request.user)");
    let ten = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
    let costly =
        format!("{ten}.all(a, {ten}.all(b, {ten}.all(c, !(request.user + request.user).contains('b'))))");
    for (expressions, excluded) in [(&[limit][..], false), (&["false", limit], true), (&[&*costly], false)] {
        let match_conditions = conditions(expressions);
        let authorizer = only(AuthorizationWebhook { match_conditions, ..service.webhook() });
        let decided = authorizer.authorize("flow", &on_path(&user, "get"), &NO_TRACE).await;
        let is_undecided = matches!(decided, Err(AccessError::Undecided(ReviewError::Unavailable(_))));
        assert_eq!(is_undecided, !excluded, "{decided:?}");
        assert!(service.take().is_empty());
    }
}

#[tokio::test]
async fn webhook_responses_decide_as_in_kube_apiserver() {
    let service = Service::start().await;
    let contradiction = "webhook subject access review returned both allow and deny response";
    let error = "an error on the server (\"HTTP Error\") has prevented the request from succeeding";
    let failed = |text: &str| Err(failure(text));
    // The decision; the result of the webhook alone, and before AlwaysAllow; with failurePolicy Deny.
    let cases: [(&str, u16, Value, _, bool, bool); 9] = [
        (
            "no opinion",
            200,
            json!({"allowed": false, "reason": "no"}),
            forbidden("policy: no", false),
            true,
            true,
        ),
        ("denied", 200, json!({"denied": true, "reason": "no"}), forbidden("no", true), false, false),
        ("both", 200, json!({"allowed": true, "denied": true}), failed(contradiction), false, false),
        ("an evaluation error", 200, json!({"evaluationError": "x"}), forbidden("", false), true, true),
        ("no status", 200, Value::Null, forbidden("", false), true, true),
        ("500", 500, Value::Null, failed(error), true, false),
        ("404", 404, Value::Null, failed("the server could not find the requested resource"), true, false),
        (
            "not a status",
            200,
            json!([true]),
            failed("the answer is not a SubjectAccessReview: line 1, column 83 is wrong"),
            true,
            false,
        ),
        (
            "not a bool",
            200,
            json!({"allowed": "true"}),
            failed("the answer is not a SubjectAccessReview: line 1, column 100 is wrong"),
            true,
            false,
        ),
    ];
    for (name, code, decision, alone, open, closed) in cases {
        service.decisions(code, decision);
        let spec = on_pods("alice", "get", "n");
        let result = only(service.webhook()).authorize("asker", &spec, &NO_TRACE).await;
        let text = |result: &Result<AllowedAccess, AccessError>| {
            format!("{result:?}").split(": line ").next().unwrap_or_default().to_owned()
        };
        assert_eq!(text(&result), text(&alone), "{name}");
        for (failure_policy, allowed) in [(FailurePolicy::NoOpinion, open), (FailurePolicy::Deny, closed)] {
            let webhook = AuthorizationWebhook { failure_policy, ..service.webhook() };
            let webhook = AuthorizerSettings::Webhook(Box::new(webhook));
            let authorizer = build(vec![webhook, AuthorizerSettings::AlwaysAllow], &metrics());
            assert_eq!(
                is_allowed(&authorizer.authorize("asker", &spec, &NO_TRACE).await),
                allowed,
                "{name} {failure_policy:?}"
            );
        }
    }
}

/// As `/v1/data/…` of Open Policy Agent answers, where `/v0/data/…` is meant.
#[tokio::test]
async fn an_answer_that_is_no_review_is_logged_once() {
    let ca = Ca::new("servers");
    let server = TestServer::of(&ca, H2, |_| {
        let review = json!({"kind": "SubjectAccessReview", "status": {"allowed": true}});
        reply(200, json!({"result": review}).to_string())
    })
    .await;
    let service = Service { ca, server, decision: Arc::default() };
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = file.reopen().unwrap();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(Arc::new(writer)).finish();
    let _logging = tracing::subscriber::set_default(log);
    let authorizer = only(service.webhook());
    for _ in 0..3 {
        let result = authorizer.authorize("asker", &on_pods("alice", "get", "n"), &NO_TRACE).await;
        assert!(!is_allowed(&result), "{result:?}");
    }
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains("the webhook decides nothing")).count(), 1, "{text}");
    assert!(text.contains(&service.webhook().url) && text.contains("/v0/data/"), "{text}");
}

#[tokio::test]
async fn the_first_decision_counts_and_reasons_are_joined() {
    let (first, second) = (Service::start().await, Service::start().await);
    let both_of = |release, policy| {
        let webhook = |service: &Service, name: &str| {
            let webhook =
                AuthorizationWebhook { name: name.to_owned(), failure_policy: policy, ..service.webhook() };
            AuthorizerSettings::Webhook(Box::new(webhook))
        };
        build_of(release, vec![webhook(&first, "first"), webhook(&second, "second")], &metrics())
    };
    let both = |policy| both_of(Release::default(), policy);
    let authorizer = both(FailurePolicy::NoOpinion);
    let spec = on_pods("alice", "get", "n");
    first.decisions(200, json!({"allowed": false, "reason": "I do not know"}));
    second.decisions(200, json!({"allowed": false, "reason": "nor do I"}));
    assert_eq!(
        authorizer.authorize("asker", &spec, &NO_TRACE).await,
        forbidden("first: I do not know\nsecond: nor do I", false)
    );
    let authorizer_of_1_36 = both_of(Release::V1_36, FailurePolicy::NoOpinion);
    assert_eq!(
        authorizer_of_1_36.authorize("asker", &spec, &NO_TRACE).await,
        forbidden("I do not know\nnor do I", false)
    );
    second.decisions(200, json!({"allowed": true, "reason": "I know"}));
    assert_eq!(authorizer.authorize("asker", &spec, &NO_TRACE).await.unwrap().reason, "I know");
    second.decisions(200, json!({"denied": true, "reason": "never"}));
    assert_eq!(authorizer.authorize("asker", &spec, &NO_TRACE).await, forbidden("never", true));
    first.decisions(404, Value::Null);
    assert_eq!(
        authorizer.authorize("asker", &spec, &NO_TRACE).await,
        forbidden("never", true),
        "a denial has no other's error"
    );
    second.decisions(200, json!({"allowed": false}));
    let missing = failure("the server could not find the requested resource");
    assert_eq!(authorizer.authorize("asker", &spec, &NO_TRACE).await, Err(missing.clone()));
    second.decisions(404, Value::Null);
    assert_eq!(authorizer.authorize("asker", &spec, &NO_TRACE).await, Err(missing), "the same error once");
    first.take();
    second.take();
    assert!(both(FailurePolicy::Deny).authorize("asker", &spec, &NO_TRACE).await.is_err());
    assert_eq!((first.take().len(), second.take().len()), (1, 0), "the first denies");
    let masters = SubjectAccessReviewSpec { groups: Some(vec!["system:masters".to_owned()]), ..spec };
    assert!(is_allowed(&authorizer.authorize("asker", &masters, &NO_TRACE).await));
    assert_eq!(first.take().len(), 0);
}

#[tokio::test]
async fn refusals_have_kube_apiservers_bodies() {
    let service = Service::start().await;
    let webhook = only(service.webhook());
    let deny = build(vec![AuthorizerSettings::AlwaysDeny], &metrics());
    let user = UserInfo::named("alice");
    let target = "/api/v1/namespaces/n/pods?limit=1&x=<y>";
    let info = RequestInfo::parse(&Method::GET, "/api/v1/namespaces/n/pods", Some("limit=1&x=<y>")).unwrap();
    let refused = async |authorizer: &Authorizer| {
        let Err(AccessRefusal::Forbidden { status, .. } | AccessRefusal::Failed(status)) =
            authorizer.authorize_request("asker", &user, (&info, target), &NO_TRACE).await
        else {
            unreachable!("it is refused")
        };
        (status.code.as_u16(), status.message)
    };
    let forbidden = "pods is forbidden: User \"alice\" cannot list resource \"pods\" in API group \"\" in the \
                     namespace \"n\"";
    assert_eq!(refused(&deny).await, (403, format!("{forbidden}: alwaysdeny: Everything is forbidden.")));
    service.decisions(200, json!({"allowed": false}));
    assert_eq!(refused(&webhook).await, (403, forbidden.to_owned()));
    service.decisions(404, Value::Null);
    let error = "Internal Server Error: \"/api/v1/namespaces/n/pods?limit=1&amp;x=&lt;y&gt;\": the server could not \
                 find the requested resource";
    let (code, message) = refused(&webhook).await;
    assert_eq!((code, message.trim_end()), (500, error));
}

/// Too many access reviews of a user are refused, also where a webhook that fails would be ignored: a flood must not pass
/// without a decision. A calm user is not disturbed.
#[tokio::test]
async fn a_flood_is_refused_and_disturbs_no_other_user() {
    let ca = Ca::new("servers");
    let config = portcullis_http::https_client::testing::serving(&ca.server(&["127.0.0.1"]), None, H1);
    let server = TestServer::start(config, "127.0.0.1:0", |asked| {
        let asked: Value = serde_json::from_slice(&asked.body).unwrap();
        Box::pin(async move {
            if asked["spec"]["user"] == "flood" {
                std::future::pending::<()>().await;
            }
            reply(200, json!({"status": {"denied": true}}).to_string())
        })
    })
    .await;
    let service = Service { ca, server, decision: Arc::default() };
    let webhook = AuthorizerSettings::Webhook(Box::new(service.webhook()));
    let authorizer = Arc::new(build(vec![webhook, AuthorizerSettings::AlwaysAllow], &metrics()));
    let count = SHARES.per_owner() + SHARES.waiting_per_owner() + 100;
    let mut flood = tokio::task::JoinSet::new();
    for number in 0..count {
        let authorizer = Arc::clone(&authorizer);
        let spec = on_pods("flood", "get", &format!("n{number}"));
        flood.spawn(async move { authorizer.authorize("flood", &spec, &NO_TRACE).await });
    }
    for _ in 0..100 {
        let refused = flood.join_next().await.unwrap().unwrap();
        assert_eq!(refused, Err(AccessError::Undecided(ReviewError::Overloaded)));
    }
    let calm = authorizer.authorize("calm", &on_pods("calm", "get", "n"), &NO_TRACE).await;
    assert_eq!(calm, forbidden("", true));
    assert!(service.take().len() <= SHARES.per_owner() + 1);
}

/// A webhook that accepts and never answers costs a request its timeout, and nothing is cached.
#[tokio::test]
async fn a_silent_webhook_ends_with_the_timeout() {
    let ca = Ca::new("servers");
    let config = portcullis_http::https_client::testing::serving(&ca.server(&["127.0.0.1"]), None, H2);
    let server = TestServer::start(config, "127.0.0.1:0", |_| Box::pin(std::future::pending())).await;
    let service = Service { ca, server, decision: Arc::default() };
    let counted = metrics();
    let webhook = AuthorizationWebhook {
        timeout: Duration::from_millis(50),
        authorized_ttl: LONG,
        unauthorized_ttl: LONG,
        ..service.webhook()
    };
    let spec = on_pods("alice", "get", "n");
    let alone = build(vec![AuthorizerSettings::Webhook(Box::new(webhook))], &counted);
    for _ in 0..2 {
        let text = "no answer from the authorization webhook \"policy\"".to_owned();
        assert_eq!(alone.authorize("asker", &spec, &NO_TRACE).await, Err(failure(&text)));
    }
    let (text, _) = counted.render();
    for line in [
        r#"apiserver_authorization_webhook_evaluations_total{name="policy",result="timeout"} 2"#,
        r#"apiserver_authorization_webhook_evaluations_fail_open_total{name="policy",result="timeout"} 2"#,
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

/// A reload keeps the decisions of a webhook whose settings are the same, and of no other.
#[tokio::test]
async fn decisions_outlive_a_reload_that_does_not_change_the_webhook() {
    let service = Service::start().await;
    let settings = |ttl| {
        let webhook = AuthorizationWebhook { authorized_ttl: ttl, ..service.webhook() };
        Authorization { authorizers: vec![AuthorizerSettings::Webhook(Box::new(webhook))] }
    };
    let provider = Arc::new(default_provider());
    let build = |settings, before: Option<&Authorizer>| {
        let deps = AuthorizerDeps {
            provider: &provider,
            runtime: &Handle::current(),
            metrics: &metrics(),
            caches: &CacheShare::UNBOUNDED,
        };
        Authorizer::build(&settings, Release::default(), before, &deps).unwrap()
    };
    let spec = on_pods("alice", "get", "n");
    let first = build(settings(LONG), None);
    first.authorize("asker", &spec, &NO_TRACE).await.unwrap();
    build(settings(LONG), Some(&first)).authorize("asker", &spec, &NO_TRACE).await.unwrap();
    assert_eq!(service.take().len(), 1);
    build(settings(LONG * 2), Some(&first)).authorize("asker", &spec, &NO_TRACE).await.unwrap();
    assert_eq!(service.take().len(), 1);
}

/// Errors and reasons quote the webhook's text, but not the credential with which the gateway asked.
#[tokio::test]
async fn texts_omit_the_credential() {
    type Text = fn(&str) -> (u16, Value);
    let texts: [Text; 4] = [
        |credential| (403, json!(format!("no entry for {credential}"))),
        |credential| {
            (
                401,
                json!({"kind": "Status", "status": "Failure", "message": format!("bad {credential}"), "code": 401}),
            )
        },
        |credential| (200, json!({"kind": credential, "apiVersion": credential})),
        |credential| (200, json!({"status": {"denied": true, "reason": credential}})),
    ];
    for text in texts {
        let ca = Ca::new("servers");
        let server = TestServer::of(&ca, H2, move |asked| {
            let credential = asked.headers.get("authorization").unwrap().to_str().unwrap();
            let (code, body) = text(credential);
            reply(code, body.to_string())
        })
        .await;
        let service = Service { ca, server, decision: Arc::default() };
        let bearer_token = Some(BearerToken::new("s3cr3t"));
        let webhook = only(AuthorizationWebhook { bearer_token, ..service.webhook() });
        let refused = webhook.authorize("asker", &on_pods("alice", "get", "n"), &NO_TRACE).await.unwrap_err();
        let refused = format!("{refused:?}");
        assert!(refused.contains("[the token]") && !refused.contains("s3cr3t"), "{refused}");
    }
}

/// An access review that a client makes long takes its share, and a longer one is not asked.
#[tokio::test]
async fn long_reviews_are_bounded() {
    let service = Service::start().await;
    let authorizer = only(service.webhook());
    let of = |length: usize| SubjectAccessReviewSpec {
        groups: Some(vec!["g".repeat(length)]),
        ..on_pods("alice", "get", "n")
    };
    assert!(is_allowed(&authorizer.authorize("asker", &of(200 << 10), &NO_TRACE).await));
    let refused = authorizer.authorize("asker", &of(257 << 10), &NO_TRACE).await;
    assert_eq!(refused, Err(AccessError::Undecided(ReviewError::TooLarge)));
}

/// A webhook that answers when it is told to.
async fn held() -> (Service, Arc<tokio::sync::Semaphore>) {
    let ca = Ca::new("servers");
    let config = portcullis_http::https_client::testing::serving(&ca.server(&["127.0.0.1"]), None, H1);
    let released = Arc::new(tokio::sync::Semaphore::new(0));
    let holding = Arc::clone(&released);
    let server = TestServer::start(config, "127.0.0.1:0", move |_| {
        let holding = Arc::clone(&holding);
        Box::pin(async move {
            holding.acquire().await.unwrap().forget();
            reply(200, json!({"status": {"allowed": true}}).to_string())
        })
    })
    .await;
    (Service { ca, server, decision: Arc::default() }, released)
}

async fn until_asked(service: &Service) {
    testkit::until("a question", || !service.server.take().is_empty()).await;
}

/// A request that joins another's access review does not use a decision whose time is over.
#[tokio::test]
async fn a_shared_review_gives_no_decision_beyond_its_time() {
    let (service, released) = held().await;
    let authorizer = Arc::new(only(AuthorizationWebhook { unauthorized_ttl: LONG, ..service.webhook() }));
    let ask = || {
        let authorizer = Arc::clone(&authorizer);
        tokio::spawn(
            async move { authorizer.authorize("asker", &on_pods("alice", "get", "n"), &NO_TRACE).await },
        )
    };
    let first = ask();
    until_asked(&service).await;
    let second = ask();
    tokio::task::yield_now().await;
    released.add_permits(1);
    assert!(is_allowed(&first.await.unwrap()));
    until_asked(&service).await;
    released.add_permits(1);
    assert!(is_allowed(&second.await.unwrap()));
}

/// A client whose access reviews fill its share, by impersonating another user, delays no access review of that user, nor the same
/// one.
#[tokio::test]
async fn an_equal_review_of_another_client_is_not_delayed() {
    let (service, released) = held().await;
    let authorizer = Arc::new(only(AuthorizationWebhook { authorized_ttl: LONG, ..service.webhook() }));
    let ask = |flow: &'static str, number: usize| {
        let authorizer = Arc::clone(&authorizer);
        tokio::spawn(async move {
            let spec = on_pods("bob", "get", &format!("n{number}"));
            authorizer.authorize(flow, &spec, &NO_TRACE).await
        })
    };
    let flood: Vec<_> = (0..=SHARES.per_owner()).map(|number| ask("flood", number)).collect();
    let mut asked = 0;
    testkit::until("the flood's questions", || {
        asked += service.server.take().len();
        asked >= SHARES.per_owner()
    })
    .await;
    // The flood's last access review waits for its share.
    let calm = ask("bob", SHARES.per_owner());
    until_asked(&service).await;
    released.add_permits(2 * flood.len());
    assert!(is_allowed(&calm.await.unwrap()));
}

/// An access review ends with the requests that wait for it, and frees its share.
#[tokio::test]
async fn a_review_ends_with_its_requests() {
    let (service, released) = held().await;
    let authorizer = Arc::new(only(AuthorizationWebhook { authorized_ttl: LONG, ..service.webhook() }));
    let ask = |namespace: String| {
        let authorizer = Arc::clone(&authorizer);
        tokio::spawn(async move {
            authorizer.authorize("asker", &on_pods("alice", "get", &namespace), &NO_TRACE).await
        })
    };
    let waiting: Vec<_> = (0..SHARES.per_owner()).map(|number| ask(format!("n{number}"))).collect();
    until_asked(&service).await;
    for request in waiting {
        request.abort();
        request.await.unwrap_err();
    }
    let last = ask("last".to_owned());
    until_asked(&service).await;
    released.add_permits(1);
    assert!(is_allowed(&last.await.unwrap()));
}
