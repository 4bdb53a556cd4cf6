//! How the gateway reaches each webhook: the URL, the trusted CAs and the credential.
//!
//! Follows `k8s.io/apiserver/pkg/util/webhook/client.go`, `hookClientConfig`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use http::Uri;
use portcullis_admission::configuration::manifest::Manifests;
use portcullis_admission::{Webhook, WebhookKind};
use portcullis_go::quote::Quoted;
use portcullis_go::url::{self, Part, Url};
use portcullis_http::client_tls::{ClientTls, TrustedRoots};
use portcullis_pki::x509::CaBundle;
use rustls_pki_types::ServerName;

use super::super::ConfigResolver;
use super::PluginFiles;
use crate::admission::settings::{WebhookConnection, WebhookConnections};
use crate::config::error::ConfigError;
use crate::config::kubeconfig::{WebhookCredential, WebhookUsers};

/// The server for which kube-apiserver uses its own identity.
// authentication.go, NewDefaultAuthenticationInfoResolverWrapper
const API_SERVER: &str = "kubernetes.default.svc:443";

/// What several webhooks of a plugin share.
#[derive(Default)]
struct SharedParts {
    roots: BTreeMap<Vec<u8>, Option<TrustedRoots>>,
    connections: BTreeMap<(String, Vec<u8>), Option<Arc<WebhookConnection>>>,
}

impl ConfigResolver<'_> {
    /// The webhooks of a plugin; adds their connections. With any error there are none.
    pub(super) fn load_webhooks(
        &mut self,
        key: &str,
        kind: WebhookKind,
        files: &PluginFiles,
        connections: &mut WebhookConnections,
    ) -> Vec<Webhook> {
        let before = self.errors.len();
        let PluginFiles { kubeconfig, manifests } = files;
        let kubeconfig = kubeconfig.as_ref();
        let users = kubeconfig.map(|file| WebhookUsers::load(key, file, self.inputs, &mut self.errors));
        let webhooks = match manifests {
            Some(folder) => self.manifests(key, folder, Manifests::webhooks(kind, self.release)),
            None => Vec::new(),
        };
        let Some(mut users) = users.map_or(Some(None), |users| users.map(Some)) else { return Vec::new() };
        let mut shared = SharedParts::default();
        for webhook in &webhooks {
            let by = (webhook.url.clone(), webhook.ca_bundle.clone());
            let known = shared.connections.get(&by).cloned();
            let connection = known.unwrap_or_else(|| {
                let made = self.connection(key, webhook, manifests.as_deref(), users.as_mut(), &mut shared);
                let made = made.map(Arc::new);
                shared.connections.insert(by, made.clone());
                made
            });
            if let Some(connection) = connection {
                connections.insert(webhook, connection);
            }
        }
        if self.errors.len() > before { Vec::new() } else { webhooks }
    }

    fn connection(
        &mut self,
        key: &str,
        webhook: &Webhook,
        folder: Option<&Path>,
        users: Option<&mut WebhookUsers>,
        shared: &mut SharedParts,
    ) -> Option<WebhookConnection> {
        let name = format!("webhook {} in {}", Quoted(&webhook.name), Quoted(&webhook.configuration));
        let mut refuse = |problem: String, fix: &str| {
            let error = ConfigError::new(key, format!("{name}: {problem}"));
            let error = match folder {
                Some(folder) => error.in_file(folder),
                None => error,
            };
            self.errors.push(error.fix(fix));
        };
        // Valid: the rules of configurations have parsed it.
        let parsed = Url::parse(&webhook.url).ok()?;
        let server = server_of(&parsed);
        if server == API_SERVER {
            refuse(
                format!(
                    "kube-apiserver would call {API_SERVER} with its own identity, which a gateway does not have"
                ),
                "give the URL of the webhook's own server, or register the webhook in the cluster itself",
            );
            return None;
        }
        let requested = request_url(&parsed);
        let is_name = ServerName::try_from(parsed.hostname().to_owned()).is_ok();
        let has_port = parsed.port().is_empty() || parsed.port().parse::<u16>().is_ok_and(|port| port > 0);
        if !is_name || !has_port || requested.parse::<Uri>().is_err() {
            let problem = format!("the gateway cannot request the URL {}", Quoted(&webhook.url));
            refuse(problem, "give a DNS name or an IP address, and a port from 1 to 65535");
            return None;
        }
        let roots = shared.roots.entry(webhook.ca_bundle.clone()).or_insert_with(|| {
            let made = trusted_roots(&webhook.ca_bundle);
            made.map_err(|problem| {
                refuse(problem, "give clientConfig.caBundle: the PEM certificates of the CAs in base64");
            })
            .ok()
        });
        let roots = roots.clone();
        let credential = match users {
            Some(users) => users.credential(&server, key, self.inputs, &mut self.errors),
            None => Some(WebhookCredential::default()),
        };
        let WebhookCredential { certificate, token } = credential?;
        Some(WebhookConnection {
            url: requested,
            http2: is_local(parsed.hostname()),
            // As kube-apiserver, uses no CA and no server name of the kubeconfig.
            tls: ClientTls { client_certificate: certificate, ..ClientTls::trusting(roots?) },
            bearer_token: token,
        })
    }
}

/// The CAs of a bundle; the system's if it is empty.
fn trusted_roots(bundle: &[u8]) -> Result<TrustedRoots, String> {
    if bundle.is_empty() {
        let roots = TrustedRoots::system();
        return if roots.is_empty() {
            Err("no caBundle, and the system has no CAs either".to_owned())
        } else {
            Ok(roots)
        };
    }
    let bundle = CaBundle::from_pem(bundle);
    bundle.map(TrustedRoots::from_bundle).map_err(|error| format!("clientConfig.caBundle: {error}"))
}

/// The server of a URL for the lookup of its credential: host and port.
pub(super) fn server_of(url: &Url) -> String {
    if !url.port().is_empty() {
        return url.host.clone();
    }
    // Go: net.JoinHostPort
    if url.host.contains(':') { format!("[{}]:443", url.host) } else { format!("{}:443", url.host) }
}

/// The URL that client-go requests: with a clean path.
// client-go: rest/url_utils.go, DefaultVersionedAPIPath; rest/request.go, URL
pub(super) fn request_url(url: &Url) -> String {
    let path = url.escaped_path();
    let decoded = url::unescape_bytes(&path, Part::Path).ok().flatten();
    let decoded = decoded.as_deref().unwrap_or(path.as_bytes());
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    // Go: net/url/url.go, EscapedPath
    let stays = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte);
    let path = segments.iter().map(|segment| url::escape(segment, stays)).collect::<Vec<_>>().join("/");
    format!("https://{}/{path}", url.host)
}

/// Whether the host is this machine.
// isLocalHost
fn is_local(host: &str) -> bool {
    let address = host.parse::<IpAddr>().map(|address| address.to_canonical());
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}
