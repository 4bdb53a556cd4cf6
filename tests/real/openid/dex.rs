//! Logins with Dex (`tests/go/dex`). It refuses refresh tokens with `invalid_request`, where RFC 6749 has `invalid_grant`, and
//! has no revocation endpoint.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use super::go_provider::ProviderUser;
use crate::servers::RealServers;

const SCOPE: &str = "--scope=email,offline_access";
// dex: server/refreshhandlers.go, invalidErr and expiredErr
const CLAIMED: &str = "Refresh token is invalid or has already been claimed by another client.";
const EXPIRED: &str = "Refresh token expired.";

pub(super) fn a_login_with_dex(servers: &RealServers) -> Result<(), String> {
    let user = ProviderUser::new(servers, "dex", ("email", "alice@example.com"))?;
    let issuer = user.issuer(0)?;
    user.login(issuer, "gateway", &[SCOPE])?;
    user.expect_credential("kubectl")?;
    a_refresh_token_that_was_claimed(&user, issuer)?;
    a_device_code(&user, issuer)?;
    user.logout(issuer)?;
    an_expired_refresh_token(&user, user.issuer(1)?)
}

/// The copy of a refresh token from before a refresh, as of a restored home directory.
fn a_refresh_token_that_was_claimed(user: &ProviderUser<'_>, issuer: &str) -> Result<(), String> {
    let claimed = user.refresh_token(issuer)?;
    for _ in 0..3 {
        user.expect_rotation(issuer)?;
    }
    user.expire(issuer, Some(&claimed))?;
    user.expect_no_credential(CLAIMED)?;
    // The next command says the same, until one may ask the user.
    user.expect_no_credential("portcullis login")?;
    user.expect_login_on_a_terminal("after a refresh token that was claimed")?;
    user.expect_credential("after the new login")?;
    user.expect_rotation(issuer)
}

fn a_device_code(user: &ProviderUser<'_>, issuer: &str) -> Result<(), String> {
    let mut login = user.portcullis_without_browser(&["login", "--flow=device"]);
    let login = login.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut login = login.map_err(|error| error.to_string())?;
    let mut lines = BufReader::new(login.stderr.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.contains("enter the code")).ok_or("no code is shown")?;
    let code = lines.next().ok_or("no code is shown")?;
    user.browse(&format!("{issuer}/device?user_code={}", code.trim()))?;
    let output = login.wait_with_output().map_err(|error| error.to_string())?;
    user.expect_user("device code", &output)?;
    user.expect_rotation(issuer)
}

/// The provider gives refresh tokens that have expired when they are used.
fn an_expired_refresh_token(user: &ProviderUser<'_>, issuer: &str) -> Result<(), String> {
    user.login(issuer, "expiring", &[SCOPE])?;
    user.expect_credential("kubectl")?;
    user.expire(issuer, None)?;
    user.expect_no_credential(EXPIRED)?;
    let output = user.portcullis(&["login"])?;
    user.expect_user("after an expired refresh token", &output)?;
    user.expect_credential("after the new login")
}
