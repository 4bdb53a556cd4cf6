//! The backend's kubeconfig: `kube` parses it, this module validates it. Must never accept a connection to the backend
//! that is less than mutually authenticated.
//!
//! [`user`] reads the gateway's own credential; [`exec`] runs credential plugins and [`plugin_cache`] caches their
//! credentials. Without a kubeconfig, a gateway in a pod uses its service account.

mod admission;
mod credential;
mod exec;
mod plugin_cache;
mod process;
mod user;
mod webhook;

use std::path::{Path, PathBuf};

use http::Uri;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use portcullis_go::base64 as go_base64;
use portcullis_http::identity::IdentityMode;
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_system::input_file::ReadFileError;
use rustls_pki_types::ServerName;

use super::error::ConfigError;
use super::inputs::InputReader;
use super::management_cluster::{below, is_in_secret};
use super::validity;
use crate::backend::settings::{
    Backend, BackendPolicy, Endpoint, EndpointDiscovery, EndpointSource, HostPort, TrustedRoots,
};
pub(super) use admission::{WebhookCredential, WebhookUsers};
use credential::{ClientCredential, NamedContent};
pub(super) use exec::{ExecPlugin, PluginCredential, PluginError};
pub use plugin_cache::CredentialUser;
pub(super) use plugin_cache::PluginCache;
pub(super) use webhook::{WebhookServer, load_remote};

/// The fix for a file that is not a kubeconfig.
const READABLE: &str = "give a readable kubeconfig";

/// The directory of a pod's service account.
pub(super) const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Reads a context of `file`: `context`, else the current one. `endpoints` are the URLs of the cluster's API servers,
/// each with its configuration key; if empty, the kubeconfig's `server` is the only one. Returns `None` if it added to
/// `errors`.
pub(crate) fn load(
    key: &str,
    file: &Path,
    context: Option<&str>,
    endpoints: &[(String, String)],
    identity: IdentityMode,
    inputs: &mut InputReader,
    errors: &mut Vec<ConfigError>,
) -> Option<Backend> {
    let mut reader = KubeconfigReader { key, file, before: errors.len(), inputs, errors };
    let backend = reader.backend(context, endpoints, identity);
    backend.filter(|_| !reader.failed())
}

/// The backend without a kubeconfig: the API server of the cluster that the gateway runs in, with the service account
/// of its pod. A reload picks up rotated tokens. `environment` and `directory` are the pod's.
// client-go: rest/config.go, InClusterConfig
pub(super) fn in_cluster(
    key: &str,
    environment: impl Fn(&str) -> Option<String>,
    directory: &Path,
    identity: IdentityMode,
    inputs: &mut InputReader,
    errors: &mut Vec<ConfigError>,
) -> Option<Backend> {
    let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
    let kubeconfig =
        "give a kubeconfig with the address and CA of the API server, and the gateway's certificate";
    let service = (variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT"));
    let (host, port) = match (service, identity) {
        ((Some(host), Some(port)), IdentityMode::Impersonate) => (host, port),
        ((Some(_), Some(_)), IdentityMode::RequestHeader) => {
            let problem = "is required with --identity=requestHeader: the pod's service account has a token, but no \
                           front-proxy certificate, without which the backend ignores the X-Remote-* headers";
            let fix = format!("{kubeconfig}; or use --identity=impersonate, with the pod's service account");
            errors.push(ConfigError::new(key, problem).fix(fix));
            return None;
        }
        _ => {
            errors.push(ConfigError::new(key, "is required").fix(kubeconfig));
            return None;
        }
    };
    let file = |name: &str| Some(directory.join(name).display().to_string());
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let cluster = Cluster {
        server: Some(format!("https://{host}:{port}")),
        certificate_authority: file("ca.crt"),
        ..Cluster::default()
    };
    let user = AuthInfo { token_file: file("token"), ..AuthInfo::default() };
    let mut reader = KubeconfigReader { key, file: directory, before: errors.len(), inputs, errors };
    let backend = reader.connect(&[], identity, &cluster, &user);
    backend.filter(|_| !reader.failed())
}

struct KubeconfigReader<'a> {
    key: &'a str,
    file: &'a Path,
    inputs: &'a mut InputReader,
    errors: &'a mut Vec<ConfigError>,
    /// The number of errors before this kubeconfig.
    before: usize,
}

impl KubeconfigReader<'_> {
    fn failed(&self) -> bool {
        self.errors.len() > self.before
    }

    fn report(&mut self, problem: impl Into<String>, fix: impl Into<String>) {
        self.errors.push(ConfigError::new(self.key, problem).in_file(self.file).fix(fix));
    }

    /// The value; reports an error.
    fn checked<T>(&mut self, result: Result<T, String>, fix: &str) -> Option<T> {
        result.map_err(|problem| self.report(problem, fix)).ok()
    }

    fn backend(
        &mut self,
        context: Option<&str>,
        endpoints: &[(String, String)],
        identity: IdentityMode,
    ) -> Option<Backend> {
        let (cluster, user) = self.cluster_and_user(context)?;
        self.connect(endpoints, identity, &cluster, &user)
    }

    /// The content of the file.
    fn config(&mut self) -> Option<Kubeconfig> {
        let read = self.inputs.read(self.file);
        let content = read.map_err(|error| {
            let fix = if matches!(error, ReadFileError::Io(_)) { READABLE } else { error.fix() };
            self.report(error.to_string(), fix);
        });
        let content = content.ok()?;
        let text = String::from_utf8(content).map_err(|_| "it is not valid UTF-8".to_owned());
        let text = self.checked(text, READABLE)?;
        self.checked(portcullis_kubernetes::kubeconfig::parse(&text), READABLE)
    }

    /// The cluster and the user of a context.
    fn cluster_and_user(&mut self, context: Option<&str>) -> Option<(Cluster, AuthInfo)> {
        let config = self.config()?;
        self.context(&config, context)
    }

    fn connect(
        &mut self,
        endpoints: &[(String, String)],
        identity: IdentityMode,
        cluster: &Cluster,
        user: &AuthInfo,
    ) -> Option<Backend> {
        let address = self.address(cluster);
        if cluster.proxy_url.as_deref().is_some_and(|url| !url.is_empty()) {
            let fix =
                "remove it: the gateway checks each address of the API servers, and connects to it directly";
            self.report("proxy-url is not supported for a backend", fix);
        }
        let roots = self.roots(cluster);
        let ClientCredential { certificate, token } = self.credential(cluster, user)?;
        match identity {
            IdentityMode::RequestHeader if certificate.is_none() => self.report(
                "the user has no client certificate, without which the backend ignores the X-Remote-* headers",
                "give client-certificate and client-key, signed by the backend's --requestheader-client-ca-file; \
                 or use --identity=impersonate",
            ),
            IdentityMode::Impersonate if certificate.is_none() && token.is_none() => self.report(
                "the user has no credential",
                "give a client certificate or a token that may impersonate users, groups, uids and userextras",
            ),
            _ => {}
        }
        let (address, path_prefix) = address?;
        // Invalid URLs are reported and left out; the configuration then fails as a whole.
        let addresses = if endpoints.is_empty() {
            vec![address]
        } else {
            endpoints.iter().filter_map(|(key, url)| self.endpoint_address(key, url, &path_prefix)).collect()
        };
        let endpoints = addresses.into_iter().filter_map(|address| self.endpoint(address, cluster)).collect();
        Some(Backend {
            endpoints,
            path_prefix,
            roots: roots?,
            client_certificate: certificate,
            // In requestHeader mode the certificate authenticates the gateway; a token would be a second identity.
            bearer_token: token.filter(|_| identity == IdentityMode::Impersonate),
            identity,
            identity_headers: None,
            discovery: EndpointDiscovery::None,
            policy: BackendPolicy::default(),
        })
    }

    /// The address of one of several endpoints. It has the path of `server` or none.
    fn endpoint_address(&mut self, key: &str, url: &str, path_prefix: &str) -> Option<HostPort> {
        let problem = match parse_server(url) {
            Ok((address, path)) if path.is_empty() || path == path_prefix => return Some(address),
            Ok((_, path)) => format!("{url:?}: the path {path} is not that of the kubeconfig's server"),
            Err(problem) => format!("{:?}: {problem}", without_user(url)),
        };
        self.errors.push(ConfigError::new(key, problem).fix("give https://HOST:PORT"));
        None
    }

    fn endpoint(&mut self, address: HostPort, cluster: &Cluster) -> Option<Endpoint> {
        let name =
            cluster.tls_server_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(&address.host);
        let parsed =
            ServerName::try_from(name.to_owned()).map_err(|error| format!("server name {name:?}: {error}"));
        let server_name = self.checked(parsed, "give a DNS name or an IP address")?;
        Some(Endpoint { address, server_name, source: EndpointSource::Configuration })
    }

    fn context(&mut self, config: &Kubeconfig, name: Option<&str>) -> Option<(Cluster, AuthInfo)> {
        let name = name.map(str::to_owned).or_else(|| config.current_context.clone());
        let name = name.filter(|name| !name.is_empty());
        let name =
            self.checked(name.ok_or("current-context is not set".to_owned()), "set current-context")?;
        let context =
            config.contexts.iter().find(|named| named.name == name).and_then(|named| named.context.clone());
        let context =
            self.checked(context.ok_or(format!("context {name:?} does not exist")), "add it to contexts")?;
        let cluster = config.clusters.iter().find(|named| named.name == context.cluster);
        let cluster = cluster.and_then(|named| named.cluster.clone());
        let missing = format!("cluster {:?} of context {name:?} does not exist", context.cluster);
        let cluster = self.checked(cluster.ok_or(missing), "add it to clusters")?;
        let Some(user_name) = context.user.filter(|name| !name.is_empty()) else {
            return Some((cluster, AuthInfo::default()));
        };
        let user = config.auth_infos.iter().find(|named| named.name == user_name);
        // As client-go: a user without fields is one without a credential.
        let user = user.map(|named| named.auth_info.clone().unwrap_or_default());
        let missing = format!("user {user_name:?} of context {name:?} does not exist");
        let user = self.checked(user.ok_or(missing), "add it to users")?;
        Some((cluster, user))
    }

    fn address(&mut self, cluster: &Cluster) -> Option<(HostPort, String)> {
        if cluster.insecure_skip_tls_verify == Some(true) {
            self.report("insecure-skip-tls-verify is not allowed", "give certificate-authority instead");
        }
        let server = cluster.server.clone().unwrap_or_default();
        let parsed = parse_server(&server);
        let parsed = parsed.map_err(|problem| format!("server {:?}: {problem}", without_user(&server)));
        self.checked(parsed, "give https://HOST:PORT")
    }

    fn roots(&mut self, cluster: &Cluster) -> Option<TrustedRoots> {
        let data = cluster.certificate_authority_data.as_deref();
        let pem = self.material("certificate-authority", data, cluster.certificate_authority.as_deref())?;
        let Some(pem) = pem else {
            // As client-go: without certificate-authority, the system's CAs are trusted.
            let roots = TrustedRoots::system();
            if roots.is_empty() {
                self.report(
                    "no certificate-authority, and the system has no CAs either",
                    "give certificate-authority",
                );
            }
            return Some(roots);
        };
        let bundle = CaBundle::from_pem(&pem.bytes).map_err(|error| format!("{}: {error}", pem.name));
        let bundle = self.checked(bundle, "give PEM certificates of the CAs")?;
        self.warn_of_dates(&pem.name, bundle.certificates());
        Some(TrustedRoots::from_bundle(bundle))
    }

    /// Warns about certificates of `field` that are expired or not yet valid.
    fn warn_of_dates(&mut self, field: &str, certificates: &[Certificate]) {
        let now = self.inputs.now();
        self.inputs.note_validity(certificates);
        if let Some(warning) = validity::warning(self.key, self.file, field, certificates, now) {
            self.inputs.warn(warning);
        }
    }

    /// The content of a field, inline in base64 or in a file. `None`: an error was reported; `Some(None)`: it is not
    /// set.
    #[expect(clippy::option_option, reason = "reported and absent are different")]
    fn material(
        &mut self,
        field: &str,
        data: Option<&str>,
        path: Option<&str>,
    ) -> Option<Option<NamedContent>> {
        // As client-go: inline data takes precedence over the file.
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let name = format!("{field}-data");
            // The decoder's error would quote a byte of a key.
            let decoded = go_base64::decode(data).map_err(|_| format!("{name} is not base64"));
            return self.checked(decoded, "give base64").map(|bytes| Some(NamedContent { name, bytes }));
        }
        match path.filter(|path| !path.is_empty()) {
            Some(path) => self.file(field, path).map(Some),
            None => Some(None),
        }
    }

    /// Reads the file named by a field.
    fn file(&mut self, field: &str, path: &str) -> Option<NamedContent> {
        let path = self.path(path);
        let name = format!("{field} {}", path.display());
        let read = self.inputs.read(&path).map_err(|error| (format!("{name}: {error}"), error.fix()));
        let bytes = read.map_err(|(problem, fix)| self.report(problem, fix)).ok()?;
        Some(NamedContent { name, bytes })
    }

    /// Resolves a path of the kubeconfig against its directory.
    // client-go: tools/clientcmd/loader.go, ResolveLocalPaths
    fn path(&self, given: &str) -> PathBuf {
        below(self.file.parent().unwrap_or(Path::new("")), Path::new(given))
    }
}

/// A URL without its user and password, also if it has no scheme and is none.
fn without_user(url: &str) -> &str {
    url.rsplit_once('@').map_or(url, |(_, rest)| rest)
}

/// The host, the port, and the path prefix without a trailing slash.
fn parse_server(server: &str) -> Result<(HostPort, String), String> {
    let uri: Uri = server.parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
    match uri.scheme_str() {
        Some("https") => {}
        Some("http") => {
            return Err(
                "http is not allowed: credentials and identities would be sent in clear text".to_owned()
            );
        }
        _ => return Err("not an https:// URL".to_owned()),
    }
    let authority = uri.authority().ok_or("no host")?;
    if authority.as_str().contains('@') {
        return Err("a user name in the URL is not supported".to_owned());
    }
    if uri.query().is_some() {
        return Err("a query in the URL is not supported".to_owned());
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() {
        return Err("no host".to_owned());
    }
    let port = authority.port_u16().unwrap_or(443);
    Ok((HostPort { host, port }, uri.path().trim_end_matches('/').to_owned()))
}

#[cfg(test)]
mod tests;
