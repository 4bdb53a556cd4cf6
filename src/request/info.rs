//! RequestInfo.
