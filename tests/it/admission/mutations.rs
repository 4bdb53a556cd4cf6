//! Mutating admission policies where a real API server cannot show it: what the API server receives, schemas that it publishes and does
//! not publish, shadow policies, and requests that they cannot be shown. The rest is in the twin group `admission`.

use super::*;

const POLICY: &str = "defaults.static.k8s.io";

/// A policy for everything, with these mutations and fields of its `spec`, and its binding.
#[expect(clippy::needless_pass_by_value, reason = "tables are written with values")]
fn policy(mutations: Value, more: Value) -> [Value; 2] {
    let mut spec = json!({"matchConstraints": {"resourceRules": [
        {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]},
        "reinvocationPolicy": "Never", "mutations": mutations});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let object = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": POLICY}, "spec": spec});
    [
        object("MutatingAdmissionPolicy", spec),
        object("MutatingAdmissionPolicyBinding", json!({"policyName": POLICY})),
    ]
}

fn applied(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patched(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

/// One that sets `b`.
fn setting_b() -> Value {
    json!([applied("Object{data: {'b': 'set'}}")])
}

impl Admitting {
    fn write_mutating(&self, objects: &[Value]) {
        let folder = self.directory().join("mutations");
        std::fs::create_dir_all(&folder).unwrap();
        let manifest: Vec<String> = objects.iter().map(Value::to_string).collect();
        std::fs::write(folder.join("policies.yaml"), manifest.join("\n---\n")).unwrap();
        let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
            {"name": "MutatingAdmissionPolicy", "configuration": {"apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "MutatingAdmissionPolicyConfiguration", "staticManifestsDir": folder}}]});
        std::fs::write(self.directory().join("admission.json"), configuration.to_string()).unwrap();
    }

    /// How often the API server was asked for this path since the last call.
    fn asked(&self, path: &str) -> usize {
        let received = self.received.lock().unwrap();
        received.iter().filter(|received| received.target == path).count()
    }

    fn publish(&self, published: Published) {
        *self.published.lock().unwrap() = published;
    }
}

async fn start(objects: &[Value]) -> Admitting {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write_mutating(objects);
    admitting
}

/// The write has what the policy sets, after a dry run that shows the validating phase what it leads to.
#[tokio::test]
async fn a_policy_changes_what_is_stored() {
    let admitting = start(&policy(setting_b(), json!({}))).await;
    let gateway = admitting.gateway("pinnedDryRun");
    for round in 1..=2 {
        let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
        assert_eq!(code, StatusCode::CREATED, "{body}");
        let read = [admitting.asked("/openapi/v3"), admitting.asked("/openapi/v3/api/v1")];
        let expected = if round == 1 { [1, 1] } else { [0, 0] };
        assert_eq!(read, expected, "of the second request it is known");
        let received = admitting.received();
        let lines: Vec<String> = received.iter().map(Received::line).collect();
        let changed = format!("POST {MAPS}?fieldValidation=Ignore");
        let dry_run = format!("POST {MAPS}?dryRun=All&fieldValidation=Ignore");
        assert_eq!(lines, [format!("POST {MAPS}?dryRun=All"), dry_run, changed]);
        assert_eq!(received[2].body["data"], json!({"b": "set"}));
    }
    let counted = format!(
        "apiserver_mutating_admission_policy_check_total{{error_type=\"no_error\",policy=\"{POLICY}\",policy_binding=\"{POLICY}\"}} 2"
    );
    gateway.until_counted(&counted).await;
    let plugin = "apiserver_admission_controller_admission_duration_seconds_count{name=\"MutatingAdmissionPolicy\",\
                  operation=\"CREATE\",rejected=\"false\",type=\"admit\"} 4";
    gateway.until_counted(plugin).await;
}

/// Without a schema that can be used nothing is merged, whatever the `failurePolicy` is; and nothing is stored.
#[tokio::test]
async fn without_a_schema_the_request_is_refused() {
    let circle = json!({"components": {"schemas": {"a": {"type": "array", "items": {"type": "array"}}}}});
    for published in [
        Published::Absent,
        Published::Document("not JSON".to_owned()),
        Published::Document(circle.to_string()),
        Published::Document(format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000))),
    ] {
        for failure_policy in ["Fail", "Ignore"] {
            let admitting = start(&policy(setting_b(), json!({"failurePolicy": failure_policy}))).await;
            admitting.publish(published.clone());
            let gateway = admitting.gateway("pinnedDryRun");
            for _ in 0..2 {
                let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
                assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{failure_policy}: {body}");
                assert!(body.contains("Resource kind /v1, Kind=ConfigMap not found."), "{body}");
            }
            assert!(
                admitting.asked("/openapi/v3/api/v1") <= 1,
                "a document that cannot be used is read once"
            );
            assert!(!admitting.received().iter().any(Received::is_write), "{failure_policy}");
        }
    }
}

/// An API server that does not answer for its schemas delays the requests that need them, and no others.
#[tokio::test]
async fn schemas_that_never_come_delay_no_other_requests() {
    let mut objects = policy(setting_b(), json!({}));
    let rules = &mut objects[0]["spec"]["matchConstraints"]["resourceRules"];
    rules[0]["resources"] = json!(["configmaps"]);
    let admitting = start(&objects).await;
    admitting.publish(Published::Silent);
    let gateway = admitting.gateway("pinnedDryRun");
    let waiting = (0..24).map(|_| send(&gateway, Method::POST, MAPS, &[JSON], map()));
    let waiting = join_all(waiting);
    let others = async {
        for _ in 0..20 {
            let secrets = "/api/v1/namespaces/n/secrets";
            let (code, body) = send(&gateway, Method::POST, secrets, &[JSON], map()).await;
            assert_eq!(code, StatusCode::CREATED, "{body}");
        }
    };
    tokio::select! {
        answers = waiting => panic!("they have an answer: {answers:?}"),
        () = others => {}
    }
}

/// With `requestLevel` a policy changes the object as it was sent. A change it cannot see; a deletion it never sees.
#[tokio::test]
async fn request_level_shows_policies_what_was_sent() {
    for (failure_policy, changed) in [("Fail", StatusCode::INTERNAL_SERVER_ERROR), ("Ignore", StatusCode::OK)]
    {
        let admitting = start(&policy(setting_b(), json!({"failurePolicy": failure_policy}))).await;
        let gateway = admitting.gateway("requestLevel");
        let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
        assert_eq!(code, StatusCode::CREATED, "{body}");
        let received = admitting.received();
        assert_eq!(received.iter().map(Received::line).collect::<Vec<_>>(), [format!("POST {MAPS}")]);
        assert_eq!(received[0].body["data"], json!({"b": "set"}));
        let named = format!("{MAPS}/m");
        let merge = ("content-type", "application/merge-patch+json");
        let (code, body) = send(&gateway, Method::PATCH, &named, &[merge], "{}".to_owned()).await;
        assert_eq!(code, changed, "{body}");
        if failure_policy == "Fail" {
            assert!(body.contains("failed evaluating MutatingAdmissionPolicy"), "{body}");
        }
        let (code, body) = send(&gateway, Method::DELETE, &named, &[], String::new()).await;
        assert_eq!(code, StatusCode::OK, "{body}");
    }
}

/// A shadow policy changes and refuses nothing; what it would have done is counted.
#[tokio::test]
async fn a_shadow_policy_has_no_effect() {
    for (mutations, would) in [
        (setting_b(), "change"),
        (json!([patched("[JSONPatch{op: 'remove', path: '/data/absent'}]")]), "deny"),
        (json!([applied("Object{}")]), "allow"),
    ] {
        let admitting = start(&policy(mutations, json!({}))).await;
        let shadow = format!("--admission-shadow-policies={POLICY}");
        let gateway = admitting.gateway_with("pinnedDryRun", &[&shadow]);
        let (code, answer) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
        assert_eq!(code, StatusCode::CREATED, "{answer}");
        let received = admitting.received();
        assert_eq!(received.iter().map(Received::line).collect::<Vec<_>>(), [format!("POST {MAPS}")]);
        assert_eq!(received[0].body["data"], Value::Null);
        let counted = format!(
            "portcullis_admission_shadow_policy_total{{operation=\"CREATE\",policy=\"{POLICY}\",would=\"{would}\"}} 1"
        );
        gateway.until_counted(&counted).await;
        assert_eq!(gateway.count("apiserver_mutating_admission_policy_check_total").await, 0);
    }
}

/// A shadow policy whose schemas do not come has failed, soon; what is in force goes on.
#[tokio::test]
async fn schemas_of_a_shadow_policy_are_not_waited_for() {
    let admitting = start(&policy(setting_b(), json!({}))).await;
    let mutating = std::fs::read_to_string(admitting.directory().join("admission.json")).unwrap();
    let mut both: Value = serde_json::from_str(&mutating).unwrap();
    admitting.write("Fail", 5);
    let validating = std::fs::read_to_string(admitting.directory().join("admission.json")).unwrap();
    let validating: Value = serde_json::from_str(&validating).unwrap();
    both["plugins"].as_array_mut().unwrap().push(validating["plugins"][0].clone());
    std::fs::write(admitting.directory().join("admission.json"), both.to_string()).unwrap();
    admitting.publish(Published::Silent);
    let shadow = format!("--admission-shadow-policies={POLICY}");
    let gateway = admitting.gateway_with("pinnedDryRun", &[&shadow]);
    let began = Instant::now();
    let (code, answer) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
    assert_eq!(code, StatusCode::CREATED, "{answer}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(admitting.reviews(), 1);
    let counted = format!(
        "portcullis_admission_shadow_policy_total{{operation=\"CREATE\",policy=\"{POLICY}\",would=\"fail\"}} 1"
    );
    gateway.until_counted(&counted).await;
}

/// What an expression makes counts among the work on large objects, and the object is not larger than any may be.
#[tokio::test]
async fn a_policy_that_makes_much_of_little_is_bounded() {
    let doubling = "variables.a.replace('x', variables.a)";
    let more = json!({"variables": [{"name": "a", "expression": "'xxxxxxxxxxxxxxxx'"},
        {"name": "b", "expression": doubling}, {"name": "c", "expression": "variables.b.replace('x', variables.b)"},
        {"name": "d", "expression": "variables.c.replace('x', variables.c)"}]});
    let admitting = start(&policy(json!([applied("Object{data: {'b': variables.d}}")]), more)).await;
    let gateway = admitting.gateway("pinnedDryRun");
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
    assert_eq!(code, StatusCode::FORBIDDEN, "{body}");
    assert!(body.contains("cost"), "{body}");
    assert!(!admitting.received().iter().any(Received::is_write));
}

/// `portcullis admit` merges by the documents that it is given, and shows why a mutation fails.
#[tokio::test(flavor = "multi_thread")]
async fn admit_shows_what_a_policy_changes() {
    let failing = patched("[JSONPatch{op: 'add', path: '/data/c', value: object.data.absent}]");
    let objects =
        policy(json!([applied("Object{data: {'b': 'set'}}"), failing]), json!({"failurePolicy": "Ignore"}));
    let admitting = start(&objects).await;
    let object = admitting.pki.write(
        "object.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: m, namespace: apps}, data: {a: good}}",
    );
    let document = admitting.pki.write("api-v1.json", config_map_schema().to_string());
    let openapi = format!("--openapi={}", document.display());
    let arguments = admitting.flags("pinnedDryRun", &["--filename", &object.display().to_string()]);
    let admit = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"));
        let output = command.arg("admit").args(&arguments).args(more).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, shown, _) = admit(&["--output=json", &openapi]);
    let report: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((code, &report["changed"]), (Some(0), &json!(true)), "{shown}");
    assert_eq!(report["object"]["data"], json!({"a": "good", "b": "set"}));
    let [row] = report["policies"].as_array().unwrap().as_slice() else { panic!("{shown}") };
    assert_eq!((&row["result"], &row["phase"]), (&json!("changed"), &json!("mutating policy")));
    assert!(row["cost"].as_u64().unwrap() > 0, "{shown}");
    assert_eq!(report["explanations"][0]["place"], "mutations[1]", "{shown}");
    let (code, shown, _) = admit(&[&openapi]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("object.data.absent") && shown.contains("error: no such key: absent"), "{shown}");
    let (code, shown, _) = admit(&[]);
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("kubectl get --raw /openapi/v3/api/v1"), "{shown}");
    let broken = format!("--openapi={}", object.display());
    let (code, _, errors) = admit(&[&broken]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("object.yaml") && errors.contains("/openapi/v3/apis/apps/v1"), "{errors}");
}
