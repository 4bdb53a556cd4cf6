//! A step that is done before the end of a body is passed on: its last bytes are held back until then.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;

use super::BodyEnd;
use crate::transport::BodyError;

/// Begins the step, when the end of the body has come. Not called for a body that fails or is dropped before.
pub type LastStep = Box<dyn FnOnce() -> BodyEnd + Send + Sync>;

/// How far it is.
pub(super) enum HeldEnd {
    /// The end has not come. `left` is what is missing of a body whose length is known: its client need not wait for more than that.
    Passing {
        step: LastStep,
        left: Option<u64>,
    },
    /// The step is being done. `last` is the last frame.
    Held {
        done: BodyEnd,
        last: Option<Frame<Bytes>>,
    },
    Over,
}

type Polled = Option<Result<Frame<Bytes>, BodyError>>;

impl HeldEnd {
    pub(super) fn new(step: LastStep, length: Option<u64>) -> Self {
        Self::Passing { step, left: length }
    }

    /// The last frame, or the end, once the step is done; `None` if the end has not come.
    pub(super) fn poll_held(&mut self, cx: &mut Context<'_>) -> Option<Poll<Polled>> {
        let Self::Held { done, last } = self else { return None };
        if done.as_mut().poll(cx).is_pending() {
            return Some(Poll::Pending);
        }
        let last = last.take();
        *self = Self::Over;
        Some(Poll::Ready(last.map(Ok)))
    }

    /// Takes what was polled, and holds it if it is the end. `is_end_stream` says that nothing follows it.
    pub(super) fn pass(
        &mut self,
        polled: Poll<Polled>,
        is_end_stream: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Polled> {
        let Self::Passing { left, .. } = self else { return polled };
        let last = match ready!(polled) {
            Some(Err(error)) => {
                *self = Self::Over;
                return Poll::Ready(Some(Err(error)));
            }
            None => None,
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                let left = left.as_mut().map(|left| {
                    *left = left.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
                    *left
                });
                if !is_end_stream && left != Some(0) && frame.is_data() {
                    return Poll::Ready(Some(Ok(frame)));
                }
                Some(frame)
            }
        };
        if let Self::Passing { step, .. } = std::mem::replace(self, Self::Over) {
            *self = Self::Held { done: step(), last };
        }
        self.poll_held(cx).unwrap_or(Poll::Pending)
    }

    /// Whether the end is still to be passed on.
    pub(super) fn is_to_come(&self) -> bool {
        !matches!(self, Self::Over)
    }

    /// The bytes that are held.
    pub(super) fn held_bytes(&self) -> u64 {
        let Self::Held { last: Some(last), .. } = self else { return 0 };
        last.data_ref().map_or(0, |data| u64::try_from(data.len()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;

    use http_body::Body as _;
    use tokio::sync::oneshot;

    use super::super::{Body, BodyKind, BufferedBody};
    use super::*;

    /// A body, and what ends its last step.
    fn held(body: Body) -> (Body, oneshot::Sender<()>, oneshot::Receiver<()>) {
        let (done, waiting) = oneshot::channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        let step: LastStep = Box::new(move || {
            begun.send(()).unwrap();
            Box::pin(async move { drop(waiting.await) })
        });
        (body.with_last_step(step), done, has_begun)
    }

    async fn next(body: &mut Body) -> Option<Bytes> {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        Some(frame.unwrap().into_data().unwrap())
    }

    fn polls(body: &mut Body) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        Pin::new(body).poll_frame(&mut cx).is_ready()
    }

    #[tokio::test]
    async fn the_last_bytes_are_held_until_the_step_is_done() {
        let (mut body, done, mut begun) = held(Body::bytes("all"));
        assert!(!body.is_end_stream() && begun.try_recv().is_err());
        assert_eq!(body.size_hint().exact(), Some(3));
        assert!(!polls(&mut body) && begun.try_recv().is_ok());
        assert_eq!(body.size_hint().exact(), Some(3));
        assert!(!polls(&mut body));
        done.send(()).unwrap();
        assert_eq!(next(&mut body).await.unwrap(), "all");
        assert!(body.is_end_stream());
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test]
    async fn only_the_last_bytes_are_held() {
        let rest = Some(Body::bytes("second"));
        let kind =
            BodyKind::Read(Box::new(BufferedBody { data: Some("first".into()), rest, trailers: None }));
        let (mut body, done, mut begun) = held(Body::new(kind));
        assert_eq!(next(&mut body).await.unwrap(), "first");
        assert!(begun.try_recv().is_err());
        assert!(!polls(&mut body) && begun.try_recv().is_ok());
        drop(done);
        assert_eq!(next(&mut body).await.unwrap(), "second");
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test]
    async fn the_end_of_an_empty_body_is_held() {
        let (mut body, done, _begun) = held(Body::empty());
        assert!(!body.is_end_stream() && !polls(&mut body));
        drop(done);
        assert_eq!(next(&mut body).await, None);
    }

    #[test]
    fn a_body_whose_length_is_known_ends_with_its_last_byte() {
        let (_done, waiting) = oneshot::channel::<()>();
        let step: LastStep = Box::new(move || Box::pin(async move { drop(waiting.await) }));
        let mut held = HeldEnd::new(step, Some(4));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut pass = |text: &'static str| {
            held.pass(Poll::Ready(Some(Ok(Frame::data(text.into())))), false, &mut cx).is_ready()
        };
        assert!(pass("ab"));
        assert!(!pass("cd"), "hyper asks for no more of it");
    }

    #[test]
    fn a_body_that_fails_or_is_dropped_begins_no_step() {
        let mut held = HeldEnd::new(Box::new(|| panic!("it has no end")), None);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(held.pass(Poll::Ready(Some(Err(BodyError::Deadline))), false, &mut cx).is_ready());
        drop(Body::bytes("a").with_last_step(Box::new(|| panic!("it is dropped"))));
    }
}
