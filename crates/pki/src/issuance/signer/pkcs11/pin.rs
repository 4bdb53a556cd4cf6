//! PINs: read from a file for each login, wiped afterwards, and never sent again after a token has rejected them, which
//! could lock it.

use std::path::Path;
use std::sync::{LazyLock, Mutex};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use cryptoki::error::{Error, RvError};
use cryptoki::session::{Session, UserType};
use portcullis_system::input_file;
use portcullis_system::sync::lock;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};

use super::error::{TokenError, one_line};
use super::uri::Pkcs11Uri;

/// HMACs of the PINs that tokens have rejected: a token locks itself after a few failed logins.
static REFUSED_PINS: Mutex<Vec<(Pkcs11Uri, hmac::Tag)>> = Mutex::new(Vec::new());

/// The key of the HMACs. Keeps plaintext PINs out of core dumps; does not protect against a search of all PINs with the
/// key from memory.
static REFUSED_PINS_KEY: LazyLock<Option<hmac::Key>> =
    LazyLock::new(|| hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok());

/// Logs in with the PIN in the file.
// threat: token-of-others
pub(super) fn login(
    session: &Session,
    uri: &Pkcs11Uri,
    file: &Path,
    user: UserType,
) -> Result<(), TokenError> {
    let pin = read(file)?;
    let token = uri.of_token();
    let mut refused = lock(&REFUSED_PINS);
    let key =
        REFUSED_PINS_KEY.as_ref().ok_or_else(|| TokenError::refused("the random number generator failed"))?;
    let tag = hmac::sign(key, pin.expose_secret().as_bytes());
    if refused.iter().any(|(known, refused)| *known == token && refused.as_ref() == tag.as_ref()) {
        return Err(TokenError::refused(format!(
            "login: the token rejected this PIN before; not retried, to avoid locking the token: correct {}",
            file.display()
        )));
    }
    match session.login(user, Some(&pin)) {
        // A login applies to all sessions of the process with this token.
        Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(()),
        Err(error @ Error::Pkcs11(RvError::PinIncorrect, _)) => {
            refused.push((token, tag));
            Err(TokenError::refused(format!(
                "login with the PIN in {}: {}",
                file.display(),
                one_line(&error)
            )))
        }
        Err(error) => Err(TokenError::of("login", &error)),
    }
}

/// Reads the PIN from its file, without trailing newlines.
fn read(file: &Path) -> Result<SecretString, TokenError> {
    let unusable = |problem: String| TokenError::refused(format!("the PIN in {}: {problem}", file.display()));
    let content = input_file::read(file).map_err(|error| unusable(error.to_string()))?;
    // The decoder's error would quote a byte of the PIN.
    let text = String::from_utf8(content).map_err(|_| unusable("is not text in UTF-8".to_owned()))?;
    Ok(Zeroizing::new(text).trim_end_matches(['\r', '\n']).into())
}
