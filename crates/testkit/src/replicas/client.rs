//! A client with one connection, which behaves as client-go over Go's transport does: a request of which nothing was
//! written, or that the far end refused unprocessed, is sent again on another connection; so is a read whose connection
//! broke. It never repeats a write, nor a request with a response.
// client-go: rest/request.go, isErrRetryableFunc; Go: net/http/transport.go, shouldRetryRequest

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::balancer::{Balancer, Sender};
use super::record::{Kind, Operation, Outcome, Recorder};
use crate::messages::{BoxedBody, full};

/// A client; its clones share the connection.
#[derive(Clone)]
pub struct Client {
    balancer: Arc<Balancer>,
    http2: bool,
    live: Arc<Mutex<Option<(usize, Sender)>>>,
    recorder: Arc<Recorder>,
}

/// A request that can be sent again.
pub struct Call<'a> {
    /// The method.
    pub method: Method,
    /// The path with its query.
    pub path: &'a str,
    /// The content type, if there is a body.
    pub content: &'a str,
    /// The body.
    pub body: &'a str,
}

/// What became of one attempt.
enum Attempt {
    Response(Response<Incoming>),
    /// The far end has not processed it.
    Unprocessed,
    Broken(String),
}

impl<'a> Call<'a> {
    /// A read.
    pub fn get(path: &'a str) -> Self {
        Self { method: Method::GET, path, content: "", body: "" }
    }

    /// A write.
    pub fn write(method: Method, path: &'a str, content: &'a str, body: &'a str) -> Self {
        Self { method, path, content, body }
    }

    fn kind(&self) -> Kind {
        if self.method == Method::GET { Kind::Read } else { Kind::Write }
    }

    fn request(&self, http2: bool) -> Request<BoxedBody> {
        let target = if http2 { format!("https://localhost{}", self.path) } else { self.path.to_owned() };
        let mut request = Request::builder().method(self.method.clone()).uri(target);
        request = request.header("accept", "application/json");
        if !http2 {
            request = request.header("host", "localhost");
        }
        if !self.body.is_empty() {
            request = request.header("content-type", self.content);
        }
        request.body(full(self.body.to_owned())).unwrap()
    }
}

impl Client {
    /// A client without a connection.
    pub fn new(balancer: &Arc<Balancer>, http2: bool, recorder: &Arc<Recorder>) -> Self {
        let (balancer, recorder) = (Arc::clone(balancer), Arc::clone(recorder));
        Self { balancer, http2, live: Arc::default(), recorder }
    }

    /// Sends a short request to its end, and records it. Returns the body of a success.
    pub async fn call(&self, call: &Call<'_>) -> Option<Bytes> {
        let started = Instant::now();
        let mut broken = Vec::new();
        let (gateway, outcome, body) = loop {
            let (gateway, attempt) = self.attempt(call).await;
            let error = match attempt {
                Attempt::Unprocessed => continue,
                Attempt::Response(response) => {
                    let code = response.status();
                    match response.into_body().collect().await {
                        Ok(body) if code.is_success() => {
                            break (gateway, Outcome::Success, Some(body.to_bytes()));
                        }
                        Ok(body) => {
                            let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
                            break (gateway, Outcome::Status(code, text), None);
                        }
                        Err(error) => break (gateway, Outcome::CutOff(error.to_string()), None),
                    }
                }
                Attempt::Broken(error) => error,
            };
            if call.kind() == Kind::Write {
                break (gateway, Outcome::Broken(error), None);
            }
            broken.push(gateway);
        };
        self.recorder.add(Operation {
            kind: call.kind(),
            http2: self.http2,
            started,
            ended: Instant::now(),
            gateway,
            broken,
            outcome,
        });
        body
    }

    /// Opens a watch, and records it. Returns the gateway with the response, or the status of a failure. 410 is the
    /// answer of an API server that no longer has the events, and no failure.
    pub async fn open(&self, call: &Call<'_>) -> Result<(usize, Response<Incoming>), StatusCode> {
        let started = Instant::now();
        let mut broken = Vec::new();
        loop {
            let (gateway, outcome) = match self.attempt(call).await {
                (_, Attempt::Unprocessed) => continue,
                (gateway, Attempt::Response(response)) if response.status().is_success() => {
                    (gateway, Ok(response))
                }
                (gateway, Attempt::Response(response)) => {
                    let code = response.status();
                    let body = response.into_body().collect().await.map(http_body_util::Collected::to_bytes);
                    let text = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
                    (gateway, Err(Outcome::Status(code, text)))
                }
                (gateway, Attempt::Broken(_)) => {
                    broken.push(gateway);
                    continue;
                }
            };
            let (response, outcome) = match outcome {
                Ok(response) => (Ok((gateway, response)), Outcome::Success),
                Err(Outcome::Status(StatusCode::GONE, _)) => (Err(StatusCode::GONE), Outcome::Success),
                Err(outcome) => (Err(StatusCode::BAD_GATEWAY), outcome),
            };
            let (kind, http2, ended) = (Kind::Watch, self.http2, Instant::now());
            self.recorder.add(Operation { kind, http2, started, ended, gateway, broken, outcome });
            return response;
        }
    }

    /// Makes the next request use another connection.
    pub async fn disconnect(&self) {
        self.live.lock().await.take();
    }

    /// The connection, which is made if there is none.
    async fn connection(&self) -> (usize, Sender) {
        let mut live = self.live.lock().await;
        if let Some((gateway, sender)) = live.as_ref() {
            let is_closed = match sender {
                Sender::Http1(sender) => sender.lock().await.is_closed(),
                Sender::Http2(sender) => sender.is_closed(),
            };
            if !is_closed {
                return (*gateway, sender.clone());
            }
        }
        let connected = self.balancer.sender(self.http2).await;
        *live = Some(connected.clone());
        connected
    }

    /// Forgets a connection, so that the next request makes another one.
    async fn forget(&self, gateway: usize) {
        let mut live = self.live.lock().await;
        if live.as_ref().is_some_and(|(current, _)| *current == gateway) {
            *live = None;
        }
    }

    async fn attempt(&self, call: &Call<'_>) -> (usize, Attempt) {
        let (gateway, sender) = self.connection().await;
        let request = call.request(self.http2);
        let sent = match sender {
            Sender::Http1(sender) => {
                let mut sender = sender.lock().await;
                if sender.ready().await.is_err() {
                    self.forget(gateway).await;
                    return (gateway, Attempt::Unprocessed);
                }
                sender.try_send_request(request).await
            }
            Sender::Http2(mut sender) => {
                if sender.ready().await.is_err() {
                    self.forget(gateway).await;
                    return (gateway, Attempt::Unprocessed);
                }
                sender.try_send_request(request).await
            }
        };
        let mut error = match sent {
            Ok(response) => return (gateway, Attempt::Response(response)),
            Err(error) => error,
        };
        self.forget(gateway).await;
        if error.take_message().is_some() || is_unprocessed(error.error()) {
            return (gateway, Attempt::Unprocessed);
        }
        (gateway, Attempt::Broken(describe(error.error())))
    }
}

/// Whether the far end said that it has not processed the request.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<h2::Error>()) else {
        return false;
    };
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    let going_away = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    error.is_remote() && (refused || going_away)
}

fn describe(error: &hyper::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
