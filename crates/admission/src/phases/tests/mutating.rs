use super::*;

fn mutated(name: &str, changed: bool) -> String {
    format!(r#"{{"configuration":"test-webhooks","webhook":"{name}","mutated":{changed}}}"#)
}

fn patched(name: &str, patch: &str) -> String {
    format!(
        r#"{{"configuration":"test-webhooks","webhook":"{name}","patch":{patch},"patchType":"JSONPatch"}}"#
    )
}

const REMOVE: &str = r#"[{"op":"remove","path":"/metadata/labels/remove"}]"#;
const ADD: &str = r#"[{"op":"add","path":"/metadata/labels/added","value":"test"}]"#;

/// Name, webhooks, labels of the object, its labels afterwards or code and text, annotations.
type PatchCase<'a> =
    (&'a str, Vec<Webhook>, &'a [&'a str], Result<&'a [&'a str], (i32, &'a str)>, Vec<(String, String)>);

/// Name, webhooks, labels of the object, calls.
type ReinvocationCase<'a> = (&'a str, Vec<Webhook>, &'a [&'a str], &'a [&'a str]);

fn if_needed(name: &str, path: &str) -> Webhook {
    Webhook { reinvocation_policy: ReinvocationPolicy::IfNeeded, ..webhook(name, path, "*") }
}

fn labels(objects: &Objects) -> Vec<&str> {
    let labels = objects.object.as_ref().unwrap()["metadata"]["labels"].as_object().unwrap();
    labels.keys().map(String::as_str).collect()
}

#[test]
fn requests_without_patches_are_decided_as_upstream_decides_them() {
    for (name, webhooks, code, text, keys, failed_open) in non_mutating_rows() {
        let surroundings = FakeSurroundings::default();
        let mut objects = objects(&[]);
        match run_mutating(&surroundings, webhooks.clone(), &mut objects) {
            Ok(mutated) => assert!(code == 0 && !mutated.changed, "{name}"),
            Err((found, message)) => {
                assert!(found == code && message.contains(text), "{name}: {found} {message}");
            }
        }
        let mut expected: BTreeMap<_, _> =
            keys.iter().map(|key| ((*key).to_owned(), "value1".to_owned())).collect();
        for index in failed_open {
            let key = format!("failed-open.mutation.webhook.admission.k8s.io/round_0_index_{index}");
            expected.insert(key, webhooks[*index].name.clone());
        }
        // A webhook that refuses the request is the last one.
        let called = surroundings.record().calls.len();
        assert!(code == 0 || called == 1, "{name}");
        for (index, webhook) in webhooks.iter().enumerate().take(called) {
            let key = format!("mutation.webhook.admission.k8s.io/round_0_index_{index}");
            expected.insert(key, mutated(&webhook.name, false));
        }
        assert_eq!(surroundings.record().annotations, expected, "{name}");
    }
}

#[test]
fn patches_are_applied_and_annotated_as_upstream_does() {
    const MUTATION: &str = "mutation.webhook.admission.k8s.io/round_0_index_";
    const PATCH: &str = "patch.webhook.admission.k8s.io/round_0_index_";
    let remove = || webhook("removelabel.example.com", "removeLabel", "*");
    let key1 = || ("removelabel.example.com/key1".to_owned(), "value1".to_owned());
    let mutation = |index: usize, name, changed| (format!("{MUTATION}{index}"), mutated(name, changed));
    let patch = |index: usize, name, text| (format!("{PATCH}{index}"), patched(name, text));
    let cases: Vec<PatchCase<'_>> = vec![
        (
            "match & remove label",
            vec![remove()],
            &["remove"],
            Ok(&["pod.name"]),
            vec![
                key1(),
                mutation(0, "removelabel.example.com", true),
                patch(0, "removelabel.example.com", REMOVE),
            ],
        ),
        (
            "match & add label",
            vec![webhook("addLabel", "addLabel", "*")],
            &[],
            Ok(&["added", "pod.name"]),
            vec![mutation(0, "addLabel", true), patch(0, "addLabel", ADD)],
        ),
        (
            "match & invalid mutation",
            vec![webhook("invalidMutation", "invalidMutation", "*")],
            &[],
            Err((500, "invalid character '}' looking for beginning of value")),
            vec![mutation(0, "invalidMutation", false)],
        ),
        (
            "match & invalid patch",
            vec![webhook("invalidPatch", "invalidPatch", "*")],
            &[],
            Err((500, "received undecodable patch in webhook response: unexpected end of JSON input")),
            vec![mutation(0, "invalidPatch", false)],
        ),
        (
            "match & invalid patch fail open",
            vec![ignored("invalidPatch", "invalidPatch")],
            &[],
            Ok(&["pod.name"]),
            vec![
                (
                    "failed-open.mutation.webhook.admission.k8s.io/round_0_index_0".into(),
                    "invalidPatch".into(),
                ),
                mutation(0, "invalidPatch", false),
            ],
        ),
        (
            "first webhook remove labels, second webhook shouldn't be called",
            vec![remove(), webhook("shouldNotBeCalled", "shouldNotBeCalled", "remove")],
            &["remove"],
            Ok(&["pod.name"]),
            vec![
                key1(),
                mutation(0, "removelabel.example.com", true),
                patch(0, "removelabel.example.com", REMOVE),
            ],
        ),
        (
            "match & never reinvoke policy",
            vec![webhook("addLabel", "addLabel", "*")],
            &[],
            Ok(&["added", "pod.name"]),
            vec![mutation(0, "addLabel", true), patch(0, "addLabel", ADD)],
        ),
        (
            "match & no reinvoke",
            vec![webhook("noop", "noop", "*")],
            &[],
            Ok(&["pod.name"]),
            vec![mutation(0, "noop", false)],
        ),
        (
            "a patch that does not apply is not a failure of the call",
            vec![ignored("noMatch", "noMatch")],
            &[],
            Err((500, "Internal error occurred: testing value /metadata/name failed: test failed")),
            vec![mutation(0, "noMatch", false)],
        ),
        (
            "a patch of the kind",
            vec![ignored("kind", "kind")],
            &[],
            Err((500, "changes the apiVersion or the kind")),
            vec![mutation(0, "kind", false)],
        ),
        (
            "an empty patch",
            vec![webhook("a", "emptyPatch", "*")],
            &[],
            Ok(&["pod.name"]),
            vec![mutation(0, "a", false)],
        ),
    ];
    for (name, webhooks, with, expected, annotations) in cases {
        let surroundings = FakeSurroundings::default();
        let mut objects = objects(with);
        match (run_mutating(&surroundings, webhooks, &mut objects), expected) {
            (Ok(mutated), Ok(expected)) => {
                assert_eq!(labels(&objects), expected, "{name}");
                let changed = annotations.iter().any(|(_, value)| value.ends_with("\"mutated\":true}"));
                assert_eq!(mutated.changed, changed, "{name}");
            }
            (Err((code, message)), Err((expected, text))) => {
                assert!(code == expected && message.contains(text), "{name}: {code} {message}");
            }
            (found, _) => panic!("{name}: {found:?}"),
        }
        assert_eq!(surroundings.record().annotations, annotations.into_iter().collect(), "{name}");
    }
}

/// The calls of both rounds.
#[test]
fn webhooks_are_called_again_after_a_later_change() {
    let add = |name: &str| if_needed(name, "addLabel");
    let cases: Vec<ReinvocationCase<'_>> = vec![
        ("its own change", vec![add("a")], &[], &["a"]),
        ("a later change", vec![add("a"), if_needed("b", "removeLabel")], &["remove"], &["a", "b", "a"]),
        (
            "a policy of Never",
            vec![webhook("a", "addLabel", "*"), if_needed("b", "removeLabel")],
            &["remove"],
            &["a", "b"],
        ),
        ("an earlier change", vec![add("a"), if_needed("b", "noop")], &[], &["a", "b"]),
        (
            "a patch that changes nothing",
            vec![if_needed("a", "noop"), add("b"), if_needed("c", "same")],
            &[],
            &["a", "b", "c", "a"],
        ),
        (
            "skipped in the first round",
            vec![
                Webhook {
                    reinvocation_policy: ReinvocationPolicy::IfNeeded,
                    ..webhook("a", "noop", "added")
                },
                add("b"),
            ],
            &[],
            &["b"],
        ),
        (
            "no third round",
            vec![if_needed("a", "addLabel"), if_needed("b", "noop"), if_needed("c", "removeLabel")],
            &["remove"],
            &["a", "b", "c", "a", "b"],
        ),
        (
            "failed open",
            vec![
                Webhook { reinvocation_policy: ReinvocationPolicy::IfNeeded, ..ignored("a", "internalErr") },
                add("b"),
            ],
            &[],
            &["a", "b", "a"],
        ),
    ];
    for (name, webhooks, with, expected) in cases {
        let surroundings = FakeSurroundings::default();
        run_mutating(&surroundings, webhooks, &mut objects(with)).unwrap();
        assert_eq!(surroundings.record().calls, expected, "{name}");
    }
}

#[test]
fn a_webhook_sees_the_object_as_the_ones_before_have_left_it() {
    let surroundings = FakeSurroundings::default();
    let webhooks = vec![webhook("a", "addLabel", "*"), webhook("b", "noop", "added")];
    run_mutating(&surroundings, webhooks, &mut objects(&[])).unwrap();
    let record = surroundings.record();
    assert_eq!(record.reviews[1]["request"]["object"]["metadata"]["labels"]["added"], "test");
    assert_eq!(record.reviews[1]["request"]["oldObject"]["metadata"]["labels"]["added"], Value::Null);
}

#[test]
fn an_object_that_is_not_there_cannot_be_changed() {
    let surroundings = FakeSurroundings::default();
    let mut objects = Objects { object: None, ..objects(&[]) };
    let refusal = run_mutating(&surroundings, vec![ignored("a", "addLabel")], &mut objects).unwrap_err();
    let text = "Internal error occurred: admission webhook \"a\" attempted to modify the object, which is not supported for this operation";
    assert_eq!(refusal, (500, text.to_owned()));
}

#[test]
fn a_failed_call_of_a_late_request_is_a_timeout() {
    for webhook in [webhook("a", "internalErr", "*"), ignored("a", "internalErr")] {
        let surroundings = FakeSurroundings { late: true, ..FakeSurroundings::default() };
        assert_eq!(run_mutating(&surroundings, vec![webhook], &mut objects(&[])).unwrap_err().0, 504);
    }
}

#[test]
fn a_cancelled_request_is_no_failure_of_the_webhook() {
    let surroundings = FakeSurroundings::default();
    let webhooks = [Arc::new(webhook("a", "never", "*"))];
    let (attributes, mut objects) = (attributes(), objects(&[]));
    let conversions = FakeConversions::default();
    let result =
        mutate((&[], &webhooks), &attributes, &mut objects, &conversions, &surroundings).now_or_never();
    assert!(result.is_none());
    assert_eq!(surroundings.record().outcomes, ["Cancelled"]);
}

#[test]
fn shadow_webhooks_see_the_object_of_their_turn_and_change_nothing() {
    let surroundings = FakeSurroundings::default();
    let with_dry_run = Webhook { side_effects: SideEffects::NoneOnDryRun, ..shadow("early", "addLabel") };
    let webhooks = vec![
        with_dry_run,
        webhook("real", "addLabel", "*"),
        shadow("late", "addLabel"),
        shadow("denies", "disallow"),
    ];
    let mut objects = objects(&[]);
    assert!(run_mutating(&surroundings, webhooks, &mut objects).unwrap().changed);
    let record = surroundings.record();
    assert_eq!(record.calls, ["real", "early", "late", "denies"]);
    assert_eq!(record.shadows[0], ("early".to_owned(), ShadowOutcome::Change));
    assert_eq!(record.shadows[1], ("late".to_owned(), ShadowOutcome::Allow));
    assert!(matches!(record.shadows[2].1, ShadowOutcome::Deny(_)));
    let dry_runs: Vec<_> = record.reviews.iter().map(|review| &review["request"]["dryRun"]).collect();
    assert_eq!(dry_runs, [false, true, false, false]);
    assert_eq!(record.reviews[1]["request"]["object"]["metadata"]["labels"]["added"], Value::Null);
}
