//! The snapshot in force and the signals about it, as one handle.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};
use portcullis_http::loop_detection::GatewayId;
use portcullis_system::sync::lock;
use tokio::sync::{Notify, watch};

use super::Snapshot;
use crate::config::inputs::CredentialUser;
use crate::telemetry;

/// The snapshot in force, and the signals between its users and the reloader that replaces it.
#[derive(Debug)]
pub(crate) struct Live {
    snapshot: ArcSwap<Snapshot>,
    /// The generation in force.
    generation: watch::Sender<u64>,
    /// Grows with each change of the endpoints: of their lists, and of the snapshot.
    endpoints_version: AtomicU64,
    endpoints_changed: watch::Sender<()>,
    reload: Arc<Notify>,
    reloads: watch::Sender<ReloadProgress>,
    /// Whose credential an API server has refused since the reloader looked last, and the signal to look.
    refused: Mutex<BTreeSet<CredentialUser>>,
    credential_refused: Notify,
    /// Names this process in the requests that it sends to backends.
    pub(crate) gateway_id: GatewayId,
}

/// How many reloads there were since the start, of those that had something to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReloadProgress {
    /// How many have begun: one more than have ended while one is in progress.
    pub(crate) begun: u64,
    /// How many have ended.
    pub(crate) ended: u64,
    /// Whether the last one that has ended failed.
    pub(crate) failed: bool,
}

impl Live {
    /// A handle to `snapshot`. `reload` is the signal by which authenticators request a reload.
    pub(crate) fn new(snapshot: Snapshot, reload: Arc<Notify>) -> Arc<Self> {
        snapshot.apply_shared();
        telemetry::limit_lines_about(snapshot.tenants().map(str::to_owned).collect());
        let (generation, _) = watch::channel(snapshot.generation);
        let (endpoints_changed, _) = watch::channel(());
        let snapshot = ArcSwap::from_pointee(snapshot);
        Arc::new(Self {
            snapshot,
            generation,
            endpoints_version: AtomicU64::new(1),
            endpoints_changed,
            reload,
            reloads: watch::Sender::default(),
            refused: Mutex::default(),
            credential_refused: Notify::new(),
            gateway_id: GatewayId::default(),
        })
    }

    /// The snapshot in force, for use across await points.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The snapshot in force, for a short read.
    pub(crate) fn peek(&self) -> Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Puts `next` in force and notifies every subscriber.
    pub(super) fn swap(&self, next: &Arc<Snapshot>) {
        let generation = next.generation;
        let before = self.snapshot.swap(Arc::clone(next));
        next.apply_shared();
        telemetry::limit_lines_about(next.tenants().map(str::to_owned).collect());
        before.end_streams_of_removed(next);
        self.generation.send_replace(generation);
        self.note_endpoints_changed();
    }

    /// Notifies that a list of endpoints has changed.
    pub(crate) fn note_endpoints_changed(&self) {
        self.endpoints_version.fetch_add(1, Ordering::Release);
        self.endpoints_changed.send_replace(());
    }

    /// The version of the endpoints. To be read before the snapshot, so that the next version is not missed.
    pub(crate) fn endpoints_version(&self) -> u64 {
        self.endpoints_version.load(Ordering::Acquire)
    }

    /// Notifies of each change of the endpoints.
    pub(crate) fn subscribe_endpoints(&self) -> watch::Receiver<()> {
        self.endpoints_changed.subscribe()
    }

    /// Notifies of each swap. A subscriber that reads the snapshot after it has subscribed misses none.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Requests a reload, whether the files have changed or not.
    pub(crate) fn request_reload(&self) {
        self.reload.notify_one();
    }

    pub(super) async fn reload_requested(&self) {
        self.reload.notified().await;
    }

    /// Notes that a reload has begun, unless one is in progress.
    pub(super) fn note_reload_begun(&self) {
        self.reloads.send_modify(|progress| progress.begun = progress.ended + 1);
    }

    /// Notes that the reload in progress has ended.
    pub(super) fn note_reload_ended(&self, failed: bool) {
        self.reloads.send_modify(|progress| {
            *progress = ReloadProgress { ended: progress.begun, failed, ..*progress };
        });
    }

    /// Notifies of the begin and the end of each reload.
    pub(crate) fn subscribe_reloads(&self) -> watch::Receiver<ReloadProgress> {
        self.reloads.subscribe()
    }

    /// Reports that an API server has refused the gateway's credential, which may have been replaced.
    // threat: foreign-refusal
    pub(crate) fn report_refused_credential(&self, user: CredentialUser) {
        lock(&self.refused).insert(user);
        self.credential_refused.notify_one();
    }

    /// Waits until a credential was refused, and returns whose.
    pub(super) async fn credential_refused(&self) -> BTreeSet<CredentialUser> {
        self.credential_refused.notified().await;
        std::mem::take(&mut *lock(&self.refused))
    }
}
