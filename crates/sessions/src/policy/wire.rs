//! The wire type of a policy, and its validation.

use std::time::Duration;

use portcullis_go::duration::{format_duration, parse_duration};
use portcullis_kubernetes::field::FieldError;
use portcullis_kubernetes::names::is_dns_label;
use serde::{Deserialize, Serialize};

use super::{RecordingLevel, SessionDecision, SessionRule};
use crate::decoder::SessionKind;

/// The maximum of a duration: one more is a mistake in the unit.
const MAX_DURATION: Duration = Duration::from_hours(365 * 24);

/// A policy as written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SessionPolicy {
    api_version: String,
    kind: String,
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Rule {
    level: String,
    users: Vec<String>,
    user_groups: Vec<String>,
    namespaces: Vec<String>,
    subresources: Vec<String>,
    required: bool,
    max_duration: String,
    idle_timeout: String,
    max_sessions_per_user: Option<i64>,
}

impl SessionPolicy {
    /// The policy, or all its errors.
    pub(super) fn validate(self) -> Result<super::SessionPolicy, Vec<FieldError>> {
        let mut errors = Vec::new();
        if self.rules.is_empty() {
            errors.push(FieldError::required("rules", "").fix("give at least one rule"));
        }
        let rules = self.rules.into_iter().enumerate();
        let rules =
            rules.map(|(index, rule)| rule.validate(&format!("rules[{index}]"), &mut errors)).collect();
        if errors.is_empty() { Ok(super::SessionPolicy(rules)) } else { Err(errors) }
    }
}

impl Rule {
    fn validate(self, path: &str, errors: &mut Vec<FieldError>) -> SessionRule {
        let level = level(&self.level, &format!("{path}.level"), errors);
        for (list, key) in
            [(&self.users, "users"), (&self.user_groups, "userGroups"), (&self.namespaces, "namespaces")]
        {
            for (index, name) in list.iter().enumerate() {
                let path = || format!("{path}.{key}[{index}]");
                // It would match none, and so leave sessions unrecorded.
                if name.is_empty() || name == "*" {
                    let error = FieldError::invalid(path(), name, "must be a name: there are no wildcards");
                    errors.push(error.fix("remove the list to match all"));
                } else if key == "namespaces" && !is_dns_label(name) {
                    let error = FieldError::invalid(path(), name, "must be the name of a namespace");
                    errors.push(error.fix("give lower case letters, digits and hyphens"));
                }
            }
        }
        let kinds = self.subresources.iter().enumerate();
        let kinds =
            kinds.filter_map(|(index, text)| kind(text, &format!("{path}.subresources[{index}]"), errors));
        let kinds = kinds.collect();
        if self.required && level == Some(RecordingLevel::None) {
            let error = FieldError::forbidden(format!("{path}.required"), "level None records nothing");
            errors.push(error.fix("remove it, or give another level"));
        }
        let max_duration = duration(&self.max_duration, &format!("{path}.maxDuration"), errors);
        let idle_timeout = duration(&self.idle_timeout, &format!("{path}.idleTimeout"), errors);
        let most = self.max_sessions_per_user;
        let max_sessions_per_user = most.and_then(|most| u32::try_from(most).ok()).filter(|most| *most > 0);
        if let (Some(most), None) = (most, max_sessions_per_user) {
            let path = format!("{path}.maxSessionsPerUser");
            let error = FieldError::invalid_json(path, &most.to_string(), "must be between 1 and 4294967295");
            errors.push(error.fix("give a number of sessions; to refuse them all, use RBAC"));
        }
        SessionRule {
            users: self.users,
            user_groups: self.user_groups,
            namespaces: self.namespaces,
            kinds,
            decision: SessionDecision {
                level: level.unwrap_or_default(),
                required: self.required,
                max_duration,
                idle_timeout,
                max_sessions_per_user,
            },
        }
    }
}

fn level(text: &str, path: &str, errors: &mut Vec<FieldError>) -> Option<RecordingLevel> {
    let level = RecordingLevel::ALL.into_iter().find(|level| level.as_str() == text);
    let names = RecordingLevel::ALL.map(RecordingLevel::as_str);
    if text.is_empty() {
        errors.push(FieldError::required(path, "").fix(format!("give {}", names.join(" or "))));
    } else if level.is_none() {
        errors.push(FieldError::not_supported(path, text, &names));
    }
    level
}

fn kind(text: &str, path: &str, errors: &mut Vec<FieldError>) -> Option<SessionKind> {
    let kind = SessionKind::ALL.into_iter().find(|kind| kind.as_str() == text);
    if kind.is_none() {
        errors.push(FieldError::not_supported(path, text, &SessionKind::ALL.map(SessionKind::as_str)));
    }
    kind
}

/// A duration in Go's form; none if there is no text.
fn duration(text: &str, path: &str, errors: &mut Vec<FieldError>) -> Option<Duration> {
    if text.is_empty() {
        return None;
    }
    let most = i64::try_from(MAX_DURATION.as_nanos()).unwrap_or(i64::MAX);
    let problem = match parse_duration(text) {
        Ok(nanoseconds) if (1..=most).contains(&nanoseconds) => {
            return u64::try_from(nanoseconds).ok().map(Duration::from_nanos);
        }
        Ok(_) => format!("must be more than 0 and at most {}", format_duration(most)),
        Err(error) => error.to_string(),
    };
    errors.push(FieldError::invalid(path, text, &problem).fix("give a duration such as 30m or 1h30m"));
    None
}
