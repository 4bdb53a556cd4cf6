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

#[test]
fn other_versions_and_groups_of_the_same_objects_may_match() {
    use RuleMatch::{Exact, No, Possible};
    type Row =
        (Request, &'static [&'static str], &'static [&'static str], &'static [&'static str], RuleMatch);
    const CASES: &[Row] = &[
        (("g", "v1", "r", ""), &["g"], &["v1"], &["r"], Exact),
        (("g", "v1", "r", ""), &["g"], &["v1beta1"], &["r"], Possible),
        (("g", "v1", "r", ""), &["g"], &["v1beta1"], &["*"], Possible),
        (("g", "v1", "r", ""), &["*"], &["v1beta1"], &["r"], Possible),
        (("g", "v1", "r", ""), &["*"], &["v1beta1"], &["r2"], No),
        (("g", "v1", "r", "s"), &["g"], &["v1beta1"], &["r"], No),
        (("g", "v1", "r", "s"), &["g"], &["v1beta1"], &["r/*"], Possible),
        (("g", "v1", "r", ""), &["g2"], &["v1", "v2"], &["r"], No),
        (("g", "v1", "r", ""), &[], &["*"], &["*"], No),
        (("g", "v1", "r", ""), &["*"], &[], &["*"], No),
        // The core group has no other version.
        (("", "v1", "pods", ""), &[""], &["v1beta1"], &["pods"], No),
        (("", "v1", "pods", ""), &["*"], &["v1beta1"], &["*"], No),
        (("", "v1", "namespaces", ""), &[""], &["v2"], &["namespaces"], No),
        // Groups with the same storage.
        (("apps", "v1", "deployments", ""), &["extensions"], &["v1beta1"], &["deployments"], Possible),
        (("apps", "v1", "deployments", ""), &["extensions"], &["*"], &["*"], Possible),
        (("apps", "v1", "deployments", ""), &["extensions"], &["v1"], &["deployments"], Possible),
        (("apps", "v1", "deployments", "scale"), &["extensions"], &["v1"], &["*/scale"], Possible),
        (("apps", "v1", "statefulsets", ""), &["extensions"], &["v1"], &["statefulsets"], No),
        (("apps", "v1", "deployments", ""), &["networking.k8s.io"], &["v1"], &["deployments"], No),
        (("extensions", "v1beta1", "daemonsets", ""), &["apps"], &["v1"], &["daemonsets"], Possible),
        (("apps", "v1", "replicasets", ""), &["extensions"], &["v1"], &["replicasets"], Possible),
        (("", "v1", "events", ""), &["events.k8s.io"], &["v1"], &["events"], Possible),
        (("events.k8s.io", "v1", "events", ""), &[""], &["v1"], &["events"], Possible),
        (("events.k8s.io", "v1", "events", ""), &[""], &["v1beta1"], &["events"], No),
        (("events.k8s.io", "v1", "events", ""), &["g"], &["v1"], &["events"], No),
        (("g", "v1", "events", ""), &[""], &["v1"], &["events"], No),
        (("networking.k8s.io", "v1", "ingresses", ""), &["extensions"], &["v1"], &["*"], Possible),
        (("networking.k8s.io", "v1", "networkpolicies", ""), &["extensions"], &["v1"], &["*"], Possible),
        (("", "v1", "replicationcontrollers", ""), &["extensions"], &["v1"], &["*"], Possible),
        (("policy", "v1", "podsecuritypolicies", ""), &["extensions"], &["v1"], &["*"], Possible),
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
    assert_eq!(rule_match(&with(other.clone()), &request, None), RuleMatch::Possible);
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

/// What the API server serves: group, version, resource.
fn served(resources: &[(&str, &str, &str)]) -> Vec<Arc<ServedResource>> {
    resources
        .iter()
        .map(|(group, version, on)| Arc::new(attributes(group, version, on, "").requested()))
        .collect()
}

#[test]
fn only_served_resources_match_if_they_are_known() {
    type Row<'a> =
        (Request, &'a [(&'a str, &'a str)], &'a [&'a str], &'a [&'a str], Option<(&'a str, &'a str)>);
    let (main, events) = (("g", "v1", "r", ""), ("events.k8s.io", "v1", "events", ""));
    let cases: &[Row<'_>] = &[
        (main, &[("g", "v1"), ("g", "v2")], &["g"], &["v2"], Some(("g", "v2"))),
        (main, &[("g", "v1"), ("g", "v2")], &["g"], &["v3"], None),
        (main, &[("g", "v1")], &["g"], &["v2"], None),
        (main, &[], &["g"], &["v2"], None),
        // Of several, the first one that is served.
        (main, &[("g", "v1"), ("g", "v3"), ("g", "v2")], &["g"], &["v2", "v3"], Some(("g", "v3"))),
        (events, &[("events.k8s.io", "v1"), ("", "v1")], &[""], &["v1"], Some(("", "v1"))),
        (events, &[("events.k8s.io", "v1"), ("", "v1")], &["", "x"], &["*"], Some(("", "v1"))),
        (("apps", "v1", "deployments", ""), &[("apps", "v1")], &["extensions"], &["*"], None),
    ];
    for (request, served_at, groups, versions, expected) in cases {
        let (group, version, on, subresource) = request;
        let known: Vec<_> = served_at.iter().map(|(group, version)| (*group, *version, *on)).collect();
        let webhook = Webhook {
            match_policy: MatchPolicy::Equivalent,
            ..webhook(vec![rule(groups, versions, &["*"])])
        };
        let found = rule_match(&webhook, &attributes(group, version, on, subresource), Some(&served(&known)));
        let expected = match expected {
            Some((group, version)) => RuleMatch::Equivalent(Arc::clone(&served(&[(group, version, on)])[0])),
            None => RuleMatch::No,
        };
        assert_eq!(found, expected, "{request:?} {served_at:?} {groups:?} {versions:?}");
    }
}

#[test]
fn earlier_rules_are_honored_first() {
    let known = served(&[("g", "v1", "r"), ("g", "v2", "r"), ("g", "v3", "r")]);
    let rules = vec![rule(&["g"], &["v3"], &["r"]), rule(&["g"], &["v2"], &["r"])];
    let webhook = Webhook { match_policy: MatchPolicy::Equivalent, ..webhook(rules) };
    let request = attributes("g", "v1", "r", "");
    assert_eq!(rule_match(&webhook, &request, Some(&known)), RuleMatch::Equivalent(Arc::clone(&known[2])));
    // A rule for the resource as requested is before all of them.
    let exact =
        Webhook { rules: [webhook.rules.clone(), vec![rule(&["*"], &["v1"], &["r"])]].concat(), ..webhook };
    assert_eq!(rule_match(&exact, &request, Some(&known)), RuleMatch::Exact);
}
