//! The wire types of policies in `admissionregistration.k8s.io/v1`. Serializing writes every field, as strict decoding needs it.
// api: admissionregistration/v1/types.go

use portcullis_kubernetes::labels::LabelSelector;
use portcullis_kubernetes::metadata::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::configuration::wire::{WireMatchCondition, WireRule};

/// A `ValidatingAdmissionPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Policy {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: ObjectMeta,
    pub(super) spec: PolicySpec,
    pub(super) status: PolicyStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PolicySpec {
    pub(super) param_kind: Option<ParamKind>,
    pub(super) match_constraints: Option<WireMatchResources>,
    pub(super) validations: Vec<WireValidation>,
    pub(super) failure_policy: Option<String>,
    pub(super) audit_annotations: Vec<WireAuditAnnotation>,
    pub(super) match_conditions: Vec<WireMatchCondition>,
    pub(super) variables: Vec<WireVariable>,
}

/// What policies of both kinds say of the requests that they are about.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScopeSpec<'a> {
    pub(super) param_kind: Option<&'a ParamKind>,
    pub(super) match_constraints: Option<&'a WireMatchResources>,
    pub(super) failure_policy: Option<&'a str>,
    pub(super) match_conditions: &'a [WireMatchCondition],
    pub(super) variables: &'a [WireVariable],
}

impl PolicySpec {
    pub(super) fn scope(&self) -> ScopeSpec<'_> {
        ScopeSpec {
            param_kind: self.param_kind.as_ref(),
            match_constraints: self.match_constraints.as_ref(),
            failure_policy: self.failure_policy.as_deref(),
            match_conditions: &self.match_conditions,
            variables: &self.variables,
        }
    }

    /// The expressions that may use the namespace of the request, but for those of the variables.
    pub(super) fn expressions(&self) -> impl Iterator<Item = &str> {
        let validations = self.validations.iter();
        let of_validations = validations.flat_map(|of| [&of.expression, &of.message_expression]);
        let of_annotations = self.audit_annotations.iter().map(|of| &of.value_expression);
        of_validations.chain(of_annotations).map(String::as_str)
    }
}

/// A `MutatingAdmissionPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MutatingPolicy {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: ObjectMeta,
    pub(super) spec: MutatingPolicySpec,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MutatingPolicySpec {
    pub(super) param_kind: Option<ParamKind>,
    pub(super) match_constraints: Option<WireMatchResources>,
    pub(super) variables: Vec<WireVariable>,
    pub(super) mutations: Vec<WireMutation>,
    pub(super) failure_policy: Option<String>,
    pub(super) match_conditions: Vec<WireMatchCondition>,
    pub(super) reinvocation_policy: String,
}

impl MutatingPolicySpec {
    pub(super) fn scope(&self) -> ScopeSpec<'_> {
        ScopeSpec {
            param_kind: self.param_kind.as_ref(),
            match_constraints: self.match_constraints.as_ref(),
            failure_policy: self.failure_policy.as_deref(),
            match_conditions: &self.match_conditions,
            variables: &self.variables,
        }
    }

    /// The expressions that may use the namespace of the request, but for those of the variables.
    pub(super) fn expressions(&self) -> impl Iterator<Item = &str> {
        let mutations = self.mutations.iter();
        let patches = mutations.flat_map(|of| [of.apply_configuration.as_ref(), of.json_patch.as_ref()]);
        patches.flatten().map(|patch| patch.expression.as_str())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireMutation {
    pub(super) patch_type: String,
    pub(super) apply_configuration: Option<WirePatch>,
    pub(super) json_patch: Option<WirePatch>,
}

/// An `ApplyConfiguration` or a `JSONPatch`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WirePatch {
    pub(super) expression: String,
}

/// What the API server writes. Nothing here reads it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PolicyStatus {
    observed_generation: i64,
    type_checking: Option<TypeChecking>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TypeChecking {
    expression_warnings: Vec<ExpressionWarning>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExpressionWarning {
    field_ref: String,
    warning: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    observed_generation: i64,
    last_transition_time: Option<String>,
    reason: String,
    message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ParamKind {
    pub(super) api_version: String,
    pub(super) kind: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireMatchResources {
    pub(super) namespace_selector: LabelSelector,
    pub(super) object_selector: LabelSelector,
    pub(super) resource_rules: Vec<WireNamedRule>,
    pub(super) exclude_resource_rules: Vec<WireNamedRule>,
    pub(super) match_policy: Option<String>,
}

/// A rule with its operations, and names of objects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireNamedRule {
    pub(super) resource_names: Vec<String>,
    operations: Vec<String>,
    api_groups: Vec<String>,
    api_versions: Vec<String>,
    resources: Vec<String>,
    scope: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireValidation {
    pub(super) expression: String,
    pub(super) message: String,
    pub(super) reason: Option<String>,
    pub(super) message_expression: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireAuditAnnotation {
    pub(super) key: String,
    pub(super) value_expression: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireVariable {
    pub(super) name: String,
    pub(super) expression: String,
}

/// A `ValidatingAdmissionPolicyBinding`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Binding {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: ObjectMeta,
    pub(super) spec: BindingSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct BindingSpec {
    pub(super) policy_name: String,
    pub(super) param_ref: Option<ParamRef>,
    pub(super) match_resources: Option<WireMatchResources>,
    pub(super) validation_actions: Vec<String>,
}

/// A `MutatingAdmissionPolicyBinding`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MutatingBinding {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: ObjectMeta,
    pub(super) spec: MutatingBindingSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MutatingBindingSpec {
    pub(super) policy_name: String,
    pub(super) param_ref: Option<ParamRef>,
    pub(super) match_resources: Option<WireMatchResources>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ParamRef {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) selector: Option<LabelSelector>,
    pub(super) parameter_not_found_action: Option<String>,
}

impl WireNamedRule {
    pub(super) fn operations(&self) -> &[String] {
        &self.operations
    }

    /// The rule without the names.
    pub(super) fn rule(&self) -> WireRule {
        let Self { operations, api_groups, api_versions, resources, scope, .. } = self.clone();
        WireRule { operations, api_groups, api_versions, resources, scope }
    }
}
