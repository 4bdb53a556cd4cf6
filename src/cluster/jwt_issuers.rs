//! The issuers of JSON Web Tokens of one cluster. The rules for tokens are in force with their generation, as an
//! issuer's absence is. Only where the configuration of an issuer comes from may wait: as long as it cannot be found
//! there, what was known of the issuer goes on counting, by the new rules.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, NewJWTAuthenticator… — there a whole set of issuers waits for
// the last of them, and one that was removed is believed meanwhile

use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use crate::authn::oidc::OidcAuthenticator;
use crate::authn::oidc::settings::{IssuerSettings, JwtAuthenticator};
use crate::authn::{AuthnVerdict, BearerToken, BoxFuture, TokenAuthenticator, TokenContext};
use crate::clock::Clock;
use crate::cluster::authenticators::AuthnDeps;
use crate::http::client_tls::{ClientTls, TrustedRoots};
use crate::http::https_client::HttpsClient;

/// The issuers of one generation.
#[derive(Debug, Default)]
pub(crate) struct JwtIssuers(Vec<IssuerEntry>);

#[derive(Debug, Clone)]
struct IssuerEntry {
    settings: Arc<JwtAuthenticator>,
    judge: IssuerState,
    /// Judges until `judge` can.
    fallback: Option<IssuerState>,
}

/// Who judges the tokens of an issuer, and what this takes.
#[derive(Debug, Clone)]
struct IssuerState {
    authenticator: Arc<OidcAuthenticator>,
    /// Finds the configuration of an issuer and keeps its keys fresh. It ends when nobody wants to know any more.
    upkeep: Arc<AbortOnDropHandle<()>>,
}

impl JwtIssuers {
    /// The issuers of `settings`, with what `before` knows of them.
    pub(super) fn new(
        settings: &[Arc<JwtAuthenticator>],
        before: Option<&Self>,
        deps: &AuthnDeps,
    ) -> Result<Self, rustls::Error> {
        let members = settings.iter().map(|settings| {
            let before = before.iter().flat_map(|Self(before)| before);
            let mut same = before.filter(|entry| entry.settings.issuer.url == settings.issuer.url);
            match same.next() {
                Some(known) if *known.settings == **settings => Ok(known.again()),
                Some(known) => known.with_settings(settings, deps),
                None => {
                    let judge = IssuerState::new(Self::authenticator(settings, deps)?, deps);
                    Ok(IssuerEntry { settings: Arc::clone(settings), judge, fallback: None })
                }
            }
        });
        members.collect::<Result<_, _>>().map(Self)
    }

    fn authenticator(
        settings: &JwtAuthenticator,
        deps: &AuthnDeps,
    ) -> Result<OidcAuthenticator, rustls::Error> {
        let roots = settings.issuer.certificate_authority.clone().unwrap_or_else(TrustedRoots::system);
        let tls = ClientTls { roots, client_certificate: None, server_name: None };
        let client = Arc::new(HttpsClient::new(&tls, &deps.provider)?);
        Ok(OidcAuthenticator::new(settings.clone(), client, &deps.metrics.jwt, Clock::system()))
    }

    /// Each issuer, and why nothing is known of it by its settings, if so. What was known of it may count meanwhile.
    pub(crate) fn health(&self) -> impl Iterator<Item = (&str, Result<(), String>)> {
        let Self(members) = self;
        let judges = members.iter().map(|member| &member.judge.authenticator);
        judges.map(|judge| (judge.issuer(), judge.health()))
    }

    /// Whether the tokens of all of them can be judged.
    pub(crate) fn are_known(&self) -> bool {
        let Self(members) = self;
        members.iter().all(|member| member.judge().is_known())
    }

    /// Those of which it is not known, and why.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&str, String)> {
        self.health().filter_map(|(issuer, health)| Some((issuer, health.err()?)))
    }

    /// Waits until the first attempt to find out about an issuer has ended, if there is such an issuer.
    pub(crate) async fn try_initialize(&self, issuer: &str) {
        let Self(members) = self;
        for IssuerEntry { judge, .. } in members.iter().filter(|member| member.settings.issuer.url == issuer)
        {
            judge.authenticator.try_initialize().await;
        }
    }

    pub(super) fn authenticators(&self) -> Vec<Box<dyn TokenAuthenticator>> {
        let boxed = |member: &IssuerEntry| -> Box<dyn TokenAuthenticator> { Box::new(member.clone()) };
        let Self(members) = self;
        members.iter().map(boxed).collect()
    }
}

impl IssuerEntry {
    /// The same issuer by the same settings.
    fn again(&self) -> Self {
        let is_known = self.judge.is_known();
        Self { fallback: self.fallback.clone().filter(|_| !is_known), ..self.clone() }
    }

    /// The same issuer by other settings.
    fn with_settings(
        &self,
        settings: &Arc<JwtAuthenticator>,
        deps: &AuthnDeps,
    ) -> Result<Self, rustls::Error> {
        fn place(issuer: &IssuerSettings) -> (&String, Option<&String>, Option<&TrustedRoots>) {
            let IssuerSettings { url, discovery_url, certificate_authority, .. } = issuer;
            (url, discovery_url.as_ref(), certificate_authority.as_ref())
        }
        let judge = if place(&self.settings.issuer) == place(&settings.issuer) {
            self.judge.with_settings(settings)
        } else {
            IssuerState::new(JwtIssuers::authenticator(settings, deps)?, deps)
        };
        // Nobody goes on looking where the configuration is said to be no more.
        let known = Some(self.judge()).filter(|known| known.is_known() && !judge.is_known());
        let fallback = known.map(|known| known.with_settings(settings));
        Ok(Self { settings: Arc::clone(settings), judge, fallback })
    }

    /// Whoever can judge the issuer's tokens.
    fn judge(&self) -> &IssuerState {
        match &self.fallback {
            Some(fallback) if !self.judge.is_known() => fallback,
            _ => &self.judge,
        }
    }
}

/// Whoever can judge at the time of the token: once an issuer is found by its settings it is not believed by older ones,
/// whatever becomes of the reload that is asked for then.
impl TokenAuthenticator for IssuerEntry {
    fn name(&self) -> &'static str {
        self.judge.authenticator.name()
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        self.judge().authenticator.authenticate(token, context)
    }
}

impl IssuerState {
    /// A reload is asked for when what is not known is.
    fn new(authenticator: OidcAuthenticator, deps: &AuthnDeps) -> Self {
        let authenticator = Arc::new(authenticator);
        let (kept, reload) = (Arc::clone(&authenticator), Arc::clone(&deps.reload));
        let upkeep = deps.runtime.spawn(async move {
            kept.run().await;
            reload.notify_one();
            kept.keep_fresh().await;
        });
        Self { authenticator, upkeep: Arc::new(AbortOnDropHandle::new(upkeep)) }
    }

    /// What is known stays known.
    fn with_settings(&self, settings: &JwtAuthenticator) -> Self {
        let authenticator = Arc::new(self.authenticator.with_settings(settings.clone()));
        Self { authenticator, upkeep: Arc::clone(&self.upkeep) }
    }

    fn is_known(&self) -> bool {
        self.authenticator.health().is_ok()
    }
}

#[cfg(test)]
mod tests;
