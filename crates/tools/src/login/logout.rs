//! `portcullis logout`: revokes refresh tokens at their provider, and removes the cached tokens and certificates.
//!
//! A token is revoked while its entry is still cached: after Ctrl-C, the next `logout` finds it. Whatever the provider answers,
//! the entry is removed then. Tokens that the keyring does not give away stay where they are.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout, timeout_at};

use super::browser::BrowserEnvironment;
use super::cache::{
    CacheEntry, CacheError, CacheLock, CachedTokens, LockLimits, LoginCache, RemovedLogin, SecretText,
};
use super::command;
use super::error::LoginError;
use super::kubeconfig_file::{KubeconfigPaths, check_environment, cluster_config, has_cluster_info};
use super::provider::LoginProvider;
use super::secret_of_environment;
use super::session::{print_waiting, warned};
use super::settings::{ClientSettings, ProviderFlags};
use crate::output::print;
use crate::print_error;
use crate::table::columns;
use crate::terminal::plain;

/// How many providers `--all` asks at once, so that silent ones keep no other from being asked.
const MAX_PROVIDERS_AT_ONCE: usize = 64;
/// How many refresh tokens of one provider `--all` revokes at once.
const MAX_REVOCATIONS_AT_ONCE: usize = 8;
/// How long the command waits for the provider, and `--all` for all providers together.
const REVOCATION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long `--all` waits for a process that uses an entry.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the command looks into the store that it does not use.
const HINT_TIMEOUT: Duration = Duration::from_secs(2);

/// The user runs the command, and a keyring asks by a window of its own.
const MAY_PROMPT: bool = true;
/// A hint is worth no prompt.
const NO_PROMPT: bool = false;

/// The flags that choose one login or describe it: with `--all`, only those of the store count.
const FLAGS_OF_ONE_LOGIN: [&str; 26] = [
    "end_session",
    "kubeconfig",
    "context",
    "issuer",
    "client_id",
    "client_secret_file",
    "client_secret_from_environment",
    "issuer_certificate_authority",
    "issuer_certificate_authority_data",
    "scopes",
    "extra_parameters",
    "flow",
    "token",
    "token_file",
    "user",
    "prompt",
    "open_browser",
    "browser_command",
    "callback_port",
    "callback_host",
    "login_timeout",
    "no_cache",
    "client_certificate",
    "signer_name",
    "certificate_duration",
    "certificate_timeout",
];

/// The flags of `portcullis logout`.
#[derive(Debug, Clone, Args)]
pub struct LogoutFlags {
    /// Log out of all providers: remove all cached tokens and certificates, and revoke the refresh tokens.
    #[arg(long, help_heading = "Logout", conflicts_with_all = FLAGS_OF_ONE_LOGIN)]
    all: bool,
    /// End the session of the browser at the provider, too.
    #[arg(long, help_heading = "Logout")]
    end_session: bool,
    /// The kubeconfig whose user logs out, without --issuer. Default: $KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE", help_heading = "Cluster", conflicts_with = "issuer")]
    kubeconfig: Option<std::path::PathBuf>,
    /// The context of the kubeconfig. Default: its current context.
    #[arg(long, value_name = "NAME", help_heading = "Cluster", conflicts_with = "issuer")]
    context: Option<String>,
    #[command(flatten)]
    provider: ProviderFlags,
}

pub(super) async fn run(flags: &LogoutFlags) -> Result<ExitCode, LoginError> {
    if flags.all {
        return log_out_everywhere(flags.provider.caches(MAY_PROMPT)).await;
    }
    let provider = flags.provider()?;
    let settings = provider.settings(secret_of_environment())?;
    let done = log_out(&provider.cache(MAY_PROMPT)?, &settings, flags.end_session).await;
    name_other_store(&provider, &settings).await;
    done
}

impl LogoutFlags {
    /// The flags of the provider: with `--issuer` those that are given, otherwise merged over those of the kubeconfig.
    fn provider(&self) -> Result<ProviderFlags, LoginError> {
        if self.provider.issuer.is_some() {
            return Ok(self.provider.clone());
        }
        if let Some(flag) = self.provider.choice_of_context() {
            return Err(LoginError::usage(&format!(
                "--{flag}: the context has its own; give --issuer and --client-id for a login of no context"
            )));
        }
        let kubeconfigs = KubeconfigPaths::of(self.kubeconfig.as_deref())?.read()?;
        let target = kubeconfigs.target(self.context.as_deref())?;
        let problem = |problem: String| {
            LoginError::usage(&format!("{kubeconfigs}: the context {:?}: {problem}", target.context))
        };
        let provider = command::plugin_flags(&target.user).map_err(problem)?.with_login_of(&self.provider);
        check_environment(&target.user, &provider.variables(), |name| std::env::var_os(name))
            .map_err(problem)?;
        if !has_cluster_info(&target.user) {
            return Ok(provider);
        }
        Ok(provider.or(cluster_config(&target.cluster).map_err(problem)?))
    }
}

/// Logs out of one provider.
async fn log_out(
    cache: &LoginCache,
    settings: &ClientSettings,
    end_session: bool,
) -> Result<ExitCode, LoginError> {
    let entry = cache.entry(settings)?;
    // A process that waits for a certificate takes the same lock, and does not keep the certificate of a login that is gone.
    let lock = entry.lock_within(LockLimits::alike(settings.login_timeout), print_waiting).await?;
    let login = CachedLogin::read(&entry).await?;
    let deadline = Instant::now() + REVOCATION_TIMEOUT;
    let mut problems = Vec::new();
    let provider = if end_session || login.refresh_tokens().next().is_some() {
        let discovered = answer_by(deadline, LoginProvider::discover(settings.client())).await;
        discovered.map_err(|problem| problems.push(problem)).ok()
    } else {
        None
    };
    if let Some(provider) = &provider {
        for token in login.refresh_tokens() {
            problems.extend(answer_by(deadline, revoke_at(provider, token)).await.err());
        }
    }
    let removed = entry.remove_login().await;
    drop(lock);
    if removed.has_tokens {
        print_removed(&login, &removed, &settings.issuer);
    }
    problems.extend(removed.failure.map(LoginError::from));
    if let Some(provider) = provider.filter(|_| end_session) {
        problems.extend(open_end_session_page(&provider, settings).err());
    }
    if let Some(last) = problems.pop() {
        for problem in problems {
            print_error(&format!("warning: {problem}"));
        }
        return Err(last);
    }
    let is_elsewhere = login.is_absent() && has_other_login(cache, settings).await;
    let is_done = !is_elsewhere && !login.is_unreadable;
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the store has logins of the same client with other scopes, CAs or parameters, or of another `--user`. Prints
/// their users.
async fn has_other_login(cache: &LoginCache, settings: &ClientSettings) -> bool {
    let mut users = Vec::new();
    for entry in warned(cache.entries().await).unwrap_or_default() {
        if !entry.is_certificate()
            && let Ok(Some(tokens)) = entry.read_to_revoke().await
            && (&tokens.issuer, &tokens.client_id) == (&settings.issuer, &settings.client_id)
        {
            users.push(tokens.user().unwrap_or_else(|| "an unknown user".to_owned()));
        }
    }
    if !users.is_empty() {
        print_error(&format!(
            "other logins of this client are cached, with other flags than these: of {}\n  fix: give the flags of that \
             login (--user, --scope, --issuer-certificate-authority, …), or log out of all with `portcullis logout --all`",
            users.join(", ")
        ));
    }
    !users.is_empty()
}

fn print_removed(login: &CachedLogin, removed: &RemovedLogin, issuer: &str) {
    if login.is_absent() {
        print(&format!("not logged in at {issuer}\n"));
    } else if login.is_unreadable {
        print_error(&format!(
            "warning: the cached tokens of {issuer} are removed, but could not be read: not revoked"
        ));
    } else {
        print(&format!("logged out of {issuer}: the cached tokens are removed\n"));
    }
    if removed.certificates > 0 {
        print("the client certificates are removed; a copy of one stays valid until it expires\n");
    }
}

/// Revokes a refresh token, if the provider can.
async fn revoke_at(provider: &LoginProvider, token: &SecretText) -> Result<(), LoginError> {
    if !provider.has_revocation() {
        print_error("the provider cannot revoke tokens: they stay valid there until they expire");
        return Ok(());
    }
    provider.revoke(token.expose()).await?;
    print("the provider has revoked the refresh token; an ID token stays valid until it expires\n");
    Ok(())
}

async fn answer_by<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, LoginError>>,
) -> Result<T, LoginError> {
    let answered = timeout_at(deadline, work).await;
    answered.unwrap_or_else(|_| Err(LoginError::Other(no_answer(REVOCATION_TIMEOUT))))
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

fn open_end_session_page(provider: &LoginProvider, settings: &ClientSettings) -> Result<(), LoginError> {
    let url = provider.end_session_url().ok_or(LoginError::NoEndpoint("page that ends a session"))?;
    match BrowserEnvironment::current().open(settings.browser_command.as_deref(), &url) {
        Ok(()) => print_error("the browser ends the session at the provider"),
        Err(problem) => {
            print_error(&format!("cannot open a browser ({problem}); open this URL:\n  {url}"));
        }
    }
    Ok(())
}

/// Prints that the store that the flags do not choose has tokens of the same login, too.
async fn name_other_store(provider: &ProviderFlags, settings: &ClientSettings) {
    let other = provider.store().other();
    let Ok(cache) = provider.cache_in(other, NO_PROMPT) else { return };
    if timeout(HINT_TIMEOUT, cache.has_login(settings)).await == Ok(true) {
        print_error(&format!(
            "another login at {} is cached: portcullis logout --credential-store={}",
            settings.issuer,
            other.name()
        ));
    }
}

/// What the store has of a login.
struct CachedLogin {
    /// Those of the document, and those that a killed login was writing.
    tokens: Vec<CachedTokens>,
    /// Whether the document is damaged, of another version, or a file that this user cannot read.
    is_unreadable: bool,
}

impl CachedLogin {
    /// Reads the tokens of an entry. Fails if the keyring does: then the tokens are still there.
    async fn read(entry: &CacheEntry) -> Result<Self, CacheError> {
        let read = match entry.read_to_revoke().await {
            Err(error @ CacheError::Keyring(_)) => return Err(error),
            read => warned(read),
        };
        let is_unreadable = read.is_none();
        Ok(Self { tokens: read.flatten().into_iter().chain(entry.read_partial()).collect(), is_unreadable })
    }

    fn is_absent(&self) -> bool {
        self.tokens.is_empty() && !self.is_unreadable
    }

    fn refresh_tokens(&self) -> impl Iterator<Item = &SecretText> {
        self.tokens.iter().filter_map(|tokens| tokens.refresh_token.as_ref())
    }
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
    let (mut stores, mut has_failed) = (Vec::new(), false);
    let is_only = caches.len() == 1;
    for cache in caches {
        let read = match cache {
            Ok(cache) => LockedStore::read(&cache).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(store) => stores.push(store),
            Err(error) if is_only => return Err(error.into()),
            // The logins of the other store are revoked all the same.
            Err(error) => {
                print_error(&format!("warning: the logins of one store are not removed: {error}"));
                // Over SSH there is no bus: that is no failure for users of files, and may hide logins of the keyring.
                has_failed |= !error.is_absent_keyring();
            }
        }
    }
    let logins: Vec<&CachedTokens> = stores.iter().flat_map(LockedStore::tokens).collect();
    let revocations = revoke_all(&logins, REVOCATION_TIMEOUT).await;
    has_failed |= revocations.iter().any(|revocation| matches!(revocation, Revocation::Failed(_)));
    let mut removed = RemovedEntries::default();
    for store in &stores {
        store.remove(&mut removed).await;
    }
    has_failed |= removed.has_failed;
    let RemovedEntries { logins: count, certificates, unreadable, .. } = removed;
    print(&format!("{count} cached logins and {certificates} client certificates removed\n"));
    if unreadable > 0 {
        print_error(&format!(
            "warning: {unreadable} of the cached logins are removed, but could not be read: not revoked"
        ));
        has_failed = true;
    }
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

/// All entries of a store, with the locks of the logins.
struct LockedStore {
    logins: Vec<LockedLogin>,
    certificates: Vec<CacheEntry>,
}

struct LockedLogin {
    entry: CacheEntry,
    login: CachedLogin,
    /// `None`: a process that holds the lock may write its entry again.
    lock: Option<CacheLock>,
}

/// What became of the entries of all stores.
#[derive(Debug, Default)]
struct RemovedEntries {
    logins: usize,
    certificates: usize,
    /// How many of the logins could not be read.
    unreadable: usize,
    /// Whether an entry is still there, or may be there again.
    has_failed: bool,
}

impl LockedStore {
    /// Fails if the keyring does: then its entries stay, to be revoked later.
    async fn read(cache: &LoginCache) -> Result<Self, CacheError> {
        let entries = cache.entries().await?;
        for part in cache.unsearched().await? {
            print_error(&format!(
                "warning: the collection {part:?} of the keyring is locked: logins in it are not removed\n  fix: unlock \
                 it, then repeat the command"
            ));
        }
        let (certificates, entries): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(CacheEntry::is_certificate);
        let mut logins = Vec::new();
        for entry in entries {
            // A process that holds the lock for longer waits for a user.
            let lock = warned(entry.lock(LOCK_TIMEOUT, || ()).await);
            let login = CachedLogin::read(&entry).await?;
            logins.push(LockedLogin { entry, login, lock });
        }
        Ok(Self { logins, certificates })
    }

    /// The tokens that could be read.
    fn tokens(&self) -> impl Iterator<Item = &CachedTokens> {
        self.logins.iter().flat_map(|login| &login.login.tokens)
    }

    /// Removes all entries. One that stays keeps no other.
    async fn remove(&self, removed: &mut RemovedEntries) {
        for LockedLogin { entry, login, lock } in &self.logins {
            let of_login = entry.remove_login().await;
            if of_login.has_tokens {
                removed.logins += usize::from(!login.is_absent());
                removed.unreadable += usize::from(login.is_unreadable);
            }
            removed.certificates += of_login.certificates;
            let is_done = warned(of_login.failure.map_or(Ok(()), Err)).is_some();
            removed.has_failed |= !is_done || lock.is_none();
        }
        let is_orphan =
            |entry: &&CacheEntry| !self.logins.iter().any(|login| entry.is_certificate_of(&login.entry));
        for entry in self.certificates.iter().filter(is_orphan) {
            let is_removed = warned(entry.remove().await).is_some();
            removed.certificates += usize::from(is_removed);
            removed.has_failed |= !is_removed;
        }
    }
}

/// Revokes the refresh tokens, those of different providers side by side. A provider that has not answered by the deadline has
/// failed.
async fn revoke_all(logins: &[&CachedTokens], limit: Duration) -> Vec<Revocation> {
    let deadline = Instant::now() + limit;
    let mut of_issuers: BTreeMap<&str, Vec<(usize, &CachedTokens)>> = BTreeMap::new();
    for (number, login) in logins.iter().enumerate() {
        of_issuers.entry(&login.issuer).or_default().push((number, login));
    }
    let of_issuers = of_issuers.into_values().map(|logins| {
        let revocations = logins.into_iter().map(|(number, login)| async move {
            let revoked = timeout_at(deadline, revoke(login)).await;
            (number, revoked.unwrap_or_else(|_| Revocation::Failed(no_answer(limit))))
        });
        stream::iter(revocations).buffered(MAX_REVOCATIONS_AT_ONCE).collect::<Vec<_>>()
    });
    let revocations: Vec<Vec<_>> =
        stream::iter(of_issuers).buffer_unordered(MAX_PROVIDERS_AT_ONCE).collect().await;
    let by_number: BTreeMap<_, _> = revocations.into_iter().flatten().collect();
    by_number.into_values().collect()
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
