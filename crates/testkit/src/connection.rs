//! Connections of clients to the gateway.

use std::net::SocketAddr;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2;

use crate::messages::{BoxedBody, get};
use crate::waiting::in_time;

/// A connection over HTTP/1.1.
pub struct Http1 {
    /// The request sender.
    pub sender: hyper::client::conn::http1::SendRequest<BoxedBody>,
    /// The task that drives the connection.
    pub task: tokio::task::JoinHandle<()>,
    pub(crate) address: SocketAddr,
}

/// A connection over HTTP/2.
pub struct Http2 {
    /// The request sender.
    pub sender: http2::SendRequest<BoxedBody>,
    /// The task that drives the connection.
    pub task: tokio::task::JoinHandle<()>,
    pub(crate) address: SocketAddr,
}

impl Http1 {
    /// The response to a request.
    pub async fn send(&mut self, request: Request<BoxedBody>) -> hyper::Result<Response<Incoming>> {
        let (mut head, body) = request.into_parts();
        head.headers.entry("host").or_insert_with(|| self.address.to_string().parse().unwrap());
        in_time(self.sender.ready()).await?;
        in_time(self.sender.send_request(Request::from_parts(head, body))).await
    }

    /// The response to a GET request.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        self.send(get(path, headers)).await.unwrap()
    }
}

impl Http2 {
    /// Another sender on the same connection.
    pub fn share(&self) -> Self {
        let task = tokio::spawn(std::future::ready(()));
        Self { sender: self.sender.clone(), task, address: self.address }
    }

    /// The response to a request.
    pub async fn send(&mut self, request: Request<BoxedBody>) -> hyper::Result<Response<Incoming>> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map(|target| target.as_str().to_owned()).unwrap_or_default();
        let host = head.headers.remove("host");
        let host = host.map_or_else(|| self.address.to_string(), |host| host.to_str().unwrap().to_owned());
        head.uri = format!("https://{host}{path}").parse().unwrap();
        in_time(self.sender.ready()).await?;
        in_time(self.sender.send_request(Request::from_parts(head, body))).await
    }

    /// The response to a GET request.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        self.send(get(path, headers)).await.unwrap()
    }
}
