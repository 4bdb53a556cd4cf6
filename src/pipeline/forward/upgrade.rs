//! Upgrades (exec, attach, port-forward): a tunnel opens only after a 101 from the backend for exactly the requested
//! protocol. Any other response is returned as a response, and the connection is not reused.
//!
//! A raw pipe after a failed upgrade would hand the client the gateway's own credential (CVE-2018-1002105).

use std::io;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use portcullis_http::body::{Body, EndGuard};
use portcullis_http::hop_by_hop::strip_hop_by_hop;
use portcullis_http::transport::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, copy, split};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::Tunnel;
use crate::backend::pool::UpgradeConnection;
use crate::pipeline::forward_error::ForwardError;

/// How long one direction may still deliver bytes after the other one has ended.
const HALF_CLOSE_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends an upgrade request and, after a 101, tunnels until either side ends or `deadline` expires. `request` has no
/// hop-by-hop headers; the tunnel's guard is dropped when it ends. A tunnel has no idle limit, and only an unauthenticated
/// client's has a deadline; TCP keep-alive finds a dead peer.
// threat: raw-pipe
pub(super) async fn tunnel(
    connection: UpgradeConnection,
    mut request: Request<Body>,
    protocol: HeaderValue,
    client: OnUpgrade,
    deadline: Option<Instant>,
    tunnel: Tunnel,
) -> Result<Response<Body>, ForwardError> {
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    request.headers_mut().insert(UPGRADE, protocol.clone());
    let (mut response, permit) = connection.send(request).await?;
    let Tunnel { guard, end } = tunnel;
    let permitted = permit.connection();
    let guard: EndGuard = Box::new((guard, permit));
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let received = response.headers().get(UPGRADE);
    if !switched || !received.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(protocol.as_bytes()))
    {
        if switched {
            debug!(requested = ?protocol, ?received, "the backend switched to another protocol, tunnel refused");
            return Err(ForwardError::UnaskedSwitch);
        }
        strip_hop_by_hop(response.headers_mut());
        // The client may already have sent bytes of the other protocol, so its connection cannot be reused.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return Ok(response.map(|body| Body::from_backend(Incoming::Http1(body), guard)));
    }
    let backend = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        let _guard = guard;
        let tunnel = async {
            match tokio::try_join!(client, backend) {
                Ok((client, backend)) => copy_both_ways(client, backend).await,
                Err(error) => debug!(%error, "the tunnel did not open"),
            }
        };
        let tunnel = async {
            tokio::select! {
                _ = permitted.drive(tunnel) => {}
                // Both connections close.
                () = end => {}
            }
        };
        match deadline {
            Some(deadline) => timeout_at(deadline, tunnel).await.unwrap_or_default(),
            None => tunnel.await,
        }
    });
    let (mut head, _) = response.into_parts();
    strip_hop_by_hop(&mut head.headers);
    head.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    head.headers.insert(UPGRADE, protocol);
    Ok(Response::from_parts(head, Body::empty()))
}

/// Copies bytes both ways until either side ends, then drains the other direction for a short time and closes both.
/// Waiting for both sides would keep a tunnel whose far end is gone.
// apimachinery: pkg/util/proxy/upgradeaware.go, tryUpgrade
async fn copy_both_ways(client: Upgraded, backend: Upgraded) {
    let (from_client, to_client) = split(TokioIo::new(client));
    let (from_backend, to_backend) = split(TokioIo::new(backend));
    let mut out = Box::pin(copy_one_way(from_client, to_backend));
    let mut back = Box::pin(copy_one_way(from_backend, to_client));
    let ended = tokio::select! {
        ended = &mut out => {
            timeout(HALF_CLOSE_DRAIN_TIMEOUT, back).await.ok();
            ended
        }
        ended = &mut back => {
            timeout(HALF_CLOSE_DRAIN_TIMEOUT, out).await.ok();
            ended
        }
    };
    if let Err(error) = ended {
        debug!(%error, "tunnel ended");
    }
}

/// Copies one direction to its end, then shuts down the writer.
async fn copy_one_way<T>(mut from: ReadHalf<T>, mut to: WriteHalf<T>) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let copied = copy(&mut from, &mut to).await;
    let ended = to.shutdown().await;
    copied.map(|_| ()).and(ended)
}
