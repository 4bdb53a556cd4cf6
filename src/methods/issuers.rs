//! The issuers of JSON Web Tokens of one cluster. A new set of them is in force once all of them are known; an issuer
//! that is the same as before stays what it is, with the keys it has.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, NewJWTAuthenticator… and its reload

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::task::AbortHandle;

use super::Means;
use crate::authn::TokenAuthenticator;
use crate::authn::oidc::OidcAuthenticator;
use crate::authn::oidc::settings::JwtAuthenticator;
use crate::clock::Clock;
use crate::outbound::Client;
use crate::outbound::tls::{Roots, Tls};

/// Issuers, and the search for what is not known of them yet.
#[derive(Debug)]
pub(crate) struct Issuers {
    members: Vec<Member>,
    search: Option<AbortHandle>,
}

#[derive(Debug, Clone)]
struct Member {
    settings: Arc<JwtAuthenticator>,
    authenticator: Arc<OidcAuthenticator>,
}

impl Issuers {
    /// The issuers of `settings`; those that `before` has are taken over. A reload is asked for when all are known.
    pub(super) fn start(
        settings: &[Arc<JwtAuthenticator>],
        before: &[&Arc<Self>],
        means: &Means,
    ) -> Result<Self, rustls::Error> {
        let known = |settings: &JwtAuthenticator| {
            let mut members = before.iter().flat_map(|before| &before.members);
            members.find(|member| *member.settings == *settings)
        };
        let members = settings.iter().map(|settings| match known(settings) {
            Some(member) => Ok(member.clone()),
            None => Member::new(settings, means),
        });
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let mut issuers = Self { members, search: None };
        if !issuers.are_known() {
            let searches: Vec<_> =
                issuers.members.iter().map(|member| Arc::clone(&member.authenticator)).collect();
            let reload = Arc::clone(&means.reload);
            let search = means.runtime.spawn(async move {
                join_all(searches.into_iter().map(OidcAuthenticator::run)).await;
                reload.notify_one();
            });
            issuers.search = Some(search.abort_handle());
        }
        Ok(issuers)
    }

    /// Whether they are those of `settings`.
    pub(super) fn are_for(&self, settings: &[Arc<JwtAuthenticator>]) -> bool {
        self.members.iter().map(|member| &*member.settings).eq(settings.iter().map(|settings| &**settings))
    }

    /// Whether the tokens of all of them can be judged.
    pub(super) fn are_known(&self) -> bool {
        self.members.iter().all(|member| member.authenticator.health().is_ok())
    }

    /// Each issuer, and why its tokens cannot be judged, if so.
    pub(crate) fn health(&self) -> impl Iterator<Item = (&str, Result<(), String>)> {
        self.members.iter().map(|member| (member.authenticator.issuer(), member.authenticator.health()))
    }

    /// Waits until the first attempt to find out about an issuer has ended, if there is such an issuer.
    pub(crate) async fn tried(&self, issuer: &str) {
        for member in self.members.iter().filter(|member| member.authenticator.issuer() == issuer) {
            member.authenticator.tried().await;
        }
    }

    pub(super) fn authenticators(&self) -> Vec<Box<dyn TokenAuthenticator>> {
        let boxed =
            |member: &Member| -> Box<dyn TokenAuthenticator> { Box::new(Arc::clone(&member.authenticator)) };
        self.members.iter().map(boxed).collect()
    }
}

impl Drop for Issuers {
    fn drop(&mut self) {
        if let Some(search) = &self.search {
            search.abort();
        }
    }
}

impl Member {
    fn new(settings: &Arc<JwtAuthenticator>, means: &Means) -> Result<Self, rustls::Error> {
        let roots = match &settings.issuer.certificate_authority {
            Some(pem) => Roots::from_pem(pem.as_bytes()),
            None => Roots::system(),
        };
        let client =
            Client::new(&Tls { roots, client_certificate: None, server_name: None }, &means.provider)?;
        let authenticator = OidcAuthenticator::new(
            JwtAuthenticator::clone(settings),
            Arc::new(client),
            &means.metrics.jwt,
            Clock::system(),
        );
        Ok(Self { settings: Arc::clone(settings), authenticator: Arc::new(authenticator) })
    }
}
