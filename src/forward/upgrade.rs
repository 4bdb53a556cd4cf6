//! Upgrades (exec, attach, port-forward): a tunnel opens only after the backend's exact 101 for the protocol that was
//! asked for. Any other answer is relayed as an answer, and the connection is used for nothing else.
//!
//! A raw pipe after a failed upgrade would hand the client the gateway's own credential (CVE-2018-1002105).

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tracing::{debug, warn};

use super::ForwardError;
use super::body::{Body, EndGuard};
use super::headers::strip_hop_by_hop;
use super::pool::Pool;

/// Sends an upgrade request and, on a 101, joins both sides. `request` has no hop-by-hop headers; `guard` is dropped
/// when the tunnel ends.
pub(super) async fn tunnel(
    pool: &Pool,
    mut request: Request<Body>,
    protocol: HeaderValue,
    client: OnUpgrade,
    guard: EndGuard,
) -> Result<Response<Body>, ForwardError> {
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    request.headers_mut().insert(UPGRADE, protocol.clone());
    let mut response = pool.upgrade(request).await?;
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let answered = response.headers().get(UPGRADE);
    if !switched || !answered.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(protocol.as_bytes()))
    {
        if switched {
            warn!(asked = ?protocol, got = ?answered, "the backend switched to another protocol, tunnel refused");
            return Err(ForwardError::UnaskedSwitch);
        }
        strip_hop_by_hop(response.headers_mut());
        return Ok(response.map(|body| Body::streaming(body).holding_stream(guard)));
    }
    let backend = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        let _guard = guard;
        if let Err(error) = join(client, backend).await {
            debug!(%error, "tunnel ended");
        }
    });
    let (mut head, _) = response.into_parts();
    strip_hop_by_hop(&mut head.headers);
    head.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    head.headers.insert(UPGRADE, protocol);
    Ok(Response::from_parts(head, Body::empty()))
}

async fn join(client: OnUpgrade, backend: OnUpgrade) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (client, backend): (Upgraded, Upgraded) = tokio::try_join!(client, backend)?;
    copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(backend)).await?;
    Ok(())
}
