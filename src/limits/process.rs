//! The limit on the requests of all clusters: a count, without queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::LimitExceeded;
use crate::metrics::{GaugeGuard, Metrics};

/// The requests of the process in flight.
#[derive(Debug)]
pub(super) struct ProcessLimit {
    /// 0: no limit.
    limit: AtomicUsize,
    in_service: AtomicUsize,
    metrics: Arc<Metrics>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct ProcessPlace {
    limit: Arc<ProcessLimit>,
    _counted: GaugeGuard,
}

impl ProcessLimit {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        let (limit, in_service) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { limit, in_service, metrics: Arc::clone(metrics) }
    }

    pub(super) fn apply(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// A place; `None` without a limit, and for an exempt request beyond it.
    pub(super) fn enter(self: &Arc<Self>, is_exempt: bool) -> Result<Option<ProcessPlace>, LimitExceeded> {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit == 0 {
            return Ok(None);
        }
        let next = |count: usize| (count < limit).then_some(count + 1);
        match self.in_service.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(_) => {
                let counted = GaugeGuard::new(&self.metrics.limits.process_in_service);
                Ok(Some(ProcessPlace { limit: Arc::clone(self), _counted: counted }))
            }
            Err(_) if is_exempt => Ok(None),
            Err(_) => Err(LimitExceeded::Process),
        }
    }
}

impl Drop for ProcessPlace {
    fn drop(&mut self) {
        self.limit.in_service.fetch_sub(1, Ordering::Relaxed);
    }
}
