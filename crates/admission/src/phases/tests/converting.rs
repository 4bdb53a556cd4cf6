//! Webhooks whose rules match another version of the resource.

use super::*;

fn mutating(webhook: Webhook) -> Arc<Webhook> {
    Arc::new(Webhook { kind: WebhookKind::Mutating, ..webhook })
}

/// A request for a resource of a group with versions.
fn in_group() -> Attributes {
    let mut attributes = attributes();
    attributes.resource.group = "g".to_owned();
    attributes.kind.group = "g".to_owned();
    attributes
}

fn run_converting(
    surroundings: &FakeSurroundings,
    webhooks: &[Arc<Webhook>],
    objects: &mut Objects,
    conversions: &FakeConversions,
) -> Result<Mutated, (i32, String)> {
    let result = mutate((&[], webhooks), &in_group(), objects, conversions, surroundings).now_or_never();
    result.unwrap().map_err(refusal)
}

fn text(error: &str, requested: &str) -> String {
    format!(
        "Internal error occurred: failed calling webhook \"a\": its rules {error}; give the webhook, or the policy, a rule for {requested}, or \
         \"matchPolicy: Exact\" if it need not see {requested}"
    )
}

#[test]
fn a_webhook_sees_the_version_of_its_rules() {
    let (surroundings, conversions) = (FakeSurroundings::default(), FakeConversions::default());
    let webhooks = [webhook("a", "allow", "v2"), webhook("b", "allow", "*"), webhook("c", "allow", "v2")];
    let webhooks = webhooks.map(Arc::new);
    let mut objects = objects(&[]);
    let before = objects.clone();
    let attributes = in_group();
    let validated = validate((&[], &webhooks), &attributes, &mut objects, &conversions, &surroundings);
    validated.now_or_never().unwrap().unwrap();
    assert_eq!(objects, before);
    assert_eq!(conversions.log(), ["new v1 v2", "old v1 v2"]);
    for (review, version) in surroundings.record().reviews.iter().zip(["v2", "v1", "v2"]) {
        let request = &review["request"];
        assert_eq!(request["kind"]["version"], version);
        assert_eq!(request["resource"]["version"], version);
        assert_eq!(request["object"]["apiVersion"], version);
        assert_eq!(request["oldObject"]["apiVersion"], version);
        assert_eq!(request["requestKind"]["version"], "v1");
        assert_eq!(request["requestResource"]["version"], "v1");
    }
}

#[test]
fn changes_are_converted_to_the_next_webhook_and_back() {
    let (surroundings, conversions) = (FakeSurroundings::default(), FakeConversions::default());
    let again = Webhook { reinvocation_policy: ReinvocationPolicy::IfNeeded, ..webhook("b", "allow", "v2") };
    let webhooks = vec![
        webhook("a", "allow", "v2"),
        again,
        webhook("c", "addLabel", "*"),
        webhook("d", "removeLabel", "v2"),
    ];
    let webhooks: Vec<_> = webhooks.into_iter().map(mutating).collect();
    let mut objects = objects(&["remove"]);
    assert!(run_converting(&surroundings, &webhooks, &mut objects, &conversions).unwrap().changed);
    // The stored object is converted once; what c has changed for d, and what d has changed back.
    assert_eq!(conversions.log(), ["new v1 v2", "old v1 v2", "new v1 v2", "new v2 v1"]);
    let record = surroundings.record();
    assert_eq!(record.calls, ["a", "b", "c", "d", "b"]);
    assert_eq!(record.reviews[3]["request"]["object"]["metadata"]["labels"]["added"], "test");
    assert_eq!(record.reviews[4]["request"]["object"]["apiVersion"], "v2");
    let object = objects.object.unwrap();
    assert_eq!(object["apiVersion"], "v1");
    assert_eq!(object["metadata"]["labels"], json!({"added": "test", "pod.name": "my-pod"}));
}

#[test]
fn what_cannot_be_converted_is_refused_whatever_the_failure_policy_is() {
    let conversions = FakeConversions::default();
    let cases = [
        (
            "v3",
            false,
            "match pod of g/v3 only, and the gateway cannot show it the request for g/v1: it is broken",
        ),
        (
            "v2",
            true,
            "may match another version or group of pod than g/v1 only, and the gateway cannot tell which ones the API server serves",
        ),
    ];
    for (version, silent, error) in cases {
        for failure_policy in [FailurePolicy::Fail, FailurePolicy::Ignore] {
            let surroundings = FakeSurroundings::default();
            let conversions = FakeConversions { silent, ..FakeConversions::default() };
            let webhook = Webhook { failure_policy, ..webhook("a", "allow", version) };
            let expected = (500, text(error, "g/v1").replace("serves;", "serves:"));
            let mut of = objects(&[]);
            let mutated = run_converting(&surroundings, &[mutating(webhook.clone())], &mut of, &conversions);
            assert_eq!(mutated.unwrap_err(), expected);
            let (webhooks, attributes, mut of) = ([Arc::new(webhook)], in_group(), objects(&[]));
            let validated = validate((&[], &webhooks), &attributes, &mut of, &conversions, &surroundings);
            assert_eq!(validated.now_or_never().unwrap().map_err(refusal).unwrap_err(), expected);
            let record = surroundings.record();
            assert!(record.calls.is_empty() && record.failed_open == 0, "{record:?}");
            assert_eq!(record.outcomes, ["Unconverted", "Unconverted"]);
        }
    }
    assert!(conversions.log().is_empty());
}

#[test]
fn a_version_that_is_not_served_does_not_match() {
    let (surroundings, conversions) = (FakeSurroundings::default(), FakeConversions::default());
    let webhooks = [mutating(webhook("a", "disallow", "v9"))];
    run_converting(&surroundings, &webhooks, &mut objects(&[]), &conversions).unwrap();
    assert!(surroundings.record().calls.is_empty() && conversions.log().is_empty());
}

#[test]
fn nothing_is_converted_for_a_shadow_webhook_alone() {
    let (surroundings, conversions) = (FakeSurroundings::default(), FakeConversions::default());
    let alone = Webhook { shadow: true, ..webhook("alone", "allow", "v2") };
    let beside = Webhook { name: "beside".to_owned(), ..alone.clone() };
    let webhooks = [mutating(alone), mutating(webhook("a", "allow", "v2")), mutating(beside)];
    run_converting(&surroundings, &webhooks, &mut objects(&[]), &conversions).unwrap();
    let record = surroundings.record();
    assert!(
        matches!(&record.shadows[0].1, ShadowOutcome::Fail(text) if text.contains("match pod of g/v2 only"))
    );
    assert_eq!(record.shadows[1].1, ShadowOutcome::Allow);
    assert_eq!(conversions.log(), ["new v1 v2", "old v1 v2"]);
}
