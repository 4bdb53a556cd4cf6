//! The listener for scrapers and probes, plain HTTP: `/metrics`, and the health checks without authentication.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::forward::body::Body;
use crate::health::{Asked, Health};
use crate::metrics::Metrics;

/// What there is to see.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Arc<Health>,
}

/// Serves until the runtime ends.
pub(super) async fn serve(listener: TcpListener, observed: Arc<Observed>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let observed = Arc::clone(&observed);
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let response = observed.answer(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(10));
            builder.serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

impl Observed {
    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let status = |status| {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = status;
            response
        };
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            return status(StatusCode::METHOD_NOT_ALLOWED);
        }
        let path = request.uri().path();
        if path == "/metrics" {
            let (text, content_type) = self.metrics.render();
            let mut response = Response::new(Body::bytes(text));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            return response;
        }
        let answer = match Asked::by(path) {
            Some(Asked::Root(endpoint)) => Some(self.health.root(endpoint, None, request.uri().query())),
            Some(Asked::Single(endpoint, name)) => self.health.single(endpoint, &name),
            None => None,
        };
        answer.unwrap_or_else(|| status(StatusCode::NOT_FOUND))
    }
}
