//! What `failurePolicy: Ignore` of a policy ignores: errors that kube-apiserver ignores, and nothing that a client can cause at a bound
//! of the gateway.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::needless_pass_by_value,
    reason = "a test program: a panic is a failed test, and tables are written with values"
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_admission::configuration::manifest::Manifests;
use portcullis_admission::phases::{self, ShadowCall};
use portcullis_admission::review::{ReviewRequest, internal_error};
use portcullis_admission::{
    Attributes, CallError, Caller, Event, GroupVersionKind, GroupVersionResource, InlineCost, MatchError,
    NoConversions, Objects, Operation, SchemaPurpose, Surroundings, UserInfo, Webhook, WebhookResponse,
};
use portcullis_cel::{AccessDecision, AccessReview};
use portcullis_kubernetes::release::Release;
use portcullis_merge::{MAX_DEPTH, Schemas};
use serde_json::{Value, json};

/// A gateway that knows no namespaces for this reason.
struct Gateway {
    no_namespaces: MatchError,
    are_as_sent: bool,
    inline_cost: InlineCost,
    ignored: Mutex<Vec<String>>,
}

impl Gateway {
    fn new(no_namespaces: MatchError, are_as_sent: bool) -> Self {
        Self { no_namespaces, are_as_sent, inline_cost: InlineCost::default(), ignored: Mutex::default() }
    }
}

impl Caller for Gateway {
    async fn call(&self, _: &Webhook, _: &ReviewRequest) -> Result<WebhookResponse, CallError> {
        unreachable!("there are no webhooks")
    }

    fn note(&self, event: Event<'_>) {
        if let Event::PolicyIgnored(_, error) = event {
            self.ignored.lock().unwrap().push(error.to_owned());
        }
    }
}

impl Surroundings for Gateway {
    fn inline_cost(&self) -> &InlineCost {
        &self.inline_cost
    }

    async fn namespace_labels(&self, _: &str) -> Result<BTreeMap<String, String>, MatchError> {
        Err(self.no_namespaces.clone())
    }

    async fn schemas(
        &self,
        _: &GroupVersionKind,
        _: SchemaPurpose,
    ) -> Result<Option<Arc<Schemas>>, Box<Status>> {
        let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let properties = json!({"apiVersion": {"type": "string"}, "kind": {"type": "string"},
            "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
            "data": {"type": "object", "additionalProperties": {"type": "string"}}, "any": anything});
        let kinds = json!([{"group": "team.io", "version": "v1", "kind": "Widget"}]);
        let schema =
            json!({"type": "object", "properties": properties, "x-kubernetes-group-version-kind": kinds});
        let document = json!({"components": {"schemas": {"Widget": schema}}}).to_string();
        Ok(Some(Arc::new(Schemas::read(document.as_bytes()).unwrap())))
    }

    fn are_as_sent(&self) -> bool {
        self.are_as_sent
    }

    async fn authorize(&self, _: &AccessReview) -> Result<AccessDecision, Box<Status>> {
        unreachable!("no expression asks")
    }

    fn is_late(&self) -> bool {
        false
    }

    async fn shadow(&self, _: ShadowCall) {}
}

/// How a request ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// The policy acts.
    Applied,
    /// It is skipped, which is noted.
    Ignored,
    /// The request is refused.
    Refused,
}

const NAME: &str = "p.static.k8s.io";

/// The rules of a policy or a binding for objects of this resource.
fn rules(resource: &str, more: Value) -> Value {
    let rule = json!({"operations": ["*"], "apiGroups": ["team.io"], "apiVersions": ["v1"], "resources": [resource]});
    let mut resources = json!({"resourceRules": [rule]});
    resources.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    resources
}

fn manifest(kind: &str, name: &str, spec: &Value) -> Value {
    let version = "admissionregistration.k8s.io/v1";
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Policies of both kinds that ignore failures, each with one binding.
struct Case {
    constraints: Value,
    binding: Value,
    /// The expression of a mutation, and its type.
    mutation: (&'static str, &'static str),
    validation: &'static str,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            constraints: rules("widgets", json!({})),
            binding: Value::Null,
            mutation: ("ApplyConfiguration", "Object{data: {'a': 'b'}}"),
            validation: "false",
        }
    }
}

impl Case {
    fn spec(&self) -> Value {
        json!({"failurePolicy": "Ignore", "matchConstraints": self.constraints})
    }

    fn binding(&self, mut spec: Value) -> Value {
        spec["policyName"] = json!(NAME);
        if !self.binding.is_null() {
            spec["matchResources"] = self.binding.clone();
        }
        spec
    }

    fn mutate(&self, gateway: &Gateway, object: &Value) -> End {
        let (kind, expression) = self.mutation;
        let mut spec = self.spec();
        spec["reinvocationPolicy"] = json!("Never");
        let field = if kind == "JSONPatch" { "jsonPatch" } else { "applyConfiguration" };
        spec["mutations"] = json!([{"patchType": kind, field: {"expression": expression}}]);
        let mut folder = Manifests::mutating_policies(Release::default());
        folder.add("p.yaml", 0, &manifest("MutatingAdmissionPolicy", NAME, &spec));
        let binding = self.binding(json!({}));
        folder.add("p.yaml", 1, &manifest("MutatingAdmissionPolicyBinding", "b.static.k8s.io", &binding));
        let policies: Vec<_> = folder.finish().unwrap().into_iter().map(Arc::new).collect();
        let mut objects = Objects { object: Some(object.clone()), old_object: None };
        let attributes = attributes();
        let mutated = phases::mutate((&policies, &[]), &attributes, &mut objects, &NoConversions, gateway);
        let mutated = mutated.now_or_never().unwrap().map(|mutated| mutated.changed);
        end(mutated.map_err(|status| status.message.unwrap()), gateway)
    }

    fn validate(&self, gateway: &Gateway, object: &Value) -> End {
        let mut spec = self.spec();
        spec["validations"] = json!([{"expression": self.validation, "message": "it does not hold"}]);
        let mut folder = Manifests::policies(Release::default());
        folder.add("p.yaml", 0, &manifest("ValidatingAdmissionPolicy", NAME, &spec));
        let binding = self.binding(json!({"validationActions": ["Deny"]}));
        folder.add("p.yaml", 1, &manifest("ValidatingAdmissionPolicyBinding", "b.static.k8s.io", &binding));
        let policies: Vec<_> = folder.finish().unwrap().into_iter().map(Arc::new).collect();
        let mut objects = Objects { object: Some(object.clone()), old_object: None };
        let attributes = attributes();
        let validated =
            phases::validate((&policies, &[]), &attributes, &mut objects, &NoConversions, gateway);
        match validated.now_or_never().unwrap().map_err(|status| status.message.unwrap()) {
            Err(denied) if denied.ends_with("denied request: it does not hold") => end(Ok(true), gateway),
            other => end(other.map(|()| false), gateway),
        }
    }
}

fn attributes() -> Attributes {
    let text = str::to_owned;
    Attributes {
        operation: Operation::Create,
        kind: GroupVersionKind { group: text("team.io"), version: text("v1"), kind: text("Widget") },
        resource: GroupVersionResource {
            group: text("team.io"),
            version: text("v1"),
            resource: text("widgets"),
        },
        subresource: text(""),
        name: text("c"),
        namespace: text("team"),
        user: UserInfo::default(),
        dry_run: false,
        options: None,
    }
}

fn end(acted: Result<bool, String>, gateway: &Gateway) -> End {
    let ignored = std::mem::take(&mut *gateway.ignored.lock().unwrap());
    match acted {
        Ok(true) => End::Applied,
        Ok(false) => {
            assert!(!ignored.is_empty(), "it is noted");
            assert!(!ignored.iter().any(|error| error.contains(SECRET)), "{ignored:?}");
            End::Ignored
        }
        Err(message) => {
            assert!(message.starts_with("Internal error occurred: "), "{message}");
            End::Refused
        }
    }
}

fn widget(more: &Value) -> Value {
    let mut object = json!({"apiVersion": "team.io/v1", "kind": "Widget", "metadata": {"name": "c"}});
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

/// An object of so many levels.
fn deep(levels: usize) -> Value {
    widget(&(2..levels).fold(json!({"any": 1}), |inner, _| json!({"any": inner})))
}

fn known() -> Gateway {
    Gateway::new(MatchError::Request(internal_error("no namespace is read")), false)
}

#[test]
fn an_object_that_is_deeper_than_the_bounds_is_refused() {
    let seen = |case: &Case, object: &Value| (case.mutate(&known(), object), case.validate(&known(), object));
    let uses = Case {
        mutation: ("ApplyConfiguration", "Object{data: {'a': string(has(object.any))}}"),
        validation: "!has(object.any)",
        ..Case::default()
    };
    assert_eq!(seen(&uses, &deep(200)), (End::Applied, End::Applied));
    for levels in [251, 252, 300, 1_000] {
        assert_eq!(seen(&uses, &deep(levels)), (End::Refused, End::Refused), "{levels}");
    }
    // An expression that does not use the object sees nothing of its depth, but the merge does.
    assert_eq!(Case::default().validate(&known(), &deep(300)), End::Applied);
    assert_eq!(Case::default().mutate(&known(), &deep(MAX_DEPTH + 1)), End::Refused);
    // It is the patch that is too deep.
    for mutation in [
        ("ApplyConfiguration", "Object{any: Object.any{a: Object.any.a{b: object.any}}}"),
        ("JSONPatch", "[JSONPatch{op: 'add', path: '/any', value: {'b': {'c': object.any}}}]"),
    ] {
        let case = Case { mutation, ..Case::default() };
        assert_eq!(case.mutate(&known(), &deep(200)), End::Applied, "{mutation:?}");
        assert_eq!(case.mutate(&known(), &deep(250)), End::Refused, "{mutation:?}");
    }
}

#[test]
fn a_namespace_that_is_not_read_now_ends_the_request() {
    let selector = json!({"namespaceSelector": {"matchLabels": {"env": "prod"}}});
    let of_policy = Case { constraints: rules("widgets", selector.clone()), ..Case::default() };
    let of_binding = Case { binding: rules("widgets", selector), ..Case::default() };
    for case in [of_policy, of_binding] {
        for (error, expected) in [
            (MatchError::Request(internal_error("too many reads")), End::Refused),
            (MatchError::Configuration(internal_error("there is no such namespace")), End::Ignored),
        ] {
            let gateway = Gateway::new(error, false);
            let object = widget(&json!({}));
            assert_eq!(case.mutate(&gateway, &object), expected, "{:?}", case.binding);
            assert_eq!(case.validate(&gateway, &object), expected, "{:?}", case.binding);
        }
    }
}

#[test]
fn a_binding_that_may_be_about_another_version_ends_the_request() {
    let rule = json!({"operations": ["*"], "apiGroups": ["team.io"], "apiVersions": ["v2"], "resources": ["widgets"]});
    let case = Case { binding: json!({"resourceRules": [rule]}), ..Case::default() };
    let object = widget(&json!({}));
    assert_eq!(case.mutate(&known(), &object), End::Refused);
    assert_eq!(case.validate(&known(), &object), End::Refused);
}

#[test]
fn an_object_as_it_was_sent_may_not_have_what_its_kind_has_not() {
    for unknown in [json!({"extra": 1}), json!({"data": ["a list"]})] {
        let object = widget(&unknown);
        let as_sent = Gateway::new(known().no_namespaces, true);
        assert_eq!(Case::default().mutate(&as_sent, &object), End::Refused, "{unknown}");
        // The API server has shown it so.
        assert_eq!(Case::default().mutate(&known(), &object), End::Ignored, "{unknown}");
    }
}

/// What an object may have that no log is to show.
const SECRET: &str = "hunter2";

#[test]
fn errors_of_expressions_are_ignored_and_logged_without_the_object() {
    let case = Case {
        mutation: ("JSONPatch", "[JSONPatch{op: 'add', path: '/data/a', value: object.data[object.any.s]}]"),
        validation: "object.data[object.any.s] == 'a' || 'a'.matches(object.any.s + '(')",
        ..Case::default()
    };
    let object = widget(&json!({"any": {"s": SECRET}, "data": {"b": "c"}}));
    assert_eq!(case.mutate(&known(), &object), End::Ignored);
    assert_eq!(case.validate(&known(), &object), End::Ignored);
    let applied = Case { mutation: ("ApplyConfiguration", "Object{data: object.any.s}"), ..Case::default() };
    assert_eq!(applied.mutate(&known(), &object), End::Ignored);
}

/// A value is converted up to a limit, which kube-apiserver does not have.
#[test]
fn a_patch_of_too_many_values_is_not_ignored() {
    let object = |count: usize| widget(&json!({"any": vec![1; count]}));
    let mutation = ("JSONPatch", "[JSONPatch{op: 'add', path: '/any', value: {'copy': object.any}}]");
    let twice =
        ("JSONPatch", "[JSONPatch{op: 'add', path: '/any', value: {'a': object.any, 'b': object.any}}]");
    let case = |mutation| Case { mutation, ..Case::default() };
    assert_eq!(case(mutation).mutate(&known(), &object(1_000)), End::Applied);
    assert_eq!(case(mutation).mutate(&known(), &object(1_100_000)), End::Refused);
    assert_eq!(case(twice).mutate(&known(), &object(600_000)), End::Refused);
}

/// Each of these costs more here than in kube-apiserver, or is not compiled here, and is denied there.
#[test]
fn what_costs_more_here_is_not_ignored() {
    let patterns: Vec<_> =
        (0..3_000).map(|number| format!("q{number}(?:ab|cd|ef){{1,30}}[a-f]{{2,9}}")).collect();
    let object = widget(&json!({"any": {
        "s": "a".repeat(1_000), "t": "b".repeat(12_000), "p": patterns, "half": r"\x{D800}|x"
    }}));
    for expression in [
        "object.any.s.replace('a', object.any.t).size() > 10",
        "object.any.p.exists(p, 'x'.matches(p))",
        "'x'.matches(object.any.half)",
    ] {
        let validation = format!("!({expression})").leak();
        let mutation = format!("Object{{data: {{'a': string({expression})}}}}").leak();
        let case = Case { validation, mutation: ("ApplyConfiguration", mutation), ..Case::default() };
        assert_eq!(case.validate(&known(), &object), End::Refused, "{expression}");
        assert_eq!(case.mutate(&known(), &object), End::Refused, "{expression}");
    }
}
