//! Follows the objects of a resource: a list, and then one watch after the other. The only loop of its kind: what is
//! particular to a resource is its [`FollowPolicy`], and what its description does with each [`FollowEvent`].
//!
//! Every request has a deadline. A watch begins at the version of the last event. After a failure there is a back-off,
//! which doubles until a watch works: an event arrives, or the watch ends regularly. A list ends it only if nothing but
//! lists had failed. Follows `k8s.io/client-go/tools/cache/reflector.go`.
//!
//! With [`FollowPolicy::proves`], a bookmark and the end of a watch prove that all changes before its *request* were
//! reported, however long they were on their way, and only such an end shows that watches work. A watch without a
//! bookmark is followed by a read of the current resourceVersion: one below the last known is that of a cluster restored
//! from a backup, which watches do not report.

mod pages;
mod policy;
mod watch;

use std::collections::BTreeMap;
use std::time::Duration;

use aws_lc_rs::rand;
use kube::core::Status;
use kube::{Client, ResourceExt};
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::backend::response_size::is_too_large;
pub(crate) use pages::PagedList;
pub(crate) use policy::{FollowPolicy, FollowedResource, TimeLimit};
use watch::OpenWatch;

/// The shortest interval between a watch and the next request: a server may end each watch at once.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// What happens to the objects that are followed.
#[derive(Debug)]
pub(crate) enum FollowEvent<T> {
    /// A list begins. Objects that it does not have are gone when it has ended.
    ListBegins,
    /// Objects of the list.
    Page(Vec<T>),
    /// The list has ended. It has all changes before `requested_at`.
    Listed {
        requested_at: Instant,
        has_skipped_names: bool,
    },
    /// An object was created or changed.
    Applied(T),
    Deleted(T),
    /// An event was too large, and skipped.
    Skipped,
    /// With [`FollowPolicy::proves`], all changes before `requested_at` were reported.
    Bookmark {
        requested_at: Instant,
    },
    /// A watch has ended regularly. With [`FollowPolicy::proves`], all changes before `requested_at` were reported.
    WatchEnded {
        requested_at: Instant,
    },
}

impl<T: ResourceExt> FollowEvent<T> {
    /// Applies the event to objects by their names. Returns whether they are complete, and may have changed.
    pub(crate) fn apply_to<V>(self, objects: &mut BTreeMap<String, V>, project: impl Fn(T) -> V) -> bool {
        match self {
            Self::ListBegins => objects.clear(),
            Self::Page(page) => {
                objects.extend(page.into_iter().map(|object| (object.name_any(), project(object))));
            }
            Self::Applied(object) => {
                objects.insert(object.name_any(), project(object));
                return true;
            }
            Self::Deleted(object) => {
                objects.remove(&object.name_any());
                return true;
            }
            Self::Listed { .. } => return true,
            Self::Skipped | Self::Bookmark { .. } | Self::WatchEnded { .. } => {}
        }
        false
    }
}

/// Why a list or a watch failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    #[error("the list failed: {0}")]
    List(#[source] kube::Error),
    #[error("a page of the list did not arrive within {0:?}")]
    ListTimeout(Duration),
    #[error("the list has no resourceVersion")]
    NoResourceVersion,
    #[error("the watch failed: {0}")]
    Watch(#[source] kube::Error),
    #[error("no response to the watch within {0:?}")]
    NoResponse(Duration),
    #[error("the watch failed: {0}")]
    Events(#[source] kube::Error),
    #[error("the watch ended with {}", .0.message)]
    Refused(Box<Status>),
    #[error("the resourceVersion of the watch is too old")]
    Expired,
    #[error("an event of the watch is larger than {0} bytes")]
    EventTooLarge(usize),
    #[error("the watch ended before its time")]
    EndedEarly,
    #[error("the watch of {asked:?} did not end, even {grace:?} later")]
    Overdue { asked: Duration, grace: Duration },
    #[error("the watch sent events without a pause, and no bookmark")]
    NotCaughtUp,
    #[error("the version could not be read: {0}")]
    Version(#[source] kube::Error),
    #[error("the API server is at resourceVersion {found:?}, before {known:?}, which it reported earlier")]
    VersionWentBack { known: String, found: String },
    /// A failure of the description: it cannot connect, or has no room for the objects.
    #[error("{0}")]
    Description(String),
}

impl FollowError {
    /// The error of the request.
    pub(crate) fn of_request(&self) -> Option<&kube::Error> {
        match self {
            Self::List(error) | Self::Watch(error) | Self::Events(error) | Self::Version(error) => {
                Some(error)
            }
            _ => None,
        }
    }

    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self.of_request(), Some(kube::Error::Api(status)) if status.code == 403)
    }

    /// Whether an event is missing, or another watch from the same version would fail again.
    fn needs_list(&self) -> bool {
        match self {
            Self::Events(error) => is_too_large(error) || matches!(error, kube::Error::SerdeError(_)),
            Self::Expired
            | Self::NoResourceVersion
            | Self::EventTooLarge(_)
            | Self::VersionWentBack { .. }
            | Self::Description(_) => true,
            _ => false,
        }
    }
}

/// Makes the client of a list and of the watches after it.
type Connect = Box<dyn Fn() -> Result<Client, FollowError> + Send + Sync>;

/// Follows a resource.
pub(crate) struct Follower {
    connect: Connect,
    resource: FollowedResource,
    policy: FollowPolicy,
    state: FollowState,
    /// The version at which the next watch begins.
    version: String,
    /// When the last list or watch was requested.
    requested_at: Instant,
    /// The end of the back-off.
    not_before: Instant,
    /// The attempts that have failed since a watch worked.
    failures: u32,
    has_watch_failed: bool,
}

enum FollowState {
    Unlisted,
    Listing(Client, Box<PagedList>),
    Listed(Client),
    Watching(Client, Box<OpenWatch>),
}

impl Follower {
    pub(crate) fn new(client: Client, resource: FollowedResource, policy: FollowPolicy) -> Self {
        Self::connecting(Box::new(move || Ok(client.clone())), resource, policy)
    }

    /// Makes a new client for each list.
    pub(crate) fn connecting(connect: Connect, resource: FollowedResource, policy: FollowPolicy) -> Self {
        let (state, version, now) = (FollowState::Unlisted, String::new(), Instant::now());
        let (requested_at, not_before, failures, has_watch_failed) = (now, now, 0, false);
        Self {
            connect,
            resource,
            policy,
            state,
            version,
            requested_at,
            not_before,
            failures,
            has_watch_failed,
        }
    }

    /// The next event. After an error, the back-off comes first. Cancel safe.
    // threat: silent-backend
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<FollowEvent<T>, FollowError> {
        if Instant::now() < self.not_before {
            sleep_until(self.not_before).await;
        }
        let next = self.step().await;
        match &next {
            Ok(event) if self.shows_recovery(event) => (self.failures, self.has_watch_failed) = (0, false),
            Ok(_) => {}
            Err(error) => self.fail(error),
        }
        next
    }

    /// Passes the next event to `take`. If that fails, everything is listed again after the back-off.
    pub(crate) async fn next_into<T: DeserializeOwned>(
        &mut self,
        take: impl FnOnce(FollowEvent<T>) -> Result<(), FollowError>,
    ) -> Result<(), FollowError> {
        take(self.next().await?).inspect_err(|error| self.fail(error))
    }

    /// Whether an attempt has failed, and no watch has worked since.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Whether the next event is a page of a list, or its end.
    pub(crate) fn is_listing(&self) -> bool {
        matches!(self.state, FollowState::Listing(..))
    }

    /// The version of the list, or of the last event; `None` before and while everything is listed.
    #[cfg(test)]
    pub(crate) fn listed_version(&self) -> Option<&str> {
        let is_listed = matches!(self.state, FollowState::Listed(_) | FollowState::Watching(..));
        is_listed.then_some(&*self.version)
    }

    pub(crate) fn list_again(&mut self) {
        self.state = FollowState::Unlisted;
    }

    /// Takes back that the last attempt has failed: the next one needs no back-off.
    pub(crate) fn forgive(&mut self) {
        self.failures = self.failures.saturating_sub(1);
        self.not_before = self.requested_at + MIN_INTERVAL;
    }

    async fn step<T: DeserializeOwned>(&mut self) -> Result<FollowEvent<T>, FollowError> {
        if let FollowState::Listed(client) = &self.state {
            let client = client.clone();
            self.requested_at = Instant::now();
            let watch = OpenWatch::open(&client, &self.resource, &self.version, &self.policy).await?;
            self.state = FollowState::Watching(client, Box::new(watch));
        }
        match self.state {
            FollowState::Listing(..) => self.next_page().await,
            FollowState::Watching(..) => self.next_change().await,
            FollowState::Unlisted | FollowState::Listed(_) => self.begin_list(),
        }
    }

    fn begin_list<T>(&mut self) -> Result<FollowEvent<T>, FollowError> {
        self.requested_at = Instant::now();
        let list = PagedList::new(self.resource.clone(), &self.policy);
        self.state = FollowState::Listing((self.connect)()?, Box::new(list));
        Ok(FollowEvent::ListBegins)
    }

    async fn next_page<T: DeserializeOwned>(&mut self) -> Result<FollowEvent<T>, FollowError> {
        let FollowState::Listing(client, list) = &mut self.state else { return self.begin_list() };
        let (limit, requested_at) = (self.policy.list, self.requested_at);
        let page = timeout_at(limit.deadline(requested_at, Instant::now()), list.next(client)).await;
        let page = page.map_err(|_| FollowError::ListTimeout(limit.duration()))?;
        if let Some(objects) = page.map_err(FollowError::List)? {
            return Ok(FollowEvent::Page(objects));
        }
        list.version().clone_into(&mut self.version);
        if self.version.is_empty() {
            return Err(FollowError::NoResourceVersion);
        }
        let has_skipped_names = list.has_skipped();
        self.state = FollowState::Listed(client.clone());
        Ok(FollowEvent::Listed { requested_at, has_skipped_names })
    }

    async fn next_change<T: DeserializeOwned>(&mut self) -> Result<FollowEvent<T>, FollowError> {
        let FollowState::Watching(client, watch) = &mut self.state else { return self.begin_list() };
        let client = client.clone();
        if let Some((event, version)) = watch.next(&self.policy).await? {
            version.map_or(Ok(()), |version| self.advance(version))?;
            return Ok(event);
        }
        if self.policy.proves && !watch.is_proven(&self.policy)? {
            self.check_version(&client).await?;
        }
        let requested_at = self.requested_at;
        self.not_before = requested_at + MIN_INTERVAL;
        self.state = if self.policy.resumes { FollowState::Listed(client) } else { FollowState::Unlisted };
        Ok(FollowEvent::WatchEnded { requested_at })
    }

    /// Advances to the version of an event.
    fn advance(&mut self, reached: String) -> Result<(), FollowError> {
        if reached.is_empty() {
            return Err(FollowError::NoResourceVersion);
        }
        if self.policy.proves {
            self.check_order(&reached)?;
        }
        self.version = reached;
        Ok(())
    }

    /// Reads the current version, which must not be below the known one. Without a selector, for which etcd would be
    /// searched until an object matches, and as metadata only.
    // threat: deleted-account
    async fn check_version(&mut self, client: &Client) -> Result<(), FollowError> {
        let path = self.resource.path.clone();
        let all = FollowedResource { path, is_metadata: true, ..FollowedResource::default() };
        let mut list = PagedList::new(all, &FollowPolicy { page_size: 1, ..self.policy });
        let page = timeout(self.policy.head_timeout, list.next::<IgnoredAny>(client)).await;
        let page = page.map_err(|_| FollowError::NoResponse(self.policy.head_timeout))?;
        page.map_err(FollowError::Version)?;
        self.check_order(list.version())
    }

    fn check_order(&self, found: &str) -> Result<(), FollowError> {
        if is_before(found, &self.version) {
            let (known, found) = (self.version.clone(), found.to_owned());
            return Err(FollowError::VersionWentBack { known, found });
        }
        Ok(())
    }

    fn shows_recovery<T>(&self, event: &FollowEvent<T>) -> bool {
        match event {
            FollowEvent::ListBegins | FollowEvent::Page(_) => false,
            FollowEvent::Listed { .. } => !self.has_watch_failed,
            FollowEvent::WatchEnded { .. } => true,
            _ => !self.policy.proves,
        }
    }

    fn fail(&mut self, error: &FollowError) {
        self.not_before = Instant::now() + jittered(self.policy.backoff(self.failures));
        self.failures = self.failures.saturating_add(1);
        let state = std::mem::replace(&mut self.state, FollowState::Unlisted);
        let (FollowState::Listed(client) | FollowState::Watching(client, _)) = state else { return };
        self.has_watch_failed = true;
        if self.policy.resumes && !error.needs_list() {
            self.state = FollowState::Listed(client);
        }
    }
}

/// Whether a version is before another one, or not comparable with it.
// apimachinery: pkg/util/resourceversion, CompareResourceVersion
fn is_before(version: &str, other: &str) -> bool {
    let [version, other] = [version, other].map(|version| version.parse::<u128>().ok());
    version.is_none() || other.is_none() || version < other
}

/// Adds up to a fifth, so that many gateways do not retry at once.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0; 1];
    // Without randomness only the jitter is lost.
    rand::fill(&mut byte).ok();
    pause + pause.mul_f64(f64::from(byte[0]) / 255.0 / 5.0)
}

#[cfg(test)]
mod tests;
