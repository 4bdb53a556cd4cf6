//! `TokenReview` of tokens that the gateway authenticates and the backend does not know.
//!
//! The gateway forwards a `TokenReview` like any request: the backend authorizes the client, runs its webhooks, and
//! authenticates the token if it can. Only if it responds with "not authenticated", the cluster's token authenticators
//! review the token, by the same rules as for a request that carries it, and the gateway writes the result into the
//! response, in the response's encoding. So a client learns about a token only if the backend authorizes the review.
//! If the backend responds with "authenticated", the deny list of the cluster may still refuse the user or the token.
//!
//! Follows `k8s.io/kubernetes/pkg/registry/authentication/tokenreview/storage.go`. The token is never logged, and the
//! client's own credentials are not used.

mod document;

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt as _;
use portcullis_http::body::Body;
use portcullis_http::transport::BodyError;
use portcullis_limits::Owner;
use portcullis_system::clock::UnixTime;
use tokio::time::{Instant, timeout_at};

use document::{Document, Spec, Status};

use crate::authn::Audience;
use crate::cluster::Cluster;
use crate::pipeline::forward_error::ForwardError;
use crate::pipeline::stages::Authorized;
use crate::request::info::{RequestKind, RequestResource};

/// The largest response to read. A request body has at most 3 MiB, but the JSON of an object may be longer than the
/// encoding in which the client sent it.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// A review that the backend has yet to respond to.
pub(crate) struct PendingReview {
    cluster: Arc<Cluster>,
    /// The client that asks for the review.
    owner: Owner,
    deadline: Option<Instant>,
}

impl PendingReview {
    /// The review that a request asks for; `None` if it is not a review, or the cluster has neither token authenticators
    /// nor a deny list.
    pub(crate) fn of(authorized: &Authorized, client: IpAddr) -> Option<Self> {
        let info = authorized.info();
        if info.verb() != "create" {
            return None;
        }
        let RequestKind::Resource(resource) = info.kind() else { return None };
        let RequestResource { group, version, namespace, resource, subresource, name, .. } = resource;
        let is_review = (group, version, resource) == ("authentication.k8s.io", "v1", "tokenreviews")
            && [namespace, subresource, name].iter().all(|part| part.is_empty());
        let cluster = authorized.cluster();
        let chain = &cluster.authn.chain;
        (is_review && (chain.reviews_tokens() || chain.revocation().has_deny_list())).then(|| Self {
            cluster: Arc::clone(cluster),
            owner: Owner::flow(cluster.name.as_str(), authorized.share(client)),
            deadline: authorized.deadline(),
        })
    }

    /// Writes the gateway's result into a response that says "not authenticated", or that authenticates a denied user.
    /// Other responses pass unchanged, but with a deny list only those that the gateway can read.
    // threat: token-oracle, revoked-credential
    pub(crate) async fn complete(
        self,
        response: Response<Body>,
        now: UnixTime,
    ) -> Result<Response<Body>, ForwardError> {
        if response.status() != StatusCode::CREATED {
            return Ok(response);
        }
        let revocation = self.cluster.authn.chain.revocation();
        // kube-apiserver compresses responses above 128 KiB only, and no issuer's token is that large.
        if response.headers().contains_key(CONTENT_ENCODING) {
            let passes = !revocation.has_deny_list();
            return if passes { Ok(response) } else { Err(ForwardError::UnreadableReview) };
        }
        let (mut head, body) = response.into_parts();
        let bytes = read_body(body).await?;
        let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let document = match Document::read(content_type, &bytes) {
            Some(document) => document,
            None if revocation.has_deny_list() && !Document::is_readable(content_type) => {
                return Err(ForwardError::UnreadableReview);
            }
            None => return Ok(Response::from_parts(head, Body::bytes(bytes))),
        };
        let status = if let Some(user) = document.authenticated_user() {
            revocation.check_user(&user, now).err().map(|revoked| Status::refused(revoked.text()))
        } else {
            let reviewing = self.review_token(&document, now);
            match self.deadline {
                Some(deadline) => timeout_at(deadline, reviewing).await.map_err(|_| ForwardError::Timeout)?,
                None => reviewing.await,
            }
        };
        let bytes = status.and_then(|status| document.with_result(&status)).unwrap_or(bytes);
        head.headers.remove(CONTENT_LENGTH);
        Ok(Response::from_parts(head, Body::bytes(bytes)))
    }

    /// The result of the cluster's token authenticators; `None` if none of them recognizes the token.
    async fn review_token(&self, document: &Document, now: UnixTime) -> Option<Status> {
        let Spec { token, audiences } = document.spec();
        let requested: Vec<_> = audiences.iter().cloned().map(Audience).collect();
        let audiences = if requested.is_empty() { &self.cluster.authn.audiences } else { &requested };
        match self.cluster.authn.chain.review(token, audiences, &self.owner, now).await {
            Ok(found) => found.as_ref().map(Status::of),
            Err(error) => Some(document.status().with_errors(&error.texts())),
        }
    }
}

async fn read_body(mut body: Body) -> Result<Vec<u8>, ForwardError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error {
            BodyError::Deadline => ForwardError::Timeout,
            error => ForwardError::ResponseBody(error),
        })?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > MAX_RESPONSE_BYTES {
                return Err(ForwardError::ResponseTooLarge);
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}
