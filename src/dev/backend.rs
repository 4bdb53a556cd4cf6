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
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
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
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::access;
use super::discovery;
use super::failure::Failure;
use super::identity::{self, Caller};
use super::json::at;
use super::objects::{self, Call, Done};
use super::pki::Paths;
use super::resources::Kind;
use super::reviews;
use super::selector::Selector;
use super::store::Store;
use super::table::Table;
use super::target::{Query, Target};
use super::watch::watch;
use crate::clock::Clock;
use crate::user::UserInfo;

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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let store = Arc::new(Store::new(clock));
        if let Err(failure) = objects::seed(&store) {
            tracing::error!(?failure, "the embedded backend could not be filled");
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, acceptor, store));
        Ok(Self {
            address,
            _tasks: tasks,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
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

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, store: Arc<Store>) {
    // Owned here, so that connections end with the listener.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((socket, _)) => {
                let (acceptor, store) = (acceptor.clone(), Arc::clone(&store));
                connections.spawn(async move {
                    if let Err(error) = connection(socket, acceptor, store).await {
                        tracing::debug!(error, "connection to the embedded backend");
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
    socket: tokio::net::TcpStream,
    acceptor: TlsAcceptor,
    store: Arc<Store>,
) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    socket.set_nodelay(true).map_err(|error| told(&error))?;
    let stream = acceptor.accept(socket).await.map_err(|error| told(&error))?;
    let (_, session) = stream.get_ref();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let peer = session
        .peer_certificates()
        .and_then(<[_]>::first)
        .map(|leaf| identity::peer_name(leaf));
    let peer = Arc::new(peer.flatten());
    let service = service_fn(move |request| {
        let (store, peer) = (Arc::clone(&store), Arc::clone(&peer));
        async move { Ok::<_, Infallible>(serve(&store, peer.as_deref(), request).await) }
    });
    let io = TokioIo::new(stream);
    if http2 {
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(io, service)
            .await
            .map_err(|error| told(&error))
    } else {
        hyper::server::conn::http1::Builder::new()
            .serve_connection(io, service)
            .await
            .map_err(|error| told(&error))
    }
}

async fn serve(store: &Arc<Store>, peer: Option<&str>, request: Request<Incoming>) -> Response<Body> {
    let mut response = match answer(store, peer, request).await {
        Ok(response) => response,
        Err(failure) => {
            let status = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            json(status, &failure.status())
        }
    };
    let headers = response.headers_mut();
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    if let Ok(id) = HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()) {
        headers.insert(HeaderName::from_static("audit-id"), id);
    }
    response
}

/// The life of a request here: who, what, may they, then do it.
async fn answer(
    store: &Arc<Store>,
    peer: Option<&str>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Failure> {
    let (head, body) = request.into_parts();
    let Caller { user, impersonator } =
        identity::caller(&head.headers, peer).ok_or_else(Failure::unauthorized)?;
    if let Some(impersonator) = impersonator {
        access::authorize_impersonation(&impersonator, &user.name)?;
    }
    let text = |name| {
        head.headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
            .unwrap_or_default()
    };
    let (accept, content_type) = (text(header::ACCEPT), text(header::CONTENT_TYPE));
    let path = head.uri.path();
    let query = Query::parse(head.uri.query());

    let Some(target) = Target::parse(path) else {
        let verb = if head.method == Method::GET || head.method == Method::HEAD {
            "get"
        } else {
            "post"
        };
        access::authorize_path(&user, verb, path)?;
        return outside(path, accept);
    };
    let collection = target.name.is_empty();
    let watching = query.is_true("watch");
    let verb = match head.method.as_str() {
        "GET" | "HEAD" if !collection => "get",
        "GET" | "HEAD" if watching => "watch",
        "GET" | "HEAD" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if collection => "deletecollection",
        "DELETE" => "delete",
        _ => return Err(Failure::method_not_allowed()),
    };
    access::authorize(&user, verb, &target)?;
    let fits = match verb {
        "create" => collection,
        "update" | "patch" => !collection,
        _ => true,
    };
    let on_subresource = target.subresource.is_empty() || ["get", "update", "patch"].contains(&verb);
    if !target.resource.verbs().contains(&verb) || !fits || !on_subresource {
        return Err(Failure::method_not_allowed());
    }

    let table = Table::wanted(accept, query.value("includeObject"));
    match verb {
        "get" | "list" | "watch" => read(store, target, verb, &query, table),
        _ => {
            let body = Limited::new(body, BODY_LIMIT)
                .collect()
                .await
                .map_err(|_| Failure::too_large())?
                .to_bytes();
            write(store, &user, &target, verb, &query, table, content_type, &body)
        }
    }
}

/// Paths that are no resource.
fn outside(path: &str, accept: &str) -> Result<Response<Body>, Failure> {
    let health = ["/healthz", "/livez", "/readyz"].iter().any(|root| {
        path.strip_prefix(root)
            .is_some_and(|rest| ["", "/", "/ping"].contains(&rest))
    });
    if health {
        let mut response = Response::new(Full::new(Bytes::from_static(b"ok")).boxed_unsync());
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, text);
        return Ok(response);
    }
    let (document, aggregated) = discovery::document(path, accept).ok_or_else(Failure::unknown_path)?;
    let mut response = json(StatusCode::OK, &document);
    if aggregated {
        let media_type = HeaderValue::from_static(discovery::AGGREGATED);
        response.headers_mut().insert(header::CONTENT_TYPE, media_type);
    }
    Ok(response)
}

fn read(
    store: &Arc<Store>,
    target: Target,
    verb: &str,
    query: &Query,
    table: Option<Table>,
) -> Result<Response<Body>, Failure> {
    let resource = target.resource;
    match verb {
        "watch" => {
            let body = watch(Arc::clone(store), target, query, table)?;
            let mut response = Response::new(body.boxed_unsync());
            let media_type = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, media_type);
            Ok(response)
        }
        "list" => {
            let selector = Selector::parse(query, resource)?;
            let (revision, objects) = store.list(resource, target.scope());
            let chosen = objects
                .iter()
                .map(|(_, object)| &**object)
                .filter(|object| selector.matches(object));
            Ok(json(
                StatusCode::OK,
                &match table {
                    Some(table) => table.render(resource, chosen, Some(revision), true, store.now()),
                    None => objects::list(resource, revision, chosen),
                },
            ))
        }
        _ => {
            let object = store
                .get(&objects::key(&target))
                .ok_or_else(|| Failure::not_found(resource, &target.name))?;
            Ok(shown(StatusCode::OK, &object, &target, table, store))
        }
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of one request, used in one place"
)]
fn write(
    store: &Store,
    user: &UserInfo,
    target: &Target,
    verb: &str,
    query: &Query,
    table: Option<Table>,
    content_type: &str,
    body: &[u8],
) -> Result<Response<Body>, Failure> {
    let call = Call {
        store,
        user,
        target,
        query,
        content_type,
        body,
    };
    let Done {
        code,
        object,
        warnings,
    } = match verb {
        "create" if target.resource.does == Kind::Review => {
            return Ok(json(StatusCode::CREATED, &reviews::answer(call)?));
        }
        "create" => objects::create(call),
        "update" => objects::replace(call),
        "patch" => objects::patch(call),
        "delete" => objects::delete(call),
        "deletecollection" => objects::delete_collection(call),
        _ => Err(Failure::method_not_allowed()),
    }?;
    let mut response = shown(
        StatusCode::from_u16(code).unwrap_or_default(),
        &object,
        target,
        table,
        store,
    );
    for warning in warnings {
        if let Ok(value) = HeaderValue::from_str(&format!("299 - {}", Value::from(warning))) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(response)
}

/// An object, or its table if the client wants one; a `Status` is never a table.
fn shown(
    code: StatusCode,
    object: &Value,
    target: &Target,
    table: Option<Table>,
    store: &Store,
) -> Response<Body> {
    match table {
        Some(table) if *at(object, "/kind") == *target.resource.kind => {
            let revision = at(object, "/metadata/resourceVersion")
                .as_str()
                .and_then(|text| text.parse().ok());
            json(
                code,
                &table.render(
                    target.resource,
                    std::iter::once(object),
                    revision,
                    true,
                    store.now(),
                ),
            )
        }
        _ => json(code, object),
    }
}

fn json(code: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{value}\n"))).boxed_unsync());
    *response.status_mut() = code;
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
