//! Where the events of a watch end, so that a body that the gateway ends early ends between two of them, as it would at
//! kube-apiserver.

mod gzip;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use gzip::GzipMembers;

/// Follows the events of a watch without reading them.
#[derive(Debug)]
pub struct EventTracker {
    framing: Framing,
    /// Kubernetes 1.37 compresses the watches that begin with a list.
    // apiserver: pkg/endpoints/handlers/responsewriters/compression.go
    members: Option<GzipMembers>,
    is_between: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Framing {
    /// JSON: an event is a line.
    Lines { is_in_line: bool },
    /// Protobuf: an event follows its length, of four bytes.
    // apimachinery: pkg/util/framer/framer.go, lengthDelimitedFrameWriter
    Lengths { prefix: [u8; 4], known: usize, left: usize },
}

impl EventTracker {
    /// `None` if the header names a stream whose events the gateway cannot tell apart: CBOR, or not compressed by gzip alone.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
        let members = match (encodings.next(), encodings.next()) {
            (None, _) => None,
            (Some(gzip), None) if gzip == "gzip" => Some(GzipMembers::default()),
            _ => return None,
        };
        let media_type = headers.get(CONTENT_TYPE)?.to_str().ok()?.split(';').next()?.trim();
        let framing = match media_type {
            "application/json" => Framing::Lines { is_in_line: false },
            "application/vnd.kubernetes.protobuf" => Framing::Lengths { prefix: [0; 4], known: 0, left: 0 },
            _ => return None,
        };
        Some(Self { framing, members, is_between: Arc::new(AtomicBool::new(true)) })
    }

    /// Whether the bytes so far end with an event.
    pub(super) fn is_between(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_between)
    }

    /// These bytes pass.
    pub(super) fn pass(&mut self, data: &[u8]) {
        let Self { framing, members, is_between } = self;
        let is_whole = if let Some(members) = members {
            members.pass(data, |text| framing.pass(text))
        } else {
            framing.pass(data);
            true
        };
        is_between.store(is_whole && framing.is_between(), Ordering::Relaxed);
    }
}

impl Framing {
    fn is_between(&self) -> bool {
        match self {
            Self::Lines { is_in_line } => !is_in_line,
            Self::Lengths { known, left, .. } => *known == 0 && *left == 0,
        }
    }

    fn pass(&mut self, data: &[u8]) {
        match self {
            Self::Lines { is_in_line } => {
                if let Some(last) = data.last() {
                    *is_in_line = *last != b'\n';
                }
            }
            Self::Lengths { prefix, known, left } => {
                let mut rest = data;
                while !rest.is_empty() {
                    let skipped = rest.len().min(*left);
                    *left -= skipped;
                    rest = rest.get(skipped..).unwrap_or_default();
                    let Some((byte, after)) = rest.split_first() else { break };
                    if let Some(place) = prefix.get_mut(*known) {
                        *place = *byte;
                    }
                    (*known, rest) = (*known + 1, after);
                    if *known == prefix.len() {
                        *left = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
                        *known = 0;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::headers;

    fn tracker(content_type: &str) -> Option<EventTracker> {
        EventTracker::of(&headers(&[("content-type", content_type)]))
    }

    #[test]
    fn events_end_with_a_line_or_after_their_length() {
        let mut protobuf = Vec::new();
        // The second event is empty.
        for event in ["abc", "", "a longer event\nof two lines"] {
            protobuf.extend(u32::try_from(event.len()).unwrap().to_be_bytes());
            protobuf.extend(event.as_bytes());
        }
        let json = b"{}\n{\"a\":1}\n".to_vec();
        for (content_type, stream, ends) in [
            ("application/json;stream=watch", json, vec![0, 3, 11]),
            ("application/vnd.kubernetes.protobuf; stream=watch", protobuf, vec![0, 7, 11, 42]),
        ] {
            for part in 1..=stream.len() {
                let mut tracker = tracker(content_type).unwrap();
                let (is_between, mut passed) = (tracker.is_between(), 0);
                for piece in stream.chunks(part) {
                    tracker.pass(piece);
                    passed += piece.len();
                    let ends_here = is_between.load(Ordering::Relaxed);
                    assert_eq!(ends_here, ends.contains(&passed), "{content_type} {part} {passed}");
                    tracker.pass(&[]);
                    assert_eq!(
                        is_between.load(Ordering::Relaxed),
                        ends_here,
                        "an empty frame changes nothing"
                    );
                }
            }
        }
    }

    #[test]
    fn other_streams_are_not_followed() {
        for content_type in ["application/cbor-seq", "text/plain", "application/jsonp", ""] {
            assert!(tracker(content_type).is_none(), "{content_type}");
        }
        for encoding in ["deflate", "br", "gzip, gzip", "GZIP", ""] {
            let compressed = headers(&[("content-type", "application/json"), ("content-encoding", encoding)]);
            assert!(EventTracker::of(&compressed).is_none(), "{encoding}");
        }
        assert!(EventTracker::of(&HeaderMap::new()).is_none());
    }
}
