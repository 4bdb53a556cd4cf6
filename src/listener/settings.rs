//! How clients reach the gateway, read and found to fit together.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::pki::x509::CertificateKeyPair;

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
    /// How much clients may take up.
    pub limits: Limits,
    /// The value of the `Strict-Transport-Security` header, if it is to be sent.
    pub strict_transport_security: Option<http::HeaderValue>,
}

/// How much of the gateway clients may take up, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections that may be open at once; by default as many as the limit of open files allows.
    pub max_connections: Option<NonZeroUsize>,
    /// Streams a client may have open on one HTTP/2 connection.
    pub http2_max_streams: u32,
    /// From the first byte of a request to the end of its header, and for a handshake.
    pub header_timeout: Duration,
    /// Between requests.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        // apiserver: pkg/server/secure_serving.go
        Self {
            max_connections: None,
            http2_max_streams: 100,
            header_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
        }
    }
}

/// A serving certificate and the names it is for.
#[derive(Clone)]
pub struct ServingCertificate {
    /// The chain and its key.
    pub pair: CertificateKeyPair,
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
