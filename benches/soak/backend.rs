//! An API server whose watches tell one event each second, and number them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::{Method, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use testkit::body::{endless, whole};
use testkit::{Backend, BoxedBody, BoxedError, H2, Pki, full};
use tokio::time::{MissedTickBehavior, interval};

/// A watch with an event each second.
pub(crate) const WATCH: &str = "/api/v1/pods?watch=true";
/// A watch with more events than a client can read.
pub(crate) const FLOOD: &str = "/api/v1/events?watch=true";
/// A list that is larger than everything that may hold some of it on its way.
pub(crate) const LIST: &str = "/api/v1/pods";
pub(crate) const LIST_LENGTH: usize = 16 << 20;
/// How often a watch tells something.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

pub(crate) async fn start(pki: &Pki) -> Backend {
    let list = Bytes::from(vec![b'x'; LIST_LENGTH]);
    Backend::start(pki, H2, move |request| {
        let list = list.clone();
        Box::pin(async move {
            Response::new(match request.uri().path_and_query().map(http::uri::PathAndQuery::as_str) {
                // Answered when it is there as a whole, which it never is.
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

fn events() -> BoxedBody {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream = unfold((ticks, 0_u64), |(mut ticks, number)| async move {
        ticks.tick().await;
        let event = Frame::data(Bytes::from(format!("{number}\n")));
        Some((Ok::<_, BoxedError>(event), (ticks, number + 1)))
    });
    StreamBody::new(stream).boxed()
}
