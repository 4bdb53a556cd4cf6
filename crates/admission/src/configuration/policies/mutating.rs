//! Mutating policies.

use portcullis_kubernetes::field::{FieldError, json_string};
use portcullis_kubernetes::strict::{self, DecodeError};
use serde_json::Value;

use super::wire::{MutatingPolicySpec, WireMatchResources, WireMutation, WireNamedRule, WirePatch};
use super::{FolderPolicy, ReadBinding, ReadPolicy, Scoped, wire};
use crate::configuration::ValidationContext;
use crate::configuration::validation::Validator;
use crate::policy::{MatchResources, MutatingBinding, MutatingPolicy, Mutation, PolicyKind, PolicyScope};
use crate::{Operation, ReinvocationPolicy, Rule};
use portcullis_cel::{ResultType, Variables};

/// The operations whose requests have an object to change.
const OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
const JSON_PATCH: &str = "JSONPatch";
const APPLY_CONFIGURATION: &str = "ApplyConfiguration";

impl FolderPolicy for MutatingPolicy {
    type Binding = MutatingBinding;

    const KINDS: [&'static str; 2] = ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"];

    // validateMutatingAdmissionPolicy
    fn read(object: &Value, context: &mut ValidationContext) -> Result<ReadPolicy<Self>, DecodeError> {
        let wire::MutatingPolicy { metadata, spec, .. } = strict::decode(object, |_| {})?;
        let mut validator = Validator::of_object(&metadata, context);
        let Scoped { variables, scope } =
            validator.scope((PolicyKind::Mutating, &metadata.name), spec.scope(), spec.expressions());
        validator.mutable(spec.match_constraints.as_ref(), "spec.matchConstraints");
        let mutations = validator.mutations(&spec, &variables);
        let reinvocation_policy = validator.required_reinvocation_policy(&spec.reinvocation_policy);
        let policy = scope.zip(reinvocation_policy).map(|(scope, reinvocation_policy)| Self {
            scope: without_deletions(scope),
            mutations,
            reinvocation_policy,
            bindings: Vec::new(),
        });
        let has_parameters = spec.param_kind.is_some();
        Ok(ReadPolicy { validated: validator.result(policy), name: metadata.name, has_parameters })
    }

    // validateMutatingAdmissionPolicyBinding
    fn read_binding(
        object: &Value,
        context: &mut ValidationContext,
    ) -> Result<ReadBinding<MutatingBinding>, DecodeError> {
        let wire::MutatingBinding { metadata, spec, .. } = strict::decode(object, |_| {})?;
        let mut validator = Validator::of_object(&metadata, context);
        let (parameters, resources) = (spec.param_ref.as_ref(), spec.match_resources.as_ref());
        validator.mutable(resources, "spec.matchResources");
        let resources = validator.bound(&spec.policy_name, parameters, resources);
        let binding = MutatingBinding { name: metadata.name.clone(), resources };
        Ok(ReadBinding {
            validated: validator.result(Some(binding)),
            name: metadata.name,
            has_parameters: parameters.is_some(),
            policy: spec.policy_name,
        })
    }

    fn bind(&mut self, binding: MutatingBinding) {
        self.bindings.push(binding);
    }
}

/// A deletion has no object that a policy could change, whatever its rules say.
// apiserver: pkg/admission/plugin/policy/mutating/plugin.go, NewPlugin
fn without_deletions(scope: PolicyScope) -> PolicyScope {
    let changing = || vec![Operation::Create, Operation::Update, Operation::Connect];
    let PolicyScope { constraints, .. } = scope;
    let rules = constraints.rules.into_iter();
    let rules = rules.map(|rule| Rule { operations: Some(rule.operations.unwrap_or_else(changing)), ..rule });
    PolicyScope { constraints: MatchResources { rules: rules.collect(), ..constraints }, ..scope }
}

impl Validator<'_> {
    /// Refuses rules about requests that have no object to change.
    fn mutable(&mut self, resources: Option<&WireMatchResources>, field: &str) {
        let rules = resources.into_iter().flat_map(|resources| &resources.resource_rules);
        for operation in
            rules.flat_map(WireNamedRule::operations).filter(|name| !OPERATIONS.contains(&name.as_str()))
        {
            let at = format!("{field}.resourceRules.operations");
            let error = FieldError::not_supported_json(at, &json_string(operation), &OPERATIONS);
            self.errors.push(error.fix("only the objects of CREATE, UPDATE and CONNECT can be changed"));
        }
    }

    fn required_reinvocation_policy(&mut self, given: &str) -> Option<ReinvocationPolicy> {
        let field = "spec.reinvocationPolicy";
        if given.is_empty() {
            let fix = "give Never, or IfNeeded to run it again when something changes the object after it";
            return self.fail(FieldError::required(field, "").fix(fix));
        }
        let policies = [("IfNeeded", ReinvocationPolicy::IfNeeded), ("Never", ReinvocationPolicy::Never)];
        self.choice(Some(given), ReinvocationPolicy::Never, &policies, field)
    }

    fn mutations(&mut self, spec: &MutatingPolicySpec, variables: &Variables) -> Vec<Mutation> {
        if spec.mutations.is_empty() {
            let problem = "mutations must contain at least one item";
            let fix = "give a mutation with patchType and an expression";
            self.errors.push(FieldError::required("spec.mutations", problem).fix(fix));
        }
        let mutations = spec.mutations.iter().enumerate();
        mutations.filter_map(|(index, mutation)| self.mutation(mutation, spec, variables, index)).collect()
    }

    // validateMutation
    fn mutation(
        &mut self,
        mutation: &WireMutation,
        spec: &MutatingPolicySpec,
        variables: &Variables,
        index: usize,
    ) -> Option<Mutation> {
        let at = |name: &str| format!("spec.mutations[{index}].{name}");
        let WireMutation { patch_type, apply_configuration, json_patch } = mutation;
        let of_apply = ("applyConfiguration", apply_configuration.as_ref());
        let of_json = ("jsonPatch", json_patch.as_ref());
        let ((name, patch), (other, absent), result) = match patch_type.as_str() {
            APPLY_CONFIGURATION => (of_apply, of_json, ResultType::ApplyConfiguration),
            JSON_PATCH => (of_json, of_apply, ResultType::JsonPatch),
            "" => {
                let error = FieldError::required(at("patchType"), "");
                return self.fail(error.fix("give ApplyConfiguration or JSONPatch"));
            }
            given => {
                let known = [APPLY_CONFIGURATION, JSON_PATCH];
                return self.fail(FieldError::not_supported_json(
                    at("patchType"),
                    &json_string(given),
                    &known,
                ));
            }
        };
        if absent.is_some() {
            let problem = format!("must not be specified when patchType is {patch_type}");
            let error = FieldError::invalid(at(other), &format!("{{{other}}}"), &problem);
            self.errors
                .push(error.fix(format!("remove it, or give it a mutation of its own: {name} is used here")));
        }
        let Some(WirePatch { expression }) = patch else {
            let problem = format!("must be specified when patchType is {patch_type}");
            let error = FieldError::required(at(name), &problem);
            return self.fail(error.fix(format!("give {name}.expression")));
        };
        let at = at(&format!("{name}.expression"));
        let expression = self.patch_expression((&at, expression), variables, spec.scope(), result)?;
        Some(match result {
            ResultType::JsonPatch => Mutation::JsonPatch(expression),
            _ => Mutation::ApplyConfiguration(expression),
        })
    }
}
