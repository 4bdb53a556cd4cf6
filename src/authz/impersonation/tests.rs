use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use kube::client::Body;
use portcullis_http::testing::headers;
use portcullis_limits::cache_budget::CacheShare;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::authz::NO_TRACE;
use crate::backend::kube_client::RequestIdentity;
use crate::backend::testing::{settings, with_settings};

/// What the API server decides of an access review.
enum Answer {
    Json(Value),
    Status(u16, &'static str),
    Never,
}

/// An API server with an authorizer, and what it was asked.
#[derive(Clone)]
struct Api {
    decision: Arc<dyn Fn(&Value) -> Answer + Send + Sync>,
    /// The rules of every user; `None` if they are not listed.
    rules: Option<Value>,
    reviews: Arc<Mutex<Vec<Value>>>,
    rule_reviews: Arc<AtomicUsize>,
}

impl Api {
    fn new(decision: impl Fn(&Value) -> Answer + Send + Sync + 'static) -> Self {
        Self {
            decision: Arc::new(decision),
            rules: None,
            reviews: Arc::default(),
            rule_reviews: Arc::default(),
        }
    }

    /// Allows the access reviews for which `allows` holds, given verb, resource, subresource and name.
    fn allowing(allows: impl Fn([&str; 4]) -> bool + Send + Sync + 'static) -> Self {
        Self::new(move |spec| {
            let of = |field: &str| spec["resourceAttributes"][field].as_str().unwrap_or_default();
            allowed(allows(["verb", "resource", "subresource", "name"].map(of)))
        })
    }

    fn listing(self, rules: Value) -> Self {
        Self { rules: Some(rules), ..self }
    }

    fn impersonator(&self) -> Impersonator {
        self.impersonator_at(&[Some("v1.37.2")], Release::default())
    }

    /// In front of API servers of these versions, which have all passed the self-check.
    fn impersonator_at(&self, versions: &[Option<&str>], release: Release) -> Impersonator {
        let api = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let path = request.uri().path().to_owned();
                let user = request.extensions().get::<RequestIdentity>().cloned();
                let body = request.into_body().collect_bytes().await?;
                let review: Value = serde_json::from_slice(&body)?;
                let decision = if path.ends_with("/selfsubjectrulesreviews") {
                    api.rule_reviews.fetch_add(1, Ordering::SeqCst);
                    // Without it, the rules would be those of the gateway itself.
                    assert_eq!(user.map(|RequestIdentity(user)| user.name.clone()).as_deref(), Some("alice"));
                    match &api.rules {
                        Some(rules) => {
                            Answer::Json(json!({"status": {"incomplete": false, "resourceRules": rules}}))
                        }
                        None => Answer::Json(json!({"status": {"incomplete": true, "resourceRules": []}})),
                    }
                } else {
                    lock(&api.reviews).push(review["spec"].clone());
                    (api.decision)(&review["spec"])
                };
                let (code, text) = match decision {
                    Answer::Json(decision) => (201, decision.to_string()),
                    Answer::Status(code, text) => (code, text.to_owned()),
                    Answer::Never => pending().await,
                };
                let response = Response::builder().status(code).body(Body::from(text.into_bytes()));
                Ok::<_, tower::BoxError>(response?)
            }
        });
        let client = kube::Client::new(service, "default");
        let reviewer = crate::authz::AccessReviewer::with_client(
            client,
            &tokio::runtime::Handle::current(),
            &CacheShare::UNBOUNDED,
        );
        let mut settings = settings();
        let first = settings.endpoints[0].clone();
        settings.endpoints.resize(versions.len(), first);
        let backend = Arc::new(with_settings(&settings));
        for (endpoint, version) in backend.endpoints().iter().zip(versions) {
            endpoint.learn_version(endpoint.trust_version(), &[version.map(str::to_owned)]);
            assert!(endpoint.set_trusted(endpoint.trust_version()));
        }
        let authorizer = ClusterAuthorizer::with_reviewer(None, reviewer);
        Impersonator::new(authorizer, &backend, release, &Arc::new(Metrics::new()))
    }

    fn reviews(&self) -> usize {
        lock(&self.reviews).len()
    }

    fn asked(&self) -> Vec<String> {
        let text = |review: &Value, field: &str| {
            review["resourceAttributes"][field].as_str().unwrap_or_default().to_owned()
        };
        lock(&self.reviews)
            .iter()
            .map(|review| {
                ["verb", "resource", "subresource", "name"].map(|field| text(review, field)).join(" ")
            })
            .collect()
    }
}

fn allowed(allowed: bool) -> Answer {
    Answer::Json(json!({"status": {"allowed": allowed, "reason": "because"}}))
}

fn legacy(verb: &str) -> bool {
    verb == "impersonate"
}

fn requester(name: &str) -> Identity {
    UserInfo::named(name).in_authenticated_group().into()
}

fn wanted(lines: &[(&'static str, &str)]) -> WantedUser<'static> {
    WantedUser::of(&headers(lines)).unwrap().unwrap().into_owned()
}

fn bob() -> WantedUser<'static> {
    wanted(&[("impersonate-user", "bob")])
}

fn get_pod() -> RequestInfo {
    RequestInfo::parse(&Method::GET, "/api/v1/namespaces/n/pods/p", None).unwrap()
}

async fn try_as(
    impersonator: &Impersonator,
    name: &str,
    wanted: &WantedUser<'_>,
) -> Result<UserInfo, ImpersonationError> {
    let found = impersonator.impersonate(name, &requester(name), wanted, &get_pod(), &NO_TRACE).await;
    found.map(|found| UserInfo::clone(&found.identity))
}

/// 200 groups, each `team-` and a number.
fn many_groups() -> WantedUser<'static> {
    let mut map = headers(&[("impersonate-user", "bob")]);
    for number in 0..200 {
        map.append("impersonate-group", HeaderValue::from_str(&format!("team-{number}")).unwrap());
    }
    WantedUser::of(&map).unwrap().unwrap().into_owned()
}

#[tokio::test(start_paused = true)]
async fn a_decision_counts_for_its_time_and_for_one_requester() {
    let api = Api::allowing(|[verb, ..]| legacy(verb));
    let impersonator = api.impersonator();
    try_as(&impersonator, "alice", &bob()).await.unwrap();
    assert_eq!(api.asked(), ["impersonate-on:user-info:get pods  p", "impersonate users  bob"]);
    for _ in 0..5 {
        tokio::time::advance(Duration::from_millis(1900)).await;
        try_as(&impersonator, "alice", &bob()).await.unwrap();
    }
    assert_eq!(api.reviews(), 2, "use does not prolong an answer");
    tokio::time::advance(Duration::from_millis(600)).await;
    try_as(&impersonator, "alice", &bob()).await.unwrap();
    assert_eq!(api.reviews(), 3, "the mode that allowed the last is tried first");
    try_as(&impersonator, "carol", &bob()).await.unwrap();
    assert_eq!(api.reviews(), 5, "another requester");
    let mut other = UserInfo::clone(&requester("alice"));
    other.extra.insert("k".to_owned(), vec!["v".to_owned()]);
    impersonator.impersonate("asker", &other.into(), &bob(), &get_pod(), &NO_TRACE).await.unwrap();
    assert_eq!(api.reviews(), 6, "the same name with another attribute");
}

// kube-apiserver 1.34.4 and 1.35 know no such verbs by default: a role may have them there without meaning it.
#[tokio::test(start_paused = true)]
async fn constrained_verbs_count_only_where_the_api_servers_know_them() {
    let (new, newest) = (Release::V1_36, Release::V1_37);
    for (versions, release, is_allowed) in [
        (vec![Some("v1.37.2")], newest, true),
        (vec![Some("v1.36.3")], newest, true),
        (vec![Some("v1.36.3"), Some("v1.37.2")], new, true),
        (vec![Some("v1.38.0"), Some("v1.37.2")], newest, true),
        (vec![Some("v1.35.6")], newest, false),
        (vec![Some("v1.34.4")], newest, false),
        // Any of them may get the request.
        (vec![Some("v1.34.4"), Some("v1.37.2")], newest, false),
        (vec![Some("v1.37.2"), Some("v1.34.4")], newest, false),
        // It may be an old one.
        (vec![None], newest, false),
        (vec![Some("v1.37.2"), None], newest, false),
        (vec![Some("v1.37.2"), Some("unknown")], newest, false),
        (vec![Some("v1.37.2")], Release::V1_35, false),
        (vec![Some("v1.37.2")], Release::V1_34, false),
    ] {
        let api = Api::allowing(|[verb, ..]| {
            verb.starts_with("impersonate:") || verb.starts_with("impersonate-on:")
        });
        let impersonator = api.impersonator_at(&versions, release);
        let tried = try_as(&impersonator, "alice", &bob()).await;
        assert_eq!(tried.is_ok(), is_allowed, "{versions:?} {release}");
        if !is_allowed {
            assert_eq!(api.asked(), ["impersonate users  bob"], "{versions:?} {release}");
        }
    }
}

/// A decision that is kept does not outlive the releases for which it was made.
#[tokio::test(start_paused = true)]
async fn a_kept_decision_ends_when_an_api_server_may_be_older() {
    let api =
        Api::allowing(|[verb, ..]| verb.starts_with("impersonate:") || verb.starts_with("impersonate-on:"));
    let impersonator = api.impersonator();
    try_as(&impersonator, "alice", &bob()).await.unwrap();
    let endpoint = &impersonator.backend.endpoints()[0];
    endpoint.distrust();
    assert!(matches!(try_as(&impersonator, "alice", &bob()).await, Err(ImpersonationError::Forbidden(_))));
    let before = endpoint.trust_version();
    endpoint.learn_version(before, &[Some("v1.34.4".to_owned())]);
    assert!(endpoint.set_trusted(before));
    assert!(matches!(try_as(&impersonator, "alice", &bob()).await, Err(ImpersonationError::Forbidden(_))));
    endpoint.learn_version(endpoint.trust_version(), &[Some("v1.37.2".to_owned())]);
    try_as(&impersonator, "alice", &bob()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_allowed_right_that_is_revoked_ends_with_the_decision() {
    let revoked = Arc::new(AtomicUsize::new(0));
    let state = Arc::clone(&revoked);
    let api = Api::new(move |spec| {
        let verb = spec["resourceAttributes"]["verb"].as_str().unwrap_or_default();
        allowed(state.load(Ordering::SeqCst) == 0 && !legacy(verb))
    });
    let impersonator = api.impersonator();
    try_as(&impersonator, "alice", &bob()).await.unwrap();
    revoked.store(1, Ordering::SeqCst);
    tokio::time::advance(Duration::from_millis(9_900)).await;
    try_as(&impersonator, "alice", &bob()).await.unwrap();
    tokio::time::advance(Duration::from_millis(200)).await;
    assert!(matches!(try_as(&impersonator, "alice", &bob()).await, Err(ImpersonationError::Forbidden(_))));
    revoked.store(0, Ordering::SeqCst);
    tokio::time::advance(Duration::from_millis(1_100)).await;
    try_as(&impersonator, "alice", &bob()).await.unwrap();
}

/// An impersonation that two decisions of different age allow ends with the older one.
#[tokio::test(start_paused = true)]
async fn the_oldest_decision_decides_how_long_an_impersonation_is_kept() {
    let api = Api::allowing(|[verb, ..]| !legacy(verb));
    let impersonator = api.impersonator();
    let get = |path: &str| RequestInfo::parse(&Method::GET, path, None).unwrap();
    let pods = get("/api/v1/pods/a");
    impersonator.impersonate("asker", &requester("alice"), &bob(), &pods, &NO_TRACE).await.unwrap();
    assert_eq!(api.reviews(), 2);
    tokio::time::advance(Duration::from_secs(9)).await;
    impersonator
        .impersonate("asker", &requester("alice"), &bob(), &get("/api/v1/pods/b"), &NO_TRACE)
        .await
        .unwrap();
    assert_eq!(api.reviews(), 3, "the user is known, the request is not");
    tokio::time::advance(Duration::from_secs(2)).await;
    impersonator
        .impersonate("asker", &requester("alice"), &bob(), &get("/api/v1/pods/b"), &NO_TRACE)
        .await
        .unwrap();
    assert_eq!(api.reviews(), 4, "the answer about the user has ended, that about the request has not");
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_one_review() {
    let api = Api::allowing(|[verb, ..]| legacy(verb));
    let impersonator = api.impersonator();
    let bob = bob();
    let all = (0..20).map(|_| try_as(&impersonator, "alice", &bob));
    for result in futures_util::future::join_all(all).await {
        result.unwrap();
    }
    assert_eq!(api.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn two_hundred_groups_cost_a_constant_number_of_reviews() {
    let rule = |verb: &str, group: &str, names: &Value| json!([{"verbs": [verb], "apiGroups": [group], "resources": ["users", "groups"], "resourceNames": names}]);
    let groups: Vec<String> = (0..200).map(|number| format!("team-{number}")).collect();
    // In the mode of old: the request, the user; and the rules.
    for names in [json!([]), json!(groups)] {
        let api = Api::allowing(|[verb, ..]| legacy(verb)).listing(rule("impersonate", "", &names));
        let user = try_as(&api.impersonator(), "alice", &many_groups()).await.unwrap();
        assert_eq!(user.groups.len(), 201);
        assert_eq!((api.reviews(), api.rule_reviews.load(Ordering::SeqCst)), (2, 1));
    }
    // In constrained mode, by an asterisk: the request, the user, the asterisk.
    let api = Api::allowing(|[verb, _, _, name]| !legacy(verb) && !name.starts_with("team-"));
    try_as(&api.impersonator(), "alice", &many_groups()).await.unwrap();
    assert_eq!((api.reviews(), api.rule_reviews.load(Ordering::SeqCst)), (3, 0));
    // By names: the same, and the rules.
    let api = Api::allowing(|[verb, _, _, name]| !legacy(verb) && name != "*");
    let api = api.listing(rule("impersonate:user-info", "authentication.k8s.io", &json!(groups)));
    try_as(&api.impersonator(), "alice", &many_groups()).await.unwrap();
    assert_eq!((api.reviews(), api.rule_reviews.load(Ordering::SeqCst)), (3, 1));
    // A refused name is asked about again, for the authorizer's words.
    let api = Api::allowing(|[verb, resource, ..]| legacy(verb) && resource == "users");
    let api = api.listing(json!([]));
    let refused = try_as(&api.impersonator(), "alice", &many_groups()).await.unwrap_err();
    assert!(refused.to_string().contains("impersonate-on:user-info:get"), "{refused}");
    assert_eq!((api.reviews(), api.rule_reviews.load(Ordering::SeqCst)), (3, 1));
    // Without all rules each group is asked for, once.
    let api = Api::allowing(|[verb, ..]| legacy(verb));
    try_as(&api.impersonator(), "alice", &many_groups()).await.unwrap();
    assert_eq!((api.reviews(), api.rule_reviews.load(Ordering::SeqCst)), (202, 1));
}

/// kube-apiserver closes the connection of an anonymous client, which other access reviews share.
#[tokio::test(start_paused = true)]
async fn the_rules_of_anonymous_and_large_users_are_not_asked_for() {
    let api = Api::allowing(|[verb, ..]| legacy(verb)).listing(json!([]));
    let impersonator = api.impersonator();
    let large = UserInfo { groups: vec!["g".repeat(20_000)], ..UserInfo::named("alice") };
    for user in [UserInfo::anonymous(), large] {
        impersonator.impersonate("asker", &user.into(), &many_groups(), &get_pod(), &NO_TRACE).await.unwrap();
    }
    assert_eq!(api.rule_reviews.load(Ordering::SeqCst), 0);
}

/// An access review that cannot begin, because its runtime has ended, is answered with an error.
#[test]
fn a_review_after_the_end_of_its_runtime_ends() {
    let ended = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let impersonator = {
        let _entered = ended.enter();
        Api::allowing(|_| true).impersonator()
    };
    drop(ended);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = runtime.block_on(try_as(&impersonator, "alice", &bob())).unwrap_err();
    assert!(matches!(refused, ImpersonationError::Undecided(ReviewError::Unavailable(_))), "{refused:?}");
}

/// Rules say less than the authorizer, for example about `system:masters`.
#[tokio::test(start_paused = true)]
async fn an_authorizer_without_rules_still_allows() {
    let api = Api::allowing(|[verb, ..]| legacy(verb)).listing(json!([]));
    try_as(&api.impersonator(), "alice", &many_groups()).await.unwrap();
    assert_eq!(api.reviews(), 202);
}

#[tokio::test(start_paused = true)]
async fn without_a_usable_decision_the_request_is_refused() {
    type Case = (&'static str, fn(&Value) -> Answer, &'static str);
    let cases: [Case; 9] = [
        ("late", |_| Answer::Never, "Unavailable"),
        ("broken", |_| Answer::Status(500, "{}"), "Unavailable"),
        ("overloaded", |_| Answer::Status(429, "{}"), "Unavailable"),
        ("the gateway may not ask", |_| Answer::Status(403, "{}"), "Forbidden"),
        ("unknown resource", |_| Answer::Status(404, "{}"), "Unusable"),
        ("garbage", |_| Answer::Status(201, "<html>"), "Unusable"),
        ("no status", |_| Answer::Json(json!({})), "Unusable"),
        ("no decision", |_| Answer::Json(json!({"status": {"reason": "x"}})), "Unusable"),
        (
            "allowed and denied",
            |_| Answer::Json(json!({"status": {"allowed": true, "denied": true}})),
            "Unusable",
        ),
    ];
    for (name, decision, expected) in cases {
        let api = Api::new(decision);
        let impersonator = api.impersonator();
        for attempt in 1..=2 {
            match try_as(&impersonator, "alice", &bob()).await {
                Err(ImpersonationError::Undecided(error)) => {
                    assert!(format!("{error:?}").starts_with(expected), "{name}: {error:?}");
                }
                other => panic!("{name}: {other:?}"),
            }
            assert_eq!(api.reviews(), attempt, "{name}: no failure is cached, and no further mode is tried");
        }
    }
    let evaluation_error = json!({"status": {"allowed": true, "evaluationError": "x"}});
    let api = Api::new(move |_| Answer::Json(evaluation_error.clone()));
    try_as(&api.impersonator(), "alice", &bob()).await.unwrap();
}

/// One requester causes as many access reviews as it can, all of which stay without a decision; another is answered.
#[tokio::test(start_paused = true)]
async fn a_requesters_flood_delays_no_other() {
    let api = Api::new(|spec| if spec["user"] == "flood" { Answer::Never } else { allowed(true) });
    let impersonator = Arc::new(api.impersonator());
    let flood: Vec<_> = (0..1000)
        .map(|number| {
            let impersonator = Arc::clone(&impersonator);
            let name = format!("victim-{number}");
            tokio::spawn(async move {
                let wanted = wanted(&[("impersonate-user", &name)]);
                let path = format!("/api/v1/pods/{number}");
                let info = RequestInfo::parse(&Method::GET, &path, None).unwrap();
                impersonator
                    .impersonate("asker", &requester("flood"), &wanted, &info, &NO_TRACE)
                    .await
                    .unwrap_err()
            })
        })
        .collect();
    tokio::task::yield_now().await;
    let began = Instant::now();
    try_as(&impersonator, "calm", &bob()).await.unwrap();
    assert_eq!(Instant::now(), began, "without waiting");
    let asked_by_flood = lock(&api.reviews).iter().filter(|spec| spec["user"] == "flood").count();
    assert!(asked_by_flood <= 16, "{asked_by_flood} questions at once");
    let mut overloaded = 0;
    for refused in flood {
        let refused = refused.await.unwrap();
        overloaded += usize::from(matches!(refused, ImpersonationError::Undecided(ReviewError::Overloaded)));
    }
    assert!(overloaded >= 1000 - 16 - 256, "{overloaded}");
}

/// Anonymous clients of many networks cause as many access reviews as they can; a user is answered.
#[tokio::test(start_paused = true)]
async fn a_flood_of_anonymous_clients_delays_no_user() {
    let api = Api::new(|spec| if spec["user"] == "flood" { Answer::Never } else { allowed(true) });
    let impersonator = Arc::new(api.impersonator());
    let flood: Vec<_> = (0..8_000)
        .map(|number| {
            let impersonator = Arc::clone(&impersonator);
            tokio::spawn(async move {
                let name = format!("victim-{number}");
                let wanted = wanted(&[("impersonate-user", &name)]);
                let info = RequestInfo::parse(&Method::GET, "/api/v1/pods", None).unwrap();
                let flow = format!("system:anonymous at 10.0.{}.1", number % 100);
                impersonator
                    .impersonate(&flow, &requester("flood"), &wanted, &info, &NO_TRACE)
                    .await
                    .unwrap_err()
            })
        })
        .collect();
    tokio::task::yield_now().await;
    let began = Instant::now();
    try_as(&impersonator, "calm", &bob()).await.unwrap();
    assert_eq!(Instant::now(), began, "without waiting");
    drop(flood);
    let asked = lock(&api.reviews).iter().filter(|spec| spec["user"] == "flood").count();
    assert!(asked > 0 && asked <= 16, "{asked} questions at once");
}

/// What is kept of 100,000 impersonations is bounded.
#[tokio::test(start_paused = true)]
async fn kept_impersonations_are_bounded() {
    let api = Api::allowing(|[verb, ..]| legacy(verb));
    let impersonator = api.impersonator();
    let long = "g".repeat(15_000);
    for number in 0..2_000 {
        let name = format!("user-{number}");
        let wanted = wanted(&[("impersonate-user", &name), ("impersonate-group", &long)]);
        try_as(&impersonator, "alice", &wanted).await.unwrap();
    }
    let kept = lock(&impersonator.allowed).len();
    assert!(kept > 100 && kept * 2 * long.len() <= MAX_CACHED_BYTES, "{kept}");
}

#[tokio::test(start_paused = true)]
async fn the_first_refusal_is_the_first_in_order() {
    let api = Api::allowing(|[verb, resource, subresource, name]| {
        legacy(verb)
            && (resource == "users" || (resource == "userextras" && subresource == "b" && name == "1"))
    });
    let impersonator = api.impersonator();
    try_as(&impersonator, "alice", &bob()).await.unwrap();
    for (lines, expected) in [
        (&[("impersonate-group", "z"), ("impersonate-group", "a")][..], r#"groups "z" is forbidden"#),
        (&[("impersonate-extra-c", "1"), ("impersonate-extra-a", "2")], "userextras/a"),
        (&[("impersonate-extra-b", "1"), ("impersonate-extra-b", "2")], r#""2" is forbidden"#),
        (&[("impersonate-group", "z"), ("impersonate-uid", "7")], "uids"),
    ] {
        let lines = [&[("impersonate-user", "bob")], lines].concat();
        let refused = try_as(&impersonator, "alice", &wanted(&lines)).await.unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
    }
}

#[test]
fn headers_ask_for_a_user() {
    let user = |lines: &[(&'static str, &str)]| {
        WantedUser::of(&headers(lines)).map(|found| found.map(WantedUser::into_owned))
    };
    assert_eq!(user(&[]), Ok(None));
    assert_eq!(user(&[("impersonate-user", ""), ("impersonate-uid", "")]), Ok(None));
    let found = user(&[
        ("impersonate-user", "bob"),
        ("impersonate-user", "eve"),
        ("impersonate-group", "b"),
        ("impersonate-group", ""),
        ("impersonate-extra-a%2fb", "1"),
        ("impersonate-extra-a%2Fb", "2"),
        ("impersonate-extra-%zz", "3"),
    ]);
    let extra = BTreeMap::from([
        ("a/b".to_owned(), vec!["1".into(), "2".into()]),
        ("%zz".to_owned(), vec!["3".into()]),
    ]);
    let groups = ["b".into(), "".into()].into_iter().collect();
    assert_eq!(found, Ok(Some(WantedUser { name: "bob".into(), uid: "".into(), groups, extra })));
    let problem = |lines: &[(&'static str, &str)]| user(lines).unwrap_err().to_string();
    assert_eq!(
        problem(&[("impersonate-group", "")]),
        r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{""}, Extra:map[string][]string(nil)} without impersonating a user name"#
    );
    assert_eq!(
        problem(&[("impersonate-uid", "u"), ("impersonate-extra-k", "v"), ("impersonate-extra-a", "w")]),
        r#"requested &user.DefaultInfo{Name:"", UID:"u", Groups:[]string(nil), Extra:map[string][]string{"a":[]string{"w"}, "k":[]string{"v"}}} without impersonating a user name"#
    );
    let long = "x".repeat((16 << 10) + 1);
    assert_eq!(
        user(&[("impersonate-user", "bob"), ("impersonate-group", &long)]),
        Err(BadImpersonation::TooLong)
    );
    let mut map = HeaderMap::new();
    map.insert(HeaderName::from_static("impersonate-user"), HeaderValue::from_bytes(b"b\xff").unwrap());
    assert_eq!(WantedUser::of(&map), Err(BadImpersonation::NotText));
}
