//! The address at which users reach a cluster: by its name, by its path, or the gateway's own.

use super::settings::Routes;

/// Where users reach a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterAddress {
    /// The host, and the port unless it is 443.
    pub(crate) authority: String,
    /// The path, without a slash at its end.
    pub(crate) prefix: String,
}

impl ClusterAddress {
    /// The address by the routes of a cluster, at the gateway's authority `api`. `None`: it has only wildcard names.
    pub(crate) fn of(routes: &Routes, api: &str) -> Option<Self> {
        let port = api.rsplit_once(':').map(|(_, port)| format!(":{port}")).unwrap_or_default();
        let at = |authority: String, prefix: &str| Some(Self { authority, prefix: prefix.to_owned() });
        match routes {
            Routes::Everything => at(api.to_owned(), ""),
            Routes::Matching { server_names, path_prefix } => {
                match (server_names.iter().find(|name| !name.starts_with('*')), path_prefix) {
                    (Some(name), _) => at(format!("{name}{port}"), ""),
                    (None, Some(prefix)) => at(api.to_owned(), prefix),
                    (None, None) => None,
                }
            }
        }
    }

    /// The URL for a kubeconfig.
    pub(crate) fn url(&self) -> String {
        format!("https://{}{}", self.authority, self.prefix)
    }

    /// The host without the port.
    pub(crate) fn host(&self) -> &str {
        self.authority.rsplit_once(':').map_or(&self.authority, |(host, _)| host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_reached_by_its_name_or_path() {
        let matching = |names: &[&str], prefix: Option<&str>| Routes::Matching {
            server_names: names.iter().map(|name| (*name).to_owned()).collect(),
            path_prefix: prefix.map(str::to_owned),
        };
        let cases = [
            (Routes::Everything, Some("https://g.test:6443")),
            (matching(&["prod.test"], None), Some("https://prod.test:6443")),
            (matching(&["*.test", "prod.test"], Some("/prod")), Some("https://prod.test:6443")),
            (matching(&[], Some("/clusters/prod")), Some("https://g.test:6443/clusters/prod")),
            (matching(&["*.test"], Some("/prod")), Some("https://g.test:6443/prod")),
            (matching(&["*.test"], None), None),
        ];
        for (routes, expected) in cases {
            let address = ClusterAddress::of(&routes, "g.test:6443");
            assert_eq!(address.as_ref().map(ClusterAddress::url).as_deref(), expected, "{routes:?}");
            if let Some(address) = address {
                assert!(!address.host().contains(':'), "{address:?}");
            }
        }
    }
}
