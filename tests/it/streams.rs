//! An API server with streams, and the streams of a client through the gateway: a watch on each version of HTTP, and a tunnel.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use testkit::body::{Frames, fed};
use testkit::{FakeBackend, H2, Http1, Pki, empty, full, get, in_time, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

/// A tunnel of an aggregated API server, whose path is not that of a long-running request.
pub(crate) const CONSOLE: &str =
    "/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachineinstances/v/console";
/// A service that never answers.
pub(crate) const UPLOAD: &str = "/api/v1/namespaces/n/services/s/proxy/upload";

/// Watches get frames of the test, upgrades an echo.
pub(crate) async fn backend(pki: &Pki) -> (FakeBackend, mpsc::UnboundedReceiver<Frames>) {
    let (opened, watches) = mpsc::unbounded_channel();
    let backend = FakeBackend::start(pki, H2, move |mut request: Request<Incoming>| {
        let path = request.uri().path();
        if path == UPLOAD {
            return Box::pin(std::future::pending());
        }
        if path == CONSOLE || path.ends_with("/exec") {
            let upgrading = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let Ok(upgraded) = upgrading.await else { return };
                let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
                tokio::io::copy(&mut read, &mut write).await.ok();
            });
            let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
            let response = response.header("connection", "Upgrade").header("upgrade", "websocket");
            return Box::pin(async { response.body(empty()).unwrap() });
        }
        if request.uri().query() != Some("watch=true") {
            return Box::pin(async { Response::new(full("ok")) });
        }
        let (frames, body, _) = fed();
        frames.send(Frame::data("begin\n".into())).unwrap();
        opened.send(frames).unwrap();
        Box::pin(async { Response::new(body) })
    })
    .await;
    (backend, watches)
}

/// A tunnel on this connection, which its connection outlives.
pub(crate) async fn tunnel(client: &mut Http1, path: &str, headers: &[(&str, &str)]) -> TokioIo<Upgraded> {
    let upgrade: Vec<_> =
        headers.iter().copied().chain([("connection", "Upgrade"), ("upgrade", "websocket")]).collect();
    let response = client.send(get(path, &upgrade)).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    TokioIo::new(in_time(hyper::upgrade::on(response)).await.unwrap())
}

/// The streams of one client.
pub(crate) struct Streams {
    /// Over HTTP/1.1 and over HTTP/2.
    pub(crate) watches: Vec<(Incoming, Frames)>,
    pub(crate) tunnel: TokioIo<Upgraded>,
}

impl Streams {
    /// Everything goes on.
    pub(crate) async fn go_on(&mut self) {
        for (body, frames) in &mut self.watches {
            frames.send(Frame::data("more\n".into())).unwrap();
            let mut seen = Vec::new();
            while !seen.ends_with(b"more\n") {
                let frame = in_time(body.frame()).await.expect("the watch goes on").unwrap();
                seen.extend_from_slice(&frame.into_data().unwrap());
            }
        }
        self.tunnel.write_all(b"x").await.unwrap();
        let mut read = [0; 1];
        assert_eq!(in_time(self.tunnel.read(&mut read)).await.unwrap(), 1);
    }

    /// Everything ends, and watches without an error. Returns what these have shown until then.
    pub(crate) async fn end(mut self) -> Vec<Bytes> {
        let mut shown = Vec::new();
        for (version, (body, frames)) in
            ["HTTP/1.1", "HTTP/2"].into_iter().zip(std::mem::take(&mut self.watches))
        {
            let whole = in_time(body.collect()).await;
            shown.push(whole.unwrap_or_else(|error| panic!("{version} was cut off: {error:?}")).to_bytes());
            until("the stream to the backend is closed", || frames.is_closed()).await;
        }
        self.tunnel_is_closed().await;
        shown
    }

    /// The connections to the API server are closed under them.
    pub(crate) async fn are_cut_off(mut self) {
        for (body, frames) in std::mem::take(&mut self.watches) {
            in_time(body.collect()).await.expect_err("the watch is cut off");
            until("the stream to the backend is closed", || frames.is_closed()).await;
        }
        self.tunnel_is_closed().await;
    }

    async fn tunnel_is_closed(&mut self) {
        let mut read = [0; 1];
        assert_eq!(in_time(self.tunnel.read(&mut read)).await.unwrap_or(0), 0, "the tunnel is closed");
    }
}
