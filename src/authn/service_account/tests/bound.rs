//! Rows of Kubernetes' `claims_test.go` and `util_test.go`.

use super::*;

const OK: &str = "system:serviceaccount:ns:saname for [\"api\"]";
const INVALIDATED: &str = "service account token has been invalidated";

fn cluster() -> FakeApiServer {
    FakeApiServer {
        accounts: BTreeMap::from([("ns/saname".to_owned(), account("sauid"))]),
        secrets: BTreeMap::from([(
            "ns/secretname".to_owned(),
            Secret { identity: identity("secretuid"), ..Secret::default() },
        )]),
        pods: BTreeMap::from([("ns/podname".to_owned(), identity("poduid"))]),
        nodes: BTreeMap::from([("nodename".to_owned(), identity("nodeuid"))]),
        ..FakeApiServer::default()
    }
}

/// The claims of a token with additional bound objects.
fn claims(bonds: Value) -> Value {
    let bonds = with(json!({"namespace": "ns", "serviceaccount": {"name": "saname", "uid": "sauid"}}), bonds);
    json!({
        "iss": "iss", "sub": "system:serviceaccount:ns:saname", "aud": ["api"],
        "exp": NOW, "nbf": 0, "kubernetes.io": bonds,
    })
}

fn secret() -> Value {
    json!({"secret": {"name": "secretname", "uid": "secretuid"}})
}

fn pod() -> Value {
    json!({"pod": {"name": "podname", "uid": "poduid"}})
}

fn node() -> Value {
    json!({"node": {"name": "nodename", "uid": "nodeuid"}})
}

#[test]
fn bound_objects_must_exist_with_their_uid() {
    let none = json!({});
    let cases = [
        ("good", cluster(), none.clone(), OK),
        ("with a secret", cluster(), secret(), OK),
        ("with a pod", cluster(), pod(), OK),
        ("with a node", cluster(), node(), OK),
        (
            "no objects of other kinds exist",
            FakeApiServer { accounts: cluster().accounts, ..FakeApiServer::default() },
            none,
            OK,
        ),
        (
            "missing service account",
            FakeApiServer::default(),
            json!({}),
            "serviceaccounts \"saname\" not found",
        ),
        ("missing secret", FakeApiServer { secrets: BTreeMap::new(), ..cluster() }, secret(), INVALIDATED),
        ("missing pod", FakeApiServer { pods: BTreeMap::new(), ..cluster() }, pod(), INVALIDATED),
        ("missing node", FakeApiServer { nodes: BTreeMap::new(), ..cluster() }, node(), INVALIDATED),
        (
            "another service account",
            cluster(),
            json!({"serviceaccount": {"name": "saname", "uid": "sauidold"}}),
            "service account UID (sauid) does not match claim (sauidold)",
        ),
        (
            "another secret",
            cluster(),
            json!({"secret": {"name": "secretname", "uid": "secretuidold"}}),
            "secret UID (secretuid) does not match service account secret ref claim (secretuidold)",
        ),
        (
            "another pod",
            cluster(),
            json!({"pod": {"name": "podname", "uid": "poduidold"}}),
            "pod UID (poduid) does not match service account pod ref claim (poduidold)",
        ),
        (
            "another node",
            cluster(),
            json!({"node": {"name": "nodename", "uid": "nodeuidold"}}),
            "node UID (nodeuid) does not match service account node ref claim (nodeuidold)",
        ),
        // Kubernetes 1.37; one of 1.36 takes such a token for an ordinary one.
        (
            "a validating webhook configuration",
            cluster(),
            json!({"validatingwebhookconfiguration": {"name": "hooks", "uid": "u"}}),
            r#"feature gate "APIServerWebhookAuthenticationToken" is disabled, but token is webhook bound"#,
        ),
        (
            "a mutating webhook configuration",
            cluster(),
            json!({"mutatingwebhookconfiguration": {}}),
            r#"feature gate "APIServerWebhookAuthenticationToken" is disabled, but token is webhook bound"#,
        ),
        ("null for one", cluster(), json!({"mutatingwebhookconfiguration": null}), OK),
        ("no name of a pod", cluster(), json!({"pod": {}}), INVALIDATED),
        (
            "null is the zero value",
            cluster(),
            json!({"pod": null, "secret": null, "node": null, "warnafter": null}),
            OK,
        ),
        ("no name", cluster(), json!({"serviceaccount": {"uid": "sauid"}}), "resource name may not be empty"),
        (
            "no namespace",
            cluster(),
            json!({"namespace": ""}),
            "the server could not find the requested resource",
        ),
        (
            "a name that is a path",
            cluster(),
            json!({"serviceaccount": {"name": "../x%", "uid": "sauid"}}),
            "invalid resource name \"../x%\": [may not contain '/' may not contain '%']",
        ),
        (
            "a name that ends a path",
            cluster(),
            json!({"serviceaccount": {"name": "saname?x", "uid": "sauid"}}),
            "invalid resource name \"saname?x\": [may not contain '?']",
        ),
        (
            "a namespace that ends a path",
            cluster(),
            json!({"namespace": "ns#"}),
            "invalid namespace \"ns#\": [may not contain '#']",
        ),
        (
            "a namespace that is a path",
            cluster(),
            json!({"namespace": ".."}),
            "invalid namespace \"..\": [may not be '..']",
        ),
        ("names are case-sensitive", cluster(), json!({"Namespace": "ns", "Pod": {"name": "x"}}), OK),
    ];
    for (name, cluster, bonds, expected) in cases {
        let bed = TestBed::new(cluster);
        assert_eq!(bed.authenticate(&bed.bound(), &bed.token(&claims(bonds))).verdict, expected, "{name}");
    }
    let bed = TestBed::new(cluster());
    let mut unbound = claims(json!({}));
    unbound.as_object_mut().unwrap().remove("kubernetes.io");
    assert_eq!(
        bed.authenticate(&bed.bound(), &bed.token(&unbound)).verdict,
        "resource name may not be empty"
    );
    assert_eq!(bed.cluster.lookups(), [""; 0], "an empty name is not looked up");
}

/// Marks an object as deleted, with the bound objects of the token and the expected refusal.
type Row<'a> = (&'a dyn Fn(&mut FakeApiServer), Value, &'a str);

#[test]
fn tokens_stay_valid_for_a_minute_after_a_deletion() {
    let times = [
        ("not deleted", None, false),
        ("now", Some(NOW), false),
        ("a second ago", Some(NOW - 1), false),
        ("in a second", Some(NOW + 1), false),
        ("a minute ago", Some(NOW - 60), false),
        ("a minute and a second ago", Some(NOW - 61), true),
    ];
    for (name, deleted, gone) in times {
        let deleted = deleted.map(seconds);
        let set = |object: &mut ObjectIdentity| object.deleted = deleted;
        let rows: [Row<'_>; 4] = [
            (
                &|cluster| set(&mut cluster.accounts.get_mut("ns/saname").unwrap().identity),
                json!({}),
                "service account ns/saname has been deleted",
            ),
            (
                &|cluster| set(&mut cluster.secrets.get_mut("ns/secretname").unwrap().identity),
                secret(),
                INVALIDATED,
            ),
            (&|cluster| set(cluster.pods.get_mut("ns/podname").unwrap()), pod(), INVALIDATED),
            (&|cluster| set(cluster.nodes.get_mut("nodename").unwrap()), node(), INVALIDATED),
        ];
        for (delete, bonds, refusal) in rows {
            let mut cluster = cluster();
            delete(&mut cluster);
            let bed = TestBed::new(cluster);
            let outcome = bed.authenticate(&bed.bound(), &bed.token(&claims(bonds.clone())));
            assert_eq!(outcome.verdict, if gone { refusal } else { OK }, "{name}, {bonds}");
        }
    }
}

#[test]
fn a_minute_of_clock_skew_is_accepted() {
    let (early, late, future) = (
        "service account token is not valid yet",
        "service account token has expired",
        "service account token is issued in the future",
    );
    let cases = [
        (json!({"exp": NOW - 60}), 0, OK),
        (json!({"exp": NOW - 60}), 1, late),
        (json!({"exp": NOW - 61}), 0, late),
        (json!({"exp": 0}), 0, late),
        (json!({"exp": -1}), 0, late),
        (json!({"exp": null}), 0, OK),
        (json!({"nbf": NOW + 60}), 0, OK),
        (json!({"nbf": NOW + 61}), 0, early),
        (json!({"nbf": NOW + 61}), 999_999_999, early),
        (json!({"iat": NOW + 60}), 0, OK),
        (json!({"iat": NOW + 61}), 0, future),
        // The first failing check is reported.
        (json!({"nbf": NOW + 61, "exp": 1, "iat": NOW + 61}), 0, early),
        (json!({"exp": 1, "iat": NOW + 61}), 0, late),
        // Fractions are truncated.
        (json!({"exp": 1_699_999_939.9}), 0, late),
        (json!({"nbf": 1_700_000_060.9}), 0, OK),
    ];
    for (times, nanoseconds, expected) in cases {
        let mut bed = TestBed::new(cluster());
        bed.now += Duration::from_nanos(nanoseconds);
        let token = bed.token(&with(claims(json!({})), times.clone()));
        assert_eq!(bed.authenticate(&bed.bound(), &token).verdict, expected, "{times} and {nanoseconds} ns");
        let refused = expected != OK;
        assert_eq!(
            bed.cluster.lookups().is_empty(),
            refused,
            "{times}: an expired or early token causes no lookups"
        );
    }
    let mut endless = claims(json!({}));
    endless.as_object_mut().unwrap().remove("exp");
    let bed = TestBed::new(cluster());
    assert_eq!(bed.authenticate(&bed.bound(), &bed.token(&endless)).verdict, OK);
}

#[test]
fn only_bound_objects_are_looked_up() {
    let all = with(with(secret(), pod()), node());
    let cases = [
        (json!({}), vec!["serviceaccount ns/saname"]),
        (secret(), vec!["serviceaccount ns/saname", "secret ns/secretname"]),
        (node(), vec!["serviceaccount ns/saname", "node nodename"]),
        // The node of a pod is not looked up.
        (with(pod(), node()), vec!["serviceaccount ns/saname", "pod ns/podname"]),
        (all, vec!["serviceaccount ns/saname", "secret ns/secretname", "pod ns/podname"]),
    ];
    for (bonds, expected) in cases {
        let bed = TestBed::new(cluster());
        assert_eq!(bed.authenticate(&bed.bound(), &bed.token(&claims(bonds))).verdict, OK);
        assert_eq!(bed.cluster.lookups(), expected);
    }
}

#[test]
fn a_failed_lookup_is_unavailable_not_invalid() {
    for (away, bonds) in
        [("serviceaccount", json!({})), ("secret", secret()), ("pod", pod()), ("node", node())]
    {
        let bed = TestBed::new(FakeApiServer { away, ..cluster() });
        let outcome = bed.authenticate(&bed.bound(), &bed.token(&claims(bonds)));
        assert!(outcome.verdict.starts_with("unavailable: cannot ask for "), "{away}: {}", outcome.verdict);
    }
}

/// Extra keys without their common prefix, with values.
type Extra<'a> = &'a [(&'a str, &'a str)];

#[test]
fn the_user_has_the_pod_and_the_node_as_extra() {
    let node_alone = json!({"node": {"name": "nodename", "uid": "nodeuid"}});
    let nothing: Extra<'_> = &[];
    let cases: [(Value, Value, Extra<'_>); 7] = [
        (json!({}), json!({}), nothing),
        (json!({"jti": "1-2"}), json!({}), &[("credential-id", "JTI=1-2")]),
        (json!({"jti": ""}), json!({}), nothing),
        (json!({}), pod(), &[("pod-name", "podname"), ("pod-uid", "poduid")]),
        (json!({}), node_alone, &[("node-name", "nodename"), ("node-uid", "nodeuid")]),
        (
            json!({"jti": "x"}),
            with(pod(), json!({"node": {"name": "n"}})),
            &[("credential-id", "JTI=x"), ("node-name", "n"), ("pod-name", "podname"), ("pod-uid", "poduid")],
        ),
        (
            json!({}),
            with(pod(), json!({"node": {"uid": "u"}})),
            &[("pod-name", "podname"), ("pod-uid", "poduid")],
        ),
    ];
    for (changes, bonds, expected) in cases {
        let bed = TestBed::new(cluster());
        let outcome = bed.authenticate(&bed.bound(), &bed.token(&with(claims(bonds), changes)));
        let user = outcome.identity.unwrap_or_else(|| panic!("{}", outcome.verdict));
        assert_eq!(user.name, "system:serviceaccount:ns:saname");
        assert_eq!(user.uid.as_deref(), Some("sauid"));
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns"]);
        let extra: Vec<_> = user.extra.iter().map(|(key, values)| (key.as_str(), values.join("|"))).collect();
        let keys: Vec<_> =
            expected.iter().map(|(key, _)| format!("authentication.kubernetes.io/{key}")).collect();
        let expected: Vec<_> =
            keys.iter().zip(expected).map(|(key, (_, value))| (key.as_str(), (*value).to_owned())).collect();
        assert_eq!(extra, expected);
    }
    // The `sub` claim does not determine the user.
    let bed = TestBed::new(cluster());
    let token = bed.token(&with(claims(json!({})), json!({"sub": "system:admin"})));
    assert_eq!(bed.authenticate(&bed.bound(), &token).verdict, OK);
}

#[test]
fn stale_tokens_are_counted_and_annotated() {
    let stale = "subject: system:serviceaccount:ns:saname, seconds after warning threshold: 5";
    let cases = [
        (json!(NOW - 5), Some(stale), (1, 0)),
        (json!(NOW), None, (0, 1)),
        (json!(NOW + 5), None, (0, 1)),
        (json!(0), None, (0, 0)),
        (json!(null), None, (0, 0)),
    ];
    for (date, expected, counted) in cases {
        let bed = TestBed::new(cluster());
        let outcome = bed.authenticate(&bed.bound(), &bed.token(&claims(json!({"warnafter": date}))));
        assert_eq!(outcome.verdict, OK, "{date}");
        let annotation = outcome.noted.annotations.get("authentication.k8s.io/stale-token");
        assert_eq!(annotation.map(String::as_str), expected, "{date}");
        assert_eq!((bed.counters.stale.get(), bed.counters.valid.get()), counted, "{date}");
    }
}

#[test]
fn extra_requires_name_and_uid_of_pods_and_the_name_of_nodes() {
    use super::super::claims::ClaimedObject;
    let [pod_name, pod_uid, node_name, node_uid] = ["pod-name", "pod-uid", "node-name", "node-uid"]
        .map(|key| format!("authentication.kubernetes.io/{key}"));
    let reference = |name: &str, uid: &str| ClaimedObject { name: name.to_owned(), uid: uid.to_owned() };
    let cases = [
        (Some(reference("p", "u")), None, vec![(&pod_name, "p"), (&pod_uid, "u")]),
        (Some(reference("p", "")), None, vec![]),
        (Some(reference("", "u")), None, vec![]),
        (None, Some(reference("n", "u")), vec![(&node_name, "n"), (&node_uid, "u")]),
        (None, Some(reference("n", "")), vec![(&node_name, "n")]),
        (None, Some(reference("", "u")), vec![]),
        (None, None, vec![]),
    ];
    for (pod, node, expected) in cases {
        let expected: BTreeMap<_, _> =
            expected.into_iter().map(|(key, value)| (key.clone(), vec![value.to_owned()])).collect();
        let [of_pod, of_node] = [&pod, &node].map(|object| object.as_ref().map(ClaimedObject::bound));
        assert_eq!(identity::extra(None, of_pod, of_node), expected, "{pod:?}, {node:?}");
    }
}

/// Delays each lookup by six seconds.
#[derive(Debug)]
struct Slow(Arc<FakeApiServer>);

impl Slow {
    async fn after<T>(&self, lookup: BoxFuture<'_, GetResult<T>>) -> GetResult<T> {
        tokio::time::sleep(Duration::from_secs(6)).await;
        lookup.await
    }
}

impl TokenGetter for Slow {
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, GetResult<ServiceAccount>> {
        Box::pin(self.after(self.0.service_account(namespace, name)))
    }
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<Secret>> {
        Box::pin(self.after(self.0.secret(namespace, name)))
    }
    fn bootstrap_secret<'a>(&'a self, name: &'a str, owner: &'a Owner) -> BoxFuture<'a, GetResult<Secret>> {
        Box::pin(self.after(self.0.bootstrap_secret(name, owner)))
    }
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        Box::pin(self.after(self.0.pod(namespace, name)))
    }
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        Box::pin(self.after(self.0.node(name)))
    }
    fn label_secret(&self, namespace: &str, name: &str, label: &'static str, value: String) {
        self.0.label_secret(namespace, name, label, value);
    }
}

/// The service account may be deleted during the other lookups.
#[tokio::test(start_paused = true)]
async fn lookups_that_take_too_long_together_refuse_the_token() {
    let bed = TestBed::new(cluster());
    let deps = AccountTokenDeps { lookup: Arc::new(Slow(Arc::clone(&bed.cluster))), ..bed.deps() };
    let bound = BoundTokenAuthenticator::new(vec!["iss".to_owned()], deps);
    let late = "unavailable: object lookups did not finish within 10s";
    for (bonds, expected, seconds) in [(json!({}), OK, 6), (pod(), late, 10), (secret(), late, 10)] {
        let (token, trace) = (BearerToken::new(bed.token(&claims(bonds))), AuthnTrace::default());
        let context =
            TokenContext { audiences: &bed.audiences, owner: &Owner::Gateway, now: bed.now, trace: &trace };
        let began = tokio::time::Instant::now();
        let verdict = bound.authenticate(&token, context).await;
        assert_eq!((describe(&verdict).as_str(), began.elapsed()), (expected, Duration::from_secs(seconds)));
    }
}
