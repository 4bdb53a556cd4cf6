//! Bodies whose frames the test sends, endless bodies, and reading a body to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::stream::unfold;
use http::Version;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use tokio::sync::mpsc;

use crate::messages::{BoxedBody, BoxedError};

/// The sender of a body's frames.
pub type Frames = mpsc::UnboundedSender<Frame<Bytes>>;

/// Sets the flag when it is dropped, and the body with it.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A flag that is set when the other value is dropped.
pub fn gone() -> (Arc<AtomicBool>, impl Send + Sync + 'static) {
    let flag = Arc::new(AtomicBool::new(false));
    (Arc::clone(&flag), OnDrop(flag))
}

/// A body whose frames the test sends; the flag is set when its reader drops it.
pub fn fed() -> (Frames, BoxedBody, Arc<AtomicBool>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (gone, guard) = gone();
    let stream = unfold((receiver, guard), |(mut receiver, guard)| async move {
        let frame = receiver.recv().await?;
        Some((Ok::<_, BoxedError>(frame), (receiver, guard)))
    });
    (sender, StreamBody::new(stream).boxed(), gone)
}

/// An endless body; the flag is set when its reader drops it.
pub fn endless() -> (BoxedBody, Arc<AtomicBool>) {
    let (gone, guard) = gone();
    let stream = unfold(guard, |guard| async move {
        tokio::task::yield_now().await;
        Some((Ok::<_, BoxedError>(Frame::data(Bytes::from(vec![b'x'; 16_384]))), guard))
    });
    (StreamBody::new(stream).boxed(), gone)
}

/// Reads a request's body to its end; `Err` if it is incomplete. hyper reports some stream resets as the end of a body.
pub async fn whole(version: Version, mut body: Incoming) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|error| error.to_string())?.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    if version == Version::HTTP_2 && !body.is_end_stream() {
        return Err("reset".to_owned());
    }
    Ok(bytes)
}
