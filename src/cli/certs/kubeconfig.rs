//! Kubeconfigs for those who were given a certificate: everything in one file that can be carried away.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::super::cluster::Cluster;
use super::error::CommandError;
use crate::certificates::request::armour;
use crate::x509::CaBundle;

/// What a kubeconfig says of the server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Kubeconfig")]
pub(super) struct KubeconfigFlags {
    /// Write a kubeconfig with the certificate and key in it.
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(super) kubeconfig_out: Option<PathBuf>,
    /// The server that the kubeconfig is for.
    #[arg(long, value_name = "URL", requires = "kubeconfig_out")]
    server: Option<String>,
    /// The CA of that server, PEM. Default: ca.crt of --dir.
    #[arg(long, value_name = "FILE", requires = "kubeconfig_out")]
    certificate_authority: Option<PathBuf>,
}

/// The server's side of a kubeconfig.
#[derive(Debug)]
pub(super) struct ServerPart {
    pub(super) url: String,
    /// PEM; none if the system's CAs know the server.
    pub(super) authority: Option<String>,
    /// The name in the server's certificate, if it is not that of the URL.
    pub(super) tls_server_name: Option<String>,
}

impl ServerPart {
    /// A cluster that was reached with another kubeconfig.
    pub(super) fn of(cluster: &Cluster) -> Self {
        let roots = cluster.config.root_cert.as_ref();
        let pem = roots.map(|roots| roots.iter().map(|der| armour("CERTIFICATE", der)).collect::<String>());
        Self {
            url: cluster.server().to_string().trim_end_matches('/').to_owned(),
            authority: pem,
            tls_server_name: cluster.config.tls_server_name.clone(),
        }
    }
}

impl KubeconfigFlags {
    /// The server's side, if a kubeconfig is wanted. `root` is the authority to take if none is named.
    pub(super) fn server(&self, root: &Path) -> Result<Option<(PathBuf, ServerPart)>, CommandError> {
        let (Some(file), Some(url)) = (&self.kubeconfig_out, &self.server) else { return Ok(None) };
        if !url.starts_with("https://") {
            return Err(CommandError::Usage(format!(
                "--server {url}: give https://HOST:PORT; a certificate says nothing over http"
            )));
        }
        let authority = self.certificate_authority.as_deref().unwrap_or(root);
        let failed = |error: &dyn Display| {
            CommandError::about(
                format!("--certificate-authority {}", authority.display()),
                format!("{error}; give the CA that has signed the server's certificate"),
            )
        };
        let pem = std::fs::read(authority).map_err(|error| failed(&error))?;
        // The certificates alone: what else is in the file, a key perhaps, is not for whoever gets the kubeconfig.
        let bundle = CaBundle::from_pem(&pem).map_err(|error| failed(&error))?;
        let certificates = bundle.certificates().iter();
        let pem: String = certificates.map(|certificate| armour("CERTIFICATE", &certificate.der)).collect();
        let server = ServerPart { url: url.clone(), authority: Some(pem), tls_server_name: None };
        Ok(Some((file.clone(), server)))
    }
}

/// A kubeconfig with one user.
pub(super) fn render(
    server: &ServerPart,
    user: &str,
    certificate: &str,
    key: &SecretString,
) -> Result<SecretString, CommandError> {
    let cluster = "cluster";
    let mut about = json!({"server": server.url});
    if let (Some(pem), Some(about)) = (&server.authority, about.as_object_mut()) {
        about.insert("certificate-authority-data".to_owned(), STANDARD.encode(pem).into());
    }
    if let (Some(name), Some(about)) = (&server.tls_server_name, about.as_object_mut()) {
        about.insert("tls-server-name".to_owned(), name.as_str().into());
    }
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": about}],
        "users": [{"name": user, "user": {
            "client-certificate-data": STANDARD.encode(certificate),
            "client-key-data": STANDARD.encode(key.expose_secret()),
        }}],
        "contexts": [{"name": user, "context": {"cluster": cluster, "user": user}}],
        "current-context": user,
    });
    let text = serde_saphyr::to_string(&config);
    text.map(SecretString::from).map_err(|error| CommandError::about("writing a kubeconfig", error))
}
