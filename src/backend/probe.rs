//! The gateway's own questions to an API server, asked as a user of its own through the one function that writes
//! identities.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::uri::Scheme;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::timeout;

use super::pool::{Kind, Pool, SendError, Sent};
use crate::backend::endpoint::{Asked, Target};
use crate::backend::upstream::Upstream;
use crate::http::body::Body;
use crate::http::identity_headers::write_identity;
use crate::user::{UnencodableIdentity, UserInfo};

/// How long an answer may take, and how large it may be.
const PATIENCE: Duration = Duration::from_secs(10);
const LARGEST_ANSWER: usize = 1 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(crate) const OURSELVES: HeaderValue =
    HeaderValue::from_static(concat!("portcullis/", env!("CARGO_PKG_VERSION")));

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
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
    #[error("no answer within {PATIENCE:?}")]
    Timeout,
}

/// The gateway's own connection to one endpoint.
#[derive(Debug)]
pub(crate) struct Line {
    upstream: Arc<Upstream>,
    target: Arc<Target>,
    pool: Arc<Pool>,
}

impl Line {
    /// A line to an endpoint of `upstream`, whether it is trusted or not. Nothing is dialled yet.
    pub(crate) fn new(upstream: Arc<Upstream>, target: &Target) -> Self {
        let target = Arc::new(target.for_checks());
        Self { upstream, pool: Pool::new(Arc::clone(&target)), target }
    }

    /// How the endpoint asked for a certificate when this line was last opened.
    pub(crate) fn asked(&self) -> Asked {
        self.target.asked()
    }

    /// Waits until the line breaks.
    pub(crate) async fn broken(&self) {
        self.target.doubted().await;
    }

    /// Asks, as `user`, or as what the gateway's credential is. A question with a body is a POST.
    // threat: silent-backend
    pub(crate) async fn ask(
        &self,
        user: Option<&UserInfo>,
        path: &str,
        body: Option<String>,
    ) -> Result<(StatusCode, Vec<u8>), AskError> {
        let asking = async {
            let request = self.question(user, path, body)?;
            let lease = self.pool.reserve(Kind::Short).await?;
            let response = match self.pool.send(lease, Box::new(request)).await? {
                Sent::Answered(response) => response,
                Sent::NotWritten(_, error) => return Err(SendError::Broken(error).into()),
            };
            read(response).await
        };
        timeout(PATIENCE, asking).await.unwrap_or(Err(AskError::Timeout))
    }

    fn question(
        &self,
        user: Option<&UserInfo>,
        path: &str,
        body: Option<String>,
    ) -> Result<Request<Body>, AskError> {
        let uri = Uri::builder()
            .scheme(Scheme::HTTPS)
            .authority(self.upstream.authority.clone())
            .path_and_query(format!("{}{path}", self.upstream.path_prefix()))
            .build()?;
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::builder().method(method).uri(uri).body(Body::empty())?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, JSON);
        headers.insert(USER_AGENT, OURSELVES);
        if let Some(body) = &body {
            headers.insert(CONTENT_TYPE, JSON);
            headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        if let Some(user) = user {
            write_identity(headers, &user.clone().into(), self.upstream.identity())?;
        }
        if let Some(authorization) = &self.upstream.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        *request.body_mut() = body.map_or_else(Body::empty, Body::bytes);
        Ok(request)
    }
}

async fn read(response: Response<Body>) -> Result<(StatusCode, Vec<u8>), AskError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await;
    let body = body.map_err(|error| AskError::Answer(error.to_string()))?;
    Ok((status, body.to_bytes().to_vec()))
}
