//! What `portcullis admit` prints: what each webhook and policy would do, and why.

use portcullis_admission::{Attributes, SkipReason};
use portcullis_tools::table;
use serde::Serialize;
use serde_json::Value;

use super::type_warnings::{self, ExpressionWarningRow};
use crate::admission::{Explanation, MUTATING_POLICY, NotCalled, NotCalledReason, POLICY, TrialResult};

/// The widest column of expressions. The value of a longer one follows it.
const MAX_COLUMN: usize = 72;

/// What the webhooks and policies would do.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AdmitReport {
    /// What is reviewed: the operation, the resource, and the name.
    request: String,
    pub(super) allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    changed: bool,
    webhooks: Vec<CallRow>,
    not_called: Vec<NotCalledRow>,
    policies: Vec<PolicyRow>,
    /// The values of the expressions of validations that do not hold, and of their parts.
    explanations: Vec<ExplanationRow>,
    warnings: Vec<String>,
    /// The expressions that do not fit the objects of a kind, of all policies; empty in a list, which has them once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    expression_warnings: Vec<ExpressionWarningRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<Value>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CallRow {
    webhook: String,
    phase: &'static str,
    result: String,
    milliseconds: u128,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NotCalledRow {
    webhook: String,
    phase: &'static str,
    reason: String,
    /// Whether its rules do not match. Most webhooks are for other resources, so the table only counts them.
    #[serde(skip)]
    by_rules: bool,
}

/// A policy: what it decides, or why it does not see the request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyRow {
    policy: String,
    phase: &'static str,
    /// Whether the policy is about the request, as far as it was asked.
    matches: bool,
    /// Whether its rules or selectors do not match. Most policies are for other requests, so the table only counts them.
    #[serde(skip)]
    is_unmatched: bool,
    result: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    milliseconds: Option<u128>,
    /// What its validations or mutations have cost, in units of CEL.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplanationRow {
    policy: String,
    /// The field of the policy's `spec`.
    place: String,
    /// The expression, and its parts, each before its own parts.
    parts: Vec<PartRow>,
}

#[derive(Debug, Serialize)]
struct PartRow {
    depth: usize,
    text: String,
    value: String,
}

/// Whether a row is that of a policy.
fn is_policy(phase: &str) -> bool {
    [POLICY, MUTATING_POLICY].contains(&phase)
}

/// What the webhooks and policies would do with each object of a `List`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListReport {
    pub(super) allowed: bool,
    pub(super) items: Vec<AdmitReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) expression_warnings: Vec<ExpressionWarningRow>,
}

impl AdmitReport {
    pub(super) fn of(attributes: &Attributes, result: TrialResult, before: Option<&Value>) -> Self {
        let TrialResult { calls, not_called, explanations, warnings, object, refusal } = result;
        let (evaluated, calls): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| is_policy(call.phase));
        let (unmatched, not_called): (Vec<_>, Vec<_>) =
            not_called.into_iter().partition(|other| is_policy(other.phase));
        let evaluated = evaluated.into_iter().map(|call| PolicyRow {
            policy: call.name,
            phase: call.phase,
            matches: true,
            is_unmatched: false,
            result: call.result,
            milliseconds: Some(call.took.as_millis()),
            cost: call.cost,
        });
        let unmatched = unmatched.into_iter().map(|other| PolicyRow {
            policy: other.name,
            phase: other.phase,
            matches: false,
            is_unmatched: other.reason == NotCalledReason::PolicyUnmatched,
            result: format!("not evaluated: {}", reason_text(other.reason)),
            milliseconds: None,
            cost: None,
        });
        Self {
            request: describe(attributes),
            allowed: refusal.is_none(),
            code: refusal.as_ref().and_then(|status| status.code),
            message: refusal.and_then(|status| status.message),
            changed: object.as_ref() != before,
            webhooks: calls
                .into_iter()
                .map(|call| CallRow {
                    webhook: call.name,
                    phase: call.phase,
                    result: call.result,
                    milliseconds: call.took.as_millis(),
                })
                .collect(),
            not_called: not_called.into_iter().map(NotCalledRow::from).collect(),
            policies: evaluated.chain(unmatched).collect(),
            explanations: explanations.into_iter().map(ExplanationRow::from).collect(),
            warnings,
            expression_warnings: Vec::new(),
            object,
        }
    }

    /// The same with warnings about the policies' expressions.
    pub(super) fn with(self, expression_warnings: Vec<ExpressionWarningRow>) -> Self {
        Self { expression_warnings, ..self }
    }

    pub(super) fn table(&self) -> String {
        let took =
            |milliseconds: u128| if milliseconds == 0 { String::new() } else { format!("{milliseconds} ms") };
        let called = self.webhooks.iter().map(|call| {
            let took = took(call.milliseconds);
            [call.webhook.clone(), call.phase.to_owned(), took, String::new(), call.result.clone()]
        });
        let (unmatched, policies): (Vec<_>, Vec<_>) = self.policies.iter().partition(|row| row.is_unmatched);
        let policies = policies.into_iter().map(|row| {
            let took = took(row.milliseconds.unwrap_or_default());
            let cost = row.cost.map(|cost| cost.to_string()).unwrap_or_default();
            [row.policy.clone(), row.phase.to_owned(), took, cost, row.result.clone()]
        });
        let (others, skipped): (Vec<_>, Vec<_>) = self.not_called.iter().partition(|row| row.by_rules);
        let skipped = skipped.into_iter().map(|row| {
            let result = format!("not called: {}", row.reason);
            [row.webhook.clone(), row.phase.to_owned(), String::new(), String::new(), result]
        });
        let rows: Vec<_> = called.chain(policies).chain(skipped).collect();
        let mut text = if rows.is_empty() {
            format!("No webhook or policy matches: {}\n", self.request)
        } else {
            table::columns(["NAME", "PHASE", "TOOK", "COST", "RESULT"], rows)
        };
        let end = match (&self.message, self.changed) {
            (Some(message), _) => [format!("refused ({})", self.code.unwrap_or_default()), message.clone()],
            (None, true) => {
                ["allowed".to_owned(), "the object is changed: --output yaml shows it".to_owned()]
            }
            (None, false) => ["allowed".to_owned(), "the object is not changed".to_owned()],
        };
        let warnings = self.warnings.iter().map(|warning| ["warning".to_owned(), warning.clone()]);
        let others = (!others.is_empty()).then(|| {
            [
                "not called".to_owned(),
                format!("{}, whose rules do not match", counted(others.len(), "webhook", "webhooks")),
            ]
        });
        for explanation in &self.explanations {
            text.push_str(&explanation.table());
        }
        text.push_str(&type_warnings::table(&self.expression_warnings));
        let unmatched = (!unmatched.is_empty()).then(|| {
            [
                "not evaluated".to_owned(),
                format!("{} without a match", counted(unmatched.len(), "policy", "policies")),
            ]
        });
        text.push('\n');
        text.push_str(&table::rows(others.into_iter().chain(unmatched).chain(warnings).chain([end])));
        text
    }
}

impl ListReport {
    pub(super) fn table(&self) -> String {
        let refused = self.items.iter().filter(|item| !item.allowed).count();
        let tables = self.items.iter().map(|item| format!("# {}\n{}\n", item.request, item.table()));
        let warnings = type_warnings::table(&self.expression_warnings);
        let warnings = if warnings.is_empty() { warnings } else { format!("{}\n", warnings.trim_start()) };
        let end = format!("{refused} of {} refused\n", self.items.len());
        tables.chain([warnings, end]).collect()
    }
}

impl From<NotCalled> for NotCalledRow {
    fn from(not_called: NotCalled) -> Self {
        let NotCalled { name, phase, reason } = not_called;
        let by_rules = reason == NotCalledReason::Skipped(SkipReason::Rules);
        Self { webhook: name, phase, reason: reason_text(reason).to_owned(), by_rules }
    }
}

fn reason_text(reason: NotCalledReason) -> &'static str {
    match reason {
        NotCalledReason::Skipped(SkipReason::Excluded) => "the resource is excluded from admission",
        NotCalledReason::Skipped(SkipReason::Rules) => "its rules do not match",
        NotCalledReason::Skipped(SkipReason::ObjectSelector) => "its objectSelector does not match",
        NotCalledReason::Skipped(SkipReason::NamespaceSelector) => {
            "its namespaceSelector does not match the labels that --namespace-label gives"
        }
        NotCalledReason::PolicyUnmatched => "its rules and selectors, or those of its bindings, do not match",
        NotCalledReason::RefusedBefore => "the request is refused before",
    }
}

impl From<Explanation> for ExplanationRow {
    fn from(Explanation { policy, place, parts }: Explanation) -> Self {
        let parts =
            parts.into_iter().map(|part| PartRow { depth: part.depth, text: part.text, value: part.value });
        Self { policy, place, parts: parts.collect() }
    }
}

impl ExplanationRow {
    /// The expression and its parts, with their values beside them.
    fn table(&self) -> String {
        let lines: Vec<String> =
            self.parts.iter().map(|part| format!("  {}{}", "  ".repeat(part.depth), part.text)).collect();
        let width = |line: &String| line.chars().count();
        let column = lines.iter().map(width).filter(|width| *width <= MAX_COLUMN).max().unwrap_or_default();
        let rows = lines.iter().zip(&self.parts).map(|(line, part)| {
            let padding = " ".repeat(column.saturating_sub(width(line)));
            [format!("{line}{padding}  = {}", part.value)]
        });
        format!("\n{} {}\n{}", self.policy, self.place, table::rows(rows))
    }
}

/// The operation, the resource and the name, as `CREATE apps/v1/deployments default/web`.
fn describe(attributes: &Attributes) -> String {
    let Attributes { operation, resource, subresource, namespace, name, .. } = attributes;
    let parts = [&resource.group, &resource.version, &resource.resource, subresource];
    let parts: Vec<&str> = parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    let place = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
    format!("{operation} {} {place}", parts.join("/")).trim_end().to_owned()
}

fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

#[cfg(test)]
mod tests {
    use portcullis_admission::{GroupVersionKind, GroupVersionResource, Operation, UserInfo};

    use super::*;

    /// A policy that does not match is counted; of one that was not asked for another reason, the table has that.
    #[test]
    fn the_table_says_why_policies_are_not_evaluated() {
        let attributes = Attributes {
            operation: Operation::Create,
            kind: GroupVersionKind::default(),
            resource: GroupVersionResource::default(),
            subresource: String::new(),
            name: "m".to_owned(),
            namespace: "n".to_owned(),
            user: UserInfo::default(),
            dry_run: true,
            options: None,
        };
        let table = |reason| {
            let not_called = vec![NotCalled { name: "p.static.k8s.io".to_owned(), phase: POLICY, reason }];
            AdmitReport::of(&attributes, TrialResult { not_called, ..TrialResult::default() }, None).table()
        };
        let words = |reason| table(reason).split_whitespace().collect::<Vec<_>>().join(" ");
        let unmatched = words(NotCalledReason::PolicyUnmatched);
        assert!(unmatched.contains("not evaluated 1 policy without a match"), "{unmatched}");
        assert!(!unmatched.contains("p.static.k8s.io"), "{unmatched}");
        for (reason, why) in [
            (NotCalledReason::RefusedBefore, "the request is refused before"),
            (NotCalledReason::Skipped(SkipReason::Excluded), "the resource is excluded from admission"),
        ] {
            let shown = words(reason);
            assert!(shown.contains(&format!("p.static.k8s.io policy not evaluated: {why}")), "{shown}");
            assert!(!shown.contains("without a match"), "{shown}");
        }
    }
}
