//! Whether the expressions of a policy fit the objects that it is about, by the schemas that an API server publishes.
//!
//! kube-controller-manager writes the same into `status.typeChecking` of a `ValidatingAdmissionPolicy`, for its validations and their
//! messages. Here the match conditions, the variables and the audit annotations are checked as well, and so are the expressions of a
//! `MutatingAdmissionPolicy`. A warning changes nothing that a policy does. Where the two differ is in `docs/admission.md`.
// apiserver: pkg/admission/plugin/policy/validating/typechecking.go

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use portcullis_cel::{CompileError, Declared, Expression, ObjectFields, TypeCheck};
use portcullis_merge::{DeclaredObject, DeclaredType};

use crate::{AnyPolicy, GroupVersionKind, GroupVersionResource, Mutation, Rule};

/// The most kinds of one rule; with the last one, the kinds of a policy are complete.
// typechecking.go — maxTypesToCheck
const MAX_KINDS: usize = 10;

/// The most resources of one rule that are looked for.
const MAX_RESOURCES: usize = 1000;

/// An expression that does not fit the objects of some kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeWarning {
    /// The path of the expression in the policy, such as `spec.validations[0].expression`.
    pub field: String,
    /// The errors, by kind.
    pub errors: Vec<KindError>,
}

/// What is wrong with an expression about the objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindError {
    /// The kind.
    pub kind: GroupVersionKind,
    /// The errors, with their places in the expression.
    pub error: CompileError,
}

/// As in `status.typeChecking.expressionWarnings[].warning`.
// typechecking.go — TypeCheckingResults.String
impl fmt::Display for TypeWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, KindError { kind, error }) in self.errors.iter().enumerate() {
            let separator = if number > 0 { "\n" } else { "" };
            writeln!(f, "{separator}{kind}: {error}")?;
        }
        Ok(())
    }
}

impl AnyPolicy<'_> {
    /// The resources that its rules name, without wildcards and subresources, in the order in which kinds are looked for; those of
    /// a rule together.
    fn named_resources(self) -> impl Iterator<Item = Vec<GroupVersionResource>> {
        self.scope().constraints.rules.iter().map(named_resources)
    }

    /// The groups and versions of these resources.
    pub fn named_group_versions(self) -> BTreeSet<(String, String)> {
        let resources = self.named_resources().flatten();
        resources.map(|resource| (resource.group, resource.version)).collect()
    }

    /// The kinds of these resources, sorted: as many as are checked. `kind_of` finds the kind of a resource that is served.
    // typechecking.go — typesToCheck
    pub fn kinds_to_check(
        self,
        kind_of: impl Fn(&GroupVersionResource) -> Option<GroupVersionKind>,
    ) -> Vec<GroupVersionKind> {
        let mut kinds = Vec::new();
        for resources in self.named_resources() {
            let found: Vec<_> = resources.iter().filter_map(&kind_of).take(MAX_KINDS).collect();
            let is_complete = found.len() == MAX_KINDS;
            kinds.extend(found);
            if is_complete {
                break;
            }
        }
        let key = |of: &GroupVersionKind| (of.group.clone(), of.version.clone(), of.kind.clone());
        kinds.sort_by_key(key);
        kinds.dedup();
        kinds
    }

    /// Checks the expressions by the types of these kinds. Takes milliseconds for each expression and kind.
    // typechecking.go — Check
    pub fn type_warnings(self, kinds: &[(GroupVersionKind, DeclaredType)]) -> Vec<TypeWarning> {
        let expressions = self.fields();
        let mut warnings: Vec<TypeWarning> = Vec::new();
        let mut all_errors: Vec<Vec<KindError>> = vec![Vec::new(); expressions.len()];
        let variables = &self.scope().variables;
        let mut of_variables: Vec<Vec<KindError>> = vec![Vec::new(); variables.expressions().count()];
        for (kind, object) in kinds {
            let mut check = TypeCheck::new(&kind.kind, &declared(object.clone()));
            for found in check.declare(variables) {
                let error = KindError { kind: kind.clone(), error: found.error };
                of_variables.get_mut(found.index).into_iter().for_each(|errors| errors.push(error.clone()));
            }
            for ((_, expression), errors) in expressions.iter().zip(&mut all_errors) {
                let error = check.check(expression).err();
                errors.extend(error.map(|error| KindError { kind: kind.clone(), error }));
            }
        }
        let field = |index| format!("spec.variables[{index}].expression");
        let of_variables = of_variables.into_iter().enumerate().map(|(index, errors)| (field(index), errors));
        let of_fields = expressions.into_iter().map(|(field, _)| field).zip(all_errors);
        let found = of_variables.chain(of_fields).filter(|(_, errors)| !errors.is_empty());
        warnings.extend(found.map(|(field, errors)| TypeWarning { field, errors }));
        warnings
    }

    /// Its expressions, other than those of its variables, with their paths.
    fn fields(&self) -> Vec<(String, &Expression)> {
        let conditions = self.scope().match_conditions.iter().enumerate();
        let mut fields: Vec<(String, &Expression)> = conditions
            .map(|(index, condition)| {
                (format!("spec.matchConditions[{index}].expression"), &condition.expression)
            })
            .collect();
        match self {
            Self::Validating(policy) => {
                for (index, validation) in policy.validations.iter().enumerate() {
                    let at = format!("spec.validations[{index}]");
                    fields.push((format!("{at}.expression"), &validation.expression));
                    let message = validation.message_expression.as_ref();
                    fields.extend(message.map(|message| (format!("{at}.messageExpression"), message)));
                }
                for (index, annotation) in policy.audit_annotations.iter().enumerate() {
                    let at = format!("spec.auditAnnotations[{index}].valueExpression");
                    fields.push((at, &annotation.value));
                }
            }
            Self::Mutating(policy) => {
                for (index, mutation) in policy.mutations.iter().enumerate() {
                    let patch = match mutation {
                        Mutation::ApplyConfiguration(_) => "applyConfiguration",
                        Mutation::JsonPatch(_) => "jsonPatch",
                    };
                    let at = format!("spec.mutations[{index}].{patch}.expression");
                    fields.push((at, mutation.expression()));
                }
            }
        }
        fields
    }
}

// typechecking.go — extractGroups, extractVersions, extractResources
fn named_resources(rule: &Rule) -> Vec<GroupVersionResource> {
    let is_wild = |name: &String| name.contains('*');
    if rule.api_groups.iter().any(is_wild) || rule.api_versions.iter().any(is_wild) {
        return Vec::new();
    }
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names
    };
    let mut resources = sorted(&rule.resources);
    resources.retain(|resource| !resource.contains(['*', '/']));
    let (groups, versions) = (sorted(&rule.api_groups), sorted(&rule.api_versions));
    let of_version = |group: &String, version: &String| {
        let (group, version) = (group.clone(), version.clone());
        resources.iter().map(move |resource| GroupVersionResource {
            group: group.clone(),
            version: version.clone(),
            resource: resource.clone(),
        })
    };
    let pairs = groups.iter().flat_map(|group| versions.iter().map(move |version| (group, version)));
    pairs.flat_map(|(group, version)| of_version(group, version)).take(MAX_RESOURCES).collect()
}

/// A published type as expressions see it.
fn declared(kind: DeclaredType) -> Declared {
    match kind {
        DeclaredType::Anything => Declared::Anything,
        DeclaredType::Bool => Declared::Bool,
        DeclaredType::Int => Declared::Int,
        DeclaredType::Double => Declared::Double,
        DeclaredType::String => Declared::String,
        DeclaredType::Bytes => Declared::Bytes,
        DeclaredType::Duration => Declared::Duration,
        DeclaredType::Timestamp => Declared::Timestamp,
        DeclaredType::List(element) => Declared::List(Box::new(declared(*element))),
        DeclaredType::Map(value) => Declared::Map(Box::new(declared(*value))),
        DeclaredType::Object(object) => Declared::Object(Arc::new(PublishedFields(object))),
    }
}

#[derive(Debug)]
struct PublishedFields(DeclaredObject);

impl ObjectFields for PublishedFields {
    fn field(&self, name: &str) -> Option<Declared> {
        self.0.field(name).map(declared)
    }

    fn names(&self) -> Vec<String> {
        self.0.names()
    }
}

#[cfg(test)]
mod tests;
