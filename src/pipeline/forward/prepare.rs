//! Turns an admitted request into the one that the backend receives, and refuses it if the resulting header is invalid.
//! Nothing is sent here.

use portcullis_http::body::Body;
use portcullis_http::hop_by_hop;
use portcullis_http::identity::{EncodedIdentity, Identity, IdentityMode};
use portcullis_http::identity_headers::{self, RequestHeaderNames};
use portcullis_http::limits::MAX_HEADER_LIST_SIZE;

use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRAILER};
use http::uri::{Authority, PathAndQuery};
use http::{Request, Version};
use http_body::Body as _;
use hyper::upgrade::OnUpgrade;
use std::sync::Arc;
use tokio::time::Instant;

use super::prefix::{self, PathPrefixes};
use super::{ForwardContext, forwarded};
use crate::backend::Backend;
use crate::backend::author::{ClientAuthor, RequestAuthor};
use crate::backend::sharing;
use crate::pipeline::forward_error::PrepareError;
use crate::pipeline::stages::{Admitted, ForwardParts};
use crate::request::info::RequestInfo;
use crate::traces::ActiveSpan;

/// A request as the backend receives it, and the data to handle its response.
pub(crate) struct Prepared {
    pub(super) backend: Arc<Backend>,
    pub(super) request: Box<Request<Body>>,
    /// The size of its header list.
    pub(super) header_size: usize,
    pub(super) info: Arc<RequestInfo>,
    /// The client on whose connections the request is sent; `None` if the client or the user it acts as is anonymous.
    pub(super) owner: Option<Identity>,
    pub(super) author: RequestAuthor,
    /// Whether the gateway has allowed it by a verb of constrained impersonation.
    pub(super) is_constrained: bool,
    pub(super) deadline: Option<Instant>,
    /// The protocol of a requested upgrade, and the client's side of the connection.
    pub(super) upgrade: Option<(HeaderValue, OnUpgrade)>,
    /// The path prefixes, if the paths of client and backend differ.
    pub(super) prefixes: Option<PathPrefixes>,
    /// The span of the request, if requests are traced.
    pub(super) span: Option<Box<ActiveSpan>>,
}

/// Writes the header that the backend receives: trusted headers, the gateway's credential, the backend's address.
pub(crate) fn prepare(admitted: Admitted, context: ForwardContext<'_>) -> Result<Prepared, PrepareError> {
    prepare_parts(admitted.into_parts(), context)
}

/// The same of an admitted request or a rehearsal. Every request to a backend has its identity from here.
pub(super) fn prepare_parts(
    parts: ForwardParts,
    context: ForwardContext<'_>,
) -> Result<Prepared, PrepareError> {
    let ForwardParts {
        backend,
        mut request,
        cut_prefix,
        info,
        deadline,
        identity,
        requester,
        is_constrained,
        is_from_front_proxy,
        impersonate,
    } = parts;
    if !backend.path_prefix().is_empty() && prefix::has_dot_segment(info.path()) {
        return Err(PrepareError::DotSegment);
    }
    // Before hop-by-hop headers are stripped.
    let upgrade = hop_by_hop::requested_upgrade(request.headers())
        .map(|protocol| (protocol, hyper::upgrade::on(&mut *request)));
    let further_names = backend.identity_headers.load_full();
    let span = context.spans.map(|spans| Box::new(spans.request(request.method())));
    let pass = context.gateway_id.pass(backend.cluster_name(), request.method(), request.uri().path());
    let headers = request.headers_mut();
    let names = further_names.as_deref();
    write_trusted_headers(headers, &identity, names, (context, span.as_deref()), is_from_front_proxy);
    pass.append_to(headers);
    let is_identity = |name: &&HeaderName| names.is_some_and(|names| names.contains(name));
    if let Some((name, _)) = impersonate.headers().find(|(name, _)| is_identity(name)) {
        return Err(PrepareError::ImpersonationAsIdentity(name.clone()));
    }
    impersonate.restore_into(headers);
    backend.add_credential(headers);
    let request = address_to_backend(request, &backend)?;
    let header_size = sharing::header_size(&request);
    if header_size > MAX_HEADER_LIST_SIZE {
        return Err(PrepareError::HeaderTooLarge);
    }
    // kube-apiserver closes a connection after a request of an anonymous user, also of an impersonated one. Otherwise the
    // client counts, and not the user it acts as: one that may act as many users has the share of one.
    // threat: anonymous-lockout
    let author =
        ClientAuthor { removed: further_names, requester: requester.clone(), address: context.client };
    let owner = (!identity.is_unauthenticated() && !requester.is_unauthenticated()).then_some(requester);
    let prefixes = PathPrefixes::between(&backend, &request, cut_prefix);
    let author = RequestAuthor::Client(author);
    Ok(Prepared {
        backend,
        request,
        header_size,
        info,
        owner,
        author,
        is_constrained,
        deadline,
        upgrade,
        prefixes,
        span,
    })
}

/// Replaces everything that a backend trusts in a client's header. `further_names` are non-standard headers from which
/// the backend reads identities.
///
/// | removed from a client's request | where |
/// |---|---|
/// | `Authorization`, the bearer token in `Sec-WebSocket-Protocol`, `X-Remote-*` in any spelling (`X_Remote_User`), and configured front-proxy headers | `request::credentials`, before authentication |
/// | `Impersonate-*` | `request::credentials`; restored if the backend authorizes the impersonation |
/// | `Accept-Encoding` of watches, for the clients of `uncompressedWatches` | `pipeline::stages`, which admits the request |
/// | hop-by-hop headers, and those that `Connection` names | `http::hop_by_hop` |
/// | `Trailer` | here |
/// | `X-Forwarded-For`; of a client that is not a front proxy `Forwarded` and `X-Real-Ip` | `forwarded`, which writes `X-Forwarded-For`, and `Audit-Id`, a client's or a new one |
/// | none of `CDN-Loop`, to which [`prepare_parts`] appends this pass of the gateway | |
/// | `traceparent` and `tracestate`, if requests are traced | `traces`, which writes the gateway's own |
/// | `Host`, with `--identity=impersonate` | `address_to_backend`, which writes the backend's |
/// | the names from which the backend reads identities | `http::identity_headers`, which writes the identity last |
// threat: connection-nomination
pub(crate) fn write_trusted_headers(
    headers: &mut HeaderMap,
    identity: &EncodedIdentity,
    further_names: Option<&RequestHeaderNames>,
    (context, span): (ForwardContext<'_>, Option<&ActiveSpan>),
    is_from_front_proxy: bool,
) {
    // First: otherwise a client could nominate the gateway's headers in Connection.
    hop_by_hop::strip_hop_by_hop(headers);
    // The trailers of requests are not forwarded.
    headers.remove(TRAILER);
    forwarded::set_forwarded_headers(headers, context, is_from_front_proxy);
    if let Some(span) = span {
        span.inject(headers);
    }
    if let Some(names) = further_names {
        identity_headers::strip_named(headers, names);
    }
    identity_headers::write_identity(headers, identity);
}

/// Addresses the request to the backend. The bytes of path and query stay unchanged. The client's host is kept, except
/// with `--identity=impersonate`, which sends the backend's own host.
fn address_to_backend(
    request: Box<Request<Body>>,
    backend: &Backend,
) -> Result<Box<Request<Body>>, PrepareError> {
    let (mut head, body) = request.into_parts();
    let client_host = head.headers.remove(HOST);
    let authority = match backend.identity() {
        IdentityMode::Impersonate => None,
        IdentityMode::RequestHeader => head
            .uri
            .authority()
            .cloned()
            .or_else(|| client_host.and_then(|host| Authority::try_from(host.as_bytes()).ok())),
    };
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    // Each part is valid by itself, so only the length of the path with its prefix can be at fault.
    head.uri = backend.uri(authority, path).map_err(|_| PrepareError::HeaderTooLarge)?;
    head.version = Version::HTTP_11;
    if body.is_end_stream() && !head.method.is_safe() {
        // Without it, an HTTP/1.1 server cannot distinguish an empty body from none.
        head.headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from_static("0"));
    }
    head.extensions.clear();
    Ok(Box::new(Request::from_parts(head, body)))
}
