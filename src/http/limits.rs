//! The largest headers, in one place: of a client's request, towards the backend, and of the backend's answer.

/// The largest request header of a client: Go's limit with its slack, in bytes as they arrive.
// Go: net/http DefaultMaxHeaderBytes, and `initialReadLimitSize`
pub(crate) const MAX_HEADER_BYTES: usize = (1 << 20) + 4096;

/// The most lines of a header over HTTP/1.1.
pub(crate) const MAX_HEADER_LINES: usize = 4096;

/// The largest header list that is sent to the backend or taken from it, by HTTP/2's count.
// Go: net/http DefaultMaxHeaderBytes, as kube-apiserver announces it in SETTINGS_MAX_HEADER_LIST_SIZE
pub(crate) const MAX_HEADER_LIST_SIZE: usize = 1 << 20;
