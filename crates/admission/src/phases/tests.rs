//! Upstream's tables: `pkg/admission/plugin/webhook/testing/testcase.go`, and what they leave out.
//!
//! Its rows about clients without a URL, and about webhooks with side effects or without `sideEffects`, do not apply: such
//! webhooks cannot be configured.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::MatchError;
use futures_util::FutureExt;
use portcullis_cel::{AccessDecision, AccessReview};
use serde_json::{Value, json};

use super::*;
use crate::InlineCost;
use crate::review::ReviewRequest;
use crate::{
    Attributes, CallError, Caller, Conversions, Event, FailurePolicy, GroupVersionKind, GroupVersionResource,
    MatchPolicy, Objects, Operation, ReinvocationPolicy, ReviewVersion, ServedResource, ShadowOutcome,
    SideEffects, Surroundings, UserInfo, Webhook, WebhookKind, WebhookResponse,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use std::sync::Arc;

mod converting;
mod mutating;
mod validating;

/// What a phase did, in order of the events.
#[derive(Debug, Default)]
struct Record {
    calls: Vec<String>,
    reviews: Vec<Value>,
    outcomes: Vec<String>,
    annotations: BTreeMap<String, String>,
    warnings: Vec<String>,
    shadows: Vec<(String, ShadowOutcome)>,
    failed_open: usize,
}

/// Webhooks that answer by the path of their URL, as upstream's test server does.
#[derive(Default)]
struct FakeSurroundings {
    record: Mutex<Record>,
    late: bool,
}

impl FakeSurroundings {
    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }
}

fn base64(text: &str) -> Value {
    // Go also reads octets from a list of numbers.
    text.as_bytes().iter().copied().map(Value::from).collect()
}

fn respond(path: &str) -> Value {
    let refused = |status: Value| json!({"allowed": false, "status": status});
    let patched = |patch: &str| json!({"allowed": true, "patchType": "JSONPatch", "patch": base64(patch)});
    match path {
        "disallow" => refused(json!({"code": 403})),
        "disallowReason" => refused(json!({"code": 403, "message": "you shall not pass"})),
        "shouldNotBeCalled" => {
            refused(json!({"code": 403, "message": "doesn't expect labels to match object selector"}))
        }
        "allow" => json!({"allowed": true, "auditAnnotations": {"key1": "value1"}, "warnings": ["careful"]}),
        "removeLabel" => {
            let mut response = patched(r#"[{"op": "remove", "path": "/metadata/labels/remove"}]"#);
            response["auditAnnotations"] = json!({"key1": "value1"});
            response
        }
        "addLabel" => patched(r#"[{"op": "add", "path": "/metadata/labels/added", "value": "test"}]"#),
        "invalidPatch" => patched("[{"),
        "invalidMutation" => patched(r#"[{"op": "add", "CORRUPTED_KEY":}]"#),
        "noMatch" => patched(r#"[{"op": "test", "path": "/metadata/name", "value": "other"}]"#),
        "kind" => patched(r#"[{"op": "replace", "path": "/kind", "value": "Secret"}]"#),
        "same" => patched(r#"[{"op": "test", "path": "/metadata/name", "value": "my-pod"}]"#),
        "emptyPatch" => patched("[]"),
        "nilResponse" => Value::Null,
        "invalidAnnotation" => json!({"allowed": true, "auditAnnotations": {"invalid*key": "value1"}}),
        _ => json!({"allowed": true}),
    }
}

impl Caller for FakeSurroundings {
    async fn call(&self, webhook: &Webhook, review: &ReviewRequest) -> Result<WebhookResponse, CallError> {
        let path = webhook.url.rsplit('/').next().unwrap();
        self.record().calls.push(webhook.name.clone());
        self.record().reviews.push(serde_json::from_slice(&review.body()).unwrap());
        if path == "nonStatusError" {
            return Err(CallError::Failed("malformed HTTP response \"bad-http\"".to_owned()));
        }
        if path == "never" {
            futures_util::future::pending::<()>().await;
        }
        let (status, content_type, body) = match path {
            "internalErr" => (500, "text/plain", "webhook internal server error\n".to_owned()),
            path => (200, "application/json", json!({"response": respond(path)}).to_string()),
        };
        Ok(WebhookResponse { status, content_type: content_type.to_owned(), body: body.into() })
    }

    fn note(&self, event: Event<'_>) {
        let mut record = self.record();
        match event {
            Event::Called { outcome, .. } => record.outcomes.push(format!("{outcome:?}")),
            Event::FailedOpen { .. } => record.failed_open += 1,
            Event::Warning(text) => record.warnings.push(text.to_owned()),
            Event::Annotation(annotation) => {
                assert_eq!(annotation.needs_request_level, annotation.key.starts_with("patch."));
                assert_eq!(record.annotations.insert(annotation.key, annotation.value), None);
            }
            Event::Shadow { webhook, would, .. } => {
                record.shadows.push((webhook.name.clone(), would.clone()));
            }
            Event::ConditionFailed(..)
            | Event::ConditionExcluded(..)
            | Event::ConditionsEvaluated(..)
            | Event::PolicyChecked(_)
            | Event::PolicyIgnored(..)
            | Event::PolicyMutated(_)
            | Event::Explained { .. }
            | Event::ShadowPolicy { .. }
            | Event::PluginEnded { .. } => {}
        }
    }
}

impl Surroundings for FakeSurroundings {
    fn inline_cost(&self) -> &InlineCost {
        static SPENT: std::sync::LazyLock<InlineCost> = std::sync::LazyLock::new(InlineCost::default);
        &SPENT
    }

    async fn namespace_labels(&self, _: &str) -> Result<BTreeMap<String, String>, MatchError> {
        Err(MatchError::Configuration(crate::review::internal_error("namespaces \"x\" not found")))
    }

    async fn namespace(&self, _: &str) -> Result<Value, MatchError> {
        Err(MatchError::Configuration(crate::review::internal_error("namespaces \"x\" not found")))
    }

    async fn authorize(&self, _: &AccessReview) -> Result<AccessDecision, Box<Status>> {
        Ok(AccessDecision { allowed: false, reason: String::new(), error: None })
    }

    fn is_late(&self) -> bool {
        self.late
    }

    async fn shadow(&self, call: ShadowCall) {
        // No request waits for a webhook that does not answer.
        let _unfinished = call.run(self).now_or_never();
    }
}

/// An API server that serves every resource as v1, v2 and v3, but v9 only to those who do not ask.
#[derive(Debug, Default)]
struct FakeConversions {
    /// Whether it does not say what it serves.
    silent: bool,
    /// What it has converted.
    log: Mutex<Vec<String>>,
}

impl FakeConversions {
    fn answer(&self, what: &str, object: &Value, to: &ServedResource) -> Result<Value, String> {
        let from = object["apiVersion"].as_str().unwrap_or_default();
        self.log.lock().unwrap().push(format!("{what} {from} {}", to.kind.version));
        if to.kind.version == "v3" {
            return Err("it is broken".to_owned());
        }
        let mut converted = object.clone();
        converted["apiVersion"] = to.kind.version.clone().into();
        Ok(converted)
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

impl Conversions for FakeConversions {
    async fn equivalents(&self, attributes: &Attributes) -> Option<Vec<ServedResource>> {
        let served = ["v1", "v2", "v3"].map(|version| {
            let mut served = attributes.requested();
            served.resource.version = version.to_owned();
            served.kind.version = version.to_owned();
            served
        });
        (!self.silent).then(|| served.into())
    }

    async fn convert(&self, object: &Value, to: &ServedResource) -> Result<Value, String> {
        self.answer("new", object, to)
    }

    async fn convert_old(&self, old: &Value, to: &ServedResource) -> Result<Value, String> {
        self.answer("old", old, to)
    }
}

/// A webhook of the name and the path. `selects` is `*` for every request, a version for requests by another one, `error`
/// for those in a namespace that cannot be read, empty for none, or the label that the object must have.
fn webhook(name: &str, path: &str, selects: &str) -> Webhook {
    let selector = |selector: Value| {
        crate::matching::LabelSelector::new(&serde_json::from_value(selector).unwrap()).unwrap()
    };
    let (mut version, mut namespaces, mut objects) = ("*", json!({}), json!({}));
    match selects {
        "" | "*" => {}
        "v2" | "v3" | "v9" => version = selects,
        "error" => namespaces = json!({"matchLabels": {"a": "b"}}),
        label => objects = json!({"matchExpressions": [{"key": label, "operator": "Exists"}]}),
    }
    let rule = crate::Rule {
        resource_names: Vec::new(),
        operations: None,
        api_groups: vec!["*".to_owned()],
        api_versions: vec![version.to_owned()],
        resources: vec!["*".to_owned()],
        scope: crate::Scope::All,
    };
    Webhook {
        configuration: "test-webhooks".to_owned(),
        name: name.to_owned(),
        kind: WebhookKind::Validating,
        url: format!("https://webhook-test/{path}"),
        ca_bundle: Vec::new(),
        rules: if selects.is_empty() { Vec::new() } else { vec![rule] },
        failure_policy: FailurePolicy::Fail,
        match_policy: MatchPolicy::Equivalent,
        namespace_selector: selector(namespaces),
        object_selector: selector(objects),
        side_effects: SideEffects::None,
        timeout: Duration::from_secs(10),
        review_version: ReviewVersion::V1Beta1,
        match_conditions: Vec::new(),
        reinvocation_policy: ReinvocationPolicy::Never,
        shadow: false,
    }
}

fn ignored(name: &str, path: &str) -> Webhook {
    Webhook { failure_policy: FailurePolicy::Ignore, ..webhook(name, path, "*") }
}

fn shadow(name: &str, path: &str) -> Webhook {
    Webhook { shadow: true, ..webhook(name, path, "*") }
}

fn attributes() -> Attributes {
    Attributes {
        operation: Operation::Update,
        kind: GroupVersionKind { group: String::new(), version: "v1".into(), kind: "Pod".into() },
        resource: GroupVersionResource { group: String::new(), version: "v1".into(), resource: "pod".into() },
        subresource: String::new(),
        name: "my-pod".into(),
        namespace: "webhook-test".into(),
        user: UserInfo { username: "webhook-test".into(), uid: "webhook-test".into(), ..UserInfo::default() },
        dry_run: false,
        options: Some(json!({"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"})),
    }
}

fn objects(labels: &[&str]) -> Objects {
    let mut object = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "my-pod", "namespace": "webhook-test", "labels": {"pod.name": "my-pod"}}});
    let old_object = Some(object.clone());
    for label in labels {
        object["metadata"]["labels"][*label] = json!("me");
    }
    Objects { object: Some(object), old_object }
}

/// The code and the message of a refusal.
fn refusal(status: Box<Status>) -> (i32, String) {
    (status.code.unwrap(), status.message.unwrap())
}

const INTERNAL_ERR_TEXT: &str = "failed to call webhook: an error on the server (\"webhook internal server error\") has prevented the request from succeeding";

/// A row of upstream's `NewNonMutatingTestCases`: name, webhooks, code (0: allowed), part of the text, annotations of webhooks,
/// indices of webhooks that failed open.
type Row = (&'static str, Vec<Webhook>, i32, &'static str, &'static [&'static str], &'static [usize]);

/// Those of the 22 rows in which webhooks have a URL and no side effects.
fn non_mutating_rows() -> Vec<Row> {
    let skipped = |name: &str, path: &str| webhook(name, path, "nonexistent");
    let internal = |policy| {
        ["internalErr A", "internalErr B", "internalErr C"]
            .map(|name| Webhook { failure_policy: policy, ..webhook(name, "internalErr", "*") })
            .to_vec()
    };
    let allow = || webhook("allow.example.com", "allow", "*");
    let key = &["allow.example.com/key1"];
    vec![
        ("no match", vec![webhook("nomatch", "disallow", "")], 0, "", &[], &[]),
        ("match & allow", vec![allow()], 0, "", key, &[]),
        (
            "match & disallow",
            vec![webhook("disallow", "disallow", "*")],
            403,
            "without explanation",
            &[],
            &[],
        ),
        (
            "match & disallow ii",
            vec![webhook("disallowReason", "disallowReason", "*")],
            403,
            "you shall not pass",
            &[],
            &[],
        ),
        ("exempt by namespaceSelector", vec![skipped("disallow", "disallow")], 0, "", &[], &[]),
        ("exempt by namespaceSelector ii", vec![skipped("disallow", "disallow")], 0, "", &[], &[]),
        ("fail open", internal(FailurePolicy::Ignore), 0, "", &[], &[0, 1, 2]),
        ("fail closed", internal(FailurePolicy::Fail), 500, INTERNAL_ERR_TEXT, &[], &[]),
        (
            "match & non-status error",
            vec![webhook("nonStatusError", "nonStatusError", "*")],
            500,
            "failed to call webhook: malformed",
            &[],
            &[],
        ),
        ("absent response and fail open", vec![ignored("nilResponse", "nilResponse")], 0, "", &[], &[0]),
        (
            "absent response and fail closed",
            vec![webhook("nilResponse", "nilResponse", "*")],
            500,
            "webhook response was absent",
            &[],
            &[],
        ),
        (
            "illegal annotation format",
            vec![webhook("invalidAnnotation", "invalidAnnotation", "*")],
            0,
            "",
            &[],
            &[],
        ),
        (
            "skip webhook whose objectSelector does not match",
            vec![allow(), skipped("shouldNotBeCalled", "shouldNotBeCalled")],
            0,
            "",
            key,
            &[],
        ),
    ]
}

fn run_validating(surroundings: &FakeSurroundings, webhooks: Vec<Webhook>) -> Result<(), (i32, String)> {
    let webhooks: Vec<_> = webhooks.into_iter().map(Arc::new).collect();
    let (attributes, mut objects) = (attributes(), objects(&[]));
    let conversions = FakeConversions::default();
    let result =
        validate((&[], &webhooks), &attributes, &mut objects, &conversions, surroundings).now_or_never();
    result.unwrap().map_err(refusal)
}

fn run_mutating(
    surroundings: &FakeSurroundings,
    webhooks: Vec<Webhook>,
    objects: &mut Objects,
) -> Result<Mutated, (i32, String)> {
    let mutating = |webhook| Arc::new(Webhook { kind: WebhookKind::Mutating, ..webhook });
    let webhooks: Vec<_> = webhooks.into_iter().map(mutating).collect();
    let conversions = FakeConversions::default();
    let result = mutate((&[], &webhooks), &attributes(), objects, &conversions, surroundings).now_or_never();
    result.unwrap().map_err(refusal)
}
