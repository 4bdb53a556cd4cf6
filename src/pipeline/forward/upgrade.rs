//! Upgrades (exec, attach, port-forward): a tunnel opens only after the backend's exact 101 for the protocol that was
//! asked for. Any other answer is relayed as an answer, and the connection is used for nothing else.
//!
//! A raw pipe after a failed upgrade would hand the client the gateway's own credential (CVE-2018-1002105).

use std::io;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, copy, split};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, warn};

use super::ForwardError;
use crate::backend::pool::Upgrading;
use crate::http::body::{Body, EndGuard};
use crate::http::hop_by_hop::strip_hop_by_hop;
use crate::http::transport::Incoming;

/// How long what is still under way one way may take once the other way has ended.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// Sends an upgrade request and, on a 101, joins both sides, until `deadline` if there is one. `request` has no
/// hop-by-hop headers; `guard` is dropped when the tunnel ends.
// threat: raw-pipe
pub(super) async fn tunnel(
    connection: Upgrading,
    mut request: Request<Body>,
    protocol: HeaderValue,
    client: OnUpgrade,
    deadline: Option<Instant>,
    guard: EndGuard,
) -> Result<Response<Body>, ForwardError> {
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    request.headers_mut().insert(UPGRADE, protocol.clone());
    let (mut response, permit) = connection.send(request).await?;
    let guard: EndGuard = Box::new((guard, permit));
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let answered = response.headers().get(UPGRADE);
    if !switched || !answered.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(protocol.as_bytes()))
    {
        if switched {
            warn!(asked = ?protocol, got = ?answered, "the backend switched to another protocol, tunnel refused");
            return Err(ForwardError::UnaskedSwitch);
        }
        strip_hop_by_hop(response.headers_mut());
        // Whoever was told to switch and is not answered so has no more to say on this connection.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return Ok(response.map(|body| Body::from_backend(Incoming::Http1(body), guard)));
    }
    let backend = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        let _guard = guard;
        let tunnel = async {
            match tokio::try_join!(client, backend) {
                Ok((client, backend)) => join(client, backend).await,
                Err(error) => debug!(%error, "the tunnel did not open"),
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

/// Carries bytes both ways until either side ends; then what is under way to the other may still arrive, and both are
/// closed. Waiting for both to end would keep a tunnel whose far end has forgotten it.
// apimachinery: pkg/util/proxy/upgradeaware.go, tryUpgrade
async fn join(client: Upgraded, backend: Upgraded) {
    let (from_client, to_client) = split(TokioIo::new(client));
    let (from_backend, to_backend) = split(TokioIo::new(backend));
    let mut out = Box::pin(carry(from_client, to_backend));
    let mut back = Box::pin(carry(from_backend, to_client));
    let ended = tokio::select! {
        ended = &mut out => {
            timeout(LAST_BYTES, back).await.ok();
            ended
        }
        ended = &mut back => {
            timeout(LAST_BYTES, out).await.ok();
            ended
        }
    };
    if let Err(error) = ended {
        debug!(%error, "tunnel ended");
    }
}

/// Copies one way to its end, and passes the end on.
async fn carry<T>(mut from: ReadHalf<T>, mut to: WriteHalf<T>) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let copied = copy(&mut from, &mut to).await;
    let ended = to.shutdown().await;
    copied.map(|_| ()).and(ended)
}
