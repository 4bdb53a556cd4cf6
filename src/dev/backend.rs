//! The embedded backend of `portcullis dev`: a small, in-memory server in the shape of kube-apiserver, good enough for
//! kubectl, so that the gateway can be tried on a machine with nothing else. For trying only: it is not a reference for
//! anything, and stores nothing.
//!
//! It trusts the gateway alone: the TLS handshake demands a certificate of the front-proxy authority, and the identity
//! headers name the user. A request without them is refused, never anonymous.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::ask::Ask;
use super::identity::Identities;
use super::json::at;
use super::pki::Paths;
use super::resources::{Does, Resource, SIGNING_REQUESTS, find};
use super::selector::Selector;
use super::store::Store;
use super::watch::watch;
use super::{access, discovery, objects, reviews, table};
use crate::authn::ConnInfo;
use crate::authn::x509::{UnverifiedChain, VerdictMemo};
use crate::clock::Clock;
use crate::go::pem;
use crate::go::url::decode_path;
use crate::http::status::Status;
use crate::http::status::render::{Negotiation, render};
use crate::pki::x509::CaBundle;
use crate::request::info::{self, RequestInfo};

const BODY_LIMIT: usize = 3 * 1024 * 1024;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Why the embedded backend did not start.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// No socket.
    #[error("the embedded backend cannot listen: {0}")]
    Listen(#[from] io::Error),
    /// A certificate or key that cannot be used.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// The running backend. Dropping it ends it, with every connection.
#[derive(Debug)]
pub struct Backend {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Backend {
    /// Starts it on a free port of 127.0.0.1, with the certificates below `paths`.
    pub async fn start(paths: &Paths, clock: Clock) -> Result<Self, BackendError> {
        let acceptor = TlsAcceptor::from(Arc::new(tls(paths)?));
        let shared = Arc::new(Shared {
            store: Arc::new(Store::new(clock.clone())),
            identities: identities(paths)?,
            clock,
        });
        objects::seed(&shared.store);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, acceptor, shared));
        Ok(Self { address, _tasks: tasks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// State that all connections share.
#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    identities: Identities,
    clock: Clock,
}

/// Says which file cannot be used.
fn unusable<E: std::fmt::Display>(path: &Path) -> impl Fn(E) -> BackendError {
    move |error| BackendError::File { path: path.to_owned(), problem: error.to_string() }
}

fn identities(paths: &Paths) -> Result<Identities, BackendError> {
    let path = paths.pki("front-proxy-ca.crt");
    let pem = std::fs::read(&path).map_err(unusable(&path))?;
    let bundle = CaBundle::from_pem(&pem).map_err(unusable(&path))?;
    Identities::new(&Arc::new(bundle)).ok_or_else(|| unusable(&path)("unusable names"))
}

fn tls(paths: &Paths) -> Result<ServerConfig, BackendError> {
    let [ca, certificate, key] =
        ["front-proxy-ca.crt", "backend.crt", "backend.key"].map(|file| paths.pki(file));
    let mut front_proxies = RootCertStore::empty();
    let read = |path: &Path| std::fs::read(path).map_err(unusable(path));
    for authority in pem::authorities(&read(&ca)?) {
        front_proxies.add(authority).map_err(unusable(&ca))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(front_proxies.into(), Arc::clone(&provider));
    let chain = pem::certificate_chain(&read(&certificate)?);
    let key = pem::private_key(&read(&key)?).ok_or_else(|| unusable(&key)("not a private key in PEM"))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable(&certificate))?
        .with_client_cert_verifier(verifier.build().map_err(unusable(&ca))?)
        .with_single_cert(chain, key)
        .map_err(unusable(&certificate))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    // Owned here, so that connections end with the listener.
    let mut connections = JoinSet::new();
    loop {
        while let Some(ended) = connections.try_join_next() {
            tracing::debug!(?ended, "a connection to the embedded backend");
        }
        let Ok((socket, peer)) = listener.accept().await else {
            // Out of file descriptors, most likely: they come back as connections end.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        connections.spawn(connection(socket, peer, acceptor.clone(), Arc::clone(&shared)));
    }
}

async fn connection(
    socket: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    socket.set_nodelay(true)?;
    let stream = acceptor.accept(socket).await?;
    let (_, session) = stream.get_ref();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let peer_chain = UnverifiedChain::new(session.peer_certificates().unwrap_or_default().to_vec());
    let conn = Arc::new(ConnInfo { peer, server_name: None, peer_chain, verdicts: VerdictMemo::default() });
    let service = service_fn(move |request| {
        let (shared, conn) = (Arc::clone(&shared), Arc::clone(&conn));
        async move { Ok::<_, Infallible>(serve(&shared, &conn, request).await) }
    });
    let io = TokioIo::new(stream);
    if http2 {
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        return Ok(builder.serve_connection(io, service).await?);
    }
    Ok(hyper::server::conn::http1::Builder::new().serve_connection(io, service).await?)
}

async fn serve(shared: &Shared, conn: &ConnInfo, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    answer(shared, conn, &head, body).await.unwrap_or_else(|status| {
        let refusal = render(&status, &Negotiation::of(&head.headers, head.uri.query()));
        refusal.map(|body| Full::new(body).boxed_unsync())
    })
}

/// The life of a request: authentication, RequestInfo, authorization, then the operation.
async fn answer(
    shared: &Shared,
    conn: &ConnInfo,
    head: &Parts,
    body: Incoming,
) -> Result<Response<Body>, Status> {
    let store = &shared.store;
    let user = shared.identities.caller(conn, &head.headers, shared.clock.now()).await?;
    let bad = |error: &dyn std::error::Error| Status::bad_request(error.to_string());
    let path = decode_path(head.uri.path()).map_err(|error| bad(&error))?;
    let info = RequestInfo::parse(&head.method, &path, head.uri.query()).map_err(|error| bad(&error))?;
    access::authorize(&user, &info.attempt(&user.name))?;

    let Some(asked) = info.resource() else {
        return outside(&path);
    };
    let resource = find(asked.group, asked.resource).filter(|resource| served(resource, &asked));
    let resource = resource.ok_or_else(Status::not_found)?;
    let (verb, on_object) = (info.verb(), asked.parts.contains('/'));
    let fits = ["create", "list", "watch"].contains(&verb) != on_object
        // A collection may be asked for in all namespaces; anything else has one, or none.
        && (["list", "watch"].contains(&verb) || !resource.namespaced || !asked.namespace.is_empty())
        && (verb != "delete" || asked.subresource.is_empty());
    if !fits || !resource.verbs().contains(&verb) {
        return Err(Status::method_not_allowed());
    }
    let header =
        |name| head.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
    let too_large = |_| Status::request_entity_too_large("limit is 3145728");
    let body = Limited::new(body, BODY_LIMIT).collect().await.map_err(too_large)?.to_bytes();
    let ask = Ask {
        store,
        user: &user,
        verb,
        resource,
        namespace: if resource.namespaced { asked.namespace } else { "" },
        name: if on_object { asked.name } else { "" },
        subresource: asked.subresource,
        query: head.uri.query().unwrap_or_default(),
        table: table::wanted(header(header::ACCEPT)),
        media_type: header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim(),
        body: &body,
    };
    let (code, object) = match ask.verb {
        "watch" => return Ok(as_json(200, watch(&ask)?.boxed_unsync())),
        "list" => return list(&ask),
        "get" => (200, store.read().get(&ask.key(ask.name)).ok_or_else(|| resource.not_found(ask.name))?),
        _ if matches!(resource.does, Does::Review) => (201, Arc::new(reviews::answer(&ask)?)),
        _ => objects::write(&ask)?,
    };
    // A `Status` is never a table.
    if ask.table && *at(&object, "/kind") == *resource.kind {
        return Ok(json(code, &table::of_one(resource, &object, store.now())));
    }
    Ok(json(code, &object))
}

fn served(resource: &Resource, asked: &info::RequestResource<'_>) -> bool {
    asked.version == "v1"
        && asked.parts.split('/').count() <= 3
        && (asked.subresource.is_empty()
            || (resource.plural == SIGNING_REQUESTS && asked.subresource == "approval"))
}

/// Paths that are not resources.
fn outside(path: &str) -> Result<Response<Body>, Status> {
    let rest = ["/healthz", "/livez", "/readyz"].iter().find_map(|root| path.strip_prefix(root));
    if rest.is_some_and(|rest| ["", "/", "/ping"].contains(&rest)) {
        return Ok(Response::new(Full::new(Bytes::from_static(b"ok")).boxed_unsync()));
    }
    discovery::document(path).map(|document| json(200, &document)).ok_or_else(Status::not_found)
}

fn list(ask: &Ask<'_>) -> Result<Response<Body>, Status> {
    let (resource, selector) = (ask.resource, Selector::parse(ask)?);
    let (revision, objects) = {
        let state = ask.store.read();
        (state.revision.to_string(), state.list(resource, ask.namespace))
    };
    let chosen = objects.iter().map(|object| &**object).filter(|object| selector.matches(object));
    if ask.table {
        return Ok(json(200, &table::of(resource, chosen, &revision, ask.store.now())));
    }
    let list = json!({
        "kind": format!("{}List", resource.kind), "apiVersion": resource.api_version(),
        "metadata": {"resourceVersion": revision}, "items": chosen.collect::<Vec<_>>(),
    });
    Ok(json(200, &list))
}

fn json(code: u16, value: &Value) -> Response<Body> {
    as_json(code, Full::new(Bytes::from(format!("{value:#}\n"))).boxed_unsync())
}

fn as_json(code: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
