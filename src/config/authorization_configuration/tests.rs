//! Compares errors with kube-apiserver's. The cases are those of `TestValidateAuthorizationConfiguration` and
//! `TestValidateAndCompileMatchConditions` in `k8s.io/apiserver/pkg/apis/apiserver/validation/validation_test.go`, with
//! kube-apiserver's modes in place of made-up ones, and more.

use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_cel::CelGo;
use serde_json::{Value, json};

use super::AuthorizationConfiguration;
use super::gateway;
use super::validation::{ValidAuthorizer, ValidWebhook, path_in_file, validate};
use crate::authz::settings::{FailurePolicy, SubjectAccessReviewVersion};
use crate::config::apiserver_config::decode::decode;

fn document(authorizers: &Value) -> String {
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration",
        "authorizers": authorizers,
    })
    .to_string()
}

fn read(authorizers: &Value) -> Result<Vec<ValidAuthorizer>, String> {
    let decoded = decode::<AuthorizationConfiguration>(document(authorizers).as_bytes());
    let (configuration, _) = decoded.map_err(|error| error.problem)?;
    let problem = |file: &Path| match file.to_str() {
        Some("/directory") => Some("must be a regular file".to_owned()),
        _ => None,
    };
    validate(&configuration, CelGo::REFERENCE, problem).map_err(|errors| {
        assert!(errors.iter().all(|error| !error.fix.is_empty()), "every error needs a fix: {errors:?}");
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        texts.join("\n")
    })
}

fn error_of(authorizers: &Value) -> String {
    read(authorizers).err().unwrap_or_default()
}

/// A valid webhook with these keys replaced; `null` removes a key.
fn webhook(changes: Value) -> Value {
    let mut webhook = json!({
        "timeout": "5s", "authorizedTTL": "5m", "unauthorizedTTL": "30s", "failurePolicy": "NoOpinion",
        "subjectAccessReviewVersion": "v1", "matchConditionSubjectAccessReviewVersion": "v1",
        "connectionInfo": {"type": "InClusterConfig"},
    });
    let Value::Object(changes) = changes else { panic!("{changes}") };
    webhook.as_object_mut().unwrap().extend(changes);
    json!({"type": "Webhook", "name": "default", "webhook": webhook})
}

#[test]
fn authorizers_are_judged_as_by_kube_apiserver() {
    const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
                             '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
                             for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let named = |name: &str| {
        let mut one = webhook(json!({}));
        one["name"] = name.into();
        one
    };
    let invalid = |name: &str, problem: &str| {
        format!("authorizers[0].name: Invalid value: \"{name}\": authorizer name is invalid: {problem}")
    };
    let long = format!("{}.", "a".repeat(253));
    let cases: Vec<(&str, Value, String)> = vec![
        (
            "at least one authorizer",
            json!([]),
            "authorizers: Required value: at least one authorization mode must be defined".to_owned(),
        ),
        ("a type is required", json!([{}]), "authorizers[0].type: Required value".to_owned()),
        ("a name is required", json!([{"type": "RBAC"}]), "authorizers[0].name: Required value".to_owned()),
        (
            "names are unique",
            json!([{"type": "RBAC", "name": "rbac"}, {"type": "Node", "name": "rbac"}]),
            "authorizers[1].name: Duplicate value: \"rbac\"".to_owned(),
        ),
        ("a label", json!([named("myauthorizer")]), String::new()),
        ("a subdomain", json!([named("foo.example.domain")]), String::new()),
        ("no subdomain", json!([named("FOO.example.domain")]), invalid("FOO.example.domain", SUBDOMAIN)),
        (
            "a long name",
            json!([named(&long)]),
            invalid(&long, &format!("must be no more than 253 bytes, {SUBDOMAIN}")),
        ),
        (
            "an unknown type",
            json!([{"type": "Foo"}]),
            "authorizers[0].type: Unsupported value: \"Foo\": supported values: \"ABAC\", \"AlwaysAllow\", \
             \"AlwaysDeny\", \"Node\", \"RBAC\", \"Webhook\""
                .to_owned(),
        ),
        (
            "a type twice",
            json!([{"type": "RBAC", "name": "rbac"}, {"type": "RBAC", "name": "rbac-2"}]),
            "authorizers[1].type: Duplicate value: \"RBAC\"".to_owned(),
        ),
        ("two webhooks", json!([webhook(json!({})), named("second-webhook")]), String::new()),
        (
            "a webhook without settings",
            json!([{"type": "Webhook", "name": "default"}]),
            "authorizers[0].webhook: Required value: required when type=Webhook".to_owned(),
        ),
        (
            "settings without a webhook",
            json!([{"type": "RBAC", "name": "rbac", "webhook": {}}]),
            "authorizers[0].webhook: Invalid value: \"non-null\": may only be specified when type=Webhook"
                .to_owned(),
        ),
        (
            "the names that flags would give",
            json!([{"type": "AlwaysAllow", "name": "a"}, {"type": "AlwaysDeny", "name": "alwaysdeny"}, {"type": "RBAC", "name": "b"}]),
            "expected name alwaysallow for authorizer AlwaysAllow instead of a\n\
             expected name rbac for authorizer RBAC instead of b"
                .to_owned(),
        ),
    ];
    for (name, authorizers, expected) in cases {
        assert_eq!(error_of(&authorizers), expected, "{name}");
    }
}

#[test]
fn webhooks_are_judged_as_by_kube_apiserver() {
    let connection =
        |mode: &str, file: Value| json!({"connectionInfo": {"type": mode, "kubeConfigFile": file}});
    let cases: &[(&str, Value, &str)] = &[
        ("nothing wrong", json!({}), ""),
        (
            "conditions",
            json!({"matchConditions": [
                {"expression": "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'kube-system'"},
                {"expression": "request.user == 'admin'"},
            ]}),
            "",
        ),
        ("no timeout", json!({"timeout": null}), "timeout: Required value"),
        ("a timeout of zero", json!({"timeout": "0s"}), "timeout: Required value"),
        (
            "a negative timeout",
            json!({"timeout": "-30s"}),
            "timeout: Invalid value: \"-30s\": must be > 0s and <= 30s",
        ),
        (
            "a long timeout",
            json!({"timeout": "60s"}),
            "timeout: Invalid value: \"1m0s\": must be > 0s and <= 30s",
        ),
        ("default TTLs", json!({"authorizedTTL": null, "unauthorizedTTL": "0s"}), ""),
        (
            "negative TTLs",
            json!({"authorizedTTL": "-30s", "unauthorizedTTL": "-1ms"}),
            "authorizedTTL: Invalid value: \"-30s\": must be > 0s\n\
             unauthorizedTTL: Invalid value: \"-1ms\": must be > 0s",
        ),
        (
            "no version",
            json!({"subjectAccessReviewVersion": null}),
            "subjectAccessReviewVersion: Required value",
        ),
        (
            "an unknown version",
            json!({"subjectAccessReviewVersion": "v2beta1"}),
            "subjectAccessReviewVersion: Unsupported value: \"v2beta1\": supported values: \"v1\", \"v1beta1\"",
        ),
        (
            "no version of conditions",
            json!({"matchConditionSubjectAccessReviewVersion": null, "matchConditions": [{"expression": "true"}]}),
            "matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified",
        ),
        ("neither version nor conditions", json!({"matchConditionSubjectAccessReviewVersion": null}), ""),
        (
            "an unknown version of conditions",
            json!({"matchConditionSubjectAccessReviewVersion": "v1beta1"}),
            "matchConditionSubjectAccessReviewVersion: Unsupported value: \"v1beta1\": supported values: \"v1\"",
        ),
        ("no failure policy", json!({"failurePolicy": null}), "failurePolicy: Required value"),
        (
            "an unknown failure policy",
            json!({"failurePolicy": "AlwaysAllow"}),
            "failurePolicy: Unsupported value: \"AlwaysAllow\": supported values: \"NoOpinion\", \"Deny\"",
        ),
        ("no connection", json!({"connectionInfo": null}), "connectionInfo.type: Required value"),
        (
            "an unknown connection",
            connection("<External>", Value::Null),
            "connectionInfo.type: Unsupported value: {\"Type\":\"\\u003cExternal\\u003e\",\"KubeConfigFile\":null}: \
             supported values: \"InClusterConfig\", \"KubeConfigFile\"",
        ),
        (
            "a file beside InClusterConfig",
            connection("InClusterConfig", json!("")),
            "connectionInfo.kubeConfigFile: Invalid value: \"\": can only be set when type=KubeConfigFile",
        ),
        ("no file", connection("KubeConfigFile", json!("")), "connectionInfo.kubeConfigFile: Required value"),
        (
            "a relative path",
            connection("KubeConfigFile", json!("../some/relative/path/kubeconfig")),
            "connectionInfo.kubeConfigFile: Invalid value: \"../some/relative/path/kubeconfig\": must be an absolute \
             path",
        ),
        (
            "a directory",
            connection("KubeConfigFile", json!("/directory")),
            "connectionInfo.kubeConfigFile: Invalid value: \"/directory\": must be a regular file",
        ),
        ("a file", connection("KubeConfigFile", json!("/kubeconfig")), ""),
        (
            "a blank condition",
            json!({"matchConditions": [{"expression": "  "}, {}]}),
            "matchConditions[0].expression: Required value\nmatchConditions[1].expression: Required value",
        ),
        (
            "a condition twice",
            json!({"matchConditions": [{"expression": "request.user == 'admin'"}, {"expression": "request.user == 'admin'"}]}),
            "matchConditions[1].expression: Duplicate value: \"request.user == 'admin'\"",
        ),
        (
            "an undeclared reference",
            json!({"matchConditions": [{"expression": "test"}]}),
            "matchConditions[0].expression: Invalid value: \"test\": compilation failed: ERROR: <input>:1:1: undeclared \
             reference to 'test' (in container '')\n | test\n | ^",
        ),
        (
            "the first of two syntax errors",
            json!({"matchConditions": [{"expression": "request.user = 'test'"}]}),
            "matchConditions[0].expression: Invalid value: \"request.user = 'test'\": compilation failed: ERROR: \
             <input>:1:14: Syntax error: token recognition error at: '= '\n | request.user = 'test'\n | .............^",
        ),
        (
            "a condition of another type",
            json!({"matchConditions": [{"expression": "request.user"}]}),
            "matchConditions[0].expression: Invalid value: \"request.user\": must evaluate to bool but got string",
        ),
        (
            "many conditions",
            json!({"matchConditions": vec![json!({}); 65]}),
            "matchConditions: Too many: 65: must have at most 64 items",
        ),
    ];
    for (name, changes, expected) in cases {
        let expected: Vec<String> = expected
            .split('\n')
            .map(|line| {
                if line.starts_with(" |") || line.is_empty() {
                    line.to_owned()
                } else {
                    format!("authorizers[0].{line}")
                }
            })
            .collect();
        assert_eq!(error_of(&json!([webhook(changes.clone())])), expected.join("\n"), "{name}");
    }
}

#[test]
fn settings_are_those_of_the_file() {
    let valid = |changes: Value| {
        let [ValidAuthorizer::Webhook(webhook)] =
            <[_; 1]>::try_from(read(&json!([webhook(changes)])).unwrap()).unwrap()
        else {
            panic!("no webhook")
        };
        webhook
    };
    let by_file = json!({"type": "KubeConfigFile", "kubeConfigFile": "/k"});
    let defaults = valid(json!({"connectionInfo": by_file, "authorizedTTL": null, "unauthorizedTTL": null}));
    let expected = ValidWebhook {
        name: "default".to_owned(),
        kubeconfig: PathBuf::from("/k"),
        version: SubjectAccessReviewVersion::V1,
        timeout: Duration::from_secs(5),
        authorized_ttl: Duration::from_mins(5),
        unauthorized_ttl: Duration::from_secs(30),
        failure_policy: FailurePolicy::NoOpinion,
        match_conditions: Vec::new(),
    };
    assert_eq!(defaults, expected);
    let others = valid(json!({
        "connectionInfo": by_file, "cacheAuthorizedRequests": false, "unauthorizedTTL": "1.5s", "timeout": "30s",
        "failurePolicy": "Deny", "subjectAccessReviewVersion": "v1beta1", "cacheUnauthorizedRequests": true,
        "matchConditions": [{"expression": "request.user == 'a'"}],
    }));
    assert_eq!(others.authorized_ttl, Duration::ZERO);
    assert_eq!(others.unauthorized_ttl, Duration::from_millis(1500));
    assert_eq!(others.timeout, Duration::from_secs(30));
    assert_eq!(others.failure_policy, FailurePolicy::Deny);
    assert_eq!(others.version, SubjectAccessReviewVersion::V1Beta1);
    assert_eq!(others.match_conditions.len(), 1);
}

#[test]
fn a_gateway_has_no_authorizers_of_the_backend() {
    let authorizers = json!([
        {"type": "Node", "name": "node"}, webhook(json!({})), {"type": "AlwaysAllow", "name": "alwaysallow"},
        {"type": "RBAC", "name": "rbac"}, {"type": "ABAC", "name": "abac"}, {"type": "AlwaysDeny", "name": "alwaysdeny"},
    ]);
    assert_eq!(error_of(&authorizers), "", "kube-apiserver accepts them");
    let (configuration, _) = decode(document(&authorizers).as_bytes()).unwrap();
    let texts: Vec<String> =
        gateway::problems(&configuration, false).iter().map(ToString::to_string).collect();
    let expected = [
        "authorizers[0].type: Forbidden: the backend decides by Node, after the gateway",
        "authorizers[1].connectionInfo.type: Forbidden: InClusterConfig is not supported, as in kube-apiserver",
        "authorizers[3].type: Forbidden: the backend decides by RBAC, after the gateway",
        "authorizers[4].type: Forbidden: the backend decides by ABAC, after the gateway",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn decoding_is_strict() {
    let cases: &[(&str, Value, &str)] = &[
        (
            "an unknown field",
            json!([{"type": "Webhook", "webhook": {"connectionInfo": {"kubeconfigFile": "/k"}}}]),
            "strict decoding error: unknown field \"authorizers[0].webhook.connectionInfo.kubeconfigFile\"",
        ),
        (
            "a number for a duration",
            json!([{"webhook": {"timeout": 3}}]),
            "authorizers[0].webhook.timeout: invalid type: integer `3`, expected a string",
        ),
        (
            "no duration",
            json!([{"webhook": {"authorizedTTL": "3"}}]),
            "authorizers[0].webhook.authorizedTTL: time: missing unit in duration \"3\"",
        ),
        (
            "a text for true",
            json!([{"webhook": {"cacheAuthorizedRequests": "true"}}]),
            "authorizers[0].webhook.cacheAuthorizedRequests: invalid type: string \"true\", expected a boolean",
        ),
    ];
    for (name, authorizers, expected) in cases {
        assert_eq!(error_of(authorizers), *expected, "{name}");
    }
    let (empty, lines) = decode::<AuthorizationConfiguration>(b"").unwrap();
    assert_eq!((empty, lines.of("authorizers")), (AuthorizationConfiguration::default(), 1));
}

#[test]
fn errors_leave_out_a_key_of_the_file() {
    for (field, path) in [
        ("authorizers", "authorizers"),
        ("authorizers[0].name", "authorizers[0].name"),
        ("authorizers[0].webhook", "authorizers[0].webhook"),
        ("authorizers[2].timeout", "authorizers[2].webhook.timeout"),
        ("authorizers[0].connectionInfo.type", "authorizers[0].webhook.connectionInfo.type"),
        (
            "authorizers[0].matchConditions[1].expression",
            "authorizers[0].webhook.matchConditions[1].expression",
        ),
    ] {
        assert_eq!(path_in_file(field), path);
    }
}
