//! The issuers of JSON Web Tokens of one cluster. The rules for tokens are in force with their generation, as an
//! issuer's absence is. Only where the configuration of an issuer comes from may wait: as long as it cannot be found
//! there, what was known of the issuer goes on counting, by the new rules.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, NewJWTAuthenticator… — there a whole set of issuers waits for
// the last of them, and one that was removed is believed meanwhile

use std::sync::Arc;

use tokio::task::AbortHandle;

use super::Means;
use crate::authn::TokenAuthenticator;
use crate::authn::oidc::OidcAuthenticator;
use crate::authn::oidc::settings::{Issuer, JwtAuthenticator};
use crate::clock::Clock;
use crate::outbound::Client;
use crate::outbound::tls::{Roots, Tls};

/// The issuers of one generation.
#[derive(Debug, Default)]
pub(crate) struct Issuers(Vec<Member>);

#[derive(Debug, Clone)]
struct Member {
    settings: Arc<JwtAuthenticator>,
    authenticator: Arc<OidcAuthenticator>,
    /// Judges until `authenticator` can.
    meanwhile: Option<Arc<OidcAuthenticator>>,
    _search: Option<Arc<Search>>,
}

/// The search for the configuration of an issuer. It ends when nobody wants to know any more.
#[derive(Debug)]
struct Search(AbortHandle);

impl Issuers {
    /// The issuers of `settings`, with what `before` knows of them.
    pub(super) fn new(
        settings: &[Arc<JwtAuthenticator>],
        before: &Self,
        means: &Means,
    ) -> Result<Self, rustls::Error> {
        let members = settings.iter().map(|settings| {
            let Self(before) = before;
            match before.iter().find(|member| member.settings.issuer.url == settings.issuer.url) {
                Some(known) if *known.settings == **settings => Ok(known.again()),
                Some(known) => known.judging_by(settings, means),
                None => Ok(Member::new(settings, Self::authenticator(settings, means)?, None, means)),
            }
        });
        members.collect::<Result<_, _>>().map(Self)
    }

    fn authenticator(settings: &JwtAuthenticator, means: &Means) -> Result<OidcAuthenticator, rustls::Error> {
        let roots = match &settings.issuer.certificate_authority {
            Some(pem) => Roots::from_pem(pem.as_bytes()),
            None => Roots::system(),
        };
        let tls = Tls { roots, client_certificate: None, server_name: None };
        let client = Arc::new(Client::new(&tls, &means.provider)?);
        Ok(OidcAuthenticator::new(settings.clone(), client, &means.metrics.jwt, Clock::system()))
    }

    /// For each, in the order of the configuration, whether what its settings point to is known, and if not, why.
    pub(crate) fn health(&self) -> impl Iterator<Item = (&str, Result<(), String>)> {
        let Self(members) = self;
        members.iter().map(|Member { authenticator, .. }| (authenticator.issuer(), authenticator.health()))
    }

    /// Those of which it is not known, and why.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&str, String)> {
        self.health().filter_map(|(issuer, health)| Some((issuer, health.err()?)))
    }

    /// Waits until the first attempt to find out about an issuer has ended, if there is such an issuer.
    pub(crate) async fn tried(&self, issuer: &str) {
        let Self(members) = self;
        for member in members.iter().filter(|member| member.authenticator.issuer() == issuer) {
            member.authenticator.tried().await;
        }
    }

    pub(super) fn authenticators(&self) -> Vec<Box<dyn TokenAuthenticator>> {
        let boxed = |member: &Member| -> Box<dyn TokenAuthenticator> { Box::new(Arc::clone(member.judge())) };
        let Self(members) = self;
        members.iter().map(boxed).collect()
    }
}

impl Member {
    /// A reload is asked for when what is not known is.
    fn new(
        settings: &Arc<JwtAuthenticator>,
        authenticator: OidcAuthenticator,
        meanwhile: Option<OidcAuthenticator>,
        means: &Means,
    ) -> Self {
        let (settings, authenticator) = (Arc::clone(settings), Arc::new(authenticator));
        let search = authenticator.health().is_err().then(|| {
            let (searching, reload) = (Arc::clone(&authenticator), Arc::clone(&means.reload));
            let search = means.runtime.spawn(async move {
                searching.run().await;
                reload.notify_one();
            });
            Arc::new(Search(search.abort_handle()))
        });
        Self { settings, authenticator, meanwhile: meanwhile.map(Arc::new), _search: search }
    }

    /// The same issuer by the same settings.
    fn again(&self) -> Self {
        let is_known = self.authenticator.health().is_ok();
        Self { meanwhile: self.meanwhile.clone().filter(|_| !is_known), ..self.clone() }
    }

    /// The same issuer by other settings.
    fn judging_by(&self, settings: &Arc<JwtAuthenticator>, means: &Means) -> Result<Self, rustls::Error> {
        fn place(Issuer { url, discovery_url, certificate_authority, .. }: &Issuer) -> [Option<&String>; 3] {
            [Some(url), discovery_url.as_ref(), certificate_authority.as_ref()]
        }
        let by_new_rules = |known: &OidcAuthenticator| known.judging_by(JwtAuthenticator::clone(settings));
        let authenticator = if place(&self.settings.issuer) == place(&settings.issuer) {
            by_new_rules(&self.authenticator)
        } else {
            Issuers::authenticator(settings, means)?
        };
        Ok(Self::new(settings, authenticator, Some(by_new_rules(self.judge())), means))
    }

    /// Whoever can judge the issuer's tokens.
    fn judge(&self) -> &Arc<OidcAuthenticator> {
        match &self.meanwhile {
            Some(meanwhile) if self.authenticator.health().is_err() => meanwhile,
            _ => &self.authenticator,
        }
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests;
