//! Rows of `claims_test.go`, and of `util_test.go` beside it.

use super::*;

const OK: &str = "system:serviceaccount:ns:saname for [\"api\"]";
const INVALIDATED: &str = "service account token has been invalidated";

fn cluster() -> Cluster {
    Cluster {
        accounts: BTreeMap::from([("ns/saname".to_owned(), account("sauid"))]),
        secrets: BTreeMap::from([(
            "ns/secretname".to_owned(),
            Secret { identity: identity("secretuid"), ..Secret::default() },
        )]),
        pods: BTreeMap::from([("ns/podname".to_owned(), identity("poduid"))]),
        nodes: BTreeMap::from([("nodename".to_owned(), identity("nodeuid"))]),
        ..Cluster::default()
    }
}

/// The claims of a token that is bound to this beside its service account.
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
fn the_objects_a_token_is_bound_to_must_be_those_that_were() {
    let none = json!({});
    let cases = [
        ("good", cluster(), none.clone(), OK),
        ("with a secret", cluster(), secret(), OK),
        ("with a pod", cluster(), pod(), OK),
        ("with a node", cluster(), node(), OK),
        (
            "no object of any other kind is there",
            Cluster { accounts: cluster().accounts, ..Cluster::default() },
            none,
            OK,
        ),
        ("missing service account", Cluster::default(), json!({}), "serviceaccounts \"saname\" not found"),
        ("missing secret", Cluster { secrets: BTreeMap::new(), ..cluster() }, secret(), INVALIDATED),
        ("missing pod", Cluster { pods: BTreeMap::new(), ..cluster() }, pod(), INVALIDATED),
        ("missing node", Cluster { nodes: BTreeMap::new(), ..cluster() }, node(), INVALIDATED),
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
        ("no name of a pod", cluster(), json!({"pod": {}}), INVALIDATED),
        (
            "null is nothing",
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
        ("names are compared as they are", cluster(), json!({"Namespace": "ns", "Pod": {"name": "x"}}), OK),
    ];
    for (name, cluster, bonds, expected) in cases {
        let bed = Bed::new(cluster);
        assert_eq!(bed.ask(&bed.bound(), &bed.token(&claims(bonds))).verdict, expected, "{name}");
    }
    let bed = Bed::new(cluster());
    let mut unbound = claims(json!({}));
    unbound.as_object_mut().unwrap().remove("kubernetes.io");
    assert_eq!(bed.ask(&bed.bound(), &bed.token(&unbound)).verdict, "resource name may not be empty");
    assert_eq!(bed.cluster.asked(), [""; 0], "nothing is asked for that cannot be a name");
}

/// An object that is deleted in the cluster, what a token must be bound to for it, and how it is refused.
type Row<'a> = (&'a dyn Fn(&mut Cluster), Value, &'a str);

#[test]
fn what_is_deleted_goes_on_for_a_minute() {
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
        let set = |object: &mut Identity| object.deleted = deleted;
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
            let bed = Bed::new(cluster);
            let said = bed.ask(&bed.bound(), &bed.token(&claims(bonds.clone())));
            assert_eq!(said.verdict, if gone { refusal } else { OK }, "{name}, {bonds}");
        }
    }
}

#[test]
fn clocks_may_be_a_minute_apart() {
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
        // The first one that does not hold is told.
        (json!({"nbf": NOW + 61, "exp": 1, "iat": NOW + 61}), 0, early),
        (json!({"exp": 1, "iat": NOW + 61}), 0, late),
        // What is behind the point does not count.
        (json!({"exp": 1_699_999_939.9}), 0, late),
        (json!({"nbf": 1_700_000_060.9}), 0, OK),
    ];
    for (times, nanoseconds, expected) in cases {
        let mut bed = Bed::new(cluster());
        bed.now += Duration::from_nanos(nanoseconds);
        let token = bed.token(&with(claims(json!({})), times.clone()));
        assert_eq!(bed.ask(&bed.bound(), &token).verdict, expected, "{times} and {nanoseconds} ns");
        let refused = expected != OK;
        assert_eq!(
            bed.cluster.asked().is_empty(),
            refused,
            "{times}: nothing is asked for a token out of its time"
        );
    }
    let mut endless = claims(json!({}));
    endless.as_object_mut().unwrap().remove("exp");
    let bed = Bed::new(cluster());
    assert_eq!(bed.ask(&bed.bound(), &bed.token(&endless)).verdict, OK);
}

#[test]
fn only_what_a_token_is_bound_to_is_looked_at() {
    let all = with(with(secret(), pod()), node());
    let cases = [
        (json!({}), vec!["serviceaccount ns/saname"]),
        (secret(), vec!["serviceaccount ns/saname", "secret ns/secretname"]),
        (node(), vec!["serviceaccount ns/saname", "node nodename"]),
        // The node of a pod is told, not looked at.
        (with(pod(), node()), vec!["serviceaccount ns/saname", "pod ns/podname"]),
        (all, vec!["serviceaccount ns/saname", "secret ns/secretname", "pod ns/podname"]),
    ];
    for (bonds, expected) in cases {
        let bed = Bed::new(cluster());
        assert_eq!(bed.ask(&bed.bound(), &bed.token(&claims(bonds))).verdict, OK);
        assert_eq!(bed.cluster.asked(), expected);
    }
}

#[test]
fn what_cannot_be_asked_for_is_no_bad_token() {
    for (away, bonds) in
        [("serviceaccount", json!({})), ("secret", secret()), ("pod", pod()), ("node", node())]
    {
        let bed = Bed::new(Cluster { away, ..cluster() });
        let said = bed.ask(&bed.bound(), &bed.token(&claims(bonds)));
        assert!(said.verdict.starts_with("unavailable: cannot ask for "), "{away}: {}", said.verdict);
    }
}

/// Keys, what is common to all left out, with their values.
type Extra<'a> = &'a [(&'a str, &'a str)];

#[test]
fn the_identity_is_told_with_its_pod_and_node() {
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
        let bed = Bed::new(cluster());
        let said = bed.ask(&bed.bound(), &bed.token(&with(claims(bonds), changes)));
        let user = said.identity.unwrap_or_else(|| panic!("{}", said.verdict));
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
    // What the token says of its subject names nobody.
    let bed = Bed::new(cluster());
    let token = bed.token(&with(claims(json!({})), json!({"sub": "system:admin"})));
    assert_eq!(bed.ask(&bed.bound(), &token).verdict, OK);
}

#[test]
fn stale_tokens_are_counted_and_told_to_the_audit_log() {
    let stale = "subject: system:serviceaccount:ns:saname, seconds after warning threshold: 5";
    let cases = [
        (json!(NOW - 5), Some(stale), (1, 0)),
        (json!(NOW), None, (0, 1)),
        (json!(NOW + 5), None, (0, 1)),
        (json!(0), None, (0, 0)),
        (json!(null), None, (0, 0)),
    ];
    for (date, expected, counted) in cases {
        let bed = Bed::new(cluster());
        let said = bed.ask(&bed.bound(), &bed.token(&claims(json!({"warnafter": date}))));
        assert_eq!(said.verdict, OK, "{date}");
        let annotation = said.noted.annotations.get("authentication.k8s.io/stale-token");
        assert_eq!(annotation.map(String::as_str), expected, "{date}");
        assert_eq!((bed.counters.stale.get(), bed.counters.valid.get()), counted, "{date}");
    }
}

#[test]
fn pods_are_told_by_name_and_uid_and_nodes_by_name() {
    use super::super::claims::Reference;
    let [pod_name, pod_uid, node_name, node_uid] = ["pod-name", "pod-uid", "node-name", "node-uid"]
        .map(|key| format!("authentication.kubernetes.io/{key}"));
    let reference = |name: &str, uid: &str| Reference { name: name.to_owned(), uid: uid.to_owned() };
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
        assert_eq!(identity::extra("", pod.as_ref(), node.as_ref()), expected, "{pod:?}, {node:?}");
    }
}

/// Answers each question after six seconds.
#[derive(Debug)]
struct Slow(Arc<Cluster>);

impl Slow {
    async fn after<T>(&self, asked: BoxFuture<'_, Found<T>>) -> Found<T> {
        tokio::time::sleep(Duration::from_secs(6)).await;
        asked.await
    }
}

impl Lookup for Slow {
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Found<ServiceAccount>> {
        Box::pin(self.after(self.0.service_account(namespace, name)))
    }
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Found<Secret>> {
        Box::pin(self.after(self.0.secret(namespace, name)))
    }
    fn bootstrap_secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Found<Secret>> {
        Box::pin(self.after(self.0.bootstrap_secret(name)))
    }
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Found<Identity>> {
        Box::pin(self.after(self.0.pod(namespace, name)))
    }
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Found<Identity>> {
        Box::pin(self.after(self.0.node(name)))
    }
    fn label_secret(&self, namespace: &str, name: &str, label: &'static str, value: String) {
        self.0.label_secret(namespace, name, label, value);
    }
}

/// The service account that was found first may be deleted meanwhile.
#[tokio::test(start_paused = true)]
async fn objects_that_take_too_long_together_let_nobody_in() {
    let bed = Bed::new(cluster());
    let grounds = Grounds { lookup: Arc::new(Slow(Arc::clone(&bed.cluster))), ..bed.grounds() };
    let bound = BoundTokens::new(vec!["iss".to_owned()], grounds);
    let late = "unavailable: they were not all looked up within 10s";
    for (bonds, expected, seconds) in [(json!({}), OK, 6), (pod(), late, 10), (secret(), late, 10)] {
        let (token, remarks) = (BearerToken::new(bed.token(&claims(bonds))), Remarks::default());
        let context = TokenContext { audiences: &bed.audiences, now: bed.now, remarks: &remarks };
        let began = tokio::time::Instant::now();
        let verdict = bound.authenticate(&token, context).await;
        assert_eq!((told(&verdict).as_str(), began.elapsed()), (expected, Duration::from_secs(seconds)));
    }
}
