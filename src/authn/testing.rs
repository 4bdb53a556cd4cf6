//! Shared by the tests of authenticators: a request, and authenticators with a fixed verdict.

use std::net::{Ipv4Addr, SocketAddr};

use portcullis_kubernetes::user::UserInfo;
use portcullis_system::clock::UnixTime;

use super::x509::UnverifiedChain;
use super::{
    Audience, Authenticated, AuthnInput, AuthnVerdict, BearerToken, BoxFuture, ConnInfo,
    RequestAuthenticator, TokenAuthenticator, TokenContext,
};
use crate::authn::trace::AuthnTrace;
use crate::request::credentials::Credentials;

/// The parts of a request that authenticators see.
pub(crate) struct TestRequest {
    pub(crate) conn: ConnInfo,
    pub(crate) credentials: Credentials,
    pub(crate) path: String,
    pub(crate) audiences: Vec<Audience>,
    pub(crate) trace: AuthnTrace,
}

impl TestRequest {
    /// A request without credentials.
    pub(crate) fn new() -> Self {
        Self {
            conn: ConnInfo::new(
                SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000)),
                None,
                UnverifiedChain::default(),
            ),
            credentials: Credentials::default(),
            path: "/api".to_owned(),
            audiences: Vec::new(),
            trace: AuthnTrace::default(),
        }
    }

    pub(crate) fn audiences(mut self, audiences: &[&str]) -> Self {
        self.audiences = audiences_of(audiences);
        self
    }

    pub(crate) fn input(&self) -> AuthnInput<'_> {
        AuthnInput {
            conn: &self.conn,
            credentials: &self.credentials,
            path: &self.path,
            audiences: &self.audiences,
            generation: 1,
            now: UnixTime::from_secs(1_700_000_000),
            trace: &self.trace,
        }
    }
}

pub(crate) fn audiences_of(audiences: &[&str]) -> Vec<Audience> {
    audiences.iter().map(|audience| Audience((*audience).to_owned())).collect()
}

/// A successful authentication.
pub(crate) fn success(name: &str, audiences: &[&str]) -> Authenticated {
    Authenticated {
        user: UserInfo::named(name).into(),
        audiences: audiences_of(audiences),
        method: crate::authn::AuthnMethod::StaticToken,
        certificates: None,
        expires: None,
    }
}

/// An authenticator that always returns the same verdict.
#[derive(Debug)]
pub(crate) struct Fixed(pub(crate) AuthnVerdict);

impl RequestAuthenticator for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn authenticate<'a>(&'a self, _input: &'a AuthnInput<'a>) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async { self.0.clone() })
    }
}

impl TokenAuthenticator for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn authenticate<'a>(
        &'a self,
        _token: &'a BearerToken,
        _context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async { self.0.clone() })
    }
}

/// Accepts one token, as user `alice`.
#[derive(Debug)]
pub(crate) struct OneToken(pub(crate) &'static str);

impl TokenAuthenticator for OneToken {
    fn name(&self) -> &'static str {
        "one-token"
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        _context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async { Ok((token.expose() == self.0).then(|| success("alice", &[]))) })
    }
}
