//! Who is asking: the two seams every authenticator implements, and what they may see.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/authenticator/interfaces.go`. An authenticator never sees the
//! request, only the credentials that were taken out of it, so it cannot alter what is forwarded.

pub mod anonymous;
pub mod bearer;
pub mod bootstrap;
pub mod cache;
pub mod chain;
pub mod jwt;
pub mod oidc;
pub mod request_header;
pub mod service_account;
pub mod settings;
pub mod static_token;
#[cfg(test)]
pub(crate) mod testing;
pub mod token_getter;
pub mod trace;
pub mod webhook;
pub mod websocket;
pub mod x509;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

pub use futures_util::future::BoxFuture;

use crate::clock::UnixTime;
use crate::request::credentials::Credentials;
use crate::user::{Identity, UserInfo};
use trace::Remarks;
use x509::UnverifiedChain;

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
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, Verdict>;
}

impl<T: TokenAuthenticator + ?Sized> TokenAuthenticator for Arc<T> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, Verdict> {
        (**self).authenticate(token, context)
    }
}

/// A successful authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    /// Who the client is. Shared: never mutated, only replaced.
    pub user: Identity,
    /// The audiences the credential is good for; empty when the method knows none, which every request accepts.
    pub audiences: Vec<Audience>,
    /// The authenticator that vouched, for metrics and the log.
    pub method: &'static str,
    /// When the authenticator itself will begin to refuse the credential, if it knows: a remembered verdict ends then.
    pub expires: Option<UnixTime>,
}

/// An authentication that a [`chain::Chain`] has made, and nobody else can.
#[derive(Debug)]
pub struct Proven(Authenticated);

impl Proven {
    /// Who the client is.
    pub fn user(&self) -> &UserInfo {
        &self.0.user
    }

    /// The same, as requests share it.
    pub(crate) fn identity(&self) -> &Identity {
        &self.0.user
    }

    /// The authenticator that vouched.
    pub fn method(&self) -> &'static str {
        self.0.method
    }

    /// The authentication itself.
    pub(crate) fn into_inner(self) -> Authenticated {
        self.0
    }
}

/// An API audience, compared byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Audience(pub String);

/// Why a request was not authenticated. Every kind answers 401; metrics and readiness tell them apart. The text is for
/// the log alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthnError {
    /// The credential is bad.
    Invalid(String),
    /// The credential could not be checked (an issuer or a webhook is away).
    Unavailable(String),
    /// Several authenticators refused.
    Several(Vec<Self>),
    /// The authenticator of this name vouched for the gateway's own user.
    Reserved(&'static str),
    /// Nobody knew the credential, or there was none, and anonymous requests are not let in.
    Unrecognized,
}

impl AuthnError {
    /// Makes one error of the errors of several authenticators; none of none.
    pub fn of_all(mut errors: Vec<Self>) -> Option<Self> {
        if errors.len() > 1 { Some(Self::Several(errors)) } else { errors.pop() }
    }

    /// Whether the credential may be good and could not be checked.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::Several(errors) => errors.iter().any(Self::is_unavailable),
            Self::Invalid(_) | Self::Reserved(_) | Self::Unrecognized => false,
        }
    }

    /// The text of each refusal, none twice.
    pub(crate) fn texts(&self) -> Vec<&str> {
        let mut texts = Vec::new();
        self.collect(&mut texts);
        texts
    }

    fn collect<'a>(&'a self, texts: &mut Vec<&'a str>) {
        let text = match self {
            Self::Invalid(text) | Self::Unavailable(text) => text,
            Self::Several(errors) => return errors.iter().for_each(|error| error.collect(texts)),
            Self::Reserved(_) => {
                "the credential names system:portcullis, the gateway's own user, which no client may be"
            }
            Self::Unrecognized => "no authenticator recognized a credential",
        };
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
}

impl std::error::Error for AuthnError {}

/// One text as it is, several in brackets: unions within unions are one list, and no text is repeated.
// apimachinery: pkg/util/errors/errors.go, aggregate.Error
impl fmt::Display for AuthnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.texts().as_slice() {
            [one] => f.write_str(one),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

/// A bearer token. Shown nowhere. Shared: some are large.
#[derive(Clone)]
pub struct BearerToken(Arc<Text>);

struct Text {
    text: Box<str>,
    issuer: OnceLock<Option<String>>,
}

// threat: large-tokens
impl BearerToken {
    /// Wraps the text of a token.
    pub fn new(token: impl Into<Box<str>>) -> Self {
        Self(Arc::new(Text { text: token.into(), issuer: OnceLock::new() }))
    }

    /// The token itself, for the authenticator that checks it.
    pub fn expose(&self) -> &str {
        &self.0.text
    }

    /// The issuer that a JSON Web Token names, see [`jwt::issuer`]. Read once, however many issuers there are: anybody
    /// can make up a token that takes long to read.
    pub(crate) fn issuer(&self) -> Option<&str> {
        self.0.issuer.get_or_init(|| jwt::issuer(self.expose())).as_deref()
    }
}

impl PartialEq for BearerToken {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for BearerToken {}

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
    /// What an authenticator leaves beside its verdict.
    pub remarks: &'a Remarks,
}

impl AuthnInput<'_> {
    /// What authenticators of tokens may look at beside the token.
    pub fn for_tokens(&self) -> TokenContext<'_> {
        TokenContext { audiences: self.audiences, now: self.now, remarks: self.remarks }
    }
}

/// What a token is judged by beside itself. Nothing of the request is in it: a verdict on a token holds for every
/// request that carries it.
#[derive(Debug, Clone, Copy)]
pub struct TokenContext<'a> {
    /// The audiences the token is to be good for, one of them at least; empty means that none are checked.
    pub audiences: &'a [Audience],
    /// The time of the request.
    pub now: UnixTime,
    /// What an authenticator leaves beside its verdict.
    pub remarks: &'a Remarks,
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
