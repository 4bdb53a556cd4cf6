//! The stages of a request as types: `Received → Routed → Identified → Authorized → Admitted`. Each has private
//! fields and one constructor, which takes the stage before it by value; only [`Admitted`] can be forwarded. So a
//! request that skipped a stage does not compile.

use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{Request, Uri};
use tokio::time::Instant;

use crate::authn::ProvenIdentity;
use crate::backend::upstream::Upstream;
use crate::cluster::Cluster;
use crate::http::transport::Incoming;
use crate::request::credentials::{Credentials, ImpersonateHeaders};
use crate::request::info::RequestInfo;
use crate::request::wellformed::{self, MalformedRequest};
use crate::user::Identity;

/// A request that can be read in one way only.
pub(crate) struct Received {
    request: Box<Request<Incoming>>,
    cut: Option<Box<str>>,
}

/// A request whose cluster and meaning are known, without its credentials.
pub(crate) struct Routed(Box<Known>);

/// What is known of a request before its sender is. Boxed, as the request itself: each stage passes them on.
struct Known {
    request: Box<Request<Incoming>>,
    /// What was cut off its path.
    cut: Option<Box<str>>,
    credentials: Credentials,
    impersonate: ImpersonateHeaders,
    cluster: Arc<Cluster>,
    info: RequestInfo,
    deadline: Option<Instant>,
}

/// A request whose sender is known.
pub(crate) struct Identified {
    routed: Routed,
    user: Identity,
    by_front_proxy: bool,
}

/// A request that may be made as who it is made as.
pub(crate) struct Authorized {
    identified: Identified,
    impersonate: Option<ImpersonateHeaders>,
}

/// A request that may be forwarded.
pub(crate) struct Admitted(Authorized);

/// What forwarding needs of a request.
pub(crate) struct Outbound {
    /// Where it goes: the API server of the cluster by whose rules it was judged.
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) request: Box<Request<Incoming>>,
    /// What was cut off its path, and belongs in front of any path that the client is told.
    pub(crate) cut: Option<Box<str>>,
    pub(crate) info: RequestInfo,
    pub(crate) deadline: Option<Instant>,
    pub(crate) user: Identity,
    /// Whether the sender is a front proxy, whose `X-Forwarded-For` is believed.
    pub(crate) by_front_proxy: bool,
    /// `Impersonate-*` headers that the backend authorises.
    pub(crate) impersonate: Option<ImpersonateHeaders>,
}

impl Received {
    /// Checks the shape of a request.
    pub(crate) fn accept(request: Box<Request<Incoming>>) -> Result<Self, MalformedRequest> {
        wellformed::check(&request)?;
        Ok(Self { request, cut: None })
    }

    /// The request.
    pub(crate) fn request(&self) -> &Request<Incoming> {
        &self.request
    }

    /// Cuts off the path by which a cluster was found. What remains is not rewritten.
    pub(crate) fn cut_path(&mut self, prefix: usize) {
        let uri = self.request.uri_mut();
        let target = uri.path_and_query().map(PathAndQuery::as_str);
        let Some((cut, rest)) = target.and_then(|target| target.split_at_checked(prefix)) else {
            return;
        };
        self.cut = Some(cut.into());
        let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
        let mut parts = std::mem::take(uri).into_parts();
        // A part of a target is one too.
        parts.path_and_query = rest.parse().ok();
        *uri = Uri::from_parts(parts).unwrap_or_default();
    }
}

impl Routed {
    /// A request, whose it is, what it means, and when it must be answered. Its credentials are taken out of it.
    pub(crate) fn new(
        received: Received,
        cluster: Arc<Cluster>,
        info: RequestInfo,
        deadline: Option<Instant>,
    ) -> Self {
        let Received { mut request, cut } = received;
        let (credentials, impersonate) =
            Credentials::take_from(request.headers_mut(), |name| cluster.is_front_proxy_header(name));
        Self(Box::new(Known { request, cut, credentials, impersonate, cluster, info, deadline }))
    }

    /// The cluster that judges it.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    /// What the request means.
    pub(crate) fn info(&self) -> &RequestInfo {
        &self.0.info
    }

    /// When it must be answered.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// Sets when it must be answered, unless that was known.
    pub(crate) fn end_by(&mut self, deadline: Instant) {
        self.0.deadline.get_or_insert(deadline);
    }

    /// What the sender is to be judged by.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.0.credentials
    }
}

impl Identified {
    /// A request and who sent it; only a chain of authenticators makes a [`ProvenIdentity`].
    pub(crate) fn new(routed: Routed, proven: ProvenIdentity) -> Self {
        let authenticated = proven.into_inner();
        let by_front_proxy = authenticated.method == crate::authn::request_header::METHOD;
        Self { routed, user: authenticated.user, by_front_proxy }
    }

    /// Whom the sender asks to act as.
    pub(crate) fn impersonate(&self) -> &ImpersonateHeaders {
        &self.routed.0.impersonate
    }
}

impl Authorized {
    /// A request that asks to act as nobody else.
    pub(crate) fn as_oneself(mut identified: Identified) -> Self {
        // Nothing is passed on by accident.
        identified.routed.0.impersonate = ImpersonateHeaders::default();
        Self { identified, impersonate: None }
    }

    /// A request whose `Impersonate-*` headers the backend authorises.
    pub(crate) fn by_backend(mut identified: Identified) -> Self {
        let impersonate = std::mem::take(&mut identified.routed.0.impersonate);
        Self { identified, impersonate: Some(impersonate) }
    }
}

impl Authorized {
    /// What the request means.
    pub(crate) fn info(&self) -> &RequestInfo {
        &self.identified.routed.0.info
    }

    /// The cluster that judged it.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.identified.routed.0.cluster
    }

    /// The query, as it came.
    pub(crate) fn query(&self) -> Option<&str> {
        self.identified.routed.0.request.uri().query()
    }

    /// Whether the backend is to decide as whom it is made.
    pub(crate) fn is_impersonating(&self) -> bool {
        self.impersonate.is_some()
    }
}

impl Admitted {
    /// A request that no webhook matches.
    pub(crate) fn without_webhooks(authorized: Authorized) -> Self {
        Self(authorized)
    }

    /// What the request means.
    pub(crate) fn info(&self) -> &RequestInfo {
        self.0.info()
    }

    /// The cluster it is for.
    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.0.identified.routed.0.cluster
    }

    /// When it must be answered.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.identified.routed.0.deadline
    }

    /// Whether its answer is a stream of events.
    pub(crate) fn is_watch(&self) -> bool {
        self.0.info().verb() == "watch"
    }

    /// Takes the request apart, to be sent.
    pub(crate) fn into_outbound(self) -> Outbound {
        let Authorized { identified, impersonate } = self.0;
        let Identified { routed, user, by_front_proxy } = identified;
        let Known { request, cut, cluster, info, deadline, .. } = *routed.0;
        let upstream = Arc::clone(&cluster.upstream);
        Outbound { upstream, request, cut, info, deadline, user, by_front_proxy, impersonate }
    }
}
