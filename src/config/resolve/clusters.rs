//! Resolves the clusters: their names, routes and backends.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use portcullis_http::identity::IdentityMode;
use portcullis_http::identity_headers::RequestHeaderNames;
use portcullis_kubernetes::names::is_dns_label;
use rustls_pki_types::DnsName;

use super::ConfigResolver;
use super::separate_clusters::around_secrets;
use crate::authz::impersonation::ImpersonationBy;
use crate::backend::balance::WatchMoves;
use crate::backend::settings::{AddressPolicy, Backend, BackendPolicy, Endpoint, EndpointDiscovery};
use crate::cluster::settings::{Cluster, ClusterOrigin, Routes, UserAgents};
use crate::config::cluster_authorities::{ClusterAuthorities, shared_authorities};
use crate::config::error::ConfigError;
use crate::config::file::FileSections;
use crate::config::flags::{BackendFlags, ClusterKeys, MatchKeys, ServeFlags};
use crate::config::inputs::CredentialUser;
use crate::config::kubeconfig;
use crate::config::management_cluster::{ManagementSettings, is_in_secret};
use crate::config::sections::{ConfigLayer, MergedSection};
use crate::config::separate_cluster::{Claims, MAX_ENDPOINTS, PREFIX, SERVER_NAME};
use crate::limits::settings::LimitSettings;

/// The name of the cluster configured by flags.
const ONLY_CLUSTER: &str = "backend";

/// The root paths of kube-apiserver. A path prefix that begins with one would hide it from clients of another cluster.
// apiserver: pkg/server/routes, pkg/endpoints/discovery; kubernetes: pkg/kubeapiserver/authorizer
const ROOTS: [&str; 16] = [
    ".well-known",
    "api",
    "apis",
    "configz",
    "debug",
    "flagz",
    "healthz",
    "livez",
    "logs",
    "metrics",
    "openapi",
    "readyz",
    "statusz",
    "swagger-ui",
    "swaggerapi",
    "version",
];

/// The most endpoints of a cluster of the operator, and of a cluster of a Secret.
const MAX_CLUSTER_ENDPOINTS: usize = 64;
const MAX_SECRET_ENDPOINTS: usize = 16;

/// The valid clusters of a list with their CAs, and their claims.
pub(super) struct ListedClusters {
    pub(super) clusters: Vec<(Arc<Cluster>, ClusterAuthorities)>,
    pub(super) claims: Claims,
}

/// What of a cluster needs the impersonated user in the gateway, before a request is forwarded.
struct ImpersonatedUserNeeds {
    authorization: bool,
    admission: bool,
    audit: bool,
    /// A user who acts as a member of `system:masters` is exempt from the limits of requests in flight.
    limits: bool,
}

impl ImpersonatedUserNeeds {
    /// Who decides by default.
    fn deciding(&self, identity: IdentityMode) -> ImpersonationBy {
        let is_needed = self.authorization || self.admission || self.audit || self.limits;
        if is_needed || identity == IdentityMode::Impersonate {
            ImpersonationBy::Gateway
        } else {
            ImpersonationBy::Backend
        }
    }
}

impl ConfigResolver<'_> {
    /// The clusters of the command line or the configuration file, with their claims and CAs. Leaves out invalid ones;
    /// `self.errors` has the errors, and the configuration then fails as a whole.
    pub(super) fn clusters(
        &mut self,
        file: Option<&MergedSection<FileSections>>,
        flags: &ServeFlags,
        management: Option<&ManagementSettings>,
    ) -> (Vec<Arc<Cluster>>, Claims, Vec<ClusterAuthorities>) {
        let has_directory = file.is_some_and(|file| {
            file.values.cluster_directory.is_some() || file.values.management_cluster.is_some()
        });
        let listed = file.into_iter().flat_map(|file| {
            let clusters = file.values.clusters.iter().enumerate();
            clusters.map(|(index, keys)| file.below(&format!("clusters[{index}]"), keys))
        });
        let mut listed: Vec<ConfigLayer> = listed.collect();
        if listed.is_empty() && !has_directory {
            listed.push(flags.backend.layer());
        } else {
            for flag in flags.backend.names() {
                self.errors.push(
                    ConfigError::new(flag, "cannot be combined with the clusters of --config")
                        .fix("remove the flag, or remove clusters and clusterDirectory from the file"),
                );
            }
        }
        let several = listed.len() > 1 || has_directory;
        let listed = listed.into_iter().map(|keys| (keys, ClusterOrigin::Configuration)).collect();
        let ListedClusters { clusters, claims } = self.listed_clusters(listed, several, file, flags);
        let (clusters, authorities): (Vec<_>, Vec<_>) = clusters.into_iter().unzip();
        self.errors.extend(shared_authorities(&authorities.iter().collect::<Vec<_>>()));
        if let Some(management) = management {
            let around = claims.iter().filter_map(|(claim, key)| around_secrets(claim, key, management));
            self.errors.extend(around);
        }
        let endpoints: usize = clusters.iter().map(|cluster| cluster.backend.endpoints.len()).sum();
        if endpoints > MAX_ENDPOINTS {
            let error = ConfigError::new(
                "clusters",
                format!("have {endpoints} endpoints, more than {MAX_ENDPOINTS}"),
            );
            self.errors.push(error.fix("spread the clusters over several gateways"));
        }
        (clusters, claims, authorities)
    }

    /// The clusters of a list, without invalid ones.
    pub(super) fn listed_clusters(
        &mut self,
        listed: Vec<(ConfigLayer, ClusterOrigin)>,
        several: bool,
        file: Option<&MergedSection<FileSections>>,
        flags: &ServeFlags,
    ) -> ListedClusters {
        let template = file.map(|file| file.below("authentication", &file.values.authentication));
        let authorization_template = file.map(|file| file.below("authorization", &file.values.authorization));
        let admission_template = file.map(|file| file.below("admission", &file.values.admission));
        let audit_template = file.map(|file| file.below("audit", &file.values.audit));
        let session_template = file.map(|file| file.below("sessions", &file.values.sessions));
        let limit_template = file.map(|file| file.below("limits", &file.values.limits));
        let controller_template =
            file.map(|file| file.below("controllerManager", &file.values.controller_manager));
        let mut claims = Claims::new();
        let mut clusters = Vec::with_capacity(listed.len());
        for (keys, origin) in listed {
            let Some(given) = self.section::<ClusterKeys>([Some(keys)]) else { continue };
            let own = &given.values.authentication;
            let own = (!own.is_empty()).then(|| given.below("authentication", own));
            let layers = [template.clone(), own, Some(flags.authentication.layer())];
            let authentication = self.section(layers).map(|given| self.authentication(&given));
            let own = &given.values.authorization;
            let own = (!own.is_empty()).then(|| given.below("authorization", own));
            let layers = [authorization_template.clone(), own, Some(flags.authorization.layer())];
            let authorization = self.section(layers).and_then(|given| self.authorization(&given));
            let own = &given.values.admission;
            let own = (!own.is_empty()).then(|| given.below("admission", own));
            let layers = [admission_template.clone(), own, Some(flags.admission.layer())];
            let admission = self.section(layers).and_then(|given| self.admission(&given));
            let own = &given.values.audit;
            let own = (!own.is_empty()).then(|| given.below("audit", own));
            let layers = [audit_template.clone(), own, Some(flags.audit.layer())];
            let audit = self.section(layers).and_then(|given| self.audit(&given));
            let own = &given.values.sessions;
            let own = (!own.is_empty()).then(|| given.below("sessions", own));
            let layers = [session_template.clone(), own, Some(flags.sessions.layer())];
            let sessions = self.section(layers).and_then(|given| self.sessions(&given));
            let own = &given.values.limits;
            let own = (!own.is_empty()).then(|| given.below("limits", own));
            let layers = [limit_template.clone(), own, Some(flags.limits.layer())];
            let limits = self.section(layers).and_then(|given| self.limits(&given));
            let own = &given.values.controller_manager;
            let own = (!own.is_empty()).then(|| given.below("controllerManager", own));
            let layers = [controller_template.clone(), own, Some(flags.controllers.layer())];
            let running = self.section(layers).and_then(|given| {
                let running = self.controllers(&given)?;
                let key = given.key("pod-signer-profiles");
                self.claim_records(&running.0.pod_signers, &key, &mut claims);
                Some(running)
            });
            let name = self.cluster_name(&given, &mut claims);
            let routes = self.routes(&given, several, &mut claims);
            self.inputs.set_credential_user(name.clone().map(CredentialUser::Cluster));
            let backend = self.backend(&given, file.is_some());
            self.inputs.set_credential_user(None);
            let needs = ImpersonatedUserNeeds {
                authorization: authorization.is_some(),
                admission: admission.is_some(),
                audit: audit.is_some(),
                limits: limits.as_ref().is_some_and(LimitSettings::is_limited),
            };
            let impersonation = self.impersonation(&given, &needs);
            if let (Some(name), Some(routes), Some(authentication), Some(backend), Some(limits)) =
                (name, routes, authentication, backend, limits)
            {
                let (running, signing) = running.unzip();
                let authorities =
                    ClusterAuthorities::new(&name, signing.unwrap_or_default(), &authentication);
                let controllers = running.map(Arc::new);
                let cluster = Arc::new(Cluster {
                    name,
                    origin,
                    release: self.release,
                    routes,
                    authentication,
                    backend,
                    impersonation,
                    uncompressed_watches: self.user_agents(&given),
                    authorization,
                    admission,
                    audit,
                    sessions,
                    limits,
                    controllers,
                });
                clusters.push((cluster, authorities));
            }
        }
        ListedClusters { clusters, claims }
    }

    /// Who decides on `Impersonate-*`: by default the backend, so that its audit log has both users, unless the gateway needs
    /// the impersonated user. Reports an error if the backend should, but receives the gateway's own headers, or if the gateway
    /// authorizes requests or calls admission webhooks.
    // threat: unauthorized-impersonation
    fn impersonation(
        &mut self,
        given: &MergedSection<ClusterKeys>,
        needs: &ImpersonatedUserNeeds,
    ) -> ImpersonationBy {
        let BackendFlags { identity, impersonation, .. } = given.values.backend;
        let by = impersonation.unwrap_or_else(|| needs.deciding(identity));
        if by == ImpersonationBy::Gateway {
            return by;
        }
        let mut refuse = |problem: &str| {
            let error = ConfigError::new(given.key("impersonation"), problem);
            self.errors.push(error.fix("remove it, so that the gateway decides on the headers of clients"));
        };
        if identity == IdentityMode::Impersonate {
            refuse(
                "backend cannot be combined with --identity=impersonate: the gateway itself uses Impersonate-*",
            );
        }
        if needs.authorization {
            refuse(
                "backend cannot be combined with the gateway's own authorization: the gateway would authorize the \
                 requester instead of the impersonated user",
            );
        }
        if needs.admission {
            refuse(
                "backend cannot be combined with the gateway's own admission webhooks: they would see the requester \
                 instead of the impersonated user",
            );
        }
        by
    }

    /// The clients whose watches are not compressed. Reports an error for an empty prefix, which would be one of every client.
    fn user_agents(&mut self, given: &MergedSection<ClusterKeys>) -> UserAgents {
        let prefixes = &given.values.backend.backend_uncompressed_watches;
        if prefixes.iter().any(String::is_empty) {
            let error = ConfigError::new(given.key("backend-uncompressed-watches"), "has an empty prefix");
            self.errors.push(error.fix("give the beginnings of User-Agent headers, or * for all clients"));
        }
        UserAgents(prefixes.clone())
    }

    fn cluster_name(&mut self, given: &MergedSection<ClusterKeys>, claims: &mut Claims) -> Option<String> {
        if !given.in_file() {
            return Some(ONLY_CLUSTER.to_owned());
        }
        let key = given.key("name");
        let Some(name) = &given.values.name else {
            return self
                .fail(ConfigError::new(key, "is required").fix("give each cluster a name of its own"));
        };
        if !is_dns_label(name) {
            let error = ConfigError::new(key, format!("{name:?} is not a DNS label"));
            return self.fail(error.fix("give at most 63 of a-z, 0-9 and -, with no - at either end"));
        }
        self.claim("name", name, key, claims)?;
        Some(name.clone())
    }

    /// Reports an error if another cluster has the same value.
    pub(super) fn claim(
        &mut self,
        kind: &'static str,
        value: &str,
        key: String,
        claims: &mut Claims,
    ) -> Option<()> {
        let Some(first) = claims.get(&(kind, value.to_owned())) else {
            claims.insert((kind, value.to_owned()), key);
            return Some(());
        };
        let error = ConfigError::new(key, format!("{value:?} is already used by {first}"));
        self.fail(error.fix("give each cluster its own"))
    }

    fn routes(
        &mut self,
        cluster: &MergedSection<ClusterKeys>,
        several: bool,
        claims: &mut Claims,
    ) -> Option<Routes> {
        let fix = "give serverNames, pathPrefix or both";
        let Some(keys) = &cluster.values.routes else {
            if several {
                let error = ConfigError::new(cluster.key("match"), "is required with more than one cluster");
                return self.fail(error.fix(fix));
            }
            return Some(Routes::Everything);
        };
        let given = self.section::<MatchKeys>([Some(cluster.below("match", keys))])?;
        let MatchKeys { server_names, path_prefix } = &given.values;
        if server_names.is_empty() && path_prefix.is_none() {
            return self.fail(ConfigError::new(cluster.key("match"), "matches nothing").fix(fix));
        }
        let names_key = given.key("server-names");
        let named = server_names.iter().enumerate().filter_map(|(index, name)| {
            let (key, name) = (format!("{names_key}[{index}]"), name.to_lowercase());
            if !is_server_name(&name) {
                let error = ConfigError::new(key, format!("{name:?} is not a DNS name"));
                return self.fail(error.fix("give a name such as prod.example.com or *.example.com"));
            }
            self.claim(SERVER_NAME, &name, key, claims).map(|()| name)
        });
        let server_names = named.collect();
        if let Some(prefix) = path_prefix {
            let key = given.key("path-prefix");
            match checked_prefix(prefix) {
                Ok(()) => self.claim(PREFIX, prefix, key, claims)?,
                Err((problem, fix)) => {
                    return self.fail(ConfigError::new(key, format!("{prefix:?} {problem}")).fix(fix));
                }
            }
        }
        Some(Routes::Matching { server_names, path_prefix: path_prefix.clone() })
    }

    fn backend(&mut self, given: &MergedSection<ClusterKeys>, with_file: bool) -> Option<Backend> {
        let ClusterKeys { backend, context, endpoints, .. } = &given.values;
        let identity_headers = self.identity_headers(given);
        let place = given.place("backend-kubeconfig");
        let Some(file) = &backend.backend_kubeconfig else {
            if with_file && !given.in_file() {
                return self.fail(ConfigError::new("clusters", "is required").fix(
                    "list at least one cluster, with its name and kubeconfig; or give --backend-kubeconfig",
                ));
            }
            let backend = kubeconfig::in_cluster(
                &place.key,
                |name| std::env::var(name).ok(),
                Path::new(kubeconfig::SERVICE_ACCOUNT),
                backend.identity,
                self.inputs,
                &mut self.errors,
            );
            let backend = Backend { identity_headers, ..with_flags(backend?, &given.values.backend) };
            return self.discoverable(given, backend);
        };
        let endpoints_key = given.key("endpoints");
        let file = place.path(file);
        let most = if is_in_secret(&file) { MAX_SECRET_ENDPOINTS } else { MAX_CLUSTER_ENDPOINTS };
        if endpoints.len() > most {
            let problem = format!("has {} endpoints, more than {most}", endpoints.len());
            let error = ConfigError::new(endpoints_key, problem);
            return self.fail(error.fix("list some of the API servers, or a load balancer in front of them"));
        }
        let endpoints: Vec<_> = endpoints
            .iter()
            .enumerate()
            .map(|(index, url)| (format!("{endpoints_key}[{index}]"), url.clone()))
            .collect();
        let backend = kubeconfig::load(
            &place.key,
            &file,
            context.as_deref(),
            &endpoints,
            backend.identity,
            self.inputs,
            &mut self.errors,
        );
        let backend = Backend { identity_headers, ..with_flags(backend?, &given.values.backend) };
        self.discoverable(given, backend)
    }

    /// Reports an error if DNS should find endpoints, and there is no host name.
    fn discoverable(&mut self, given: &MergedSection<ClusterKeys>, backend: Backend) -> Option<Backend> {
        let is_name = |endpoint: &Endpoint| endpoint.address.host.parse::<IpAddr>().is_err();
        if backend.discovery == EndpointDiscovery::Dns && !backend.endpoints.iter().any(is_name) {
            let key = given.key("backend-endpoint-discovery");
            let error = ConfigError::new(key, "dns resolves host names, and every endpoint is an IP address");
            return self.fail(error.fix(
                "give the host name of the API servers in endpoints or as the kubeconfig's server; or remove it",
            ));
        }
        Some(backend)
    }

    /// The backend's identity headers, if configured. Reports errors in them.
    fn identity_headers(&mut self, given: &MergedSection<ClusterKeys>) -> Option<RequestHeaderNames> {
        let BackendFlags {
            backend_requestheader_username_headers: user,
            backend_requestheader_uid_headers: uid,
            backend_requestheader_group_headers: group,
            backend_requestheader_extra_headers_prefix: extra,
            ..
        } = &given.values.backend;
        let key = given.key("backend-requestheader-username-headers");
        match [user, uid, group, extra].map(Vec::is_empty) {
            [true, true, true, true] => return None,
            [false, ..] => {}
            _ => {
                let error = ConfigError::new(key, "is required with the backend's other identity headers");
                return self.fail(error.fix(
                    "give all four, with the values of the backend's --requestheader-* flags, or none",
                ));
            }
        }
        match RequestHeaderNames::new(user, uid, group, extra) {
            Ok(names) => Some(names),
            Err(error) => {
                let error = ConfigError::new(key, error.to_string());
                self.fail(error.fix("give the header names of the backend's --requestheader-* flags"))
            }
        }
    }
}

/// The backend with the balancing keys; 0 is no limit. The operator chooses the addresses.
fn with_flags(backend: Backend, flags: &BackendFlags) -> Backend {
    let limit = |most: u32| match usize::try_from(most) {
        Ok(0) | Err(_) => usize::MAX,
        Ok(most) => most,
    };
    let policy = BackendPolicy {
        addresses: AddressPolicy::Any,
        max_requests: limit(flags.backend_max_requests_per_endpoint),
        max_watches: limit(flags.backend_max_watches_per_endpoint),
        watch_moves: flags.backend_move_watches.then(WatchMoves::default),
    };
    Backend { discovery: flags.backend_endpoint_discovery, policy, ..backend }
}

/// A DNS name in lower case, whose first label may be `*`.
fn is_server_name(name: &str) -> bool {
    DnsName::try_from(name.strip_prefix("*.").unwrap_or(name)).is_ok() && !name.ends_with('.')
}

/// Checks that a path prefix can precede the paths of an API server. Else returns the problem and the fix.
pub(super) fn checked_prefix(prefix: &str) -> Result<(), (String, &'static str)> {
    const SHAPE: &str = "give a path such as /clusters/prod";
    let Some(path) = prefix.strip_prefix('/') else {
        return Err(("does not begin with /".to_owned(), SHAPE));
    };
    let first = path.split('/').next().unwrap_or_default();
    if ROOTS.contains(&first) {
        let problem = format!("would hide /{first} of the API servers");
        return Err((problem, "give a path that no API server has, such as /clusters/prod"));
    }
    // RFC 3986, 3.3: pchar, without percent-encoding
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
    for segment in path.split('/') {
        match segment {
            "" => return Err(("ends with / or has an empty segment".to_owned(), SHAPE)),
            "." | ".." => return Err((format!("has the segment {segment}"), SHAPE)),
            segment if !segment.bytes().all(plain) => {
                return Err(("has a character that a path prefix cannot have".to_owned(), SHAPE));
            }
            _ => {}
        }
    }
    Ok(())
}
