//! An authenticator with fixed keys, for tests that compare it with kube-apiserver's own.

use std::sync::Arc;

use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::Owner;
use portcullis_system::clock::{Clock, UnixTime};

use super::OidcAuthenticator;
use super::fetch::{DocumentFetcher, FetchedDocument};
use super::settings::JwtAuthenticator;
use crate::authn::trace::AuthnTrace;
use crate::authn::{BearerToken, BoxFuture, TokenAuthenticator as _, TokenContext};
use crate::metrics::Metrics;

/// Authenticates ID tokens with fixed keys.
#[derive(Debug)]
pub struct StaticIdTokenAuthenticator(OidcAuthenticator);

impl StaticIdTokenAuthenticator {
    /// An authenticator for one issuer with this key set (JSON). It cannot fetch other documents.
    pub async fn new(settings: JwtAuthenticator, keys: String) -> Self {
        let documents = StaticDocuments { issuer: settings.issuer.url.clone(), keys };
        let authenticator =
            OidcAuthenticator::new(settings, Arc::new(documents), &Metrics::new().jwt, Clock::system());
        authenticator.run().await;
        Self(authenticator)
    }

    /// The user of a token; `None` for a token of another issuer.
    pub async fn authenticate(&self, token: &str, now: UnixTime) -> Result<Option<UserInfo>, String> {
        let trace = AuthnTrace::default();
        let context = TokenContext { audiences: &[], owner: &Owner::Gateway, now, trace: &trace };
        let verdict = self.0.authenticate(&BearerToken::new(token), context).await;
        verdict.map(|found| found.map(|found| (*found.user).clone())).map_err(|error| error.to_string())
    }
}

#[derive(Debug)]
struct StaticDocuments {
    issuer: String,
    keys: String,
}

impl DocumentFetcher for StaticDocuments {
    fn get<'a>(
        &'a self,
        url: &'a str,
        _bearer: Option<&'a str>,
    ) -> BoxFuture<'a, Result<FetchedDocument, String>> {
        let keys_url = format!("{}/keys", self.issuer);
        let body = if url == keys_url {
            self.keys.clone()
        } else if url == format!("{}/.well-known/openid-configuration", self.issuer) {
            serde_json::json!({"issuer": self.issuer, "jwks_uri": keys_url}).to_string()
        } else {
            return Box::pin(async { Err("it cannot be fetched".to_owned()) });
        };
        Box::pin(async { Ok(FetchedDocument { status: 200, content_type: None, body: body.into_bytes() }) })
    }
}
