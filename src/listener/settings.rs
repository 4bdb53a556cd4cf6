//! The settings of the listener, read and validated.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use portcullis_http::peer::IpNetwork;
use portcullis_pki::x509::CertificateKeyPair;

use crate::request::cors::AllowedOrigins;

/// The address, the certificates and the limits that the gateway serves with.
#[derive(Debug, Clone)]
pub struct ServingSettings {
    /// The address to listen on.
    pub address: SocketAddr,
    /// Whether other processes may listen on the same address (`SO_REUSEPORT`).
    pub permit_port_sharing: bool,
    /// The certificate for server names without an SNI certificate.
    pub certificate: ServingCertificate,
    /// Certificates for certain server names, in the order of the flags.
    pub sni_certificates: Vec<ServingCertificate>,
    /// The cipher suites and key exchange groups to offer.
    pub provider: Arc<rustls::crypto::CryptoProvider>,
    /// The TLS versions to offer.
    pub versions: Vec<&'static rustls::SupportedProtocolVersion>,
    /// The limits on clients.
    pub limits: ClientLimits,
    /// The value of the `Strict-Transport-Security` header, if it is sent.
    pub strict_transport_security: Option<http::HeaderValue>,
    /// The origins whose scripts may read responses in a browser.
    pub(crate) allowed_origins: AllowedOrigins,
    /// The load balancers that name their clients in a PROXY protocol header.
    pub proxy_protocol: Option<Arc<ProxyProtocol>>,
}

/// Which connections begin with a PROXY protocol header.
#[derive(Debug, Clone)]
pub struct ProxyProtocol {
    /// The versions that are accepted.
    pub versions: ProxyProtocolVersions,
    /// The networks of the load balancers. Each of their connections must begin with a header, and no other may.
    pub trusted_networks: Vec<IpNetwork>,
}

/// The versions of the PROXY protocol that are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocolVersions {
    /// Version 1, a line of text.
    V1,
    /// Version 2, binary.
    V2,
    /// Both.
    Any,
}

/// The limits on connections, streams and time.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    /// The maximum number of open connections; by default the limit of open files decides.
    pub max_connections: Option<NonZeroUsize>,
    /// The maximum number of open connections of the clients of one tenant's cluster; by default a share of the above.
    pub max_connections_per_tenant: Option<NonZeroUsize>,
    /// The maximum number of open streams on one HTTP/2 connection.
    pub http2_max_streams: u32,
    /// The timeout of a TLS handshake, and from the first byte of a request to the end of its header.
    pub header_timeout: Duration,
    /// The timeout between two requests.
    pub idle_timeout: Duration,
    /// The timeout of a PROXY protocol header.
    pub proxy_header_timeout: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        // apiserver: pkg/server/secure_serving.go
        Self {
            max_connections: None,
            max_connections_per_tenant: None,
            http2_max_streams: 100,
            header_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
            // A load balancer sends the header at once; the time is for a few TCP retransmissions.
            proxy_header_timeout: Duration::from_secs(10),
        }
    }
}

/// A serving certificate and its server names.
#[derive(Clone)]
pub struct ServingCertificate {
    /// The certificate chain and the private key.
    pub pair: CertificateKeyPair,
    /// The server names, in lower case; a leading `*.` matches one label.
    pub names: Vec<String>,
    /// The file of the certificate chain.
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
