//! Where the events of a watch end, so that a body that the gateway ends early ends between two of them, as it would at
//! kube-apiserver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

/// Follows the events of a watch without reading them.
#[derive(Debug)]
pub struct EventTracker {
    framing: Framing,
    is_between: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Framing {
    /// JSON: an event is a line.
    Lines,
    /// Protobuf: an event follows its length, of four bytes.
    // apimachinery: pkg/util/framer/framer.go, lengthDelimitedFrameWriter
    Lengths { prefix: [u8; 4], known: usize, left: usize },
}

impl EventTracker {
    /// `None` if the header names a stream whose events the gateway cannot tell apart: compressed, or CBOR.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        if headers.contains_key(CONTENT_ENCODING) {
            return None;
        }
        let media_type = headers.get(CONTENT_TYPE)?.to_str().ok()?.split(';').next()?.trim();
        let framing = match media_type {
            "application/json" => Framing::Lines,
            "application/vnd.kubernetes.protobuf" => Framing::Lengths { prefix: [0; 4], known: 0, left: 0 },
            _ => return None,
        };
        Some(Self { framing, is_between: Arc::new(AtomicBool::new(true)) })
    }

    /// Whether the bytes so far end with an event.
    pub(super) fn is_between(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_between)
    }

    /// These bytes pass.
    pub(super) fn pass(&mut self, data: &[u8]) {
        let is_between = match &mut self.framing {
            Framing::Lines => match data.last() {
                Some(last) => *last == b'\n',
                None => return,
            },
            Framing::Lengths { prefix, known, left } => {
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
                *known == 0 && *left == 0
            }
        };
        self.is_between.store(is_between, Ordering::Relaxed);
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
        let compressed = headers(&[("content-type", "application/json"), ("content-encoding", "gzip")]);
        assert!(EventTracker::of(&compressed).is_none());
        assert!(EventTracker::of(&HeaderMap::new()).is_none());
    }
}
