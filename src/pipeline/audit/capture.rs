//! Copies of bodies for audit events, taken while the bodies pass.

use std::sync::Weak;

use bytes::Bytes;
use portcullis_http::body::BodyObserver;
use portcullis_limits::budget::BudgetPermit;

use super::Record;

/// The largest object that an event holds.
// apiserver: pkg/server/config.go, MaxRequestBodyBytes
pub(super) const MAX_OBJECT_BYTES: usize = 3 << 20;
/// Why an event lacks an object when the process holds too many.
pub(super) const NO_MEMORY: &str = "the memory for audited objects is used up";
/// The bytes of a response by which an object is recognized.
const SNIFFED_BYTES: usize = 64;
/// Begins every object in protobuf.
// apimachinery: pkg/runtime/serializer/protobuf/protobuf.go
const PROTOBUF: &[u8] = b"k8s\0";

/// The two bodies of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Response,
}

/// A copy of a body.
#[derive(Debug)]
pub(super) struct Capture {
    bytes: Vec<u8>,
    memory: BudgetPermit,
    interest: Interest,
    state: CaptureState,
}

/// Which bodies are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interest {
    All,
    /// Those that are an object of Kubernetes.
    Object,
    /// Those that are a `Status`.
    Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CaptureState {
    Open,
    /// The body is of no interest.
    Dropped,
    /// The reason why the copy is incomplete.
    Lost(&'static str),
}

impl Capture {
    /// An empty copy.
    pub(super) fn new(memory: BudgetPermit, interest: Interest) -> Self {
        Self { bytes: Vec::new(), memory, interest, state: CaptureState::Open }
    }

    /// Takes a part of the body. Returns whether the body has turned out to be of no interest.
    fn push(&mut self, data: &[u8]) -> bool {
        let was_open = self.state == CaptureState::Open;
        self.copy(data);
        was_open && self.state == CaptureState::Dropped
    }

    fn copy(&mut self, data: &[u8]) {
        if self.state != CaptureState::Open || data.is_empty() {
            return;
        }
        if self.bytes.len().saturating_add(data.len()) > MAX_OBJECT_BYTES {
            return self.end(CaptureState::Lost("larger than 3145728 bytes"));
        }
        if !self.memory.grow(data.len()) {
            return self.end(CaptureState::Lost(NO_MEMORY));
        }
        self.bytes.extend_from_slice(data);
        if self.bytes.len() >= SNIFFED_BYTES && !self.interest.may_be(&self.bytes) {
            self.end(CaptureState::Dropped);
        }
    }

    fn end(&mut self, state: CaptureState) {
        self.bytes = Vec::new();
        self.memory.release();
        self.state = state;
    }

    /// The copy with its memory, or the reason why there is none; `None` for a body without bytes or interest.
    pub(super) fn finish(self) -> Option<Result<(Vec<u8>, BudgetPermit), &'static str>> {
        match self.state {
            CaptureState::Lost(reason) => Some(Err(reason)),
            CaptureState::Open if !self.bytes.is_empty() && self.interest.may_be(&self.bytes) => {
                Some(Ok((self.bytes, self.memory)))
            }
            CaptureState::Open | CaptureState::Dropped => None,
        }
    }
}

impl Interest {
    /// Whether the beginning of a body is of interest. kube-apiserver writes the kind of an object first.
    fn may_be(self, bytes: &[u8]) -> bool {
        if self != Self::Object && bytes.starts_with(b"apiVersion: v1\n") {
            // YAML has its keys in the order of the alphabet.
            return true;
        }
        let start = match self {
            Self::All => return true,
            Self::Object => b"{\"kind\":".as_slice(),
            Self::Status => b"{\"kind\":\"Status\",",
        };
        if bytes.starts_with(PROTOBUF) {
            // The type comes first: two fields, the version and the kind.
            let head = bytes.get(..SNIFFED_BYTES).unwrap_or(bytes);
            return self == Self::Object || head.windows(8).any(|part| part == b"\x12\x06Status");
        }
        let mut bytes = bytes.iter().filter(|byte| !byte.is_ascii_whitespace());
        start.iter().all(|expected| bytes.next() == Some(expected))
    }
}

/// Copies one body of a request into its record.
pub(super) struct Observer {
    record: Weak<Record>,
    direction: Direction,
}

impl Observer {
    /// An observer that does not keep the request open.
    pub(super) fn new(record: Weak<Record>, direction: Direction) -> Self {
        Self { record, direction }
    }
}

impl BodyObserver for Observer {
    fn observe(&mut self, data: &Bytes) {
        let Some(record) = self.record.upgrade() else { return };
        let is_dropped = record.parts().capture(self.direction).is_some_and(|capture| capture.push(data));
        if is_dropped {
            record.note_no_status();
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        if self.direction == Direction::Request
            && let Some(record) = self.record.upgrade()
        {
            record.parts().read_request();
        }
    }
}
