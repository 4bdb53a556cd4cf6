//! The servers outside the cluster that authenticators, authorizers and admission call, on one port: OIDC issuers, a TokenReview
//! webhook, SubjectAccessReview webhooks, and admission webhooks.

mod admission;
mod authorization;
mod issuers;
mod webhook;

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

pub(crate) use admission::{AdmissionWebhooks, RACE_LABEL, Review};
pub(crate) use issuers::{MOVED, Rotation};
pub(crate) use webhook::script;

type Answer = Response<Full<Bytes>>;

/// The running servers, until dropped.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) mint: Arc<Mint>,
    pub(crate) rotation: Rotation,
    pub(crate) admission: Arc<AdmissionWebhooks>,
    _listener: Listener,
}

impl Outside {
    pub(crate) fn start(runtime: &tokio::runtime::Runtime, certificate: &Issued) -> Result<Self, String> {
        let bound = Bound::new(runtime)?;
        let mint = Arc::new(Mint::new(format!("https://127.0.0.1:{}", bound.port), credentials::made()));
        let rotation = Rotation::default();
        let admission = Arc::new(AdmissionWebhooks::default());
        let services = Arc::new(Services {
            admission: Arc::clone(&admission),
            mint: Arc::clone(&mint),
            rotation: rotation.clone(),
            webhook: webhook::Webhook::default(),
            authorization: authorization::AuthorizationWebhook::default(),
        });
        let listener = bound.serve(runtime, certificate, move |stream| {
            let services = Arc::clone(&services);
            async move {
                let service = hyper::service::service_fn(move |request| {
                    let services = Arc::clone(&services);
                    async move {
                        let closed = || std::io::Error::other("the connection is closed");
                        services.answer(request).await.ok_or_else(closed)
                    }
                });
                let server = hyper::server::conn::http1::Builder::new();
                server.serve_connection(TokioIo::new(stream), service).await.ok();
            }
        })?;
        Ok(Self { mint, rotation, admission, _listener: listener })
    }
}

struct Services {
    admission: Arc<AdmissionWebhooks>,
    mint: Arc<Mint>,
    rotation: Rotation,
    webhook: webhook::Webhook,
    authorization: authorization::AuthorizationWebhook,
}

impl Services {
    /// `None` closes the connection.
    async fn answer(&self, request: Request<Incoming>) -> Option<Answer> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let path = head.uri.path();
        if path.starts_with("/authorization/") {
            self.authorization.answer(&head, &body).await
        } else if path.starts_with("/admission/") {
            self.admission.answer(&head, &body).await
        } else if path.starts_with("/webhook/") {
            Some(self.webhook.answer(&head, &body))
        } else {
            Some(issuers::answer(&head, &self.mint, &self.rotation))
        }
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
