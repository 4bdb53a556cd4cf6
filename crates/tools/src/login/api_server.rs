//! The API server of a kubeconfig's cluster or of `KUBERNETES_EXEC_INFO`, and clients of it that send a token.
//!
//! The token goes over verified TLS, and nowhere else: plain HTTP and `insecure-skip-tls-verify` are refused. A proxy, of
//! `proxy-url` or the environment, sees no more than TLS.

use std::path::Path;

use http::Uri;
use portcullis_go::base64;
use portcullis_http::client_tls::{ClientTls, PlainHttp, TrustedRoots};
use portcullis_http::proxy::ProxyChoice;
use portcullis_pki::x509::CaBundle;
use portcullis_system::input_file;
use rustls_pki_types::ServerName;
use secrecy::SecretString;
use serde::Deserialize;

use super::settings::roots;
use crate::cluster::ClusterClient;

/// A cluster, as kubeconfigs and `KUBERNETES_EXEC_INFO` describe it.
// client-go: tools/clientcmd/api/v1/types.go and pkg/apis/clientauthentication/v1/types.go, Cluster
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ClusterEntry {
    #[serde(default)]
    pub(super) server: Option<String>,
    #[serde(default)]
    pub(super) tls_server_name: Option<String>,
    #[serde(default)]
    pub(super) insecure_skip_tls_verify: Option<bool>,
    #[serde(default)]
    pub(super) certificate_authority: Option<String>,
    #[serde(default)]
    pub(super) certificate_authority_data: Option<String>,
    #[serde(default)]
    pub(super) proxy_url: Option<String>,
}

/// An API server to which a token may be sent.
#[derive(Debug, Clone)]
pub(super) struct ApiServer {
    pub(super) url: String,
    /// PEM; `None`: the CAs of the system.
    pub(super) authorities: Option<Vec<u8>>,
    pub(super) server_name: Option<String>,
    pub(super) proxy: ProxyChoice,
}

impl ApiServer {
    /// Validates an entry. Relative files are relative to `directory`, as in kubectl.
    pub(super) fn of(entry: &ClusterEntry, directory: &Path) -> Result<Self, String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let url = given(&entry.server).unwrap_or_default().trim_end_matches('/').to_owned();
        if !url.starts_with("https://") {
            return Err(format!("the server {url:?} of the cluster is not an https:// URL"));
        }
        if entry.insecure_skip_tls_verify == Some(true) {
            return Err(
                "insecure-skip-tls-verify would send the token to anyone; give the CA instead".to_owned()
            );
        }
        let proxy = ProxyChoice::of_kubeconfig(entry.proxy_url.as_deref());
        let proxy = proxy.map_err(|error| format!("proxy-url: {error}"))?;
        let authorities =
            match (given(&entry.certificate_authority_data), given(&entry.certificate_authority)) {
                (Some(data), _) => {
                    let pem = base64::decode(&data);
                    Some(pem.map_err(|_| "certificate-authority-data is not base64".to_owned())?)
                }
                (None, Some(file)) => {
                    let file = directory.join(file);
                    Some(input_file::read(&file).map_err(|error| format!("{}: {error}", file.display()))?)
                }
                (None, None) => None,
            };
        Ok(Self { url, authorities, server_name: given(&entry.tls_server_name), proxy })
    }

    /// The TLS settings of a client without a certificate.
    pub(super) fn tls(&self) -> Result<ClientTls, String> {
        let name = self.server_name.clone().map(ServerName::try_from).transpose();
        Ok(ClientTls {
            roots: self.authorities.as_deref().map_or_else(|| Ok(TrustedRoots::system()), roots)?,
            client_certificate: None,
            server_name: name.map_err(|_| "tls-server-name is not a host name".to_owned())?,
            proxy: self.proxy.clone(),
            plain_http: PlainHttp::Never,
        })
    }

    /// A client of the API that sends the token.
    pub(super) fn client(&self, token: SecretString) -> Result<ClusterClient, String> {
        let server: Uri = self.url.parse().map_err(|_| format!("the server {:?} is not a URL", self.url))?;
        let bundle = self.authorities.as_deref().map(CaBundle::from_pem).transpose();
        let bundle = bundle.map_err(|error| error.to_string())?;
        let authorities = bundle.map(|bundle| {
            bundle.certificates().iter().map(|certificate| certificate.der.as_ref().to_vec()).collect()
        });
        ClusterClient::with_token(server, authorities, self.server_name.clone(), token, &self.proxy)
            .map_err(|error| error.to_string())
    }
}
