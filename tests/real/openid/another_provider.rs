//! A login with a provider of another make: the OpenID library of ZITADEL (`tests/go/zitadel`). Unlike `oidc-provider`, it
//! replaces the refresh token with each use, and its ID tokens have other claims.

use super::go_provider::ProviderUser;
use crate::servers::RealServers;

pub(super) fn a_login_with_a_provider_of_another_make(servers: &RealServers) -> Result<(), String> {
    let user = ProviderUser::new(servers, "zitadel", ("sub", "id-of-alice"))?;
    let issuer = user.issuer(0)?;
    user.login(issuer, "gateway", &[])?;
    user.expect_credential("kubectl")?;
    for _ in 0..3 {
        user.expect_rotation(issuer)?;
    }
    let refresh_token = user.refresh_token(issuer)?;
    user.logout(issuer)?;
    // A copy of the token is worth nothing.
    user.login(issuer, "gateway", &[])?;
    user.expire(issuer, Some(&refresh_token))?;
    user.expect_no_credential("invalid_grant")
}
