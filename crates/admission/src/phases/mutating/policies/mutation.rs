//! One mutation of a policy: its expression, and the patch that this gives.
// apiserver: pkg/admission/plugin/policy/mutating/patch/json_patch.go, smd.go; dispatcher.go, dispatchOne

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_cel::{Budget, Expression, Outcome};
use portcullis_go::quote::Quoted;
use portcullis_merge::{MergeError, Schemas};
use serde_json::{Map, Value};

use super::{Forms, RequestNamespace};
use crate::attributes::is_large;
use crate::matching::{Expressions, RequestMatcher, failure};
use crate::review::{Patch, decode_value, encode, internal_error};
use crate::{
    Attributes, Conversions, Event, GroupVersionKind, GroupVersionResource, MutatingPolicy, Mutation,
    PolicyCheckError, SchemaPurpose, ServedResource, Surroundings,
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
    /// With the fields that a patched object may have.
    Patch(DeclaredFields, Vec<Map<String, Value>>),
}

/// The fields that an object may have.
enum DeclaredFields {
    Any,
    /// Those of its kind in these schemas.
    In(Arc<Schemas>),
    /// These, beside its type.
    Of(&'static [&'static str]),
}

impl DeclaredFields {
    /// The fields of an object that are not among them.
    fn missing_of(&self, object: &Value) -> Vec<String> {
        match self {
            Self::Any => Vec::new(),
            Self::In(schemas) => schemas.undeclared(object),
            Self::Of(fields) => {
                let names = object.as_object().into_iter().flat_map(Map::keys);
                let is_unknown = |name: &&String| {
                    !["apiVersion", "kind"].iter().chain(*fields).any(|field| *field == name.as_str())
                };
                names.filter(is_unknown).cloned().collect()
            }
        }
    }
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
    let (inline, failure_policy) = (surroundings.inline_cost(), policy.scope.failure_policy);
    let mut expressions = Expressions::new(bindings, variables, are_large, inline, failure_policy);
    let (Mutation::ApplyConfiguration(expression) | Mutation::JsonPatch(expression)) = mutation;
    let evaluated = expressions.evaluate_within(&mut Budget::POLICY.clone(), expression, surroundings).await;
    *cost = cost.saturating_add(expressions.spent());
    let evaluated = evaluated?.map_err(MutationFailure::Policy)?;
    let patch = value_of(expression, evaluated.outcome).inspect_err(|_| {
        if surroundings.wants_explanations() {
            let parts = expressions.explain(expression);
            surroundings.note(Event::Explained { policy: &policy.scope, place: place.to_owned(), parts });
        }
    })?;
    let is_long = are_large || is_large(&patch);
    let change = match mutation {
        Mutation::ApplyConfiguration(_) => Change::Apply(schemas, patch),
        Mutation::JsonPatch(_) => Change::Patch(
            declared_fields(forms.of(), schemas, purpose, surroundings).await?,
            operations(patch)?,
        ),
    };
    let (object, deadline, are_as_sent) =
        (Arc::clone(object), surroundings.deadline(), surroundings.are_as_sent());
    let apply = move || change.applied(&object, deadline, are_as_sent);
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
        Outcome::Value(_) | Outcome::Unsupported(_) | Outcome::Review(_) | Outcome::Variable(_) => {
            failure(expression, "the evaluation has not ended")
        }
    };
    Err(MutationFailure::Policy(error))
}

/// Which fields an object may have: all, if the API server does not decode it into a type.
async fn declared_fields<S: Surroundings>(
    of: &ServedResource,
    schemas: Arc<Schemas>,
    purpose: SchemaPurpose,
    surroundings: &S,
) -> Result<DeclaredFields, Box<Status>> {
    let kind = &of.kind;
    if !surroundings.is_typed(&kind.group) {
        return Ok(DeclaredFields::Any);
    }
    if let Some(fields) = option_fields(&kind.kind) {
        return Ok(DeclaredFields::Of(fields));
    }
    let knows = |schemas: &Schemas| schemas.knows(&kind.group, &kind.version, &kind.kind);
    if knows(&schemas) {
        return Ok(DeclaredFields::In(schemas));
    }
    // A scale or an eviction is published with the resources that have one, not in its own group.
    let GroupVersionResource { group, version, .. } = &of.resource;
    let of_resource =
        GroupVersionKind { group: group.clone(), version: version.clone(), kind: kind.kind.clone() };
    let schemas = surroundings.schemas(&of_resource, purpose).await?;
    schemas.filter(|schemas| knows(schemas)).map(DeclaredFields::In).ok_or_else(|| {
        let error = format!("the gateway does not know which fields a {} has", kind.kind);
        internal_error(&error)
    })
}

/// The fields of the options of a connection, which are published nowhere.
// api: core/v1/types.go
fn option_fields(kind: &str) -> Option<&'static [&'static str]> {
    match kind {
        "PodExecOptions" => Some(&["stdin", "stdout", "stderr", "tty", "container", "command"]),
        "PodAttachOptions" => Some(&["stdin", "stdout", "stderr", "tty", "container"]),
        "PodPortForwardOptions" => Some(&["ports"]),
        "PodProxyOptions" | "ServiceProxyOptions" | "NodeProxyOptions" => Some(&["path"]),
        _ => None,
    }
}

/// The operations of a JSON patch.
fn operations(patch: Value) -> Result<Vec<Map<String, Value>>, MutationFailure> {
    let Value::Array(operations) = patch else {
        let error = "type mismatch: JSONPatchType.expression should evaluate to array";
        return Err(MutationFailure::Policy(error.to_owned()));
    };
    let operations = operations.into_iter().map(|operation| match operation {
        Value::Object(operation) => operation,
        _ => Map::new(),
    });
    Ok(operations.collect())
}

impl Change {
    /// The object with the change; `None` if it is the same.
    fn applied(
        self,
        object: &Value,
        deadline: Option<Instant>,
        are_as_sent: bool,
    ) -> Result<Option<Value>, MutationFailure> {
        let changed = match self {
            Self::Apply(schemas, mut patch) => {
                if let Some(patch) = patch.as_object_mut() {
                    for field in ["apiVersion", "kind"] {
                        patch.insert(field.to_owned(), object.get(field).cloned().unwrap_or_default());
                    }
                }
                schemas.merge(object, &patch).map_err(|error| unmerged(&error, are_as_sent))?
            }
            Self::Patch(fields, operations) => {
                match Patch::of_values(&operations).apply_until(deadline, encode(object)) {
                    Ok(text) => decoded(object, &text, &fields)?,
                    Err(error) if error.is_failed_test() => return Ok(None),
                    Err(error) if error.is_of_bound() => {
                        return Err(MutationFailure::Request(internal_error(&format!(
                            "JSON Patch: {error}"
                        ))));
                    }
                    Err(error) => return Err(MutationFailure::Policy(format!("JSON Patch: {error}"))),
                }
            }
        };
        Ok((changed != *object).then_some(changed))
    }
}

/// Why an apply configuration has no result. What a client can cause, and kube-apiserver would not find, is not for the failure policy to
/// ignore.
// threat: unreviewed-write
fn unmerged(error: &MergeError, are_as_sent: bool) -> MutationFailure {
    let text = format!("error applying patch: {error}");
    match error {
        MergeError::TooDeep(_) => MutationFailure::Request(internal_error(&text)),
        // It has dropped, or refused, what no kind has before any policy sees the object.
        MergeError::Original(_) if are_as_sent => MutationFailure::Request(internal_error(&format!(
            "the gateway sees the object as it was sent, and cannot apply the patch of a policy to it: {error}"
        ))),
        _ => MutationFailure::Policy(text),
    }
}

/// The object that a patch has made. Without the kinds, at least this one must not change.
fn decoded(object: &Value, text: &[u8], fields: &DeclaredFields) -> Result<Value, MutationFailure> {
    let refused = |error: &str| MutationFailure::Request(internal_error(error));
    let mut patched: Value = decode_value(text).map_err(|error| refused(&error))?;
    if !matches!(fields, DeclaredFields::Any) {
        keep_type(object, &mut patched);
    }
    let is_kept = |field: &&str| patched.get(field) == object.get(field);
    if !patched.is_object() || !["apiVersion", "kind"].iter().all(is_kept) {
        return Err(refused("the patch changes the apiVersion or the kind of the object"));
    }
    let undeclared = fields.missing_of(&patched);
    if !undeclared.is_empty() {
        // apimachinery: pkg/runtime/error.go, strictDecodingError
        let fields: Vec<_> =
            undeclared.iter().map(|field| format!("unknown field {}", Quoted(field))).collect();
        return Err(refused(&format!("strict decoding error: {}", fields.join(", "))));
    }
    Ok(patched)
}

/// Gives an object the type that a patch has removed from it. The API server decodes it into a value of that type.
// apimachinery: pkg/runtime/serializer/json/json.go, gvkWithDefaults
fn keep_type(object: &Value, patched: &mut Value) {
    let Some(patched) = patched.as_object_mut() else { return };
    for field in ["apiVersion", "kind"] {
        let is_absent = matches!(patched.get(field), None | Some(Value::Null))
            || patched.get(field) == Some(&Value::from(""));
        if let Some(known) = object.get(field).filter(|_| is_absent) {
            patched.insert(field.to_owned(), known.clone());
        }
    }
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
