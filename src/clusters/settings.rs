//! One cluster behind the gateway, read and found to fit together.

use std::fmt;

use clap::ValueEnum;
use rustls_pki_types::ServerName;

use crate::authn::BearerToken;
use crate::authn::settings::Authentication;
pub use crate::outbound::tls::{ClientCertificate, Roots};

/// A cluster: which requests are for it, who its clients may be, and where it is. Nothing of one is used for another.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Its name in logs, metrics and health checks; unique.
    pub name: String,
    /// Which requests are for it.
    pub routes: Routes,
    /// Who its clients may be.
    pub authentication: Authentication,
    /// Its API server.
    pub backend: Backend,
}

/// Which requests are for a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Routes {
    /// All of them: there is no other cluster.
    Everything,
    /// Those for one of these names, or under this path. At least one of the two is given.
    Matching {
        /// Names in the TLS handshake or in `Host`: lower case, unique among all clusters; `*.` stands for one label.
        server_names: Vec<String>,
        /// A path that is cut off before the request is forwarded: begins with `/`, ends without one; no segment is
        /// empty, `.` or `..`, and nothing is escaped.
        path_prefix: Option<String>,
    },
}

/// An API server behind the gateway: one or several endpoints of it, and how to speak to them.
#[derive(Clone, PartialEq, Eq)]
pub struct Backend {
    /// Its replicas, at least one; tried in turn.
    pub endpoints: Vec<Endpoint>,
    /// What precedes every path there; empty for an API server of its own.
    pub path_prefix: String,
    /// The CAs of its certificate.
    pub roots: Roots,
    /// The certificate the gateway shows it.
    pub client_certificate: Option<ClientCertificate>,
    /// The bearer token the gateway shows it, in identity mode `impersonate`.
    pub bearer_token: Option<BearerToken>,
    /// How it is told who a request is made by.
    pub identity: IdentityMode,
}

/// Where one replica of an API server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its host and port, as dialled.
    pub address: HostPort,
    /// The name its certificate must have.
    pub server_name: ServerName<'static>,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend")
            .field("endpoints", &self.endpoints)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// A host and a port, as they stand in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// A name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// How the backend is told who a request is made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "camelCase")]
pub enum IdentityMode {
    /// `X-Remote-*` headers over mutual TLS.
    RequestHeader,
    /// `Impersonate-*` headers with the gateway's own credential.
    Impersonate,
}
