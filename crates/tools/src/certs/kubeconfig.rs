//! Renders kubeconfigs with an embedded client certificate, key and CA.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use portcullis_go::pem::encode_pem;
use portcullis_pki::x509::CaBundle;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

use super::super::cluster::ClusterClient;
use super::error::CommandError;
use crate::certs::named_file;

/// Flags for the kubeconfig output.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Kubeconfig")]
pub(super) struct KubeconfigFlags {
    /// Write a kubeconfig with the embedded certificate and key.
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(super) kubeconfig_out: Option<PathBuf>,
    /// The server of the kubeconfig.
    #[arg(long, value_name = "URL", requires = "kubeconfig_out")]
    server: Option<String>,
    /// The CA of that server, PEM. Default: ca.crt of --dir.
    #[arg(long, value_name = "FILE", requires = "kubeconfig_out")]
    certificate_authority: Option<PathBuf>,
    /// The name in the certificate of that server, if it is not the host of --server.
    #[arg(long, value_name = "NAME", requires = "kubeconfig_out")]
    tls_server_name: Option<String>,
}

/// The cluster entry of a kubeconfig.
#[derive(Debug)]
pub(super) struct ServerPart {
    pub(super) url: String,
    /// PEM; `None` to use the system's CAs.
    pub(super) authority: Option<String>,
    /// The name in the server's certificate, if it differs from that of the URL.
    pub(super) tls_server_name: Option<String>,
}

impl ServerPart {
    /// The cluster entry for the cluster of a client.
    pub(super) fn of(cluster: &ClusterClient) -> Self {
        let roots = cluster.config.root_cert.as_ref();
        let pem =
            roots.map(|roots| roots.iter().map(|der| encode_pem("CERTIFICATE", der)).collect::<String>());
        Self {
            url: cluster.server().to_string().trim_end_matches('/').to_owned(),
            authority: pem,
            tls_server_name: cluster.config.tls_server_name.clone(),
        }
    }
}

impl KubeconfigFlags {
    /// The output file and cluster entry, if requested; `root` is the default CA.
    pub(super) fn server(&self, root: &Path) -> Result<Option<(PathBuf, ServerPart)>, CommandError> {
        let (Some(file), Some(url)) = (&self.kubeconfig_out, &self.server) else { return Ok(None) };
        if !url.starts_with("https://") {
            return Err(CommandError::Usage(format!(
                "--server {url}: give https://HOST:PORT; client certificates need TLS"
            )));
        }
        let authority = self.certificate_authority.as_deref().unwrap_or(root);
        let failed = |error: &dyn Display| {
            CommandError::about(
                format!("--certificate-authority {}", authority.display()),
                format!("{error}; give the CA that signed the server's certificate"),
            )
        };
        let pem = named_file::read(authority).map_err(|error| failed(&error))?;
        // Embeds certificates only: the file may also contain a key.
        let bundle = CaBundle::from_pem(&pem).map_err(|error| failed(&error))?;
        let certificates = bundle.certificates().iter();
        let pem: String =
            certificates.map(|certificate| encode_pem("CERTIFICATE", &certificate.der)).collect();
        let server = ServerPart {
            url: url.clone(),
            authority: Some(pem),
            tls_server_name: self.tls_server_name.clone(),
        };
        Ok(Some((file.clone(), server)))
    }
}

/// Renders a kubeconfig with one user.
pub(super) fn render(
    server: &ServerPart,
    user: &str,
    certificate: &str,
    key: &SecretString,
) -> Result<SecretString, CommandError> {
    let data = |text: &str| Zeroizing::new(STANDARD.encode(text));
    let (authority, certificate) = (server.authority.as_deref().map(data), data(certificate));
    let key = data(key.expose_secret());
    let config = Config {
        api_version: "v1",
        kind: "Config",
        clusters: [Named {
            name: CLUSTER,
            content: ClusterEntry {
                cluster: ClusterFields {
                    server: &server.url,
                    certificate_authority_data: authority.as_ref().map(|data| data.as_str()),
                    tls_server_name: server.tls_server_name.as_deref(),
                },
            },
        }],
        users: [Named {
            name: user,
            content: UserEntry {
                user: UserFields { client_certificate_data: &certificate, client_key_data: &key },
            },
        }],
        contexts: [Named {
            name: user,
            content: ContextEntry { context: ContextFields { cluster: CLUSTER, user } },
        }],
        current_context: user,
    };
    // Allocates once: a growing buffer leaves copies of the key in memory.
    let room = 4096 + 2 * (key.len() + certificate.len() + authority.as_ref().map_or(0, |data| data.len()));
    let mut text = Zeroizing::new(String::with_capacity(room));
    serde_saphyr::to_fmt_writer(&mut *text, &config)
        .map_err(|error| CommandError::about("writing a kubeconfig", error))?;
    Ok(SecretString::from(text.as_str()))
}

/// The name of the only cluster.
const CLUSTER: &str = "cluster";

// client-go: tools/clientcmd/api/v1/types.go. Borrowed, so that the key is in memory once.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Config<'a> {
    api_version: &'static str,
    kind: &'static str,
    clusters: [Named<'a, ClusterEntry<'a>>; 1],
    users: [Named<'a, UserEntry<'a>>; 1],
    contexts: [Named<'a, ContextEntry<'a>>; 1],
    #[serde(rename = "current-context")]
    current_context: &'a str,
}

#[derive(Serialize)]
struct Named<'a, T> {
    name: &'a str,
    #[serde(flatten)]
    content: T,
}

#[derive(Serialize)]
struct ClusterEntry<'a> {
    cluster: ClusterFields<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterFields<'a> {
    server: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<&'a str>,
}

#[derive(Serialize)]
struct UserEntry<'a> {
    user: UserFields<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct UserFields<'a> {
    client_certificate_data: &'a str,
    client_key_data: &'a str,
}

#[derive(Serialize)]
struct ContextEntry<'a> {
    context: ContextFields<'a>,
}

#[derive(Serialize)]
struct ContextFields<'a> {
    cluster: &'a str,
    user: &'a str,
}
