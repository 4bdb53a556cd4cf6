//! The servers outside the cluster that authenticators call: OIDC issuers and a TokenReview webhook, on one port.

mod issuers;
mod webhook;

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use testkit::pki::Issued;

use crate::fixtures::credentials;
use crate::listener::{Bound, Listener};
use crate::mint::Mint;

pub(crate) use issuers::{MOVED, Rotation};
pub(crate) use webhook::script;

type Answer = Response<Full<Bytes>>;

/// The running servers, until dropped.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) mint: Arc<Mint>,
    pub(crate) rotation: Rotation,
    _listener: Listener,
}

impl Outside {
    pub(crate) fn start(runtime: &tokio::runtime::Runtime, certificate: &Issued) -> Result<Self, String> {
        let bound = Bound::new(runtime)?;
        let mint = Arc::new(Mint::new(format!("https://127.0.0.1:{}", bound.port), credentials::made()));
        let rotation = Rotation::default();
        let webhook = Arc::new(webhook::Webhook::default());
        let shared = (Arc::clone(&mint), rotation.clone(), webhook);
        let listener = bound.serve(runtime, certificate, move |stream| {
            let (mint, rotation, webhook) = shared.clone();
            async move {
                let service = hyper::service::service_fn(move |request| {
                    let (mint, rotation, webhook) =
                        (Arc::clone(&mint), rotation.clone(), Arc::clone(&webhook));
                    async move { Ok::<_, Infallible>(answer(request, &mint, &rotation, &webhook).await) }
                });
                let server = hyper::server::conn::http1::Builder::new();
                server.serve_connection(TokioIo::new(stream), service).await.ok();
            }
        })?;
        Ok(Self { mint, rotation, _listener: listener })
    }
}

async fn answer(
    request: Request<Incoming>,
    mint: &Mint,
    rotation: &Rotation,
    webhook: &webhook::Webhook,
) -> Answer {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    if head.uri.path().starts_with("/webhook/") {
        webhook.answer(&head, &body)
    } else {
        issuers::answer(&head, mint, rotation)
    }
}

fn json(value: &serde_json::Value) -> Answer {
    let mut answer = Response::new(Full::from(value.to_string()));
    answer.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    answer
}

fn status(code: u16, text: &str) -> Answer {
    let mut answer = Response::new(Full::from(text.to_owned()));
    *answer.status_mut() = StatusCode::from_u16(code).expect("a status");
    answer
}
