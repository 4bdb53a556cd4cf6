//! Resolves the section of the page. Its host name must not be one by which the API is reached: an application behind the
//! API could read the page there, and browsers share cookies among all ports of a host.
// threat: page-shared-origin

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openidconnect::url::{Host, Url};
use portcullis_go::pem::encode_pem;
use portcullis_http::client_tls::TrustedRoots;
use portcullis_openid::provider::{OpenIdClientSettings, ScopeChoice};
use portcullis_pki::x509::CaBundle;
use secrecy::zeroize::Zeroizing;
use secrecy::{SecretBox, SecretString};

use super::{ConfigResolver, listed};
use crate::cluster::settings::{Cluster, Routes};
use crate::config::error::ConfigError;
use crate::config::flags::{MetricsAddress, PageFlags};
use crate::config::management_cluster::ManagementSettings;
use crate::config::page_settings::{CookieKey, KubeconfigSettings, PageSettings};
use crate::config::sections::MergedSection;
use crate::config::separate_cluster::{Claim, ResolvedCluster, SERVER_NAME};
use crate::config::settings::{Operation, ServingSettings};

const ADDRESS: &str = "page-bind-address";
const URL: &str = "page-url";
const ISSUER: &str = "page-oidc-issuer-url";
const CLIENT: &str = "page-oidc-client-id";
const SECRET: &str = "page-oidc-client-secret-file";
const SCOPES: &str = "page-oidc-scopes";
const API_URL: &str = "page-api-server-url";
const KUBECONFIG_CLIENT: &str = "page-kubeconfig-client-id";
const PROXY_PROTOCOL: &str = "page-proxy-protocol";
const PROXY_NETWORKS: &str = "page-proxy-protocol-trusted-networks";
const OTHERS: [&str; 14] = [
    URL,
    "page-tls-cert-file",
    "page-tls-private-key-file",
    ISSUER,
    CLIENT,
    SECRET,
    "page-oidc-ca-file",
    SCOPES,
    "page-cookie-key-file",
    API_URL,
    "page-api-server-ca-file",
    KUBECONFIG_CLIENT,
    PROXY_PROTOCOL,
    PROXY_NETWORKS,
];
/// Each login asks for consent with it, and the page keeps no refresh token.
const OFFLINE: &str = "offline_access";

/// The names, the addresses and the TLS options of the gateway's other listeners.
pub(super) struct GatewayNames<'a> {
    serving: Option<&'a ServingSettings>,
    addresses: Vec<(&'static str, SocketAddr)>,
    clusters: &'a [Arc<Cluster>],
    /// The domain of the clusters of Secrets.
    domain: Option<&'a str>,
}

impl<'a> GatewayNames<'a> {
    pub(super) fn of(
        serving: Option<&'a ServingSettings>,
        operation: Option<&Operation>,
        clusters: &'a [Arc<Cluster>],
        management: Option<&'a ManagementSettings>,
    ) -> Self {
        let metrics = operation.and_then(|operation| match operation.metrics {
            MetricsAddress::On(address) => Some(("metrics-bind-address", address)),
            MetricsAddress::Off => None,
        });
        let api = serving.map(|serving| ("bind-address", serving.address));
        Self {
            serving,
            addresses: api.into_iter().chain(metrics).collect(),
            clusters,
            domain: management.and_then(|management| management.domain.as_deref()),
        }
    }
}

/// The server name of these clusters that covers a host name, as the error of the page calls it.
fn covering(host: &str, clusters: &[Arc<Cluster>], domain: Option<&str>) -> Option<String> {
    let names = clusters.iter().flat_map(|cluster| match &cluster.routes {
        Routes::Everything => &[][..],
        Routes::Matching { server_names, .. } => server_names,
    });
    let name =
        names.cloned().chain(domain.map(|domain| format!("*.{domain}"))).find(|name| covers(name, host))?;
    Some(format!("the server name {name} of a cluster"))
}

/// The error of a page whose host name one of these clusters has, too.
// threat: page-shared-origin
pub(crate) fn page_host_conflict(page: &PageSettings, clusters: &[Arc<Cluster>]) -> Option<ConfigError> {
    let [key, _] = &page.keys;
    Some(shared_origin(key, page.host(), &covering(page.host(), clusters, None)?))
}

/// The error of a cluster whose server names cover the host name of the page.
// threat: page-shared-origin
pub(crate) fn page_host_claim(page: &PageSettings, cluster: &ResolvedCluster) -> Option<ConfigError> {
    let is_of_page = |((kind, name), _): &(&Claim, _)| *kind == SERVER_NAME && covers(name, page.host());
    let ((_, name), key) = cluster.claims.iter().find(is_of_page)?;
    let problem = format!(
        "{name:?} is also of {}, the host name of the page: every application behind the API could read the page, and get \
         its cookies",
        page.host()
    );
    Some(ConfigError::new(key, problem).fix("give the cluster another server name"))
}

fn shared_origin(key: &str, host: &str, taken: &str) -> ConfigError {
    let problem = format!(
        "{host} is also {taken}: every application behind the API could read the page, and get its cookies"
    );
    ConfigError::new(key, problem).fix("give the page a host name of its own")
}

/// The warning about a page whose ID tokens none of these clusters accepts, if there are any clusters.
pub(crate) fn unknown_issuer_warning(page: &PageSettings, clusters: &[Arc<Cluster>]) -> Option<String> {
    let ([_, issuer_key], client) = (&page.keys, &page.client);
    let accepts = |cluster: &Arc<Cluster>| {
        cluster.authentication.webhook.is_some()
            || cluster.authentication.jwt.iter().any(|known| {
                known.issuer.url == client.issuer && known.issuer.audiences.contains(&client.client_id)
            })
    };
    (!clusters.is_empty() && !clusters.iter().any(accepts)).then(|| {
        format!(
            "{issuer_key}: no cluster accepts ID tokens of this issuer for the client {:?}; the page shows none",
            client.client_id
        )
    })
}

/// Whether a server name, exact or a wildcard of one label, is of a host.
fn covers(name: &str, host: &str) -> bool {
    let below = |rest: &str| host.split_once('.').is_some_and(|(_, parent)| parent == rest);
    name.eq_ignore_ascii_case(host)
        || name.strip_prefix("*.").is_some_and(|rest| below(&rest.to_ascii_lowercase()))
}

/// An HTTPS URL without a path: its host and port in lower case, without the default port.
fn origin(text: &str) -> Option<(Url, String)> {
    let url = Url::parse(text).ok()?;
    let is_plain = url.scheme() == "https"
        && url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    let authority = match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        (None, _) => return None,
    };
    is_plain.then_some((url, authority))
}

/// The host of a host with or without a port.
fn host_of(authority: &str) -> &str {
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

type Given = MergedSection<PageFlags>;

impl ConfigResolver<'_> {
    /// The page; `None` also after an error, which prevents the start anyway.
    pub(super) fn page(&mut self, given: &Given, gateway: &GatewayNames<'_>) -> Option<PageSettings> {
        let flags = &given.values;
        let Some(address) = flags.page_bind_address.as_deref() else {
            for flag in OTHERS.into_iter().filter(|flag| given.is_given(flag)) {
                self.warn_of_no_effect(given, flag, ADDRESS);
            }
            return None;
        };
        if cfg!(not(feature = "page")) {
            let error = ConfigError::new(given.key(ADDRESS), "this build of portcullis has no page");
            return self.fail(error.fix("remove it, or build portcullis with the cargo feature page"));
        }
        let address = self.page_address(given, address, gateway);
        let api = self.page_api(given, gateway);
        let origin = self.page_origin(given, gateway, api.as_deref());
        let certificate = self.page_certificate(given);
        let issuer_ca = self.page_ca(given, "page-oidc-ca-file", flags.page_oidc_ca_file.as_ref());
        let api_ca = self.page_ca(given, "page-api-server-ca-file", flags.page_api_server_ca_file.as_ref());
        let client = self.page_client(given, issuer_ca.as_ref());
        let cookie_key = self.page_cookie_key(given);
        let kubeconfig_client = self.page_kubeconfig_client(given);
        let proxy_protocol = self.proxy_protocol(
            (&given.key(PROXY_PROTOCOL), flags.page_proxy_protocol),
            (&given.key(PROXY_NETWORKS), &flags.page_proxy_protocol_trusted_networks),
        );
        let client = client?;
        Some(PageSettings {
            keys: [URL, ISSUER].map(|flag| given.key(flag)),
            address: address?,
            origin: format!("https://{}", origin?),
            certificate: certificate?,
            crypto: Arc::clone(&gateway.serving?.provider),
            versions: gateway.serving?.versions.clone(),
            proxy_protocol,
            client,
            cookie_key,
            kubeconfig: KubeconfigSettings {
                api_authority: api?,
                api_ca: api_ca.map(|bundle| certificates_of(&bundle)),
                client_id: kubeconfig_client?,
                issuer_ca: issuer_ca.map(|bundle| certificates_of(&bundle)),
                scopes: listed(&flags.page_oidc_scopes),
            },
        })
    }

    fn page_address(&mut self, given: &Given, text: &str, gateway: &GatewayNames<'_>) -> Option<SocketAddr> {
        let key = given.key(ADDRESS);
        let address = text.parse::<SocketAddr>().map_err(|error| {
            ConfigError::new(&key, format!("{text:?}: {error}")).fix("give IP:PORT, such as 0.0.0.0:8443")
        });
        let address = self.ok(address)?;
        let is_same = |other: &SocketAddr| {
            let same_ip =
                other.ip() == address.ip() || other.ip().is_unspecified() || address.ip().is_unspecified();
            other.port() != 0 && other.port() == address.port() && same_ip
        };
        if let Some((flag, other)) = gateway.addresses.iter().find(|(_, other)| is_same(other)) {
            let error = ConfigError::new(key, format!("{address} is in use by --{flag}, {other}"));
            return self.fail(error.fix("give the page a port of its own"));
        }
        Some(address)
    }

    /// The host and port of the API for users.
    // threat: secret-takes-route
    fn page_api(&mut self, given: &Given, gateway: &GatewayNames<'_>) -> Option<String> {
        let key = given.key(API_URL);
        let Some(url) = &given.values.page_api_server_url else { return self.page_required(given, API_URL) };
        let Some((_, authority)) = origin(url) else {
            let error = ConfigError::new(key, format!("{url:?} is not an https:// URL without a path"));
            return self
                .fail(error.fix("give the URL of the API for users, such as https://api.example.com:6443"));
        };
        let host = host_of(&authority);
        if let Some(domain) = gateway.domain.filter(|domain| covers(&format!("*.{domain}"), host)) {
            let problem = format!(
                "{host} is a name in managementCluster.domain {domain:?}: a Secret would get the requests for the clusters \
                 below it"
            );
            let error = ConfigError::new(key, problem);
            return self.fail(error.fix("give the management cluster a domain of its own"));
        }
        Some(authority)
    }

    // threat: page-shared-origin
    fn page_origin(
        &mut self,
        given: &Given,
        gateway: &GatewayNames<'_>,
        api: Option<&str>,
    ) -> Option<String> {
        let key = given.key(URL);
        let Some(text) = &given.values.page_url else { return self.page_required(given, URL) };
        let Some((url, authority)) = origin(text) else {
            let error = ConfigError::new(key, format!("{text:?} is not an https:// URL without a path"));
            return self.fail(error.fix("give the URL of the page, such as https://clusters.example.com"));
        };
        let Some(Host::Domain(host)) = url.host() else {
            let error = ConfigError::new(key, format!("{text:?} has an address instead of a host name"));
            return self.fail(
                error.fix(
                    "give the page a host name: browsers share the cookies of an address among its ports",
                ),
            );
        };
        // Requests are compared without the dot.
        if host.ends_with('.') {
            let error = ConfigError::new(key, format!("{host} ends with a dot"));
            return self.fail(error.fix("give the host name without it"));
        }
        let api_host = api.map(host_of);
        let taken = covering(host, gateway.clusters, gateway.domain)
            .or_else(|| api_host.filter(|api| *api == host).map(|_| given.key(API_URL)));
        match taken {
            Some(taken) => self.fail(shared_origin(&key, host, &taken)),
            None => Some(authority),
        }
    }

    fn page_certificate(&mut self, given: &Given) -> Option<portcullis_pki::x509::CertificateKeyPair> {
        let flags = &given.values;
        let (cert, key) = (given.place("page-tls-cert-file"), given.place("page-tls-private-key-file"));
        if flags.page_tls_cert_file.is_none() {
            self.page_required::<()>(given, "page-tls-cert-file");
        }
        if flags.page_tls_private_key_file.is_none() {
            self.page_required::<()>(given, "page-tls-private-key-file");
        }
        let (cert_file, key_file) =
            (flags.page_tls_cert_file.as_deref()?, flags.page_tls_private_key_file.as_deref()?);
        self.certificate(&cert, cert_file, &key, key_file, None).map(|certificate| certificate.pair)
    }

    fn page_client(&mut self, given: &Given, ca: Option<&CaBundle>) -> Option<OpenIdClientSettings> {
        let flags = &given.values;
        let issuer = match &flags.page_oidc_issuer_url {
            Some(issuer) => self.page_issuer(given, issuer),
            None => self.page_required(given, ISSUER),
        };
        let client_id = match flags.page_oidc_client_id.as_deref() {
            Some(id) if !id.is_empty() => Some(id.to_owned()),
            _ => self.page_required(given, CLIENT),
        };
        let secret = match &flags.page_oidc_client_secret_file {
            Some(file) => Some(self.page_secret(given, file)?),
            None => None,
        };
        let scopes = listed(&flags.page_oidc_scopes);
        let is_scope =
            |scope: &str| !scope.is_empty() && !scope.contains(|c: char| c.is_whitespace() || c.is_control());
        if let Some(bad) = scopes.iter().find(|scope| !is_scope(scope)) {
            let error = ConfigError::new(given.key(SCOPES), format!("{bad:?} is not a scope"));
            return self.fail(error.fix("give names without blanks, such as email,groups"));
        }
        let own = scopes.into_iter().filter(|scope| scope != "openid" && scope != OFFLINE).collect();
        let roots = match ca {
            Some(bundle) => TrustedRoots::from_bundle(bundle.clone()),
            None => TrustedRoots::system(),
        };
        Some(OpenIdClientSettings {
            issuer: issuer?,
            client_id: client_id?,
            secret,
            roots,
            scopes: ScopeChoice::These(own),
            extra: Vec::new(),
            user: None,
        })
    }

    // OpenID Connect Discovery 1.0, section 2: https, without query and fragment
    fn page_issuer(&mut self, given: &Given, issuer: &str) -> Option<String> {
        let is_issuer = Url::parse(issuer).is_ok_and(|url| {
            url.scheme() == "https"
                && url.has_host()
                && url.query().is_none()
                && url.fragment().is_none()
                && url.username().is_empty()
        });
        if !is_issuer {
            let problem = format!("{issuer:?} is not an https:// URL without user, query and fragment");
            return self
                .fail(ConfigError::new(given.key(ISSUER), problem).fix("give the issuer of the ID tokens"));
        }
        Some(issuer.to_owned())
    }

    fn page_secret(&mut self, given: &Given, file: &std::path::Path) -> Option<SecretString> {
        let place = given.place(SECRET);
        let file = place.path(file);
        let content = Zeroizing::new(self.read(&place.key, &file)?);
        let text = std::str::from_utf8(&content).unwrap_or_default().trim_end_matches(['\r', '\n']);
        if text.is_empty() {
            let error = ConfigError::new(&place.key, "is empty, or no UTF-8 text").in_file(&file);
            return self.fail(error.fix("put the client secret into the file"));
        }
        Some(SecretString::from(text))
    }

    /// A CA bundle; `None` also after an error, which prevents the start anyway.
    fn page_ca(&mut self, given: &Given, flag: &str, file: Option<&PathBuf>) -> Option<CaBundle> {
        let place = given.place(flag);
        let file = place.path(file?);
        let pem = self.read(&place.key, &file)?;
        let bundle = CaBundle::from_pem(&pem).map_err(|error| {
            ConfigError::new(&place.key, error.to_string()).in_file(&file).fix("give PEM certificates")
        });
        let bundle = self.ok(bundle)?;
        self.warn_of_dates(&place.key, &file, "", bundle.certificates());
        Some(bundle)
    }

    /// The key of the cookies; `None` also after an error, which prevents the start anyway.
    fn page_cookie_key(&mut self, given: &Given) -> Option<CookieKey> {
        let place = given.place("page-cookie-key-file");
        let file = place.path(given.values.page_cookie_key_file.as_ref()?);
        let content = Zeroizing::new(self.read(&place.key, &file)?);
        let text = content.trim_ascii();
        let raw = (content.len() == 32).then(|| Zeroizing::new(content.to_vec()));
        let Some(bytes) = raw.or_else(|| STANDARD.decode(text).ok().map(Zeroizing::new)) else {
            return self.bad_cookie_key(&place.key, &file);
        };
        match <[u8; 32]>::try_from(bytes.as_slice()) {
            Ok(key) if key.iter().any(|byte| Some(byte) != key.first()) => {
                Some(CookieKey(SecretBox::new(Box::new(key))))
            }
            _ => self.bad_cookie_key(&place.key, &file),
        }
    }

    fn bad_cookie_key<T>(&mut self, key: &str, file: &std::path::Path) -> Option<T> {
        let error = ConfigError::new(key, "does not have 32 random bytes, raw or in base64").in_file(file);
        self.fail(error.fix("openssl rand -base64 32 > FILE"))
    }

    fn page_kubeconfig_client(&mut self, given: &Given) -> Option<String> {
        let flags = &given.values;
        match (&flags.page_kubeconfig_client_id, &flags.page_oidc_client_secret_file) {
            (Some(id), _) if !id.is_empty() => Some(id.clone()),
            (_, None) => flags.page_oidc_client_id.clone(),
            (_, Some(_)) => {
                let problem = format!("is required with {}: a kubeconfig has no secret", given.key(SECRET));
                let error = ConfigError::new(given.key(KUBECONFIG_CLIENT), problem);
                self.fail(
                    error.fix("give the ID of a public client of the provider, with which users log in"),
                )
            }
        }
    }

    fn page_required<T>(&mut self, given: &Given, flag: &str) -> Option<T> {
        let problem = format!("is required with {}", given.key(ADDRESS));
        let fix = match flag {
            URL => "give the URL of the page, such as https://clusters.example.com",
            ISSUER => "give the issuer URL of the OpenID provider",
            CLIENT => "give the ID of the page's client at the provider",
            API_URL => "give the URL of the API for users, such as https://api.example.com:6443",
            _ => "give the page's serving certificate and its key",
        };
        self.fail(ConfigError::new(given.key(flag), problem).fix(fix))
    }
}

/// The certificates of a bundle, and nothing else that its file may contain.
fn certificates_of(bundle: &CaBundle) -> String {
    bundle.certificates().iter().map(|certificate| encode_pem("CERTIFICATE", &certificate.der)).collect()
}
