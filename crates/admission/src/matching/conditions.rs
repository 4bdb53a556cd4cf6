//! The `matchConditions` of a webhook.
// apiserver: pkg/admission/plugin/webhook/matchconditions/matcher.go

use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_cel::{Bindings, Budget, Evaluated, Expression, Outcome, ResourceTarget, Value as CelValue};
use serde_json::{Map, Value, json};

use super::statuses::{aggregate, forbidden};
use crate::{Attributes, Event, FailurePolicy, Objects, Surroundings, Webhook};

/// A named expression that must be true.
#[derive(Debug, Clone, PartialEq)]
pub struct MatchCondition {
    /// The name.
    pub name: String,
    /// The expression, of [`portcullis_cel::Environment::ADMISSION`].
    pub expression: Expression,
}

/// Whether the webhook is to be called: no condition is false, and those that fail are ignored by its failure policy.
// matcher.go, Match; generic/webhook.go, ShouldCallHook
pub(super) async fn hold(
    webhook: &Webhook,
    attributes: &Attributes,
    bindings: &Bindings,
    surroundings: &impl Surroundings,
) -> Result<bool, Box<Status>> {
    let operation = attributes.operation;
    let began = Instant::now();
    let result = evaluate(webhook, attributes, bindings, surroundings).await;
    if !matches!(result, Ok(true)) {
        // Upstream does not observe the time if all conditions are true.
        surroundings.note(Event::ConditionsEvaluated(webhook, operation, began.elapsed()));
    }
    let holds = match (result, webhook.failure_policy) {
        (Ok(holds), _) => holds,
        (Err(_), FailurePolicy::Ignore) => false,
        (Err(error), FailurePolicy::Fail) => return Err(forbidden(attributes, &error)),
    };
    if !holds {
        surroundings.note(Event::ConditionExcluded(webhook, operation));
    }
    Ok(holds)
}

/// Whether no condition is false; else the errors, unless a condition is false.
async fn evaluate(
    webhook: &Webhook,
    attributes: &Attributes,
    bindings: &Bindings,
    surroundings: &impl Surroundings,
) -> Result<bool, String> {
    let mut budget = Budget::MATCH_CONDITIONS;
    let mut outcomes = Vec::with_capacity(webhook.match_conditions.len());
    // All are evaluated, also after one that is false: an exhausted budget outranks it.
    // apiserver: pkg/admission/plugin/cel/condition.go, ForInput
    for condition in &webhook.match_conditions {
        let evaluated = decided(&condition.expression, bindings, surroundings).await;
        budget.charge(&evaluated).map_err(|exceeded| exceeded.to_string())?;
        outcomes.push((condition, evaluated.outcome));
    }
    let mut errors = Vec::new();
    for (condition, outcome) in outcomes {
        match outcome {
            Outcome::Value(CelValue::Bool(false)) => return Ok(false),
            // Upstream excludes a request only by `false`.
            Outcome::Value(_) => {}
            Outcome::Error(error) => {
                surroundings.note(Event::ConditionFailed(webhook, attributes.operation));
                errors.push(failure(&condition.expression, &error.to_string()));
            }
            Outcome::Review(_) => {
                errors.push(failure(&condition.expression, "the authorizer did not answer"))
            }
        }
    }
    aggregate(&errors).map_or(Ok(true), Err)
}

/// Evaluates an expression, with the authorizer's decisions of its access reviews.
async fn decided(
    expression: &Expression,
    bindings: &Bindings,
    surroundings: &impl Surroundings,
) -> Evaluated {
    let mut decisions = Vec::new();
    // A check costs more than a third of an expression's limit: this ends after two reviews.
    loop {
        let evaluated = expression.evaluate_with(bindings, &decisions);
        let Outcome::Review(review) = evaluated.outcome else { return evaluated };
        let decision = surroundings.authorize(&review).await;
        decisions.push((*review, decision));
    }
}

// apiserver: pkg/admission/plugin/cel/activation.go, Evaluate
fn failure(expression: &Expression, error: &str) -> String {
    format!("expression '{}' resulted in error: {error}", expression.text())
}

/// The values of the variables.
// apiserver: pkg/admission/plugin/cel/activation.go, newActivation
pub(super) fn bindings(attributes: &Attributes, objects: &Objects) -> Bindings {
    let resource = &attributes.resource;
    Bindings::default()
        .with("object", objects.object.as_ref().unwrap_or(&Value::Null))
        .with("oldObject", objects.old_object.as_ref().unwrap_or(&Value::Null))
        .with("namespaceObject", &Value::Null)
        .with("request", &request(attributes))
        .with_authorizer(ResourceTarget {
            group: resource.group.clone(),
            resource: resource.resource.clone(),
            subresource: attributes.subresource.clone(),
            namespace: attributes.namespace.clone(),
            name: attributes.name.clone(),
            ..ResourceTarget::default()
        })
}

/// The `AdmissionRequest` without its uid and objects. The request is never converted: what it asked for is what the
/// webhook receives.
// apiserver: pkg/admission/plugin/cel/condition.go, CreateAdmissionRequest; apimachinery: pkg/runtime/converter.go
fn request(attributes: &Attributes) -> Value {
    let mut request = Map::new();
    let mut set = |name: &str, value: Value| request.insert(name.to_owned(), value);
    let Attributes { operation, kind, resource, subresource, name, namespace, user, dry_run, options } =
        attributes;
    let kind = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let resource =
        json!({"group": resource.group, "version": resource.version, "resource": resource.resource});
    set("uid", Value::from(""));
    set("requestKind", kind.clone());
    set("kind", kind);
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
