//! The issuers of JSON Web Tokens of one cluster.
//!
//! A reload applies new rules and removes issuers at once. Only a new discovery URL or CA waits for the first
//! successful OIDC discovery: until then the keys from the old location stay in use, under the new rules.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, NewJWTAuthenticator… — there a whole set of issuers waits for
// the last of them, and a removed issuer stays trusted until then

use std::sync::Arc;

use portcullis_http::client_tls::{ClientTls, TrustedRoots};
use portcullis_http::https_client::HttpsClient;
use portcullis_system::clock::Clock;
use tokio_util::task::AbortOnDropHandle;

use crate::authn::oidc::OidcAuthenticator;
use crate::authn::oidc::settings::{IssuerSettings, JwtAuthenticator};
use crate::authn::{AuthnVerdict, BearerToken, BoxFuture, TokenAuthenticator, TokenContext};
use crate::cluster::authenticators::ClusterDeps;

/// The issuers of one generation of the configuration.
#[derive(Debug, Default)]
pub(crate) struct JwtIssuers(Vec<IssuerEntry>);

#[derive(Debug, Clone)]
struct IssuerEntry {
    settings: Arc<JwtAuthenticator>,
    current: IssuerState,
    /// Used until `current` is initialized.
    fallback: Option<IssuerState>,
}

/// The authenticator of an issuer, and the task that maintains it.
#[derive(Debug, Clone)]
struct IssuerState {
    authenticator: Arc<OidcAuthenticator>,
    /// Runs OIDC discovery and refreshes the keys; ends with the last clone of this value.
    refresh: Arc<AbortOnDropHandle<()>>,
}

impl JwtIssuers {
    /// The issuers of `settings`, with the discovery results and keys of `before`.
    pub(super) fn new(
        settings: &[Arc<JwtAuthenticator>],
        before: Option<&Self>,
        deps: &ClusterDeps,
    ) -> Result<Self, rustls::Error> {
        let members = settings.iter().map(|settings| {
            let before = before.iter().flat_map(|Self(before)| before);
            let mut same = before.filter(|entry| entry.settings.issuer.url == settings.issuer.url);
            match same.next() {
                Some(known) if *known.settings == **settings => Ok(known.carried_over()),
                Some(known) => known.with_settings(settings, deps),
                None => {
                    let current = IssuerState::new(Self::authenticator(settings, deps)?, deps);
                    Ok(IssuerEntry { settings: Arc::clone(settings), current, fallback: None })
                }
            }
        });
        members.collect::<Result<_, _>>().map(Self)
    }

    fn authenticator(
        settings: &JwtAuthenticator,
        deps: &ClusterDeps,
    ) -> Result<OidcAuthenticator, rustls::Error> {
        let roots = settings.issuer.certificate_authority.clone().unwrap_or_else(TrustedRoots::system);
        let tls = ClientTls::trusting(roots);
        let client = Arc::new(HttpsClient::new(&tls, &deps.provider)?);
        Ok(OidcAuthenticator::new(settings.clone(), client, &deps.metrics.jwt, Clock::system()))
    }

    /// Each issuer, and why it is not initialized with its settings, if so. A fallback may be in use.
    pub(crate) fn health(&self) -> impl Iterator<Item = (&str, Result<(), String>)> {
        let Self(members) = self;
        let authenticators = members.iter().map(|member| &member.current.authenticator);
        authenticators.map(|authenticator| (authenticator.issuer(), authenticator.health()))
    }

    /// Whether tokens of every issuer can be verified, if need be by a fallback.
    pub(crate) fn are_initialized(&self) -> bool {
        let Self(members) = self;
        members.iter().all(|member| member.active().is_initialized())
    }

    /// The issuers that are not initialized with their settings, and why.
    pub(crate) fn uninitialized(&self) -> impl Iterator<Item = (&str, String)> {
        self.health().filter_map(|(issuer, health)| Some((issuer, health.err()?)))
    }

    /// Waits until the first discovery attempt of an issuer has ended, if the issuer is configured.
    pub(crate) async fn try_initialize(&self, issuer: &str) {
        let Self(members) = self;
        for member in members.iter().filter(|member| member.settings.issuer.url == issuer) {
            member.current.authenticator.try_initialize().await;
        }
    }

    pub(super) fn authenticators(&self) -> Vec<Box<dyn TokenAuthenticator>> {
        let boxed = |member: &IssuerEntry| -> Box<dyn TokenAuthenticator> { Box::new(member.clone()) };
        let Self(members) = self;
        members.iter().map(boxed).collect()
    }
}

impl IssuerEntry {
    /// The same issuer with the same settings.
    fn carried_over(&self) -> Self {
        let is_initialized = self.current.is_initialized();
        Self { fallback: self.fallback.clone().filter(|_| !is_initialized), ..self.clone() }
    }

    /// The same issuer with other settings.
    fn with_settings(
        &self,
        settings: &Arc<JwtAuthenticator>,
        deps: &ClusterDeps,
    ) -> Result<Self, rustls::Error> {
        fn discovery_source(issuer: &IssuerSettings) -> (&String, Option<&String>, Option<&TrustedRoots>) {
            let IssuerSettings { url, discovery_url, certificate_authority, .. } = issuer;
            (url, discovery_url.as_ref(), certificate_authority.as_ref())
        }
        let current = if discovery_source(&self.settings.issuer) == discovery_source(&settings.issuer) {
            self.current.with_settings(settings)
        } else {
            IssuerState::new(JwtIssuers::authenticator(settings, deps)?, deps)
        };
        // An uninitialized old state is dropped, which ends its queries to the old location.
        let initialized =
            Some(self.active()).filter(|active| active.is_initialized() && !current.is_initialized());
        let fallback = initialized.map(|active| active.with_settings(settings));
        Ok(Self { settings: Arc::clone(settings), current, fallback })
    }

    /// The state that authenticates tokens now.
    fn active(&self) -> &IssuerState {
        match &self.fallback {
            Some(fallback) if !self.current.is_initialized() => fallback,
            _ => &self.current,
        }
    }
}

/// Chooses the state for each token: once discovery with the new settings has succeeded, the old keys no longer count,
/// even if the reload that follows fails.
impl TokenAuthenticator for IssuerEntry {
    fn name(&self) -> &'static str {
        self.current.authenticator.name()
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        self.active().authenticator.authenticate(token, context)
    }
}

impl IssuerState {
    /// Starts discovery, and requests a reload once it has succeeded.
    fn new(authenticator: OidcAuthenticator, deps: &ClusterDeps) -> Self {
        let authenticator = Arc::new(authenticator);
        let (kept, reload) = (Arc::clone(&authenticator), Arc::clone(&deps.reload));
        let refresh = deps.runtime.spawn(async move {
            kept.run().await;
            reload.notify_one();
            kept.keep_fresh().await;
        });
        Self { authenticator, refresh: Arc::new(AbortOnDropHandle::new(refresh)) }
    }

    /// The same with other settings; keeps the discovery result and the keys.
    fn with_settings(&self, settings: &JwtAuthenticator) -> Self {
        let authenticator = Arc::new(self.authenticator.with_settings(settings.clone()));
        Self { authenticator, refresh: Arc::clone(&self.refresh) }
    }

    fn is_initialized(&self) -> bool {
        self.authenticator.health().is_ok()
    }
}

#[cfg(test)]
mod tests;
