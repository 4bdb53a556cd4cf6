//! The validated settings of one cluster.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use http::header::{HeaderMap, HeaderValue, USER_AGENT};
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::ClusterOwner;

use crate::admission::settings::AdmissionSettings;
use crate::audit::settings::AuditSettings;
use crate::authn::settings::Authentication;
use crate::authz::impersonation::ImpersonationBy;
use crate::authz::settings::Authorization;
use crate::backend::settings::Backend;
use crate::controllers::settings::ControllerSettings;
use crate::limits::settings::LimitSettings;
use crate::operator::OperatorUser;
use crate::sessions::settings::SessionSettings;

/// A cluster: its routes, authentication, backend and controllers. No part of one cluster is used for another.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The unique name in logs, metrics and health checks.
    pub name: String,
    /// What configures it.
    pub origin: ClusterOrigin,
    /// The release of Kubernetes whose rules the gateway follows where it answers itself.
    pub release: Release,
    /// Which requests are for it.
    pub routes: Routes,
    /// How its clients are authenticated.
    pub authentication: Authentication,
    /// Its API servers.
    pub backend: Backend,
    /// Who decides on `Impersonate-*`.
    pub impersonation: ImpersonationBy,
    /// The clients whose watches its API servers must not compress.
    pub uncompressed_watches: UserAgents,
    /// The gateway's own authorizers; `None`: the backend alone decides.
    pub authorization: Option<Arc<Authorization>>,
    /// The admission webhooks that the gateway calls; `None`: the backend alone admits requests.
    pub admission: Option<Arc<AdmissionSettings>>,
    /// Which requests are audited, and where their events are stored; `None`: nothing is audited.
    pub audit: Option<Arc<AuditSettings>>,
    /// Which sessions are recorded and limited; `None`: none is.
    pub sessions: Option<Arc<SessionSettings>>,
    /// The limits on its requests in flight.
    pub limits: LimitSettings,
    /// The controllers that run for it, if any.
    pub controllers: Option<Arc<ControllerSettings>>,
}

impl Cluster {
    /// In whose share of the process everything in the cluster counts.
    pub(crate) fn owner(&self) -> ClusterOwner {
        let name = self.name.as_str();
        if self.origin.is_of_tenant() { ClusterOwner::tenant(name) } else { ClusterOwner::operator(name) }
    }
}

/// Clients by the beginnings of their `User-Agent` headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserAgents(pub Vec<String>);

impl UserAgents {
    /// Whether the client of this header is one of them. `*` names all.
    pub(crate) fn includes(&self, headers: &HeaderMap) -> bool {
        let agent = || headers.get(USER_AGENT).map_or(&[][..], HeaderValue::as_bytes);
        self.0.iter().any(|prefix| prefix == "*" || agent().starts_with(prefix.as_bytes()))
    }
}

/// What configures a cluster. The configuration file is valid as a whole or refused; every other origin by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ClusterOrigin {
    /// The command line or the configuration file.
    Configuration,
    /// A file of the cluster directory.
    File(PathBuf),
    /// A Secret of the management cluster.
    Secret {
        /// The addresses of the management cluster's API servers. Another one may have a Secret of the same name.
        management: Arc<[String]>,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID: another Secret of the same name has another one, and may have another owner.
        uid: String,
    },
}

impl ClusterOrigin {
    /// Whether a tenant configures it, who is not the operator of the gateway: its authenticators may name any user and
    /// group, which counts in this cluster alone.
    pub(crate) fn is_of_tenant(&self) -> bool {
        matches!(self, Self::Secret { .. })
    }

    /// A user of the cluster as one whom the operator names; `None` if a tenant does.
    // threat: tenant-privilege
    pub(crate) fn operator_user<'a>(&self, user: &'a UserInfo) -> Option<OperatorUser<'a>> {
        (!self.is_of_tenant()).then(|| OperatorUser::vouched(user))
    }

    /// Whether both are written by the same party: the operator of the gateway, or the owner of one Secret.
    // threat: inherited-connection
    pub(crate) fn has_owner_of(&self, other: &Self) -> bool {
        match (self, other) {
            // Also after the address of the management cluster has changed.
            (Self::Secret { uid, .. }, Self::Secret { uid: other, .. }) if !uid.is_empty() => uid == other,
            (one, other) => one == other || !(one.is_of_tenant() || other.is_of_tenant()),
        }
    }
}

impl fmt::Display for ClusterOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration => f.write_str("configuration"),
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Secret { namespace, name, .. } => write!(f, "Secret {namespace}/{name}"),
        }
    }
}

/// Which requests are for a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Routes {
    /// All requests: it is the only cluster.
    Everything,
    /// Requests for one of these names, or below this path. At least one of the two is given.
    Matching {
        /// Names in the TLS handshake or in `Host`: lower case, unique among all clusters; `*.` matches one label.
        server_names: Vec<String>,
        /// A path prefix that is removed before the request is forwarded: begins with `/` and does not end with one;
        /// no segment is empty, `.` or `..`, and nothing is escaped.
        path_prefix: Option<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_secret_is_its_uid() {
        let secret = |management: &str, name: &str, uid: &str| ClusterOrigin::Secret {
            management: [management.to_owned()].into(),
            namespace: "tenants".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        };
        let file = || ClusterOrigin::File("/clusters.d/prod.yaml".into());
        let cases = [
            ("the same Secret", secret("a", "prod", "1"), secret("a", "prod", "1"), true),
            ("created again", secret("a", "prod", "1"), secret("a", "prod", "2"), false),
            ("at another address", secret("a", "prod", "1"), secret("b", "prod", "1"), true),
            ("without UIDs", secret("a", "prod", ""), secret("a", "prod", ""), true),
            ("without UIDs, elsewhere", secret("a", "prod", ""), secret("b", "prod", ""), false),
            ("one without UID", secret("a", "prod", "1"), secret("a", "prod", ""), false),
            ("a Secret and a file", secret("a", "prod", "1"), file(), false),
            ("a Secret and the configuration", secret("a", "prod", ""), ClusterOrigin::Configuration, false),
            ("a file and the configuration", file(), ClusterOrigin::Configuration, true),
        ];
        for (name, one, other, expected) in cases {
            assert_eq!(one.has_owner_of(&other), expected, "{name}");
            assert_eq!(other.has_owner_of(&one), expected, "{name}, the other way round");
        }
    }
}
