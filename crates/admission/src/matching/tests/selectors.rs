//! Label selectors: `pkg/labels/selector_test.go` and `pkg/apis/meta/v1/helpers_test.go` of apimachinery, as far as they are
//! about objects, and `predicates/object/matcher_test.go`, `predicates/namespace/matcher_test.go` of the reference.

use super::*;

fn error(wire: Value) -> String {
    let wire: WireSelector = serde_json::from_value(wire).unwrap();
    LabelSelector::new(&wire).unwrap_err().to_string()
}

fn labels(wire: Value) -> BTreeMap<String, String> {
    serde_json::from_value(wire).unwrap()
}

#[test]
fn requirements_match_as_in_the_reference() {
    let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "k", "operator": operator, "values": values}]});
    // Selector; labels that match; labels that do not.
    let cases = [
        (json!({}), vec![json!({}), json!({"k": "v"})], vec![]),
        (json!({"matchLabels": {}, "matchExpressions": []}), vec![json!({})], vec![]),
        (
            json!({"matchLabels": {"k": "v"}}),
            vec![json!({"k": "v"}), json!({"k": "v", "x": "y"})],
            vec![json!({}), json!({"k": "w"}), json!({"x": "v"})],
        ),
        (json!({"matchLabels": {"k": ""}}), vec![json!({"k": ""})], vec![json!({}), json!({"k": "v"})]),
        (
            expression("In", json!(["z", "b", "a"])),
            vec![json!({"k": "a"}), json!({"k": "b"}), json!({"k": "z"})],
            vec![json!({}), json!({"k": "c"}), json!({"k": ""})],
        ),
        (
            expression("NotIn", json!(["z", "b", "a"])),
            vec![json!({}), json!({"k": "c"}), json!({"k": ""}), json!({"x": "a"})],
            vec![json!({"k": "a"}), json!({"k": "b"}), json!({"k": "z"})],
        ),
        (expression("Exists", json!([])), vec![json!({"k": ""}), json!({"k": "v"})], vec![json!({"x": "k"})]),
        (expression("DoesNotExist", json!(null)), vec![json!({}), json!({"x": "k"})], vec![json!({"k": ""})]),
        // All requirements must match, also several of one key.
        (
            json!({"matchLabels": {"k": "a"}, "matchExpressions": [
                {"key": "k", "operator": "In", "values": ["a", "b"]},
                {"key": "x", "operator": "DoesNotExist"}]}),
            vec![json!({"k": "a"})],
            vec![json!({"k": "b"}), json!({"k": "a", "x": ""})],
        ),
    ];
    for (wire, match_, no_match) in cases {
        let compiled = selector(wire.clone());
        for (expected, all) in [(true, match_), (false, no_match)] {
            for each in all {
                assert_eq!(compiled.matches(&labels(each.clone())), expected, "{wire} {each}");
            }
        }
    }
    assert!(selector(json!({"matchLabels": {}})).is_empty());
    assert!(!selector(expression("DoesNotExist", json!([]))).is_empty());
}

#[test]
fn invalid_selectors_have_the_errors_of_the_reference() {
    let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    let name = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let cases = [
        (expression("k", "in", json!(["a"])), "\"in\" is not a valid label selector operator".to_owned()),
        (expression("k", "", json!([])), "\"\" is not a valid label selector operator".to_owned()),
        (
            expression("k", "In", json!([])),
            "values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty".to_owned(),
        ),
        (
            expression("k", "Exists", json!(["a"])),
            "values: Invalid value: [\"a\"]: values set must be empty for exists and does not exist".to_owned(),
        ),
        (
            expression("", "Exists", json!([])),
            format!("key: Invalid value: \"\": name part must be non-empty; name part {name}"),
        ),
        (
            expression("a/b/c", "Exists", json!([])),
            format!(
                "key: Invalid value: \"a/b/c\": a valid label key {name} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ),
        ),
        (
            expression("/b", "Exists", json!([])),
            "key: Invalid value: \"/b\": prefix part must be non-empty".to_owned(),
        ),
        (
            expression(&"x".repeat(64), "Exists", json!([])),
            format!("key: Invalid value: \"{}\": name part must be no more than 63 bytes", "x".repeat(64)),
        ),
        (
            json!({"matchLabels": {"k": "-"}}),
            "values[0][k]: Invalid value: \"-\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')".to_owned(),
        ),
        (
            expression("-", "Exists", json!(["<"])),
            format!("[key: Invalid value: \"-\": name part {name}, values: Invalid value: [\"\\u003c\"]: values set must be empty for exists and does not exist, values[0][-]: Invalid value: \"<\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')]"),
        ),
    ];
    for (wire, expected) in cases {
        assert_eq!(error(wire.clone()), expected, "{wire}");
    }
    let valid = ["k", "K.x_y-9", "example.com/k", "a-b.c1/K"];
    for key in valid {
        selector(expression(key, "Exists", json!([])));
    }
    let invalid = ["Example.com/k", "-a.com/k", "a..b/k", "a_b/k", "k-", ".k", "k k", "ä", "a/"];
    for key in invalid {
        error(expression(key, "Exists", json!([])));
    }
    error(expression(&format!("{}/k", "a".repeat(254)), "Exists", json!([])));
    selector(expression(&format!("{}/k", "a".repeat(253)), "Exists", json!([])));
    error(json!({"matchLabels": {"k": "v".repeat(64)}}));
    selector(json!({"matchLabels": {"k": "v".repeat(63)}}));
}

/// A webhook for everything, with this `objectSelector`.
fn with_object_selector(wire: Value) -> Webhook {
    Webhook { object_selector: selector(wire), ..webhook(vec![any_rule()]) }
}

#[test]
fn object_selectors_match_as_in_the_reference() {
    let excluder = json!({"matchExpressions": [{"key": "runlevel", "operator": "NotIn", "values": ["1"]}]});
    let node = |level: &str| Some(json!({"metadata": {"labels": {"runlevel": level}}}));
    // The reference's table has `CREATE` for the options of a connection, which only `CONNECT` requests have.
    let options = Some(json!({"kind": "NodeProxyOptions", "apiVersion": "v1"}));
    let cases = [
        ("empty object selector matches everything", json!({}), None, None, Operation::Create, true),
        ("matches new object", excluder.clone(), node("2"), None, Operation::Create, true),
        ("matches old object", excluder.clone(), None, node("2"), Operation::Delete, true),
        ("does not match new object", excluder.clone(), node("1"), None, Operation::Create, false),
        ("does not match old object", excluder.clone(), None, node("1"), Operation::Create, false),
        (
            "does not match object that does not implement Object interface",
            excluder.clone(),
            options.clone(),
            None,
            Operation::Connect,
            false,
        ),
        (
            "empty selector matches everything, including object that does not implement Object interface",
            json!({}),
            options,
            None,
            Operation::Connect,
            true,
        ),
        // Not in the reference's table.
        ("no object at all", excluder.clone(), None, None, Operation::Create, false),
        ("matches one of both", excluder.clone(), node("1"), node("2"), Operation::Update, true),
        ("metadata omitted", excluder.clone(), Some(json!({"spec": {}})), None, Operation::Create, true),
        ("metadata null", excluder.clone(), Some(json!({"metadata": null})), None, Operation::Create, true),
        (
            "labels null",
            json!({"matchLabels": {"runlevel": "1"}}),
            Some(json!({"metadata": {"labels": null}})),
            None,
            Operation::Create,
            false,
        ),
        (
            "a label that is null is the empty string",
            json!({"matchLabels": {"runlevel": ""}}),
            Some(json!({"metadata": {"labels": {"runlevel": null}}})),
            None,
            Operation::Create,
            true,
        ),
    ];
    for (name, wire, object, old_object, operation, expected) in cases {
        let request = Attributes {
            operation,
            namespace: String::new(),
            ..attributes("", "v1", "nodes", if operation == Operation::Connect { "proxy" } else { "" })
        };
        let webhook = Webhook { rules: vec![rule(&["*"], &["*"], &["*/*"])], ..with_object_selector(wire) };
        let verdict =
            should_call(&webhook, &request, &Objects { object, old_object }, &Fake::default()).unwrap();
        assert_eq!(verdict == Verdict::Call, expected, "{name}");
    }
}

#[test]
fn labels_of_wrong_types_do_not_avoid_a_webhook() {
    let invalid = [
        json!({"metadata": {"labels": {"a": 1, "runlevel": "1"}}}),
        json!({"metadata": {"labels": ["runlevel"]}}),
        json!({"metadata": "runlevel"}),
        json!([]),
    ];
    for object in invalid {
        for wire in [
            json!({"matchLabels": {"b": "c"}}),
            json!({"matchExpressions": [{"key": "runlevel", "operator": "DoesNotExist"}]}),
        ] {
            let objects = Objects { object: Some(object.clone()), old_object: None };
            let webhook = with_object_selector(wire);
            let verdict =
                should_call(&webhook, &attributes("", "v1", "pods", ""), &objects, &Fake::default());
            assert_eq!(verdict.unwrap(), Verdict::Call, "{object}");
        }
    }
}

fn namespaces() -> Fake {
    Fake {
        namespaces: HashMap::from([("1", json!({"runlevel": "1"})), ("none", json!({}))]),
        ..Fake::default()
    }
}

#[test]
fn namespace_labels_are_those_of_the_reference() {
    let namespace_2 = Some(json!({"metadata": {"name": "2", "labels": {"runlevel": "2"}}}));
    let cases = [
        (
            "creating namespace: from the object itself",
            namespace_2.clone(),
            "",
            "namespaces",
            "",
            Operation::Create,
            "2",
        ),
        (
            "updating namespace: from the new object",
            namespace_2.clone(),
            "2",
            "namespaces",
            "",
            Operation::Update,
            "2",
        ),
        ("deleting namespace: from the cache", namespace_2, "1", "namespaces", "", Operation::Delete, "1"),
        ("namespace/finalizer", None, "1", "namespaces", "finalizers", Operation::Create, "1"),
        ("pod", None, "1", "pods", "", Operation::Create, "1"),
    ];
    for (name, object, namespace, resource, subresource, operation, expected) in cases {
        let request = Attributes {
            operation,
            namespace: namespace.to_owned(),
            ..attributes("", "v1", resource, subresource)
        };
        let objects = Objects { object, old_object: None };
        for level in ["1", "2"] {
            let fake = namespaces();
            let webhook = Webhook {
                namespace_selector: selector(json!({"matchLabels": {"runlevel": level}})),
                ..webhook(vec![rule(&["*"], &["*"], &["*/*"])])
            };
            let verdict = should_call(&webhook, &request, &objects, &fake).unwrap();
            assert_eq!(verdict == Verdict::Call, level == expected, "{name}: {level}");
            let reads = if expected == "1" { vec!["namespace 1".to_owned()] } else { vec![] };
            assert_eq!(fake.log(), reads, "{name}");
        }
    }
}

#[test]
fn cluster_scoped_resources_are_not_exempt() {
    let request = Attributes { namespace: String::new(), ..attributes("", "v1", "nodes", "") };
    let strict = selector(json!({"matchLabels": {"a": "b"}}));
    for namespace_selector in [LabelSelector::default(), strict] {
        let webhook = Webhook { namespace_selector, ..webhook(vec![any_rule()]) };
        let fake = Fake::default();
        let verdict = should_call(&webhook, &request, &Objects::default(), &fake).unwrap();
        assert_eq!(verdict, Verdict::Call);
        assert!(fake.log().is_empty());
    }
}

/// The resource name decides, whatever its group.
#[test]
fn namespaces_of_other_groups_have_the_labels_of_the_object() {
    let webhook = Webhook {
        namespace_selector: selector(json!({"matchLabels": {"a": "b"}})),
        ..webhook(vec![any_rule()])
    };
    let request = attributes("g", "v1", "namespaces", "");
    let objects = |value: &str| Objects {
        object: Some(json!({"metadata": {"labels": {"a": value}}})),
        old_object: None,
    };
    assert_eq!(should_call(&webhook, &request, &objects("b"), &Fake::default()).unwrap(), Verdict::Call);
    assert_eq!(should_call(&webhook, &request, &objects("c"), &Fake::default()).unwrap(), Verdict::Skip);
    let delete = Attributes { operation: Operation::Delete, namespace: String::new(), ..request.clone() };
    let error = should_call(&webhook, &delete, &Objects::default(), &Fake::default()).unwrap_err();
    assert_eq!(error.message.unwrap(), "Internal error occurred: resource name may not be empty");
    let error = should_call(&webhook, &request, &Objects::default(), &Fake::default()).unwrap_err();
    assert_eq!(
        error.message.unwrap(),
        "Internal error occurred: object does not implement the Object interfaces"
    );
    assert_eq!((error.code, error.reason.as_deref()), (Some(500), Some("InternalError")));
}

#[test]
fn namespaces_are_read_once_and_errors_count_only_for_webhooks_that_match() {
    let fake = namespaces();
    let request = Attributes { namespace: "absent".to_owned(), ..attributes("", "v1", "pods", "") };
    let objects = Objects { object: Some(json!({"metadata": {"labels": {"a": "b"}}})), old_object: None };
    let objects = shared(&objects);
    let matcher = RequestMatcher::new(&request, &NoConversions);
    let of = |resource: &str, object_selector: Value| Webhook {
        namespace_selector: selector(json!({"matchLabels": {"runlevel": "1"}})),
        object_selector: selector(object_selector),
        ..webhook(vec![rule(&["*"], &["*"], &[resource])])
    };
    let other_rule = of("secrets", json!({}));
    assert_eq!(verdict(&matcher, &other_rule, &objects, &fake).unwrap(), Verdict::Skip);
    let other_object = of("pods", json!({"matchLabels": {"a": "c"}}));
    assert_eq!(verdict(&matcher, &other_object, &objects, &fake).unwrap(), Verdict::Skip);
    assert!(fake.log().is_empty());
    for _ in 0..2 {
        let error = verdict(&matcher, &of("pods", json!({})), &objects, &fake).unwrap_err();
        assert_eq!(
            (error.code, error.message.as_deref()),
            (Some(404), Some("namespaces \"absent\" not found"))
        );
    }
    assert_eq!(fake.log(), ["namespace absent"]);

    let request = Attributes { namespace: "1".to_owned(), ..request };
    let matcher = RequestMatcher::new(&request, &NoConversions);
    for _ in 0..2 {
        assert_eq!(verdict(&matcher, &of("pods", json!({})), &objects, &fake).unwrap(), Verdict::Call);
    }
    assert_eq!(fake.log(), ["namespace 1"]);
}
