//! The embedded backend of `portcullis dev`: an in-memory API server with the endpoints that kubectl needs, to try the
//! gateway without a cluster. It is for trying only, and no reference for kube-apiserver's behavior.
//!
//! It trusts the gateway only: TLS requires a client certificate of the front-proxy CA, and the identity headers name
//! the user. A request without them gets a 401 and is never anonymous.

use std::convert::Infallible;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portcullis_go::url::decode_path;
use portcullis_kubernetes::status::Status;
use portcullis_kubernetes::status::render::{Negotiation, render};
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::key_pair::CertificateKeyPair;
use portcullis_system::clock::Clock;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::pki::{self, DevPaths};
use super::request::{ObjectSelector, ResourceRequest};
use super::resources::{REVIEW_VERBS, SIGNING_REQUESTS, find};
use super::store::ObjectStore;
use super::{auth, discovery, objects, table, watch};
use crate::authn::ConnInfo;
use crate::authn::x509::UnverifiedChain;
use crate::request::info::{RequestInfo, RequestResource};

const MAX_BODY_SIZE: usize = 3 * 1024 * 1024;
const OUT_OF_DESCRIPTORS_BACKOFF: Duration = Duration::from_millis(100);

type Body = UnsyncBoxBody<Bytes, Infallible>;
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The running backend. Dropping it closes the listener and every connection.
#[derive(Debug)]
pub(super) struct DemoServer {
    pub(super) address: SocketAddr,
    _acceptor: AbortOnDropHandle<()>,
}

/// The state that all connections share.
#[derive(Debug)]
struct DemoState {
    store: Arc<ObjectStore>,
    front_proxies: Arc<CaBundle>,
}

impl DemoServer {
    /// Starts the backend on a free port of 127.0.0.1.
    pub(super) async fn start(paths: &DevPaths, clock: Clock) -> Result<Self, BoxError> {
        let front_proxies = Arc::new(pki::load_front_proxy_ca(paths)?);
        let tls = tls_config(&front_proxies, &pki::load_pair(paths, "backend")?)?;
        let store = Arc::new(ObjectStore::new(clock));
        objects::seed(&store);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(DemoState { store, front_proxies });
        let acceptor = tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), state));
        Ok(Self { address, _acceptor: AbortOnDropHandle::new(acceptor) })
    }
}

fn tls_config(front_proxies: &CaBundle, pair: &CertificateKeyPair) -> Result<ServerConfig, BoxError> {
    let mut roots = RootCertStore::empty();
    for authority in front_proxies.certificates() {
        roots.add(authority.der.clone())?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier.build()?)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified_key())));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, state: Arc<DemoState>) {
    // Owns the connections, so that they end with the listener.
    let mut connections = JoinSet::new();
    loop {
        while let Some(ended) = connections.try_join_next() {
            tracing::debug!(?ended, "a connection to the embedded backend");
        }
        let Ok((socket, peer)) = listener.accept().await else {
            tokio::time::sleep(OUT_OF_DESCRIPTORS_BACKOFF).await;
            continue;
        };
        connections.spawn(serve_connection(socket, peer, acceptor.clone(), Arc::clone(&state)));
    }
}

async fn serve_connection(
    socket: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    state: Arc<DemoState>,
) -> Result<(), BoxError> {
    socket.set_nodelay(true)?;
    let stream = acceptor.accept(socket).await?;
    let (_, session) = stream.get_ref();
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let peer_chain = UnverifiedChain::new(session.peer_certificates().unwrap_or_default().to_vec());
    let conn = Arc::new(ConnInfo::new(peer, None, peer_chain));
    let service = service_fn(move |request| {
        let (state, conn) = (Arc::clone(&state), Arc::clone(&conn));
        async move { Ok::<_, Infallible>(respond(&state, &conn, request).await) }
    });
    let io = TokioIo::new(stream);
    if is_http2 {
        return Ok(http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await?);
    }
    Ok(http1::Builder::new().serve_connection(io, service).await?)
}

async fn respond(state: &DemoState, conn: &ConnInfo, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    execute(state, conn, &head, body).await.unwrap_or_else(|status| {
        let refusal = render(&status, &Negotiation::of(&head.headers, head.uri.query()));
        refusal.map(|body| Full::new(body).boxed_unsync())
    })
}

/// Authenticates, authorizes and executes a request.
async fn execute(
    state: &DemoState,
    conn: &ConnInfo,
    head: &Parts,
    body: Incoming,
) -> Result<Response<Body>, Status> {
    let (store, query) = (&state.store, head.uri.query());
    let user = auth::authenticate(conn, &state.front_proxies, &head.headers, store.clock.now()).await?;
    let bad = |error: &dyn Error| Status::bad_request(error.to_string());
    let path = decode_path(head.uri.path()).map_err(|error| bad(&error))?;
    let info = RequestInfo::parse(&head.method, &path, query).map_err(|error| bad(&error))?;
    auth::authorize(&user, &info.attempt(&user.name))?;
    let Some(target) = info.resource() else {
        return non_resource(&path);
    };
    let resource = find(target.group, target.resource).filter(|_| is_served(&target));
    let resource = resource.ok_or_else(Status::not_found)?;
    let (verb, has_name) = (info.verb(), target.segments().count() > 1);
    let is_collection = ["list", "watch"].contains(&verb);
    let has_scope = is_collection || !resource.namespaced || !target.namespace.is_empty();
    let is_method = has_name != (is_collection || verb == "create") && resource.verbs.contains(&verb);
    if !is_method || !has_scope || (verb == "delete" && !target.subresource.is_empty()) {
        return Err(Status::method_not_allowed());
    }
    let header =
        |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let too_large = |_| Status::request_entity_too_large("limit is 3145728");
    let request = ResourceRequest {
        store: Arc::clone(store),
        user,
        verb: verb.to_owned(),
        resource,
        namespace: if resource.namespaced { target.namespace.to_owned() } else { String::new() },
        name: if has_name { target.name.to_owned() } else { String::new() },
        subresource: target.subresource.to_owned(),
        query: query.unwrap_or_default().to_owned(),
        selector: ObjectSelector::parse(target.label_selector, target.field_selector)?,
        table: table::is_requested(header(header::ACCEPT)),
        media_type: header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_owned(),
        body: Limited::new(body, MAX_BODY_SIZE).collect().await.map_err(too_large)?.to_bytes(),
    };
    let (code, object) = match verb {
        "watch" => return Ok(response(200, watch::start(request)?.boxed_unsync())),
        "list" => return Ok(list(&request)),
        "get" => {
            let object = store.read().get(&request.key(&request.name));
            (200, object.ok_or_else(|| resource.not_found(&request.name))?)
        }
        _ if resource.verbs == REVIEW_VERBS => objects::review(&request)?,
        _ => objects::write(&request)?,
    };
    Ok(json_response(code, &request.render(&object)))
}

/// Whether the version and the subresource exist.
fn is_served(target: &RequestResource<'_>) -> bool {
    let is_approval = target.resource == SIGNING_REQUESTS && target.subresource == "approval";
    target.version == "v1" && target.segments().count() <= 3 && (target.subresource.is_empty() || is_approval)
}

fn non_resource(path: &str) -> Result<Response<Body>, Status> {
    let check = ["/healthz", "/livez", "/readyz"].iter().find_map(|root| path.strip_prefix(root));
    if check.is_some_and(|check| ["", "/", "/ping"].contains(&check)) {
        return Ok(Response::new(Full::from("ok").boxed_unsync()));
    }
    discovery::document(path).map(|document| json_response(200, &document)).ok_or_else(Status::not_found)
}

fn list(request: &ResourceRequest) -> Response<Body> {
    let resource = request.resource;
    let state = request.store.read();
    let revision = state.revision.to_string();
    let objects = state.list(resource.plural, &request.namespace).map(|object| &**object);
    let selected = objects.filter(|object| request.selector.matches(object));
    if request.table {
        return json_response(200, &table::of(resource, selected, &revision, request.store.clock.now()));
    }
    let list = json!({
        "kind": format!("{}List", resource.kind), "apiVersion": resource.api_version,
        "metadata": {"resourceVersion": revision}, "items": selected.collect::<Vec<_>>(),
    });
    json_response(200, &list)
}

fn json_response(code: u16, value: &Value) -> Response<Body> {
    response(code, Full::from(format!("{value:#}\n")).boxed_unsync())
}

fn response(code: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
