//! A fake API server whose watches send one numbered event per second.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::{Method, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use testkit::body::{endless, whole};
use testkit::{BoxedBody, BoxedError, FakeBackend, H2, Pki, full};
use tokio::time::{MissedTickBehavior, interval};

/// A watch with one event per second.
pub(crate) const WATCH: &str = "/api/v1/pods?watch=true";
/// A watch with more events than a client can read.
pub(crate) const FLOOD: &str = "/api/v1/events?watch=true";
/// A list that is larger than all buffers between the backend and the client.
pub(crate) const LIST: &str = "/api/v1/pods";
pub(crate) const LIST_LENGTH: usize = 16 << 20;
/// The interval between the events of a watch.
pub(crate) const EVENT_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn start(pki: &Pki) -> FakeBackend {
    let list = Bytes::from(vec![b'x'; LIST_LENGTH]);
    FakeBackend::start(pki, H2, move |request| {
        let list = list.clone();
        Box::pin(async move {
            Response::new(match request.uri().path_and_query().map(http::uri::PathAndQuery::as_str) {
                // Responds at the end of the request body, which the clients never send.
                _ if request.method() == Method::POST => {
                    full(whole(request.version(), request.into_body()).await.unwrap_or_default())
                }
                Some(WATCH) => events(),
                Some(FLOOD) => endless().0,
                Some(LIST) => full(list),
                _ => full(vec![b'x'; 2048]),
            })
        })
    })
    .await
}

/// A watch with one numbered event per [`EVENT_INTERVAL`].
pub(crate) fn events() -> BoxedBody {
    let mut ticks = interval(EVENT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream = unfold((ticks, 0_u64), |(mut ticks, number)| async move {
        ticks.tick().await;
        let event = Frame::data(Bytes::from(format!("{number}\n")));
        Some((Ok::<_, BoxedError>(event), (ticks, number + 1)))
    });
    StreamBody::new(stream).boxed()
}
