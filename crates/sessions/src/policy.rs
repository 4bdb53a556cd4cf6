//! Which sessions are recorded, how much of them, and how long they may take: a file in the form of the audit policy.
//!
//! ```yaml
//! apiVersion: portcullis.dev/v1alpha1
//! kind: SessionPolicy
//! rules:
//! - level: None
//!   users: ["system:serviceaccount:ci:deployer"]
//! - level: InputAndOutput
//!   namespaces: [payments]
//!   required: true
//!   maxDuration: 1h
//!   idleTimeout: 10m
//! - level: Output
//!   subresources: [exec, attach]
//! ```
//!
//! The first rule that matches a session decides; an empty list is no constraint. Without a rule a session is not recorded.

mod wire;

use std::sync::Arc;
use std::time::Duration;

use portcullis_kubernetes::field::FieldError;
use portcullis_kubernetes::strict;
use serde_json::Value;

use crate::decoder::SessionKind;

const API_VERSION: &str = "portcullis.dev/v1alpha1";
const KIND: &str = "SessionPolicy";

/// A valid policy. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SessionPolicy(Arc<[SessionRule]>);

/// How much of a session is recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordingLevel {
    /// Nothing.
    #[default]
    None,
    /// The documents: who did what where, and how it ended.
    Metadata,
    /// And the outputs.
    Output,
    /// And the input, with what a terminal does not show, such as passwords.
    InputAndOutput,
}

/// A rule of a policy. An empty list is no constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRule {
    /// The names of users.
    pub users: Vec<String>,
    /// The groups of users; one is enough.
    pub user_groups: Vec<String>,
    /// The namespaces.
    pub namespaces: Vec<String>,
    /// The kinds of sessions.
    pub kinds: Vec<SessionKind>,
    /// What the rule says.
    pub decision: SessionDecision,
}

/// What a policy says of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionDecision {
    /// How much is recorded.
    pub level: RecordingLevel,
    /// Whether a session that cannot be recorded is refused, and ended when it can no longer be.
    pub required: bool,
    /// How long the session may take.
    pub max_duration: Option<Duration>,
    /// How long the session may pass no bytes.
    pub idle_timeout: Option<Duration>,
    /// How many sessions the user may have at a time.
    pub max_sessions_per_user: Option<u32>,
}

/// A session as the rules see it.
#[derive(Debug, Clone, Copy)]
pub struct SessionAttributes<'a> {
    /// The name of the client, which is never the user whom it impersonates.
    pub user: &'a str,
    /// The groups of the client.
    pub groups: &'a [String],
    /// The namespace of the pod.
    pub namespace: &'a str,
    /// The kind of the session.
    pub kind: SessionKind,
}

/// Why a policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionPolicyError {
    /// It is not a `SessionPolicy`, with the fix.
    Undecodable(String, String),
    /// Fields are not valid: all of them, each with its fix.
    Fields(Vec<FieldError>),
}

impl RecordingLevel {
    /// The levels.
    pub const ALL: [Self; 4] = [Self::None, Self::Metadata, Self::Output, Self::InputAndOutput];

    /// The name in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Output => "Output",
            Self::InputAndOutput => "InputAndOutput",
        }
    }
}

impl SessionPolicy {
    /// Reads a policy from a parsed document.
    pub fn parse(document: &Value) -> Result<Self, SessionPolicyError> {
        let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
        if (text("apiVersion"), text("kind")) != (API_VERSION, KIND) {
            let problem = format!("is not a {KIND} of {API_VERSION}");
            let fix = format!("begin with apiVersion: {API_VERSION} and kind: {KIND}");
            return Err(SessionPolicyError::Undecodable(problem, fix));
        }
        let policy = strict::decode::<wire::SessionPolicy>(document, |_| ())
            .map_err(|error| SessionPolicyError::Undecodable(error.problem, error.fix))?;
        policy.validate().map_err(SessionPolicyError::Fields)
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[SessionRule] {
        &self.0
    }

    /// Decides with the first rule that matches.
    pub fn evaluate(&self, session: &SessionAttributes<'_>) -> SessionDecision {
        self.position(session)
            .and_then(|index| self.0.get(index))
            .map(|rule| rule.decision)
            .unwrap_or_default()
    }

    /// The index of the first rule that matches; `None` if no rule does.
    pub fn position(&self, session: &SessionAttributes<'_>) -> Option<usize> {
        self.0.iter().position(|rule| rule.matches(session))
    }
}

impl SessionRule {
    fn matches(&self, session: &SessionAttributes<'_>) -> bool {
        let has = |list: &[String], value: &str| list.is_empty() || list.iter().any(|item| item == value);
        has(&self.users, session.user)
            && (self.user_groups.is_empty()
                || session.groups.iter().any(|group| has(&self.user_groups, group)))
            && has(&self.namespaces, session.namespace)
            && (self.kinds.is_empty() || self.kinds.contains(&session.kind))
    }
}

#[cfg(test)]
mod tests;
