//! Routes requests to clusters: by the server name of the TLS handshake, else by `Host`, else by a prefix of the path.
//!
//! Refuses a request whose `Host` names another cluster than the handshake: the handshake has settled the client
//! certificate, and which server the client trusts. Refuses a request for the host of the page, too: browsers share
//! cookies among all ports of a host, so that a cluster would receive those of the page.
// RFC 9110, section 15.5.20

use std::collections::HashMap;
use std::sync::Arc;

use super::settings::Routes;

/// The clusters with their routes.
#[derive(Debug)]
pub(crate) struct Router<C> {
    clusters: Vec<Arc<C>>,
    /// The cluster of every request, if it is the only one.
    catch_all: Option<Arc<C>>,
    by_name: HashMap<String, Arc<C>>,
    /// Longest prefix first.
    by_prefix: Vec<(String, Arc<C>)>,
    /// The host name of the page.
    page_host: Option<String>,
}

/// The cluster of a request.
#[derive(Debug)]
pub(crate) struct RouteMatch<'a, C> {
    /// The cluster.
    pub(crate) cluster: &'a Arc<C>,
    /// The length of the path prefix to remove.
    pub(crate) prefix: usize,
}

/// Why a request matches no cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RouteError {
    /// `Host` names another cluster than the TLS server name.
    #[error("the TLS server name and Host name different clusters")]
    Misdirected,
    /// The request is for the host of the page.
    #[error("no cluster is served at the host name of the page")]
    PageHost,
    /// No cluster has this name or path.
    #[error("no cluster is served under this name or path")]
    NotFound,
}

impl<C> Router<C> {
    /// Routes to these clusters, and to none under the host name of the page.
    pub(crate) fn new(clusters: Vec<(Routes, Arc<C>)>, page_host: Option<String>) -> Self {
        let mut router = Self {
            clusters: Vec::with_capacity(clusters.len()),
            catch_all: None,
            by_name: HashMap::new(),
            by_prefix: Vec::new(),
            page_host,
        };
        for (routes, cluster) in clusters {
            router.clusters.push(Arc::clone(&cluster));
            match routes {
                Routes::Everything => router.catch_all = Some(cluster),
                Routes::Matching { server_names, path_prefix } => {
                    router.by_prefix.extend(path_prefix.map(|prefix| (prefix, Arc::clone(&cluster))));
                    router.by_name.extend(server_names.into_iter().map(|name| (name, Arc::clone(&cluster))));
                }
            }
        }
        router.by_prefix.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        router
    }

    /// Every cluster, in the order of the configuration.
    pub(crate) fn clusters(&self) -> &[Arc<C>] {
        &self.clusters
    }

    /// Finds the cluster of a request. `host` is `Host` or `:authority`, `path` the path as it was sent.
    // threat: other-cluster, page-shared-origin
    pub(crate) fn route(
        &self,
        server_name: Option<&str>,
        host: Option<&str>,
        path: &str,
    ) -> Result<RouteMatch<'_, C>, RouteError> {
        if server_name.is_some_and(|name| self.is_of_page(name))
            || host.is_some_and(|host| self.is_of_page(without_port(host)))
        {
            return Err(RouteError::PageHost);
        }
        if let Some(cluster) = &self.catch_all {
            return Ok(RouteMatch { cluster, prefix: 0 });
        }
        let by_handshake = server_name.and_then(|name| self.match_name(name));
        let by_host = host.and_then(|host| self.match_name(without_port(host)));
        match (by_handshake, by_host) {
            (Some(one), Some(other)) if !Arc::ptr_eq(one, other) => Err(RouteError::Misdirected),
            (Some(cluster), _) | (None, Some(cluster)) => Ok(RouteMatch { cluster, prefix: 0 }),
            (None, None) => self.match_prefix(path).ok_or(RouteError::NotFound),
        }
    }

    fn is_of_page(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        self.page_host.as_deref().is_some_and(|page| page.eq_ignore_ascii_case(name))
    }

    fn match_name(&self, name: &str) -> Option<&Arc<C>> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let wildcard = || self.by_name.get(&format!("*.{}", name.split_once('.')?.1));
        self.by_name.get(&name).or_else(wildcard)
    }

    fn match_prefix(&self, path: &str) -> Option<RouteMatch<'_, C>> {
        self.by_prefix.iter().find_map(|(prefix, cluster)| {
            let rest = path.strip_prefix(prefix.as_str())?;
            (rest.is_empty() || rest.starts_with('/')).then_some(RouteMatch { cluster, prefix: prefix.len() })
        })
    }
}

fn without_port(host: &str) -> &str {
    // The rest of a bracketed IPv6 address is not a name, so it matches no route.
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cluster_is_served_under_the_host_of_the_page() {
        let page = || Some("clusters.example.com".to_owned());
        let lone = Router::new(vec![(Routes::Everything, Arc::new("lone".to_owned()))], page());
        let cases = [
            (None, Some("clusters.example.com"), true),
            (None, Some("CLUSTERS.example.com.:6443"), true),
            (Some("clusters.example.com"), Some("10.0.0.1"), true),
            (Some("Clusters.example.com."), None, true),
            (None, Some("x.clusters.example.com"), false),
            (Some("api.example.com"), Some("api.example.com"), false),
            (None, None, false),
        ];
        for (server_name, host, is_page) in cases {
            let found = lone.route(server_name, host, "/api").map(|_| ());
            let expected = if is_page { Err(RouteError::PageHost) } else { Ok(()) };
            assert_eq!(found, expected, "{server_name:?} {host:?}");
        }
    }

    fn router() -> Router<String> {
        let cluster = |name: &str, names: &[&str], prefix: Option<&str>| {
            let routes = Routes::Matching {
                server_names: names.iter().map(ToString::to_string).collect(),
                path_prefix: prefix.map(str::to_owned),
            };
            (routes, Arc::new(name.to_owned()))
        };
        Router::new(
            vec![
                cluster("prod", &["prod.example.com"], Some("/clusters/prod")),
                cluster("nested", &[], Some("/clusters/prod/nested")),
                cluster("any", &["*.test.example.com"], Some("/clusters/prod2")),
            ],
            None,
        )
    }

    #[test]
    fn requests_find_their_cluster() {
        let router = router();
        let cases = [
            (Some("prod.example.com"), Some("prod.example.com:6443"), "/api", Ok(("prod", 0))),
            (Some("PROD.example.com."), Some("10.0.0.1:6443"), "/api", Ok(("prod", 0))),
            (Some("prod.example.com"), None, "/clusters/prod2/api", Ok(("prod", 0))),
            (None, Some("Prod.Example.com"), "/api", Ok(("prod", 0))),
            (Some("other.example.com"), Some("prod.example.com."), "/api", Ok(("prod", 0))),
            (Some("a.test.example.com"), Some("b.test.example.com"), "/api", Ok(("any", 0))),
            (None, Some("a.b.test.example.com"), "/api", Err(RouteError::NotFound)),
            (None, Some("test.example.com"), "/api", Err(RouteError::NotFound)),
            (Some("prod.example.com"), Some("a.test.example.com"), "/api", Err(RouteError::Misdirected)),
            (None, Some("[::1]:6443"), "/clusters/prod/api", Ok(("prod", 14))),
            (None, None, "/clusters/prod", Ok(("prod", 14))),
            (None, None, "/clusters/prod/", Ok(("prod", 14))),
            (None, None, "/clusters/prod2/api", Ok(("any", 15))),
            (None, None, "/clusters/prod/nested/api", Ok(("nested", 21))),
            (None, None, "/clusters/prod/nestedly", Ok(("prod", 14))),
            (None, None, "/clusters/production", Err(RouteError::NotFound)),
            (None, None, "/clusters/%70rod/api", Err(RouteError::NotFound)),
            (None, None, "//clusters/prod/api", Err(RouteError::NotFound)),
            (None, None, "/clusters/./prod/api", Err(RouteError::NotFound)),
            (None, None, "/clusters/prod/../prod2/api", Ok(("prod", 14))),
            (None, None, "/api", Err(RouteError::NotFound)),
        ];
        for (server_name, host, path, expected) in cases {
            let found = router.route(server_name, host, path);
            let found = found.map(|route| (route.cluster.as_str(), route.prefix));
            assert_eq!(found, expected, "{server_name:?} {host:?} {path}");
        }
    }
}
