//! Validating admission policies where a real API server cannot show it: what they cost, shadow policies, and requests that they cannot
//! be shown. The rest is in the twin group `admission`.

use testkit::gateway_process::GatewayProcess;

use super::*;

const POLICY: &str = "no-bad.static.k8s.io";
const BAD: &str = "object == null || object.?data[?'a'].orValue('') != 'bad'";

/// A policy with these fields of its `spec`, for everything.
#[expect(clippy::needless_pass_by_value, reason = "tables are written with values")]
fn policy(name: &str, more: Value) -> Value {
    let mut spec = json!({"matchConstraints": {"resourceRules": [
        {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]}});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": spec})
}

fn binding(policy: &str, actions: &[&str]) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": policy}, "spec": {"policyName": policy, "validationActions": actions}})
}

/// An API server, and a policy for all objects whose `a` is `bad`, bound with these actions.
pub(crate) async fn start(failure_policy: &str, actions: &[&str]) -> Admitting {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    let validations = json!([{"expression": BAD, "message": "a is bad"}]);
    let policy = policy(POLICY, json!({"failurePolicy": failure_policy, "validations": validations}));
    admitting.write_policies(&[policy, binding(POLICY, actions)]);
    admitting
}

fn bad() -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "n"}, "data": {"a": "bad"}})
        .to_string()
}

impl Admitting {
    fn write_policies(&self, objects: &[Value]) {
        let folder = self.directory().join("policies");
        std::fs::create_dir_all(&folder).unwrap();
        let manifest: Vec<String> = objects.iter().map(Value::to_string).collect();
        std::fs::write(folder.join("policies.yaml"), manifest.join("\n---\n")).unwrap();
        let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
            {"name": "ValidatingAdmissionPolicy", "configuration": {"apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicyConfiguration", "staticManifestsDir": folder}}]});
        std::fs::write(self.directory().join("admission.json"), configuration.to_string()).unwrap();
    }
}

/// A policy sees the object of the dry run, and nothing is stored that it denies. What it finds is in the metrics and the audit log.
#[tokio::test]
async fn a_policy_denies_before_the_write() {
    let admitting = start("Fail", &["Deny", "Audit"]).await;
    let audit_policy = admitting.directory().join("audit.yaml");
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]});
    std::fs::write(&audit_policy, policy.to_string()).unwrap();
    let log = admitting.directory().join("audit.log");
    let (policy, path) = (audit_policy.display(), log.display());
    let audit = [format!("--audit-policy-file={policy}"), format!("--audit-log-path={path}")];
    let gateway = admitting.gateway_with("pinnedDryRun", &audit.each_ref().map(String::as_str));
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    let dry_run = format!("POST {MAPS}?dryRun=All");
    assert_eq!(admitting.lines(), [dry_run.clone(), format!("POST {MAPS}")]);
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], bad()).await;
    assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
    let message =
        format!("ValidatingAdmissionPolicy '{POLICY}' with binding '{POLICY}' denied request: a is bad");
    assert!(body.contains(&message), "{body}");
    assert_eq!(admitting.lines(), [dry_run], "nothing is stored");
    for action in ["deny", "audit"] {
        let counted = format!(
            "apiserver_validating_admission_policy_check_total{{enforcement_action=\"{action}\",\
             error_type=\"invalid_error\",policy=\"{POLICY}\",policy_binding=\"{POLICY}\"}} 1"
        );
        gateway.until_counted(&counted).await;
    }
    let plugin = "apiserver_admission_controller_admission_duration_seconds_count{name=\"ValidatingAdmissionPolicy\",\
                  operation=\"CREATE\",rejected=\"true\",type=\"validate\"} 1";
    gateway.until_counted(plugin).await;
    let annotated = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).any(|event| {
            let found = &event["annotations"]["validation.policy.admission.k8s.io/validation_failure"];
            found
                .as_str()
                .is_some_and(|found| found.contains("\"message\":\"a is bad\"") && found.contains(POLICY))
        })
    };
    until("the audit log has the failure", annotated).await;
}

/// A policy whose rules do not match, or without bindings, costs no dry run.
#[tokio::test]
async fn a_policy_of_other_requests_costs_nothing() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    let secrets = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}]);
    let mut of_secrets = policy("secrets.static.k8s.io", json!({"validations": [{"expression": "false"}]}));
    of_secrets["spec"]["matchConstraints"]["resourceRules"] = secrets;
    let unbound = policy("unbound.static.k8s.io", json!({"validations": [{"expression": "false"}]}));
    admitting.write_policies(&[of_secrets, unbound, binding("secrets.static.k8s.io", &["Deny"])]);
    let gateway = admitting.gateway("pinnedDryRun");
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], bad()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    assert_eq!(admitting.lines(), [format!("POST {MAPS}")]);
}

/// With `requestLevel`, a policy sees the object as it was sent; a change it cannot see, and its `failurePolicy` decides.
#[tokio::test]
async fn request_level_shows_policies_what_was_sent() {
    for (failure_policy, changed) in [("Fail", StatusCode::INTERNAL_SERVER_ERROR), ("Ignore", StatusCode::OK)]
    {
        let admitting = start(failure_policy, &["Deny"]).await;
        let gateway = admitting.gateway("requestLevel");
        let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], bad()).await;
        assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
        assert!(admitting.lines().is_empty());
        let named = format!("{MAPS}/m");
        let merge = ("content-type", "application/merge-patch+json");
        let (code, body) = send(&gateway, Method::PATCH, &named, &[merge], "{}".to_owned()).await;
        assert_eq!(code, changed, "{body}");
        if failure_policy == "Fail" {
            let message = format!(
                "failed evaluating ValidatingAdmissionPolicy \\\"{POLICY}\\\": with requestLevel, webhooks and policies are shown only CREATE and CONNECT"
            );
            assert!(body.contains(&message), "{body}");
            assert!(admitting.lines().is_empty());
        } else {
            let counted = format!("portcullis_admission_policy_fail_open_total{{policy=\"{POLICY}\"}} 1");
            gateway.until_counted(&counted).await;
        }
        // A client could choose this form of a creation.
        let absent = format!("{MAPS}/absent");
        let (code, body) = send(&gateway, Method::PUT, &absent, &[JSON], bad()).await;
        assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
    }
}

/// A binding that refuses nothing does not refuse what a policy cannot see.
#[tokio::test]
async fn a_policy_that_only_warns_refuses_no_form() {
    let admitting = start("Fail", &["Warn"]).await;
    let gateway = admitting.gateway("requestLevel");
    let merge = ("content-type", "application/merge-patch+json");
    let (code, body) = send(&gateway, Method::PATCH, &format!("{MAPS}/m"), &[merge], "{}".to_owned()).await;
    assert_eq!(code, StatusCode::OK, "{body}");
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], bad()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
}

/// Objects that an aggregated API server shows in no dry run.
#[tokio::test]
async fn a_policy_refuses_what_no_dry_run_shows() {
    let admitting = start("Fail", &["Deny"]).await;
    let gateway = admitting.gateway("pinnedDryRun");
    let (code, body) = send(&gateway, Method::POST, GADGETS, &[JSON], map()).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
    assert!(body.contains("has no dry run"), "{body}");
    assert!(!admitting.received().iter().any(Received::is_write));
}

/// A request that only shadow policies match reaches the API server as it was sent; what they would have done is counted.
#[tokio::test]
async fn a_shadow_policy_has_no_effect() {
    let admitting = start("Fail", &["Deny"]).await;
    let shadow = format!("--admission-shadow-policies={POLICY}");
    let gateway = admitting.gateway_with("pinnedDryRun", &[&shadow]);
    for (body, would) in [(bad(), "deny"), (map(), "allow")] {
        let (code, answer) = send(&gateway, Method::POST, MAPS, &[JSON], body).await;
        assert_eq!(code, StatusCode::CREATED, "{answer}");
        assert_eq!(admitting.lines(), [format!("POST {MAPS}")]);
        let counted = format!(
            "portcullis_admission_shadow_policy_total{{operation=\"CREATE\",policy=\"{POLICY}\",would=\"{would}\"}} 1"
        );
        gateway.until_counted(&counted).await;
    }
    assert_eq!(gateway.count("apiserver_validating_admission_policy_check_total").await, 0);
    let named = format!("{MAPS}/m");
    let (code, answer) = send(
        &gateway,
        Method::PATCH,
        &named,
        &[("content-type", "application/apply-patch+yaml")],
        "a: [1".to_owned(),
    )
    .await;
    assert_eq!(code, StatusCode::OK, "{answer}");
    assert_eq!(admitting.lines(), [format!("GET {named}"), format!("PATCH {named}")]);
}

/// What no dry run shows may have any name before it is created.
#[tokio::test]
async fn a_policy_for_one_name_refuses_new_objects_that_no_dry_run_shows() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    let name = "named.static.k8s.io";
    let rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "resourceNames": ["m"]});
    let constraints = json!({"resourceRules": [rule]});
    let named =
        policy(name, json!({"matchConstraints": constraints, "validations": [{"expression": "false"}]}));
    admitting.write_policies(&[named, binding(name, &["Deny"])]);
    let gateway = admitting.gateway("pinnedDryRun");
    let (code, body) = send(&gateway, Method::POST, GADGETS, &[JSON], map()).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
    assert!(body.contains("has no dry run"), "{body}");
    assert!(!admitting.received().iter().any(Received::is_write));
    let other = format!("{GADGETS}/other");
    let (code, body) = send(&gateway, Method::DELETE, &other, &[JSON], String::new()).await;
    assert_eq!(code, StatusCode::OK, "another name: {body}");
}

/// An access review that is not decided is neither `false` nor an error of the expression, which a policy or a webhook could ignore.
#[tokio::test]
async fn an_undecided_access_review_ends_the_request() {
    let check = "authorizer.group('').resource('undecided').check('create').allowed()";
    let conditions = |expression: &str| json!([{"name": "review", "expression": expression}]);
    for failure_policy in ["Fail", "Ignore"] {
        for expression in [check.to_owned(), format!("!{check}")] {
            let admitting = Admitting::start(|review| Some(allow(review))).await;
            let name = "reviewed.static.k8s.io";
            let reviewed = json!({"failurePolicy": failure_policy, "matchConditions": conditions(&expression),
                "validations": [{"expression": "true"}]});
            admitting.write_policies(&[policy(name, reviewed), binding(name, &["Deny"])]);
            let gateway = admitting.gateway("pinnedDryRun");
            let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
            assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{failure_policy} {expression}: {body}");
            assert!(!admitting.received().iter().any(Received::is_write), "{failure_policy} {expression}");
            let mut manifest = admitting.manifest((&["*"], "*"), failure_policy, 5);
            manifest["webhooks"][0]["matchConditions"] = conditions(&expression);
            admitting.write_manifest(&manifest.to_string());
            let gateway = admitting.gateway("pinnedDryRun");
            let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
            assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{failure_policy} {expression}: {body}");
            assert!(!admitting.received().iter().any(Received::is_write), "{failure_policy} {expression}");
            assert_eq!(admitting.reviews(), 0);
        }
    }
}

/// Nor does it end a request of which only what has no effect cannot be decided.
#[tokio::test]
async fn an_undecided_access_review_of_a_shadow_has_no_effect() {
    let check = "authorizer.group('').resource('undecided').check('create').allowed()";
    let (enforced, shadow) = ("enforced.static.k8s.io", "shadow.static.k8s.io");
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write_policies(&[
        policy(enforced, json!({"validations": [{"expression": BAD}]})),
        binding(enforced, &["Deny"]),
        policy(shadow, json!({"validations": [{"expression": check}]})),
        binding(shadow, &["Deny"]),
    ]);
    let gateway = admitting.gateway_with("pinnedDryRun", &[&format!("--admission-shadow-policies={shadow}")]);
    for (body, expected) in [(map(), StatusCode::CREATED), (bad(), StatusCode::UNPROCESSABLE_ENTITY)] {
        let (code, answer) = send(&gateway, Method::POST, MAPS, &[JSON], body).await;
        assert_eq!(code, expected, "{answer}");
    }
    let counted = format!(
        "portcullis_admission_shadow_policy_total{{operation=\"CREATE\",policy=\"{shadow}\",would=\"fail\"}} 2"
    );
    gateway.until_counted(&counted).await;
}

/// A shadow policy beside an enforced one: the request is reviewed, and only the latter has an effect.
#[tokio::test]
async fn a_shadow_policy_beside_an_enforced_one() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    let (enforced, shadow) = ("enforced.static.k8s.io", "shadow.static.k8s.io");
    let never = json!({"validations": [{"expression": "false"}],
        "auditAnnotations": [{"key": "k", "valueExpression": "'v'"}]});
    admitting.write_policies(&[
        policy(enforced, json!({"validations": [{"expression": BAD}]})),
        binding(enforced, &["Deny"]),
        policy(shadow, never),
        binding(shadow, &["Deny"]),
    ]);
    let gateway = admitting.gateway_with("pinnedDryRun", &[&format!("--admission-shadow-policies={shadow}")]);
    for (body, expected) in [(map(), StatusCode::CREATED), (bad(), StatusCode::UNPROCESSABLE_ENTITY)] {
        let (code, answer) = send(&gateway, Method::POST, MAPS, &[JSON], body).await;
        assert_eq!(code, expected, "{answer}");
        assert!(!answer.contains(shadow), "{answer}");
    }
    let counted = format!(
        "portcullis_admission_shadow_policy_total{{operation=\"CREATE\",policy=\"{shadow}\",would=\"deny\"}} 2"
    );
    gateway.until_counted(&counted).await;
}

/// The namespace of a request is read for policies that use it, and for no others.
#[tokio::test]
async fn namespaces_are_read_for_policies_that_use_them() {
    for (expression, reads) in
        [("namespaceObject.metadata.labels['kubernetes.io/metadata.name'] == 'n'", true), ("true", false)]
    {
        let admitting = Admitting::start(|review| Some(allow(review))).await;
        let name = "namespaces.static.k8s.io";
        let policy = policy(name, json!({"validations": [{"expression": expression}]}));
        admitting.write_policies(&[policy, binding(name, &["Deny"])]);
        let gateway = admitting.gateway("pinnedDryRun");
        let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], map()).await;
        assert_eq!(code, StatusCode::CREATED, "{body}");
        let received = admitting.lines();
        assert_eq!(received.iter().any(|line| line == &format!("GET {NAMESPACE}")), reads, "{received:?}");
    }
}

/// A policy that does not compile is an error of the configuration: the ones before stay in force.
#[tokio::test]
async fn a_broken_policy_keeps_the_old_ones() {
    let admitting = start("Fail", &["Deny"]).await;
    let gateway = admitting.gateway("pinnedDryRun");
    gateway.checked().await;
    let before = gateway.generation().await;
    let broken = policy(POLICY, json!({"validations": [{"expression": "object.data.a =="}]}));
    admitting.write_policies(&[broken, binding(POLICY, &["Deny"])]);
    gateway.server().reload();
    gateway.until_counted_as("portcullis_config_last_reload_successful", |line| line.ends_with(" 0")).await;
    assert_eq!(gateway.generation().await, before);
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], bad()).await;
    assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
    let allowing = policy(POLICY, json!({"validations": [{"expression": "true"}]}));
    admitting.write_policies(&[allowing, binding(POLICY, &["Deny"])]);
    gateway.server().reload();
    gateway.reloaded(before).await;
    let (code, body) = send(&gateway, Method::POST, MAPS, &[JSON], bad()).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
}

/// `portcullis admit` shows which part of which expression has which value.
#[tokio::test(flavor = "multi_thread")]
async fn admit_shows_why_a_policy_refuses() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    let (name, other) = ("images.static.k8s.io", "other.static.k8s.io");
    let constraints = json!({"resourceRules": [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}]});
    admitting.write_policies(&[
        policy(
            name,
            json!({
                "variables": [{"name": "data", "expression": "object.?data.orValue({})"}],
                "validations": [
                    {"expression": "variables.data.all(key, variables.data[key] != 'bad')"},
                    {"expression": "variables.data.size() < 3"},
                    {"expression": "object.metadata.labels.absent == 'x'"},
                ],
            }),
        ),
        binding(name, &["Deny"]),
        policy(other, json!({"matchConstraints": constraints, "validations": [{"expression": "false"}]})),
        binding(other, &["Deny"]),
    ]);
    let object = admitting.pki.write(
        "object.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: m, namespace: n}, data: {a: good, b: bad}}",
    );
    let arguments = admitting.flags("pinnedDryRun", &["--filename", &object.display().to_string()]);
    let admit = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"));
        let output = command.arg("admit").args(&arguments).args(more).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, shown) = admit(&[]);
    assert_eq!(code, Some(1), "{shown}");
    let lines: Vec<String> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "variables.data.all(key, variables.data[key] != 'bad') = false",
        "variables.data = {'a': 'good', 'b': 'bad'}",
        "key = 'b'",
        "variables.data[key] = 'bad'",
        "object.metadata.labels.absent == 'x' = error: no such key: labels",
        "not evaluated 1 policy without a match",
    ] {
        assert!(lines.iter().any(|shown| shown == line), "{line}: {shown}");
    }
    assert!(!shown.contains("variables.data.size()"), "it holds: {shown}");
    let shadow = format!("--admission-shadow-policies={name}");
    let (code, shown) = admit(&["--output=json", &shadow]);
    let report: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((code, &report["allowed"]), (Some(0), &json!(true)), "{shown}");
    assert!(report["policies"][0]["result"].as_str().unwrap().starts_with("shadow: denied: "), "{shown}");
    assert_eq!(report["policies"][1]["matches"], false, "{shown}");
    let places: Vec<&Value> =
        report["explanations"].as_array().unwrap().iter().map(|explained| &explained["place"]).collect();
    assert_eq!(places, ["validations[0]", "validations[2]"], "{shown}");
}

/// A policy about objects of which the schema is published.
fn of_maps(validations: &Value) -> Value {
    let constraints = json!({"resourceRules": [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
    policy(POLICY, json!({"matchConstraints": constraints, "validations": validations}))
}

/// The log says which expression does not fit the schema that the API server publishes. The policy does the same as without it.
#[tokio::test]
async fn the_log_warns_of_an_expression_that_does_not_fit() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.lists_core.store(true, Ordering::Relaxed);
    let validations = json!([{"expression": BAD}, {"expression": "!has(object.dat)"}]);
    admitting.write_policies(&[of_maps(&validations), binding(POLICY, &["Deny"])]);
    let program = env!("CARGO_BIN_EXE_portcullis");
    let process = GatewayProcess::start(program, admitting.flags("pinnedDryRun", &[])).await;
    let message = "an expression of a policy does not fit the objects of this kind";
    until("the log has the warning", || !process.said(message).is_empty()).await;
    for (body, expected) in [(map(), StatusCode::CREATED), (bad(), StatusCode::UNPROCESSABLE_ENTITY)] {
        let (code, answer) = send(&process.gateway, Method::POST, MAPS, &[JSON], body).await;
        assert_eq!(code, expected, "{answer}");
    }
    let (_, log) = process.end().await;
    let lines: Vec<Value> = log
        .lines()
        .filter(|line| line.contains(message))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [line] = lines.as_slice() else { panic!("{log}") };
    for (field, expected) in [
        ("policy", POLICY),
        ("field", "spec.validations[1].expression"),
        ("kind", "/v1, Kind=ConfigMap"),
        ("error", "ERROR: <input>:1:5: undefined field 'dat'"),
        ("fix", "the fields of ConfigMap are: apiVersion, data, kind, metadata"),
    ] {
        assert_eq!(line[field], expected, "{line}");
    }
}

/// Requests do not wait for an API server that publishes nothing in time.
#[tokio::test]
async fn no_request_waits_for_the_check_of_expressions() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.lists_core.store(true, Ordering::Relaxed);
    *admitting.published.lock().unwrap() = Published::Silent;
    admitting.write_policies(&[of_maps(&json!([{"expression": BAD}])), binding(POLICY, &["Deny"])]);
    let gateway = admitting.gateway("pinnedDryRun");
    for (body, expected) in [(map(), StatusCode::CREATED), (bad(), StatusCode::UNPROCESSABLE_ENTITY)] {
        let (code, answer) = send(&gateway, Method::POST, MAPS, &[JSON], body).await;
        assert_eq!(code, expected, "{answer}");
    }
}

/// `portcullis admit` shows the same without a cluster, in the words of kube-controller-manager.
#[tokio::test(flavor = "multi_thread")]
async fn admit_shows_which_expressions_do_not_fit() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    let validations =
        json!([{"expression": "has(object.data)"}, {"expression": "object.data.a == 1 || true"}]);
    admitting.write_policies(&[of_maps(&validations), binding(POLICY, &["Deny"])]);
    let document = admitting.pki.write("openapi.json", config_map_schema().to_string());
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [serde_json::from_str::<Value>(&map()).unwrap()]});
    let files = [("map.yaml", map()), ("list.yaml", list.to_string())];
    for (name, text) in files {
        let object = admitting.pki.write(name, &text);
        let arguments = admitting.flags("pinnedDryRun", &["--filename", &object.display().to_string()]);
        let admit = |more: &[&str]| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"));
            let output = command.arg("admit").args(&arguments).args(more).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let openapi = format!("--openapi={}", document.display());
        let warning = "/v1, Kind=ConfigMap: ERROR: <input>:1:15: found no matching overload for '_==_' applied to '(string, int)'";
        let shown = admit(&[&openapi]);
        let title = format!("{POLICY} spec.validations[1].expression does not fit the objects of a kind:");
        assert!(
            shown.contains(&format!("{title}\n  {warning}\n   | object.data.a == 1 || true\n")),
            "{shown}"
        );
        let report: Value = serde_json::from_str(&admit(&[&openapi, "--output=json"])).unwrap();
        let rows = report["expressionWarnings"].as_array().unwrap();
        assert_eq!(rows.len(), 1, "{report}");
        assert_eq!(rows[0]["fieldRef"], "spec.validations[1].expression");
        assert!(rows[0]["warning"].as_str().unwrap().starts_with(warning), "{report}");
        assert!(!admit(&["--output=json"]).contains("expressionWarnings"), "there is no document");
    }
}
