//! An HTTPS client for servers other than the backend: OpenID issuers and webhooks.
//!
//! The servers are configured, but not trusted: responses are limited in time and size. Never follows a redirect, and never
//! sends a request without TLS, also not through a proxy; only where its settings say so, to loopback.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use portcullis_pki::x509::ServerCertError;
use rustls::crypto::CryptoProvider;
use tokio::time::timeout;

use super::client_tls::{ClientTls, PlainHttp, refusal};
use super::connector::{Connector, connector};
use super::proxy::{ProxyChoice, ProxyError, ProxyUrl};

/// The default timeout of a request, from the connection to the end of the response.
pub const HTTPS_TIMEOUT: Duration = Duration::from_secs(30);
/// The default limit of the response body.
pub const MAX_RESPONSE_BYTES: usize = 1 << 20;
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Less than the minute or more after which most servers close an idle connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
const MAX_IDLE_CONNECTIONS: usize = 16;
/// A connection is closed when nothing is received for the sum of the two.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
const MAX_HEADERS: usize = 128;
const MAX_HEADER_BYTES: usize = 64 << 10;
const MAX_HEADER_LIST_BYTES: u32 = 64 << 10;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The `User-Agent` of the gateway's own requests.
pub const GATEWAY_USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("portcullis/", env!("CARGO_PKG_VERSION")));

/// A client with its connection pool. The connections belong to the runtime that sends the requests.
#[derive(Clone)]
pub struct HttpsClient {
    client: hyper_util::client::legacy::Client<Connector, PostedBody>,
    proxy: ProxyChoice,
    plain_http: PlainHttp,
}

/// A body in two parts, of which several requests may share one.
#[derive(Debug, Default)]
struct PostedBody {
    head: Bytes,
    rest: Bytes,
}

impl PostedBody {
    fn of(body: Bytes) -> Self {
        Self { head: body, rest: Bytes::new() }
    }
}

impl Body for PostedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self { head, rest } = self.get_mut();
        let part = std::mem::take(if head.is_empty() { rest } else { head });
        Poll::Ready((!part.is_empty()).then(|| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_empty() && self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.head.len() + self.rest.len()).try_into().unwrap_or(u64::MAX))
    }
}

/// A request: a GET, or a POST if it has a JSON body.
#[derive(Clone)]
pub struct HttpsRequest<'a> {
    /// The URL; only `https`.
    pub url: &'a str,
    /// The bearer token; never shown.
    pub bearer: Option<&'a str>,
    /// The JSON body.
    pub json: Option<Bytes>,
    /// What follows the JSON body, as a part of it.
    pub rest: Bytes,
    /// Further headers.
    pub headers: HeaderMap,
    /// The timeout, from the connection to the end of the response.
    pub timeout: Duration,
    /// The limit of the response body.
    pub max_bytes: usize,
}

/// A complete response, with any status but a redirect.
#[derive(Debug, Clone)]
pub struct HttpsResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// Why a request has no response. The texts are for logs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpsError {
    /// The URL is not supported.
    #[error("{0}")]
    Url(&'static str),
    /// The bearer token is not a valid header value.
    #[error("the bearer token has a byte that a header cannot carry")]
    Bearer,
    /// The connection failed.
    #[error("cannot connect to {host}: {cause}")]
    Connect {
        /// The host of the URL.
        host: String,
        /// The cause.
        cause: String,
    },
    /// The connection through a proxy failed, or the proxy cannot be used.
    #[error("cannot connect to {host}: {error}")]
    Proxy {
        /// The host of the URL.
        host: String,
        /// Why; without the credentials of the proxy.
        error: ProxyError,
    },
    /// The server's certificate is refused.
    #[error("cannot connect to {host}: {refusal}; fix: {}", .refusal.fix())]
    Certificate {
        /// The host of the URL.
        host: String,
        /// Why.
        refusal: ServerCertError,
    },
    /// The connection was lost before the response was complete.
    #[error("the connection to {host} was lost: {cause}")]
    Lost {
        /// The host of the URL.
        host: String,
        /// The cause.
        cause: String,
    },
    /// The response is not HTTP, or exceeds a limit of the headers.
    #[error("invalid response from {host}: {cause}")]
    Unreadable {
        /// The host of the URL.
        host: String,
        /// The cause.
        cause: String,
    },
    /// The body is too large.
    #[error("the response from {host} is larger than {max_bytes} bytes")]
    TooLarge {
        /// The host of the URL.
        host: String,
        /// The limit.
        max_bytes: usize,
    },
    /// The response is a redirect.
    #[error("{host} answered with a redirect ({status}), which is not followed")]
    Redirect {
        /// The host of the URL.
        host: String,
        /// The status.
        status: StatusCode,
    },
    /// The request timed out.
    #[error("no response from {host} within {timeout:?}")]
    Timeout {
        /// The host of the URL.
        host: String,
        /// The timeout.
        timeout: Duration,
    },
}

impl HttpsError {
    /// The same, of a server behind a proxy, which may be the cause.
    fn through(mut self, proxy: Option<&ProxyUrl>) -> Self {
        let Some(proxy) = proxy else { return self };
        match &mut self {
            Self::Url(_) | Self::Bearer | Self::Proxy { .. } => {}
            Self::Connect { host, .. }
            | Self::Certificate { host, .. }
            | Self::Lost { host, .. }
            | Self::Unreadable { host, .. }
            | Self::TooLarge { host, .. }
            | Self::Redirect { host, .. }
            | Self::Timeout { host, .. } => *host = format!("{host} (through the proxy {proxy})"),
        }
        self
    }

    /// Whether the server's certificate has the name of its host only as the common name, which is ignored.
    // apiserver: pkg/util/x509metrics/server_cert_deprecations.go
    pub fn is_common_name_only(&self) -> bool {
        matches!(self, Self::Certificate { refusal, .. } if refusal.is_common_name_only())
    }
}

impl<'a> HttpsRequest<'a> {
    /// A GET.
    pub fn get(url: &'a str) -> Self {
        Self {
            url,
            bearer: None,
            json: None,
            rest: Bytes::new(),
            headers: HeaderMap::new(),
            timeout: HTTPS_TIMEOUT,
            max_bytes: MAX_RESPONSE_BYTES,
        }
    }

    /// A POST of JSON.
    pub fn post(url: &'a str, json: impl Into<Bytes>) -> Self {
        Self { json: Some(json.into()), ..Self::get(url) }
    }

    /// Appends to the JSON body.
    #[must_use]
    pub fn followed_by(self, rest: Bytes) -> Self {
        Self { rest, ..self }
    }

    /// Sets the timeout.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Adds headers; those of the client itself replace them.
    #[must_use]
    pub fn with_headers(self, headers: HeaderMap) -> Self {
        Self { headers, ..self }
    }

    /// Sets the limit of the response body.
    #[must_use]
    pub fn of_at_most(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// Adds a bearer token.
    #[must_use]
    pub fn bearer(self, token: Option<&'a str>) -> Self {
        Self { bearer: token, ..self }
    }

    fn into_http(self, plain_http: PlainHttp) -> Result<(String, Request<PostedBody>), HttpsError> {
        let uri: Uri = self.url.parse().map_err(|_| HttpsError::Url("it is not a URL"))?;
        let host = https_host(&uri, plain_http)?;
        let method = if self.json.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::new(PostedBody::default());
        *request.headers_mut() = self.headers;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, JSON);
        headers.insert(USER_AGENT, GATEWAY_USER_AGENT);
        if let Some(token) = self.bearer {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value.map_err(|_| HttpsError::Bearer)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(json) = self.json {
            headers.insert(CONTENT_TYPE, JSON);
            *request.body_mut() = PostedBody { head: json, rest: self.rest };
        }
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        Ok((host, request))
    }
}

impl HttpsClient {
    /// A client without connections yet.
    pub fn new(tls: &ClientTls, provider: &Arc<CryptoProvider>) -> Result<Self, rustls::Error> {
        Self::with_versions(tls, provider, true)
    }

    /// A client that offers HTTP/2 only if `http2` is set.
    pub fn with_versions(
        tls: &ClientTls,
        provider: &Arc<CryptoProvider>,
        http2: bool,
    ) -> Result<Self, rustls::Error> {
        let (config, to_proxy) = (tls.config(provider)?, tls.config_for_proxy(provider)?);
        let mut connector = connector(config, to_proxy, tls.server_name.clone(), tls.proxy.clone(), http2);
        if tls.plain_http == PlainHttp::Never {
            connector.enforce_https();
        }
        let mut client = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
        client
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
            .http1_max_headers(MAX_HEADERS)
            .http1_max_buf_size(MAX_HEADER_BYTES)
            .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_TIMEOUT);
        let proxy = tls.proxy.clone();
        Ok(Self { client: client.build(connector), proxy, plain_http: tls.plain_http })
    }

    /// Sends a request and reads the whole response.
    pub async fn send(&self, request: HttpsRequest<'_>) -> Result<HttpsResponse, HttpsError> {
        let (limit, max_bytes) = (request.timeout, request.max_bytes);
        let (host, request) = request.into_http(self.plain_http)?;
        self.exchange_within(limit, host, request, max_bytes).await
    }

    /// Sends a request of another library, with its method, headers and body, within the default timeout and limit.
    pub async fn send_http(&self, request: Request<Bytes>) -> Result<HttpsResponse, HttpsError> {
        let host = https_host(request.uri(), self.plain_http)?;
        self.exchange_within(HTTPS_TIMEOUT, host, request.map(PostedBody::of), MAX_RESPONSE_BYTES).await
    }

    async fn exchange_within(
        &self,
        limit: Duration,
        host: String,
        request: Request<PostedBody>,
        max_bytes: usize,
    ) -> Result<HttpsResponse, HttpsError> {
        let url = request.uri().clone();
        let outcome = match timeout(limit, self.exchange(&host, request, max_bytes)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(HttpsError::Timeout { host, timeout: limit }),
        };
        outcome.map_err(|error| error.through(self.proxy.of_url(&url).ok().flatten()))
    }

    async fn exchange(
        &self,
        host: &str,
        request: Request<PostedBody>,
        max_bytes: usize,
    ) -> Result<HttpsResponse, HttpsError> {
        let response = self.client.request(request).await;
        let response = response.map_err(|error| classify(host, error.is_connect(), &error))?;
        let (head, body) = response.into_parts();
        if head.status.is_redirection() {
            return Err(HttpsError::Redirect { host: host.to_owned(), status: head.status });
        }
        let body = Limited::new(body, max_bytes).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return HttpsError::TooLarge { host: host.to_owned(), max_bytes };
            }
            classify(host, false, &*error)
        })?;
        Ok(HttpsResponse { status: head.status, headers: head.headers, body: body.to_bytes() })
    }
}

/// The host and port of an `https` URL, or of one to which plain HTTP is permitted.
fn https_host(uri: &Uri, plain_http: PlainHttp) -> Result<String, HttpsError> {
    let is_permitted = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => plain_http.permits(uri.host().unwrap_or_default()),
        _ => false,
    };
    if !is_permitted {
        return Err(HttpsError::Url("it is not an https:// URL"));
    }
    let authority = uri.authority().ok_or(HttpsError::Url("the URL has no host"))?;
    if authority.as_str().contains('@') {
        return Err(HttpsError::Url("a user name in the URL is not supported"));
    }
    Ok(authority.to_string())
}

/// An error among the causes of another.
pub type Cause<'a> = &'a (dyn std::error::Error + 'static);

/// Classifies an error of hyper.
fn classify(host: &str, connecting: bool, error: Cause<'_>) -> HttpsError {
    let causes = || std::iter::successors(Some(error), |error| cause_of(*error));
    let host = host.to_owned();
    let cause = innermost(error);
    if connecting {
        if let Some(proxy) = causes().find_map(|cause| cause.downcast_ref::<ProxyError>()) {
            return HttpsError::Proxy { host, error: proxy.clone() };
        }
        let refusal = causes().find_map(|cause| cause.downcast_ref().and_then(refusal)).cloned();
        return match refusal {
            Some(refusal) => HttpsError::Certificate { host, refusal },
            None => HttpsError::Connect { host, cause },
        };
    }
    if causes().any(is_loss) {
        HttpsError::Lost { host, cause }
    } else {
        HttpsError::Unreadable { host, cause }
    }
}

/// The text of the innermost cause: only that is informative.
pub(crate) fn innermost(error: Cause<'_>) -> String {
    text_of(std::iter::successors(Some(error), |error| cause_of(*error)).last().unwrap_or(error))
}

/// The text of an error; that of a refused certificate, which rustls does not print.
pub fn text_of(error: Cause<'_>) -> String {
    let refusal = error.downcast_ref().and_then(refusal);
    refusal.map_or_else(|| error.to_string(), ToString::to_string)
}

/// The cause of an error, including the error inside an `io::Error`, which its `source` skips.
pub fn cause_of(error: Cause<'_>) -> Option<Cause<'_>> {
    let inner = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref());
    match inner {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

fn is_loss(error: Cause<'_>) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let io = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    let http = error.downcast_ref::<hyper::Error>();
    matches!(io, Some(BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
        || http.is_some_and(|error| error.is_incomplete_message() || error.is_closed() || error.is_timeout())
}

impl fmt::Debug for HttpsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpsClient")
    }
}

impl fmt::Debug for HttpsRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpsRequest").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
