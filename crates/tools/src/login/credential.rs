//! `portcullis credential`: the exec plugin of kubectl and of every client that uses client-go.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use portcullis_system::clock::Clock;

use super::api_server::{ApiServer, ClusterEntry};
use super::browser::BrowserEnvironment;
use super::client_certificate::{CertificateError, CertificateSession};
use super::error::LoginError;
use super::exec_credential::{ExecRequest, VARIABLE};
use super::secret_of_environment;
use super::session::{Session, UserAccess, checked, from_file};
use super::settings::ProviderFlags;
use crate::output::print;

/// The flags of `portcullis credential`.
#[derive(Debug, Clone, Args)]
pub struct CredentialFlags {
    /// The URL of the cluster, for --client-certificate. Default: that of $KUBERNETES_EXEC_INFO.
    #[arg(long, value_name = "URL", help_heading = "Client certificate", requires = "client_certificate")]
    server: Option<String>,
    /// The CAs of --server, PEM. Default: the system's.
    #[arg(long, value_name = "FILE", help_heading = "Client certificate", requires = "server")]
    certificate_authority: Option<PathBuf>,
    #[command(flatten)]
    provider: ProviderFlags,
}

pub(super) async fn run(flags: &CredentialFlags) -> Result<ExitCode, LoginError> {
    let info = std::env::var(VARIABLE).ok();
    let mut request = ExecRequest::parse(info.as_deref())?;
    let config = std::mem::take(&mut request.config);
    let clock = Clock::system();
    let provider = flags.provider.clone().or(config);
    let certificate = provider.certificate()?;
    if let Some(file) = provider.token_file()? {
        return Ok(print(&request.answer(&from_file(file, clock.now())?)?));
    }
    let settings = provider.settings(secret_of_environment())?;
    let session = |cache| Session {
        settings: &settings,
        cache,
        clock: &clock,
        user: UserAccess::of_plugin(request.interactive),
        force: false,
        browser: BrowserEnvironment::current(),
    };
    // A keyring asks by a window of its own, as the provider does by a browser.
    let may_prompt = session(None).may_log_in();
    let Some(certificate) = certificate else {
        let cache = if provider.no_cache { None } else { checked(provider.cache(may_prompt).map(Some))? };
        return Ok(print(&request.answer(&session(cache.as_ref()).credential().await?)?));
    };
    let cache = provider.cache(may_prompt).map_err(CertificateError::Cache)?;
    let (session, server) = (session(Some(&cache)), flags.server(request.cluster.take())?);
    let session =
        CertificateSession { session, cache: &cache, server: &server, settings: &certificate, force: false };
    Ok(print(&request.answer(&session.credential().await?)?))
}

impl CredentialFlags {
    /// The cluster of the certificate: the flags, otherwise the client's.
    fn server(&self, of_client: Option<ClusterEntry>) -> Result<ApiServer, LoginError> {
        let file = self.certificate_authority.as_ref();
        let of_flags = self.server.as_ref().map(|server| ClusterEntry {
            server: Some(server.clone()),
            certificate_authority: file.map(|file| file.display().to_string()),
            ..ClusterEntry::default()
        });
        let entry = of_flags.or(of_client).ok_or_else(|| {
            LoginError::usage(
                "--client-certificate: the cluster is not known; set provideClusterInfo: true in the exec stanza of the \
                 kubeconfig, or give --server URL",
            )
        })?;
        let server = ApiServer::of(&entry, Path::new(""));
        server.map_err(|problem| LoginError::usage(&format!("--client-certificate: {problem}")))
    }
}
