//! The report on a credential, as text and as data: the verdict, the reasons with advice, the checks.

use std::collections::BTreeMap;

use portcullis_http::identity::UnencodableIdentity;
use portcullis_kubernetes::user::UserInfo;
use portcullis_tools::table;
use portcullis_tools::terminal::{plain, sanitized};
use serde::{Serialize, Serializer};

use super::access::AccessExplanation;
use super::advice::RefusalReason;
use crate::authn::trace::{Check, StepOutcome, TraceStep};

/// The verdict on a credential, and the checks that led to it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct Explanation {
    pub(super) cluster: String,
    pub(in crate::cli) authenticated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authenticator: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<User>,
    /// The error as in the log of `serve`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) reasons: Vec<RefusalReason>,
    /// Claims or fields of the credential, verified or not.
    #[serde(serialize_with = "in_order")]
    pub(super) credential: Vec<(&'static str, String)>,
    pub(super) steps: Vec<Row>,
    pub(super) warnings: Vec<String>,
    pub(super) audit_annotations: BTreeMap<String, String>,
    /// The authorization of a request, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authorization: Option<AccessExplanation>,
}

fn in_order<S: Serializer>(facts: &[(&'static str, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(facts.iter().map(|(name, value)| (name, value)))
}

/// As `SelfSubjectReview` shows it.
#[derive(Debug, Serialize)]
pub(super) struct User {
    pub(super) username: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) uid: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

/// One check of an authenticator.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) authenticator: String,
    pub(super) check: String,
    pub(super) result: &'static str,
    pub(super) detail: String,
    /// The check and its outcome, of which `check` and `result` are the texts.
    #[serde(skip)]
    pub(super) kind: Check,
    #[serde(skip)]
    pub(super) outcome: StepOutcome,
}

impl From<TraceStep> for Row {
    fn from(step: TraceStep) -> Self {
        let result = match step.outcome {
            StepOutcome::Passed => "ok",
            StepOutcome::Failed | StepOutcome::Unavailable => "failed",
            StepOutcome::NotApplicable => "-",
        };
        let TraceStep { authenticator, check: kind, outcome, detail } = step;
        Self { authenticator, check: kind.to_string(), result, detail, kind, outcome }
    }
}

impl Row {
    /// The row of a user that an authenticator accepts, and that headers cannot carry.
    pub(super) fn of_unencodable_identity(unencodable: &UnencodableIdentity) -> Self {
        let (authenticator, detail) = ("forwarding".to_owned(), unencodable.to_string());
        TraceStep { authenticator, check: Check::Identity, outcome: StepOutcome::Failed, detail }.into()
    }

    /// Whether the check has failed, so that the credential is refused.
    pub(super) fn is_obstacle(&self) -> bool {
        matches!(self.outcome, StepOutcome::Failed | StepOutcome::Unavailable) && !self.is_verdict()
    }

    /// Whether the row is the verdict of an authenticator; the checks before it are more specific.
    fn is_verdict(&self) -> bool {
        self.kind == Check::Verdict
    }
}

impl Explanation {
    /// Whether the credential is accepted, and the request allowed, if there is one.
    pub(super) fn is_accepted(&self) -> bool {
        self.authenticated && self.authorization.as_ref().is_none_or(|access| access.allowed)
    }

    /// The user of an accepted credential.
    pub(super) fn user(&self) -> Option<UserInfo> {
        let User { username, uid, groups, extra } = self.user.as_ref()?;
        let (groups, extra) = (groups.clone(), extra.clone());
        Some(UserInfo { name: username.clone(), uid: uid.clone(), groups, extra })
    }

    /// The text form. Without `all`, only with the checks of the authenticators that the credential is for.
    pub(in crate::cli) fn text(&self, all: bool) -> String {
        let mut lines = self.verdict();
        let facts = self.credential.iter();
        lines.extend(facts.enumerate().map(|(index, (name, value))| {
            let title = if index == 0 { "content" } else { "" };
            format!("  {title:8}  {name:7}  {value}")
        }));
        let concerned = |row: &&Row| {
            all || !row.is_verdict()
                && self.steps.iter().any(|other| {
                    let is_same = other.authenticator == row.authenticator;
                    is_same && !other.is_verdict() && other.outcome != StepOutcome::NotApplicable
                })
        };
        let rows: Vec<_> = self.steps.iter().filter(concerned).collect();
        if !rows.is_empty() {
            lines.push(String::new());
            lines.extend(table(&rows));
        }
        if !all {
            lines.extend(self.others());
        }
        if let Some(authorization) = &self.authorization {
            lines.push(String::new());
            lines.extend(authorization.text());
        }
        // A token may contain escape sequences that a terminal would obey.
        lines.iter().map(|line| sanitized(line.trim_end()) + "\n").collect()
    }

    fn verdict(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match (&self.user, self.authenticator) {
            (Some(user), Some(authenticator)) => {
                lines.push(format!("accepted by {authenticator} for cluster {}", self.cluster));
                lines.push(format!("  username  {}", plain(&user.username)));
                lines.extend(user.uid.iter().map(|uid| format!("  uid       {}", plain(uid))));
                lines.extend(user.groups.iter().map(|group| format!("  group     {}", plain(group))));
                for (key, values) in &user.extra {
                    let key = plain(key);
                    lines.extend(values.iter().map(|value| format!("  extra     {key}={}", plain(value))));
                }
            }
            _ => lines.push(format!("refused (401 Unauthorized) for cluster {}", self.cluster)),
        }
        for RefusalReason { authenticator, check, detail, fix } in &self.reasons {
            let by = authenticator.as_ref().map(|name| format!("{name}, ")).unwrap_or_default();
            lines.push(format!("  why       {by}{check}: {detail}"));
            lines.extend(fix.iter().map(|fix| format!("  fix       {fix}")));
        }
        lines.extend(self.warnings.iter().map(|warning| format!("  warning   {warning}")));
        let annotations = self.audit_annotations.iter();
        lines.extend(annotations.map(|(key, value)| format!("  audit     {key}={value}")));
        lines
    }

    /// The authenticators that the credential is not for.
    fn others(&self) -> Vec<String> {
        let looked = |row: &&Row| !row.is_verdict();
        let mut names: Vec<&str> = Vec::new();
        for row in self.steps.iter().filter(looked) {
            let of_it =
                self.steps.iter().filter(looked).filter(|other| other.authenticator == row.authenticator);
            if of_it.into_iter().all(|other| other.outcome == StepOutcome::NotApplicable)
                && !names.contains(&row.authenticator.as_str())
            {
                names.push(&row.authenticator);
            }
        }
        if names.is_empty() {
            return Vec::new();
        }
        vec![String::new(), format!("not for {} (--all shows their checks)", names.join(", "))]
    }
}

/// The checks; each authenticator is named once.
fn table(rows: &[&Row]) -> Vec<String> {
    let mut last = "";
    let cells = rows.iter().map(|row| {
        let name = if row.authenticator == last { "" } else { row.authenticator.as_str() };
        last = &row.authenticator;
        [name.to_owned(), row.check.clone(), row.result.to_owned(), row.detail.clone()]
    });
    let table = table::columns(["AUTHENTICATOR", "CHECK", "RESULT", "DETAIL"], cells);
    table.lines().map(str::to_owned).collect()
}
