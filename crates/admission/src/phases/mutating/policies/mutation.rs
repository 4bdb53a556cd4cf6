//! One mutation of a policy: its expression, and the patch that this gives.
// apiserver: pkg/admission/plugin/policy/mutating/patch/json_patch.go, smd.go; dispatcher.go, dispatchOne

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_cel::{Budget, Expression, Outcome};
use portcullis_go::quote::Quoted;
use portcullis_merge::Schemas;
use serde_json::{Map, Value};

use super::{Forms, RequestNamespace};
use crate::attributes::is_large;
use crate::matching::{Expressions, RequestMatcher, failure};
use crate::review::{Patch, decode_value, encode, internal_error};
use crate::{
    Attributes, Conversions, Event, MutatingPolicy, Mutation, PolicyCheckError, SchemaPurpose, Surroundings,
};

/// Why a mutation has no result.
pub(super) enum MutationFailure {
    /// The request ends.
    Request(Box<Status>),
    /// The failure policy decides.
    Policy(String),
}

impl MutationFailure {
    /// How metrics show it.
    pub(super) fn kind(&self) -> PolicyCheckError {
        match self {
            Self::Request(_) => PolicyCheckError::Invalid,
            Self::Policy(error) => PolicyCheckError::of(error),
        }
    }
}

impl From<Box<Status>> for MutationFailure {
    fn from(status: Box<Status>) -> Self {
        Self::Request(status)
    }
}

/// The patch of a mutation.
enum Change {
    Apply(Arc<Schemas>, Value),
    /// With the schemas that a patched object must obey, if it is typed.
    Patch(Option<Arc<Schemas>>, Vec<Map<String, Value>>),
}

/// The object that a mutation makes of `object`; `None` if it is the same. Adds to `cost` what the expression costs.
pub(super) async fn mutated<S: Surroundings, C: Conversions>(
    (policy, mutation, place): (&MutatingPolicy, &Mutation, &str),
    object: &Arc<Value>,
    (attributes, surroundings): (&Attributes, &S),
    (matcher, forms, namespace): (&RequestMatcher<'_, C>, &mut Forms<'_, C>, &mut RequestNamespace),
    cost: &mut u64,
) -> Result<Option<Value>, MutationFailure> {
    // Upstream asks for the schemas before it evaluates anything, and also for a JSON patch.
    let purpose = SchemaPurpose {
        is_merge: matches!(mutation, Mutation::ApplyConfiguration(_)),
        is_shadow: policy.scope.shadow,
    };
    let schemas = surroundings.schemas(&forms.of().kind, purpose).await?;
    let schemas = schemas.ok_or_else(|| unknown_kind(forms))?;
    let namespace = namespace.get(policy.scope.uses_namespace, attributes, surroundings).await?;
    let [_, bindings] = forms.policy_bindings(matcher, &namespace, surroundings).await?;
    let are_large = forms.objects().are_large || namespace.is_large;
    let variables = Some(&policy.scope.variables);
    let mut expressions = Expressions::new(bindings, variables, are_large, surroundings.inline_cost());
    let (Mutation::ApplyConfiguration(expression) | Mutation::JsonPatch(expression)) = mutation;
    let evaluated = expressions.evaluate(expression, surroundings).await?;
    *cost = cost.saturating_add(evaluated.cost);
    let mut budget = Budget::POLICY;
    budget.charge(&evaluated).map_err(|exceeded| MutationFailure::Policy(exceeded.to_string()))?;
    let patch = value_of(expression, evaluated.outcome).inspect_err(|_| {
        if surroundings.wants_explanations() {
            let parts = expressions.explain(expression);
            surroundings.note(Event::Explained { policy: &policy.scope, place: place.to_owned(), parts });
        }
    })?;
    let is_long = are_large || is_large(&patch);
    let is_typed = surroundings.is_typed(&forms.of().kind.group);
    let change = change(mutation, (schemas, is_typed), patch)?;
    let (object, deadline) = (Arc::clone(object), surroundings.deadline());
    let apply = move || change.applied(&object, deadline);
    let applied = surroundings.compute(is_long, apply).await;
    applied.unwrap_or_else(|| {
        Err(MutationFailure::Request(internal_error("the gateway has cancelled the mutation")))
    })
}

/// The value of the expression of a mutation.
fn value_of(expression: &Expression, outcome: Outcome) -> Result<Value, MutationFailure> {
    let error = match outcome {
        Outcome::Patch(Ok(patch)) => return Ok(patch),
        Outcome::Patch(Err(error)) => error.to_string(),
        Outcome::Error(error) => failure(expression, &error.to_string()),
        // The type checker permits no others.
        Outcome::Value(_) | Outcome::Review(_) | Outcome::Variable(_) => {
            failure(expression, "the evaluation has not ended")
        }
    };
    Err(MutationFailure::Policy(error))
}

fn change(
    mutation: &Mutation,
    (schemas, is_typed): (Arc<Schemas>, bool),
    patch: Value,
) -> Result<Change, MutationFailure> {
    match (mutation, patch) {
        (Mutation::ApplyConfiguration(_), patch) => Ok(Change::Apply(schemas, patch)),
        (Mutation::JsonPatch(_), Value::Array(operations)) => {
            let operations = operations.into_iter().map(|operation| match operation {
                Value::Object(operation) => operation,
                _ => Map::new(),
            });
            Ok(Change::Patch(is_typed.then_some(schemas), operations.collect()))
        }
        (Mutation::JsonPatch(_), _) => {
            let error = "type mismatch: JSONPatchType.expression should evaluate to array";
            Err(MutationFailure::Policy(error.to_owned()))
        }
    }
}

impl Change {
    /// The object with the change; `None` if it is the same.
    fn applied(self, object: &Value, deadline: Option<Instant>) -> Result<Option<Value>, MutationFailure> {
        let changed = match self {
            Self::Apply(schemas, mut patch) => {
                if let Some(patch) = patch.as_object_mut() {
                    for field in ["apiVersion", "kind"] {
                        patch.insert(field.to_owned(), object.get(field).cloned().unwrap_or_default());
                    }
                }
                schemas
                    .merge(object, &patch)
                    .map_err(|error| MutationFailure::Policy(format!("error applying patch: {error}")))?
            }
            Self::Patch(schemas, operations) => {
                match Patch::of_values(&operations).apply_until(deadline, encode(object)) {
                    Ok(text) => decoded(object, &text, schemas.as_deref())?,
                    Err(error) if error.is_failed_test() => return Ok(None),
                    Err(error) => return Err(MutationFailure::Policy(format!("JSON Patch: {error}"))),
                }
            }
        };
        Ok((changed != *object).then_some(changed))
    }
}

/// The object that a patch has made. Without the kinds, at least this one must not change.
fn decoded(object: &Value, text: &[u8], schemas: Option<&Schemas>) -> Result<Value, MutationFailure> {
    let refused = |error: &str| MutationFailure::Request(internal_error(error));
    let patched: Value = decode_value(text).map_err(|error| refused(&error))?;
    let is_kept = |field: &&str| patched.get(field) == object.get(field);
    if !patched.is_object() || !["apiVersion", "kind"].iter().all(is_kept) {
        return Err(refused("the patch changes the apiVersion or the kind of the object"));
    }
    let undeclared = schemas.map(|schemas| schemas.undeclared(&patched)).unwrap_or_default();
    if !undeclared.is_empty() {
        // apimachinery: pkg/runtime/error.go, strictDecodingError
        let fields: Vec<_> =
            undeclared.iter().map(|field| format!("unknown field {}", Quoted(field))).collect();
        return Err(refused(&format!("strict decoding error: {}", fields.join(", "))));
    }
    Ok(patched)
}

/// The refusal of a request for a kind without schemas.
// apimachinery: pkg/api/errors/errors.go, NewServiceUnavailable; dispatcher.go, dispatchOne
fn unknown_kind<C: Conversions>(forms: &Forms<'_, C>) -> Box<Status> {
    let kind = &forms.of().kind;
    let message = format!(
        "Resource kind {}/{}, Kind={} not found. There can be a delay between when CustomResourceDefinitions are created and when \
         they are available.",
        kind.group, kind.version, kind.kind
    );
    Box::new(Status {
        code: Some(503),
        reason: Some("ServiceUnavailable".to_owned()),
        message: Some(message),
        status: Some("Failure".to_owned()),
        ..Status::default()
    })
}
