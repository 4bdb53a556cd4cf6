use super::*;

#[test]
fn requests_are_decided_as_upstream_decides_them() {
    for (name, webhooks, code, text, keys, failed_open) in non_mutating_rows() {
        let surroundings = FakeSurroundings::default();
        let failed_open = failed_open.iter().map(|index| {
            let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
            (key, webhooks[*index].name.clone())
        });
        let expected: BTreeMap<_, _> =
            keys.iter().map(|key| ((*key).to_owned(), "value1".to_owned())).chain(failed_open).collect();
        match run_validating(&surroundings, webhooks.clone()) {
            Ok(()) => assert_eq!(code, 0, "{name}"),
            Err((found, message)) => {
                assert!(found == code && message.contains(text), "{name}: {found} {message}");
            }
        }
        let record = surroundings.record();
        assert_eq!(record.annotations, expected, "{name}");
        assert_eq!(record.outcomes.len(), record.calls.len(), "{name}");
    }
}

#[test]
fn all_webhooks_are_called_and_their_warnings_kept() {
    let surroundings = FakeSurroundings::default();
    let webhooks =
        vec![webhook("a", "disallow", "*"), webhook("b", "internalErr", "*"), webhook("c", "allow", "*")];
    let refusal = run_validating(&surroundings, webhooks).unwrap_err();
    assert_eq!(refusal, (403, "admission webhook \"a\" denied the request without explanation".to_owned()));
    let record = surroundings.record();
    assert_eq!(record.calls, ["a", "b", "c"]);
    assert_eq!(record.outcomes, ["Denied(403)", "Failed(500)", "Allowed"]);
    assert_eq!(record.warnings, ["careful"]);
}

#[test]
fn indices_count_the_webhooks_that_match() {
    let surroundings = FakeSurroundings::default();
    let webhooks = vec![webhook("a", "allow", ""), shadow("b", "allow"), ignored("c", "internalErr")];
    run_validating(&surroundings, webhooks).unwrap();
    let record = surroundings.record();
    let keys: Vec<_> = record.annotations.keys().collect();
    assert_eq!(keys, ["failed-open.validating.webhook.admission.k8s.io/round_0_index_0"]);
}

#[test]
fn a_late_request_calls_no_webhook() {
    let surroundings = FakeSurroundings { late: true, ..FakeSurroundings::default() };
    let refusal = run_validating(&surroundings, vec![webhook("a", "allow", "*")]).unwrap_err();
    let text = "Timeout: request did not complete within the allotted timeout";
    assert_eq!(refusal, (504, text.to_owned()));
    assert!(surroundings.record().calls.is_empty());
}

#[test]
fn shadow_webhooks_are_reported_and_not_enforced() {
    let surroundings = FakeSurroundings::default();
    let webhooks = vec![
        shadow("denies", "disallow"),
        shadow("fails", "internalErr"),
        Webhook { shadow: true, ..webhook("cannot be matched", "allow", "error") },
        shadow("allows", "allow"),
    ];
    run_validating(&surroundings, webhooks).unwrap();
    let record = surroundings.record();
    let names: Vec<_> = record.shadows.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["denies", "fails", "cannot be matched", "allows"]);
    assert!(matches!(&record.shadows[0].1, ShadowOutcome::Deny(status) if status.code == Some(403)));
    assert!(matches!(&record.shadows[1].1, ShadowOutcome::Fail(text) if text.ends_with(INTERNAL_ERR_TEXT)));
    assert!(matches!(&record.shadows[2].1, ShadowOutcome::Fail(text) if text.contains("not found")));
    assert_eq!(record.shadows[3].1, ShadowOutcome::Allow);
    assert!(record.warnings.is_empty() && record.annotations.is_empty() && record.outcomes.is_empty());
}

#[test]
fn a_refusal_does_not_wait_for_a_shadow_webhook() {
    let surroundings = FakeSurroundings::default();
    let webhooks = vec![shadow("slow", "never"), webhook("disallow", "disallow", "*")];
    assert_eq!(run_validating(&surroundings, webhooks).unwrap_err().0, 403);
}
