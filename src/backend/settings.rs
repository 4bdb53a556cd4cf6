//! The validated settings of a backend.

use std::fmt;

use portcullis_http::identity::IdentityMode;
use portcullis_http::identity_headers::RequestHeaderNames;
use portcullis_pki::x509::CertificateKeyPair;
use rustls_pki_types::ServerName;

use crate::authn::BearerToken;
pub(crate) use crate::backend::address_policy::AddressPolicy;
use crate::backend::balance::WatchMoves;
pub(crate) use portcullis_http::client_tls::TrustedRoots;

/// The API servers of one cluster, and how the gateway connects and authenticates to them.
#[derive(Clone, PartialEq, Eq)]
pub struct Backend {
    /// The API servers, at least one; tried in this order.
    pub endpoints: Vec<Endpoint>,
    /// The prefix of every path, from the URL of the kubeconfig; usually empty.
    pub path_prefix: String,
    /// The CAs that verify the serving certificates.
    pub roots: TrustedRoots,
    /// The client certificate of the gateway.
    pub client_certificate: Option<CertificateKeyPair>,
    /// The bearer token of the gateway, in identity mode `impersonate`.
    pub bearer_token: Option<BearerToken>,
    /// How the gateway passes the user of a request.
    pub identity: IdentityMode,
    /// The API servers' identity headers, if the configuration names them.
    pub identity_headers: Option<RequestHeaderNames>,
    /// How further endpoints are found.
    pub discovery: EndpointDiscovery,
    /// What applies at once, whether the rest is pending or not.
    pub policy: BackendPolicy,
}

/// What needs no success of anything: a reload puts it in force at once, also where a new address or credential is pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendPolicy {
    /// Which addresses the API servers may have.
    pub addresses: AddressPolicy,
    /// The most short requests in progress at one endpoint.
    pub max_requests: usize,
    /// The most watches and tunnels at one endpoint.
    pub max_watches: usize,
    /// When watches move to endpoints with few of them; `None`: they stay.
    pub watch_moves: Option<WatchMoves>,
}

impl Default for BackendPolicy {
    fn default() -> Self {
        Self {
            addresses: AddressPolicy::default(),
            max_requests: usize::MAX,
            max_watches: usize::MAX,
            watch_moves: Some(WatchMoves::default()),
        }
    }
}

/// How further endpoints of a cluster are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "camelCase")]
pub enum EndpointDiscovery {
    /// They are not: the configured ones are all.
    None,
    /// Each address of a configured host name is one.
    Dns,
    /// Those that the `EndpointSlices` of service `kubernetes` in namespace `default` list.
    Kubernetes,
}

impl Backend {
    /// Whether these settings name the same cluster as `other`: the same path prefix, an endpoint with the same server
    /// name, and no CA that `other` does not trust.
    pub(crate) fn is_same_cluster(&self, other: &Self) -> bool {
        let is_named = |one: &Endpoint| other.endpoints.iter().any(|two| one.server_name == two.server_name);
        self.path_prefix == other.path_prefix
            && self.endpoints.iter().any(is_named)
            && self.roots.is_subset_of(&other.roots)
    }

    /// Whether both connect to the same endpoints in the same way, whatever their policies.
    pub(crate) fn has_connections_of(&self, other: &Self) -> bool {
        // Every field, so that each new one is considered.
        let Self {
            endpoints,
            path_prefix,
            roots,
            client_certificate,
            bearer_token,
            identity,
            identity_headers,
            discovery,
            policy: _,
        } = self;
        *endpoints == other.endpoints
            && *path_prefix == other.path_prefix
            && *roots == other.roots
            && *client_certificate == other.client_certificate
            && *bearer_token == other.bearer_token
            && *identity == other.identity
            && *identity_headers == other.identity_headers
            && *discovery == other.discovery
    }

    /// The endpoints that requests may go to by these settings.
    pub(crate) fn permitted_endpoints(&self) -> PermittedEndpoints {
        PermittedEndpoints { listed: self.endpoints.clone(), discovery: self.discovery }
    }
}

/// The endpoints that requests may go to: those that are listed, and those that are found.
#[derive(Debug)]
pub(crate) struct PermittedEndpoints {
    listed: Vec<Endpoint>,
    discovery: EndpointDiscovery,
}

impl PermittedEndpoints {
    /// Whether an endpoint is one of them, whichever settings it was made from.
    pub(crate) fn has(&self, endpoint: &Endpoint) -> bool {
        let is_listed = |address: &HostPort| {
            let mut listed = self.listed.iter();
            listed.any(|one| one.address == *address && one.server_name == endpoint.server_name)
        };
        let is_found = match &endpoint.source {
            EndpointSource::Configuration => false,
            EndpointSource::Name(name) => self.discovery == EndpointDiscovery::Dns && is_listed(name),
            EndpointSource::Cluster => self.discovery == EndpointDiscovery::Kubernetes,
        };
        is_found || is_listed(&endpoint.address)
    }
}

/// The address of one API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The host and port to connect to.
    pub address: HostPort,
    /// The name that its certificate must have.
    pub server_name: ServerName<'static>,
    /// What names it.
    pub source: EndpointSource,
}

/// What names an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum EndpointSource {
    /// The configuration.
    #[default]
    Configuration,
    /// This endpoint of the configuration, whose name DNS resolves.
    Name(HostPort),
    /// The cluster itself.
    Cluster,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend")
            .field("endpoints", &self.endpoints)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// A host and a port, as in a URL.
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

#[cfg(test)]
mod tests {
    use portcullis_pki::x509::CaBundle;
    use testkit::pki::Ca;

    use super::*;

    #[test]
    fn a_cluster_is_identified_by_its_cas_server_names_and_path() {
        let (one, two) = (Ca::new("one"), Ca::new("two"));
        let backend = |names: &[&str], path: &str, cas: &[&Ca]| {
            let pem: String = cas.iter().map(|ca| ca.cert_pem()).collect();
            let bundle = CaBundle::from_pem(pem.as_bytes()).unwrap();
            let endpoint = |name: &&str| Endpoint {
                address: HostPort { host: "127.0.0.1".to_owned(), port: 6443 },
                server_name: ServerName::try_from((*name).to_owned()).unwrap(),
                source: EndpointSource::default(),
            };
            Backend {
                endpoints: names.iter().map(endpoint).collect(),
                path_prefix: path.to_owned(),
                roots: TrustedRoots::from_bundle(bundle),
                client_certificate: None,
                bearer_token: None,
                identity: IdentityMode::Impersonate,
                identity_headers: None,
                discovery: EndpointDiscovery::None,
                policy: BackendPolicy::default(),
            }
        };
        let before = backend(&["a.test", "b.test"], "/k8s/1", &[&one]);
        let cases = [
            ("the same", backend(&["a.test", "b.test"], "/k8s/1", &[&one]), true),
            ("another endpoint", backend(&["c.test", "b.test"], "/k8s/1", &[&one]), true),
            ("one more CA", backend(&["a.test"], "/k8s/1", &[&two, &one]), true),
            ("another CA", backend(&["a.test"], "/k8s/1", &[&two]), false),
            ("other server names", backend(&["c.test"], "/k8s/1", &[&one]), false),
            ("another path", backend(&["a.test"], "/k8s/2", &[&one]), false),
        ];
        for (name, next, expected) in cases {
            assert_eq!(before.is_same_cluster(&next), expected, "{name}");
        }
    }
}
