//! Requests that are always in progress, over HTTP/2 connections that are opened again when they end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_fn;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{Request, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Counts;
use crate::tenants::connection::{attackers_socket, tls_over};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);
const CHUNK: Bytes = Bytes::from_static(&[b'x'; 16_384]);
/// The window of a client that reads.
const WINDOW: u32 = 1 << 20;

/// What the clients read of response bodies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    Everything,
    /// The clients grant no window for them.
    Nothing,
}

pub(crate) struct Load {
    pub(crate) gateway: SocketAddr,
    pub(crate) connections: usize,
    /// Requests in progress on each connection.
    pub(crate) streams: usize,
    pub(crate) reading: Reading,
    /// Whether requests have a body, which does not end.
    pub(crate) uploads: bool,
    /// Between the end of a request and the next one.
    pub(crate) pause: Duration,
    /// The request of this number; each stream of each connection has one.
    pub(crate) request: Arc<dyn Fn(usize) -> Request<()> + Send + Sync>,
    pub(crate) counts: Counts,
}

impl Load {
    pub(crate) fn start(self) {
        let load = Arc::new(self);
        for connection in 0..load.connections {
            tokio::spawn(Arc::clone(&load).keep_connection(connection));
        }
    }

    async fn keep_connection(self: Arc<Self>, connection: usize) {
        loop {
            match timeout(CONNECT_TIMEOUT, connect(self.gateway, self.reading)).await {
                Ok(Ok(sender)) => self.keep_streams(connection, &sender).await,
                Ok(Err(_)) | Err(_) => self.counts.add("no connection"),
            }
            sleep(RETRY).await;
        }
    }

    /// Returns when the connection has ended.
    async fn keep_streams(self: &Arc<Self>, connection: usize, sender: &SendRequest<Bytes>) {
        let mut streams = JoinSet::new();
        for stream in 0..self.streams {
            let (load, sender) = (Arc::clone(self), sender.clone());
            let number = connection * self.streams + stream;
            streams.spawn(async move {
                while load.send(number, sender.clone()).await.is_ok() {
                    sleep(load.pause).await;
                }
            });
        }
        while streams.join_next().await.is_some() {}
        self.counts.add("connection ended");
    }

    /// Sends one request, until it has ended. Fails if the connection has.
    async fn send(&self, number: usize, sender: SendRequest<Bytes>) -> Result<(), h2::Error> {
        let mut sender = sender.ready().await?;
        let (response, body) = sender.send_request((self.request)(number), !self.uploads)?;
        let _feeding = self.uploads.then(|| AbortOnDropHandle::new(tokio::spawn(feed(body))));
        let read = match response.await {
            Ok(response) => {
                self.counts.add(response.status().as_str());
                // A refusal is not waited for: without a window it does not end.
                if response.status() != StatusCode::OK && self.reading == Reading::Nothing {
                    return Ok(());
                }
                read(response.into_body()).await
            }
            Err(error) => Err(error),
        };
        match read {
            Err(error) if error.is_reset() => {
                self.counts.add("reset");
                Ok(())
            }
            read => read,
        }
    }
}

/// Connects a client that reads this of response bodies.
pub(crate) async fn connect(gateway: SocketAddr, reading: Reading) -> Result<SendRequest<Bytes>, String> {
    let opened = async {
        let stream = attackers_socket()?.connect(gateway).await?;
        tls_over(stream, b"h2", None).await
    };
    let stream = opened.await.map_err(|error: std::io::Error| error.to_string())?;
    let window = if reading == Reading::Everything { WINDOW } else { 0 };
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).max_header_list_size(4 << 20).enable_push(false);
    let handshake = builder.handshake(stream).await;
    let (sender, connection) = handshake.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Reads a body to its end. Without a window that is when its stream is reset.
pub(crate) async fn read(mut body: RecvStream) -> Result<(), h2::Error> {
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    Ok(())
}

/// Sends a body that does not end.
async fn feed(mut body: SendStream<Bytes>) {
    loop {
        body.reserve_capacity(CHUNK.len());
        let Some(Ok(capacity)) = poll_fn(|context| body.poll_capacity(context)).await else { return };
        if body.send_data(CHUNK.slice(..capacity.min(CHUNK.len())), false).is_err() {
            return;
        }
    }
}
