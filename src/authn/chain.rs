//! The authenticators of a cluster as one: the first success wins, and an error is final or not. Their order, a front
//! proxy's headers, then a client certificate, then a token, is that of `chain` in `cluster/authenticators.rs`.
//!
//! Follows `k8s.io/kubernetes/pkg/kubeapiserver/authenticator/config.go` with `apiserver/pkg/authentication`
//! (`request/union`, `token/union`, `group`, `authenticator/audagnostic.go`) and the audience check of
//! `pkg/endpoints/filters/authentication.go`. A success discards earlier errors; an error without a
//! success is final; a revoked credential is an error; only a request on which no authenticator had an opinion can become anonymous. A disabled method is
//! not in the chain, and a chain without any method cannot be constructed.

use std::future::Future;
use std::sync::Arc;

use portcullis_go::quote::{Quoted, QuotedList};
use portcullis_kubernetes::user::{GATEWAY, UserInfo};
use portcullis_limits::Owner;
use portcullis_system::clock::UnixTime;

use super::anonymous::AnonymousAuthenticator;
use super::bearer;
use super::{
    Audience, Authenticated, AuthnError, AuthnInput, AuthnMethod, AuthnVerdict, BearerToken, BoxFuture,
    ProvenIdentity, RequestAuthenticator, TokenAuthenticator, TokenContext,
};
use crate::authn::revocation::{ClusterRevocation, UnrevokedCredential};
use crate::authn::trace::{AuthnTrace, Check, StepOutcome};

/// All authenticators of one cluster.
#[derive(Debug)]
pub(crate) struct AuthnChain {
    members: Vec<Box<dyn RequestAuthenticator>>,
    anonymous: Option<AnonymousAuthenticator>,
    tokens: Option<Arc<dyn TokenAuthenticator>>,
    revocation: ClusterRevocation,
}

/// No authentication method is configured, and anonymous authentication is disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no authentication method is configured, and anonymous authentication is disabled")]
pub struct EmptyChain;

impl AuthnChain {
    /// Runs `members` in this order, then `anonymous` if no member had an opinion. `revocation` refuses credentials that
    /// they accept.
    pub(crate) fn new(
        members: Vec<Box<dyn RequestAuthenticator>>,
        anonymous: Option<AnonymousAuthenticator>,
        revocation: ClusterRevocation,
    ) -> Result<Self, EmptyChain> {
        if members.is_empty() && anonymous.is_none() {
            return Err(EmptyChain);
        }
        Ok(Self { members, anonymous, tokens: None, revocation })
    }

    /// Enables [`Self::review`] with the token authenticators of the members.
    #[must_use]
    pub(crate) fn with_token_review(self, tokens: Arc<dyn TokenAuthenticator>) -> Self {
        Self { tokens: Some(tokens), ..self }
    }

    /// Whether [`Self::review`] is enabled.
    pub(crate) fn reviews_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Decides whether credentials are revoked.
    pub(crate) fn revocation(&self) -> &ClusterRevocation {
        &self.revocation
    }

    /// Authenticates the token of a `TokenReview`, by the rules for a request that carries only this token, in the share of
    /// `owner`; `Ok(None)` if an `Authorization` header with the text would not contain a token.
    // kubernetes: pkg/registry/authentication/tokenreview/storage.go
    pub(crate) async fn review(
        &self,
        token: &str,
        audiences: &[Audience],
        owner: &Owner,
        now: UnixTime,
    ) -> Result<Option<Authenticated>, AuthnError> {
        let Some((tokens, token)) = self.tokens.as_ref().zip(bearer::token(&format!("Bearer {token}")))
        else {
            return Ok(None);
        };
        let trace = AuthnTrace::default();
        let context = TokenContext { audiences, owner, now, trace: &trace };
        let found = bearer::recognized_or_error(tokens.authenticate(&token, context).await)?;
        let found = found.map(reject_reserved).transpose()?.map(with_authenticated_group);
        let admitted = found.map(|found| self.revocation.admit(found, now)).transpose();
        let found = admitted.map_err(AuthnError::Revoked)?.map(UnrevokedCredential::into_inner);
        // Unlike for a request, a token without audiences does not match the requested ones.
        if let Some(found) = &found
            && !audiences.is_empty()
            && intersection(&found.audiences, audiences).is_empty()
        {
            return Err(AuthnError::Invalid("error validating audiences".to_owned()));
        }
        Ok(found)
    }

    /// Authenticates a request.
    pub(crate) async fn authenticate(&self, input: &AuthnInput<'_>) -> Result<ProvenIdentity, AuthnError> {
        bearer::warn_of_extra_space(input);
        let mut errors = Vec::new();
        let mut found = None;
        for member in &self.members {
            let verdict = member.authenticate(input).await;
            record_verdict(input.trace, member.name(), &verdict);
            match verdict {
                Ok(Some(authenticated)) => {
                    let authenticated = with_authenticated_group(reject_reserved(authenticated)?);
                    match self.admit(authenticated, input) {
                        Ok(admitted) => {
                            found = Some(admitted);
                            break;
                        }
                        // As any bad credential: another one of the request may be good.
                        Err(error) => errors.push(error),
                    }
                }
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        // A refused credential must not become anonymous.
        if found.is_none() {
            if let Some(error) = AuthnError::of_all(errors) {
                return Err(error);
            }
            let anonymous = self.anonymous.as_ref().and_then(|anonymous| anonymous.authenticate(input));
            found = anonymous.map(|anonymous| self.admit(anonymous, input)).transpose()?;
        }
        let found = found.ok_or(AuthnError::Unrecognized)?;
        check_audiences(input.audiences, &found.audiences)?;
        Ok(ProvenIdentity(found))
    }

    /// Refuses a revoked credential.
    fn admit(&self, found: Authenticated, input: &AuthnInput<'_>) -> Result<UnrevokedCredential, AuthnError> {
        let step = |outcome, detail: &dyn Fn() -> String| {
            input.trace.step("revocation", Check::Other("revocation"), outcome, detail);
        };
        match self.revocation.admit(found, input.now) {
            Ok(admitted) => {
                if self.revocation.is_enabled() {
                    step(StepOutcome::Passed, &|| "not revoked".to_owned());
                }
                Ok(admitted)
            }
            Err(revoked) => {
                step(StepOutcome::Failed, &|| revoked.text().to_owned());
                Err(AuthnError::Revoked(revoked))
            }
        }
    }
}

/// Refuses the gateway's own user to every client but front proxies, which may assert any user: a gateway in front of
/// this one sends its own requests as that user. The refusal is final; no other credential of the request counts.
// threat: gateway-user
fn reject_reserved(found: Authenticated) -> Result<Authenticated, AuthnError> {
    if found.user.name == GATEWAY && found.method != AuthnMethod::RequestHeader {
        return Err(AuthnError::Reserved(found.method));
    }
    Ok(found)
}

/// Adds a member's verdict to the trace.
fn record_verdict(trace: &AuthnTrace, name: &str, verdict: &AuthnVerdict) {
    let outcome = match verdict {
        Ok(Some(_)) => StepOutcome::Passed,
        Ok(None) => StepOutcome::NotApplicable,
        Err(_) => StepOutcome::Failed,
    };
    trace.step(name, Check::Verdict, outcome, || match verdict {
        Ok(Some(found)) => format!("authenticated as {}", Quoted(&found.user.name)),
        Ok(None) => "no opinion".to_owned(),
        Err(error) => error.to_string(),
    });
}

/// Adds the group `system:authenticated`. Copies the user, which may be shared.
fn with_authenticated_group(found: Authenticated) -> Authenticated {
    if found.user.has_authentication_status() {
        return found;
    }
    let user = UserInfo::clone(&found.user).in_authenticated_group().into();
    Authenticated { user, ..found }
}

/// Adds the group `system:authenticated` before verdicts are cached, so that the chain need not copy the user for every
/// request.
#[derive(Debug)]
pub(crate) struct AuthenticatedGroupAdder(Box<dyn TokenAuthenticator>);

impl AuthenticatedGroupAdder {
    /// Adds the group to the users of `tokens`.
    pub(crate) fn new(tokens: Box<dyn TokenAuthenticator>) -> Self {
        Self(tokens)
    }
}

impl TokenAuthenticator for AuthenticatedGroupAdder {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
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

/// How a union of token authenticators handles an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnionErrorPolicy {
    /// Try the next authenticator; a later success counts. The rule between methods.
    Continue,
    /// Return the error. The rule between JWT issuers.
    Stop,
}

/// Combines token authenticators, tried in this order. A single one is returned unchanged; `None` for an empty list.
// apiserver: pkg/authentication/token/union/union.go
pub(crate) fn token_union(
    mut members: Vec<Box<dyn TokenAuthenticator>>,
    on_error: UnionErrorPolicy,
) -> Option<Box<dyn TokenAuthenticator>> {
    if members.len() > 1 { Some(Box::new(TokenUnion { members, on_error })) } else { members.pop() }
}

#[derive(Debug)]
struct TokenUnion {
    members: Vec<Box<dyn TokenAuthenticator>>,
    on_error: UnionErrorPolicy,
}

impl TokenAuthenticator for TokenUnion {
    fn name(&self) -> &'static str {
        "union"
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async move {
            let mut errors = Vec::new();
            for member in &self.members {
                let verdict = member.authenticate(token, context).await;
                record_verdict(context.trace, member.name(), &verdict);
                match verdict {
                    Ok(None) => {}
                    Err(error) if self.on_error == UnionErrorPolicy::Continue => errors.push(error),
                    verdict => return verdict,
                }
            }
            AuthnError::of_all(errors).map_or(Ok(None), Err)
        })
    }
}

/// Restricts an authenticator without audiences of its own to a fixed list of them.
#[derive(Debug)]
pub(crate) struct AudienceAgnostic<A: ?Sized> {
    implicit: Vec<Audience>,
    delegate: Box<A>,
}

impl<A: ?Sized> AudienceAgnostic<A> {
    /// Credentials of `delegate` are valid for the audiences `implicit`.
    pub(crate) fn new(implicit: Vec<Audience>, delegate: Box<A>) -> Self {
        Self { implicit, delegate }
    }

    /// Runs the delegate, unless only other audiences are requested.
    // apiserver: pkg/authentication/authenticator/audagnostic.go
    async fn wrap(
        &self,
        name: &str,
        context: TokenContext<'_>,
        verdict: impl Future<Output = AuthnVerdict>,
    ) -> AuthnVerdict {
        let requested = context.audiences;
        if requested.is_empty() {
            return verdict.await;
        }
        if !requested.iter().any(|audience| self.implicit.contains(audience)) {
            context.trace.step(name, Check::RequestedAudiences, StepOutcome::NotApplicable, || {
                format!(
                    "requested audiences: [{}], accepted audiences: [{}]",
                    list(requested),
                    list(&self.implicit)
                )
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

    fn authenticate<'a>(&'a self, input: &'a AuthnInput<'a>) -> BoxFuture<'a, AuthnVerdict> {
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
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(self.wrap(
            self.name(),
            context,
            async move { self.delegate.authenticate(token, context).await },
        ))
    }
}

#[cfg(test)]
mod tests;
