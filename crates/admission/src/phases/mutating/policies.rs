//! Mutating admission policies, in the mutating phase before the webhooks.
//!
//! All policies with their bindings are matched before the first of them changes anything. Each pair that matches runs once, and again
//! in the second round if something changes the object after it, and its `reinvocationPolicy` says so; upstream counts the pair itself
//! as such a change, if a mutation has succeeded.
// apiserver: pkg/admission/plugin/policy/generic/policy_dispatcher.go; pkg/admission/plugin/policy/mutating/dispatcher.go

mod mutation;

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_go::quote::Quoted;

use self::mutation::{MutationFailure, mutated};
use super::MutatingPhase;
use super::expected_form;
use crate::matching::{Expressions, Failure, RequestMatcher, RuleMatch, hold};
use crate::phases::forms::Forms;
use crate::phases::policies::{
    RefusedObject, RequestNamespace, binding_match, policy_failure, without_values,
};
use crate::review::{internal_error, timeout};
use crate::{
    Attributes, ConditionsOf, Conversions, Event, FailurePolicy, MatchError, MutatingBinding, MutatingPolicy,
    MutationCheck, ShadowOutcome, Surroundings,
};

/// A policy and its binding, by their indexes.
pub(super) type Place = (usize, usize);

/// A policy that matches a request by a binding.
struct Invocation<'p> {
    policy: &'p Arc<MutatingPolicy>,
    binding: &'p MutatingBinding,
    place: Place,
    matched: RuleMatch,
}

/// The errors that refuse a request, in their order.
#[derive(Debug, Default)]
struct PolicyErrors {
    messages: Vec<String>,
    /// Whether the first one is of an evaluation.
    is_of_evaluation: bool,
}

impl PolicyErrors {
    /// Adds an error, which the failure policy of its policy may ignore.
    // policy_dispatcher.go, PolicyError
    fn add(&mut self, policy: &MutatingPolicy, binding: Option<&MutatingBinding>, error: &PolicyError) {
        if policy.scope.failure_policy == FailurePolicy::Ignore {
            return;
        }
        let (name, error_text) = (&policy.scope.name, error.text());
        self.is_of_evaluation |= self.messages.is_empty() && matches!(error, PolicyError::Evaluation(_));
        self.messages.push(match binding {
            Some(binding) => {
                format!("policy '{name}' with binding '{}' denied request: {error_text}", binding.name)
            }
            None => format!("policy {} denied request: {error_text}", Quoted(name)),
        });
    }

    /// The refusal, if there is an error.
    fn refusal(self, object: &RefusedObject<'_>) -> Result<(), Box<Status>> {
        let Some(first) = self.messages.first() else { return Ok(()) };
        let reason = if self.is_of_evaluation { "Invalid" } else { "Forbidden" };
        Err(object.status(first.clone(), self.messages, (reason, 403)))
    }
}

/// Why a policy does not run.
enum PolicyError {
    /// It, or its binding, cannot be matched with the request.
    Configuration(&'static str, Box<Status>),
    /// A condition or a mutation has an error.
    Evaluation(String),
}

impl PolicyError {
    fn text(&self) -> String {
        match self {
            Self::Configuration(of, status) => {
                format!("failed to configure {of}: {}", status.message.as_deref().unwrap_or_default())
            }
            Self::Evaluation(error) => error.clone(),
        }
    }
}

/// How a policy ended with a binding.
#[derive(Debug, Default)]
struct PolicyEnd {
    /// Whether its mutations ran.
    ran: bool,
    /// Whether one of them succeeded.
    has_mutated: bool,
    /// Whether the object differs now.
    changed: bool,
    /// What the mutations have cost.
    cost: u64,
    errors: Vec<String>,
}

impl<'a, S: Surroundings, C: Conversions> MutatingPhase<'a, S, C> {
    /// Runs the policies in a round.
    pub(super) async fn run_policies(
        &mut self,
        policies: &[Arc<MutatingPolicy>],
        round: usize,
    ) -> Result<(), Box<Status>> {
        let mut errors = PolicyErrors::default();
        let mut invocations = Vec::new();
        for (index, policy) in policies.iter().enumerate() {
            if policy.scope.shadow && round > 0 {
                continue;
            }
            if self.surroundings.is_late() {
                return Err(timeout());
            }
            self.select(policy, index, (&mut invocations, &mut errors)).await?;
        }
        let mut has_mutated = false;
        for invocation in invocations {
            let Invocation { policy, binding, place, .. } = invocation;
            if policy.scope.shadow {
                self.compare(&invocation).await;
                continue;
            }
            let runs = self.of_policies.runs(&place, round);
            let end = self.evaluation().run(&invocation, runs).await?;
            for error in end.errors {
                self.fail(&mut errors, policy, Some(binding), &PolicyError::Evaluation(error));
            }
            has_mutated |= end.has_mutated;
            if end.changed {
                self.changes += 1;
                self.is_repeated = true;
                self.of_policies.require();
            }
            if end.ran {
                self.of_policies.note(place, policy.reinvocation_policy);
            }
        }
        if has_mutated {
            self.is_repeated = true;
            self.of_policies.require();
        }
        errors.refusal(&RefusedObject::of(&self.attributes, self.forms.objects()))
    }

    /// The invocations of a policy. Whether a request is about it must be known: the failure policy does not decide that.
    // threat: unreviewed-write
    async fn select<'p>(
        &self,
        policy: &'p Arc<MutatingPolicy>,
        index: usize,
        (invocations, errors): (&mut Vec<Invocation<'p>>, &mut PolicyErrors),
    ) -> Result<(), Box<Status>> {
        let (matcher, objects) = (&self.matcher, self.forms.objects());
        let mut failed = |binding, of, error| {
            let would = match error {
                MatchError::Request(status) if !policy.scope.shadow => return Err(status),
                MatchError::Configuration(status) if !policy.scope.shadow => {
                    self.fail(errors, policy, binding, &PolicyError::Configuration(of, status));
                    return Ok(());
                }
                MatchError::Request(status) => ShadowOutcome::Fail(status.message.unwrap_or_default()),
                MatchError::Configuration(status) => ShadowOutcome::Deny(status),
            };
            self.note_shadow(policy, &would, 0, Instant::now());
            Ok(())
        };
        let matched =
            match matcher.resources_match(&policy.scope.constraints, objects, self.surroundings).await {
                Ok(RuleMatch::No) => return Ok(()),
                Ok(matched) => matched,
                Err(error) => return failed(None, "policy", error),
            };
        for (number, binding) in policy.bindings.iter().enumerate() {
            let applies = match &binding.resources {
                None => Ok(RuleMatch::Exact),
                Some(resources) => {
                    let resources = (resources, objects);
                    binding_match(matcher, &policy.scope, resources, self.surroundings).await
                }
            };
            match applies {
                Ok(RuleMatch::No) => {}
                Ok(_) => invocations.push(Invocation {
                    policy,
                    binding,
                    place: (index, number),
                    matched: matched.clone(),
                }),
                Err(error) => failed(Some(binding), "binding", error)?,
            }
        }
        Ok(())
    }

    /// Takes note of an error, which refuses the request unless the failure policy ignores it.
    fn fail(
        &self,
        errors: &mut PolicyErrors,
        policy: &MutatingPolicy,
        binding: Option<&MutatingBinding>,
        error: &PolicyError,
    ) {
        if policy.scope.failure_policy == FailurePolicy::Ignore {
            let text = error.text();
            let shown = match error {
                PolicyError::Configuration(..) => &text,
                PolicyError::Evaluation(_) => without_values(&text),
            };
            let error = policy_failure(&policy.scope, shown);
            self.surroundings.note(Event::PolicyIgnored(&policy.scope, &error));
        }
        errors.add(policy, binding, error);
    }

    fn evaluation(&mut self) -> PolicyRun<'_, 'a, S, C> {
        PolicyRun {
            attributes: &self.attributes,
            matcher: &self.matcher,
            surroundings: self.surroundings,
            namespace: &mut self.namespace,
            forms: &mut self.forms,
        }
    }

    /// Reports what a shadow policy would do to the object as it is now.
    async fn compare(&mut self, invocation: &Invocation<'_>) {
        let began = Instant::now();
        let mut forms = self.forms.branch();
        let Self { attributes, matcher, surroundings, namespace, .. } = self;
        let mut run =
            PolicyRun { attributes, matcher, surroundings: *surroundings, namespace, forms: &mut forms };
        let (cost, would) = match run.run(invocation, true).await {
            Err(status) => (0, ShadowOutcome::Fail(status.message.unwrap_or_default())),
            Ok(PolicyEnd { errors, changed, cost, .. }) => {
                let mut refused = PolicyErrors::default();
                for error in errors {
                    let error = PolicyError::Evaluation(error);
                    refused.add(invocation.policy, Some(invocation.binding), &error);
                }
                let object = RefusedObject::of(&self.attributes, self.forms.objects());
                let would = match refused.refusal(&object) {
                    Err(status) => ShadowOutcome::Deny(status),
                    Ok(()) if changed => ShadowOutcome::Change,
                    Ok(()) => ShadowOutcome::Allow,
                };
                (cost, would)
            }
        };
        self.note_shadow(invocation.policy, &would, cost, began);
    }

    fn note_shadow(&self, policy: &MutatingPolicy, would: &ShadowOutcome, cost: u64, began: Instant) {
        let (operation, took) = (self.attributes.operation, began.elapsed());
        self.surroundings.note(Event::ShadowPolicy { policy: &policy.scope, operation, would, took, cost });
    }
}

/// Runs policies on the object of some forms.
struct PolicyRun<'r, 'f, S, C> {
    attributes: &'r Arc<Attributes>,
    matcher: &'r RequestMatcher<'f, C>,
    surroundings: &'r S,
    namespace: &'r mut RequestNamespace,
    forms: &'r mut Forms<'f, C>,
}

impl<S: Surroundings, C: Conversions> PolicyRun<'_, '_, S, C> {
    /// Evaluates the conditions of a policy, and if they hold and `runs` says so, its mutations.
    async fn run(&mut self, invocation: &Invocation<'_>, runs: bool) -> Result<PolicyEnd, Box<Status>> {
        let Invocation { policy, binding, matched, .. } = invocation;
        if self.surroundings.is_late() {
            return Err(timeout());
        }
        let formed = self.expected_form(policy, matched).await;
        formed.map_err(|reason| internal_error(&policy_failure(&policy.scope, &reason)))?;
        match self.conditions_hold(policy).await? {
            Ok(true) => {}
            Ok(false) => return Ok(PolicyEnd::default()),
            Err(error) => return Ok(PolicyEnd { errors: vec![error], ..PolicyEnd::default() }),
        }
        if !runs {
            return Ok(PolicyEnd::default());
        }
        let before = self.forms.objects().object.clone();
        let mut end = PolicyEnd { ran: true, ..PolicyEnd::default() };
        for (index, mutation) in policy.mutations.iter().enumerate() {
            let Some(object) = self.forms.objects().object.clone() else { continue };
            let began = Instant::now();
            let place = format!("mutations[{index}]");
            let mutation = (&***policy, mutation, place.as_str());
            let shown = (self.matcher, &mut *self.forms, &mut *self.namespace);
            let of_request = (&**self.attributes, self.surroundings);
            let result = mutated(mutation, &object, of_request, shown, &mut end.cost).await;
            let error = result.as_ref().err().map(MutationFailure::kind);
            if !policy.scope.shadow {
                let (policy, binding) = (policy.scope.name.as_str(), binding.name.as_str());
                let check = MutationCheck { policy, binding, error, took: began.elapsed() };
                self.surroundings.note(Event::PolicyMutated(check));
            }
            match result {
                Ok(changed) => {
                    end.has_mutated = true;
                    if let Some(changed) = changed {
                        self.forms.replace(changed);
                    }
                }
                Err(MutationFailure::Request(status)) => return Err(status),
                Err(MutationFailure::Policy(error)) => end.errors.push(error),
            }
        }
        end.changed = end.has_mutated && self.forms.objects().object != before;
        Ok(end)
    }

    /// Makes the form current that a policy expects. Nothing is converted for a shadow policy alone.
    async fn expected_form(&mut self, policy: &MutatingPolicy, matched: &RuleMatch) -> Result<(), String> {
        match matched {
            RuleMatch::Equivalent(of) if policy.scope.shadow && !self.forms.is_known(of) => {
                Err("the gateway converts nothing for shadow policies alone".to_owned())
            }
            _ => expected_form(self.forms, self.attributes, matched).await,
        }
    }

    /// Whether the conditions hold; the error, if a condition has one and the failure policy does not ignore it.
    async fn conditions_hold(&self, policy: &MutatingPolicy) -> Result<Result<bool, String>, Box<Status>> {
        if policy.scope.match_conditions.is_empty() {
            return Ok(Ok(true));
        }
        let (surroundings, operation) = (self.surroundings, self.attributes.operation);
        let note = |event: Event<'_>| {
            if !policy.scope.shadow {
                surroundings.note(event);
            }
        };
        let (of, began) = (ConditionsOf::Policy(&policy.scope), Instant::now());
        let bindings = self.matcher.bindings(self.forms.condition_objects(), surroundings).await?;
        let (are_large, inline) = (self.forms.objects().are_large, surroundings.inline_cost());
        let (variables, failure_policy) = (&policy.scope.variables, policy.scope.failure_policy);
        let expressions = Expressions::new(bindings, Some(variables), are_large, inline, failure_policy);
        let failed = || note(Event::ConditionFailed(of, operation));
        let holds = hold(&policy.scope.match_conditions, expressions, failed, surroundings).await;
        if !matches!(holds, Ok(true)) {
            note(Event::ConditionsEvaluated(of, operation, began.elapsed()));
        }
        match holds {
            Ok(holds) => Ok(Ok(holds)),
            Err(Failure::Request(status)) => Err(status),
            Err(Failure::Conditions(error)) if policy.scope.failure_policy == FailurePolicy::Ignore => {
                let error = policy_failure(&policy.scope, without_values(&error));
                note(Event::PolicyIgnored(&policy.scope, &error));
                Ok(Ok(false))
            }
            Err(Failure::Conditions(error)) => Ok(Err(error)),
        }
    }
}
