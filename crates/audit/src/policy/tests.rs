use serde_json::json;

use super::*;

fn parse(document: &Value) -> Result<(Policy, Option<String>), Vec<String>> {
    Policy::parse(document).map_err(|error| match error {
        PolicyError::Undecodable(problem, _) => vec![problem],
        PolicyError::Fields(errors) => errors.iter().map(ToString::to_string).collect(),
    })
}

fn with_rules(rules: &Value) -> Value {
    json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules})
}

fn policy(rules: &Value) -> Policy {
    parse(&with_rules(rules)).unwrap().0
}

/// The requests of kube-apiserver's own table.
// apiserver: pkg/audit/policy/checker_test.go
fn attributes(name: &str) -> Attributes<'static> {
    static GROUPS: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new(|| vec!["humans".to_owned()]);
    let user = Some(User { name: "tim@k8s.io", groups: GROUPS.as_slice() });
    let pod = Resource { resource: "pods", namespace: "default", name: "busybox", ..Resource::default() };
    let resource = |resource| Attributes { user, verb: "get", resource: Some(resource), path: "" };
    let path = |verb, path| Attributes { user, verb, resource: None, path };
    match name {
        "namespaced" => resource(pod),
        "cluster" => resource(Resource {
            api_group: "rbac.authorization.k8s.io",
            resource: "clusterroles",
            name: "edit",
            ..Resource::default()
        }),
        "nonResource" => path("get", "/logs/kubelet.log"),
        "Unauthorized" => Attributes { user: None, ..resource(pod) },
        "subresource" => resource(Resource { subresource: "log", ..pod }),
        "metrics" => path("get", "/metrics"),
        other => unreachable!("{other}"),
    }
}

#[test]
fn rules_match_as_those_of_kube_apiserver() {
    let core = |more: Value| json!([{"group": "", "resources": more}]);
    for (rule, matched) in [
        (json!({}), "namespaced cluster nonResource Unauthorized subresource metrics"),
        (json!({"verbs": ["get"]}), "namespaced cluster nonResource Unauthorized subresource metrics"),
        (json!({"verbs": ["create"]}), ""),
        (json!({"users": ["tim@k8s.io"]}), "namespaced cluster nonResource subresource metrics"),
        (json!({"users": ["tim"]}), ""),
        (json!({"userGroups": ["admins", "humans"]}), "namespaced cluster nonResource subresource metrics"),
        (json!({"userGroups": ["admins"]}), ""),
        (json!({"users": ["tim@k8s.io"], "userGroups": ["admins"]}), ""),
        (json!({"resources": [{}]}), "namespaced Unauthorized subresource"),
        (json!({"resources": [{"group": "*"}]}), "namespaced cluster Unauthorized subresource"),
        (json!({"resources": [{"group": "rbac.authorization.k8s.io"}]}), "cluster"),
        (json!({"resources": core(json!(["pods"]))}), "namespaced Unauthorized"),
        (json!({"resources": core(json!(["pods/log"]))}), "subresource"),
        (json!({"resources": core(json!(["pods/*"]))}), "namespaced Unauthorized subresource"),
        (json!({"resources": core(json!(["*/log"]))}), "subresource"),
        (json!({"resources": core(json!(["*/*"]))}), ""),
        (json!({"resources": core(json!(["*"]))}), "namespaced Unauthorized subresource"),
        (json!({"resources": core(json!(["pod", "podss", "pods/logs", "pods/lo", "pods//log"]))}), ""),
        (
            json!({"resources": [{"resources": ["pods"], "resourceNames": ["busybox"]}]}),
            "namespaced Unauthorized",
        ),
        (json!({"resources": [{"resources": ["pods"], "resourceNames": ["other"]}]}), ""),
        (json!({"namespaces": ["default"]}), "namespaced Unauthorized subresource"),
        (json!({"namespaces": [""]}), "cluster"),
        (json!({"namespaces": ["", "default"]}), "namespaced cluster Unauthorized subresource"),
        (json!({"namespaces": ["other"], "resources": [{"group": "*"}]}), ""),
        (json!({"nonResourceURLs": ["/logs*"]}), "nonResource"),
        (json!({"nonResourceURLs": ["/logs/*"]}), "nonResource"),
        (json!({"nonResourceURLs": ["*"]}), "nonResource metrics"),
        (json!({"nonResourceURLs": ["/*"]}), "nonResource metrics"),
        (json!({"nonResourceURLs": ["/metrics"]}), "metrics"),
        (json!({"nonResourceURLs": ["/metric", "/metrics/", "/log"]}), ""),
    ] {
        let mut rule = rule;
        rule["level"] = json!("Request");
        let policy = policy(&json!([rule]));
        for request in ["namespaced", "cluster", "nonResource", "Unauthorized", "subresource", "metrics"] {
            let expected = matched.split(' ').any(|name| name == request);
            let decision = policy.evaluate(&attributes(request));
            assert_eq!(decision.level == Level::Request, expected, "{rule}: {request}");
        }
    }
}

#[test]
fn the_first_rule_decides_and_stages_are_united() {
    let document = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["Panic"], "omitManagedFields": true,
        "rules": [
            {"level": "Metadata", "verbs": ["list"]},
            {"level": "RequestResponse", "users": ["tim@k8s.io"], "omitStages": ["RequestReceived", "Panic"], "omitManagedFields": false},
            {"level": "None"},
        ],
    });
    let (policy, warning) = parse(&document).unwrap();
    assert_eq!(warning, None);
    let of_tim = policy.evaluate(&attributes("namespaced"));
    assert_eq!((of_tim.level, of_tim.omit_managed_fields), (Level::RequestResponse, false));
    assert_eq!(of_tim.omitted.iter().collect::<Vec<_>>(), [Stage::RequestReceived, Stage::Panic]);
    let without_a_user = policy.evaluate(&attributes("Unauthorized"));
    assert_eq!((without_a_user.level, without_a_user.omit_managed_fields), (Level::None, true));
    assert_eq!(without_a_user.omitted.iter().collect::<Vec<_>>(), [Stage::Panic]);
    assert_eq!(policy.rules().len(), 3);
}

#[test]
fn errors_are_those_of_kube_apiserver() {
    for (document, errors) in [
        (json!({"kind": "Policy"}), &["the apiVersion is missing"][..]),
        (
            json!({"kind": "Policy", "apiVersion": "audit.k8s.io/v1beta1", "rules": [{"level": "None"}]}),
            &[r#"failed decoding: no kind "Policy" is registered for version "audit.k8s.io/v1beta1""#],
        ),
        (with_rules(&json!([])), &["loaded illegal policy with 0 rules"]),
        (
            with_rules(&json!([{}, {"level": "Everything"}])),
            &[
                "rules[0].level: Required value",
                r#"rules[1].level: Unsupported value: "Everything": supported values: "None", "Metadata", "Request", "RequestResponse""#,
            ],
        ),
        (
            with_rules(
                &json!([{"level": "None", "nonResourceURLs": ["/a*b", "logs", "*", "/*"], "namespaces": ["a"], "omitStages": ["x"]}]),
            ),
            &[
                r#"rules[0].nonResourceURLs[0]: Invalid value: "/a*b": non-resource URL wildcards '*' must be the final character of the rule"#,
                r#"rules[0].nonResourceURLs[1]: Invalid value: "logs": non-resource URL rules must begin with a '/' character"#,
                r#"rules[0].omitStages[0]: Invalid value: "x": allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic"#,
                r#"rules[0].nonResourceURLs: Invalid value: ["/a*b","logs","*","/*"]: rules cannot apply to both regular resources and non-resource URLs"#,
            ],
        ),
        (
            with_rules(&json!([{"level": "None", "resources": [{"resourceNames": ["a"]}]}])),
            &[
                r#"rules[0].resources.resourceNames: Invalid value: ["a"]: using resourceNames requires at least one resource"#,
            ],
        ),
    ] {
        assert_eq!(parse(&document).map(|_| ()).unwrap_err(), errors, "{document}");
    }
    let group = parse(&with_rules(&json!([{"level": "None", "resources": [{"group": "apps/v1"}]}])));
    assert!(
        group.unwrap_err().concat().starts_with(r#"rules[0].resources.group: Invalid value: "apps/v1": "#)
    );
}

#[test]
fn unknown_fields_are_a_warning() {
    let (policy, warning) = parse(&with_rules(&json!([{"level": "Metadata", "user": ["a"]}]))).unwrap();
    assert_eq!(
        warning.unwrap(),
        r#"Audit policy contains errors, falling back to lenient decoding: strict decoding error: unknown field "rules[0].user""#
    );
    assert_eq!(policy.evaluate(&attributes("metrics")).level, Level::Metadata);
}
