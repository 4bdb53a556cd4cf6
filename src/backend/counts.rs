//! Numbers about the connections of an endpoint: open ones, their streams, attempts to connect, requests that wait.
//!
//! The request path only adds to these numbers, without a lock and without a lookup by label; the readiness task of the
//! endpoint exports them about each second. So the labels are those of the endpoints in force, and end with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The connections that requests of one kind share: a lane of [`super::lanes`], or HTTP/1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneKind {
    /// Short requests.
    Short,
    /// Watches.
    Watch,
    /// Requests for API groups that kube-apiserver does not serve itself.
    Extension,
    /// Responses that the API server relays from pods and nodes.
    Relayed,
    /// HTTP/1.1: one request at a time.
    Http1,
    /// Tunnels: `exec`, `attach`, `port-forward`.
    Tunnel,
}

impl LaneKind {
    /// Every kind.
    pub(crate) const ALL: [Self; 6] =
        [Self::Short, Self::Watch, Self::Extension, Self::Relayed, Self::Http1, Self::Tunnel];

    /// The value of the label `lane`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Watch => "watch",
            Self::Extension => "extension",
            Self::Relayed => "relayed",
            Self::Http1 => "http1",
            Self::Tunnel => "tunnel",
        }
    }

    /// Whether its connections have streams.
    pub(crate) fn has_streams(self) -> bool {
        !matches!(self, Self::Http1 | Self::Tunnel)
    }
}

/// The outcome of an attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DialResult {
    /// TCP and TLS are established.
    Connected,
    /// No TCP connection: the name has no usable address, or the address refuses or cannot be reached.
    Connect,
    /// TCP or TLS took too long.
    Timeout,
    /// The TLS handshake failed.
    Tls,
    /// The server closed the connection, or sent something else than HTTP, before its first use.
    Http,
    /// The gateway's own machine lacks descriptors, ports or memory.
    Local,
}

impl DialResult {
    /// Every result.
    pub(crate) const ALL: [Self; 6] =
        [Self::Connected, Self::Connect, Self::Timeout, Self::Tls, Self::Http, Self::Local];

    /// The value of the label `result`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Http => "http",
            Self::Local => "local",
        }
    }
}

/// The numbers of one endpoint. All worker threads share them.
#[derive(Debug, Default)]
pub(crate) struct EndpointCounts {
    lanes: [LaneCounts; LaneKind::ALL.len()],
    dials: [AtomicU64; DialResult::ALL.len()],
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct LaneCounts {
    connections: AtomicUsize,
    streams: AtomicUsize,
}

/// Something that is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    counts: Arc<EndpointCounts>,
    count: Count,
}

#[derive(Debug, Clone, Copy)]
enum Count {
    Connection(LaneKind),
    Waiting,
}

impl EndpointCounts {
    /// Counts a connection from now on.
    pub(crate) fn open_connection(self: &Arc<Self>, lane: LaneKind) -> Counted {
        self.begin(Count::Connection(lane))
    }

    /// Counts a request that waits for a connection.
    pub(crate) fn wait(self: &Arc<Self>) -> Counted {
        self.begin(Count::Waiting)
    }

    /// Counts a stream from now on, until [`Self::end_stream`]. Without a guard: each request does this.
    pub(crate) fn begin_stream(&self, lane: LaneKind) {
        self.lane(lane).streams.fetch_add(1, Ordering::Relaxed);
    }

    /// A stream has ended.
    pub(crate) fn end_stream(&self, lane: LaneKind) {
        self.lane(lane).streams.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an attempt to connect.
    pub(crate) fn note_dial(&self, result: DialResult) {
        let [connected, connect, timeout, tls, http, local] = &self.dials;
        let count = match result {
            DialResult::Connected => connected,
            DialResult::Connect => connect,
            DialResult::Timeout => timeout,
            DialResult::Tls => tls,
            DialResult::Http => http,
            DialResult::Local => local,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// The open connections and streams of each kind.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (LaneKind, usize, usize)> {
        LaneKind::ALL.into_iter().zip(&self.lanes).map(|(kind, lane)| {
            (kind, lane.connections.load(Ordering::Relaxed), lane.streams.load(Ordering::Relaxed))
        })
    }

    /// The attempts to connect since the start, by their result.
    pub(crate) fn dials(&self) -> impl Iterator<Item = (DialResult, u64)> {
        DialResult::ALL
            .into_iter()
            .zip(&self.dials)
            .map(|(result, count)| (result, count.load(Ordering::Relaxed)))
    }

    /// The requests that wait for a connection.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn begin(self: &Arc<Self>, count: Count) -> Counted {
        self.of(count).fetch_add(1, Ordering::Relaxed);
        Counted { counts: Arc::clone(self), count }
    }

    fn of(&self, count: Count) -> &AtomicUsize {
        match count {
            Count::Connection(lane) => &self.lane(lane).connections,
            Count::Waiting => &self.waiting,
        }
    }

    fn lane(&self, lane: LaneKind) -> &LaneCounts {
        let [short, watch, extension, relayed, http1, tunnel] = &self.lanes;
        match lane {
            LaneKind::Short => short,
            LaneKind::Watch => watch,
            LaneKind::Extension => extension,
            LaneKind::Relayed => relayed,
            LaneKind::Http1 => http1,
            LaneKind::Tunnel => tunnel,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.of(self.count).fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{DIAL_RESULTS, LANES};

    #[test]
    fn the_metrics_know_every_label() {
        assert_eq!(LaneKind::ALL.map(LaneKind::label), LANES);
        assert_eq!(DialResult::ALL.map(DialResult::label), DIAL_RESULTS);
    }

    #[test]
    fn every_kind_has_its_own_number() {
        let counts = Arc::new(EndpointCounts::default());
        for lane in LaneKind::ALL {
            let _connection = counts.open_connection(lane);
            counts.begin_stream(lane);
            let found: Vec<_> =
                counts.lanes().filter(|(_, connections, streams)| connections + streams > 0).collect();
            assert_eq!(found, [(lane, 1, 1)]);
            counts.end_stream(lane);
        }
        assert!(counts.lanes().all(|(_, connections, streams)| connections + streams == 0));
        for result in DialResult::ALL {
            counts.note_dial(result);
            let found = counts.dials().find(|(known, _)| *known == result).unwrap();
            assert_eq!(found, (result, 1));
        }
        let waiting = counts.wait();
        assert_eq!(counts.waiting(), 1);
        drop(waiting);
        assert_eq!(counts.waiting(), 0);
    }
}
