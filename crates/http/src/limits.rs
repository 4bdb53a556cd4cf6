//! The largest headers, in one place: of a client's request, of a forwarded request, and of the backend's response.

use http::HeaderMap;

/// The largest request header of a client, Go's limit with its slack: over HTTP/1.1 in bytes as they arrive, over HTTP/2
/// by its count ([`header_list_size`]).
// Go: net/http DefaultMaxHeaderBytes, and `initialReadLimitSize`
pub const MAX_HEADER_BYTES: usize = (1 << 20) + 4096;

/// The most header lines, over every protocol. Go limits only the bytes, but `http::HeaderMap` has a maximum size.
pub const MAX_HEADER_LINES: usize = 4096;

/// The largest header list that is sent to the backend or accepted from it, by HTTP/2's count.
// Go: net/http DefaultMaxHeaderBytes, as kube-apiserver announces it in SETTINGS_MAX_HEADER_LIST_SIZE
pub const MAX_HEADER_LIST_SIZE: usize = 1 << 20;

/// The `SETTINGS_MAX_HEADER_LIST_SIZE` of connections to the backend on which only the API server itself, or one user, can cause
/// a response header that is larger. h2 ends the connection when a header exceeds it four times.
pub const MAX_BACKEND_HEADER_LIST_SIZE: u32 = 1 << 20;

/// The same for the API servers of a tenant's cluster, whose answers the tenant chooses: decoding a header list takes the time of
/// a thread that serves other clusters, about a millisecond for this one, and HTTP/2 keeps trailers until they are read.
pub const MAX_TENANT_HEADER_LIST_SIZE: u32 = 64 << 10;

/// The same where users share connections to an aggregated API server, whose headers kube-apiserver relays up to 10 MiB: in
/// lines of four bytes, each of which counts as 33, that is four times this.
// Go: net/http Transport.MaxResponseHeaderBytes
pub const MAX_RELAYED_HEADER_LIST_SIZE: u32 = 24 << 20;

/// The most informational (1xx) responses to one request. They are not forwarded, and the final response, which alone ends a
/// request without a deadline, may never come.
pub const MAX_INFORMATIONAL_RESPONSES: usize = 10;

/// The size of a field in a header list beyond its name and value.
// RFC 9113, section 6.5.2
pub const FIELD_OVERHEAD: usize = 32;

/// The size of the headers as HTTP/2 counts it against `SETTINGS_MAX_HEADER_LIST_SIZE`.
pub fn header_list_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD).sum()
}
