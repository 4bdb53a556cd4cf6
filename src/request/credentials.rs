//! The credentials of a request, taken out of it before anyone checks them: the failure path cannot leak what is
//! no longer there, and what is forwarded cannot carry them.

use http::header::HeaderMap;

/// The credentials that came in headers.
#[derive(Default)]
pub struct Credentials {
    /// The first `Authorization` value, untrimmed, as far as it is text.
    pub authorization: Option<String>,
    /// Every header that may carry a front proxy's identity, in the order of the request, names in lower case.
    pub front_proxy: HeaderMap,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("authorization", &self.authorization.as_ref().map(|_| "redacted"))
            .field("front_proxy", &self.front_proxy.len())
            .finish()
    }
}
