//! Requests that store nothing, on behalf of a request that is not admitted yet: its dry run, and reads of its object. They are
//! sent as its user, by the same code that forwards requests, so that they show and allow what the user may do, and no more.
//!
//! A [`Rehearsal`] cannot be anything else: it is a GET, or the request itself with `dryRun=All`. Which operations are never sent as
//! a dry run is decided in `admission/dry_run.rs`.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue, RANGE,
    TRANSFER_ENCODING,
};
use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode};
use portcullis_go::url::{decode_path, query};
use portcullis_http::body::Body;
use portcullis_http::held_texts::{HeldText, HeldTexts, ReadError};
use portcullis_http::hop_by_hop;
use serde_json::{Map, Value};

use super::prepare::prepare_parts;
use super::{ForwardContext, Tunnel, send};
use crate::backend::pools::Pools;
use crate::pipeline::forward_error::{ForwardError, PrepareError};
use crate::pipeline::stages::{Authorized, JSON, ReviewedWrite};
use crate::request::info::RequestInfo;

/// The most parameters of a rehearsed query. Go's limit is 10,000, other servers have lower ones.
// Go: net/url/url.go, urlmaxqueryparams
const MAX_PARAMETERS: usize = 1000;
/// The largest response that is read: an object in JSON may be longer than in the client's encoding.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// A client's conditions, which are about its own request; and headers by which some servers replace the method.
const CONDITIONS_AND_OVERRIDES: [&str; 8] = [
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "if-range",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

/// A request that stores nothing.
#[derive(Debug)]
pub(crate) struct Rehearsal {
    method: Method,
    target: PathAndQuery,
    content_type: Option<HeaderValue>,
    body: Bytes,
    accepts_json: bool,
}

/// The whole response to a rehearsal.
#[derive(Debug)]
pub(crate) struct RehearsalResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The object in the body, once it is decoded, until it is taken.
    pub(crate) object: Mutex<Option<Value>>,
    /// Counts the body.
    _held: HeldText,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RehearsalError {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

impl Rehearsal {
    /// A read of `target`.
    pub(crate) fn read(target: PathAndQuery) -> Self {
        Self { method: Method::GET, target, content_type: None, body: Bytes::new(), accepts_json: true }
    }

    /// The dry run of a request, with this body in the place of the client's. `None` if its target would be too long, and for
    /// a DELETE with a body, which reads its options only from there.
    // apiserver: pkg/endpoints/handlers/delete.go, DeleteResource
    pub(crate) fn dry_run(authorized: &Authorized, body: Bytes) -> Option<Self> {
        let method = authorized.request().method().clone();
        if method == Method::DELETE && !body.is_empty() {
            return None;
        }
        let target = with_dry_run(authorized.request().uri().path(), authorized.query())?;
        Some(Self { method, target, content_type: None, body, accepts_json: true })
    }

    /// The dry run of a write in the place of the client's. `None` for a DELETE.
    pub(crate) fn dry_run_of_write(authorized: &Authorized, write: &ReviewedWrite) -> Option<Self> {
        let request = authorized.request();
        let method = write.method.as_ref().unwrap_or(request.method()).clone();
        if method == Method::DELETE {
            return None;
        }
        let (path, query) = match &write.target {
            Some(target) => (target.path(), target.query()),
            None => (request.uri().path(), authorized.query()),
        };
        let (target, content_type) = (with_dry_run(path, query)?, write.content_type.clone());
        Some(Self { method, target, content_type, body: write.body.clone(), accepts_json: true })
    }

    /// The dry run of a DELETE of another target, without options.
    pub(crate) fn dry_run_at(authorized: &Authorized, target: &PathAndQuery) -> Option<Self> {
        let method = authorized.request().method().clone();
        let target = with_dry_run(target.path(), target.query())?;
        Some(Self { method, target, content_type: None, body: Bytes::new(), accepts_json: true })
    }

    /// The dry run of a DELETE with these `DeleteOptions` in JSON. `content_type` replaces the client's.
    pub(crate) fn dry_run_of_delete(
        authorized: &Authorized,
        mut options: Map<String, Value>,
        content_type: Option<HeaderValue>,
    ) -> Option<Self> {
        if authorized.request().method() != Method::DELETE {
            return None;
        }
        let target = with_dry_run(authorized.request().uri().path(), authorized.query())?;
        options.insert("dryRun".to_owned(), Value::from(["All"].as_slice()));
        let body = serde_json::to_vec(&options).ok()?.into();
        Some(Self { method: Method::DELETE, target, content_type, body, accepts_json: true })
    }

    /// Whether a response has the object that the request leads to, in JSON.
    pub(crate) fn shows_object(&self) -> bool {
        self.accepts_json && self.method != Method::DELETE
    }

    /// With the client's own `Accept`.
    #[must_use]
    pub(crate) fn in_encoding_of_client(self) -> Self {
        Self { accepts_json: false, ..self }
    }
}

/// The target with `dryRun=All`. A value that the client gave stays: the API server refuses any other one.
fn with_dry_run(path: &str, query: Option<&str>) -> Option<PathAndQuery> {
    // First, and checked: Go reads nothing of a query with too many parameters.
    let query = query.filter(|query| !query.is_empty()).map_or(String::new(), |query| format!("&{query}"));
    let target: PathAndQuery = format!("{path}?dryRun=All{query}").parse().ok()?;
    let pairs = query::pairs(target.query().unwrap_or_default());
    let (mut count, mut is_dry_run) = (0, false);
    for (name, value) in pairs {
        count += 1;
        is_dry_run |= name == "dryRun" && value == "All";
    }
    (is_dry_run && count <= MAX_PARAMETERS).then_some(target)
}

/// The target of a write with a body of the gateway: the API server has validated the fields of the client's body, and ignores
/// those that webhooks add and it does not know. A patch that is no applied configuration has no `force`.
// apimachinery: pkg/apis/meta/v1/validation/validation.go, ValidatePatchOptions
pub(crate) fn rewritten_target(authorized: &Authorized) -> Option<PathAndQuery> {
    rewritten_target_at(authorized, authorized.request().uri().path())
}

/// The same of another path.
pub(crate) fn rewritten_target_at(authorized: &Authorized, path: &str) -> Option<PathAndQuery> {
    let others = without_parameters(authorized, &["fieldValidation", "force", "timeout"]);
    let query: String = others.iter().filter(|pair| !pair.is_empty()).flat_map(|pair| [*pair, "&"]).collect();
    format!("{path}?{query}fieldValidation=Ignore").parse().ok()
}

/// The client's own target without its `timeout`; `None` if it has none. At its end the API server would answer, and go on with a
/// write.
// apiserver: pkg/endpoints/handlers/finisher/finisher.go, FinishRequest
pub(crate) fn without_timeout(authorized: &Authorized) -> Option<PathAndQuery> {
    let others = without_parameters(authorized, &["timeout"]);
    let has_timeout = others.len() < authorized.query().unwrap_or_default().split('&').count();
    let path = authorized.request().uri().path();
    has_timeout.then(|| format!("{path}?{}", others.join("&")).parse().ok()).flatten()
}

/// The parts of the query, as the client wrote them, but those of these names.
fn without_parameters<'a>(authorized: &'a Authorized, names: &[&str]) -> Vec<&'a str> {
    let is_other = |pair: &&str| query::pairs(pair).next().is_none_or(|(name, _)| !names.contains(&&*name));
    authorized.query().unwrap_or_default().split('&').filter(is_other).collect()
}

/// Sends a rehearsal as the user of the request, and reads the whole response.
// threat: endless-response
pub(crate) async fn rehearse(
    pools: &Pools,
    context: ForwardContext<'_>,
    authorized: &Authorized,
    rehearsal: Rehearsal,
    texts: &HeldTexts,
) -> Result<RehearsalResponse, RehearsalError> {
    let Rehearsal { method, target, content_type, body, accepts_json } = rehearsal;
    // Decoded before, for the request itself; a read shortens it at most.
    let path = decode_path(target.path()).unwrap_or_default().into_owned();
    let info = RequestInfo::parse(&method, &path, target.query());
    let mut parts = authorized.rehearsal(method, target, Body::bytes(body));
    parts.info = info.map_or(parts.info, Arc::new);
    let headers = parts.request.headers_mut();
    // Before the request's upgrade is recognized.
    hop_by_hop::strip_hop_by_hop(headers);
    // The body has a length of its own, and its response is read here.
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT, ACCEPT_ENCODING, RANGE] {
        headers.remove(name);
    }
    for name in CONDITIONS_AND_OVERRIDES {
        headers.remove(name);
    }
    if accepts_json {
        headers.insert(ACCEPT, JSON);
    }
    if let Some(content_type) = content_type {
        headers.insert(CONTENT_TYPE, content_type);
    }
    let prepared = prepare_parts(parts, context)?;
    // Not an upgrade, so that there is no tunnel.
    let response = send(pools, prepared, context, Tunnel::none).await?;
    Ok(RehearsalResponse::read(response, texts).await?)
}

impl RehearsalResponse {
    /// Reads a whole response.
    pub(crate) async fn read(response: Response<Body>, texts: &HeldTexts) -> Result<Self, ForwardError> {
        let (head, body) = response.into_parts();
        let read = texts.reader(body).read_all(MAX_RESPONSE_BYTES).await;
        let (body, held) = read.map_err(|error| match error {
            ReadError::TooLarge => ForwardError::ResponseTooLarge,
            ReadError::Body(error) => ForwardError::ResponseBody(error),
        })?;
        let (status, headers) = (head.status, head.headers);
        Ok(Self { status, headers, body, object: Mutex::default(), _held: held })
    }

    /// The same for a body that may get another length.
    pub(crate) fn without_length(mut self) -> Self {
        self.headers.remove(CONTENT_LENGTH);
        self
    }

    /// The same with another body.
    pub(crate) fn with_body(self, body: Bytes) -> Self {
        Self { body, ..self }
    }

    /// The same with the head of another response.
    pub(crate) fn with_head(self, status: StatusCode, headers: HeaderMap) -> Self {
        Self { status, headers, ..self }
    }
}
