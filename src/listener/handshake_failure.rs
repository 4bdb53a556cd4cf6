//! Why TLS handshakes of clients fail, as the label `cause` of a metric: few values, whatever a client sends.

use std::io;

use rustls::Error;

use super::http_on_tls_port::NotTlsError;

/// The client did not complete the handshake in time.
pub(super) const TIMEOUT: &str = "timeout";

/// The cause of a failed handshake.
pub(super) fn cause(error: &io::Error) -> &'static str {
    let inner = error.get_ref();
    if let Some(error) = inner.and_then(|error| error.downcast_ref::<NotTlsError>()) {
        return match error {
            NotTlsError::PlainHttp => "plain_http",
            NotTlsError::UntrustedHeader => "untrusted_header",
            NotTlsError::Other => "not_tls",
        };
    }
    match inner.and_then(|error| error.downcast_ref::<Error>()) {
        // The client has refused: usually it does not trust the gateway's certificate.
        Some(Error::AlertReceived(_)) => "alert",
        Some(Error::PeerIncompatible(_) | Error::NoApplicationProtocol) => "incompatible",
        Some(Error::NoCertificatesPresented | Error::InvalidCertificate(_)) => "certificate",
        Some(
            Error::InvalidMessage(_)
            | Error::PeerMisbehaved(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::DecryptError
            | Error::PeerSentOversizedRecord,
        ) => "malformed",
        Some(_) => "other",
        // An error of the socket.
        None => "closed",
    }
}
