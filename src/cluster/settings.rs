//! One cluster behind the gateway, read and found to fit together.

use std::sync::Arc;

use crate::authn::settings::Authentication;
use crate::backend::settings::Backend;
use crate::controllers::settings::ControllerSettings;

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
    /// The controllers that run for it, if any.
    pub controllers: Option<Arc<ControllerSettings>>,
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
