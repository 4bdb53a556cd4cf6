//! The sessions of a cluster: which of them are recorded, where, and what else the rules say.

use std::time::Duration;

use portcullis_go::duration::format_duration;
use portcullis_sessions::decoder::SessionKind;
use portcullis_sessions::policy::{SessionDecision, SessionRule};
use portcullis_tools::table;
use serde::Serialize;

use crate::sessions::settings::SessionSettings;

/// The sessions of a cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionReport {
    recordings: Option<String>,
    /// In order; the first that matches decides.
    rules: Vec<SessionRuleReport>,
}

/// A rule of the policy. What is empty matches everything.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SessionRuleReport {
    level: &'static str,
    users: String,
    namespaces: String,
    subresources: String,
    limits: String,
}

impl SessionReport {
    pub(super) fn of(settings: &SessionSettings) -> Self {
        let SessionSettings { policy, directory } = settings;
        Self {
            recordings: directory.as_ref().map(|directory| directory.display().to_string()),
            rules: policy.rules().iter().map(SessionRuleReport::of).collect(),
        }
    }

    /// The directory, and the table of rules.
    pub(super) fn rows(&self) -> Vec<String> {
        let directory = self.recordings.iter().map(|directory| format!("recorded in {directory}"));
        let titles = ["level", "users", "namespaces", "subresources", "limits"];
        let rules = table::columns(titles, self.rules.iter().map(SessionRuleReport::cells));
        directory.chain(rules.lines().map(str::to_owned)).collect()
    }
}

impl SessionRuleReport {
    fn of(rule: &SessionRule) -> Self {
        let SessionRule { users, user_groups, namespaces, kinds, decision } = rule;
        let groups = user_groups.iter().map(|group| format!("group {group}")).collect::<Vec<_>>().join(", ");
        // A rule with both needs both: one of the users, in one of the groups.
        let users = [users.join(", "), groups].into_iter().filter(|names| !names.is_empty());
        let SessionDecision { level, required, max_duration, idle_timeout, max_sessions_per_user } = decision;
        let time = |text: &str, duration: &Option<Duration>| {
            let nanoseconds = i64::try_from((*duration)?.as_nanos()).unwrap_or(i64::MAX);
            Some(format!("{text} {}", format_duration(nanoseconds)))
        };
        let limits = [
            required.then(|| "required".to_owned()),
            time("at most", max_duration),
            time("idle at most", idle_timeout),
            max_sessions_per_user.map(|most| format!("{most} of a user")),
        ];
        Self {
            level: level.as_str(),
            users: users.collect::<Vec<_>>().join(" and "),
            namespaces: namespaces.join(", "),
            subresources: kinds.iter().copied().map(SessionKind::as_str).collect::<Vec<_>>().join(", "),
            limits: limits.into_iter().flatten().collect::<Vec<_>>().join(", "),
        }
    }

    fn cells(&self) -> [String; 5] {
        let any = |text: &str| if text.is_empty() { "any".to_owned() } else { text.to_owned() };
        let Self { level, users, namespaces, subresources, limits } = self;
        [(*level).to_owned(), any(users), any(namespaces), any(subresources), limits.clone()]
    }
}

#[cfg(test)]
mod tests {
    use portcullis_sessions::policy::SessionPolicy;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_rules_are_a_table() {
        let policy = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "SessionPolicy", "rules": [
            {"level": "None", "users": ["robot"]},
            {"level": "InputAndOutput", "namespaces": ["payments"], "subresources": ["exec", "attach"], "required": true,
             "maxDuration": "1h", "idleTimeout": "90s", "maxSessionsPerUser": 3, "users": ["alice", "bob"], "userGroups": ["admins"]},
        ]});
        let settings = SessionSettings {
            policy: SessionPolicy::parse(&policy).unwrap(),
            directory: Some("/var/lib/portcullis/sessions".into()),
        };
        let rows = SessionReport::of(&settings).rows();
        assert_eq!(rows[0], "recorded in /var/lib/portcullis/sessions");
        let words = |row: &str| row.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>().join(" ");
        let table: Vec<String> = rows[1..].iter().map(|row| words(row)).collect();
        assert_eq!(
            table,
            [
                "level users namespaces subresources limits",
                "None robot any any",
                "InputAndOutput alice, bob and group admins payments exec, attach required, at most 1h0m0s, idle at most 1m30s, 3 of a user",
            ]
        );
    }
}
