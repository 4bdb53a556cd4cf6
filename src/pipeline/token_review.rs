//! Reviews of tokens that the gateway knows and the API server does not.
//!
//! A `TokenReview` goes to the API server as every request does: it authorises the client, runs its webhooks, reads the
//! object and says what it knows of the token, its own service accounts above all. Only a review that it answered, and
//! answered with "not authenticated", is looked at again here: the tokens of this cluster are asked by the same rules
//! as for a request that carries the token, and what they say is written into the answer, in the form it has. So
//! nobody learns anything of a token whom the API server would not have told.
//!
//! Follows `k8s.io/kubernetes/pkg/registry/authentication/tokenreview/storage.go`. The token is never logged, and of
//! the client's own credentials nothing is used.

mod document;

use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};

use document::{Document, Spec, Status};

use crate::authn::Audience;
use crate::clock::UnixTime;
use crate::cluster::Cluster;
use crate::http::body::Body;
use crate::http::transport::BodyError;
use crate::pipeline::forward::ForwardError;
use crate::pipeline::stages::Admitted;
use crate::request::info::{RequestKind, RequestResource};

/// The largest answer that is read. An object has 3 MiB at most; JSON may be longer than what it was sent as.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// A review on its way to the API server.
pub(crate) struct PendingReview {
    cluster: Arc<Cluster>,
    deadline: Option<Instant>,
}

impl PendingReview {
    /// Whether an admitted request is a review, and of a cluster that has tokens of its own.
    pub(crate) fn of(admitted: &Admitted) -> Option<Self> {
        let info = admitted.info();
        if info.verb() != "create" {
            return None;
        }
        let RequestKind::Resource(resource) = info.kind() else { return None };
        let RequestResource { group, version, namespace, resource, subresource, name, .. } = resource;
        let is_review = (group, version, resource) == ("authentication.k8s.io", "v1", "tokenreviews")
            && [namespace, subresource, name].iter().all(|part| part.is_empty());
        let cluster = admitted.cluster();
        (is_review && cluster.authn.chain.reviews_tokens())
            .then(|| Self { cluster: Arc::clone(cluster), deadline: admitted.deadline() })
    }

    /// The API server's answer, or a better one.
    // threat: token-oracle
    pub(crate) async fn complete(
        self,
        theirs: Response<Body>,
        now: UnixTime,
    ) -> Result<Response<Body>, ForwardError> {
        // What is compressed is larger than 128 KiB, and so is no token of any issuer.
        if theirs.status() != StatusCode::CREATED || theirs.headers().contains_key(CONTENT_ENCODING) {
            return Ok(theirs);
        }
        let (mut head, body) = theirs.into_parts();
        let bytes = read(body).await?;
        let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let Some(document) = Document::read(content_type, &bytes).filter(Document::is_refused) else {
            return Ok(Response::from_parts(head, Body::bytes(bytes)));
        };
        let judging = self.judge(&document, now);
        let status = match self.deadline {
            Some(deadline) => timeout_at(deadline, judging).await.map_err(|_| ForwardError::Timeout)?,
            None => judging.await,
        };
        let bytes = status.and_then(|status| document.answered(&status)).unwrap_or(bytes);
        head.headers.remove(CONTENT_LENGTH);
        Ok(Response::from_parts(head, Body::bytes(bytes)))
    }

    /// What this cluster's tokens say; nothing if they have nothing to add.
    async fn judge(&self, document: &Document, now: UnixTime) -> Option<Status> {
        let Spec { token, audiences } = document.spec();
        let requested: Vec<_> = audiences.iter().cloned().map(Audience).collect();
        let audiences = if requested.is_empty() { &self.cluster.authn.audiences } else { &requested };
        match self.cluster.authn.chain.review(token, audiences, now).await {
            Ok(found) => found.as_ref().map(Status::of),
            Err(error) => Some(document.status().with_errors(&error.texts())),
        }
    }
}

async fn read(mut body: Body) -> Result<Vec<u8>, ForwardError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error {
            BodyError::Deadline => ForwardError::Timeout,
            error => ForwardError::Answer(error),
        })?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > MAX_ANSWER_BYTES {
                return Err(ForwardError::AnswerTooLarge);
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}
