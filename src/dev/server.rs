//! The embedded backend of `portcullis dev`: an in-memory API server with the endpoints that kubectl needs, to try the
//! gateway without a cluster. It is for trying only, and no reference for kube-apiserver's behavior.
//!
//! It trusts the gateway only: TLS requires a client certificate of the front-proxy CA, and the identity headers name
//! the user. A request without them gets a 401 and is never anonymous.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, Request, Response, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use portcullis_go::url::decode_path;
use portcullis_kubernetes::status::Status;
use portcullis_kubernetes::status::render::{Negotiation, render};
use portcullis_pki::x509::CaBundle;
use portcullis_system::clock::Clock;
use serde_json::json;

use super::https::{Body, BoxError, Handler, HttpsServer, json_response, response};
use super::pki::{self, DevPaths};
use super::request::{ObjectSelector, ResourceRequest};
use super::resources::{REVIEW_VERBS, SIGNING_REQUESTS, find};
use super::store::ObjectStore;
use super::{auth, discovery, objects, table, watch};
use crate::authn::ConnInfo;
use crate::request::info::{RequestInfo, RequestResource};

const MAX_BODY_SIZE: usize = 3 * 1024 * 1024;

/// The running backend. Dropping it closes the listener and every connection.
#[derive(Debug)]
pub(super) struct DemoServer {
    https: HttpsServer,
}

/// The state that all connections share.
#[derive(Debug)]
struct DemoState {
    store: Arc<ObjectStore>,
    front_proxies: Arc<CaBundle>,
}

impl DemoServer {
    /// Starts the backend on a free port of 127.0.0.1, with these namespaces beside the initial ones.
    pub(super) async fn start(
        paths: &DevPaths,
        clock: Clock,
        namespaces: &[&'static str],
    ) -> Result<Self, BoxError> {
        let front_proxies = Arc::new(pki::load_front_proxy_ca(paths)?);
        let store = Arc::new(ObjectStore::new(clock));
        objects::seed(&store, namespaces);
        let (pair, clients) = (pki::load_pair(paths, "backend")?, Arc::clone(&front_proxies));
        let https = HttpsServer::start(&pair, Some(&clients), DemoState { store, front_proxies }).await?;
        Ok(Self { https })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.https.address
    }
}

impl Handler for DemoState {
    async fn respond(&self, conn: &ConnInfo, request: Request<Incoming>) -> Response<Body> {
        respond(self, conn, request).await
    }
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
        "watch" => return Ok(response(200, "application/json", watch::start(request)?.boxed_unsync())),
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
