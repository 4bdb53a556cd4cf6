//! When a credential ends by itself.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use portcullis_system::clock::UnixTime;
use serde::Deserialize;

use super::{AuthnMethod, bearer, websocket};
use crate::request::credentials::Credentials;

/// How long kube-apiserver accepts a service-account token beyond its end.
// go-jose: jwt/validation.go, DefaultLeeway
const SERVICE_ACCOUNT_LEEWAY: Duration = Duration::from_mins(1);

/// When the credential by which a client has authenticated is accepted no longer, as far as it says so itself.
/// `certificate` is the end of the client's certificate, in seconds since 1970.
pub(crate) fn expiry(
    method: AuthnMethod,
    credentials: &Credentials,
    certificate: Option<i64>,
) -> Option<UnixTime> {
    match method {
        // A front proxy's users end with its certificate.
        AuthnMethod::X509 | AuthnMethod::PodCertificate | AuthnMethod::RequestHeader => {
            Some(Duration::from_secs(u64::try_from(certificate?).unwrap_or_default()))
        }
        AuthnMethod::ServiceAccount => Some(token_expiry(credentials)? + SERVICE_ACCOUNT_LEEWAY),
        AuthnMethod::Jwt => token_expiry(credentials),
        AuthnMethod::Anonymous
        | AuthnMethod::StaticToken
        | AuthnMethod::LegacyServiceAccount
        | AuthnMethod::BootstrapToken
        | AuthnMethod::Webhook => None,
    }
}

/// What `method` reads of the credentials: no other one counts for a request that was authenticated by it.
pub(crate) fn only(credentials: Credentials, method: AuthnMethod) -> Credentials {
    let none = Credentials::default();
    match method {
        AuthnMethod::RequestHeader => Credentials { front_proxy: credentials.front_proxy, ..none },
        AuthnMethod::X509 | AuthnMethod::PodCertificate | AuthnMethod::Anonymous => none,
        AuthnMethod::StaticToken
        | AuthnMethod::ServiceAccount
        | AuthnMethod::LegacyServiceAccount
        | AuthnMethod::BootstrapToken
        | AuthnMethod::Jwt
        | AuthnMethod::Webhook => Credentials { front_proxy: none.front_proxy, ..credentials },
    }
}

/// The `exp` claim of a JSON Web Token that was verified before.
fn token_expiry(credentials: &Credentials) -> Option<UnixTime> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let header = credentials.authorization.as_deref().and_then(bearer::token);
    let token = header.or_else(|| websocket::token_of(&credentials.websocket_protocols).ok()?)?;
    let payload = token.expose().split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    Duration::try_from_secs_f64(claims.exp).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(payload: &str) -> Credentials {
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload));
        Credentials { authorization: Some(format!("Bearer {token}")), ..Credentials::default() }
    }

    #[test]
    fn a_credential_ends_when_it_says_so() {
        let at = |method, payload| expiry(method, &bearer(payload), Some(7)).map(|at| at.as_secs());
        assert_eq!(at(AuthnMethod::Jwt, r#"{"exp":100}"#), Some(100));
        assert_eq!(at(AuthnMethod::Jwt, r#"{"exp":1e2}"#), Some(100));
        assert_eq!(at(AuthnMethod::ServiceAccount, r#"{"exp":100}"#), Some(160));
        assert_eq!(at(AuthnMethod::X509, r#"{"exp":100}"#), Some(7));
        assert_eq!(at(AuthnMethod::PodCertificate, "{}"), Some(7));
        assert_eq!(at(AuthnMethod::RequestHeader, "{}"), Some(7));
        for (method, payload) in [
            (AuthnMethod::Jwt, "{}"),
            (AuthnMethod::Jwt, r#"{"exp":-1}"#),
            (AuthnMethod::Jwt, r#"{"exp":1e300}"#),
            (AuthnMethod::StaticToken, r#"{"exp":100}"#),
            (AuthnMethod::Webhook, r#"{"exp":100}"#),
        ] {
            assert_eq!(at(method, payload), None, "{payload}");
        }
    }
}
