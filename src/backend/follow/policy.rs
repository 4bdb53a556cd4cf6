//! What is followed, and how.

use std::time::Duration;

use http::Request;
use http::header::{ACCEPT_ENCODING, HeaderValue};
use kube::api::{ListParams, WatchParams};
use tokio::time::Instant;

/// The objects of a collection, or a selection of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct FollowedResource {
    /// The path of the collection.
    pub(crate) path: String,
    pub(crate) label_selector: Option<String>,
    pub(crate) field_selector: Option<String>,
    /// Whether the API server sends only the metadata of the objects.
    pub(crate) is_metadata: bool,
}

impl FollowedResource {
    pub(super) fn list(&self, params: ListParams) -> kube::Result<Request<Vec<u8>>> {
        let Self { path, label_selector, field_selector, is_metadata } = self.clone();
        let params = ListParams { label_selector, field_selector, ..params };
        let request = kube::core::Request::new(path);
        let request = if is_metadata { request.list_metadata(&params) } else { request.list(&params) };
        request.map_err(kube::Error::BuildRequest)
    }

    pub(super) fn watch(&self, seconds: u32, version: &str) -> kube::Result<Request<Vec<u8>>> {
        let Self { path, label_selector, field_selector, is_metadata } = self.clone();
        let params =
            WatchParams { label_selector, field_selector, ..WatchParams::default() }.timeout(seconds);
        let request = kube::core::Request::new(path);
        let request = if is_metadata {
            request.watch_metadata(&params, version)
        } else {
            request.watch(&params, version)
        };
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        // kube: client/mod.rs, request_events — kube-apiserver may compress each event by itself
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Ok(request)
    }
}

/// How a resource is followed. A description of a resource states where it differs from [`Self::DEFAULT`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct FollowPolicy {
    /// The objects that are requested in a page, unless such pages are too large.
    pub(crate) page_size: u32,
    /// A page with more objects is refused: many small ones take more memory than their text. Servers may ignore limits.
    pub(crate) max_objects: usize,
    pub(crate) list: TimeLimit,
    /// How long a watch lasts: the value of `timeoutSeconds`.
    pub(crate) watch_seconds: u32,
    /// How long the head of the response to a watch may take.
    pub(crate) head_timeout: Duration,
    pub(crate) watch: TimeLimit,
    /// Whether a watch begins where the last one ended, and not with another list.
    pub(crate) resumes: bool,
    /// Whether the end of a watch proves that no event is missing; if it does not, the watch has failed.
    pub(crate) proves: bool,
    /// The maximum size of an event, and whether a larger one is skipped. If not, the watch fails.
    pub(crate) max_event: usize,
    pub(crate) skips_large_events: bool,
    /// The back-off after the first failure, and its limit.
    pub(crate) first_backoff: Duration,
    pub(crate) max_backoff: Duration,
}

impl FollowPolicy {
    /// For clients whose own time limits are shorter: see [`crate::backend::bounded_client`].
    pub(crate) const DEFAULT: Self = Self {
        page_size: 500,
        max_objects: 1 << 18,
        list: TimeLimit::Each(Duration::from_mins(1)),
        watch_seconds: 290,
        head_timeout: Duration::from_mins(1),
        watch: TimeLimit::Each(Duration::from_mins(6)),
        resumes: true,
        proves: false,
        max_event: 16 << 20,
        skips_large_events: false,
        first_backoff: Duration::from_millis(800),
        max_backoff: Duration::from_secs(30),
    };

    /// The back-off after as many failures before.
    pub(super) fn backoff(&self, failures: u32) -> Duration {
        self.max_backoff.min(self.first_backoff.saturating_mul(2_u32.saturating_pow(failures)))
    }

    pub(super) fn watch_time(&self) -> Duration {
        Duration::from_secs(self.watch_seconds.into())
    }
}

/// How long a list or a watch may take.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TimeLimit {
    /// Each page, or each event.
    Each(Duration),
    /// All pages, or all events.
    Whole(Duration),
}

impl TimeLimit {
    pub(super) fn duration(self) -> Duration {
        let (Self::Each(duration) | Self::Whole(duration)) = self;
        duration
    }

    /// When a page or an event must have arrived. The list or watch began at `began`, the one before came at `last`.
    pub(super) fn deadline(self, began: Instant, last: Instant) -> Instant {
        match self {
            Self::Each(duration) => last + duration,
            Self::Whole(duration) => began + duration,
        }
    }
}
