//! Random webhook manifests, `AdmissionConfiguration`s and kubeconfigs of webhooks, compared with kube-apiserver's own code:
//! both must accept the same ones, with the same errors, defaults, credentials and URLs. `PORTCULLIS_SEED` and
//! `PORTCULLIS_INPUTS` change the seed and the number of each.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis::internal::{
    Webhook, WebhookKind, admission_configuration_errors, webhook_manifest, webhook_request,
};
use serde_json::{Map, Value, json};
use testkit::comparison::Compared;
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

const LABEL_KEYS: &[&str] =
    &["app", "example.com/app", "", "a/b/c", "/a", "A_b.c", "-a", "EXAMPLE.com/a", "é"];
const LABEL_VALUES: &[&str] = &["a", "", "A.b_c", "-a", "a b", "é"];
const NAMES: &[&str] = &[
    "pods.policy.example.com",
    "a.b.c",
    "",
    "a.b",
    "A.b.c",
    "a..b.c",
    "a_b.c.d",
    "pods.policy.example.com",
    "é.b.c",
];
const CONFIGURATION_NAMES: &[&str] = &[
    "a.static.k8s.io",
    "a",
    "",
    ".static.k8s.io",
    "A.static.k8s.io",
    "a.static.k8s.io.",
    "\"x\".static.k8s.io",
];
const URLS: &[&str] = &[
    "https://a.example.com",
    "https://a.example.com/v?",
    "http://a",
    "",
    "https://",
    "https:a",
    "://a",
    "https://u:p@a/",
    "https://a/#f",
    "https://a/#%41é",
    "https://a/?q=<1>",
    "a.example.com",
    "https://[::1]:8443/v",
    "https://a:x/",
    "https://a b/",
    "https://a/%zz",
    "HTTPS://a/",
    "https://a:/",
    "ftp://u@/?q#f",
    "https://a/\u{a0}",
];
const EXPRESSIONS: &[&str] = &[
    "true",
    "request.name == 'a'",
    "object.metadata.name == 'a'",
    "oldObject != null",
    " has(object.a)\n",
    "authorizer.group('').resource('pods').check('get').allowed()",
    "",
    "  ",
    "object.metadata.name",
    "request.none",
    "1",
    "none",
    "params.a",
    "'<>' == request.uid",
    "namespaceObject.metadata.name == 'a'",
];
const PATHS: &[&str] = &["/", "", "/a/b", "//", "a", "/a//b", "/A/", "/a/b/", "///", "éa"];

/// The first value in most cases, so that many files have few errors.
fn pick<'a>(rng: &mut Rng, list: &[&'a str]) -> &'a str {
    if rng.one_in(8) { *rng.pick(list) } else { list[0] }
}

fn texts(rng: &mut Rng, list: &[&str], usual: &[&str]) -> Value {
    if !rng.one_in(5) {
        return json!(usual);
    }
    (0..rng.below(4)).map(|_| Value::from(*rng.pick(list))).collect()
}

fn put(map: &mut Map<String, Value>, key: &str, value: Value) {
    if !value.is_null() {
        map.insert(key.to_owned(), value);
    }
}

fn rule(rng: &mut Rng) -> Value {
    let mut rule = Map::new();
    let operations = ["CREATE", "UPDATE", "DELETE", "CONNECT", "*", "create", "", "<é>"];
    put(&mut rule, "operations", texts(rng, &operations, &["CREATE", "UPDATE"]));
    put(&mut rule, "apiGroups", texts(rng, &["", "apps", "*", "<"], &[""]));
    put(&mut rule, "apiVersions", texts(rng, &["v1", "", "*", "&"], &["v1"]));
    let resources = ["pods", "pods/*", "pods/exec", "*/exec", "*/*", "*", "", "*/", "a/b/c", "/"];
    put(&mut rule, "resources", texts(rng, &resources, &["pods"]));
    let scope = if rng.one_in(3) { *rng.pick(&["*", "Cluster", "Namespaced", "", "cluster"]) } else { "*" };
    put(&mut rule, "scope", if rng.one_in(2) { Value::Null } else { scope.into() });
    rule.into()
}

/// At most one label: Go reports the errors of several in any order.
fn selector(rng: &mut Rng) -> Value {
    let mut selector = Map::new();
    if rng.one_in(2) {
        selector.insert("matchLabels".to_owned(), json!({pick(rng, LABEL_KEYS): pick(rng, LABEL_VALUES)}));
    }
    if rng.one_in(2) {
        let expression = json!({
            "key": pick(rng, LABEL_KEYS), "operator": *rng.pick(&["In", "NotIn", "Exists", "DoesNotExist", "", "<in"]),
            "values": (0..rng.below(3)).map(|_| pick(rng, LABEL_VALUES)).collect::<Vec<_>>(),
        });
        selector.insert("matchExpressions".to_owned(), json!([expression]));
    }
    selector.into()
}

fn client_config(rng: &mut Rng) -> Value {
    let mut config = Map::new();
    if !rng.one_in(12) {
        config.insert("url".to_owned(), (if rng.one_in(3) { *rng.pick(URLS) } else { URLS[0] }).into());
    }
    if rng.one_in(10) {
        let mut service = json!({"name": pick(rng, &["a", ""]), "namespace": pick(rng, &["b", ""])});
        if rng.one_in(2) {
            service["path"] = (*rng.pick(PATHS)).into();
        }
        if rng.one_in(2) {
            service["port"] = (*rng.pick(&[443, 0, -1, 65535, 65536])).into();
        }
        config.insert("service".to_owned(), service);
    }
    if rng.one_in(4) {
        config.insert(
            "caBundle".to_owned(),
            (*rng.pick(&["", "YQ==", "YQ", "YR==", "Y\nQ=\r\n=", "*"])).into(),
        );
    }
    config.into()
}

fn condition(rng: &mut Rng) -> Value {
    let name = if rng.one_in(2) { format!("c{}", rng.below(3)) } else { pick(rng, LABEL_KEYS).to_owned() };
    json!({"name": name, "expression": if rng.one_in(2) { *rng.pick(EXPRESSIONS) } else { "true" }})
}

fn webhook(rng: &mut Rng, kind: &str) -> Value {
    let mut webhook = Map::new();
    put(&mut webhook, "name", pick(rng, NAMES).into());
    put(&mut webhook, "clientConfig", client_config(rng));
    put(&mut webhook, "rules", (0..rng.below(3)).map(|_| rule(rng)).collect());
    let mut choice = |rng: &mut Rng, key: &str, values: &[&str]| {
        let value = if rng.one_in(10) { *rng.pick(&["", "none", "<é\u{8}>"]) } else { *rng.pick(values) };
        put(&mut webhook, key, if rng.one_in(2) { Value::Null } else { value.into() });
    };
    choice(rng, "failurePolicy", &["Fail", "Ignore"]);
    choice(rng, "matchPolicy", &["Exact", "Equivalent"]);
    if kind == "Mutating" || rng.one_in(60) {
        choice(rng, "reinvocationPolicy", &["Never", "IfNeeded"]);
    }
    let side_effects = pick(rng, &["None", "NoneOnDryRun", "Some", "Unknown", ""]);
    put(&mut webhook, "sideEffects", if rng.one_in(15) { Value::Null } else { side_effects.into() });
    for key in ["namespaceSelector", "objectSelector"] {
        put(&mut webhook, key, if rng.one_in(3) { selector(rng) } else { Value::Null });
    }
    let timeout = *rng.pick(&[1, 10, 30, 0, -1, 31, i64::from(i32::MAX)]);
    put(&mut webhook, "timeoutSeconds", if rng.one_in(4) { timeout.into() } else { Value::Null });
    let versions = ["v1", "v1beta1", "v2", "", "V1", "1", "v1"];
    put(&mut webhook, "admissionReviewVersions", texts(rng, &versions, &["v1"]));
    if rng.one_in(3) {
        let count = if rng.one_in(40) { 65 } else { rng.below(4) };
        webhook.insert("matchConditions".to_owned(), (0..count).map(|_| condition(rng)).collect());
    }
    webhook.into()
}

fn metadata(rng: &mut Rng) -> Value {
    let mut metadata = Map::new();
    put(&mut metadata, "name", pick(rng, CONFIGURATION_NAMES).into());
    if rng.one_in(8) {
        let (key, value) = rng
            .pick(&[
                ("namespace", json!("a")),
                ("generateName", json!("a-")),
                ("generateName", json!("A")),
                ("generateName", json!("-")),
                ("generation", json!(-1)),
                ("labels", json!({"a/b/c": "é"})),
                ("annotations", json!({"EXAMPLE.com/A": "é"})),
                ("annotations", json!({"": ""})),
                ("annotations", json!({"a": "a".repeat(256 << 10)})),
                ("ownerReferences", json!([{"apiVersion": "v1", "kind": "Event", "name": "<", "uid": "a"}])),
                ("ownerReferences", json!([{}, {"apiVersion": "a/b/c"}, {"apiVersion": "a/"}])),
                ("ownerReferences", json!([
                    {"apiVersion": "a/v1", "kind": "A", "name": "a", "uid": "1", "controller": true},
                    {"apiVersion": "a/v1", "kind": "A", "name": "b", "uid": "2", "controller": true},
                ])),
                ("finalizers", json!(["orphan", "foregroundDeletion"])),
                ("finalizers", json!(["a b"])),
                ("managedFields", json!([{"operation": "<", "manager": "a\u{7}\u{a0}", "fieldsType": "V1"}])),
                ("managedFields", json!([{"operation": "Apply", "manager": "a".repeat(129), "subresource": "a".repeat(257), "fieldsV1": {"f:a": {}}}])),
                ("creationTimestamp", json!("2026-01-01T00:00:00Z")),
                ("creationTimestamp", json!("yesterday")),
                ("creationTimestamp", json!(null)),
                ("uid", json!(1)),
                ("unknown", json!(1)),
            ])
            .clone();
        metadata.insert(key.to_owned(), value);
    }
    metadata.into()
}

fn object(rng: &mut Rng, kind: &str) -> Value {
    let count = rng.below(3);
    let mut object = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
        "metadata": metadata(rng), "webhooks": (0..count).map(|_| webhook(rng, kind)).collect::<Value>(),
    });
    if rng.one_in(25) {
        let (key, value) = rng
            .pick(&[
                ("/apiVersion", json!("admissionregistration.k8s.io/v1beta1")),
                ("/apiVersion", json!("v1")),
                ("/apiVersion", json!("")),
                ("/kind", json!("Pod")),
                ("/kind", json!("")),
                ("/kind", json!("ValidatingAdmissionPolicy")),
                ("/kind", json!("MutatingWebhookConfiguration")),
                ("/kind", json!("ValidatingWebhookConfiguration")),
                ("/webhook", json!([])),
                ("/webhooks", json!({})),
                ("/webhooks", json!(null)),
                ("/webhooks/0/Name", json!("a")),
                ("/webhooks/0/timeoutSeconds", json!("10")),
                ("/webhooks/0/timeoutSeconds", json!(1.5)),
                ("/webhooks/0/timeoutSeconds", json!(1_u64 << 31)),
                ("/webhooks/0/clientConfig/uri", json!("a")),
                ("/webhooks/0/rules/0/verbs", json!([])),
                ("/webhooks/0/namespaceSelector", json!([])),
            ])
            .clone();
        let (map, key) = key.rsplit_once('/').unwrap();
        if let Some(map) = object.pointer_mut(map).and_then(Value::as_object_mut) {
            map.insert(key.to_owned(), value);
        }
    }
    object
}

/// A file with one or more objects.
fn manifest(rng: &mut Rng, kind: &str) -> String {
    let one = object(rng, kind);
    match rng.below(14) {
        0 => {
            let items: Value = (0..rng.below(3)).map(|_| object(rng, kind)).collect();
            json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}).to_string()
        }
        1 => {
            // A typed list decodes all items at once, so that its decoding errors come first.
            let item = json!({"metadata": {"name": "b.static.k8s.io"}, "webhooks": [webhook(rng, kind)]});
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfigurationList"),
                "items": [item],
            })
            .to_string()
        }
        2 => format!("{one}\n---\n{}\n", object(rng, kind)),
        3 => format!("---\n{}---\n", pretty(&one)),
        4 => format!("# comment\n{one}"),
        5 => (*rng.pick(&["", "\n", "---\n---\n", "# a\n", "--- a\n", "a: 1", "[]", "1"])).to_owned(),
        _ => one.to_string(),
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap() + "\n"
}

/// A webhook as the program prints it: the values that decide something.
fn ours(webhook: &Webhook) -> Value {
    let operations = webhook.rules.iter().map(|rule| match &rule.operations {
        Some(operations) => operations.iter().map(ToString::to_string).collect::<Vec<_>>(),
        None => vec!["*".to_owned()],
    });
    let rules = webhook.rules.iter().zip(operations).map(|(rule, operations)| {
        let scope = match format!("{:?}", rule.scope).as_str() {
            "All" => "*".to_owned(),
            other => other.to_owned(),
        };
        json!({
            "operations": operations, "apiGroups": rule.api_groups, "apiVersions": rule.api_versions,
            "resources": rule.resources, "scope": scope,
        })
    });
    let conditions = webhook.match_conditions.iter();
    let conditions: Vec<_> =
        conditions.map(|condition| json!([condition.name, condition.expression.text()])).collect();
    json!({
        "configuration": webhook.configuration, "name": webhook.name, "url": webhook.url,
        "caBundle": STANDARD.encode(&webhook.ca_bundle), "rules": rules.collect::<Vec<_>>(),
        "failurePolicy": format!("{:?}", webhook.failure_policy), "matchPolicy": format!("{:?}", webhook.match_policy),
        "sideEffects": format!("{:?}", webhook.side_effects), "timeoutSeconds": webhook.timeout.as_secs(),
        "reinvocationPolicy": format!("{:?}", webhook.reinvocation_policy),
        "version": format!("{:?}", webhook.review_version).to_lowercase(), "conditions": conditions,
    })
}

fn theirs(configurations: &Value) -> Vec<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = Vec::new();
    for configuration in list(configurations) {
        for webhook in list(&configuration["webhooks"]) {
            let conditions: Vec<_> = list(&webhook["matchConditions"])
                .iter()
                .map(|condition| json!([condition["name"], condition["expression"].as_str().unwrap().trim()]))
                .collect();
            let versions = list(&webhook["admissionReviewVersions"]);
            let known =
                versions.iter().find(|version| ["v1", "v1beta1"].contains(&version.as_str().unwrap()));
            all.push(json!({
                "configuration": configuration["metadata"]["name"], "name": webhook["name"],
                "url": webhook["clientConfig"]["url"],
                "caBundle": webhook["clientConfig"]["caBundle"].as_str().unwrap_or_default(),
                "rules": list(&webhook["rules"]), "failurePolicy": webhook["failurePolicy"],
                "matchPolicy": webhook["matchPolicy"], "sideEffects": webhook["sideEffects"],
                "timeoutSeconds": webhook["timeoutSeconds"],
                "reinvocationPolicy": webhook["reinvocationPolicy"].as_str().unwrap_or("Never"),
                "version": known, "conditions": conditions,
            }));
        }
    }
    all
}

/// A word for the statistics, or the difference.
fn compare(ours: &Result<Vec<Webhook>, (String, Vec<String>)>, answer: &Value) -> Compared {
    let expected = answer["error"].as_str().unwrap();
    let mut listed: Vec<&str> =
        answer["errors"].as_array().into_iter().flatten().map(|error| error.as_str().unwrap()).collect();
    let decoding = |text: &str| {
        [
            "cannot unmarshal",
            "couldn't get version/kind",
            "error converting YAML",
            "illegal base64",
            "parsing time",
        ]
        .iter()
        .any(|part| text.contains(part))
    };
    // kube-apiserver adds the data, or the name of its scheme.
    let begins = |ours: &str| {
        let is_alike = |mark: &str| ours.contains(mark) && expected.starts_with(ours);
        is_alike("is missing") || is_alike("is registered for version")
    };
    match ours {
        Ok(webhooks) if expected.is_empty() && listed.is_empty() => {
            let (ours, theirs) =
                (webhooks.iter().map(self::ours).collect(), theirs(&answer["configurations"]));
            let ours: Vec<Value> = ours;
            let difference = || format!("ours:     {}\n  expected: {}", json!(ours), json!(theirs));
            if ours == theirs { Ok("accepted") } else { Err(difference()) }
        }
        Ok(_) => Err(format!("ours: accepted\n  expected: {expected}{listed:?}")),
        Err((first, errors)) => {
            let mut errors: Vec<&str> = errors.iter().map(String::as_str).collect();
            errors.sort_unstable();
            errors.dedup();
            listed.sort_unstable();
            listed.dedup();
            if first == expected && errors == listed {
                return Ok(match errors.len() {
                    0 if first.contains("unknown field") => "unknown field",
                    0 => "other",
                    1 => "one error",
                    _ => "several errors",
                });
            }
            // The gateway does not decode the kinds that it refuses.
            let refuses_kind =
                first.contains("unsupported resource type") && expected.contains("decoding error");
            if errors.is_empty() && listed.is_empty() && (begins(first) || decoding(expected) || refuses_kind)
            {
                return Ok("decoding");
            }
            Err(format!("ours:     {first}{errors:?}\n  expected: {expected}{listed:?}"))
        }
    }
}

#[test]
fn webhook_manifests_are_judged_as_by_kube_apiserver() {
    let Some(program) = GoProgram::build("configurations") else { return };
    let mut rng = Rng(seed());
    let all: Vec<(&str, String)> = (0..inputs(5_000))
        .map(|_| {
            let kind = *rng.pick(&["Mutating", "Validating"]);
            (kind, manifest(&mut rng, kind))
        })
        .collect();
    let question = |(kind, text): &(&str, String)| json!({"kind": kind, "data": STANDARD.encode(text)});
    let judge = |(kind, text): &(&str, String), answer: &Value| {
        let kind = if *kind == "Mutating" { WebhookKind::Mutating } else { WebhookKind::Validating };
        compare(&webhook_manifest(kind, "FOLDER/a.yaml", text), answer)
    };
    let words = program.compare("manifests", &all, question, |(_, text)| text.clone(), judge);
    words.occurred(&["accepted", "one error", "several errors", "unknown field", "decoding", "other"]);
}

/// A random `AdmissionConfiguration`; `FOLDER` stands for an existing folder.
fn admission(rng: &mut Rng) -> Value {
    let plugin = |rng: &mut Rng, name: &str| {
        let mut configuration = json!({
            "apiVersion": format!("apiserver.config.k8s.io/{}", pick(rng, &["v1", "v1alpha1", "v1beta1", "v2"])),
            "kind": pick(rng, &["WebhookAdmissionConfiguration", "WebhookAdmission", "AdmissionConfiguration", ""]),
        });
        if name.ends_with("Policy") && !rng.one_in(4) {
            configuration["kind"] = format!("{name}Configuration").into();
        }
        if rng.one_in(2) {
            configuration["kubeConfigFile"] = pick(rng, &["/kubeconfig", "", "kubeconfig", "./\"é\""]).into();
        }
        if rng.one_in(2) {
            let folders =
                ["FOLDER", "", "relative", "/none", "/dev/null", "FOLDER/../manifests", "/none/<é>"];
            configuration["staticManifestsDir"] = pick(rng, &folders).into();
        }
        if rng.one_in(20) {
            configuration[*rng.pick(&["kubeconfigFile", "staticManifestDir"])] = "/a".into();
        }
        match rng.below(6) {
            0 => json!({"name": name}),
            1 => json!({"name": name, "configuration": null, "path": ""}),
            _ => json!({"name": name, "configuration": configuration}),
        }
    };
    let mut plugins = Vec::new();
    for name in [
        "MutatingAdmissionWebhook",
        "ValidatingAdmissionWebhook",
        "MutatingAdmissionWebhook",
        "ValidatingAdmissionPolicy",
        "MutatingAdmissionPolicy",
    ] {
        if rng.one_in(2) {
            plugins.push(plugin(rng, name));
        }
    }
    let mut document = json!({
        "apiVersion": pick(rng, &["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1", "apiserver.config.k8s.io/v1alpha1", "apiserver.k8s.io/v1", "v1"]),
        "kind": pick(rng, &["AdmissionConfiguration", "WebhookAdmissionConfiguration", "Admission", ""]),
        "plugins": plugins,
    });
    if rng.one_in(15) {
        let key = *rng.pick(&["plugin", "Plugins", "metadata"]);
        document[key] = json!([]);
    }
    document
}

#[test]
fn admission_configurations_are_judged_as_by_kube_apiserver() {
    let Some(program) = GoProgram::build("configurations") else { return };
    let mut rng = Rng(seed());
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("manifests")).unwrap();
    let folder = directory.path().join("manifests").display().to_string();
    let file = directory.path().join("admission.yaml");
    let all: Vec<String> = (0..inputs(3_000)).map(|_| admission(&mut rng).to_string()).collect();
    let question = |text: &String| json!({"kind": "Admission", "data": STANDARD.encode(text)});
    let judge = |text: &String, answer: &Value| {
        std::fs::write(&file, text.replace("FOLDER", &folder)).unwrap();
        let ours = admission_configuration_errors(&file);
        let first = ours.first().map(|error| error.replace(&folder, "FOLDER")).unwrap_or_default();
        let expected = answer["error"].as_str().unwrap();
        let adds = first.contains("is missing") || first.contains("is registered for version");
        if first == expected || adds && expected.starts_with(&first) {
            Ok(if first.is_empty() { "accepted" } else { "refused" })
        } else {
            Err(format!("ours:     {first}\n  expected: {expected}"))
        }
    };
    let words = program.compare("configurations", &all, question, String::clone, judge);
    words.occurred(&["accepted", "refused"]);
}

#[test]
fn webhooks_have_the_credentials_and_urls_of_kube_apiserver() {
    let Some(program) = GoProgram::build("configurations") else { return };
    let mut rng = Rng(seed());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    let hosts = [
        "a.b.c",
        "a.b.c:443",
        "a.b.c:8443",
        "b.c",
        "[::1]",
        "[::1]:443",
        "[::1]:8443",
        "a.b.c:",
        "A.b.c",
        "c",
        "127.0.0.1:443",
    ];
    let users = [
        "a.b.c:443",
        "*.b.c:443",
        "*.c:443",
        "*.c",
        "a.b.c",
        "*.b.c",
        "*",
        "a.b.c:8443",
        "*.b.c:8443",
        "::1",
        "[::1]:443",
        "[[::1]]:443",
        "[::1]",
        "b.c",
        "c",
        "*.0.0.1",
        "127.0.0.1",
        "a.b.c:",
        "[a.b.c:]:443",
        "user",
    ];
    let paths = [
        "",
        "/",
        "/a",
        "/a/",
        "//a//b",
        "/a/../b",
        "/a/./b/..",
        "/%41%2f",
        "/é%20",
        "/a;b=c,d!'()*",
        "/%ff",
        "/%25",
    ];
    let all: Vec<(Value, String)> = (0..inputs(3_000))
        .map(|_| {
            let mut names: Vec<&str> = users.into_iter().filter(|_| rng.one_in(5)).collect();
            names.dedup();
            let listed: Vec<Value> = names.iter().map(|name| json!({"name": name, "user": {"token": format!("t-{}", name.len() * 100 + name.find('b').unwrap_or(9))}})).collect();
            let mut config = json!({"apiVersion": "v1", "kind": "Config", "users": listed});
            if rng.one_in(2) {
                config["contexts"] = json!([{"name": "c", "context": {"cluster": "", "user": *rng.pick(&users)}}]);
                config["current-context"] = (*rng.pick(&["c", "d", ""])).into();
            }
            (config, format!("https://{}{}", rng.pick(&hosts), rng.pick(&paths)))
        })
        .collect();
    let question = |(config, url): &(Value, String)| json!({"kind": "Server", "data": STANDARD.encode(config.to_string()), "url": url});
    let judge = |(config, url): &(Value, String), answer: &Value| {
        std::fs::write(&file, config.to_string()).unwrap();
        let ours = webhook_request(&file, url);
        let expected = Some((
            answer["token"].as_str().map(str::to_owned),
            answer["requested"].as_str().unwrap_or_default().replace("?timeout=30s", ""),
        ));
        if ours == expected && answer["error"] == "" {
            Ok(if answer["token"].is_null() { "anonymous" } else { "token" })
        } else {
            Err(format!("ours:     {ours:?}\n  expected: {answer}"))
        }
    };
    let words = program.compare("servers", &all, question, |(config, url)| format!("{config} {url}"), judge);
    words.occurred(&["anonymous", "token"]);
}
