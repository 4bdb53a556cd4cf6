//! The gateway's own requests to a single endpoint, trusted or not. They use the same function that writes the identity
//! of forwarded requests, so that the self-check tests that function too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use portcullis_http::body::Body;
use portcullis_http::https_client::GATEWAY_USER_AGENT;
use portcullis_http::identity::{Identity, UnencodableIdentity};
use portcullis_http::identity_headers::write_identity;
use portcullis_http::loop_detection::GatewayId;
use portcullis_kubernetes::user::UserInfo;
use tokio::time::timeout;

use super::author::RequestAuthor;
use super::balance::{Balance, Load};
use super::connect_error::is_of_this_machine;
use super::pool::{Pool, SendError, SendOutcome, SharingClass};
use crate::backend::Backend;
use crate::backend::endpoint::{ClientCertificateRequest, Endpoint};

/// Limits of a response with its body.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_RESPONSE_BYTES: usize = 1 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// The connection failed or broke.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The user cannot be encoded in headers.
    #[error(transparent)]
    Identity(#[from] UnencodableIdentity),
    /// The request is not valid HTTP.
    #[error("the request is not valid HTTP: {0}")]
    Request(#[from] http::Error),
    /// The response broke off or was too large.
    #[error("the response cannot be read: {0}")]
    Response(String),
    /// The response took too long.
    #[error("no response within {PROBE_TIMEOUT:?}")]
    Timeout,
}

impl ProbeError {
    /// Whether the endpoint has no part in it.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        match self {
            Self::Send(SendError::Connect(error)) => error.is_of_this_machine(),
            error => is_of_this_machine(error),
        }
    }
}

/// The gateway's own connections to one endpoint.
#[derive(Debug)]
pub(crate) struct ProbeClient {
    backend: Arc<Backend>,
    endpoint: Arc<Endpoint>,
    pool: Arc<Pool>,
    /// Counts the gateway's own requests apart from the endpoint's load.
    probes: Arc<Balance>,
    gateway_id: GatewayId,
}

impl ProbeClient {
    /// A client for an endpoint of `backend`, whether it is trusted or not. Opens no connection yet.
    pub(crate) fn new(backend: Arc<Backend>, endpoint: &Endpoint, gateway_id: &GatewayId) -> Self {
        Self::to(backend, endpoint.for_self_check(), gateway_id)
    }

    /// The same for one of the addresses that the endpoint's name resolves to.
    pub(crate) fn at(
        address: SocketAddr,
        backend: Arc<Backend>,
        endpoint: &Endpoint,
        gateway_id: &GatewayId,
    ) -> Self {
        Self::to(backend, endpoint.for_self_check_of(address), gateway_id)
    }

    fn to(backend: Arc<Backend>, endpoint: Endpoint, gateway_id: &GatewayId) -> Self {
        let endpoint = Arc::new(endpoint);
        Self {
            backend,
            pool: Pool::new(Arc::clone(&endpoint)),
            endpoint,
            probes: Arc::default(),
            gateway_id: gateway_id.clone(),
        }
    }

    /// How the endpoint requested a client certificate when this client last connected.
    pub(crate) fn certificate_request(&self) -> ClientCertificateRequest {
        self.endpoint.certificate_request()
    }

    /// Waits until a connection of this client ends.
    pub(crate) async fn disconnected(&self) {
        self.endpoint.recheck_requested().await;
    }

    /// Sends a request as `user`, or as the user of the gateway's own credential: a POST if it has a body, else a GET.
    // threat: silent-backend
    pub(crate) async fn send(
        &self,
        user: Option<&UserInfo>,
        path: &str,
        body: Option<String>,
    ) -> Result<(StatusCode, Vec<u8>), ProbeError> {
        let exchange = async {
            let request = self.request(user, path, body)?;
            let connection = self.pool.reserve(SharingClass::Short, &RequestAuthor::Gateway).await?;
            let response =
                match self.pool.send(connection, Box::new(request), self.probes.begin(Load::Short)).await? {
                    SendOutcome::Response(response) => *response,
                    SendOutcome::NotWritten(_, error) => return Err(SendError::Broken(error).into()),
                };
            read(response).await
        };
        timeout(PROBE_TIMEOUT, exchange).await.unwrap_or(Err(ProbeError::Timeout))
    }

    fn request(
        &self,
        user: Option<&UserInfo>,
        path: &str,
        body: Option<String>,
    ) -> Result<Request<Body>, ProbeError> {
        let target: PathAndQuery = path.parse().map_err(http::Error::from)?;
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let pass = self.gateway_id.pass(self.backend.cluster_name(), &method, target.path());
        let uri = self.backend.uri(None, target)?;
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
        pass.append_to(headers);
        *request.body_mut() = body.map_or_else(Body::empty, Body::bytes);
        Ok(request)
    }
}

async fn read(response: Response<Body>) -> Result<(StatusCode, Vec<u8>), ProbeError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
    let body = body.map_err(|error| ProbeError::Response(error.to_string()))?;
    Ok((status, body.to_bytes().to_vec()))
}
