//! `portcullis kubeconfig`: prints a kubeconfig for users, from the gateway's configuration. It has no secret.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use http::Uri;

use portcullis_tools::login::{
    self, KubeconfigFile, KubeconfigTarget, LoginError, ProviderFlags, cluster_entry, exec_user,
};
use portcullis_tools::output::print;

use crate::authn::oidc::settings::JwtAuthenticator;
use crate::cli::misconfigured;
use crate::cluster::address::ClusterAddress;
use crate::cluster::settings::{Cluster, Routes};
use crate::config::flags::ServeFlags;
use crate::state::effective_config::EffectiveConfig;

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis kubeconfig --config gateway.yaml --server https://gateway.example.com:6443 \\
    --certificate-authority gateway-ca.crt > company.kubeconfig
  portcullis kubeconfig --config gateway.yaml --server https://gateway.example.com:6443 \\
    --certificate-authority gateway-ca.crt --client-certificate > company.kubeconfig
  portcullis login --from company.kubeconfig --all      # a user does this";

/// The flags of `portcullis kubeconfig`: those of `serve`, and what the configuration does not say.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(super) struct KubeconfigFlags {
    /// The URL of the gateway. The host is replaced by the server name of a cluster that has one.
    #[arg(long, value_name = "URL", help_heading = "Kubeconfig")]
    server: String,
    /// The CAs of the gateway's serving certificate, PEM. Default: the system's.
    #[arg(long, value_name = "FILE", help_heading = "Kubeconfig")]
    certificate_authority: Option<PathBuf>,
    /// The clusters to print. Default: all.
    #[arg(long = "cluster", value_name = "NAME", value_delimiter = ',', help_heading = "Kubeconfig")]
    clusters: Vec<String>,
    #[command(flatten)]
    provider: ProviderFlags,
    // Last: the command's own flags are first in its help.
    #[command(flatten)]
    pub(super) serve: ServeFlags,
}

pub(super) fn run(flags: &KubeconfigFlags) -> ExitCode {
    let settings = match EffectiveConfig::load(&flags.serve) {
        Ok(config) => config.settings,
        Err(errors) => return misconfigured(&errors),
    };
    let clusters: Vec<&Cluster> = settings.clusters.iter().map(|cluster| &**cluster).collect();
    match rendered(flags, &clusters) {
        Ok(text) => print(&text),
        Err(error) => login::exit(&error),
    }
}

fn rendered(flags: &KubeconfigFlags, clusters: &[&Cluster]) -> Result<String, LoginError> {
    let names = || clusters.iter().map(|cluster| cluster.name.as_str()).collect::<Vec<_>>().join(", ");
    for chosen in &flags.clusters {
        if !clusters.iter().any(|cluster| cluster.name == *chosen) {
            return Err(LoginError::usage(&format!("--cluster {chosen}: the clusters are {}", names())));
        }
    }
    let is_chosen = |cluster: &&&Cluster| flags.clusters.is_empty() || flags.clusters.contains(&cluster.name);
    let mut file = KubeconfigFile::new();
    let mut first = None;
    for cluster in clusters.iter().filter(is_chosen) {
        let provider = provider(flags, cluster)?;
        let target = KubeconfigTarget {
            context: cluster.name.clone(),
            cluster_name: cluster.name.clone(),
            cluster: cluster_entry(
                &server(&flags.server, &cluster.routes)?,
                flags.certificate_authority.as_deref(),
            )?,
            user_name: format!("{}-login", cluster.name),
            user: exec_user("portcullis", &provider.arguments()?),
        };
        file.merge(&target, true).map_err(LoginError::Other)?;
        first.get_or_insert(&cluster.name);
    }
    if let Some(first) = first {
        file.set_current_context(first);
    }
    file.to_yaml()
}

/// The provider of a cluster's users: the flags, otherwise the only issuer of its configuration.
fn provider(flags: &KubeconfigFlags, cluster: &Cluster) -> Result<ProviderFlags, LoginError> {
    let mut provider = flags.provider.clone();
    provider.certificate()?;
    let issuers = &cluster.authentication.jwt;
    let chosen: Option<&JwtAuthenticator> = match (&provider.issuer, issuers.as_slice()) {
        (Some(issuer), issuers) => {
            issuers.iter().find(|known| known.issuer.url == *issuer).map(|known| &**known)
        }
        (None, [only]) => Some(&**only),
        (None, []) => {
            return Err(LoginError::usage(&format!(
                "the cluster {} has no issuer; give --issuer URL",
                cluster.name
            )));
        }
        (None, several) => {
            let urls = several.iter().map(|known| known.issuer.url.as_str()).collect::<Vec<_>>().join(", ");
            return Err(LoginError::usage(&format!(
                "the cluster {} has several issuers; give --issuer, one of {urls}",
                cluster.name
            )));
        }
    };
    let Some(chosen) = chosen else {
        return Err(LoginError::usage(&format!(
            "the cluster {} does not know the issuer of --issuer",
            cluster.name
        )));
    };
    provider.issuer = Some(chosen.issuer.url.clone());
    match (&provider.client_id, chosen.issuer.audiences.as_slice()) {
        (None, [only]) => provider.client_id = Some(only.clone()),
        (None, several) => {
            return Err(LoginError::usage(&format!(
                "the cluster {} accepts several audiences; give --client-id, one of {}",
                cluster.name,
                several.join(", ")
            )));
        }
        (Some(id), audiences) if !audiences.contains(id) => {
            return Err(LoginError::usage(&format!(
                "--client-id {id}: the cluster {} accepts the audiences {}",
                cluster.name,
                audiences.join(", ")
            )));
        }
        _ => {}
    }
    if chosen.issuer.certificate_authority.is_some() && provider.authorities()?.is_none() {
        return Err(LoginError::usage(&format!(
            "the issuer {} has a CA of its own: give it to users by --issuer-certificate-authority FILE",
            chosen.issuer.url
        )));
    }
    Ok(provider)
}

/// The URL of a cluster at the gateway.
fn server(gateway: &str, routes: &Routes) -> Result<String, LoginError> {
    let invalid =
        || LoginError::usage(&format!("--server {gateway:?}: must be an https:// URL without a path"));
    let url: Uri = gateway.parse().map_err(|_| invalid())?;
    let authority =
        url.authority().filter(|_| url.scheme_str() == Some("https") && matches!(url.path(), "" | "/"));
    let authority = authority.ok_or_else(invalid)?;
    if matches!(routes, Routes::Everything) {
        return Ok(gateway.to_owned());
    }
    let address = ClusterAddress::of(routes, authority.as_str());
    let address = address.map(|address| address.url());
    address.ok_or_else(|| LoginError::usage("a cluster has only wildcard names: give it a name for users"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_is_given_by_a_plain_url() {
        assert_eq!(server("https://g.test:6443", &Routes::Everything).unwrap(), "https://g.test:6443");
        let path = Routes::Matching { server_names: Vec::new(), path_prefix: Some("/prod".to_owned()) };
        assert_eq!(server("https://g.test:6443/", &path).unwrap(), "https://g.test:6443/prod");
        let wildcard = Routes::Matching { server_names: vec!["*.test".to_owned()], path_prefix: None };
        assert!(server("https://g.test:6443", &wildcard).is_err());
        for url in ["http://g.test", "g.test", "https://g.test/path"] {
            assert!(server(url, &Routes::Everything).is_err(), "{url}");
        }
    }
}
