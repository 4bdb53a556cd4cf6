//! Requests of which the webhooks cannot be shown what they would do.
//!
//! | reason | may a client choose it? | a webhook with `Fail` | with `Ignore` |
//! |---|---|---|---|
//! | [`Change`](Unseen::Change): `requestLevel` shows no changes of stored objects | no | refuses | is skipped |
//! | [`OtherCreation`](Unseen::OtherCreation): `requestLevel` shows what POST creates | yes | refuses | refuses, if its rules match CREATE |
//! | [`NoDryRun`](Unseen::NoDryRun), [`Undescribed`](Unseen::Undescribed): what the API server of the resource has | no | refuses | is skipped |
//! | [`UnknownDryRun`](Unseen::UnknownDryRun): that API server does not answer | no | refuses | is skipped |
//! | [`ForeignConnection`](Unseen::ForeignConnection): options that only its API server knows | no | refuses | is skipped |
//!
//! `Ignore` says what happens if a webhook fails. It is no permission for a client to choose a form in which a webhook that
//! does not fail is not asked. What the API server does not convert to the version of a rule is refused in `equivalent.rs`. A form that the gateway cannot read is [`Stop::Unreadable`]: refused, whatever the policies are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_admission::matching::{OperationSet, RequestMatcher};
use portcullis_admission::review::internal_error;
use portcullis_admission::{
    AnyPolicy, Caller as _, Event, FailurePolicy, GroupVersionKind, Objects, Operation, phases,
};
use portcullis_go::quote::Quoted;

use super::equivalent::RequestConversions;
use super::reviewer::{Reviewer, Stop};
use super::subject::{Action, PatchKind};
use crate::admission::MayMatch;
use crate::pipeline::error_map::Refusal;
use crate::pipeline::stages::Authorized;

/// Why the webhooks cannot be shown what a request would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unseen {
    /// A change or a deletion, with `requestLevel`.
    Change,
    /// A creation by PUT or by applying, with `requestLevel`.
    OtherCreation,
    /// An aggregated API server has no dry run of the request.
    NoDryRun,
    /// It cannot be told whether it has one.
    UnknownDryRun,
    /// An aggregated API server does not describe the resource.
    Undescribed,
    /// An upgrade that an aggregated API server answers.
    ForeignConnection,
}

impl Unseen {
    /// Whether the client could have sent a form of this operation that webhooks are shown.
    fn may_a_client_choose_it(self, operation: Operation) -> bool {
        match self {
            Self::OtherCreation => operation == Operation::Create,
            Self::Change
            | Self::NoDryRun
            | Self::UnknownDryRun
            | Self::Undescribed
            | Self::ForeignConnection => false,
        }
    }

    /// The reason in the message for the client.
    fn text(self) -> &'static str {
        match self {
            Self::Change => "with requestLevel, webhooks and policies are shown only CREATE and CONNECT",
            Self::OtherCreation => {
                "with requestLevel, webhooks and policies are shown only objects that POST creates"
            }
            Self::NoDryRun => {
                "the API server of the resource has no dry run, by which the gateway shows objects to webhooks and policies"
            }
            Self::UnknownDryRun => {
                "the gateway cannot tell whether the API server of the resource has dry runs"
            }
            Self::Undescribed => "the API server does not describe the resource in OpenAPI",
            Self::ForeignConnection => "the gateway does not know the options of this connection",
        }
    }
}

impl Reviewer<'_> {
    /// Why `requestLevel` does not show webhooks a change, which may also be a creation.
    // threat: unreviewed-write
    pub(super) async fn unseen_at_request_level(&self, authorized: &Authorized) -> Result<Unseen, Stop> {
        if !matches!(self.subject.action, Action::Update | Action::Patch(PatchKind::Apply)) {
            return Ok(Unseen::Change);
        }
        let creations: OperationSet = [Operation::Create].into_iter().collect();
        let (resource, subresource) = (&self.subject.resource, &self.subject.subresource);
        let webhooks = self.admission.webhooks();
        let webhooks = webhooks.mutating.iter().chain(&webhooks.validating);
        let of_webhooks = webhooks.map(|webhook| (webhook.shadow, webhook.failure_policy));
        let policies = self.admission.policies(resource).all().map(AnyPolicy::scope);
        let of_policies = policies.map(|policy| (policy.shadow, policy.failure_policy));
        let may_be_skipped = (false, FailurePolicy::Ignore);
        if self.admission.may_match(creations, resource, subresource) != MayMatch::Enforced
            || !of_webhooks.chain(of_policies).any(|one| one == may_be_skipped)
        {
            return Ok(Unseen::Change);
        }
        let stored = self.read_stored(authorized, false).await?;
        Ok(if stored.is_some() { Unseen::Change } else { Unseen::OtherCreation })
    }

    /// Lets a request pass although webhooks cannot be shown it, or returns why it stops. A user without rights learns nothing about
    /// webhooks.
    pub(super) async fn passes_unseen(&self, authorized: &Authorized, stop: Stop) -> Result<(), Stop> {
        match stop {
            Stop::Unseen(reason) => {
                self.authorize(authorized).await?;
                Ok(self.refuse_unseen(authorized, reason).await?)
            }
            Stop::Unreadable(_) => {
                self.authorize(authorized).await?;
                Err(stop)
            }
            stop => Err(stop),
        }
    }

    /// Refuses a request that webhooks cannot be shown, unless every webhook that may match it has the `failurePolicy` `Ignore`, and
    /// the client could not choose the form.
    // threat: unreviewed-write
    async fn refuse_unseen(&self, authorized: &Authorized, reason: Unseen) -> Result<(), Refusal> {
        let webhooks = self.admission.webhooks();
        for &operation in self.subject.action.operations() {
            let (kind, name) = (GroupVersionKind::default(), &self.subject.name);
            let attributes = self.attributes(authorized, operation, kind, name, None);
            let conversions = RequestConversions::new(self, authorized, &Objects::default());
            let matcher = RequestMatcher::new(&attributes, &conversions);
            for webhook in webhooks.mutating.iter().chain(&webhooks.validating) {
                if webhook.shadow
                    || !matcher.may_call(webhook, self.surroundings).await.map_err(Refusal::NotAdmitted)?
                {
                    continue;
                }
                let error = format!("failed calling webhook {}: {}", Quoted(&webhook.name), reason.text());
                if webhook.failure_policy == FailurePolicy::Fail || reason.may_a_client_choose_it(operation) {
                    return Err(Refusal::NotAdmitted(internal_error(&error)));
                }
                self.surroundings.note(Event::FailedOpen { webhook, error: &error });
            }
            for policy in self.admission.policies(&self.subject.resource).all() {
                let scope = policy.scope();
                if scope.shadow || !self.has_effect(&matcher, policy).await.map_err(Refusal::NotAdmitted)? {
                    continue;
                }
                let error = phases::policy_failure(scope, reason.text());
                if scope.failure_policy == FailurePolicy::Fail || reason.may_a_client_choose_it(operation) {
                    return Err(Refusal::NotAdmitted(internal_error(&error)));
                }
                self.surroundings.note(Event::PolicyIgnored(scope, &error));
            }
        }
        Ok(())
    }

    /// Whether a policy may be about a request by a binding that gives it an effect.
    async fn has_effect(
        &self,
        matcher: &RequestMatcher<'_, RequestConversions<'_>>,
        policy: AnyPolicy<'_>,
    ) -> Result<bool, Box<meta::Status>> {
        if !matcher.may_apply(&policy.scope().constraints, self.surroundings).await? {
            return Ok(false);
        }
        for binding in policy.bindings() {
            let is_about_it = match binding.resources {
                Some(resources) => matcher.may_apply(resources, self.surroundings).await?,
                None => true,
            };
            if binding.has_effect && is_about_it {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
