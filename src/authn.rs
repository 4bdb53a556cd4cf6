//! Authentication: decides which user a request or a bearer token belongs to.
//!
//! Defines the two traits that authenticators implement and their input. An authenticator never sees the request, only
//! the credentials removed from it, so it cannot alter the forwarded request. An authenticator must never authorize:
//! that is the backend's part. Follows `k8s.io/apiserver/pkg/authentication/authenticator/interfaces.go`.

pub(crate) mod anonymous;
pub(crate) mod bearer;
pub(crate) mod bootstrap;
pub(crate) mod cache;
pub(crate) mod chain;
pub(crate) mod expiry;
pub(crate) mod oidc;
pub(crate) mod request_header;
pub(crate) mod revocation;
pub(crate) mod service_account;
pub(crate) mod settings;
pub(crate) mod static_token;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod token_getter;
pub(crate) mod trace;
pub(crate) mod webhook;
pub(crate) mod websocket;
pub(crate) mod x509;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use portcullis_http::identity::Identity;
use portcullis_http::peer::client_network;
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::Owner;
use portcullis_pki::revocation::path::CertificatePath;
use portcullis_system::clock::UnixTime;

pub use futures_util::future::BoxFuture;

use crate::request::credentials::Credentials;
use revocation::{Revoked, UnrevokedCredential};
use trace::AuthnTrace;
use x509::UnverifiedChain;

/// Result of an authenticator: `Ok(Some)` for an authenticated user, `Ok(None)` for no opinion (another kind of
/// credential), `Err` for a credential of its kind that is invalid or could not be checked.
pub(crate) type AuthnVerdict = Result<Option<Authenticated>, AuthnError>;

/// Authenticates the credentials of a request.
pub(crate) trait RequestAuthenticator: Send + Sync + fmt::Debug {
    /// The name in logs and metrics.
    fn name(&self) -> &'static str;
    /// Checks the credentials; see [`AuthnVerdict`] for the contract.
    fn authenticate<'a>(&'a self, input: &'a AuthnInput<'a>) -> BoxFuture<'a, AuthnVerdict>;
}

/// Authenticates a bearer token.
pub(crate) trait TokenAuthenticator: Send + Sync + fmt::Debug {
    /// The name in logs and metrics.
    fn name(&self) -> &'static str;
    /// Checks the token; see [`AuthnVerdict`] for the contract.
    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict>;
}

impl<T: TokenAuthenticator + ?Sized> TokenAuthenticator for Arc<T> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        (**self).authenticate(token, context)
    }
}

/// The authenticators that can vouch for a client. Some decisions depend on which one did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthnMethod {
    /// No credential.
    Anonymous,
    /// The identity headers of a front proxy.
    RequestHeader,
    /// A client certificate.
    X509,
    /// The client certificate of a pod.
    PodCertificate,
    /// A token of the static token file.
    StaticToken,
    /// A bound service-account token.
    ServiceAccount,
    /// A service-account token in a Secret.
    LegacyServiceAccount,
    /// A bootstrap token.
    BootstrapToken,
    /// A JSON Web Token of an OIDC issuer.
    Jwt,
    /// A token that a webhook knows.
    Webhook,
}

impl AuthnMethod {
    /// The name in logs, metrics and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::RequestHeader => "request-header",
            Self::X509 => "x509",
            Self::PodCertificate => "pod-certificate",
            Self::StaticToken => "static-token",
            Self::ServiceAccount => "service-account",
            Self::LegacyServiceAccount => "legacy-service-account",
            Self::BootstrapToken => "bootstrap-token",
            Self::Jwt => "jwt",
            Self::Webhook => "webhook",
        }
    }
}

/// A successful authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    /// The authenticated user. Shared between requests and never mutated.
    pub user: Identity,
    /// The audiences that the credential is valid for; empty for a method without audiences, which matches any.
    pub audiences: Vec<Audience>,
    /// The authentication method; some decisions depend on it.
    pub method: AuthnMethod,
    /// The certificates that proved it: the client's, or those of the front proxy that asserted the user.
    pub certificates: Option<Arc<CertificatePath>>,
    /// Expiry of the credential, if known. A cached verdict ends then.
    pub expires: Option<UnixTime>,
}

/// An authentication result that only [`chain::AuthnChain::authenticate`] can construct, from a credential that is not
/// revoked.
#[derive(Debug)]
pub(crate) struct ProvenIdentity(UnrevokedCredential);

impl ProvenIdentity {
    /// The authenticated user.
    pub(crate) fn user(&self) -> &UserInfo {
        &self.0.user
    }

    /// The authenticated user as a shared handle.
    pub(crate) fn identity(&self) -> &Identity {
        &self.0.user
    }

    /// The authentication method.
    pub(crate) fn method(&self) -> AuthnMethod {
        self.0.method
    }

    /// Whether a front proxy asserted the user. Its `X-Forwarded-For` is trusted, too.
    pub(crate) fn is_by_front_proxy(&self) -> bool {
        self.0.method == AuthnMethod::RequestHeader
    }

    /// The authentication itself.
    #[cfg(test)]
    pub(crate) fn into_inner(self) -> Authenticated {
        self.0.into_inner()
    }

    /// The identity itself.
    pub(crate) fn into_identity(self) -> Identity {
        self.0.into_inner().user
    }
}

/// An API audience, compared byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Audience(pub String);

/// Why authentication failed. Every variant is answered with 401; metrics and readiness distinguish them. The text is
/// only for the log, and for the answer to a `TokenReview`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AuthnError {
    /// The credential is invalid.
    Invalid(String),
    /// The credential could not be checked: an issuer or a webhook is unavailable.
    Unavailable(String),
    /// The credential is valid, but revoked.
    Revoked(Revoked),
    /// Several authenticators refused.
    Several(Vec<Self>),
    /// The named method authenticated the client as the gateway's own user.
    Reserved(AuthnMethod),
    /// The request has no credential or an unrecognized one, and anonymous authentication is disabled for it.
    Unrecognized,
}

impl AuthnError {
    /// Aggregates the errors of several authenticators; `None` for an empty list.
    pub(crate) fn of_all(mut errors: Vec<Self>) -> Option<Self> {
        if errors.len() > 1 { Some(Self::Several(errors)) } else { errors.pop() }
    }

    /// Whether the credential may be valid but could not be checked.
    pub(crate) fn is_unavailable(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::Several(errors) => errors.iter().any(Self::is_unavailable),
            Self::Invalid(_) | Self::Revoked(_) | Self::Reserved(_) | Self::Unrecognized => false,
        }
    }

    /// Whether nothing can be said of a credential that was accepted by `method` before. Only an issuer or a webhook has
    /// verdicts that no other authenticator can give: a refusal beside their outage may be of an authenticator that the
    /// credential is not for. A revoked credential is revoked whatever is unavailable.
    pub(crate) fn is_inconclusive_for(&self, method: AuthnMethod) -> bool {
        let is_remote = matches!(method, AuthnMethod::Jwt | AuthnMethod::Webhook);
        self.is_unavailable() && !self.is_refusal(is_remote)
    }

    /// Whether an error refuses the credential for good; if `is_remote`, other authenticators' opinions do not count.
    fn is_refusal(&self, is_remote: bool) -> bool {
        match self {
            Self::Several(errors) => errors.iter().any(|error| error.is_refusal(is_remote)),
            Self::Unavailable(_) => false,
            Self::Invalid(_) => !is_remote,
            Self::Revoked(_) | Self::Reserved(_) | Self::Unrecognized => true,
        }
    }

    /// The text of each error, without duplicates.
    pub(crate) fn texts(&self) -> Vec<&str> {
        let mut texts = Vec::new();
        self.collect(&mut texts);
        texts
    }

    fn collect<'a>(&'a self, texts: &mut Vec<&'a str>) {
        let text = match self {
            Self::Invalid(text) | Self::Unavailable(text) => text,
            Self::Revoked(revoked) => revoked.text(),
            Self::Several(errors) => return errors.iter().for_each(|error| error.collect(texts)),
            Self::Reserved(_) => {
                "the credential authenticates as system:portcullis, the user reserved for the gateway itself"
            }
            Self::Unrecognized => "no authenticator recognized a credential",
        };
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
}

impl std::error::Error for AuthnError {}

/// A single text unchanged, several in brackets: nested unions form one list, without duplicates.
// apimachinery: pkg/util/errors/errors.go, aggregate.Error
impl fmt::Display for AuthnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.texts().as_slice() {
            [one] => f.write_str(one),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

/// A bearer token. `Debug` redacts it. Shared, because tokens may be large.
#[derive(Clone)]
pub struct BearerToken(Arc<TokenText>);

struct TokenText {
    text: Box<str>,
    issuer: OnceLock<Option<String>>,
}

// threat: large-tokens
impl BearerToken {
    /// Wraps the text of a token.
    pub fn new(token: impl Into<Box<str>>) -> Self {
        Self(Arc::new(TokenText { text: token.into(), issuer: OnceLock::new() }))
    }

    /// The text of the token, for the authenticator that checks it.
    pub fn expose(&self) -> &str {
        &self.0.text
    }

    /// The `iss` claim of a JSON Web Token, see [`portcullis_openid::jwt::unverified_issuer`]. Parsed once for all configured issuers: any
    /// client can send a token that is expensive to parse.
    pub(crate) fn issuer(&self) -> Option<&str> {
        self.0.issuer.get_or_init(|| portcullis_openid::jwt::unverified_issuer(self.expose())).as_deref()
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

/// The input of a [`RequestAuthenticator`].
#[derive(Debug)]
pub struct AuthnInput<'a> {
    /// The client's connection.
    pub conn: &'a ConnInfo,
    /// The credentials, removed from the request.
    pub credentials: &'a Credentials,
    /// The decoded path. Anonymous authentication may be limited to certain paths.
    pub path: &'a str,
    /// The audiences of the API server; empty disables the check.
    pub audiences: &'a [Audience],
    /// The generation of the configuration; memoized verdicts hold for one generation.
    pub generation: u64,
    /// The time of the request.
    pub now: UnixTime,
    /// Receives warnings, audit annotations and steps.
    pub trace: &'a AuthnTrace,
}

impl AuthnInput<'_> {
    /// The part that token authenticators may see.
    pub fn for_tokens(&self) -> TokenContext<'_> {
        let Self { conn, audiences, now, trace, .. } = *self;
        TokenContext { audiences, owner: &conn.owner, now, trace }
    }
}

/// The input of a [`TokenAuthenticator`] beside the token. Contains nothing of the request that the verdict may depend on, so
/// that a verdict on a token holds for every request that carries it.
#[derive(Debug, Clone, Copy)]
pub struct TokenContext<'a> {
    /// The token must be valid for one of these audiences; empty disables the check.
    pub audiences: &'a [Audience],
    /// In whose share of the cluster the check counts.
    pub owner: &'a Owner,
    /// The time of the request.
    pub now: UnixTime,
    /// Receives warnings, audit annotations and steps.
    pub trace: &'a AuthnTrace,
}

/// Facts about the client's connection, collected once after the TLS handshake.
#[derive(Debug)]
pub struct ConnInfo {
    /// The client's address.
    pub peer: SocketAddr,
    /// The client before it has authenticated: its network.
    pub owner: Owner,
    /// The server name (SNI) of the TLS handshake.
    pub server_name: Option<String>,
    /// The client's certificate chain. The handshake proves possession of the leaf's key and nothing else.
    pub peer_chain: UnverifiedChain,
    /// Memoized verdicts on `peer_chain`.
    pub verdicts: x509::VerdictMemo,
}

impl ConnInfo {
    /// A connection without verdicts.
    pub(crate) fn new(peer: SocketAddr, server_name: Option<String>, peer_chain: UnverifiedChain) -> Self {
        let owner = Owner::Network(client_network(peer.ip()));
        Self { peer, owner, server_name, peer_chain, verdicts: x509::VerdictMemo::default() }
    }
}
