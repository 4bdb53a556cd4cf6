//! The session of a user: the ID token, for as long as it is valid, in sealed cookies. There is no refresh token, and
//! nothing of a session is kept on the server.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue};
use portcullis_openid::SecretText;
use portcullis_openid::error::shortened;
use portcullis_openid::id_token::{IdTokenClaims, display_name};
use portcullis_system::clock::UnixTime;
use serde::{Deserialize, Serialize};

use super::sealing::{Purpose, UnusableKey};
use super::{PageInForce, cookies};

/// A signed-in user.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Session {
    /// The ID token, with which the clusters are asked.
    pub(super) token: SecretText,
    /// The user, for people.
    pub(super) name: String,
    /// What the form for signing out has, and another site does not know.
    pub(super) form_secret: SecretText,
    /// When the token expires, in seconds since 1970.
    pub(super) until: u64,
}

impl Session {
    /// The session of a verified ID token.
    pub(super) fn begin(
        token: &SecretText,
        claims: &IdTokenClaims,
        now: UnixTime,
    ) -> Result<Self, UnusableKey> {
        let mut random = [0; 32];
        rand::fill(&mut random).map_err(|_| UnusableKey)?;
        Ok(Self {
            token: token.clone(),
            name: shortened(
                &display_name(token.expose(), &claims.subject).unwrap_or_else(|| claims.subject.clone()),
            ),
            form_secret: SecretText::new(&URL_SAFE_NO_PAD.encode(random)),
            until: claims.expires_by(now),
        })
    }

    /// The session in the cookies of a request.
    pub(super) fn of(in_force: &PageInForce, headers: &HeaderMap, now: UnixTime) -> Option<Self> {
        let sealed = cookies::session(headers)?;
        in_force.key.open(Purpose::Session, &in_force.scope, &sealed, now)
    }

    /// The cookies of the session; the inner `None`: they are too large.
    pub(super) fn cookies(
        &self,
        in_force: &PageInForce,
        now: UnixTime,
    ) -> Result<Option<Vec<HeaderValue>>, UnusableKey> {
        let until = UnixTime::from_secs(self.until);
        let sealed = in_force.key.seal(Purpose::Session, &in_force.scope, self, until)?;
        Ok(cookies::set_session(&sealed, until.saturating_sub(now).as_secs()))
    }

    /// Names the session in memory, without its token.
    pub(super) fn id(&self) -> [u8; 32] {
        let digest = digest(&SHA256, self.token.expose().as_bytes());
        digest.as_ref().try_into().unwrap_or_default()
    }

    /// Whether a form was made for this session.
    pub(super) fn has_form_secret(&self, given: &str) -> bool {
        verify_slices_are_equal(self.form_secret.expose().as_bytes(), given.as_bytes()).is_ok()
    }
}
