//! A backend as it is configured, read and found to fit together.

use std::fmt;

use rustls_pki_types::ServerName;

use crate::authn::BearerToken;
pub use crate::http::client_tls::TrustedRoots;
use crate::http::identity_headers::RequestHeaderNames;
use crate::pki::x509::CertificateKeyPair;
use crate::user::IdentityMode;

/// An API server behind the gateway: one or several endpoints of it, and how to speak to them.
#[derive(Clone, PartialEq, Eq)]
pub struct Backend {
    /// Its replicas, at least one; tried in turn.
    pub endpoints: Vec<Endpoint>,
    /// What precedes every path there; empty for an API server of its own.
    pub path_prefix: String,
    /// The CAs of its certificate.
    pub roots: TrustedRoots,
    /// The certificate the gateway shows it.
    pub client_certificate: Option<CertificateKeyPair>,
    /// The bearer token the gateway shows it, in identity mode `impersonate`.
    pub bearer_token: Option<BearerToken>,
    /// How it is told who a request is made by.
    pub identity: IdentityMode,
    /// The headers it reads identities from, if the configuration names them.
    pub identity_headers: Option<RequestHeaderNames>,
}

impl Backend {
    /// Whether the API server behind these settings may be taken for one of the cluster behind `other`: under the same
    /// path, an endpoint of it has a name that counts there, by authorities that count there.
    pub(crate) fn is_of_the_cluster_of(&self, other: &Self) -> bool {
        let is_named = |one: &Endpoint| other.endpoints.iter().any(|two| one.server_name == two.server_name);
        self.path_prefix == other.path_prefix
            && self.endpoints.iter().any(is_named)
            && self.roots.0.roots.iter().all(|root| other.roots.0.roots.contains(root))
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use testkit::pki::Ca;

    use super::*;

    #[test]
    fn a_cluster_is_known_by_its_authorities_names_and_path() {
        let (one, two) = (Ca::new("one"), Ca::new("two"));
        let backend = |names: &[&str], path: &str, cas: &[&Ca]| {
            let mut roots = rustls::RootCertStore::empty();
            for ca in cas {
                roots.add(ca.cert.clone()).unwrap();
            }
            let endpoint = |name: &&str| Endpoint {
                address: HostPort { host: "127.0.0.1".to_owned(), port: 6443 },
                server_name: ServerName::try_from((*name).to_owned()).unwrap(),
            };
            Backend {
                endpoints: names.iter().map(endpoint).collect(),
                path_prefix: path.to_owned(),
                roots: TrustedRoots(Arc::new(roots)),
                client_certificate: None,
                bearer_token: None,
                identity: IdentityMode::Impersonate,
                identity_headers: None,
            }
        };
        let before = backend(&["a.test", "b.test"], "/k8s/1", &[&one]);
        let cases = [
            ("the same", backend(&["a.test", "b.test"], "/k8s/1", &[&one]), true),
            ("another replica", backend(&["c.test", "b.test"], "/k8s/1", &[&one]), true),
            ("one more authority", backend(&["a.test"], "/k8s/1", &[&two, &one]), true),
            ("another authority", backend(&["a.test"], "/k8s/1", &[&two]), false),
            ("other names", backend(&["c.test"], "/k8s/1", &[&one]), false),
            ("another path", backend(&["a.test"], "/k8s/2", &[&one]), false),
        ];
        for (name, next, expected) in cases {
            assert_eq!(before.is_of_the_cluster_of(&next), expected, "{name}");
        }
    }
}
