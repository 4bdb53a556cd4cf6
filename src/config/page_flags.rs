//! The flags of the page. They have a section of the configuration file, `page`.
#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::flags::ProxyProtocolMode;

/// The page on which users find their clusters.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Page")]
pub struct PageFlags {
    /// The IP:PORT on which to serve the page: after login, it shows users the clusters that they may reach, and offers
    /// kubeconfigs. Default: no page.
    #[arg(long, value_name = "ADDRESS")]
    #[serde(rename = "bindAddress")]
    pub page_bind_address: Option<String>,
    /// The URL of the page: https, with a host name and optionally a port, without a path. The host must be of its own:
    /// one by which the API is reached would share its cookies with every application behind it. The provider must know
    /// the redirect URI, URL/callback. Required.
    #[arg(long, value_name = "URL")]
    #[serde(rename = "url")]
    pub page_url: Option<String>,
    /// File containing the page's serving certificate, PEM, followed by its intermediates. Required. --tls-min-version
    /// and --tls-cipher-suites are also those of the page.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "tlsCertFile")]
    pub page_tls_cert_file: Option<PathBuf>,
    /// File containing the private key matching --page-tls-cert-file, PEM. Required.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "tlsPrivateKeyFile")]
    pub page_tls_private_key_file: Option<PathBuf>,
    /// The issuer URL of the OpenID provider. A cluster is shown to users if it accepts ID tokens of this issuer.
    /// Required.
    #[arg(long, value_name = "URL")]
    #[serde(rename = "oidcIssuerURL")]
    pub page_oidc_issuer_url: Option<String>,
    /// The client ID of the page at the provider. Clusters must accept it as audience. Required.
    #[arg(long, value_name = "ID")]
    #[serde(rename = "oidcClientID")]
    pub page_oidc_client_id: Option<String>,
    /// File with the client secret of the page, if it is a confidential client.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "oidcClientSecretFile")]
    pub page_oidc_client_secret_file: Option<PathBuf>,
    /// File with the CAs of the provider, PEM. Default: the system's.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "oidcCAFile")]
    pub page_oidc_ca_file: Option<PathBuf>,
    /// Scopes to request beside openid, comma-separated. The page leaves out offline_access, kubeconfigs do not.
    #[arg(long, value_name = "SCOPES", value_delimiter = ',')]
    #[serde(rename = "oidcScopes")]
    pub page_oidc_scopes: Vec<String>,
    /// File with 32 random bytes, as they are or in base64, with which the page encrypts its cookies. Several replicas
    /// need the same. Default: random bytes for each process, so that a restart ends the sessions.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "cookieKeyFile")]
    pub page_cookie_key_file: Option<PathBuf>,
    /// The URL of the API for users, without a path; for kubeconfigs. The host is replaced by the server name of a
    /// cluster that has one. Required.
    #[arg(long, value_name = "URL")]
    #[serde(rename = "apiServerURL")]
    pub page_api_server_url: Option<String>,
    /// File with the CAs of the API's serving certificate, PEM, for kubeconfigs. Default: the system's of users.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "apiServerCAFile")]
    pub page_api_server_ca_file: Option<PathBuf>,
    /// The client ID in kubeconfigs: a public client, since a kubeconfig has no secret. Default: --page-oidc-client-id,
    /// unless that has a secret.
    #[arg(long, value_name = "ID")]
    #[serde(rename = "kubeconfigClientID")]
    pub page_kubeconfig_client_id: Option<String>,
    /// The PROXY protocol on the page's listener, as --proxy-protocol is on the API's. `off`: no connection has a
    /// header.
    #[arg(long, value_enum, value_name = "VERSION", default_value_t = ProxyProtocolMode::Off)]
    #[serde(rename = "proxyProtocol", with = "super::sections::by_flag_name")]
    pub page_proxy_protocol: ProxyProtocolMode,
    /// The networks of the load balancers that send PROXY protocol headers to the page, in CIDR notation,
    /// comma-separated. Required with --page-proxy-protocol.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    #[serde(rename = "proxyProtocolTrustedNetworks")]
    pub page_proxy_protocol_trusted_networks: Vec<String>,
}
