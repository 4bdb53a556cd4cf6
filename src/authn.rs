//! Who is asking: the two seams every authenticator implements, and what they may see.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/authenticator/interfaces.go`. An authenticator never sees the
//! request, only the credentials that were taken out of it, so it cannot alter what is forwarded.

pub mod x509;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::UnixTime;
use crate::request::credentials::Credentials;
use crate::user::UserInfo;
use x509::UnverifiedChain;

/// A boxed future, so that a chain of authenticators is a plain list.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What an authenticator says: `Ok(None)` "not my kind of credential", `Ok(Some)` "I vouch",
/// `Err` "mine, but bad or not checkable".
pub type Verdict = Result<Option<Authenticated>, AuthnError>;

/// Judges the credentials of a request.
pub trait RequestAuthenticator: Send + Sync + fmt::Debug {
    /// The name shown in logs and metrics.
    fn name(&self) -> &'static str;
    /// Judges the credentials; see [`Verdict`] for the contract.
    fn authenticate<'a>(&'a self, input: &'a AuthnInput<'a>) -> BoxFuture<'a, Verdict>;
}

/// Judges a bearer token.
pub trait TokenAuthenticator: Send + Sync + fmt::Debug {
    /// The name shown in logs and metrics.
    fn name(&self) -> &'static str;
    /// Judges the token; see [`Verdict`] for the contract.
    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        input: &'a AuthnInput<'a>,
    ) -> BoxFuture<'a, Verdict>;
}

/// A successful authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    /// Who the client is. Shared: never mutated, only replaced.
    pub user: Arc<UserInfo>,
    /// The audiences the credential is good for; empty when the method knows none, which every request accepts.
    pub audiences: Vec<Audience>,
    /// The authenticator that vouched, for metrics and the log.
    pub method: &'static str,
}

/// An API audience, compared byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Audience(pub String);

/// Why a credential was refused. Both kinds answer 401; metrics and readiness tell them apart. The text is for the
/// log alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthnError {
    /// The credential is bad.
    #[error("{0}")]
    Invalid(String),
    /// The credential could not be checked (an issuer or a webhook is away).
    #[error("{0}")]
    Unavailable(String),
}

/// A bearer token. Shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(String);

impl BearerToken {
    /// Wraps the text of a token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// The token itself, for the authenticator that checks it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(redacted)")
    }
}

/// Everything an authenticator may look at.
#[derive(Debug)]
pub struct AuthnInput<'a> {
    /// The connection the request came over.
    pub conn: &'a ConnInfo,
    /// The credentials, already taken out of the request.
    pub credentials: &'a Credentials,
    /// The decoded path, which decides whether anonymous requests are let in.
    pub path: &'a str,
    /// The audiences of this API server; empty means that none are checked.
    pub audiences: &'a [Audience],
    /// The generation of the configuration that judges; verdicts are remembered for it alone.
    pub generation: u64,
    /// The time of the request.
    pub now: UnixTime,
    /// Where an authenticator leaves a warning for the client.
    pub warnings: &'a Warnings,
}

/// Warnings for the client, sent as `Warning` headers.
#[derive(Debug, Default)]
pub struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    /// Adds a warning; a text that is already there is not repeated.
    pub fn add(&self, text: &str) {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !texts.iter().any(|known| known == text) {
            texts.push(text.to_owned());
        }
    }

    /// The warnings so far, in order.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is known of the client's connection. Made once, when the TLS handshake is done.
#[derive(Debug)]
pub struct ConnInfo {
    /// The client's address.
    pub peer: SocketAddr,
    /// The server name the client asked for in the TLS handshake.
    pub server_name: Option<String>,
    /// The certificates the client presented; possession of the first one's key is proven, nothing else is.
    pub peer_chain: UnverifiedChain,
    /// Verdicts on `peer_chain`, kept as long as the configuration and the certificates' lifetimes allow.
    pub verdicts: x509::VerdictMemo,
}
