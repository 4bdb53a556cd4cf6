//! Validating admission policies, in the validating phase before the webhooks.
// apiserver: pkg/admission/plugin/policy/validating/dispatcher.go, validator.go

mod decision;
mod findings;

use std::sync::{Arc, OnceLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde_json::Value;

use self::decision::evaluate;
use self::findings::Findings;
use super::annotations::Annotations;
use super::forms::Forms;
use super::mutating::expected_form;
use crate::matching::{RequestMatcher, RuleMatch};
use crate::review::{internal_error, timeout};
use crate::{
    Attributes, Conversions, FailurePolicy, PolicyBinding, SharedObjects, Surroundings, ValidatingPolicy,
};

/// Runs the policies; the refusal of the first validation that denies the request.
pub(super) async fn validate_policies<S: Surroundings, C: Conversions>(
    policies: &[Arc<ValidatingPolicy>],
    (attributes, objects): (&Arc<Attributes>, &SharedObjects),
    (matcher, forms): (&RequestMatcher<'_, C>, &mut Forms<'_, C>),
    surroundings: &S,
) -> Result<(), Box<Status>> {
    let annotations = Annotations::new(surroundings);
    let mut findings = Findings::new(attributes, objects, surroundings, &annotations);
    let namespace = OnceLock::new();
    for policy in policies {
        if surroundings.is_late() {
            return Err(timeout());
        }
        let matched = match matcher.resources_match(&policy.constraints, objects, surroundings).await {
            Ok(RuleMatch::No) => continue,
            Ok(matched) => matched,
            Err(status) => {
                findings.misconfigured(policy, None, &status);
                continue;
            }
        };
        let mut decisions = None;
        for binding in &policy.bindings {
            match applies(binding, matcher, objects, surroundings).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(status) => {
                    findings.misconfigured(policy, Some(binding), &status);
                    continue;
                }
            }
            // Without parameters, all bindings give the same.
            if decisions.is_none() {
                expected_form(forms, attributes, &matched).await.map_err(|reason| {
                    internal_error(&format!(
                        "failed evaluating ValidatingAdmissionPolicy {:?}: {reason}",
                        policy.name
                    ))
                })?;
                let namespace = namespace_object(attributes, &namespace, surroundings).await?;
                let [of_conditions, of_policy] =
                    forms.policy_bindings(matcher, namespace, surroundings).await?;
                decisions = Some(
                    evaluate(policy, [of_conditions, of_policy], objects.are_large, surroundings).await?,
                );
            }
            if let Some(decisions) = &decisions {
                findings.add(policy, binding, decisions);
            }
        }
        findings.publish(policy);
    }
    findings.finish()
}

/// Whether a binding is about the request.
async fn applies<C: Conversions>(
    binding: &PolicyBinding,
    matcher: &RequestMatcher<'_, C>,
    objects: &SharedObjects,
    surroundings: &impl Surroundings,
) -> Result<bool, Box<Status>> {
    let Some(resources) = &binding.resources else { return Ok(true) };
    Ok(matcher.resources_match(resources, objects, surroundings).await? != RuleMatch::No)
}

/// The namespace of the request, with what policies see of it; `null` for an object that is in none.
// dispatcher.go, Dispatch; pkg/admission/plugin/cel/condition.go, CreateNamespaceObject
async fn namespace_object<'a>(
    attributes: &Attributes,
    known: &'a OnceLock<Arc<Value>>,
    surroundings: &impl Surroundings,
) -> Result<&'a Arc<Value>, Box<Status>> {
    if let Some(known) = known.get() {
        return Ok(known);
    }
    let kind = &attributes.kind;
    let is_namespace =
        (kind.group.as_str(), kind.version.as_str(), kind.kind.as_str()) == ("", "v1", "Namespace");
    let name = if is_namespace { "" } else { attributes.namespace.as_str() };
    let object = if name.is_empty() { Value::Null } else { shown(surroundings.namespace(name).await?) };
    Ok(known.get_or_init(|| Arc::new(object)))
}

/// What policies see of a namespace.
fn shown(namespace: Value) -> Value {
    const METADATA: [&str; 12] = [
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "finalizers",
    ];
    let mut namespace = namespace;
    if let Some(fields) = namespace.as_object_mut() {
        fields.retain(|field, _| matches!(field.as_str(), "metadata" | "spec" | "status"));
    }
    if let Some(metadata) = namespace.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| METADATA.contains(&field.as_str()));
    }
    namespace
}

/// Whether a policy that fails refuses the request.
fn refuses(policy: &ValidatingPolicy) -> bool {
    policy.failure_policy == FailurePolicy::Fail
}
