//! What clients have seen.

use std::sync::Mutex;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// GET or LIST.
    Read,
    /// POST, PATCH or DELETE.
    Write,
    /// The opening of a watch.
    Watch,
    /// The opening of a tunnel.
    Tunnel,
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 2xx with a whole body, or 101.
    Success,
    /// Another status, and the body.
    Status(StatusCode, String),
    /// The response ended in its middle.
    CutOff(String),
    /// The connection ended before a response.
    Broken(String),
}

/// One operation of a client.
#[derive(Clone, Debug)]
pub struct Operation {
    /// What it was.
    pub kind: Kind,
    /// Over HTTP/2.
    pub http2: bool,
    /// When the client began it.
    pub started: Instant,
    /// When the client had the whole response.
    pub ended: Instant,
    /// The gateway of the last attempt.
    pub gateway: usize,
    /// The gateways to which the connection broke before, so that the client sent it again.
    pub broken: Vec<usize>,
    /// The end.
    pub outcome: Outcome,
}

impl Operation {
    /// How long the client waited.
    pub fn wait(&self) -> Duration {
        self.ended - self.started
    }
}

/// A stream that ended although the client did not end it.
#[derive(Clone, Debug)]
pub struct StreamEnd {
    /// Watch or tunnel.
    pub kind: Kind,
    /// The gateway.
    pub gateway: usize,
    /// The API server, where it is known.
    pub server: Option<usize>,
    /// Whether it ended without an error.
    pub is_clean: bool,
    /// When.
    pub at: Instant,
}

/// Collects what all clients see.
#[derive(Default)]
pub struct Recorder {
    operations: Mutex<Vec<Operation>>,
    ends: Mutex<Vec<StreamEnd>>,
}

impl Recorder {
    /// Adds an operation that has ended.
    pub fn add(&self, operation: Operation) {
        self.operations.lock().unwrap().push(operation);
    }

    /// Adds the end of a stream.
    pub fn add_end(&self, end: StreamEnd) {
        self.ends.lock().unwrap().push(end);
    }

    /// Takes everything that has ended so far.
    pub fn take(&self) -> (Vec<Operation>, Vec<StreamEnd>) {
        (
            std::mem::take(&mut *self.operations.lock().unwrap()),
            std::mem::take(&mut *self.ends.lock().unwrap()),
        )
    }
}
