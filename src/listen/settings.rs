//! How clients reach the gateway, read and found to fit together.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::sign::CertifiedKey;

/// How clients reach the gateway.
#[derive(Debug, Clone)]
pub struct Serving {
    /// Where to listen.
    pub address: SocketAddr,
    /// Whether other processes may listen there too.
    pub permit_port_sharing: bool,
    /// The certificate for every server name that no other one has.
    pub certificate: ServingCertificate,
    /// Certificates for some server names, in the order given.
    pub sni_certificates: Vec<ServingCertificate>,
    /// The TLS versions and cipher suites to offer.
    pub provider: Arc<rustls::crypto::CryptoProvider>,
    /// The TLS versions to offer.
    pub versions: Vec<&'static rustls::SupportedProtocolVersion>,
    /// Streams a client may have open on one HTTP/2 connection.
    pub http2_max_streams: u32,
    /// The value of the `Strict-Transport-Security` header, if it is to be sent.
    pub strict_transport_security: Option<http::HeaderValue>,
}

/// A serving certificate and the names it is for.
#[derive(Clone)]
pub struct ServingCertificate {
    /// The chain and its key.
    pub key: Arc<CertifiedKey>,
    /// The names it is for, in lower case; `*.` may stand for the first label.
    pub names: Vec<String>,
    /// Where it came from.
    pub file: PathBuf,
}

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingCertificate")
            .field("file", &self.file)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
