//! Reads the body of a request that is to be reviewed.
//!
//! A client that may not make the request is refused before a body is read that has not come with its header, or that is large:
//! kube-apiserver authorizes a request before it reads anything of it. A small body that is there at once costs no access review,
//! since its dry run authorizes it.

use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_http::body::Body;
use portcullis_http::held_texts::{HeldText, ReadError, TextReader};
use portcullis_http::transport::BodyError;
use tokio::time::timeout;

use super::reviewer::Reviewer;
use crate::authz::AccessRefusal;
use crate::pipeline::error_map::Refusal;
use crate::pipeline::forward_error::ForwardError;
use crate::pipeline::stages::Authorized;

/// The largest body of a request.
// apiserver: pkg/server/config.go, MaxRequestBodyBytes
const MAX_BODY_BYTES: usize = 3 << 20;
/// The most that is read of a body before its client is known to be authorized.
const MAX_EARLY_BYTES: usize = 64 << 10;
/// How long that may take.
const EARLY_TIMEOUT: Duration = Duration::from_millis(100);

impl Reviewer<'_> {
    /// Reads the whole body, which the dry run and the write need.
    // threat: review-memory
    pub(super) async fn read_body(&self, authorized: &mut Authorized) -> Result<(Bytes, HeldText), Refusal> {
        let mut reader = self.texts.reader(authorized.take_body());
        if self.has_come(authorized, &mut reader).await? {
            return Ok(reader.finish());
        }
        self.refuse_forbidden(authorized).await?;
        reader.read_all(MAX_BODY_BYTES).await.map_err(|error| match error {
            ReadError::TooLarge => Refusal::NotAdmitted(too_large()),
            ReadError::Body(error) => body_error(error),
        })
    }

    /// Whether the body is small and has come with the header.
    async fn has_come(
        &self,
        authorized: &Authorized,
        reader: &mut TextReader<Body>,
    ) -> Result<bool, Refusal> {
        // A client that waits for a 100 sends nothing before.
        if authorized.request().headers().contains_key(EXPECT) || reader.is_larger_than(MAX_EARLY_BYTES) {
            return Ok(false);
        }
        let early = timeout(EARLY_TIMEOUT, reader.read_to(MAX_EARLY_BYTES)).await;
        early.unwrap_or(Ok(false)).map_err(body_error)
    }

    /// Refuses a client that may not make the request. If the gateway may not ask, or has no answer, the dry run tells.
    async fn refuse_forbidden(&self, authorized: &Authorized) -> Result<(), Refusal> {
        match self.surroundings.authorize_request(authorized.info()).await {
            Err(refusal @ (AccessRefusal::Forbidden { .. } | AccessRefusal::Failed(_))) => {
                Err(Refusal::Access(refusal))
            }
            Ok(()) | Err(AccessRefusal::Undecided(_)) => Ok(()),
        }
    }
}

fn body_error(error: BodyError) -> Refusal {
    Refusal::Forward(ForwardError::RequestBody(error))
}

// apimachinery: pkg/api/errors/errors.go, NewRequestEntityTooLargeError
fn too_large() -> Box<meta::Status> {
    entity_too_large(format!("Request entity too large: limit is {MAX_BODY_BYTES}"))
}

/// A 413 with this text.
pub(super) fn entity_too_large(text: String) -> Box<meta::Status> {
    Box::new(meta::Status {
        code: Some(413),
        message: Some(text),
        reason: Some("RequestEntityTooLarge".to_owned()),
        status: Some("Failure".to_owned()),
        ..meta::Status::default()
    })
}
