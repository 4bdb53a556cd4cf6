//! The events of a watch of certificate signing requests, one at a time.
//!
//! Whoever may create requests decides how large an event is. One that is larger than any request that is looked at is
//! passed over as it comes, and of the others a few fields are kept: so a watch takes little memory, whatever it says.

use futures_util::{AsyncBufRead, AsyncBufReadExt as _};
use http::Request;
use kube::Client;
use kube::core::Status;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::MAX_REQUEST;
use super::feed::CsrSummary;

/// The largest event that is read: a request with a frame around it.
const MAX_EVENT: usize = MAX_REQUEST + 1024;

/// What a watch tells.
pub(super) enum CsrEvent {
    /// A request was made or changed.
    Changed(CsrSummary),
    /// One is gone, or nothing has happened; the summary has the version from which a later watch goes on.
    Passed(CsrSummary),
    /// The watch is over.
    Failed(Box<Status>),
    /// Something was that is larger than any request that is looked at.
    TooLarge,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum WatchEventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// An event whose object is not looked at: what it is depends on the kind, which may come after it.
#[derive(Deserialize)]
struct EventHead {
    #[serde(rename = "type")]
    kind: WatchEventType,
    #[serde(rename = "object")]
    _object: IgnoredAny,
}

#[derive(Deserialize)]
struct EventObject<T> {
    object: T,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WatchErrorStatus {
    code: u16,
    reason: String,
    message: String,
}

/// A watch.
pub(super) struct CsrWatch<R> {
    body: R,
    /// The line that is read, unless it is too large.
    line: Vec<u8>,
    length: usize,
}

/// Begins to watch.
pub(super) async fn watch(
    client: &Client,
    request: Request<Vec<u8>>,
) -> kube::Result<CsrWatch<impl AsyncBufRead + Unpin + use<>>> {
    let body = Box::pin(client.request_stream(request).await?);
    Ok(CsrWatch { body, line: Vec::new(), length: 0 })
}

// threat: pending-requests-flood
impl<R: AsyncBufRead + Unpin> CsrWatch<R> {
    /// The next event; `None` once the watch has ended. It may be given up and called again.
    pub(super) async fn next(&mut self) -> kube::Result<Option<CsrEvent>> {
        loop {
            let part = match self.body.fill_buf().await {
                Ok(part) => part,
                Err(error) if is_end(&error) => return Ok(None),
                Err(error) => return Err(kube::Error::ReadEvents(error)),
            };
            if part.is_empty() {
                return Ok(None);
            }
            let end = part.iter().position(|byte| *byte == b'\n');
            let part = part.get(..end.unwrap_or(part.len())).unwrap_or_default();
            self.length += part.len();
            if self.length <= MAX_EVENT {
                self.line.extend_from_slice(part);
            }
            let taken = part.len() + usize::from(end.is_some());
            self.body.consume_unpin(taken);
            if end.is_some() {
                let (line, length) = (std::mem::take(&mut self.line), std::mem::take(&mut self.length));
                if length > MAX_EVENT {
                    return Ok(Some(CsrEvent::TooLarge));
                }
                return event(&line).map(Some).map_err(kube::Error::SerdeError);
            }
        }
    }
}

fn event(line: &[u8]) -> serde_json::Result<CsrEvent> {
    let EventHead { kind, .. } = serde_json::from_slice(line)?;
    Ok(match kind {
        WatchEventType::Added | WatchEventType::Modified => CsrEvent::Changed(object(line)?),
        WatchEventType::Deleted | WatchEventType::Bookmark => CsrEvent::Passed(object(line)?),
        WatchEventType::Error => {
            let WatchErrorStatus { code, reason, message } = object(line)?;
            CsrEvent::Failed(Status::failure(&message, &reason).with_code(code).boxed())
        }
    })
}

fn object<'de, T: Deserialize<'de>>(line: &'de [u8]) -> serde_json::Result<T> {
    serde_json::from_slice(line).map(|EventObject { object }| object)
}

/// Whether a connection ended in the midst of a watch, which is no failure.
// kube: client/mod.rs, request_events
fn is_end(error: &std::io::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if kind == Some(std::io::ErrorKind::UnexpectedEof)
            || error.to_string().contains("unexpected EOF during chunk")
        {
            return true;
        }
        cause = error.source();
    }
    false
}
