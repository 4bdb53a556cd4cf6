//! The `matchConditions` of a webhook.
// apiserver: pkg/admission/plugin/webhook/matchconditions/matcher.go

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_cel::{Bindings, Budget, Expression, Outcome, ResourceTarget, Value as CelValue};
use serde_json::{Map, Value, json};

use super::evaluation::{Expressions, InlineCost, failure};
use super::statuses::{aggregate, forbidden};
use crate::{
    Attributes, ConditionsOf, Event, FailurePolicy, GroupVersionKind, GroupVersionResource, ServedResource,
    SharedObjects, Surroundings, Webhook,
};

/// A named expression that must be true.
#[derive(Debug, Clone, PartialEq)]
pub struct MatchCondition {
    /// The name.
    pub name: String,
    /// The expression, of [`portcullis_cel::Environment::ADMISSION`].
    pub expression: Expression,
}

/// What conditions are evaluated with.
pub(super) struct Evaluation<'a> {
    pub(super) attributes: &'a Attributes,
    pub(super) bindings: Arc<Bindings>,
    /// Whether an evaluation may take long.
    pub(super) are_large: bool,
    pub(super) inline: &'a InlineCost,
}

/// Why conditions have no result.
pub(crate) enum Failure {
    /// A condition failed: the failure policy of the webhook decides.
    Conditions(String),
    /// The request ends.
    Request(Box<Status>),
}

impl Evaluation<'_> {
    /// Whether the webhook is to be called: no condition is false, and those that fail are ignored by its failure policy.
    // matcher.go, Match; generic/webhook.go, ShouldCallHook
    pub(super) async fn holds(
        &self,
        webhook: &Webhook,
        surroundings: &impl Surroundings,
    ) -> Result<bool, Box<Status>> {
        let operation = self.attributes.operation;
        let began = Instant::now();
        let result = self.evaluate(webhook, surroundings).await;
        if !matches!(result, Ok(true)) {
            // Upstream does not observe the time if all conditions are true.
            let of = ConditionsOf::Webhook(webhook);
            surroundings.note(Event::ConditionsEvaluated(of, operation, began.elapsed()));
        }
        let holds = match (result, webhook.failure_policy) {
            (Ok(holds), _) => holds,
            (Err(Failure::Request(status)), _) => return Err(status),
            (Err(Failure::Conditions(_)), FailurePolicy::Ignore) => false,
            (Err(Failure::Conditions(error)), FailurePolicy::Fail) => {
                return Err(forbidden(self.attributes, &error));
            }
        };
        if !holds {
            surroundings.note(Event::ConditionExcluded(webhook, operation));
        }
        Ok(holds)
    }

    async fn evaluate(&self, webhook: &Webhook, surroundings: &impl Surroundings) -> Result<bool, Failure> {
        let bindings = Arc::clone(&self.bindings);
        let policy = webhook.failure_policy;
        let expressions = Expressions::new(bindings, None, self.are_large, self.inline, policy);
        let of = ConditionsOf::Webhook(webhook);
        let failed = || surroundings.note(Event::ConditionFailed(of, self.attributes.operation));
        hold(&webhook.match_conditions, expressions, failed, surroundings).await
    }
}

/// Whether no condition is false; else the errors, unless a condition is false. `failed` takes note of each that fails.
// matcher.go, Match
pub(crate) async fn hold(
    conditions: &[MatchCondition],
    mut expressions: Expressions<'_>,
    failed: impl Fn() + Send + Sync,
    surroundings: &impl Surroundings,
) -> Result<bool, Failure> {
    let mut budget = Budget::MATCH_CONDITIONS;
    let mut outcomes = Vec::with_capacity(conditions.len());
    // All are evaluated, also after one that is false: an exhausted budget outranks it.
    // apiserver: pkg/admission/plugin/cel/condition.go, ForInput
    for condition in conditions {
        let evaluated = expressions.evaluate_within(&mut budget, &condition.expression, surroundings).await;
        let evaluated = evaluated.map_err(Failure::Request)?.map_err(Failure::Conditions)?;
        outcomes.push((condition, evaluated.outcome));
    }
    let mut errors = Vec::new();
    for (condition, outcome) in outcomes {
        match outcome {
            Outcome::Value(CelValue::Bool(false)) => return Ok(false),
            // Upstream excludes a request only by `false`.
            Outcome::Value(_) | Outcome::Patch(_) => {}
            Outcome::Error(error) => {
                failed();
                errors.push(failure(&condition.expression, &error.to_string()));
            }
            Outcome::Unsupported(_) | Outcome::Review(_) | Outcome::Variable(_) => {
                errors.push(failure(&condition.expression, "the evaluation has not ended"));
            }
        }
    }
    aggregate(&errors).map_or(Ok(true), |errors| Err(Failure::Conditions(errors)))
}

/// The variables that depend on the request alone.
pub(super) struct RequestVariables {
    request: Value,
    target: ResourceTarget,
}

/// `kind` is that of the objects which the webhook sees.
pub(super) fn request_variables(attributes: &Attributes, kind: &GroupVersionKind) -> RequestVariables {
    let resource = &attributes.resource;
    let target = ResourceTarget {
        group: resource.group.clone(),
        resource: resource.resource.clone(),
        subresource: attributes.subresource.clone(),
        namespace: attributes.namespace.clone(),
        name: attributes.name.clone(),
        ..ResourceTarget::default()
    };
    RequestVariables { request: request(attributes, kind), target }
}

/// The values of the variables.
// apiserver: pkg/admission/plugin/cel/activation.go, newActivation
pub(super) fn bindings(variables: RequestVariables, objects: &SharedObjects) -> Bindings {
    Bindings::default()
        .with("object", objects.object.as_deref().unwrap_or(&Value::Null))
        .with("oldObject", objects.old_object.as_deref().unwrap_or(&Value::Null))
        .with_typed("namespaceObject", &Value::Null)
        .with_typed("request", &variables.request)
        .with_authorizer(variables.target)
}

/// The values of the variables of a policy: those of conditions, with the namespace, and with the resource that its rules match.
// apiserver: pkg/admission/plugin/policy/validating/validator.go, Validate
pub(super) fn policy_bindings(
    of_conditions: &Bindings,
    attributes: &Attributes,
    seen: &ServedResource,
    namespace: &Value,
) -> Bindings {
    let bindings = of_conditions.clone().with_typed("namespaceObject", namespace).with_variables();
    // Else the `request` of conditions is the same.
    if seen.resource == attributes.resource {
        return bindings;
    }
    let mut request = request(attributes, &seen.kind);
    if let Some(fields) = request.as_object_mut() {
        fields.insert("resource".to_owned(), resource(&seen.resource));
    }
    bindings.with_typed("request", &request)
}

fn resource(resource: &GroupVersionResource) -> Value {
    json!({"group": resource.group, "version": resource.version, "resource": resource.resource})
}

/// The `AdmissionRequest` without its uid and objects. In conditions, the resource is always the requested one.
// apiserver: pkg/admission/plugin/cel/condition.go, CreateAdmissionRequest; apimachinery: pkg/runtime/converter.go
fn request(attributes: &Attributes, seen: &GroupVersionKind) -> Value {
    let mut request = Map::new();
    let mut set = |name: &str, value: Value| request.insert(name.to_owned(), value);
    let Attributes {
        operation,
        kind,
        resource: requested,
        subresource,
        name,
        namespace,
        user,
        dry_run,
        options,
    } = attributes;
    let json =
        |kind: &GroupVersionKind| json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let resource = resource(requested);
    set("uid", Value::from(""));
    set("requestKind", json(kind));
    set("kind", json(seen));
    set("requestResource", resource.clone());
    set("resource", resource);
    let texts = [
        ("subResource", subresource),
        ("requestSubResource", subresource),
        ("name", name),
        ("namespace", namespace),
    ];
    for (field, text) in texts {
        if !text.is_empty() {
            set(field, Value::from(text.as_str()));
        }
    }
    set("operation", Value::from(operation.as_str()));
    set("userInfo", json!(user));
    set("object", Value::Null);
    set("oldObject", Value::Null);
    set("dryRun", Value::from(*dry_run));
    set("options", options.clone().unwrap_or_default());
    Value::Object(request)
}
