//! A client of an OpenID provider: the requests of a login, and the verification of its ID tokens.
//!
//! The commands `login`, `credential` and `logout` use it, and so does the page.

pub(crate) mod error;
pub(crate) mod id_token;
pub(crate) mod provider;
mod secret_text;

pub(crate) use secret_text::SecretText;
