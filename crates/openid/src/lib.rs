//! OpenID Connect: tokens and the keys of their issuers, and a client of a provider.
//!
//! [`jwt`] parses tokens and verifies signatures; the authenticators decide which claims they trust. The client makes the
//! requests of a login and verifies its ID tokens; the commands `login`, `credential` and `logout` use it, and so does the
//! page.

pub mod answers;
pub mod error;
pub mod id_token;
pub mod jwt;
pub mod provider;
mod secret_text;

pub use secret_text::SecretText;
