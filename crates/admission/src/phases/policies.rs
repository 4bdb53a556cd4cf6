//! Validating admission policies, in the validating phase before the webhooks.
// apiserver: pkg/admission/plugin/policy/validating/dispatcher.go, validator.go

mod decision;
mod findings;
mod shared;

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_go::quote::Quoted;

use self::decision::{PolicyDecisions, evaluate};
use self::findings::Findings;
pub(super) use self::shared::{RefusedObject, RequestNamespace, SeenNamespace, without_values};
use super::annotations::Annotations;
use super::forms::{Forms, unknown};
use super::mutating::expected_form;
use crate::matching::{RequestMatcher, RuleMatch};
use crate::review::{internal_error, timeout};
use crate::{
    Attributes, Conversions, Event, FailurePolicy, MatchError, MatchResources, PolicyBinding, PolicyScope,
    ShadowOutcome, SharedObjects, Surroundings, ValidatingPolicy,
};

/// Evaluates policies for one request.
struct PolicyPhase<'a, 'b, S, C> {
    attributes: &'a Arc<Attributes>,
    objects: &'a SharedObjects,
    matcher: &'a RequestMatcher<'a, C>,
    forms: &'a mut Forms<'b, C>,
    surroundings: &'a S,
    annotations: Annotations<'a, S>,
    namespace: RequestNamespace,
}

/// Runs the policies; the refusal of the first validation that denies the request.
pub(super) async fn validate_policies<S: Surroundings, C: Conversions>(
    policies: &[Arc<ValidatingPolicy>],
    (attributes, objects): (&Arc<Attributes>, &SharedObjects),
    (matcher, forms): (&RequestMatcher<'_, C>, &mut Forms<'_, C>),
    surroundings: &S,
) -> Result<(), Box<Status>> {
    let annotations = Annotations::new(surroundings);
    let namespace = RequestNamespace::default();
    let mut phase = PolicyPhase { attributes, objects, matcher, forms, surroundings, annotations, namespace };
    let result = phase.enforce(policies.iter().filter(|policy| !policy.scope.shadow)).await;
    for policy in policies.iter().filter(|policy| policy.scope.shadow) {
        phase.compare(policy).await;
    }
    result
}

impl<S: Surroundings, C: Conversions> PolicyPhase<'_, '_, S, C> {
    async fn enforce(
        &mut self,
        policies: impl Iterator<Item = &Arc<ValidatingPolicy>>,
    ) -> Result<(), Box<Status>> {
        let mut findings = Findings::new(self.attributes, self.objects, self.surroundings, false);
        for policy in policies {
            self.check(policy, &mut findings).await?;
            findings.publish(policy, &self.annotations);
        }
        findings.finish(&self.annotations)
    }

    /// Reports what a shadow policy finds.
    async fn compare(&mut self, policy: &ValidatingPolicy) {
        let began = Instant::now();
        let mut findings = Findings::new(self.attributes, self.objects, self.surroundings, true);
        let (cost, would) = match self.check(policy, &mut findings).await {
            Ok(false) => return,
            Ok(true) => (findings.cost, findings.would()),
            Err(status) => (findings.cost, ShadowOutcome::Fail(status.message.unwrap_or_default())),
        };
        self.surroundings.note(Event::ShadowPolicy {
            policy: &policy.scope,
            operation: self.attributes.operation,
            would: &would,
            took: began.elapsed(),
            cost,
        });
    }

    /// Whether a policy is about the request; then what it finds.
    async fn check(
        &mut self,
        policy: &ValidatingPolicy,
        findings: &mut Findings<'_, S>,
    ) -> Result<bool, Box<Status>> {
        let surroundings = self.surroundings;
        if surroundings.is_late() {
            return Err(timeout());
        }
        let matched =
            match self.matcher.resources_match(&policy.scope.constraints, self.objects, surroundings).await {
                Ok(RuleMatch::No) => return Ok(false),
                Ok(matched) => matched,
                Err(MatchError::Configuration(status)) => {
                    findings.misconfigured(policy, None, &status);
                    return Ok(true);
                }
                Err(MatchError::Request(status)) => return Err(status),
            };
        let mut is_in_force = false;
        let mut decisions = None;
        for binding in &policy.bindings {
            match self.applies(policy, binding).await {
                Ok(true) => is_in_force = true,
                Ok(false) => continue,
                Err(MatchError::Configuration(status)) => {
                    is_in_force = true;
                    findings.misconfigured(policy, Some(binding), &status);
                    continue;
                }
                Err(MatchError::Request(status)) => return Err(status),
            }
            // Without parameters, all bindings give the same.
            if decisions.is_none() {
                decisions = Some(self.evaluate(policy, &matched).await?);
            }
            if let Some(decisions) = &decisions {
                findings.add(policy, binding, decisions);
            }
        }
        Ok(is_in_force)
    }

    /// Whether a binding is about the request.
    async fn applies(&self, policy: &ValidatingPolicy, binding: &PolicyBinding) -> Result<bool, MatchError> {
        let Some(resources) = &binding.resources else { return Ok(true) };
        let resources = (resources, self.objects);
        let matched = binding_match(self.matcher, &policy.scope, resources, self.surroundings).await?;
        Ok(matched != RuleMatch::No)
    }

    async fn evaluate(
        &mut self,
        policy: &ValidatingPolicy,
        matched: &RuleMatch,
    ) -> Result<PolicyDecisions, Box<Status>> {
        let formed = self.expected_form(policy, matched).await;
        formed.map_err(|reason| internal_error(&policy_failure(&policy.scope, &reason)))?;
        let uses = policy.scope.uses_namespace;
        let namespace = self.namespace.get(uses, self.attributes, self.surroundings).await?;
        let bindings = self.forms.policy_bindings(self.matcher, &namespace, self.surroundings).await?;
        let work = (self.objects.are_large || namespace.is_large, self.surroundings.inline_cost());
        evaluate(policy, self.attributes.operation, bindings, work, self.surroundings).await
    }

    /// Makes the form current that a policy expects. Nothing is converted for a shadow policy alone.
    async fn expected_form(&mut self, policy: &ValidatingPolicy, matched: &RuleMatch) -> Result<(), String> {
        match matched {
            RuleMatch::Equivalent(of) if policy.scope.shadow && !self.forms.is_known(of) => {
                Err("the gateway converts nothing for shadow policies alone".to_owned())
            }
            _ => expected_form(self.forms, self.attributes, matched).await,
        }
    }
}

/// How a binding matches a request. If it only may match one, the request ends.
// threat: unreviewed-write
pub(super) async fn binding_match<C: Conversions>(
    matcher: &RequestMatcher<'_, C>,
    policy: &PolicyScope,
    (resources, objects): (&MatchResources, &SharedObjects),
    surroundings: &impl Surroundings,
) -> Result<RuleMatch, MatchError> {
    let matched = matcher.resources_match(resources, objects, surroundings).await?;
    if matched != RuleMatch::Possible {
        return Ok(matched);
    }
    let reason = unknown(&matcher.attributes().resource);
    Err(MatchError::Request(internal_error(&policy_failure(policy, &format!("of a binding, {reason}")))))
}

/// The message of a policy that cannot be shown a request.
pub fn policy_failure(policy: &PolicyScope, reason: &str) -> String {
    format!("failed evaluating {} {}: {reason}", policy.kind.as_str(), Quoted(&policy.name))
}

/// Whether a policy that fails refuses the request.
fn refuses(policy: &ValidatingPolicy) -> bool {
    policy.scope.failure_policy == FailurePolicy::Fail
}
