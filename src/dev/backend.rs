//! The embedded backend of `portcullis dev`: a small, in-memory server in the shape of kube-apiserver, good enough for
//! kubectl, so that the gateway can be tried on a machine with nothing else. For trying only: it is no reference for
//! anything, and stores nothing.
//!
//! It trusts the gateway alone: the TLS handshake demands a certificate of the front-proxy authority, and a request is
//! made as whoever the identity headers name. Without them it is refused, never anonymous.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
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
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::access;
use super::ask::Ask;
use super::discovery;
use super::identity::{Caller, Identities};
use super::json::{at, text};
use super::objects::{self, Done};
use super::pki::Paths;
use super::resources::{Does, Resource, find};
use super::reviews;
use super::selector::Selector;
use super::store::Store;
use super::table::Table;
use super::watch::watch;
use crate::authn::ConnInfo;
use crate::authn::x509::{CaBundle, UnverifiedChain, VerdictMemo};
use crate::clock::Clock;
use crate::escape::decode_path;
use crate::request::info::RequestInfo;
use crate::status::render::{Negotiation, render};
use crate::status::{Reason, Status};

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
    Tls {
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

/// What every request needs.
#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    identities: Identities,
    clock: Clock,
}

fn identities(paths: &Paths) -> Result<Identities, BackendError> {
    let path = paths.pki("front-proxy-ca.crt");
    let bundle = CaBundle::from_pem(&std::fs::read(&path)?);
    let bundle =
        bundle.map_err(|error| BackendError::Tls { path: path.clone(), problem: error.to_string() })?;
    let impossible = BackendError::Tls { path, problem: "cannot be used".to_owned() };
    Identities::new(&Arc::new(bundle)).ok_or(impossible)
}

fn tls(paths: &Paths) -> Result<ServerConfig, BackendError> {
    let bad = |file: &str, error: &dyn std::fmt::Display| BackendError::Tls {
        path: paths.pki(file),
        problem: error.to_string(),
    };
    let certificate =
        |file: &str| CertificateDer::from_pem_file(paths.pki(file)).map_err(|error| bad(file, &error));
    let key =
        PrivateKeyDer::from_pem_file(paths.pki("backend.key")).map_err(|error| bad("backend.key", &error))?;
    let mut front_proxies = RootCertStore::empty();
    front_proxies
        .add(certificate("front-proxy-ca.crt")?)
        .map_err(|error| bad("front-proxy-ca.crt", &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(front_proxies), Arc::clone(&provider))
            .build()
            .map_err(|error| bad("front-proxy-ca.crt", &error))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad("backend.crt", &error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate("backend.crt")?], key)
        .map_err(|error| bad("backend.crt", &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    // Owned here, so that connections end with the listener.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((socket, peer)) => {
                let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
                connections.spawn(async move {
                    if let Err(error) = connection(socket, peer, acceptor, shared).await {
                        tracing::debug!(%error, "connection to the embedded backend");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the embedded backend could not accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
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

/// The life of a request here: who, what, may they, then do it.
async fn answer(
    shared: &Shared,
    conn: &ConnInfo,
    head: &Parts,
    body: Incoming,
) -> Result<Response<Body>, Status> {
    let store = &shared.store;
    let Caller { user, impersonator } =
        shared.identities.caller(conn, &head.headers, shared.clock.now()).await?;
    if let Some(impersonator) = impersonator {
        access::authorize_impersonation(&impersonator, &user.name)?;
    }
    let bad = |error: &dyn std::error::Error| Status::bad_request(error.to_string());
    let path = decode_path(head.uri.path()).map_err(|error| bad(&error))?;
    let info = RequestInfo::parse(&head.method, &path, head.uri.query()).map_err(|error| bad(&error))?;
    access::authorize(&user, &info.attempt(&user.name))?;

    let Some(asked) = info.resource() else {
        return outside(&path);
    };
    let served = |resource: &&'static Resource| {
        let known = asked.subresource.is_empty() || resource.subresources.contains(&asked.subresource);
        // A collection may be asked for in all namespaces; anything else has one, or none.
        let placed =
            !resource.namespaced || !asked.namespace.is_empty() || ["list", "watch"].contains(&info.verb());
        asked.version == "v1" && known && placed && asked.parts.split('/').count() <= 3
    };
    let resource = find(asked.group, asked.resource).filter(served).ok_or_else(Status::not_found)?;
    let on_object = asked.parts.contains('/');
    let fits = match info.verb() {
        "create" | "deletecollection" => !on_object,
        "get" | "update" | "patch" => on_object,
        _ => asked.subresource.is_empty(),
    };
    if matches!(resource.does, Does::Nothing) && info.verb() == "create" {
        let message = "the backend of `portcullis dev` is for trying the gateway: it runs nothing";
        return Err(Status::new(Reason::MethodNotAllowed, message));
    }
    if !fits || !resource.verbs().contains(&info.verb()) {
        return Err(Status::method_not_allowed());
    }
    let header =
        |name| head.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
    let query = head.uri.query().unwrap_or_default();
    let mut ask = Ask {
        store,
        user: &user,
        verb: info.verb(),
        resource,
        namespace: if resource.namespaced { asked.namespace } else { "" },
        name: if on_object { asked.name } else { "" },
        subresource: asked.subresource,
        query,
        table: None,
        content_type: header(header::CONTENT_TYPE),
        body: &[],
    };
    ask.table = Table::wanted(header(header::ACCEPT), &ask.parameter("includeObject"));
    match ask.verb {
        "watch" => {
            let mut response = Response::new(watch(&ask)?.boxed_unsync());
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Ok(response)
        }
        "list" => {
            let selector = Selector::parse(&ask)?;
            let (revision, objects) = store.list(resource, ask.scope());
            let chosen =
                objects.iter().map(|(_, object)| &**object).filter(|object| selector.matches(object));
            let list = match ask.table {
                Some(table) => table.render(resource, chosen, Some(&revision.to_string()), true, store.now()),
                None => objects::list(resource, revision, chosen),
            };
            Ok(json(200, &list))
        }
        "get" => {
            let object = store.get(&ask.key()).ok_or_else(|| resource.not_found(ask.name))?;
            Ok(shown(200, &object, &ask))
        }
        _ => {
            let too_large = |_| Status::request_entity_too_large("limit is 3145728");
            let body = Limited::new(body, BODY_LIMIT).collect().await.map_err(too_large)?.to_bytes();
            write(&Ask { body: &body, ..ask })
        }
    }
}

/// Paths that are no resource.
fn outside(path: &str) -> Result<Response<Body>, Status> {
    let rest = ["/healthz", "/livez", "/readyz"].iter().find_map(|root| path.strip_prefix(root));
    if rest.is_some_and(|rest| ["", "/", "/ping"].contains(&rest)) {
        return Ok(Response::new(Full::new(Bytes::from_static(b"ok")).boxed_unsync()));
    }
    discovery::document(path).map(|document| json(200, &document)).ok_or_else(Status::not_found)
}

fn write(ask: &Ask<'_>) -> Result<Response<Body>, Status> {
    if matches!(ask.resource.does, Does::Review) {
        return Ok(json(201, &reviews::answer(ask)?));
    }
    let Done { code, object, warnings } = objects::write(ask)?;
    let mut response = shown(code, &object, ask);
    for warning in warnings {
        if let Ok(value) = HeaderValue::from_str(&format!("299 - {warning:?}")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(response)
}

/// An object, or its table if the client wants one; a `Status` is never a table.
fn shown(code: u16, object: &Value, ask: &Ask<'_>) -> Response<Body> {
    match ask.table {
        Some(table) if *at(object, "/kind") == *ask.resource.kind => {
            let revision = text(object, "/metadata/resourceVersion");
            let objects = std::iter::once(object);
            json(code, &table.render(ask.resource, objects, Some(revision), true, ask.store.now()))
        }
        _ => json(code, object),
    }
}

fn json(code: u16, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{value:#}\n"))).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
