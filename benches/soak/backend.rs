//! An API server whose watches tell one event each second, and number them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::time::{MissedTickBehavior, interval};

use crate::support::body::endless;
use crate::support::{Backend, BoxedBody, BoxedError, H2, Pki, full};

/// A watch with an event each second.
pub const WATCH: &str = "/api/v1/pods?watch=true";
/// A watch with more events than anybody can read.
pub const FLOOD: &str = "/api/v1/events?watch=true";
/// How often a watch tells something.
pub const PERIOD: Duration = Duration::from_secs(1);

pub async fn start(pki: &Pki) -> Backend {
    Backend::start(pki, H2, |request| {
        let body = match request.uri().path_and_query().map(http::uri::PathAndQuery::as_str) {
            Some(WATCH) => events(),
            Some(FLOOD) => endless().0,
            _ => full(vec![b'x'; 2048]),
        };
        Box::pin(async { Response::new(body) })
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
