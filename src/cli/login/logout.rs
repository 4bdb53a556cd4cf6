//! `portcullis logout`: removes cached tokens and revokes them at the provider.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser as _};
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout_at};

use super::browser::BrowserEnvironment;
use super::cache::{CacheEntry, CacheError, CachedTokens, LoginCache, SecretText};
use super::command::{self, ParsedProvider};
use super::error::LoginError;
use super::provider::LoginProvider;
use super::secret_of_environment;
use super::session::warned;
use super::settings::{ClientSettings, ProviderFlags};
use crate::cli::check::print;
use crate::cli::print_error;
use crate::cli::table::columns;
use crate::cli::terminal::plain;

/// How many providers `--all` asks at once.
const MAX_REVOCATIONS_AT_ONCE: usize = 8;
/// How long `--all` waits for all providers together.
const REVOCATION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long `--all` waits for a process that uses an entry.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The user runs the command, and a keyring asks by a window of its own.
const MAY_PROMPT: bool = true;

/// The flags of `portcullis logout`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct LogoutFlags {
    /// Log out of all providers: remove all cached tokens and certificates, and revoke the refresh tokens.
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
        return log_out_everywhere(flags.provider.caches(MAY_PROMPT)).await;
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
    let entry = provider.cache(MAY_PROMPT)?.entry(&settings)?;
    let lock = entry.lock(settings.login_timeout, || ()).await?;
    let tokens = warned(entry.read().await).flatten();
    // First of all: whatever the provider answers, the tokens are gone from here. A process that waits for a certificate
    // takes the same lock, and does not keep the certificate of a login that is gone.
    let removed = entry.remove_login().await;
    drop(lock);
    let refresh_token = tokens.map(|tokens| tokens.refresh_token.clone());
    let certificates = match removed {
        Ok(certificates) => certificates,
        Err(error) => {
            // The tokens may be gone from here, and no later command could revoke them.
            if let Some(token) = refresh_token.flatten()
                && let Err(problem) = at_provider(&settings, Some(token.expose()), false).await
            {
                print_error(&format!("warning: {problem}"));
            }
            return Err(error.into());
        }
    };
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

/// What became of the refresh token of a login.
#[derive(Debug, PartialEq, Eq)]
enum Revocation {
    Revoked,
    /// No refresh token was cached.
    NoToken,
    /// The provider has no revocation endpoint, but perhaps a page that ends a session.
    NoEndpoint(Option<String>),
    Failed(String),
}

async fn log_out_everywhere(caches: Vec<Result<LoginCache, CacheError>>) -> Result<ExitCode, LoginError> {
    let (mut logins, mut certificates, mut has_failed) = (Vec::new(), 0, false);
    let is_only = caches.len() == 1;
    for cache in caches {
        let removed = match cache {
            Ok(cache) => remove_all(&cache).await,
            Err(error) => Err(error),
        };
        match removed {
            Ok((more_logins, more_certificates, is_complete)) => {
                logins.extend(more_logins);
                has_failed |= !is_complete;
                certificates += more_certificates;
            }
            Err(error) if is_only => return Err(error.into()),
            // The logins of the other store are revoked all the same.
            Err(error) => {
                print_error(&format!("warning: the logins of one store are not removed: {error}"));
                // Over SSH there is no bus: that is no failure for users of files, and may hide logins of the keyring.
                has_failed |= !error.is_absent_keyring();
            }
        }
    }
    print(&format!("{} cached logins and {certificates} client certificates removed\n", logins.len()));
    let revocations = revoke_all(&logins, REVOCATION_TIMEOUT).await;
    has_failed |= revocations.iter().any(|revocation| matches!(revocation, Revocation::Failed(_)));
    let rows = logins.iter().zip(revocations).map(|(login, revocation)| {
        let issuer = &login.issuer;
        let state = match revocation {
            Revocation::Revoked => "revoked",
            Revocation::NoToken => "none was cached",
            Revocation::NoEndpoint(page) => {
                if let Some(page) = page {
                    print_error(&format!(
                        "{issuer} cannot revoke tokens; end its session in a browser:\n  {page}"
                    ));
                }
                "not revoked: the provider cannot"
            }
            Revocation::Failed(problem) => {
                print_error(&format!("warning: {issuer}: {problem}"));
                "not revoked"
            }
        };
        [plain(issuer).into_owned(), plain(&login.client_id).into_owned(), state.to_owned()]
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        print(&columns(["ISSUER", "CLIENT", "REFRESH TOKEN"], rows));
    }
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Removes all entries. Returns the tokens that could be read, the number of certificates, and whether all entries are
/// gone: a process that holds a lock may write its entry again. One that stays does not save the others' tokens.
async fn remove_all(cache: &LoginCache) -> Result<(Vec<CachedTokens>, usize, bool), CacheError> {
    let entries = cache.entries().await?;
    let (certificates, logins): (Vec<_>, Vec<_>) = entries.into_iter().partition(CacheEntry::is_certificate);
    let (mut removed, mut is_complete) = (Vec::new(), true);
    for entry in logins {
        // A process that holds the lock for longer waits for a user.
        let lock = warned(entry.lock(LOCK_TIMEOUT, || ()).await);
        removed.extend(warned(entry.read().await).flatten());
        is_complete &= warned(entry.remove_login().await).is_some() && lock.is_some();
        drop(lock);
    }
    for entry in &certificates {
        is_complete &= warned(entry.remove().await).is_some();
    }
    Ok((removed, certificates.len(), is_complete))
}

/// Revokes the refresh tokens side by side. A provider that has not answered by the deadline has failed.
async fn revoke_all(logins: &[CachedTokens], limit: Duration) -> Vec<Revocation> {
    let deadline = Instant::now() + limit;
    let revocations = logins.iter().map(|login| async move {
        let revoked = timeout_at(deadline, revoke(login)).await;
        revoked.unwrap_or_else(|_| Revocation::Failed(format!("no answer within {limit:?}")))
    });
    futures_util::stream::iter(revocations).buffered(MAX_REVOCATIONS_AT_ONCE).collect().await
}

async fn revoke(login: &CachedTokens) -> Revocation {
    let Some(token) = &login.refresh_token else { return Revocation::NoToken };
    let client = match login.client() {
        Ok(client) => client,
        Err(problem) => return Revocation::Failed(problem),
    };
    let revoked = async {
        let provider = LoginProvider::discover(client).await?;
        if !provider.has_revocation() {
            return Ok(Revocation::NoEndpoint(provider.end_session_url()));
        }
        provider.revoke(token.expose()).await.map(|()| Revocation::Revoked)
    };
    revoked.await.unwrap_or_else(|error: LoginError| Revocation::Failed(error.to_string()))
}

#[cfg(test)]
mod tests;
