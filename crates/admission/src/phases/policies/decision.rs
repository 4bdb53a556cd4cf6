//! What a policy decides about one request.
// apiserver: pkg/admission/plugin/policy/validating/validator.go, Validate

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_cel::{Bindings, Budget, EvalError, Outcome, Value as CelValue};

use super::shared::without_values;
use super::{policy_failure, refuses};
use crate::matching::{Expressions, Failure, InlineCost, failure, hold};
use crate::{ConditionsOf, Event, Operation, Reason, Surroundings, ValidatingPolicy, Validation};

/// The longest message of a `messageExpression`.
// apiserver: pkg/apis/cel/config.go, MaxEvaluatedMessageExpressionSizeBytes
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

/// What the validations and the audit annotations of a policy give.
#[derive(Debug, Default)]
pub(super) struct PolicyDecisions {
    pub(super) decisions: Vec<Decision>,
    pub(super) annotations: Vec<(String, AuditValue)>,
    /// What the validations have cost.
    pub(super) cost: u64,
}

/// What a validation gives.
#[derive(Debug, Clone)]
pub(super) struct Decision {
    pub(super) verdict: Verdict,
    pub(super) took: Duration,
}

#[derive(Debug, Clone)]
pub(super) enum Verdict {
    /// It holds.
    Admit,
    /// It has an error that the failure policy ignores.
    Ignored(String),
    /// It has an error, or does not hold.
    Deny { message: String, reason: Reason },
}

/// The value of an audit annotation.
#[derive(Debug, Clone)]
pub(super) enum AuditValue {
    Text(String),
    /// There is none.
    Excluded,
    Failed(String, Duration),
}

impl PolicyDecisions {
    /// One error that stands for all.
    fn failed(policy: &ValidatingPolicy, message: String) -> Self {
        let decision = Decision { verdict: Verdict::failed(policy, message), took: Duration::ZERO };
        Self { decisions: vec![decision], ..Self::default() }
    }
}

impl Verdict {
    fn failed(policy: &ValidatingPolicy, message: String) -> Self {
        if refuses(policy) { Self::Deny { message, reason: Reason::Invalid } } else { Self::Ignored(message) }
    }
}

/// Takes note of an event. One of a shadow policy has its own.
fn note(policy: &ValidatingPolicy, event: Event<'_>, surroundings: &impl Surroundings) {
    if !policy.scope.shadow {
        surroundings.note(event);
    }
}

/// Evaluates a policy. The bindings are those of its conditions, and of its other expressions.
pub(super) async fn evaluate(
    policy: &ValidatingPolicy,
    operation: Operation,
    [of_conditions, of_policy]: [Arc<Bindings>; 2],
    (are_large, inline): (bool, &InlineCost),
    surroundings: &impl Surroundings,
) -> Result<PolicyDecisions, Box<Status>> {
    let (variables, failure_policy) = (&policy.scope.variables, policy.scope.failure_policy);
    let expressions =
        |bindings| Expressions::new(bindings, Some(variables), are_large, inline, failure_policy);
    if !policy.scope.match_conditions.is_empty() {
        let (of, began) = (ConditionsOf::Policy(&policy.scope), Instant::now());
        let failed = || note(policy, Event::ConditionFailed(of, operation), surroundings);
        let holds =
            hold(&policy.scope.match_conditions, expressions(of_conditions), failed, surroundings).await;
        if !matches!(holds, Ok(true)) {
            let took = began.elapsed();
            note(policy, Event::ConditionsEvaluated(of, operation, took), surroundings);
        }
        match holds {
            Ok(true) => {}
            Ok(false) => return Ok(PolicyDecisions::default()),
            Err(Failure::Request(status)) => return Err(status),
            Err(Failure::Conditions(error)) if !refuses(policy) => {
                let error = policy_failure(&policy.scope, without_values(&error));
                note(policy, Event::PolicyIgnored(&policy.scope, &error), surroundings);
                return Ok(PolicyDecisions::default());
            }
            Err(Failure::Conditions(error)) => return Ok(PolicyDecisions::failed(policy, error)),
        }
    }
    let mut budget = Budget::POLICY;
    let mut validations = expressions(Arc::clone(&of_policy));
    let mut outcomes = Vec::with_capacity(policy.validations.len());
    for validation in &policy.validations {
        let began = Instant::now();
        let evaluated =
            match validations.evaluate_within(&mut budget, &validation.expression, surroundings).await? {
                Ok(evaluated) => evaluated,
                Err(exceeded) => return Ok(PolicyDecisions::failed(policy, exceeded)),
            };
        let holds = evaluated.outcome == Outcome::Value(CelValue::Bool(true));
        if !holds && surroundings.wants_explanations() {
            let place = format!("validations[{}]", outcomes.len());
            let parts = validations.explain(&validation.expression);
            surroundings.note(Event::Explained { policy: &policy.scope, place, parts });
        }
        outcomes.push((evaluated.outcome, began.elapsed()));
    }
    let cost = validations.spent();
    // Messages and annotations have no authorizer.
    let without = || Arc::new(Bindings::clone(&of_policy).without_authorizer());
    let messages = messages(policy, budget, expressions(without()), surroundings).await?;
    let decisions =
        policy.validations.iter().zip(outcomes).enumerate().map(|(index, (validation, (outcome, took)))| {
            let message = messages.as_ref().map(|messages| messages.get(index).cloned().flatten());
            Decision { verdict: verdict(policy, validation, &outcome, message), took }
        });
    let decisions = decisions.collect();
    if policy.audit_annotations.is_empty() {
        return Ok(PolicyDecisions { decisions, annotations: Vec::new(), cost });
    }
    let mut budget = Budget::POLICY;
    let mut values = expressions(without());
    let mut annotations = Vec::with_capacity(policy.audit_annotations.len());
    for annotation in &policy.audit_annotations {
        let began = Instant::now();
        let evaluated = values.evaluate(&annotation.value, surroundings).await?;
        let evaluated = match values.charge(&mut budget, &annotation.value, evaluated)? {
            Ok(evaluated) => evaluated,
            Err(exceeded) => return Ok(PolicyDecisions::failed(policy, exceeded)),
        };
        let value = match evaluated.outcome {
            Outcome::Value(CelValue::String(text)) if text.trim().is_empty() => AuditValue::Excluded,
            Outcome::Value(CelValue::String(text)) => AuditValue::Text(text.trim().to_owned()),
            Outcome::Value(CelValue::Null) => AuditValue::Excluded,
            Outcome::Error(_) if !refuses(policy) => AuditValue::Excluded,
            Outcome::Error(error) => {
                AuditValue::Failed(failure(&annotation.value, &error.to_string()), began.elapsed())
            }
            // The type checker permits no others.
            Outcome::Value(_)
            | Outcome::Patch(_)
            | Outcome::Unsupported(_)
            | Outcome::Review(_)
            | Outcome::Variable(_) => AuditValue::Failed(
                failure(&annotation.value, "the evaluation has not ended"),
                began.elapsed(),
            ),
        };
        annotations.push((annotation.key.clone(), value));
    }
    Ok(PolicyDecisions { decisions, annotations, cost })
}

/// The texts of the message expressions; the error, if their budget is exhausted, which then is that of each validation. They are
/// evaluated also if no validation needs one: they may exhaust it.
async fn messages(
    policy: &ValidatingPolicy,
    mut budget: Budget,
    mut expressions: Expressions<'_>,
    surroundings: &impl Surroundings,
) -> Result<Result<Vec<Option<String>>, String>, Box<Status>> {
    let mut messages = Vec::with_capacity(policy.validations.len());
    for validation in &policy.validations {
        let Some(expression) = &validation.message_expression else {
            messages.push(None);
            continue;
        };
        let evaluated = expressions.evaluate(expression, surroundings).await?;
        let evaluated = match expressions.charge(&mut budget, expression, evaluated)? {
            Ok(evaluated) => evaluated,
            Err(exceeded) => return Ok(Err(exceeded)),
        };
        let text = match evaluated.outcome {
            Outcome::Value(CelValue::String(text)) => Some(text.trim().to_owned()),
            _ => None,
        };
        messages.push(text.filter(|text| text.len() <= MAX_MESSAGE_BYTES && !text.contains('\n')));
    }
    Ok(Ok(messages))
}

fn verdict(
    policy: &ValidatingPolicy,
    validation: &Validation,
    outcome: &Outcome,
    message: Result<Option<String>, &String>,
) -> Verdict {
    let error =
        |error: &EvalError| Verdict::failed(policy, failure(&validation.expression, &error.to_string()));
    match (outcome, message) {
        (Outcome::Error(found), _) => error(found),
        (_, Err(exceeded)) => Verdict::failed(policy, format!("failed messageExpression: {exceeded}")),
        (Outcome::Value(CelValue::Bool(true)), _) => Verdict::Admit,
        (_, Ok(message)) => {
            let given = message.filter(|text| !text.is_empty());
            let fallback = || Some(validation.message.trim().to_owned()).filter(|text| !text.is_empty());
            let message = given.or_else(fallback);
            let message = message
                .unwrap_or_else(|| format!("failed expression: {}", validation.expression.text().trim()));
            Verdict::Deny { message, reason: validation.reason }
        }
    }
}
