//! What a client says and hears on a connection, apart from its socket: as little work as can be, so that the load comes
//! from the proxies and not from who loads them.

mod http1;
mod http2;

pub(crate) use http1::Http1;
pub(crate) use http2::Http2;

/// What came in.
#[derive(Clone, Copy, Default)]
pub(crate) struct Heard {
    /// Headers of answers, all of which said 200.
    pub(crate) heads: usize,
    /// Answers that were complete.
    pub(crate) answers: usize,
}

/// The client's side of a connection. Everything it wants to send is appended to `out`.
pub(crate) trait Wire: Send {
    /// What comes before the first request.
    fn greet(&mut self, out: &mut Vec<u8>);
    /// Makes the request once more.
    fn ask(&mut self, out: &mut Vec<u8>);
    /// Takes what came in, in whatever pieces.
    fn hear(&mut self, input: &[u8], out: &mut Vec<u8>) -> Heard;
}

/// A request that is made over and over, as client-go sends it.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Ask {
    pub(crate) fn of(path: &str) -> Self {
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

    /// A new connection on which it is made.
    pub(crate) fn wire(&self, http2: bool) -> Box<dyn Wire> {
        if http2 { Box::new(Http2::new(self)) } else { Box::new(Http1::new(self)) }
    }
}
