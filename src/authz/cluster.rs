//! What decides about the requests of a cluster: the gateway's own authorizers, and then its API servers. Both must allow it.

use std::sync::Arc;

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::status::Status;
use portcullis_kubernetes::user::UserInfo;
use tokio::runtime::Handle;

use super::authorizer::{AccessError, AccessRefusal, AllowedAccess};
use super::rules::Rules;
use super::{AccessReviewer, Authorizer, AuthzTrace, question};
use crate::backend::Backend;
use crate::request::info::RequestInfo;

/// The authorizers of a cluster. Clones share the answers.
#[derive(Debug, Clone)]
pub(crate) struct ClusterAuthorizer {
    own: Option<Arc<Authorizer>>,
    api_servers: AccessReviewer,
}

impl ClusterAuthorizer {
    /// Asks `own`, and then the API servers of `backend`, from `runtime`.
    pub(crate) fn new(own: Option<&Arc<Authorizer>>, backend: &Arc<Backend>, runtime: &Handle) -> Self {
        Self::with_reviewer(own, AccessReviewer::new(backend, runtime))
    }

    pub(super) fn with_reviewer(own: Option<&Arc<Authorizer>>, api_servers: AccessReviewer) -> Self {
        Self { own: own.cloned(), api_servers }
    }

    /// Decides a question, which counts in the share of `asker`.
    pub(crate) async fn authorize(
        &self,
        asker: &str,
        question: &SubjectAccessReviewSpec,
        trace: &AuthzTrace,
    ) -> Result<AllowedAccess, AccessError> {
        let until = match &self.own {
            Some(own) => own.authorize(asker, question, trace).await?.until,
            None => None,
        };
        let answer = self.api_servers.ask(asker, question, trace).await?;
        let reason = answer.status.reason.clone();
        if !answer.status.allowed {
            return Err(AccessError::Forbidden { reason, is_denied: answer.status.denied });
        }
        Ok(AllowedAccess { reason, until: Some(until.map_or(answer.until, |until| until.min(answer.until))) })
    }

    /// Asks the API servers whether `user` may make a request that the gateway's own authorizers have allowed.
    pub(crate) async fn authorize_at_api_servers(
        &self,
        asker: &str,
        user: &UserInfo,
        info: &RequestInfo,
        trace: &AuthzTrace,
    ) -> Result<(), AccessRefusal> {
        let question = question::on_request(user, info, info.verb().to_owned());
        let answer =
            self.api_servers.ask(asker, &question, trace).await.map_err(AccessRefusal::Unanswered)?;
        if answer.status.allowed {
            return Ok(());
        }
        let reason = answer.status.reason.clone();
        let status = Box::new(Status::forbidden(&question::attempt(&question), &reason));
        Err(AccessRefusal::Forbidden { status, reason })
    }

    /// Whether the gateway's own authorizers ask webhooks.
    pub(super) fn asks_webhooks(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.asks_webhooks())
    }

    /// All rules of a user at the API servers: see [`AccessReviewer::rules`].
    pub(super) async fn rules(&self, user: &Identity) -> Option<Rules> {
        self.api_servers.rules(user).await
    }
}
