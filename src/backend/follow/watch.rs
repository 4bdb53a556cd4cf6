//! An open watch, whose events are read one at a time.
//!
//! Whoever may write an object controls the size of its events. An event that exceeds the maximum size is discarded while
//! it arrives, and only the fields of `T` are kept of others, so that the memory of a watch is bounded.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{AsyncBufRead, AsyncBufReadExt as _};
use kube::Client;
use kube::core::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout, timeout_at};

use super::policy::{FollowPolicy, FollowedResource};
use super::{FollowError, FollowEvent};

/// How much earlier a watch may end and still count as complete: the API server's clock starts before ours.
const EARLY_END_TOLERANCE: Duration = Duration::from_secs(1);
/// How long a pause between events a watch without a bookmark needs, to show that no events were queued: the API server
/// may end a watch in the middle of a backlog.
const QUIET_INTERVAL: Duration = Duration::from_secs(3);

/// An event. The type of its object depends on `kind`, which may follow it.
#[derive(Deserialize)]
struct WatchEvent<'a> {
    #[serde(rename = "type")]
    kind: WatchEventType,
    #[serde(borrow)]
    object: &'a RawValue,
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

#[derive(Default, Deserialize)]
#[serde(default)]
struct VersionedObject {
    metadata: VersionedMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VersionedMetadata {
    resource_version: String,
}

/// An event, and the version of its object.
type VersionedEvent<T> = (FollowEvent<T>, Option<String>);

pub(super) struct OpenWatch {
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    /// The current line, up to the maximum size.
    line: Vec<u8>,
    requested_at: Instant,
    last_event: Instant,
    has_bookmark: bool,
    was_quiet: bool,
}

// threat: pending-requests-flood
impl OpenWatch {
    pub(super) async fn open(
        client: &Client,
        resource: &FollowedResource,
        version: &str,
        policy: &FollowPolicy,
    ) -> Result<Self, FollowError> {
        let requested_at = Instant::now();
        let request = resource.watch(policy.watch_seconds, version).map_err(FollowError::Watch)?;
        let response = timeout(policy.head_timeout, client.request_stream(request)).await;
        let body = match response.map_err(|_| FollowError::NoResponse(policy.head_timeout))? {
            Err(kube::Error::Api(status)) if status.code == 410 => return Err(FollowError::Expired),
            body => Box::pin(body.map_err(FollowError::Watch)?),
        };
        let (line, last_event) = (Vec::new(), Instant::now());
        Ok(Self { body, line, requested_at, last_event, has_bookmark: false, was_quiet: false })
    }

    /// The next event before its deadline, even if events are always ready; `None` once the watch has ended. Cancel safe.
    pub(super) async fn next<T: DeserializeOwned>(
        &mut self,
        policy: &FollowPolicy,
    ) -> Result<Option<VersionedEvent<T>>, FollowError> {
        let deadline = policy.watch.deadline(self.requested_at, self.last_event);
        let asked = policy.watch_time();
        let overdue = FollowError::Overdue { asked, grace: policy.watch.duration().saturating_sub(asked) };
        if Instant::now() >= deadline {
            return Err(overdue);
        }
        let Ok(line) = timeout_at(deadline, self.read_line(policy.max_event)).await else {
            return Err(overdue);
        };
        let Some(line) = line.map_err(FollowError::Events)? else { return Ok(None) };
        self.was_quiet |= self.is_quiet();
        self.last_event = Instant::now();
        if line.len() <= policy.max_event {
            return self.parse(&line).map(Some);
        }
        let skipped = policy.skips_large_events.then_some((FollowEvent::Skipped, None));
        skipped.map(Some).ok_or(FollowError::EventTooLarge(policy.max_event))
    }

    /// The next line. One that exceeds the maximum size is cut off one byte above it.
    async fn read_line(&mut self, max: usize) -> kube::Result<Option<Vec<u8>>> {
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
            let room = (max + 1).saturating_sub(self.line.len());
            self.line.extend_from_slice(part.get(..room.min(part.len())).unwrap_or_default());
            let consumed = part.len() + usize::from(end.is_some());
            self.body.consume_unpin(consumed);
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.line)));
            }
        }
    }

    fn parse<T: DeserializeOwned>(&mut self, line: &[u8]) -> Result<VersionedEvent<T>, FollowError> {
        let invalid = |error| FollowError::Events(kube::Error::SerdeError(error));
        let WatchEvent { kind, object } = serde_json::from_slice(line).map_err(invalid)?;
        let object = object.get();
        let event = match kind {
            WatchEventType::Added | WatchEventType::Modified => {
                FollowEvent::Applied(serde_json::from_str(object).map_err(invalid)?)
            }
            WatchEventType::Deleted => FollowEvent::Deleted(serde_json::from_str(object).map_err(invalid)?),
            WatchEventType::Bookmark => FollowEvent::Bookmark { requested_at: self.requested_at },
            WatchEventType::Error => {
                let status: Box<Status> = serde_json::from_str(object).map_err(invalid)?;
                return Err(if status.code == 410 {
                    FollowError::Expired
                } else {
                    FollowError::Refused(status)
                });
            }
        };
        self.has_bookmark |= matches!(event, FollowEvent::Bookmark { .. });
        let VersionedObject { metadata } = serde_json::from_str(object).map_err(invalid)?;
        Ok((event, Some(metadata.resource_version)))
    }

    /// Whether this watch, which has ended, proves by itself that no event is missing. Otherwise the current version must
    /// be read.
    pub(super) fn is_proven(&self, policy: &FollowPolicy) -> Result<bool, FollowError> {
        // An early end is not evidence: a proxy that ended the watch may have held events back.
        if self.requested_at.elapsed() + EARLY_END_TOLERANCE < policy.watch_time() {
            return Err(FollowError::EndedEarly);
        }
        if !self.has_bookmark && !self.was_quiet && !self.is_quiet() {
            return Err(FollowError::NotCaughtUp);
        }
        Ok(self.has_bookmark)
    }

    fn is_quiet(&self) -> bool {
        self.last_event.elapsed() >= QUIET_INTERVAL
    }
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
