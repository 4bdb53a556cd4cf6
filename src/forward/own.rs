//! The gateway's own reads and writes, as `kube` makes them: over its own connections to whichever endpoint is
//! trusted, with the credential of the backend, under a user of its own.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::uri::{PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use tower::{BoxError, Service};

use super::ask::OURSELVES;
use super::body::Body;
use super::identity::write_identity;
use super::pool::Kind;
use super::pools::Pools;
use crate::clusters::upstream::Upstream;
use crate::user::{IdentityMode, UserInfo};

/// A client for the API server of one cluster. Must be called within a tokio runtime, which its connections live on.
pub(crate) fn client(upstream: &Arc<Upstream>) -> kube::Client {
    let pools = Pools::default();
    pools.keep(1, upstream.targets().iter());
    kube::Client::new(Own { upstream: Arc::clone(upstream), pools: Arc::new(pools) }, "default")
}

/// Sends requests as `system:portcullis`; where identities are impersonated, as what the gateway's credential is.
struct Own {
    upstream: Arc<Upstream>,
    pools: Arc<Pools>,
}

impl Service<Request<kube::client::Body>> for Own {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let (upstream, pools) = (Arc::clone(&self.upstream), Arc::clone(&self.pools));
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
            let is_watch =
                head.uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
            head.uri = Uri::builder()
                .scheme(Scheme::HTTPS)
                .authority(upstream.authority.clone())
                .path_and_query(format!("{}{path}", upstream.path_prefix()))
                .build()?;
            head.headers.insert(http::header::USER_AGENT, OURSELVES);
            if upstream.identity() == IdentityMode::RequestHeader {
                write_identity(&mut head.headers, &UserInfo::portcullis().into(), upstream.identity())?;
            }
            if let Some(authorization) = &upstream.authorization {
                head.headers.insert(AUTHORIZATION, authorization.clone());
            }
            let kind = if is_watch { Kind::Long } else { Kind::Short };
            let request = Box::new(Request::from_parts(head, Body::bytes(body)));
            Ok(pools.send(&upstream, request, kind).await?)
        })
    }
}
