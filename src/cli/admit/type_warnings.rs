//! The expressions of policies that do not fit the objects of their kinds, by the documents that `--openapi` gives.

use portcullis_admission::{AnyPolicy, GroupVersionKind, GroupVersionResource, Policies};
use portcullis_merge::{Declarations, DeclaredType};
use serde::Serialize;

use super::plural;

/// As in the `status.typeChecking` of a policy.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExpressionWarningRow {
    policy: String,
    field_ref: String,
    warning: String,
}

impl ExpressionWarningRow {
    /// The errors of the expression, by kind.
    fn table(&self) -> String {
        let lines = self.warning.lines().filter(|line| !line.is_empty());
        let lines: Vec<&str> = lines.flat_map(|line| ["  ", line, "\n"]).collect();
        let lines = lines.concat();
        format!("\n{} {} does not fit the objects of a kind:\n{lines}", self.policy, self.field_ref)
    }
}

pub(super) fn table(rows: &[ExpressionWarningRow]) -> String {
    rows.iter().map(ExpressionWarningRow::table).collect()
}

/// The warnings about all policies. Only kinds of the documents are checked: as there is no cluster to ask, the resource of a kind is
/// its plural.
pub(super) fn expression_warnings(
    policies: &Policies,
    documents: &[Declarations],
) -> Vec<ExpressionWarningRow> {
    let kinds: Vec<(GroupVersionKind, &Declarations)> = documents.iter().flat_map(kinds_of).collect();
    let kind_of = |GroupVersionResource { group, version, resource }: &GroupVersionResource| {
        let is_of = |kind: &GroupVersionKind| {
            kind.group == *group && kind.version == *version && plural(&kind.kind) == *resource
        };
        kinds.iter().map(|(kind, _)| kind).find(|kind| is_of(kind)).cloned()
    };
    let object_of = |kind: GroupVersionKind| -> Option<(GroupVersionKind, DeclaredType)> {
        let (_, document) = kinds.iter().find(|(known, _)| *known == kind)?;
        let object = document.of(&kind.group, &kind.version, &kind.kind)?;
        Some((kind, object))
    };
    let warnings = |policy: AnyPolicy<'_>| {
        let kinds = policy.kinds_to_check(kind_of);
        let objects: Vec<_> = kinds.into_iter().filter_map(object_of).collect();
        let name = policy.scope().name.clone();
        policy.type_warnings(&objects).into_iter().map(move |warning| ExpressionWarningRow {
            policy: name.clone(),
            warning: warning.to_string(),
            field_ref: warning.field,
        })
    };
    policies.all().flat_map(warnings).collect()
}

fn kinds_of(document: &Declarations) -> impl Iterator<Item = (GroupVersionKind, &Declarations)> {
    document.kinds().map(move |[group, version, kind]| {
        let [group, version, kind] = [group, version, kind].map(str::to_owned);
        (GroupVersionKind { group, version, kind }, document)
    })
}
