//! The size of responses to the gateway's own requests. An API server that answers without end must not exhaust the memory
//! of a process that also serves other clusters.

/// A response exceeded its maximum size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the response of the API server is larger than {0} bytes")]
pub(crate) struct ResponseTooLarge(usize);

/// What has arrived of a response, and its maximum.
#[derive(Debug)]
pub(crate) struct ResponseSize {
    is_watch: bool,
    max_bytes: usize,
    /// Of a watch, the bytes of the current event.
    received: usize,
}

impl ResponseSize {
    /// Nothing has arrived. `is_watch`: `max_bytes` is that of each event, not of the response.
    pub(crate) fn new(is_watch: bool, max_bytes: usize) -> Self {
        Self { is_watch, max_bytes, received: 0 }
    }

    /// Counts data that has arrived.
    // threat: endless-response
    pub(crate) fn add(&mut self, data: &[u8]) -> Result<(), ResponseTooLarge> {
        // In a watch, each line is one event.
        for (index, part) in data.split(|byte| self.is_watch && *byte == b'\n').enumerate() {
            let before = if index == 0 { self.received } else { 0 };
            self.received = before.saturating_add(part.len());
            if self.received > self.max_bytes {
                return Err(ResponseTooLarge(self.max_bytes));
            }
        }
        Ok(())
    }
}

/// Whether a response exceeded its maximum size.
pub(crate) fn is_too_large(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<ResponseTooLarge>() {
            return true;
        }
        cause = error.source();
    }
    false
}
