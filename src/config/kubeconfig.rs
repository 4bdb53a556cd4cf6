//! The backend's kubeconfig: read by `kube`, judged here. What would make the connection to the backend less than
//! mutually authenticated is refused.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secrecy::ExposeSecret as _;

use super::error::ConfigError;
use super::inputs::Inputs;
use crate::authn::BearerToken;
use crate::clusters::settings::{Backend, ClientCertificate, Endpoint, HostPort, IdentityMode, Roots};

/// Reads a context of `file`: the one named, else the current one. `endpoints` are URLs of replicas of its cluster, each
/// with the key it was given by; none means that `server` is the only one. Errors go to `errors`; `None` means there
/// were some.
pub(super) fn load(
    key: &str,
    file: &Path,
    context: Option<&str>,
    endpoints: &[(String, String)],
    identity: IdentityMode,
    inputs: &mut Inputs,
    errors: &mut Vec<ConfigError>,
) -> Option<Backend> {
    let mut reader = Reader { key, file, inputs, errors };
    let before = reader.errors.len();
    let backend = reader.backend(context, endpoints, identity);
    if reader.errors.len() > before { None } else { backend }
}

struct Reader<'a> {
    key: &'a str,
    file: &'a Path,
    inputs: &'a mut Inputs,
    errors: &'a mut Vec<ConfigError>,
}

impl Reader<'_> {
    fn report(&mut self, problem: impl Into<String>, fix: &str) {
        self.errors.push(ConfigError::new(self.key, problem).in_file(self.file).fix(fix));
    }

    /// The value, or a report of why there is none.
    fn checked<T>(&mut self, result: Result<T, String>, fix: &str) -> Option<T> {
        result.map_err(|problem| self.report(problem, fix)).ok()
    }

    fn backend(
        &mut self,
        context: Option<&str>,
        endpoints: &[(String, String)],
        identity: IdentityMode,
    ) -> Option<Backend> {
        let read = self.inputs.read(self.file).map_err(|error| error.to_string());
        self.checked(read, "give a readable kubeconfig")?;
        // Once more, by the one that knows what relative paths in it are relative to.
        let parsed = Kubeconfig::read_from(self.file).map_err(|error| chain(&error));
        let config = self.checked(parsed, "give a readable kubeconfig")?;
        let (cluster, user) = self.context(&config, context)?;
        let address = self.address(&cluster);
        let roots = self.roots(&cluster);
        let client_certificate = self.client_certificate(&user);
        let bearer_token = self.bearer_token(&user);
        self.refuse_other_credentials(&user);
        match identity {
            IdentityMode::RequestHeader if client_certificate.is_none() => self.report(
                "the user has no client certificate, so the backend would not believe the X-Remote-* headers",
                "give client-certificate and client-key, signed by the backend's --requestheader-client-ca-file; \
                 or use --identity=impersonate",
            ),
            IdentityMode::Impersonate if client_certificate.is_none() && bearer_token.is_none() => self.report(
                "the user has no credential",
                "give a client certificate or a token that may impersonate users, groups, uids and userextras",
            ),
            _ => {}
        }
        let (address, path_prefix) = address?;
        // One that is bad is left out here and told, and then nothing is served.
        let addresses = if endpoints.is_empty() {
            vec![address]
        } else {
            endpoints.iter().filter_map(|(key, url)| self.replica(key, url, &path_prefix)).collect()
        };
        let name = cluster.tls_server_name.as_deref().filter(|name| !name.is_empty());
        let endpoints = addresses.into_iter().filter_map(|address| self.endpoint(address, name)).collect();
        Some(Backend {
            endpoints,
            path_prefix,
            roots: Roots(Arc::new(roots?)),
            client_certificate,
            // In requestHeader mode the certificate speaks; a token beside it would only be a second identity.
            bearer_token: bearer_token.filter(|_| identity == IdentityMode::Impersonate),
            identity,
        })
    }

    /// The address of one of several replicas, whose path can only be that of `server`.
    fn replica(&mut self, key: &str, url: &str, path_prefix: &str) -> Option<HostPort> {
        let problem = match parse_server(url) {
            Ok((address, path)) if path.is_empty() || path == path_prefix => return Some(address),
            Ok((_, path)) => format!("{url:?}: the path {path} is not that of the kubeconfig's server"),
            Err(problem) => format!("{url:?}: {problem}"),
        };
        self.errors.push(ConfigError::new(key, problem).fix("give https://HOST:PORT"));
        None
    }

    fn endpoint(&mut self, address: HostPort, tls_server_name: Option<&str>) -> Option<Endpoint> {
        let name = tls_server_name.unwrap_or(&address.host);
        let parsed =
            ServerName::try_from(name.to_owned()).map_err(|error| format!("server name {name:?}: {error}"));
        let server_name = self.checked(parsed, "give a DNS name or an IP address")?;
        Some(Endpoint { address, server_name })
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
        let user_name = context.user.unwrap_or_default();
        let user = config.auth_infos.iter().find(|named| named.name == user_name);
        let user = user.and_then(|named| named.auth_info.clone());
        let missing = format!("user {user_name:?} of context {name:?} does not exist");
        let user = self.checked(user.ok_or(missing), "add it to users")?;
        Some((cluster, user))
    }

    fn address(&mut self, cluster: &Cluster) -> Option<(HostPort, String)> {
        if cluster.insecure_skip_tls_verify == Some(true) {
            self.report("insecure-skip-tls-verify is not allowed", "give certificate-authority instead");
        }
        if cluster.proxy_url.as_deref().is_some_and(|url| !url.is_empty()) {
            self.report("proxy-url is not supported", "connect to the API server directly");
        }
        let server = cluster.server.clone().unwrap_or_default();
        let parsed = parse_server(&server).map_err(|problem| format!("server {server:?}: {problem}"));
        self.checked(parsed, "give https://HOST:PORT")
    }

    fn roots(&mut self, cluster: &Cluster) -> Option<rustls::RootCertStore> {
        let data = cluster.certificate_authority_data.as_deref();
        let pem = self.material("certificate-authority", data, cluster.certificate_authority.as_deref())?;
        let mut roots = rustls::RootCertStore::empty();
        let Some(pem) = pem else {
            // As client-go: without a CA of its own, the system's are trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                self.report(
                    "no certificate-authority, and the system has none either",
                    "give certificate-authority",
                );
            }
            return Some(roots);
        };
        let parsed = CertificateDer::pem_slice_iter(&pem)
            .map(|cert| cert.map_err(|error| error.to_string()))
            .try_for_each(|cert| cert.and_then(|cert| roots.add(cert).map_err(|error| error.to_string())));
        self.checked(
            parsed.map_err(|error| format!("certificate-authority: {error}")),
            "give PEM certificates",
        )?;
        if roots.is_empty() {
            self.report("certificate-authority holds no certificate", "give PEM certificates");
        }
        Some(roots)
    }

    fn client_certificate(&mut self, user: &AuthInfo) -> Option<ClientCertificate> {
        let chain = self.material(
            "client-certificate",
            user.client_certificate_data.as_deref(),
            user.client_certificate.as_deref(),
        )?;
        let key_data = user.client_key_data.as_ref().map(|key| key.expose_secret().to_owned());
        let key = self.material("client-key", key_data.as_deref(), user.client_key.as_deref())?;
        let (chain, key) = match (chain, key) {
            (Some(chain), Some(key)) => (chain, key),
            (None, None) => return None,
            (Some(_), None) => {
                self.report("the user has a client-certificate but no client-key", "give both");
                return None;
            }
            (None, Some(_)) => {
                self.report("the user has a client-key but no client-certificate", "give both");
                return None;
            }
        };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
        let chain = chain.map_err(|error| format!("client-certificate: {error}"));
        let chain = self.checked(chain, "give PEM certificates")?;
        if chain.is_empty() {
            self.report("client-certificate holds no certificate", "give PEM certificates");
            return None;
        }
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| format!("client-key: {error}"));
        let key = self.checked(key, "give a PEM private key")?;
        Some(ClientCertificate { chain, key })
    }

    fn bearer_token(&mut self, user: &AuthInfo) -> Option<BearerToken> {
        // As client-go: tokenFile takes precedence over token.
        if let Some(path) = user.token_file.as_deref().filter(|path| !path.is_empty()) {
            let read = self.inputs.read(Path::new(path)).map_err(|error| error.to_string());
            let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned()));
            let text = text.map_err(|problem| format!("tokenFile {path}: {problem}"));
            return self.checked(text, "give a readable file").map(|text| BearerToken::new(text.trim()));
        }
        user.token.as_ref().map(|token| BearerToken::new(token.expose_secret()))
    }

    fn refuse_other_credentials(&mut self, user: &AuthInfo) {
        let others = [
            ("exec", user.exec.is_some()),
            ("auth-provider", user.auth_provider.is_some()),
            ("username", user.username.is_some()),
            ("as", user.impersonate.is_some()),
            ("as-uid", user.impersonate_uid.is_some()),
            ("as-groups", user.impersonate_groups.is_some()),
            ("as-user-extra", user.impersonate_user_extra.is_some()),
        ];
        for (field, _) in others.into_iter().filter(|(_, set)| *set) {
            self.report(
                format!("the user's field {field} is not supported"),
                "give a client certificate, a token or a tokenFile",
            );
        }
    }

    /// The content of a pair of fields, inline in base64 or in a file. `read_from` has already joined a relative path
    /// with the directory of the kubeconfig. `None`: an error was reported; `Some(None)`: neither is set.
    #[expect(clippy::option_option, reason = "reported and absent are different")]
    fn material(&mut self, field: &str, data: Option<&str>, path: Option<&str>) -> Option<Option<Vec<u8>>> {
        // As client-go: inline data takes precedence over the file.
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let decoded = STANDARD.decode(data).map_err(|error| format!("{field}-data: {error}"));
            return self.checked(decoded, "give base64").map(Some);
        }
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return Some(None);
        };
        let read = self.inputs.read(Path::new(path)).map_err(|error| format!("{field} {path}: {error}"));
        self.checked(read, "give a readable file").map(Some)
    }
}

/// The host, the port, and the path prefix without a trailing slash.
fn parse_server(server: &str) -> Result<(HostPort, String), String> {
    let uri: Uri = server.parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
    match uri.scheme_str() {
        Some("https") => {}
        Some("http") => return Err("http is not allowed: identity headers would go unprotected".to_owned()),
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

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_https_urls_with_a_host() {
        type Expected = Result<(&'static str, u16, &'static str), &'static str>;
        let cases: &[(&str, Expected)] = &[
            ("https://10.0.0.1:6443", Ok(("10.0.0.1", 6443, ""))),
            ("https://api.example.com", Ok(("api.example.com", 443, ""))),
            ("https://api.example.com/", Ok(("api.example.com", 443, ""))),
            ("https://[::1]:6443", Ok(("::1", 6443, ""))),
            ("https://r.example.com/k8s/clusters/c-1/", Ok(("r.example.com", 443, "/k8s/clusters/c-1"))),
            ("http://10.0.0.1", Err("http is not allowed")),
            ("10.0.0.1:6443", Err("not an https")),
            ("https://u:p@10.0.0.1", Err("user name")),
            ("https://10.0.0.1/?a=b", Err("query")),
            ("", Err("")),
        ];
        for (server, expected) in cases {
            match (parse_server(server), expected) {
                (Ok((address, prefix)), Ok((host, port, wanted))) => {
                    assert_eq!(
                        (address.host.as_str(), address.port, prefix.as_str()),
                        (*host, *port, *wanted)
                    );
                }
                (Err(error), Err(wanted)) => assert!(error.contains(wanted), "{server}: {error}"),
                (got, _) => panic!("{server}: {got:?}"),
            }
        }
    }
}
