//! Upgrades (exec, attach, port-forward): a tunnel opens only after a 101 from the backend for exactly the requested
//! protocol. Any other response is returned as a response, and the connection is not reused.
//!
//! The bytes pass as they are. Where a rule of the session policy ends the session, a frame with the reason follows those of the
//! server.
//!
//! A raw pipe after a failed upgrade would hand the client the gateway's own credential (CVE-2018-1002105).

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use portcullis_http::body::{Body, EndGuard};
use portcullis_http::hop_by_hop::strip_hop_by_hop;
use portcullis_http::transport::Incoming;
use portcullis_sessions::decoder::Side;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf, ReadHalf, WriteHalf, copy, split,
};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::Tunnel;
use crate::backend::pool::UpgradeConnection;
use crate::pipeline::forward_error::ForwardError;
use crate::pipeline::session::{ObservedSession, TunnelEnd};

/// How long one direction may still deliver bytes after the other one has ended.
const HALF_CLOSE_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The buffer of one direction of a session that a rule may end; that of `tokio::io::copy` is as large. The room that a recording
/// must have for one read follows from it.
const RULED_BUFFER: usize = 8 << 10;

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
    let Tunnel { guard, end, mut session } = tunnel;
    if let Some(session) = &mut session {
        session.sent();
    }
    let (mut response, permit) = connection.send(request).await?;
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
        // An error of what is between here and the kubelet does not say that the command has not run.
        if let Some(session) = session
            && !response.status().is_server_error()
        {
            session.refused();
        }
        strip_hop_by_hop(response.headers_mut());
        // The client may already have sent bytes of the other protocol, so its connection cannot be reused.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return Ok(response.map(|body| Body::from_backend(Incoming::Http1(body), guard)));
    }
    let backend = hyper::upgrade::on(&mut response);
    let session = session.map(|session| session.begin(response.headers()));
    tokio::spawn(async move {
        let _guard = guard;
        let note_end = |end| {
            if let Some(session) = &session {
                session.end(end);
            }
        };
        let tunnel = async {
            match tokio::try_join!(client, backend) {
                Ok((client, backend)) => note_end(copy_both_ways(client, backend, session.as_ref()).await),
                Err(error) => debug!(%error, "the tunnel did not open"),
            }
        };
        let tunnel = async {
            tokio::select! {
                _ = permitted.drive(tunnel) => {}
                // Both connections close.
                () = end => note_end(TunnelEnd::Gateway),
            }
        };
        match deadline {
            Some(deadline) => {
                if timeout_at(deadline, tunnel).await.is_err() {
                    note_end(TunnelEnd::Deadline);
                }
            }
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
/// Waiting for both sides would keep a tunnel whose far end is gone. Returns which one has ended first.
// apimachinery: pkg/util/proxy/upgradeaware.go, tryUpgrade
async fn copy_both_ways(client: Upgraded, backend: Upgraded, session: Option<&ObservedSession>) -> TunnelEnd {
    let (from_client, to_client) = split(TokioIo::new(client));
    let (from_backend, to_backend) = split(TokioIo::new(backend));
    let from_client = ObservedRead { from: from_client, side: Side::Client, session, room: None };
    let from_backend = ObservedRead { from: from_backend, side: Side::Server, session, room: None };
    let mut out = Box::pin(copy_one_way(from_client, to_backend));
    let ruled = session.filter(|session| session.has_rules());
    let mut back = Box::pin(async move {
        match ruled {
            Some(session) => copy_until_over(from_backend, to_client, session).await,
            None => copy_one_way(from_backend, to_client).await,
        }
    });
    let ruled_end = async {
        match ruled {
            Some(session) => session.ruled_end().await,
            None => pending().await,
        }
    };
    let (end, ended) = tokio::select! {
        end = ruled_end => {
            timeout(HALF_CLOSE_DRAIN_TIMEOUT, back).await.ok();
            (end, Ok(()))
        }
        ended = &mut out => {
            timeout(HALF_CLOSE_DRAIN_TIMEOUT, back).await.ok();
            (TunnelEnd::Client, ended)
        }
        ended = &mut back => {
            timeout(HALF_CLOSE_DRAIN_TIMEOUT, out).await.ok();
            (TunnelEnd::Server, ended)
        }
    };
    if let Err(error) = ended {
        debug!(%error, "tunnel ended");
    }
    end
}

/// Copies one direction to its end, then shuts down the writer.
async fn copy_one_way<T>(mut from: ObservedRead<'_, T>, mut to: WriteHalf<T>) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let copied = copy(&mut from, &mut to).await;
    let ended = to.shutdown().await;
    copied.map(|_| ()).and(ended)
}

/// Copies what the server sends to its end, or until a rule has ended the session. Then the client gets the reason, and before that a
/// warning, if all that was read is written and its protocol permits.
async fn copy_until_over<T>(
    mut from: ObservedRead<'_, T>,
    mut to: WriteHalf<T>,
    session: &ObservedSession,
) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let copied = async {
        let mut buffer = vec![0; RULED_BUFFER];
        // One that is due, and cannot follow what the server has sent last.
        let mut warning = None;
        loop {
            if let Some(frame) = warning.and_then(|warning| session.warn(warning)) {
                warning = None;
                to.write_all(&frame).await?;
                to.flush().await?;
            }
            let count = tokio::select! {
                biased;
                () = session.over() => {
                    if let Some(frames) = session.closing_frames() {
                        to.write_all(&frames).await?;
                    }
                    return Ok(());
                }
                due = session.warning(), if warning.is_none() => {
                    warning = Some(due);
                    continue;
                }
                read = from.read(&mut buffer) => read?,
            };
            if count == 0 {
                return Ok(());
            }
            to.write_all(buffer.get(..count).unwrap_or_default()).await?;
            to.flush().await?;
        }
    };
    let copied: io::Result<()> = copied.await;
    let ended = to.shutdown().await;
    copied.and(ended)
}

/// Reads one direction, and shows the bytes to the session before they are written to the other side: what answers them is
/// shown later. A session that must be recorded is not read faster than it is recorded; what cannot be recorded does not pass, as
/// the session is about to end.
struct ObservedRead<'a, T> {
    from: ReadHalf<T>,
    side: Side,
    session: Option<&'a ObservedSession>,
    /// Waits until what is read can be recorded.
    room: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for ObservedRead<'_, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(session) = self.session else { return Pin::new(&mut self.from).poll_read(context, buffer) };
        if self.room.is_none()
            && let Some(room) = session.room()
        {
            self.room = Some(Box::pin(room));
        }
        if let Some(room) = &mut self.room {
            ready!(room.as_mut().poll(context));
            self.room = None;
        }
        // The failure has woken the task, or will.
        if session.withholds() {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.from).poll_read(context, buffer);
        if read.is_ready() && !session.push(self.side, buffer.filled().get(before..).unwrap_or_default()) {
            buffer.set_filled(before);
            return Poll::Pending;
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use portcullis_sessions::policy::SessionDecision;
    use tokio::io::duplex;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_warning_follows_a_whole_message_of_the_server_and_the_reason_of_the_end_follows_it() {
        let decision =
            SessionDecision { max_duration: Some(Duration::from_hours(1)), ..SessionDecision::default() };
        let session = ObservedSession::under(decision);
        let (backend, mut server) = duplex(1 << 10);
        let (mut client, to_client) = duplex(1 << 10);
        let ((from, _keep), (_, to)) = (split(backend), split(to_client));
        let from = ObservedRead { from, side: Side::Server, session: Some(&session), room: None };
        let talk = async {
            server.write_all(&[0x82, 4, 1, b'a']).await.unwrap();
            let mut half = [0; 4];
            client.read_exact(&mut half).await.unwrap();
            // In the middle of a message.
            advance(Duration::from_secs(3481)).await;
            server.write_all(b"bc").await.unwrap();
            assert_eq!(session.ruled_end().await, TunnelEnd::MaxDuration);
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
            rest
        };
        let (copied, rest) = tokio::join!(copy_until_over(from, to, &session), talk);
        copied.unwrap();
        let warning = "\r\nwarning: the session ends in 1m59s: it will have taken as long as the session policy permits\r\n";
        let length = u8::try_from(warning.len() + 1).unwrap();
        let expected = [&b"bc"[..], &[0x82, length, 1], warning.as_bytes(), &[0x82]].concat();
        assert!(rest.starts_with(&expected), "{:?}", String::from_utf8_lossy(&rest));
        let told = String::from_utf8_lossy(&rest[expected.len()..]).into_owned();
        assert!(told.contains("the session has ended") && !told.contains("warning"), "{told:?}");
    }
}
