//! One issuer whose keys are at hand, for comparison with kube-apiserver's own authenticator.

use std::sync::Arc;

use super::OidcAuthenticator;
use super::fetch::{Fetch, Fetched};
use super::settings::JwtAuthenticator;
use crate::authn::trace::Remarks;
use crate::authn::{BearerToken, BoxFuture, TokenAuthenticator as _, TokenContext};
use crate::clock::{Clock, UnixTime};
use crate::metrics::Metrics;
use crate::user::UserInfo;

/// Judges ID tokens.
#[derive(Debug)]
pub struct IdTokenJudge(OidcAuthenticator);

impl IdTokenJudge {
    /// A judge of the tokens of one issuer, which has these keys. Nothing else can be fetched.
    pub async fn new(settings: JwtAuthenticator, keys: String) -> Self {
        let documents = Documents { issuer: settings.issuer.url.clone(), keys };
        let authenticator =
            OidcAuthenticator::new(settings, Arc::new(documents), &Metrics::new().jwt, Clock::system());
        authenticator.run().await;
        Self(authenticator)
    }

    /// The user of a token; `None` if it is of another issuer.
    pub async fn judge(&self, token: &str, now: UnixTime) -> Result<Option<UserInfo>, String> {
        let remarks = Remarks::default();
        let context = TokenContext { audiences: &[], now, remarks: &remarks };
        let verdict = self.0.authenticate(&BearerToken::new(token), context).await;
        verdict.map(|found| found.map(|found| (*found.user).clone())).map_err(|error| error.to_string())
    }
}

#[derive(Debug)]
struct Documents {
    issuer: String,
    keys: String,
}

impl Fetch for Documents {
    fn get<'a>(&'a self, url: &'a str, _bearer: Option<&'a str>) -> BoxFuture<'a, Result<Fetched, String>> {
        let keys_url = format!("{}/keys", self.issuer);
        let body = if url == keys_url {
            self.keys.clone()
        } else if url == format!("{}/.well-known/openid-configuration", self.issuer) {
            serde_json::json!({"issuer": self.issuer, "jwks_uri": keys_url}).to_string()
        } else {
            return Box::pin(async { Err("it cannot be fetched".to_owned()) });
        };
        Box::pin(async { Ok(Fetched { status: 200, content_type: None, body: body.into_bytes() }) })
    }
}
