//! Why the gateway could not connect to an endpoint, and whether the endpoint has a part in it.
//!
//! [`is_of_this_machine`] is the one place that decides which errors are those of the gateway's own machine. They cost no
//! endpoint its trust, and keep no request away from it.

use std::error::Error;
use std::io;

use portcullis_http::transport::TransportError;
use rustix::io::Errno;

/// What this machine lacks: descriptors, of the process and of the system; buffers; local ports; memory.
const SHORTAGES: [Errno; 5] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::ADDRNOTAVAIL, Errno::NOMEM];

/// Why the gateway could not connect to an endpoint. Nothing of the request was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The TCP connection failed.
    #[error("cannot connect to {address}: {cause}")]
    Tcp {
        /// The endpoint's address.
        address: String,
        /// The error of the operating system.
        cause: String,
    },
    /// The TLS handshake failed.
    #[error("TLS handshake with {address} failed: {cause}")]
    Tls {
        /// The endpoint's address.
        address: String,
        /// The error of rustls.
        cause: String,
    },
    /// The connection failed before HTTP could be used.
    #[error("HTTP connection to {address} failed: {cause}")]
    Http {
        /// The endpoint's address.
        address: String,
        /// The error of the HTTP implementation.
        cause: String,
    },
    /// This machine lacks what a connection takes. Says nothing about the endpoint.
    #[error("the gateway's machine cannot connect to {address}: {cause}")]
    Local {
        /// The endpoint's address.
        address: String,
        /// The error of the operating system.
        cause: String,
    },
    /// No connection was attempted: too many requests wait for one already.
    #[error("too many requests wait for a connection to {address}")]
    TooManyWaiting {
        /// The endpoint's address.
        address: String,
    },
    /// No connection was attempted: the client has as many as it may have, or all clients together.
    #[error(
        "the gateway has no further connection to {address} for this client: its share, or that of all, is in use"
    )]
    NoPlace {
        /// The endpoint's address.
        address: String,
    },
}

impl ConnectError {
    /// Whether the endpoint has no part in it.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        match self {
            Self::Local { .. } | Self::TooManyWaiting { .. } | Self::NoPlace { .. } => true,
            Self::Tcp { .. } | Self::Tls { .. } | Self::Http { .. } => false,
        }
    }
}

/// Whether this machine has caused an error, by the lack of what a connection takes.
// threat: local-shortage
pub(crate) fn is_of_this_machine(error: &(dyn Error + 'static)) -> bool {
    let io_error = error.downcast_ref::<io::Error>();
    let is_shortage = io_error.and_then(Errno::from_io_error).is_some_and(|errno| SHORTAGES.contains(&errno));
    is_shortage || cause(error).is_some_and(is_of_this_machine)
}

/// The error within an error.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let http2 = match error.downcast_ref() {
        Some(TransportError::Http2(error)) => Some(error),
        _ => error.downcast_ref::<h2::Error>(),
    };
    if let Some(error) = http2 {
        // Not its source.
        return Some(error.get_io()?);
    }
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use portcullis_http::body::Body;
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::*;
    use crate::backend::pool::SendError;

    /// A connection on which nothing can be read or written.
    struct BrokenStream(Errno);

    impl AsyncRead for BrokenStream {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(self.0.into()))
        }
    }

    impl AsyncWrite for BrokenStream {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(self.0.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(self.0.into()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn only_a_shortage_of_this_machine_is_its_own_error() {
        let cases = [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOBUFS, true),
            (Errno::ADDRNOTAVAIL, true),
            (Errno::NOMEM, true),
            (Errno::CONNREFUSED, false),
            (Errno::CONNRESET, false),
            (Errno::CONNABORTED, false),
            (Errno::HOSTUNREACH, false),
            (Errno::NETUNREACH, false),
            (Errno::TIMEDOUT, false),
            (Errno::PIPE, false),
            (Errno::ACCESS, false),
            (Errno::PERM, false),
        ];
        for (errno, expected) in cases {
            let plain = io::Error::from(errno);
            assert_eq!(is_of_this_machine(&plain), expected, "{errno}");
            // As a lookup in a task of its own, hyper and h2 pass it on.
            let wrapped = io::Error::other(io::Error::from(errno));
            assert_eq!(is_of_this_machine(&wrapped), expected, "wrapped: {errno}");
            let http2 = h2::client::handshake(BrokenStream(errno)).await.map(drop).unwrap_err();
            assert_eq!(is_of_this_machine(&http2), expected, "h2: {errno}");
            let http2 = SendError::Broken(http2.into());
            assert_eq!(is_of_this_machine(&http2), expected, "HTTP/2: {errno}");
            let stream = TokioIo::new(BrokenStream(errno));
            let (_sender, connection) = http1::handshake::<_, Body>(stream).await.unwrap();
            let http1 = SendError::Broken(connection.await.unwrap_err().into());
            assert_eq!(is_of_this_machine(&http1), expected, "HTTP/1.1: {errno}");
        }
        assert!(!is_of_this_machine(&io::Error::other(
            "no address of the name has passed the self-check yet"
        )));
    }

    #[test]
    fn an_endpoint_has_a_part_in_every_other_error() {
        let (address, cause) = (String::new(), String::new());
        let of_this_machine = [
            ConnectError::Local { address: address.clone(), cause: cause.clone() },
            ConnectError::TooManyWaiting { address: address.clone() },
        ];
        let of_endpoint = [
            ConnectError::Tcp { address: address.clone(), cause: cause.clone() },
            ConnectError::Tls { address: address.clone(), cause: cause.clone() },
            ConnectError::Http { address, cause },
        ];
        assert!(of_this_machine.iter().all(ConnectError::is_of_this_machine));
        assert!(!of_endpoint.iter().any(ConnectError::is_of_this_machine));
    }
}
