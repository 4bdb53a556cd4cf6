//! Requests that are finished although their client has gone away: those whose write is on its way and whose response the gateway
//! has to see. Otherwise a client could store what webhooks refuse, and go away before it is undone.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Whether the write of a request is on its way.
#[derive(Debug, Clone, Default)]
pub(super) struct WriteInProgress(Arc<WriteState>);

#[derive(Debug, Default)]
struct WriteState {
    is_on_its_way: AtomicBool,
    may_be_stored: AtomicBool,
}

/// While it exists, the write is on its way.
#[derive(Debug)]
pub(super) struct WriteGuard(Arc<WriteState>);

impl WriteInProgress {
    /// Whether a write is on its way: then nothing ends the request.
    pub(super) fn is_on_its_way(&self) -> bool {
        self.0.is_on_its_way.load(Ordering::Acquire)
    }

    /// The request is sent to the API server, and is no read.
    pub(super) fn note_sent(&self) {
        self.0.may_be_stored.store(true, Ordering::Release);
    }

    /// Whether the API server may have done it: no client must be told to send it again.
    pub(super) fn may_be_stored(&self) -> bool {
        self.0.may_be_stored.load(Ordering::Acquire)
    }

    pub(super) fn begin(&self) -> WriteGuard {
        self.0.is_on_its_way.store(true, Ordering::Release);
        WriteGuard(Arc::clone(&self.0))
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        self.0.is_on_its_way.store(false, Ordering::Release);
    }
}

/// The handling of a request. If it is dropped while a write is on its way, it goes on without its client.
pub(super) struct FinishedIfWriting<F: Future + Send + 'static> {
    handling: Option<Pin<Box<F>>>,
    write: WriteInProgress,
}

impl<F: Future + Send + 'static> FinishedIfWriting<F> {
    pub(super) fn new(handling: F, write: WriteInProgress) -> Self {
        Self { handling: Some(Box::pin(handling)), write }
    }
}

impl<F: Future + Send + 'static> Future for FinishedIfWriting<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(handling) = &mut self.handling else { return Poll::Pending };
        let polled = handling.as_mut().poll(context);
        if polled.is_ready() {
            self.handling = None;
        }
        polled
    }
}

// threat: unreviewed-write
impl<F: Future + Send + 'static> Drop for FinishedIfWriting<F> {
    fn drop(&mut self) {
        let is_writing = self.write.is_on_its_way();
        if let (Some(handling), true, Ok(runtime)) = (self.handling.take(), is_writing, Handle::try_current())
        {
            runtime.spawn(async move { drop(handling.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_request_is_finished_only_while_its_write_is_on_its_way() {
        for is_writing in [true, false] {
            let (write, (go, wait), (done, finished)) =
                (WriteInProgress::default(), oneshot::channel::<()>(), oneshot::channel());
            let own = write.clone();
            let handling = async move {
                let guard = is_writing.then(|| own.begin());
                wait.await.ok();
                drop(guard);
                done.send(()).ok();
            };
            let mut handling = Box::pin(FinishedIfWriting::new(handling, write));
            assert!(futures_util::future::poll_immediate(handling.as_mut()).await.is_none());
            drop(handling);
            go.send(()).ok();
            assert_eq!(finished.await.is_ok(), is_writing);
        }
    }
}
