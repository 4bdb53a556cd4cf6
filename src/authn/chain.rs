//! All authenticators of a cluster as one: who is asked in which order, and what an error means.
//!
//! Follows `k8s.io/kubernetes/pkg/kubeapiserver/authenticator/config.go` with `apiserver/pkg/authentication`
//! (`request/union`, `token/union`, `group`, `authenticator/audagnostic.go`) and the audience check of
//! `pkg/endpoints/filters/authentication.go`. The first success wins and makes earlier errors forgotten; an error
//! without a success is final; only a request that nobody had an opinion about can be anonymous. A method that is
//! switched off is not in the chain, and a chain without any method cannot be built.

use std::future::Future;
use std::sync::Arc;

use super::anonymous::AnonymousAuthenticator;
use super::bearer;
use super::request_header;
use super::{
    Audience, Authenticated, AuthnError, AuthnInput, BearerToken, BoxFuture, Proven, RequestAuthenticator,
    TokenAuthenticator, TokenContext, Verdict,
};
use crate::authn::trace::{Check, Outcome, Remarks};
use crate::clock::UnixTime;
use crate::go::quote::{Quoted, QuotedList};
use crate::user::{GATEWAY, UserInfo};

/// Everything that can authenticate a request to one cluster.
#[derive(Debug)]
pub struct Chain {
    members: Vec<Box<dyn RequestAuthenticator>>,
    anonymous: Option<AnonymousAuthenticator>,
    tokens: Option<Arc<dyn TokenAuthenticator>>,
}

/// No authentication method is configured, and anonymous requests are not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no authentication method is configured: nobody could be authenticated")]
pub struct EmptyChain;

impl Chain {
    /// Asks the members in this order, and lets in as anonymous what nobody had an opinion about, if at all.
    pub fn new(
        members: Vec<Box<dyn RequestAuthenticator>>,
        anonymous: Option<AnonymousAuthenticator>,
    ) -> Result<Self, EmptyChain> {
        if members.is_empty() && anonymous.is_none() {
            return Err(EmptyChain);
        }
        Ok(Self { members, anonymous, tokens: None })
    }

    /// The same chain, which also reviews tokens: those that its members take.
    #[must_use]
    pub fn reviewing(self, tokens: Arc<dyn TokenAuthenticator>) -> Self {
        Self { tokens: Some(tokens), ..self }
    }

    /// Whether it reviews tokens.
    pub fn reviews(&self) -> bool {
        self.tokens.is_some()
    }

    /// Finds out whose token somebody asks about; `Ok(None)` if no request with it would have a token. The same rules
    /// as for a request with this token, and nothing else of any request.
    // kubernetes: pkg/registry/authentication/tokenreview/storage.go
    pub async fn review(
        &self,
        token: &str,
        audiences: &[Audience],
        now: UnixTime,
    ) -> Result<Option<Authenticated>, AuthnError> {
        let Some((tokens, token)) = self.tokens.as_ref().zip(bearer::token(&format!("Bearer {token}")))
        else {
            return Ok(None);
        };
        let remarks = Remarks::default();
        let context = TokenContext { audiences, now, remarks: &remarks };
        let found = bearer::known_or_error(tokens.authenticate(&token, context).await)?;
        let found = found.map(unreserved).transpose()?.map(with_authenticated_group);
        // Here a token that is good for no audience in particular is not good for those that were asked for.
        if let Some(found) = &found
            && !audiences.is_empty()
            && intersection(&found.audiences, audiences).is_empty()
        {
            return Err(AuthnError::Invalid("error validating audiences".to_owned()));
        }
        Ok(found)
    }

    /// Finds out who makes a request.
    pub async fn authenticate(&self, input: &AuthnInput<'_>) -> Result<Proven, AuthnError> {
        bearer::warn_of_extra_space(input);
        let mut errors = Vec::new();
        let mut found = None;
        for member in &self.members {
            let verdict = member.authenticate(input).await;
            note(input.remarks, member.name(), &verdict);
            match verdict {
                Ok(Some(authenticated)) => {
                    found = Some(with_authenticated_group(unreserved(authenticated)?));
                    break;
                }
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        // Why here: a credential that was refused must not be let in as anonymous.
        if found.is_none() {
            if let Some(error) = AuthnError::of_all(errors) {
                return Err(error);
            }
            found = self.anonymous.as_ref().and_then(|anonymous| anonymous.authenticate(input));
        }
        let found = found.ok_or(AuthnError::Unrecognized)?;
        check_audiences(input.audiences, &found.audiences)?;
        Ok(Proven(found))
    }
}

/// Refuses the gateway's own user to all but front proxies, which may name any user: another gateway before this one
/// reads through it as that user. Final: no other credential beside it counts.
// threat: gateway-user
fn unreserved(found: Authenticated) -> Result<Authenticated, AuthnError> {
    if found.user.name == GATEWAY && found.method != request_header::METHOD {
        return Err(AuthnError::Reserved(found.method));
    }
    Ok(found)
}

/// What a member said, for somebody who asks why.
fn note(remarks: &Remarks, name: &str, verdict: &Verdict) {
    let outcome = match verdict {
        Ok(Some(_)) => Outcome::Passed,
        Ok(None) => Outcome::NotApplicable,
        Err(_) => Outcome::Failed,
    };
    remarks.step(name, Check::Verdict, outcome, || match verdict {
        Ok(Some(found)) => format!("vouches for {}", Quoted(&found.user.name)),
        Ok(None) => "no opinion".to_owned(),
        Err(error) => error.to_string(),
    });
}

/// Never changes the original, which may be shared.
fn with_authenticated_group(found: Authenticated) -> Authenticated {
    if found.user.says_whether_authenticated() {
        return found;
    }
    let user = UserInfo::clone(&found.user).in_authenticated_group().into();
    Authenticated { user, ..found }
}

/// Token authenticators whose identities come with the group of all authenticated users: a chain that remembers them
/// need not add it, and copy the identity, with every request.
#[derive(Debug)]
pub struct InAuthenticatedGroup(Box<dyn TokenAuthenticator>);

impl InAuthenticatedGroup {
    /// Adds the group to what `tokens` says.
    pub fn new(tokens: Box<dyn TokenAuthenticator>) -> Self {
        Self(tokens)
    }
}

impl TokenAuthenticator for InAuthenticatedGroup {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, Verdict> {
        Box::pin(async move { Ok(self.0.authenticate(token, context).await?.map(with_authenticated_group)) })
    }
}

// apiserver: pkg/endpoints/filters/authentication.go, audiencesAreAcceptable
fn check_audiences(api: &[Audience], of_credential: &[Audience]) -> Result<(), AuthnError> {
    let shared = || of_credential.iter().any(|audience| api.contains(audience));
    if api.is_empty() || of_credential.is_empty() || shared() {
        return Ok(());
    }
    Err(AuthnError::Invalid(format!(
        "unable to match the audience: [{}] , accepted: [{}]",
        list(of_credential),
        list(api)
    )))
}

fn list(audiences: &[Audience]) -> String {
    audiences.iter().map(|audience| audience.0.as_str()).collect::<Vec<_>>().join(" ")
}

/// The audiences of both lists, in the order of the second one.
// apiserver: pkg/authentication/authenticator/audiences.go, Intersect
pub(super) fn intersection(own: &[Audience], requested: &[Audience]) -> Vec<Audience> {
    requested.iter().filter(|audience| own.contains(audience)).cloned().collect()
}

/// What a union of token authenticators does with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Ask the next one; a later success counts. The rule between methods.
    Continue,
    /// Stop there. The rule among JWT issuers.
    Stop,
}

/// Makes one token authenticator of several, asked in this order. One is left as it is; of none there is nothing to
/// make.
// apiserver: pkg/authentication/token/union/union.go
pub fn token_union(
    mut members: Vec<Box<dyn TokenAuthenticator>>,
    on_error: OnError,
) -> Option<Box<dyn TokenAuthenticator>> {
    if members.len() > 1 { Some(Box::new(TokenUnion { members, on_error })) } else { members.pop() }
}

#[derive(Debug)]
struct TokenUnion {
    members: Vec<Box<dyn TokenAuthenticator>>,
    on_error: OnError,
}

impl TokenAuthenticator for TokenUnion {
    fn name(&self) -> &'static str {
        "union"
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let mut errors = Vec::new();
            for member in &self.members {
                let verdict = member.authenticate(token, context).await;
                note(context.remarks, member.name(), &verdict);
                match verdict {
                    Ok(None) => {}
                    Err(error) if self.on_error == OnError::Continue => errors.push(error),
                    verdict => return verdict,
                }
            }
            AuthnError::of_all(errors).map_or(Ok(None), Err)
        })
    }
}

/// An authenticator that knows nothing of audiences, made good for a fixed list of them.
#[derive(Debug)]
pub struct AudienceAgnostic<A: ?Sized> {
    implicit: Vec<Audience>,
    delegate: Box<A>,
}

impl<A: ?Sized> AudienceAgnostic<A> {
    /// Credentials of the delegate are good for these audiences.
    pub fn new(implicit: Vec<Audience>, delegate: Box<A>) -> Self {
        Self { implicit, delegate }
    }

    /// Asks the delegate, unless the request is for other audiences.
    // apiserver: pkg/authentication/authenticator/audagnostic.go
    async fn wrap(
        &self,
        name: &str,
        context: TokenContext<'_>,
        verdict: impl Future<Output = Verdict>,
    ) -> Verdict {
        let requested = context.audiences;
        if requested.is_empty() {
            return verdict.await;
        }
        if !requested.iter().any(|audience| self.implicit.contains(audience)) {
            context.remarks.step(name, Check::RequestedAudiences, Outcome::NotApplicable, || {
                format!("[{}] are asked for; it vouches for [{}]", list(requested), list(&self.implicit))
            });
            return Ok(None);
        }
        let Some(found) = verdict.await? else {
            return Ok(None);
        };
        if !found.audiences.is_empty() {
            let returned: Vec<_> = found.audiences.iter().map(|audience| &audience.0).collect();
            return Err(AuthnError::Invalid(format!(
                "audience agnostic authenticator wrapped an authenticator that returned audiences: {}",
                QuotedList(&returned)
            )));
        }
        Ok(Some(Authenticated { audiences: intersection(&self.implicit, requested), ..found }))
    }
}

impl<A: RequestAuthenticator + ?Sized> RequestAuthenticator for AudienceAgnostic<A> {
    fn name(&self) -> &'static str {
        self.delegate.name()
    }

    fn authenticate<'a>(&'a self, input: &'a AuthnInput<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(
            self.wrap(
                self.name(),
                input.for_tokens(),
                async move { self.delegate.authenticate(input).await },
            ),
        )
    }
}

impl<A: TokenAuthenticator + ?Sized> TokenAuthenticator for AudienceAgnostic<A> {
    fn name(&self) -> &'static str {
        self.delegate.name()
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, Verdict> {
        Box::pin(self.wrap(
            self.name(),
            context,
            async move { self.delegate.authenticate(token, context).await },
        ))
    }
}

#[cfg(test)]
mod tests;
