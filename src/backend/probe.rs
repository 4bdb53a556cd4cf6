//! The gateway's own questions to an API server, asked as a user of its own through the one function that writes
//! identities.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::timeout;

use super::pool::{Pool, SendError, Sent, SharingClass};
use crate::backend::Backend;
use crate::backend::endpoint::{CertificateRequest, Endpoint};
use crate::http::body::Body;
use crate::http::identity_headers::write_identity;
use crate::user::{Identity, UnencodableIdentity, UserInfo};

/// How long an answer may take, and how large it may be.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: usize = 1 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(crate) const GATEWAY_USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("portcullis/", env!("CARGO_PKG_VERSION")));

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// There is no connection, or it broke.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The user cannot be written.
    #[error(transparent)]
    Identity(#[from] UnencodableIdentity),
    /// The question is no request.
    #[error("the question cannot be sent: {0}")]
    Question(#[from] http::Error),
    /// The answer broke off or was too large.
    #[error("the answer cannot be read: {0}")]
    Answer(String),
    /// No answer in time.
    #[error("no answer within {PROBE_TIMEOUT:?}")]
    Timeout,
}

/// The gateway's own connection to one endpoint.
#[derive(Debug)]
pub(crate) struct ProbeClient {
    backend: Arc<Backend>,
    endpoint: Arc<Endpoint>,
    pool: Arc<Pool>,
}

impl ProbeClient {
    /// A line to an endpoint of `upstream`, whether it is trusted or not. Nothing is dialled yet.
    pub(crate) fn new(backend: Arc<Backend>, endpoint: &Endpoint) -> Self {
        let endpoint = Arc::new(endpoint.for_checks());
        Self { backend, pool: Pool::new(Arc::clone(&endpoint)), endpoint }
    }

    /// How the endpoint asked for a certificate when this line was last opened.
    pub(crate) fn asked(&self) -> CertificateRequest {
        self.endpoint.asked()
    }

    /// Waits until the line breaks.
    pub(crate) async fn broken(&self) {
        self.endpoint.recheck_requested().await;
    }

    /// Asks, as `user`, or as what the gateway's credential is. A question with a body is a POST.
    // threat: silent-backend
    pub(crate) async fn ask(
        &self,
        user: Option<&UserInfo>,
        path: &str,
        body: Option<String>,
    ) -> Result<(StatusCode, Vec<u8>), ProbeError> {
        let asking = async {
            let request = self.question(user, path, body)?;
            let lease = self.pool.reserve(SharingClass::Short).await?;
            let response = match self.pool.send(lease, Box::new(request)).await? {
                Sent::Answered(response) => response,
                Sent::NotWritten(_, error) => return Err(SendError::Broken(error).into()),
            };
            read(response).await
        };
        timeout(PROBE_TIMEOUT, asking).await.unwrap_or(Err(ProbeError::Timeout))
    }

    fn question(
        &self,
        user: Option<&UserInfo>,
        path: &str,
        body: Option<String>,
    ) -> Result<Request<Body>, ProbeError> {
        let uri = self.backend.uri(None, path.parse().map_err(http::Error::from)?)?;
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::builder().method(method).uri(uri).body(Body::empty())?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, JSON);
        headers.insert(USER_AGENT, GATEWAY_USER_AGENT);
        if let Some(body) = &body {
            headers.insert(CONTENT_TYPE, JSON);
            headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        if let Some(user) = user {
            let identity = Identity::from(user.clone()).encode(self.backend.identity())?;
            write_identity(headers, &identity);
        }
        self.backend.add_credential(headers);
        *request.body_mut() = body.map_or_else(Body::empty, Body::bytes);
        Ok(request)
    }
}

async fn read(response: Response<Body>) -> Result<(StatusCode, Vec<u8>), ProbeError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    let body = body.map_err(|error| ProbeError::Answer(error.to_string()))?;
    Ok((status, body.to_bytes().to_vec()))
}
