//! One check of a token, independent of the requests that wait for it.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use portcullis_limits::Owner;
use portcullis_system::clock::UnixTime;
use tokio::time::timeout;
use tracing::error;

use super::super::{Audience, AuthnError, BearerToken, TokenContext};
use super::outcome::CheckOutcome;
use super::{CacheState, overloaded};
use crate::authn::trace::AuthnTrace;

/// Maximum duration of a check, with the wait for its turns.
// apiserver: pkg/authentication/token/cache, sharedLookupTimeout
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// A call of the delegate, independent of the lifetime of the request.
pub(super) struct TokenCheck {
    token: BearerToken,
    audiences: Vec<Audience>,
    owner: Owner,
    now: UnixTime,
    trace: AuthnTrace,
}

impl TokenCheck {
    pub(super) fn new(token: &BearerToken, context: TokenContext<'_>) -> Self {
        let trace =
            if context.trace.keeps_steps() { AuthnTrace::with_steps() } else { AuthnTrace::default() };
        let TokenContext { audiences, owner, now, .. } = context;
        Self { token: token.clone(), audiences: audiences.to_vec(), owner: owner.clone(), now, trace }
    }

    /// Calls the delegate, in turns. The flag is false if there is no verdict: the delegate panicked, or had no turn.
    pub(super) async fn run(self, state: &CacheState) -> (CheckOutcome, bool) {
        let _in_flight = state.metrics.in_flight();
        let Self { token, audiences, owner, now, trace } = &self;
        let context = TokenContext { audiences, owner, now: *now, trace };
        let call = AssertUnwindSafe(async { state.delegate.authenticate(token, context).await });
        let call = state.checks.run(owner.clone(), call.catch_unwind());
        let (verdict, is_verdict) = match timeout(CHECK_TIMEOUT, call).await {
            Ok(Ok(Ok(verdict))) => (verdict, true),
            Ok(Ok(Err(_))) => {
                state.metrics.panicked();
                error!("checking a token panicked");
                let text = "Internal error occurred: authentication failed unexpectedly";
                (Err(AuthnError::Unavailable(text.to_owned())), false)
            }
            Ok(Err(_)) => (Err(overloaded()), false),
            Err(_) => {
                let text = format!("the token was not checked within {CHECK_TIMEOUT:?}");
                (Err(AuthnError::Unavailable(text)), true)
            }
        };
        state.metrics.fetched(verdict.is_err());
        (CheckOutcome { verdict, record: trace.take() }, is_verdict)
    }
}
