//! `predicates/rules/rules_test.go` of the reference, and equivalence.

use super::super::rules::{matches, operation, resource, scope};
use super::*;

type Predicate = fn(&Rule, &Attributes) -> bool;
type Request = (&'static str, &'static str, &'static str, &'static str);

fn check(predicate: Predicate, name: &str, rule: &Rule, match_: &[Request], no_match: &[Request]) {
    for (expected, requests) in [(true, match_), (false, no_match)] {
        for (group, version, on, subresource) in requests {
            let request = attributes(group, version, on, subresource);
            assert_eq!(predicate(rule, &request), expected, "{name}: {group}/{version} {on}/{subresource}");
        }
    }
}

#[test]
fn groups_match_as_in_the_reference() {
    check(matches, "wildcard", &rule(&["*"], &["*"], &["*"]), &[("g", "v", "r", "")], &[]);
    check(
        matches,
        "exact",
        &rule(&["g1", "g2"], &["*"], &["*"]),
        &[("g1", "v", "r", ""), ("g2", "v2", "r3", "")],
        &[("g3", "v", "r", ""), ("g4", "v", "r", "")],
    );
}

#[test]
fn versions_match_as_in_the_reference() {
    check(matches, "wildcard", &rule(&["*"], &["*"], &["*"]), &[("g", "v", "r", "")], &[]);
    check(
        matches,
        "exact",
        &rule(&["*"], &["v1", "v2"], &["*"]),
        &[("g1", "v1", "r", ""), ("g2", "v2", "r", "")],
        &[("g1", "v3", "r", ""), ("g2", "v4", "r", "")],
    );
}

#[test]
fn operations_match_as_in_the_reference() {
    use Operation::{Connect, Create, Delete, Update};
    type Row = (&'static str, Option<&'static [Operation]>, &'static [Operation], &'static [Operation]);
    const CASES: &[Row] = &[
        ("wildcard", None, &[Create, Update, Delete, Connect], &[]),
        ("create", Some(&[Create]), &[Create], &[Update, Delete, Connect]),
        ("update", Some(&[Update]), &[Update], &[Create, Delete, Connect]),
        ("delete", Some(&[Delete]), &[Delete], &[Create, Update, Connect]),
        ("connect", Some(&[Connect]), &[Connect], &[Create, Update, Delete]),
        ("multiple", Some(&[Update, Delete]), &[Update, Delete], &[Create, Connect]),
    ];
    for (name, operations, match_, no_match) in CASES {
        let rule = Rule { operations: operations.map(<[_]>::to_vec), ..any_rule() };
        for (expected, requested) in [(true, match_), (false, no_match)] {
            for operation_ in *requested {
                let request = Attributes { operation: *operation_, ..attributes("g", "v", "r", "") };
                assert_eq!(operation(&rule, &request), expected, "{name}: {operation_}");
                assert_eq!(matches(&rule, &request), expected, "{name}: {operation_}");
            }
        }
    }
}

#[test]
fn resources_match_as_in_the_reference() {
    let resources = |resources: &[&str]| rule(&["*"], &["*"], resources);
    check(
        resource,
        "no subresources",
        &resources(&["*"]),
        &[("g", "v", "r", ""), ("2", "v", "r2", "")],
        &[("g", "v", "r", "exec"), ("2", "v", "r2", "proxy")],
    );
    check(
        resource,
        "r & subresources",
        &resources(&["r/*"]),
        &[("g", "v", "r", ""), ("g", "v", "r", "exec")],
        &[("2", "v", "r2", ""), ("2", "v", "r2", "proxy")],
    );
    check(
        resource,
        "r & subresources or r2",
        &resources(&["r/*", "r2"]),
        &[("g", "v", "r", ""), ("g", "v", "r", "exec"), ("2", "v", "r2", "")],
        &[("2", "v", "r2", "proxy")],
    );
    check(
        resource,
        "proxy or exec",
        &resources(&["*/proxy", "*/exec"]),
        &[("g", "v", "r", "exec"), ("2", "v", "r2", "proxy"), ("2", "v", "r3", "proxy")],
        &[("g", "v", "r", ""), ("2", "v", "r2", ""), ("2", "v", "r4", "scale")],
    );
    // Not in the reference's table.
    check(resource, "everything", &resources(&["*/*"]), &[("g", "v", "r", ""), ("g", "v", "r", "exec")], &[]);
    check(matches, "both halves in one entry", &resources(&["r/a", "r2/b"]), &[], &[("g", "v", "r", "b")]);
}

#[test]
fn scopes_match_as_in_the_reference() {
    const CLUSTER: &[Request] = &[("g", "v", "r", ""), ("g", "v", "r", "exec")];
    const NAMESPACES: &[Request] = &[("", "v1", "namespaces", ""), ("", "v1", "namespaces", "finalize")];
    let check = |scope_: Scope, namespace: &str, requests: &[Request], expected: bool| {
        let rule = Rule { scope: scope_, ..any_rule() };
        for (group, version, on, subresource) in requests {
            let request =
                Attributes { namespace: namespace.to_owned(), ..attributes(group, version, on, subresource) };
            assert_eq!(
                scope(&rule, &request, group, version),
                expected,
                "{scope_:?} {namespace:?} {on}/{subresource}"
            );
        }
    };
    check(Scope::Cluster, "", CLUSTER, true);
    check(Scope::Cluster, "", NAMESPACES, true);
    check(Scope::Cluster, "ns", NAMESPACES, true);
    check(Scope::Cluster, "ns", CLUSTER, false);
    check(Scope::Namespaced, "ns", CLUSTER, true);
    check(Scope::Namespaced, "", NAMESPACES, false);
    check(Scope::Namespaced, "ns", NAMESPACES, false);
    check(Scope::Namespaced, "", CLUSTER, false);
    for namespace in ["", "ns"] {
        check(Scope::All, namespace, CLUSTER, true);
        check(Scope::All, namespace, NAMESPACES, true);
    }
    // Namespaces of another group or version are not special.
    check(Scope::Namespaced, "ns", &[("g", "v1", "namespaces", ""), ("", "v2", "namespaces", "")], true);
}

/// Serves what is listed: group, resource, subresource, versions.
struct Served(&'static [(&'static str, &'static str, &'static str, &'static [&'static str])]);

impl ServedResources for Served {
    fn versions(&self, group: &str, resource: &str, subresource: &str) -> Option<Vec<String>> {
        let known = self.0.iter().find(|known| (known.0, known.1, known.2) == (group, resource, subresource));
        known.map(|known| strings(known.3))
    }
}

#[test]
fn other_versions_and_groups_of_the_same_objects_may_match() {
    use RuleMatch::{EquivalentOnly, Exact, No};
    type Row =
        (Request, &'static [&'static str], &'static [&'static str], &'static [&'static str], RuleMatch);
    const CASES: &[Row] = &[
        (("g", "v1", "r", ""), &["g"], &["v1"], &["r"], Exact),
        (("g", "v1", "r", ""), &["g"], &["v1beta1"], &["r"], EquivalentOnly),
        (("g", "v1", "r", ""), &["g"], &["v1beta1"], &["*"], EquivalentOnly),
        (("g", "v1", "r", ""), &["*"], &["v1beta1"], &["r"], EquivalentOnly),
        (("g", "v1", "r", ""), &["*"], &["v1beta1"], &["r2"], No),
        (("g", "v1", "r", "s"), &["g"], &["v1beta1"], &["r"], No),
        (("g", "v1", "r", "s"), &["g"], &["v1beta1"], &["r/*"], EquivalentOnly),
        (("g", "v1", "r", ""), &["g2"], &["v1", "v2"], &["r"], No),
        (("g", "v1", "r", ""), &[], &["*"], &["*"], No),
        (("g", "v1", "r", ""), &["*"], &[], &["*"], No),
        // The core group has no other version.
        (("", "v1", "pods", ""), &[""], &["v1beta1"], &["pods"], No),
        (("", "v1", "pods", ""), &["*"], &["v1beta1"], &["*"], No),
        (("", "v1", "namespaces", ""), &[""], &["v2"], &["namespaces"], No),
        // Groups with the same storage.
        (("apps", "v1", "deployments", ""), &["extensions"], &["v1beta1"], &["deployments"], EquivalentOnly),
        (("apps", "v1", "deployments", ""), &["extensions"], &["*"], &["*"], EquivalentOnly),
        (("apps", "v1", "deployments", ""), &["extensions"], &["v1"], &["deployments"], EquivalentOnly),
        (("apps", "v1", "deployments", "scale"), &["extensions"], &["v1"], &["*/scale"], EquivalentOnly),
        (("apps", "v1", "statefulsets", ""), &["extensions"], &["v1"], &["statefulsets"], No),
        (("apps", "v1", "deployments", ""), &["networking.k8s.io"], &["v1"], &["deployments"], No),
        (("extensions", "v1beta1", "daemonsets", ""), &["apps"], &["v1"], &["daemonsets"], EquivalentOnly),
        (("apps", "v1", "replicasets", ""), &["extensions"], &["v1"], &["replicasets"], EquivalentOnly),
        (("", "v1", "events", ""), &["events.k8s.io"], &["v1"], &["events"], EquivalentOnly),
        (("events.k8s.io", "v1", "events", ""), &[""], &["v1"], &["events"], EquivalentOnly),
        (("events.k8s.io", "v1", "events", ""), &[""], &["v1beta1"], &["events"], No),
        (("events.k8s.io", "v1", "events", ""), &["g"], &["v1"], &["events"], No),
        (("g", "v1", "events", ""), &[""], &["v1"], &["events"], No),
        (("networking.k8s.io", "v1", "ingresses", ""), &["extensions"], &["v1"], &["*"], EquivalentOnly),
        (
            ("networking.k8s.io", "v1", "networkpolicies", ""),
            &["extensions"],
            &["v1"],
            &["*"],
            EquivalentOnly,
        ),
        (("", "v1", "replicationcontrollers", ""), &["extensions"], &["v1"], &["*"], EquivalentOnly),
        (("policy", "v1", "podsecuritypolicies", ""), &["extensions"], &["v1"], &["*"], EquivalentOnly),
    ];
    for (request, groups, versions, resources, expected) in CASES {
        let (group, version, on, subresource) = request;
        let request = attributes(group, version, on, subresource);
        let webhook = Webhook {
            match_policy: MatchPolicy::Equivalent,
            ..webhook(vec![rule(groups, versions, resources)])
        };
        assert_eq!(
            rule_match(&webhook, &request, None),
            *expected,
            "{request:?} {groups:?} {versions:?} {resources:?}"
        );
        let exact = Webhook { match_policy: MatchPolicy::Exact, ..webhook };
        let expected = if *expected == Exact { Exact } else { No };
        assert_eq!(rule_match(&exact, &request, None), expected, "{request:?} {groups:?} {versions:?}");
    }
}

#[test]
fn scope_and_operation_count_for_equivalent_resources() {
    let request = attributes("g", "v1", "r", "");
    let with = |rule: Rule| Webhook { match_policy: MatchPolicy::Equivalent, ..webhook(vec![rule]) };
    let other = rule(&["g"], &["v2"], &["r"]);
    assert_eq!(rule_match(&with(other.clone()), &request, None), RuleMatch::EquivalentOnly);
    let cluster = Rule { scope: Scope::Cluster, ..other.clone() };
    assert_eq!(rule_match(&with(cluster), &request, None), RuleMatch::No);
    let delete = Rule { operations: Some(vec![Operation::Delete]), ..other.clone() };
    assert_eq!(rule_match(&with(delete), &request, None), RuleMatch::No);
    // Nothing of two rules is combined.
    let halves = vec![
        Rule { scope: Scope::Cluster, ..other.clone() },
        Rule { operations: Some(vec![Operation::Delete]), ..other },
    ];
    let halves = Webhook { match_policy: MatchPolicy::Equivalent, ..webhook(halves) };
    assert_eq!(rule_match(&halves, &request, None), RuleMatch::No);
}

#[test]
fn only_served_versions_match_if_they_are_known() {
    let served = Served(&[
        ("g", "r", "", &["v1", "v1beta1"]),
        ("g", "r", "s", &["v1"]),
        ("extensions", "deployments", "", &[]),
        ("events.k8s.io", "events", "", &["v1"]),
        ("", "events", "", &["v1"]),
    ]);
    let ask = |request: Request, groups: &[&str], versions: &[&str], resources: &[&str]| {
        let (group, version, on, subresource) = request;
        let webhook = Webhook {
            match_policy: MatchPolicy::Equivalent,
            ..webhook(vec![rule(groups, versions, resources)])
        };
        rule_match(&webhook, &attributes(group, version, on, subresource), Some(&served))
    };
    let main = ("g", "v1", "r", "");
    assert_eq!(ask(main, &["g"], &["v1beta1"], &["r"]), RuleMatch::EquivalentOnly);
    assert_eq!(ask(main, &["g"], &["v1alpha1"], &["r"]), RuleMatch::No);
    assert_eq!(ask(("g", "v1", "r", "s"), &["g"], &["v1beta1"], &["r/s"]), RuleMatch::No);
    let deployments = ("apps", "v1", "deployments", "");
    assert_eq!(ask(deployments, &["extensions"], &["*"], &["deployments"]), RuleMatch::No);
    assert_eq!(ask(deployments, &["apps"], &["v1beta1"], &["deployments"]), RuleMatch::EquivalentOnly);
    let events = ("events.k8s.io", "v1", "events", "");
    assert_eq!(ask(events, &[""], &["v1"], &["events"]), RuleMatch::EquivalentOnly);
    assert_eq!(ask(("", "v1", "events", ""), &[""], &["v1beta1"], &["events"]), RuleMatch::No);
}
