//! What of an endpoint is compared before it is trusted, beside the identity: the names of its identity headers, which the
//! gateway removes from every request, and the cluster that it belongs to.

use std::sync::atomic::Ordering;

use portcullis_http::identity::IdentityMode;
use portcullis_kubernetes::user::GATEWAY;
use tracing::warn;

use super::verdict::SelfCheckFailure;
use super::{EndpointCheck, headers};
use crate::backend::cluster_identity::{IdentityObject, NotAdmitted};
use crate::backend::probe::ProbeClient;

impl EndpointCheck {
    /// Reads the names of the API server's identity headers, which the gateway removes from every request. Fails if
    /// neither the API server nor the configuration names them, or if the object that names them is another cluster's.
    /// Returns an error if a later attempt may succeed.
    // threat: further-identity-headers
    pub(super) async fn learn_header_names(
        &self,
        client: &ProbeClient,
    ) -> Result<Option<SelfCheckFailure>, String> {
        // Without a client certificate the API server never treats the gateway as a front proxy.
        if self.endpoint.gateway_certificate().is_none() {
            return self.compare_by_namespace(client).await;
        }
        let published = headers::read(client, self.backend.identity()).await;
        match published
            .map_err(|cause| format!("the names of its identity headers cannot be read: {cause}"))?
        {
            headers::PublishedHeaderNames::All(names, uid) => {
                // Before anything is learnt from it.
                let failure = match uid {
                    Some(uid) => self.compare(IdentityObject::AuthenticationConfigMap, &uid)?,
                    None => self.compare_by_namespace(client).await?,
                };
                if failure.is_none() {
                    self.backend.learn_identity_headers(&names);
                }
                Ok(failure)
            }
            headers::PublishedHeaderNames::NotFound => self.compare_by_namespace(client).await,
            headers::PublishedHeaderNames::Forbidden if self.backend.has_configured_identity_headers() => {
                self.compare_by_namespace(client).await
            }
            headers::PublishedHeaderNames::Forbidden => {
                Ok(Some(SelfCheckFailure::HeaderNamesForbidden(self.reader())))
            }
        }
    }

    /// Compares the cluster of the endpoint with that of the others, by the UID of an object in it. Returns an error if a
    /// later attempt may succeed.
    fn compare(&self, object: IdentityObject, uid: &str) -> Result<Option<SelfCheckFailure>, String> {
        match self.backend.admit_to_cluster(&self.endpoint, object, uid) {
            Ok(()) => Ok(None),
            Err(NotAdmitted::OtherCluster(other)) => Ok(Some(SelfCheckFailure::OtherCluster(other))),
            Err(NotAdmitted::Undecided) => {
                Err("it is not known yet which cluster the other endpoints belong to".to_owned())
            }
        }
    }

    /// The same by the UID of the namespace `kube-system`, if the gateway may read it.
    async fn compare_by_namespace(&self, client: &ProbeClient) -> Result<Option<SelfCheckFailure>, String> {
        if !self.backend.may_have_several_endpoints() {
            return Ok(None);
        }
        match headers::read_namespace(client, self.backend.identity()).await? {
            headers::NamespaceUid::Known(uid) => self.compare(IdentityObject::KubeSystem, &uid),
            headers::NamespaceUid::NotFound => Ok(None),
            headers::NamespaceUid::Forbidden => {
                if !self.lacks_namespace.swap(true, Ordering::Relaxed) {
                    warn!(
                        cluster = self.cluster,
                        endpoint = %self.endpoint.address(),
                        "whether the endpoints belong to one cluster is not checked: {} may not get the namespace \
                         kube-system; apply deploy/rbac.yaml with it in the subjects",
                        self.gateway_user()
                    );
                }
                Ok(None)
            }
        }
    }

    /// The user that reads the header names, if known; the advice on a failure names it.
    fn reader(&self) -> Option<String> {
        match self.backend.identity() {
            IdentityMode::RequestHeader => Some(GATEWAY.to_owned()),
            IdentityMode::Impersonate => self.endpoint.gateway_certificate().map(|(name, _)| name.to_owned()),
        }
    }
}
