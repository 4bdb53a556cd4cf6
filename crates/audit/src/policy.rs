//! Which requests are audited, and how much of them: `audit.k8s.io/v1` `Policy`.

mod rules;
mod wire;

use std::sync::Arc;

use portcullis_go::quote::Quoted;
use portcullis_kubernetes::field::FieldError;
use portcullis_kubernetes::strict;
use serde_json::Value;

use crate::event::{Level, Stage};
pub use rules::{Resource as ResourceRule, Rule};

const API_VERSION: &str = "audit.k8s.io/v1";
const KIND: &str = "Policy";

/// A valid policy. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Policy(Arc<Rules>);

#[derive(Debug)]
struct Rules {
    rules: Vec<Rule>,
    /// What holds for a request that no rule matches.
    default: Decision,
}

/// A request as the rules of a policy see it.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    /// The client; `None` if it is not authenticated.
    pub user: Option<User<'a>>,
    /// The verb of Kubernetes; for a request without a resource the method in lower case.
    pub verb: &'a str,
    /// The resource; `None` for a request without one.
    pub resource: Option<Resource<'a>>,
    /// The decoded path.
    pub path: &'a str,
}

/// A client as the rules of a policy see it. It is never the user whom it impersonates.
#[derive(Debug, Clone, Copy)]
pub struct User<'a> {
    /// The name.
    pub name: &'a str,
    /// The groups.
    pub groups: &'a [String],
}

/// A resource as the rules of a policy see it. Absent parts are empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resource<'a> {
    /// The API group.
    pub api_group: &'a str,
    /// The resource.
    pub resource: &'a str,
    /// The subresource.
    pub subresource: &'a str,
    /// The namespace.
    pub namespace: &'a str,
    /// The name.
    pub name: &'a str,
}

/// What a policy says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// How much is recorded.
    pub level: Level,
    /// The stages of which no event is made.
    pub omitted: Stages,
    /// Whether the objects are recorded without their `managedFields`.
    pub omit_managed_fields: bool,
}

/// A set of stages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages {
    request_received: bool,
    response_started: bool,
    response_complete: bool,
    panic: bool,
}

/// Why a policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyError {
    /// It is not a `Policy`, with the fix.
    Undecodable(String, String),
    /// Fields are not valid.
    Fields(Vec<FieldError>),
}

impl Stages {
    /// Whether the set has a stage.
    pub fn contains(self, stage: Stage) -> bool {
        match stage {
            Stage::RequestReceived => self.request_received,
            Stage::ResponseStarted => self.response_started,
            Stage::ResponseComplete => self.response_complete,
            Stage::Panic => self.panic,
        }
    }

    /// The stages in the order of their events.
    pub fn iter(self) -> impl Iterator<Item = Stage> {
        Stage::ALL.into_iter().filter(move |stage| self.contains(*stage))
    }

    fn insert(&mut self, stage: Stage) {
        *match stage {
            Stage::RequestReceived => &mut self.request_received,
            Stage::ResponseStarted => &mut self.response_started,
            Stage::ResponseComplete => &mut self.response_complete,
            Stage::Panic => &mut self.panic,
        } = true;
    }

    fn union(self, other: Self) -> Self {
        let mut union = self;
        other.iter().for_each(|stage| union.insert(stage));
        union
    }
}

impl Policy {
    /// Reads a policy from a parsed document. Unknown fields are no error, but a warning.
    // apiserver: pkg/audit/policy/reader.go, LoadPolicyFromBytes
    pub fn parse(document: &Value) -> Result<(Self, Option<String>), PolicyError> {
        let undecodable = |problem: String| {
            let fix = format!("begin with apiVersion: {API_VERSION} and kind: {KIND}");
            PolicyError::Undecodable(problem, fix)
        };
        let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
        let (kind, version) = (text("kind"), text("apiVersion"));
        if version.is_empty() {
            return Err(undecodable("the apiVersion is missing".to_owned()));
        }
        // A missing kind is that of the type that is read.
        // apimachinery: pkg/runtime/serializer/json/json.go, gvkWithDefaults
        if version != API_VERSION || !["", KIND].contains(&kind) {
            return Err(undecodable(format!(
                "failed decoding: no kind {} is registered for version {}",
                Quoted(kind),
                Quoted(version)
            )));
        }
        let (policy, warning) = match strict::decode::<wire::Policy>(document, |_| ()) {
            Ok(policy) => (policy, None),
            // Unknown fields alone: the known ones can be read.
            Err(error) => match strict::decode_leniently::<wire::Policy>(document) {
                Ok(policy) => (policy, Some(error.problem)),
                Err(error) => {
                    return Err(PolicyError::Undecodable(
                        format!("failed decoding: {}", error.problem),
                        error.fix,
                    ));
                }
            },
        };
        let warning = warning.map(|problem| {
            format!("Audit policy contains errors, falling back to lenient decoding: {problem}")
        });
        let mut errors = Vec::new();
        let policy = policy.validate(&mut errors);
        if !errors.is_empty() {
            return Err(PolicyError::Fields(errors));
        }
        if policy.0.rules.is_empty() {
            let problem = "loaded illegal policy with 0 rules".to_owned();
            return Err(PolicyError::Undecodable(problem, "give at least one rule".to_owned()));
        }
        Ok((policy, warning))
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.0.rules
    }

    /// Decides with the first rule that matches.
    // apiserver: pkg/audit/policy/checker.go
    pub fn evaluate(&self, attributes: &Attributes<'_>) -> Decision {
        let rule = self.position(attributes).and_then(|index| self.0.rules.get(index));
        rule.map_or(self.0.default, Rule::decision)
    }

    /// The index of the first rule that matches; `None` if no rule does.
    pub fn position(&self, attributes: &Attributes<'_>) -> Option<usize> {
        self.0.rules.iter().position(|rule| rule.matches(attributes))
    }
}

#[cfg(test)]
mod tests;
