//! Gets a credential: from the cache, by a refresh, or by a login. One process does so at a time for each cache entry.

mod new_login;

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use openidconnect::Nonce;
use portcullis_openid::jwt::Jwt;
use portcullis_system::clock::{Clock, UnixTime};
use portcullis_system::input_file;
use secrecy::SecretString;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::time::timeout;

use super::browser::BrowserEnvironment;
use super::cache::{
    CacheEntry, CacheError, CacheLock, CachedTokens, LockHolder, LockLimits, LoginCache, SecretText,
};
use super::error::LoginError;
use super::id_token::{self, ExpectedIdToken, IdTokenError};
use super::pasted_address::TypedLines;
use super::provider::{LoginProvider, LoginTokens};
use super::settings::{ClientSettings, Flow, TokenKind};
use crate::print_error;

/// A token is replaced this long before it expires, or a tenth of its lifetime if that is less.
pub(super) const MAX_SKEW: u64 = 60;
/// How long a token without an expiry is used.
const UNKNOWN_LIFETIME: u64 = 60;
/// How long a command waits for the revocation of a token that it does not use.
const REVOCATION_TIMEOUT: Duration = Duration::from_secs(5);
/// How long another process may take beside its login.
pub(super) const LOCK_MARGIN: Duration = Duration::from_mins(1);

/// How long a command that must not ask the user waits for another process that does.
const OTHER_LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Read-locked from a refresh, or the exchange of a login, until the new refresh token is written. Ctrl-C waits for it.
pub(super) static REFRESHING: RwLock<()> = RwLock::const_new(());

/// A credential for the cluster.
#[derive(Debug, Clone)]
pub(super) struct Credential {
    pub(super) token: SecretString,
    /// The user of the ID token that came with it.
    pub(super) subject: Option<String>,
    /// When to ask for another one: before the token expires.
    pub(super) renew_at: Option<UnixTime>,
}

/// How a command reaches the user.
#[derive(Debug)]
pub(super) struct UserAccess {
    /// The user waits for the command and reads what it prints: the user has started it, or kubectl lets it ask.
    pub(super) is_attended: bool,
    /// Where the user types.
    pub(super) typed: TypedLines,
    /// Standard error is a terminal.
    pub(super) has_screen: bool,
}

impl UserAccess {
    /// That of a command that the user has started.
    pub(super) fn of_command() -> Self {
        Self { is_attended: true, ..Self::of_plugin(None) }
    }

    /// That of an exec plugin. The client says whether standard input is the plugin's; `None`: it was not run by a client.
    pub(super) fn of_plugin(interactive: Option<bool>) -> Self {
        Self::of_streams(interactive, std::io::stdin().is_terminal(), std::io::stderr().is_terminal())
    }

    /// Standard input that is no terminal has nothing of the user, even if the client passes it on: kubernetes-client/python
    /// decides by standard output.
    fn of_streams(interactive: Option<bool>, has_input: bool, has_screen: bool) -> Self {
        let is_attended = interactive.unwrap_or(has_input);
        let typed = if is_attended && has_input { TypedLines::Terminal } else { TypedLines::Absent };
        Self { is_attended, typed, has_screen }
    }
}

/// How a command gets credentials.
#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) settings: &'a ClientSettings,
    /// The cache; `None`: no cache.
    pub(super) cache: Option<&'a LoginCache>,
    pub(super) clock: &'a Clock,
    pub(super) user: UserAccess,
    /// Log in also if the cache has tokens.
    pub(super) force: bool,
    pub(super) browser: BrowserEnvironment,
}

/// How tokens were got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenOrigin {
    Login,
    /// With a cached refresh token.
    Refresh,
}

/// The cached tokens, by what a command does with them.
enum CachedLogin {
    /// Uses them.
    Current(Credential),
    /// Renews them, and uses them once more if the provider is away for the moment.
    Due(CachedTokens, Credential),
    /// Renews them.
    Expired(CachedTokens),
    /// Logs in.
    Absent,
}

/// Where the tokens of a login are kept, and whether this process alone may change them.
struct TokenPlace {
    entry: CacheEntry,
    lock: Result<CacheLock, CacheError>,
}

impl TokenPlace {
    /// Writes the tokens that are there, to see whether others can be written.
    async fn check(&self, tokens: &CachedTokens) -> Result<(), UnusablePlace> {
        let unusable =
            |error: &CacheError| UnusablePlace { problem: error.to_string(), is_fatal: error.is_fatal() };
        self.lock.as_ref().map_err(unusable)?;
        self.entry.write(tokens).await.map_err(|error| unusable(&error))
    }

    async fn has_refresh_token(&self) -> bool {
        let kept = self.entry.read_to_revoke().await.ok().flatten();
        kept.is_some_and(|tokens| tokens.refresh_token.is_some())
    }
}

/// Why new tokens would not be kept.
struct UnusablePlace {
    problem: String,
    /// Whether a login would fail for it, too.
    is_fatal: bool,
}

/// Tokens that are not cached yet.
struct NewTokens {
    tokens: CachedTokens,
    origin: TokenOrigin,
    /// Until the tokens of a login are kept.
    keeping: Option<RwLockReadGuard<'static, ()>>,
}

impl NewTokens {
    fn of_login(tokens: CachedTokens) -> Self {
        Self { tokens, origin: TokenOrigin::Login, keeping: None }
    }

    /// Refuses tokens of another user than the earlier ones: the account of the browser's session, or one that another
    /// program has logged in, would act in the user's place.
    // threat: forged-callback
    fn of_same_user(self, earlier: Option<&CachedTokens>) -> Result<Self, LoginError> {
        match earlier.and_then(|earlier| other_user(earlier, &self.tokens)) {
            Some((earlier, user)) => Err(LoginError::AnotherUser { user, earlier }),
            None => Ok(self),
        }
    }
}

/// The users of both for people, if they are known and different.
fn other_user(earlier: &CachedTokens, new: &CachedTokens) -> Option<(String, String)> {
    let is_other = earlier.subject.as_deref()? != new.subject.as_deref()?;
    is_other.then(|| Some((earlier.user()?, new.user()?))).flatten()
}

impl Session<'_> {
    /// The credential: of the cache without a lock, since writes are atomic; else of the cache once other processes have
    /// finished, and else renewed.
    pub(super) async fn credential(&self) -> Result<Credential, LoginError> {
        let entry = checked(self.cache.map(|cache| cache.entry(self.settings)).transpose())?;
        if !self.force
            && let Some(entry) = &entry
            && let CachedLogin::Current(credential) = self.cached_login(quiet(entry.read().await)?)
        {
            return Ok(credential);
        }
        let place = match entry {
            Some(entry) => Some(self.locked(entry).await?),
            None => None,
        };
        // Before a login, too: a keyring that cannot be used would keep none of it.
        let read = match &place {
            Some(place) => checked(place.entry.read().await)?.filter(|_| !self.force),
            None => None,
        };
        let (cached, bridge) = match self.cached_login(read) {
            CachedLogin::Current(credential) => return Ok(credential),
            CachedLogin::Due(tokens, credential) => (Some(tokens), Some(credential)),
            CachedLogin::Expired(tokens) => (Some(tokens), None),
            CachedLogin::Absent => (None, None),
        };
        match (self.renew_in_turn(cached, place.as_ref()).await, bridge) {
            (Ok(NewTokens { tokens, origin, keeping }), _) => {
                if let Some(place) = &place {
                    self.keep(&place.entry, &tokens, origin).await?;
                }
                drop(keeping);
                Ok(credential(&tokens))
            }
            // Nobody can be asked: what is still valid is used, also after a refusal, which a proxy may have written.
            (Err(error @ LoginError::LoginRequired(_)), Some(bridge)) => {
                print_error(&format!("warning: {error}"));
                Ok(bridge)
            }
            (Err(error), Some(bridge)) if error.is_temporary() => {
                print_error(&format!("warning: {error}"));
                Ok(bridge)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// The place of an entry, once no other process changes it. Without usable locks, processes do not wait for each other.
    async fn locked(&self, entry: CacheEntry) -> Result<TokenPlace, LoginError> {
        let waiting = |holder: Option<&LockHolder>| {
            if self.user.is_attended {
                print_waiting(holder);
            }
        };
        let all = self.settings.login_timeout + LOCK_MARGIN;
        // A refresh ends soon; a user who logs in may have left, and the command could not say that it waits.
        let login = if self.may_log_in() { all } else { OTHER_LOGIN_TIMEOUT };
        let lock = entry.lock_within(LockLimits { all, login }, waiting).await;
        match lock {
            Err(error) if error.is_fatal() => return Err(error.into()),
            Err(ref error) => warn(error),
            Ok(_) => {}
        }
        Ok(TokenPlace { entry, lock })
    }

    /// Renews, unless another process has just failed with the same attempt, for which this one has waited. A failure that
    /// others would have, too, is left for them.
    async fn renew_in_turn(
        &self,
        cached: Option<CachedTokens>,
        place: Option<&TokenPlace>,
    ) -> Result<NewTokens, LoginError> {
        let lock = place.and_then(|place| place.lock.as_ref().ok());
        // With `force` the user decides again, whatever another process was told.
        let shared = place.zip(lock).filter(|_| !self.force);
        let shared = shared.map(|(place, lock)| (lock, self.attempt(&place.entry)));
        if let Some(failure) = shared.as_ref().and_then(|(lock, attempt)| lock.failure(attempt)) {
            return Err(failure);
        }
        if let Some(lock) = lock {
            lock.begin();
        }
        // Boxed: the future of a login is large.
        let renewed = Box::pin(self.renew(cached, place)).await;
        if let (Some((lock, attempt)), Err(error)) = (&shared, &renewed)
            && error.is_shared()
        {
            lock.fail(attempt, error, error.is_temporary());
        }
        renewed
    }

    /// What this process attempts for an entry, beside what the name of the entry says: another attempt could succeed.
    pub(super) fn attempt(&self, entry: &CacheEntry) -> String {
        let ClientSettings { flow, login_timeout, secret, .. } = self.settings;
        format!("{} {flow:?} {login_timeout:?} {}", entry.place(), secret.is_some())
    }

    /// Writes new tokens. A login that the keyring does not keep is an error, as one that it cannot read is. Its refresh token
    /// is revoked: no later command could do so. So is that of another user whose login it replaces.
    async fn keep(
        &self,
        entry: &CacheEntry,
        tokens: &CachedTokens,
        origin: TokenOrigin,
    ) -> Result<(), LoginError> {
        if origin == TokenOrigin::Refresh {
            warned(entry.write(tokens).await);
            return Ok(());
        }
        let earlier = entry.read_to_revoke().await.ok().flatten();
        match entry.write(tokens).await {
            Err(error @ CacheError::Keyring(_)) => {
                self.revoke(tokens.refresh_token.as_ref(), "the new refresh token").await;
                return Err(error.into());
            }
            Err(error) => {
                warn(&error);
                return Ok(());
            }
            Ok(()) => {}
        }
        // Not that of the same user: some providers revoke all tokens that the client has of the user, the new one, too.
        // keycloak: services/…/oidc/endpoints/TokenRevocationEndpoint.java, revokeClient
        if let Some(earlier) = earlier.filter(|earlier| other_user(earlier, tokens).is_some()) {
            self.revoke(earlier.refresh_token.as_ref(), "the refresh token of the earlier user").await;
        }
        Ok(())
    }

    /// Revokes a refresh token that is of no use, if the provider answers soon.
    async fn revoke(&self, token: Option<&SecretText>, name: &str) {
        let Some(token) = token else { return };
        let revoked = async {
            let provider = LoginProvider::discover(self.settings.client()).await?;
            if provider.has_revocation() { provider.revoke(token.expose()).await } else { Ok(()) }
        };
        let late = |_| Err(LoginError::Other(format!("no answer within {REVOCATION_TIMEOUT:?}")));
        if let Err(problem) = timeout(REVOCATION_TIMEOUT, revoked).await.unwrap_or_else(late) {
            print_error(&format!("warning: {name} is not revoked: {problem}"));
        }
    }

    /// Revokes the refresh token of a file that other users can read. Its tokens are not used, and a login replaces it.
    async fn revoke_readable(&self, entry: &CacheEntry) {
        if matches!(entry.read().await, Err(CacheError::Readable(_)))
            && let Ok(Some(tokens)) = entry.read_to_revoke().await
        {
            self.revoke(tokens.refresh_token.as_ref(), "the refresh token that other users can read").await;
        }
    }

    /// What to do with cached tokens.
    fn cached_login(&self, tokens: Option<CachedTokens>) -> CachedLogin {
        let Some(tokens) = tokens else { return CachedLogin::Absent };
        let now = self.clock.now();
        let is_of_past = tokens.received_at <= now.as_secs().saturating_add(MAX_SKEW);
        let is_ours = tokens.issuer == self.settings.issuer && tokens.client_id == self.settings.client_id;
        let credential = credential(&tokens);
        if is_ours && is_of_past && credential.renew_at.is_some_and(|at| now < at) {
            CachedLogin::Current(credential)
        } else if now.as_secs() < tokens.expires_at {
            CachedLogin::Due(tokens, credential)
        } else {
            CachedLogin::Expired(tokens)
        }
    }

    /// New tokens, by a refresh or a login.
    async fn renew(
        &self,
        cached: Option<CachedTokens>,
        place: Option<&TokenPlace>,
    ) -> Result<NewTokens, LoginError> {
        if self.settings.flow == Flow::ClientCredentials {
            let provider = LoginProvider::discover(self.settings.client()).await?;
            let tokens = provider.client_credentials().await?;
            return self.accept(&provider, &tokens, None, None).await.map(NewTokens::of_login);
        }
        let old = cached.as_ref().and_then(|cached| Some((cached, cached.refresh_token.as_ref()?)));
        let Some((cached, refresh_token)) = old else {
            let reason = "no login is cached, or it has expired";
            return self.login(None, reason, cached.as_ref(), place).await;
        };
        Box::pin(self.refresh_or_log_in(cached, refresh_token, place)).await
    }

    /// New tokens for cached ones. A refusal of the provider leads to a login; a failure that may pass does not.
    async fn refresh_or_log_in(
        &self,
        cached: &CachedTokens,
        refresh_token: &SecretText,
        place: Option<&TokenPlace>,
    ) -> Result<NewTokens, LoginError> {
        let provider = LoginProvider::discover(self.settings.client()).await.map_err(not_renewed)?;
        if let Some(place) = place
            && let Err(UnusablePlace { problem, is_fatal }) = place.check(cached).await
        {
            let error = LoginError::Unkept(problem);
            let is_valid = self.clock.now().as_secs() < cached.expires_at;
            if is_fatal || is_valid || !self.may_log_in() {
                return Err(error);
            }
            // The user has a way on: a login works without a cache.
            print_error(&format!("warning: {error}"));
            return self.login(Some(provider), &error.to_string(), Some(cached), Some(place)).await;
        }
        let refreshing = REFRESHING.read().await;
        let refreshed = provider.refresh(refresh_token).await;
        // At once: the provider may accept the old one no longer, whatever becomes of the other tokens.
        let rotated = refreshed.as_ref().ok().and_then(|tokens| tokens.refresh_token.clone());
        if let (Some(place), Some(rotated)) = (place, rotated) {
            warned(place.entry.write(&cached.with_refresh_token(Some(rotated))).await);
        }
        drop(refreshing);
        let refreshed = match refreshed {
            Ok(tokens) => self.accept(&provider, &tokens, None, Some(cached)).await,
            Err(error) => Err(error),
        };
        match refreshed {
            Err(error) if error.is_login_needed() => {
                // The entry stays, for the user of the next login.
                if error.is_invalid_grant()
                    && let Some(place) = place
                {
                    warned(place.entry.write(&cached.with_refresh_token(None)).await);
                }
                if self.may_log_in() {
                    print_error(&error.to_string());
                }
                self.login(Some(provider), &error.to_string(), Some(cached), place).await
            }
            Err(LoginError::IdToken(IdTokenError::Missing)) => {
                let reason = format!(
                    "the provider renews no ID token at a refresh: a login ends with its token, after {}",
                    lifetime_text(cached)
                );
                if self.may_log_in() {
                    print_error(&reason);
                }
                self.login(Some(provider), &reason, Some(cached), place).await
            }
            refreshed => {
                let new =
                    refreshed.map(|tokens| NewTokens { tokens, origin: TokenOrigin::Refresh, keeping: None });
                new.map_err(not_renewed)
            }
        }
    }

    /// Verifies a token response.
    async fn accept(
        &self,
        provider: &LoginProvider,
        tokens: &LoginTokens,
        nonce: Option<&Nonce>,
        earlier: Option<&CachedTokens>,
    ) -> Result<CachedTokens, LoginError> {
        let now = self.clock.now();
        let received_at = now.as_secs();
        let by_client = self.settings.flow == Flow::ClientCredentials;
        let claims = match &tokens.id_token {
            Some(token) => {
                let expected = ExpectedIdToken {
                    issuer: &self.settings.issuer,
                    client_id: &self.settings.client_id,
                    nonce: nonce.map(|nonce| nonce.secret().as_str()),
                    subject: earlier.and_then(|earlier| earlier.subject.as_deref()),
                    now,
                };
                Some(id_token::verify(token.expose(), &provider.keys().await?, &expected)?)
            }
            None => None,
        };
        if let Some(warning) = claims.as_ref().and_then(|claims| claims.clock_warning(now)) {
            print_error(&warning);
        }
        let (token, expires_at) = match (self.settings.token, &tokens.id_token, &claims) {
            (TokenKind::Id, Some(token), Some(claims)) => (token.expose(), claims.expires_by(now)),
            (TokenKind::Id, ..) if !by_client => return Err(IdTokenError::Missing.into()),
            _ => {
                let lifetime = tokens.expires_in.map_or(UNKNOWN_LIFETIME, |lifetime| lifetime.as_secs());
                (bearer_token(tokens)?.expose(), received_at.saturating_add(lifetime))
            }
        };
        let mut cached = CachedTokens::new(self.settings, token, expires_at, received_at);
        // A refresh may bring no ID token (OpenID Connect Core 1.0, section 12.2). The user is the same.
        let earlier_subject = || earlier.and_then(|earlier| earlier.subject.clone());
        cached.subject = claims.map(|claims| claims.subject).or_else(earlier_subject);
        // RFC 6749, section 6: without a new one, the old one stays
        let rotated = tokens.refresh_token.clone();
        cached.refresh_token = rotated.or_else(|| earlier.and_then(|earlier| earlier.refresh_token.clone()));
        Ok(cached)
    }
}

/// The access token, as a token for the cluster.
fn bearer_token(tokens: &LoginTokens) -> Result<&SecretText, LoginError> {
    const PROBLEM: &str = "the provider has given one of another type than Bearer";
    tokens.bearer_token().ok_or_else(|| LoginError::answer("use the access token", PROBLEM))
}

/// The credential of tokens, which is renewed before it expires.
fn credential(tokens: &CachedTokens) -> Credential {
    Credential {
        token: SecretString::from(tokens.token.expose()),
        subject: tokens.subject.clone(),
        renew_at: Some(renewal(tokens.received_at, tokens.expires_at)),
    }
}

/// The error of a refresh that may succeed later.
fn not_renewed(error: LoginError) -> LoginError {
    if error.is_temporary() { LoginError::NotRenewed(Box::new(error)) } else { error }
}

/// How long the token lives, for people.
fn lifetime_text(tokens: &CachedTokens) -> String {
    let seconds = tokens.expires_at.saturating_sub(tokens.received_at);
    match seconds {
        0..120 => format!("{seconds} seconds"),
        120..7200 => format!("{} minutes", seconds / 60),
        _ => format!("{} hours", seconds / 3600),
    }
}

/// When to replace a credential of this lifetime.
pub(super) fn renewal(received_at: u64, expires_at: u64) -> UnixTime {
    let lifetime = expires_at.saturating_sub(received_at);
    UnixTime::from_secs(expires_at.saturating_sub(MAX_SKEW.min(lifetime / 10)))
}

/// The credential in a file that another program renews: read again at least every minute.
// client-go: transport/token_source.go, NewCachedFileTokenSource
pub(super) fn from_file(file: &Path, now: UnixTime) -> Result<Credential, LoginError> {
    let problem = |problem: &str| LoginError::usage(&format!("--token-file {}: {problem}", file.display()));
    let content = input_file::read(file).map_err(|error| problem(&format!("{error}; {}", error.fix())))?;
    let text = String::from_utf8(content).map_err(|_| problem("is not UTF-8 text"))?;
    let token = text.trim();
    if token.is_empty() || token.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(problem("has no token, or more than one"));
    }
    let claims = Jwt::parse(token).ok().and_then(|jwt| jwt.claims().ok());
    let expires = claims.and_then(|claims| claims.get("exp")?.as_u64()).map(UnixTime::from_secs);
    let again = now + Duration::from_secs(UNKNOWN_LIFETIME);
    let renew_at = Some(expires.map_or(again, |expires| expires.min(again)));
    Ok(Credential { token: SecretString::from(token), subject: None, renew_at })
}

/// Says why the command waits for a lock.
pub(super) fn print_waiting(holder: Option<&LockHolder>) {
    let holder = holder.map_or_else(String::new, |holder| format!(", {holder}"));
    print_error(&format!("waiting for the login of another process{holder} …"));
}

fn warn(error: &CacheError) {
    print_error(&format!("warning: the login cache: {error}"));
}

/// The value, or `None` after a warning.
pub(super) fn warned<T>(outcome: Result<T, CacheError>) -> Option<T> {
    outcome.inspect_err(warn).ok()
}

/// What was read or opened, or `None` after a warning. Fails if the error is fatal.
pub(super) fn checked<T>(outcome: Result<Option<T>, CacheError>) -> Result<Option<T>, CacheError> {
    match outcome {
        Err(error) if error.is_fatal() => Err(error),
        outcome => Ok(warned(outcome).flatten()),
    }
}

/// As [`checked`], without the warning: the same is read again under the lock.
pub(super) fn quiet<T>(outcome: Result<Option<T>, CacheError>) -> Result<Option<T>, CacheError> {
    match outcome {
        Err(error) if error.is_fatal() => Err(error),
        outcome => Ok(outcome.ok().flatten()),
    }
}

#[cfg(test)]
pub(in crate::login) mod tests;
