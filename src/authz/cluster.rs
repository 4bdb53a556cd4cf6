//! What decides about the requests of a cluster: the gateway's own authorizers, and then its API servers. Both must allow it.

use std::sync::Arc;

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::status::Status;
use portcullis_kubernetes::user::UserInfo;
use tokio::runtime::Handle;

use super::authorizer::{AccessError, AccessRefusal, AllowedAccess};
use super::rules::Rules;
use super::{AccessReviewer, Authorizer, AuthzTrace, access_review};
use crate::backend::Backend;
use crate::request::info::RequestInfo;

/// The authorizers of a cluster. Clones share the decisions.
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

    /// Decides an access review, which counts in the share of `flow`.
    pub(crate) async fn authorize(
        &self,
        flow: &str,
        spec: &SubjectAccessReviewSpec,
        trace: &AuthzTrace,
    ) -> Result<AllowedAccess, AccessError> {
        let until = match &self.own {
            Some(own) => own.authorize(flow, spec, trace).await?.until,
            None => None,
        };
        let decision = self.api_servers.decide(flow, spec, trace).await?;
        let reason = decision.status.reason.clone();
        if !decision.status.allowed {
            return Err(AccessError::Forbidden { reason, is_denied: decision.status.denied });
        }
        Ok(AllowedAccess {
            reason,
            until: Some(until.map_or(decision.until, |until| until.min(decision.until))),
        })
    }

    /// Asks the API servers whether `user` may make a request that the gateway's own authorizers have allowed.
    pub(crate) async fn authorize_at_api_servers(
        &self,
        flow: &str,
        user: &UserInfo,
        info: &RequestInfo,
        trace: &AuthzTrace,
    ) -> Result<(), AccessRefusal> {
        let spec = access_review::on_request(user, info, info.verb().to_owned());
        let decision = self.api_servers.decide(flow, &spec, trace).await.map_err(AccessRefusal::Undecided)?;
        if decision.status.allowed {
            return Ok(());
        }
        let reason = decision.status.reason.clone();
        let status = Box::new(Status::forbidden(&access_review::attempt(&spec), &reason));
        Err(AccessRefusal::Forbidden { status, reason })
    }

    /// Whether the gateway's own authorizers ask webhooks.
    pub(super) fn asks_webhooks(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.asks_webhooks())
    }

    /// All rules of a user at the API servers: see [`AccessReviewer::rules`].
    pub(super) async fn rules(&self, flow: &str, user: &Identity) -> Option<Rules> {
        self.api_servers.rules(flow, user).await
    }
}
