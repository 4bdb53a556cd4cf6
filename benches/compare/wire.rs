//! Minimal HTTP client codecs without a socket. They do as little work as possible, so that the processor time goes to
//! the proxies and not to the load generator.

mod http1;
mod http2;

pub(crate) use http1::Http1;
pub(crate) use http2::Http2;

/// Counts of received data.
#[derive(Clone, Copy, Default)]
pub(crate) struct Received {
    /// Response headers, all with status 200.
    pub(crate) headers: usize,
    /// Complete responses.
    pub(crate) responses: usize,
}

/// The client's side of a connection. The methods append output to `out`.
pub(crate) trait ClientCodec: Send {
    /// Writes the connection preface, if the HTTP version has one.
    fn write_preface(&mut self, out: &mut Vec<u8>);
    /// Writes another copy of the request.
    fn write_request(&mut self, out: &mut Vec<u8>);
    /// Parses received bytes, which may end anywhere.
    fn receive(&mut self, input: &[u8], out: &mut Vec<u8>) -> Received;
}

/// A request that is sent repeatedly, with the headers that client-go sends.
#[derive(Clone)]
pub(crate) struct RequestTemplate {
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl RequestTemplate {
    pub(crate) fn get(path: &str) -> Self {
        let headers = [
            ("accept", "application/json"),
            ("user-agent", "controller-manager/v1.36.0 (linux/amd64) kubernetes/0123456"),
        ];
        let headers = headers.map(|(name, value)| (name, value.to_owned()));
        Self { path: path.to_owned(), headers: headers.to_vec() }
    }

    pub(crate) fn with_token(mut self, token: &str) -> Self {
        self.headers.push(("authorization", format!("Bearer {token}")));
        self
    }

    pub(crate) fn impersonating(mut self, user: &str, groups: &[&str]) -> Self {
        self.headers.push(("impersonate-user", user.to_owned()));
        self.headers.extend(groups.iter().map(|group| ("impersonate-group", (*group).to_owned())));
        self
    }

    /// The codec of a new connection.
    pub(crate) fn codec(&self, http2: bool) -> Box<dyn ClientCodec> {
        if http2 { Box::new(Http2::new(self)) } else { Box::new(Http1::new(self)) }
    }
}
