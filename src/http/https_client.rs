//! Questions to others than the backend: issuers about their keys, webhooks about tokens.
//!
//! The peer is named by the configuration and may still be anybody's: its answers are bounded in time and size, and it
//! cannot send the question elsewhere. Redirects are errors, proxies of the environment are not used, and nothing goes
//! out without TLS.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::crypto::CryptoProvider;
use tokio::time::timeout;

use super::client_tls::Tls;

/// How long a question may take with its answer, and how large the answer may be, unless it is said.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// See [`PATIENCE`].
pub const LARGEST_BODY: usize = 1 << 20;
const CONNECT: Duration = Duration::from_secs(10);
/// Less than the minute or more after which most servers close an idle connection.
const IDLE: Duration = Duration::from_secs(50);
const MOST_IDLE: usize = 16;
/// A peer that is silent for the two together is gone.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_WITHIN: Duration = Duration::from_secs(15);
const MOST_HEADERS: usize = 128;
const LARGEST_HEADER: usize = 64 << 10;
const LARGEST_HEADER_LIST: u32 = 64 << 10;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const OURSELVES: HeaderValue = HeaderValue::from_static(concat!("portcullis/", env!("CARGO_PKG_VERSION")));

/// A client and its connections. They belong to the runtime that the questions are asked on.
#[derive(Clone)]
pub struct Client(hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

/// A question: a GET, or a POST of JSON if it has a body.
#[derive(Clone)]
pub struct Question<'a> {
    /// Where to; `https` alone.
    pub url: &'a str,
    /// Sent in `Authorization`; never shown.
    pub bearer: Option<&'a str>,
    /// What is sent.
    pub json: Option<Bytes>,
    /// How long it may take, from the connection to the end of the answer.
    pub within: Duration,
    /// How large the answer may be.
    pub at_most: usize,
}

/// An answer, whole. Its status may be any but a redirect.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// Why a question has no answer. The texts are for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboundError {
    /// The URL cannot be asked.
    #[error("{0}")]
    Url(&'static str),
    /// The bearer token cannot be sent.
    #[error("the bearer token has a byte that no header can carry")]
    Bearer,
    /// There is no connection.
    #[error("cannot connect to {host}: {cause}")]
    Connect {
        /// What was dialled.
        host: String,
        /// Why.
        cause: String,
    },
    /// The certificate has no name but the common name, which is not looked at.
    // apiserver: pkg/util/x509metrics/server_cert_deprecations.go
    #[error("cannot connect to {host}: the certificate has no subject alternative name")]
    NoSubjectAltName {
        /// What was dialled.
        host: String,
    },
    /// The connection was lost before the answer was whole.
    #[error("the connection to {host} was lost: {cause}")]
    Lost {
        /// Who was asked.
        host: String,
        /// Why.
        cause: String,
    },
    /// What came is no HTTP, or too much of it.
    #[error("the answer of {host} cannot be read: {cause}")]
    Unreadable {
        /// Who was asked.
        host: String,
        /// Why.
        cause: String,
    },
    /// The body is too large.
    #[error("the answer of {host} is larger than {at_most} bytes")]
    TooLarge {
        /// Who was asked.
        host: String,
        /// The limit.
        at_most: usize,
    },
    /// The peer sends us elsewhere.
    #[error("{host} answered with a redirect ({status}), which is not followed")]
    Redirect {
        /// Who was asked.
        host: String,
        /// Its status.
        status: StatusCode,
    },
    /// No answer in time.
    #[error("no answer of {host} within {within:?}")]
    Timeout {
        /// Who was asked.
        host: String,
        /// The limit.
        within: Duration,
    },
}

impl<'a> Question<'a> {
    /// A GET.
    pub fn get(url: &'a str) -> Self {
        Self { url, bearer: None, json: None, within: PATIENCE, at_most: LARGEST_BODY }
    }

    /// A POST of JSON.
    pub fn post(url: &'a str, json: impl Into<Bytes>) -> Self {
        Self { json: Some(json.into()), ..Self::get(url) }
    }

    /// With a bearer token.
    #[must_use]
    pub fn bearer(self, token: Option<&'a str>) -> Self {
        Self { bearer: token, ..self }
    }

    fn request(self) -> Result<(String, Request<Full<Bytes>>), OutboundError> {
        let uri: Uri = self.url.parse().map_err(|_| OutboundError::Url("it is not a URL"))?;
        if uri.scheme_str() != Some("https") {
            return Err(OutboundError::Url("it is not an https:// URL"));
        }
        let authority = uri.authority().ok_or(OutboundError::Url("the URL has no host"))?;
        if authority.as_str().contains('@') {
            return Err(OutboundError::Url("a user name in the URL is not supported"));
        }
        let host = authority.to_string();
        let method = if self.json.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::new(Full::default());
        let headers = request.headers_mut();
        headers.insert(ACCEPT, JSON);
        headers.insert(USER_AGENT, OURSELVES);
        if let Some(token) = self.bearer {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value.map_err(|_| OutboundError::Bearer)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(json) = self.json {
            headers.insert(CONTENT_TYPE, JSON);
            *request.body_mut() = Full::new(json);
        }
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        Ok((host, request))
    }
}

impl Client {
    /// A client without connections.
    pub fn new(tls: &Tls, provider: &Arc<CryptoProvider>) -> Result<Self, rustls::Error> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(PING_AFTER));
        tcp.set_connect_timeout(Some(CONNECT));
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls.config(provider)?).https_only();
        let connector = match tls.server_name.clone() {
            Some(name) => connector.with_server_name_resolver(FixedServerNameResolver::new(name)),
            None => connector,
        };
        let connector = connector.enable_all_versions().wrap_connector(tcp);
        let mut client = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
        client
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MOST_IDLE)
            .http1_max_headers(MOST_HEADERS)
            .http1_max_buf_size(LARGEST_HEADER)
            .http2_max_header_list_size(LARGEST_HEADER_LIST)
            .http2_keep_alive_interval(PING_AFTER)
            .http2_keep_alive_timeout(PING_WITHIN);
        Ok(Self(client.build(connector)))
    }

    /// Asks.
    pub async fn ask(&self, question: Question<'_>) -> Result<Answer, OutboundError> {
        let (within, at_most) = (question.within, question.at_most);
        let (host, request) = question.request()?;
        match timeout(within, self.exchange(&host, request, at_most)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(OutboundError::Timeout { host, within }),
        }
    }

    async fn exchange(
        &self,
        host: &str,
        request: Request<Full<Bytes>>,
        at_most: usize,
    ) -> Result<Answer, OutboundError> {
        let response = self.0.request(request).await;
        let response = response.map_err(|error| why(host, error.is_connect(), &error))?;
        let (head, body) = response.into_parts();
        if head.status.is_redirection() {
            return Err(OutboundError::Redirect { host: host.to_owned(), status: head.status });
        }
        let body = Limited::new(body, at_most).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return OutboundError::TooLarge { host: host.to_owned(), at_most };
            }
            why(host, false, &*error)
        })?;
        Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
    }
}

type Cause<'a> = &'a (dyn std::error::Error + 'static);

/// What an error of hyper means.
fn why(host: &str, connecting: bool, error: Cause<'_>) -> OutboundError {
    let causes = || std::iter::successors(Some(error), |error| beneath(*error));
    let host = host.to_owned();
    // The innermost cause says it all; those around it say that there is one.
    let cause = causes().last().unwrap_or(error).to_string();
    if connecting {
        return if causes().any(names_nothing) {
            OutboundError::NoSubjectAltName { host }
        } else {
            OutboundError::Connect { host, cause }
        };
    }
    if causes().any(is_loss) {
        OutboundError::Lost { host, cause }
    } else {
        OutboundError::Unreadable { host, cause }
    }
}

/// The cause of an error. What an `io::Error` holds is one too, which its `source` leaves out.
fn beneath(error: Cause<'_>) -> Option<Cause<'_>> {
    let held = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref());
    match held {
        Some(held) => Some(held),
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

fn names_nothing(error: Cause<'_>) -> bool {
    use rustls::CertificateError::NotValidForNameContext;
    use rustls::Error::InvalidCertificate;
    let tls = error.downcast_ref::<rustls::Error>();
    let Some(InvalidCertificate(NotValidForNameContext { presented, .. })) = tls else { return false };
    presented.is_empty()
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl fmt::Debug for Question<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
