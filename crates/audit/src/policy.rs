//! Which requests are audited, and how much of them: `audit.k8s.io/v1` `Policy`.

use crate::event::{Level, Stage};

/// A valid policy.
#[derive(Debug, Clone)]
pub struct Policy {}

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
pub struct Stages(u8);

impl Stages {
    /// Whether the set has a stage.
    pub fn contains(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }
}

impl Policy {
    /// Decides with the first rule that matches.
    // apiserver: pkg/audit/policy/checker.go
    pub fn evaluate(&self, attributes: &Attributes<'_>) -> Decision {
        let _ = attributes;
        Decision { level: Level::None, omitted: Stages::default(), omit_managed_fields: false }
    }
}
