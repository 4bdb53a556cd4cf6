//! `portcullis logout`: removes cached tokens and revokes them at the provider.

use std::process::ExitCode;

use clap::{Args, Parser as _};

use super::browser::BrowserEnvironment;
use super::cache::{self, CacheEntry, SecretText};
use super::command::{self, ParsedProvider};
use super::error::LoginError;
use super::provider::LoginProvider;
use super::secret_of_environment;
use super::settings::{ClientSettings, ProviderFlags};
use crate::cli::check::print;
use crate::cli::print_error;

/// The flags of `portcullis logout`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct LogoutFlags {
    /// Remove all cached tokens, and revoke none of them.
    #[arg(long, help_heading = "Logout", conflicts_with = "end_session")]
    all: bool,
    /// End the session of the browser at the provider, too.
    #[arg(long, help_heading = "Logout")]
    end_session: bool,
    /// The kubeconfig whose user logs out, unless --issuer is given. Default: $KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<std::path::PathBuf>,
    /// The context of the kubeconfig. Default: its current context.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    context: Option<String>,
    #[command(flatten)]
    provider: ProviderFlags,
}

pub(super) async fn run(flags: &LogoutFlags) -> Result<ExitCode, LoginError> {
    if flags.all {
        let directory = cache::directory(flags.provider.cache_dir.as_deref()).map_err(LoginError::other)?;
        let entries = CacheEntry::all(&directory).map_err(LoginError::other)?;
        for entry in &entries {
            entry.remove().map_err(LoginError::other)?;
        }
        return Ok(print(&format!(
            "{} cached logins removed; their tokens were not revoked\n",
            entries.len()
        )));
    }
    let provider = if flags.provider.issuer.is_some() {
        flags.provider.clone()
    } else {
        let path = command::kubeconfig_path(flags.kubeconfig.as_deref())?;
        let file = super::kubeconfig_file::KubeconfigFile::read(&path)?;
        let target = command::current(&file, &path, flags.context.as_deref())?;
        let arguments = super::kubeconfig_file::credential_arguments(&target.user).ok_or_else(|| {
            LoginError::usage(&format!(
                "the user {:?} does not log in with portcullis; give --issuer",
                target.user_name
            ))
        })?;
        let parsed =
            ParsedProvider::try_parse_from(std::iter::once("credential".to_owned()).chain(arguments));
        parsed.map_err(LoginError::other)?.provider
    };
    let settings = provider.settings(secret_of_environment())?;
    let directory = cache::directory(provider.cache_dir.as_deref()).map_err(LoginError::other)?;
    let entry = CacheEntry::open(&directory, &settings).map_err(LoginError::other)?;
    let lock = entry.lock(settings.login_timeout, || ()).await.map_err(LoginError::other)?;
    let tokens = entry.read();
    // First of all: whatever the provider answers, the tokens are gone from here. A process that waits for a certificate
    // takes the same lock, and does not keep the certificate of a login that is gone.
    let certificates = entry.remove_login().map_err(LoginError::other)?;
    drop(lock);
    let refresh_token = tokens.ok().flatten().map(|tokens| tokens.refresh_token.clone());
    match &refresh_token {
        None => print(&format!("not logged in at {}\n", settings.issuer)),
        Some(_) => print(&format!("logged out of {}: the cached tokens are removed\n", settings.issuer)),
    };
    if certificates > 0 {
        print("the client certificates are removed; a copy of one stays valid until it expires\n");
    }
    let refresh_token = refresh_token.flatten();
    if refresh_token.is_none() && !flags.end_session {
        return Ok(ExitCode::SUCCESS);
    }
    at_provider(&settings, refresh_token.as_ref().map(SecretText::expose), flags.end_session).await
}

async fn at_provider(
    settings: &ClientSettings,
    refresh_token: Option<&str>,
    end_session: bool,
) -> Result<ExitCode, LoginError> {
    let provider = LoginProvider::discover(settings.client()).await?;
    if let Some(token) = refresh_token {
        if provider.has_revocation() {
            provider.revoke(token).await?;
            print("the provider has revoked the refresh token; an ID token stays valid until it expires\n");
        } else {
            print_error("the provider cannot revoke tokens: they stay valid there until they expire");
        }
    }
    if end_session {
        let url = provider.end_session_url().ok_or(LoginError::NoEndpoint("page that ends a session"))?;
        match BrowserEnvironment::current().open(settings.browser_command.as_deref(), &url) {
            Ok(()) => print_error("the browser ends the session at the provider"),
            Err(problem) => {
                print_error(&format!("cannot open a browser ({problem}); open this URL:\n  {url}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
