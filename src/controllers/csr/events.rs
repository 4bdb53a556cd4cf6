//! Reads the events of a watch of certificate signing requests, one at a time.
//!
//! Any client that may create requests controls the size of an event. The reader discards events that exceed the
//! maximum size of a request while they arrive, and keeps only a few fields of others, so that the memory of a watch is
//! bounded.

use futures_util::{AsyncBufRead, AsyncBufReadExt as _};
use http::Request;
use kube::Client;
use kube::core::Status;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::MAX_REQUEST;
use super::feed::CsrSummary;

/// The maximum size of an event: a request and its envelope.
const MAX_EVENT: usize = MAX_REQUEST + 1024;

/// An event of a watch.
pub(super) enum CsrEvent {
    /// A request was created or changed.
    Changed(CsrSummary),
    /// A deletion or a bookmark; the summary has the version from which a later watch resumes.
    Passed(CsrSummary),
    /// The watch failed.
    Failed(Box<Status>),
    /// An event exceeded the maximum size.
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

/// An event without its object: the type of the object depends on `kind`, which may follow it.
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

/// An open watch.
pub(super) struct CsrWatch<R> {
    body: R,
    /// The current line, up to the maximum size.
    line: Vec<u8>,
    length: usize,
}

/// Opens a watch.
pub(super) async fn watch(
    client: &Client,
    request: Request<Vec<u8>>,
) -> kube::Result<CsrWatch<impl AsyncBufRead + Unpin + use<>>> {
    let body = Box::pin(client.request_stream(request).await?);
    Ok(CsrWatch { body, line: Vec::new(), length: 0 })
}

// threat: pending-requests-flood
impl<R: AsyncBufRead + Unpin> CsrWatch<R> {
    /// The next event; `None` once the watch has ended. Cancel safe.
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
            let consumed = part.len() + usize::from(end.is_some());
            self.body.consume_unpin(consumed);
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

/// Whether a connection closed during a watch, which is not a failure.
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
