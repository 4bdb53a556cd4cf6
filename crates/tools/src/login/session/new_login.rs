//! A new login: by a browser on this machine, by an address that the user pastes, or by a code for another device.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use openidconnect::Nonce;
use openidconnect::url::Url;
use portcullis_openid::answers::DeviceAuthorization;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::RwLockReadGuard;
use tokio::time::{sleep, timeout};

use super::{NewTokens, REFRESHING, Session, TokenPlace, lifetime_text};
use crate::login::cache::{CacheLock, CachedTokens};
use crate::login::callback::{Callback, CallbackListener, CallbackServer, ExpectedCallback};
use crate::login::error::{CallbackError, LoginError, shortened};
use crate::login::pasted_address::pasted;
use crate::login::provider::{LoginProvider, LoginTokens};
use crate::login::settings::{Flow, OpenBrowser};
use crate::print_error;

/// When the command says what it waits for: a password and a second factor are typed by then.
const REDIRECT_HINT_AFTER: Duration = Duration::from_mins(1);

/// For how many seconds no login is asked for after one that has failed, unless a terminal asks.
const PAUSE_AFTER_FAILURE: u64 = 5 * 60;

/// What a flow has brought, not verified yet.
pub(super) struct Authorized {
    pub(super) tokens: LoginTokens,
    pub(super) nonce: Option<Nonce>,
    /// Whether the user alone has begun the login.
    pub(super) started: Result<(), CallbackError>,
    /// No signal ends the command until the tokens are kept.
    pub(super) keeping: RwLockReadGuard<'static, ()>,
}

impl Session<'_> {
    /// Whether a login can be asked for: of the user at the terminal, or in a browser of the desktop.
    pub(in crate::login) fn may_log_in(&self) -> bool {
        let is_by_browser = matches!(self.settings.flow, Flow::Auto | Flow::Browser);
        self.user.is_attended || is_by_browser && self.may_open_browser()
    }

    /// Whether a browser may be opened, and is there. Without a terminal, only a display tells that a user is there.
    fn may_open_browser(&self) -> bool {
        let is_allowed = match self.settings.open_browser {
            OpenBrowser::Never => false,
            OpenBrowser::Terminal => self.user.typed.is_present(),
            OpenBrowser::Auto => self.user.is_attended || self.browser.has_display,
        };
        is_allowed && self.browser.is_available(self.settings.browser_command.as_deref())
    }

    /// Whether an address reaches the user. A program without a terminal may draw over standard error.
    fn shows_addresses(&self) -> bool {
        self.user.is_attended || self.user.has_screen
    }

    /// Asks the user to log in, who must be that of the earlier tokens.
    pub(super) async fn login(
        &self,
        provider: Option<LoginProvider>,
        reason: &str,
        earlier: Option<&CachedTokens>,
        place: Option<&TokenPlace>,
    ) -> Result<NewTokens, LoginError> {
        if !self.may_log_in() {
            return Err(LoginError::LoginRequired(reason.to_owned()));
        }
        let lock = place.and_then(|place| place.lock.as_ref().ok()).filter(|_| !self.user.is_attended);
        if lock.is_some_and(|lock| self.has_just_failed(lock)) {
            return Err(LoginError::LoginRequired(format!(
                "{reason}; a login in the browser has failed less than {} minutes ago",
                PAUSE_AFTER_FAILURE / 60
            )));
        }
        let provider = match provider {
            Some(provider) => provider,
            None => LoginProvider::discover(self.settings.client()).await?,
        };
        let provider = provider.with_prompt(self.settings.prompt.as_deref());
        if let Some(place) = place {
            self.revoke_readable(&place.entry).await;
            if let Ok(lock) = &place.lock {
                lock.begin_login();
            }
        }
        let new = self.log_in(provider, earlier, place).await;
        if let Some(lock) = lock {
            lock.set_failed_login(new.is_err().then(|| self.clock.now()));
        }
        new
    }

    /// Whether a login that no terminal has asked for has failed in the last minutes: programs that poll would open one page
    /// after another.
    fn has_just_failed(&self, lock: &CacheLock) -> bool {
        let since = lock.failed_login().and_then(|failed| self.clock.now().as_secs().checked_sub(failed));
        since.is_some_and(|seconds| seconds < PAUSE_AFTER_FAILURE)
    }

    /// Logs the user in, who must be that of the earlier tokens.
    async fn log_in(
        &self,
        mut provider: LoginProvider,
        earlier: Option<&CachedTokens>,
        place: Option<&TokenPlace>,
    ) -> Result<NewTokens, LoginError> {
        let authorized = match self.authorize(&provider).await {
            Err(error) if error.is_scope_refused() && provider.asks_for_offline_access() => {
                print_error(&format!(
                    "{error}\nthe login is tried again without offline_access, so the provider decides how long it can be renewed"
                ));
                provider = provider.without_offline_access();
                self.authorize(&provider).await?
            }
            authorized => authorized?,
        };
        self.complete(&provider, authorized, earlier, place).await
    }

    /// Verifies the tokens of a login. They are revoked if they are not accepted.
    // threat: forged-callback
    pub(super) async fn complete(
        &self,
        provider: &LoginProvider,
        authorized: Authorized,
        earlier: Option<&CachedTokens>,
        place: Option<&TokenPlace>,
    ) -> Result<NewTokens, LoginError> {
        let Authorized { tokens, nonce, started, keeping } = authorized;
        let accepted = self.accept(provider, &tokens, nonce.as_ref(), None).await;
        let new = accepted.map(NewTokens::of_login).and_then(|new| new.of_same_user(earlier));
        let new = new.and_then(|new| Ok(started.map(|()| new)?));
        match &new {
            Ok(new) => self.tell(provider, new),
            Err(error) => self.revoke_refused(error, &tokens, place).await,
        }
        new.map(|new| NewTokens { keeping: Some(keeping), ..new })
    }

    /// Says who has logged in, and whether the login can be renewed.
    fn tell(&self, provider: &LoginProvider, new: &NewTokens) {
        if let Some(user) = new.tokens.user() {
            print_error(&format!("logged in as {user}"));
        }
        if let Some(warning) = self.renewal_warning(provider, &new.tokens) {
            print_error(&warning);
        }
    }

    /// What to say of a login that cannot be renewed although that was asked for.
    pub(super) fn renewal_warning(&self, provider: &LoginProvider, tokens: &CachedTokens) -> Option<String> {
        if !provider.asks_for_offline_access() || tokens.refresh_token.is_some() {
            return None;
        }
        let mut prompts = self.settings.prompt.as_deref().unwrap_or_default().split(' ');
        // OpenID Connect Core 1.0, section 11: some providers ignore offline_access without it
        let by_consent = if prompts.any(|prompt| prompt == "consent") {
            ""
        } else {
            "portcullis login --prompt consent, or "
        };
        Some(format!(
            "the provider has given no refresh token, though offline_access was asked for: the login ends in {}\n  fix: \
             {by_consent}allow the client refresh tokens at the provider",
            lifetime_text(tokens)
        ))
    }

    /// Revokes the refresh token of a login that is not accepted.
    async fn revoke_refused(&self, error: &LoginError, tokens: &LoginTokens, place: Option<&TokenPlace>) {
        // Not of the user whose login is cached: as in `keep`, that could end it.
        let is_alone = match place {
            Some(place) => !place.has_refresh_token().await,
            None => true,
        };
        if is_alone || matches!(error, LoginError::AnotherUser { .. }) {
            self.revoke(tokens.refresh_token.as_ref(), "the new refresh token").await;
        }
    }

    /// The tokens, by the flow that was chosen or that works here.
    pub(super) async fn authorize(&self, provider: &LoginProvider) -> Result<Authorized, LoginError> {
        let by_code = || self.code(provider);
        match self.settings.flow {
            Flow::Device => self.device(provider).await,
            Flow::Auto if !self.may_open_browser() => match self.device(provider).await {
                Err(error) if error.is_flow_refused() && self.user.typed.is_present() => {
                    if provider.has_device_flow() {
                        print_error(&format!("without a code for another device: {error}"));
                    }
                    Box::pin(by_code()).await
                }
                // A browser of this machine may still be at hand.
                Err(LoginError::NoEndpoint(_)) => Box::pin(by_code()).await,
                authorized => authorized,
            },
            _ => Box::pin(by_code()).await,
        }
    }

    /// The authorization code flow.
    async fn code(&self, provider: &LoginProvider) -> Result<Authorized, LoginError> {
        let listener =
            CallbackListener::bind(self.settings.callback_host, &self.settings.callback_ports).await?;
        let redirect = listener.redirect_url();
        let request = provider.authorization(&redirect)?;
        let expected = ExpectedCallback {
            state: SecretString::from(request.state.secret().as_str()),
            issuer: self.settings.issuer.clone(),
            has_issuer: provider.announces_issuer(),
        };
        let mut server = listener.serve(expected.clone(), request.url.as_str());
        let is_pasted = self.send_to_provider(server.start_url(), &request.url, &redirect)?;
        let limit = self.settings.login_timeout;
        let redirected = self.redirected(&mut server, &expected, &redirect, is_pasted);
        let late = |_| LoginError::NoRedirect { limit, redirect: redirect.clone() };
        match timeout(limit, redirected).await.map_err(late)?? {
            Callback::Refused(refusal) => Err(LoginError::Refused(refusal)),
            Callback::Code(code) => {
                let keeping = REFRESHING.read().await;
                let tokens = provider.exchange(code.expose_secret(), &redirect, request.verifier).await?;
                Ok(Authorized { tokens, nonce: Some(request.nonce), started: server.check_start(), keeping })
            }
        }
    }

    /// Opens the browser at the start address, or prints an address. Returns whether the user is asked to paste the redirect. Only a browser of another machine, which does not reach the listener, gets the URL of the provider.
    fn send_to_provider(&self, start: &str, url: &Url, redirect: &str) -> Result<bool, LoginError> {
        let mut problem = String::new();
        if self.may_open_browser() {
            match self.browser.open(self.settings.browser_command.as_deref(), start) {
                Ok(()) if self.shows_addresses() => {
                    print_error(&format!(
                        "log in with the browser that opens, or, if none does, at this address:\n  {start}"
                    ));
                    return Ok(false);
                }
                Ok(()) => return Ok(false),
                Err(cause) => problem = format!("cannot open a browser ({cause}); "),
            }
        }
        if self.user.typed.is_present() {
            print_error(&format!(
                "{problem}open this URL in a browser on any machine:\n  {url}\nif it ends on a page that does not load, paste \
                 the address of that page here; it begins with {redirect}"
            ));
            return Ok(true);
        }
        if !self.shows_addresses() {
            return Err(LoginError::LoginRequired(format!(
                "{problem}the address of the login reaches no user"
            )));
        }
        print_error(&format!(
            "{problem}open this address once, as this user, in a browser on this machine:\n  {start}"
        ));
        Ok(false)
    }

    /// Waits for the redirect, by the listener or as a pasted address, whichever comes first.
    pub(super) async fn redirected(
        &self,
        server: &mut CallbackServer,
        expected: &ExpectedCallback,
        redirect: &str,
        is_pasted: bool,
    ) -> Result<Callback, CallbackError> {
        let by_hand = async {
            if is_pasted { pasted(&self.user.typed, redirect, expected).await } else { pending().await }
        };
        tokio::select! {
            received = server.wait() => received,
            received = by_hand => received,
            never = self.hint(redirect, is_pasted) => match never {},
        }
    }

    /// Says what the command waits for, once: providers that do not know the address show an error and never redirect.
    async fn hint(&self, redirect: &str, is_pasted: bool) -> Infallible {
        sleep(REDIRECT_HINT_AFTER).await;
        // The user who pastes has seen where the browser is sent.
        if self.user.has_screen && !is_pasted {
            print_error(&format!(
                "still waiting for the browser. The provider must redirect it to {redirect}; if it shows an error about this \
                 address, register it there, with the port of --callback-port"
            ));
        }
        pending().await
    }

    /// The device flow.
    pub(super) async fn device(&self, provider: &LoginProvider) -> Result<Authorized, LoginError> {
        let tokens = provider.device(self.settings.login_timeout, show_code).await?;
        let keeping = REFRESHING.read().await;
        Ok(Authorized { tokens, nonce: None, started: Ok(()), keeping })
    }
}

fn show_code(device: &DeviceAuthorization) {
    print_error(&code_text(device));
}

/// What the user does with a code.
pub(super) fn code_text(device: &DeviceAuthorization) -> String {
    let (uri, code) = (shortened(&device.verification_uri), shortened(&device.user_code));
    let text = format!("to log in, open {uri} on any device, and enter the code\n  {code}");
    match device.verification_uri_complete.as_deref() {
        // One that is cut leads nowhere.
        Some(complete) if shortened(complete) == complete => {
            format!("{text}\nor open {complete} and compare the code")
        }
        _ => text,
    }
}
