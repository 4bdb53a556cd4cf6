//! Requests that no webhook but shadow ones may match. They are forwarded as they came, byte for byte; what a shadow webhook sees is
//! read beside them.
//!
//! | request | the object | the stored one |
//! |---|---|---|
//! | CREATE | of the response | – |
//! | UPDATE, patch, apply | of the response | of a read before |
//! | DELETE | – | of a read before |
//! | CONNECT | the options | – |
//!
//! What is not known is not shown, and the webhooks that may match count as failed: a response that is not JSON, an object that the
//! client may not read, a deletion of a collection, subresources that are created (a response may be a token), and reviews (the
//! response has the verdict). So is what is not known in time: a request waits [`MAX_DELAY`] for it at most, once before it is
//! forwarded and once after, whatever the API servers do.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{Response, StatusCode};
use portcullis_admission::matching::RequestMatcher;
use portcullis_admission::phases::{self, ShadowCall};
use portcullis_admission::{
    Caller as _, Event, GroupVersionKind, Objects, Operation, ShadowOutcome, Surroundings as _,
};
use portcullis_http::body::Body;
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use super::document::{SERVER_FIELDS, keep_server_fields, metadata};
use super::equivalent::RequestConversions;
use super::options::{delete_options_of_query, reviewed_delete_options, write_options};
use super::reviewer::{Reviewer, Stop, kind_of};
use super::subject::Action;
use crate::pipeline::error_map::Refusal;
use crate::pipeline::forward_error::ForwardError;
use crate::pipeline::stages::{Admitted, Authorized};

/// The largest response that is shown.
const MAX_RESPONSE_BYTES: u64 = 3 << 20;
/// The groups of objects that are answered and not stored.
const REVIEWS: [&str; 2] = ["authentication.k8s.io", "authorization.k8s.io"];

/// How long a request waits before it is forwarded, and its response after, for what shadow webhooks alone need: the stored object,
/// the labels of the namespace, and by which other resources it is served.
// threat: silent-backend
const MAX_DELAY: Duration = Duration::from_millis(500);
const TOO_LATE: &str = "what a webhook would see is not known in time";

/// Why shadow webhooks are not shown a request.
struct Unshown {
    reason: String,
    /// Whether those of the mutating phase were called before.
    is_mutated: bool,
}

impl<S: Into<String>> From<S> for Unshown {
    fn from(reason: S) -> Self {
        Self { reason: reason.into(), is_mutated: false }
    }
}

impl Reviewer<'_> {
    /// Forwards a request as it is, and shows shadow webhooks what became of it.
    pub(super) async fn observe(&self, authorized: Authorized) -> Result<Response<Body>, Refusal> {
        let seen = authorized.copy_without_body();
        let before = timeout(MAX_DELAY, self.stored_before(&seen)).await;
        let before = before.unwrap_or_else(|_| Err(TOO_LATE.into()));
        // Also of a read that was given up.
        self.hold.release();
        let admitted = Admitted::as_received(authorized);
        let response = self.gateway.forward(admitted, self.connection, self.scope).await?;
        let status = response.status();
        if !status.is_success() && status != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let (response, object) =
            if self.shows_response() { self.object_of(response).await? } else { (response, Ok(None)) };
        let end = Instant::now() + MAX_DELAY;
        let shown = match (before, object) {
            (Ok(old), Ok(object)) => self.show(&seen, Objects { object, old_object: old }, end).await,
            (Err(unshown), _) | (_, Err(unshown)) => Err(unshown),
        };
        if let Err(unshown) = shown {
            self.count_unshown(&seen, &unshown, end).await;
        }
        Ok(response)
    }

    fn shows_response(&self) -> bool {
        match self.subject.action {
            Action::Create => {
                self.subject.subresource.is_empty()
                    && !REVIEWS.contains(&self.subject.resource.group.as_str())
            }
            Action::Update | Action::Patch(_) => true,
            Action::Delete | Action::DeleteCollection | Action::Connect | Action::ForeignConnect => false,
        }
    }

    /// The stored object, where webhooks see it.
    async fn stored_before(&self, seen: &Authorized) -> Result<Option<Value>, Unshown> {
        match self.subject.action {
            Action::Create | Action::Connect | Action::ForeignConnect | Action::DeleteCollection => Ok(None),
            Action::Update | Action::Patch(_) | Action::Delete => {
                let is_scale = self.subject.subresource == "scale";
                let read = self.read_stored(seen, is_scale).await;
                read.map_err(|stop| match stop {
                    Stop::Response(response) => format!(
                        "the stored object cannot be read: the API server answers {}",
                        response.status
                    )
                    .into(),
                    _ => "the stored object cannot be read".into(),
                })
            }
        }
    }

    /// The response, and the object in it.
    async fn object_of(
        &self,
        response: Response<Body>,
    ) -> Result<(Response<Body>, Result<Option<Value>, Unshown>), Refusal> {
        let headers = response.headers();
        let is_json = headers.get(CONTENT_TYPE).is_some_and(|content_type| {
            content_type.to_str().is_ok_and(|text| text.split(';').next() == Some("application/json"))
        });
        if !is_json || headers.contains_key(CONTENT_ENCODING) {
            return Ok((response, Err("the response is not JSON, or compressed".into())));
        }
        let (head, body) = response.into_parts();
        let body = body.read_up_to(MAX_RESPONSE_BYTES).await;
        let body = body.map_err(|error| Refusal::Forward(ForwardError::ResponseBody(error)))?;
        let object = match body.whole() {
            Some(text) => self.decode(text).await.map(Some).map_err(|_| "there is no memory for it".into()),
            None => Err("the response is too large".into()),
        };
        Ok((Response::from_parts(head, body), object))
    }

    async fn show(&self, seen: &Authorized, mut objects: Objects, end: Instant) -> Result<(), Unshown> {
        let raw = seen.query().unwrap_or_default();
        let (operation, options) = match self.subject.action {
            Action::Create | Action::Update | Action::Patch(_) => {
                if objects.object.is_none() {
                    return Err("the request is answered, and stores nothing that could be shown".into());
                }
                let operation =
                    if objects.old_object.is_some() { Operation::Update } else { Operation::Create };
                (operation, Some(write_options(operation, raw)))
            }
            Action::Delete => {
                let (options, old) = (delete_options_of_query(raw), objects.old_object.as_ref());
                let old = old.ok_or("the object is absent")?;
                let reviewed = reviewed_delete_options(&options, &self.subject.resource, old);
                (Operation::Delete, Some(reviewed))
            }
            Action::DeleteCollection => return Err("a deletion of a collection cannot be shown".into()),
            Action::Connect | Action::ForeignConnect => {
                let options = self.connect_options(seen);
                objects.object = Some(options.map_err(|_| "the options of the connection are not known")?);
                (Operation::Connect, None)
            }
        };
        if let Some(object) = &mut objects.object {
            match &objects.old_object {
                Some(old) => keep_server_fields(object, Some(old), &["resourceVersion", "generation"]),
                None => keep_server_fields(object, None, &SERVER_FIELDS),
            }
        }
        let main = objects.object.as_ref().or(objects.old_object.as_ref());
        let (kind, own) =
            main.map_or_else(Default::default, |object| (kind_of(object), metadata(object, "name")));
        let name = if self.subject.name.is_empty() { own } else { &self.subject.name };
        let attributes = self.attributes(seen, operation, kind, name, options);
        let webhooks = self.admission.webhooks();
        // They have no effect, and what they say is reported beside.
        let (conversions, surroundings) =
            (RequestConversions::new(self, seen, &Objects::default()), self.surroundings);
        let policies = self.admission.policies(&attributes.resource);
        let hooks = (policies.mutating.as_slice(), webhooks.mutating.as_slice());
        let mutating = phases::mutate(hooks, &attributes, &mut objects, &conversions, surroundings);
        timeout_at(end, mutating).await.map_err(|_| TOO_LATE)?.ok();
        let validating = phases::validate(
            (&policies.validating, &webhooks.validating),
            &attributes,
            &mut objects,
            &conversions,
            surroundings,
        );
        let too_late = |_| Unshown { reason: TOO_LATE.to_owned(), is_mutated: true };
        timeout_at(end, validating).await.map_err(too_late)?.ok();
        Ok(())
    }

    /// Counts the shadow webhooks and policies that may match as failed, and those of which this is not known in time.
    async fn count_unshown(&self, seen: &Authorized, unshown: &Unshown, end: Instant) {
        let Some(&operation) = self.subject.action.operations().first() else { return };
        let kind = GroupVersionKind::default();
        let attributes = self.attributes(seen, operation, kind, &self.subject.name, None);
        let conversions = RequestConversions::new(self, seen, &Objects::default());
        let matcher = RequestMatcher::new(&attributes, &conversions);
        let webhooks = self.admission.webhooks();
        let mutating = if unshown.is_mutated { &[] } else { webhooks.mutating.as_slice() };
        for webhook in mutating.iter().chain(&webhooks.validating) {
            let may_call = timeout_at(end, matcher.may_call(webhook, self.surroundings)).await;
            if matches!(may_call, Ok(Ok(true)) | Err(_)) {
                let call = ShadowCall::unshown(Arc::clone(webhook), operation, &unshown.reason);
                self.surroundings.shadow(call).await;
            }
        }
        let policies = self.admission.policies(&attributes.resource);
        let mutating = if unshown.is_mutated { &[] } else { policies.mutating.as_slice() };
        let mutating = mutating.iter().map(|policy| &policy.scope);
        for policy in mutating.chain(policies.validating.iter().map(|policy| &policy.scope)) {
            let may_apply = timeout_at(end, matcher.may_apply(&policy.constraints, self.surroundings)).await;
            if matches!(may_apply, Ok(Ok(true)) | Err(_)) {
                let would = ShadowOutcome::Fail(phases::policy_failure(policy, &unshown.reason));
                let took = Duration::ZERO;
                self.surroundings.note(Event::ShadowPolicy {
                    policy,
                    operation,
                    would: &would,
                    took,
                    cost: 0,
                });
            }
        }
    }
}
