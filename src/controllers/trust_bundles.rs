//! The controller that publishes the trust anchors of the gateway's signers as `ClusterTrustBundle` objects.
//!
//! One bundle for each signer, `SIGNER:portcullis`. What it contains, and until when, is decided in `plan`. The controller
//! never writes or deletes an object that it has not made, and every write carries the version of the read.

mod object;
mod plan;

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{self, select};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::{Request, Status};
use portcullis_go::url::path_segment;
use tokio::time::sleep;
use tracing::{debug, error, info};

use super::ControllerContext;
use super::api_version::ApiVersion;
use super::bounded_store::BoundedStore;
use super::name::ControllerName;
use super::queue::{AttemptOutcome, RetryPolicy, WorkItem};
use super::worker;
use crate::backend::bounded_client::send;
use crate::backend::follow::FollowedResource;
use object::{GROUP, MANAGED_BY, PLURAL, TrustBundle, bundle_name};
use plan::{BundlePlan, plan};
pub(crate) use plan::{PublishedSigner, TrustAnchor};

const NAME: ControllerName = ControllerName::TrustBundlePublishing;

/// The interval between checks of the version that the API server serves: it may be upgraded.
const VERSION_INTERVAL: Duration = Duration::from_mins(10);
/// The same while it serves none, or does not answer.
const VERSION_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// The longest interval between two checks of a bundle.
const CHECK_INTERVAL: Duration = Duration::from_hours(1);
/// The publisher of gateways without leader election: the default lease.
const DEFAULT_PUBLISHER: &str = "kube-system/portcullis-controllers";

/// The name of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct BundleName(String);

impl fmt::Display for BundleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl WorkItem for BundleName {}

/// Runs the controller.
pub(crate) async fn run(context: ControllerContext) -> Infallible {
    loop {
        let Some(version) = served_version(&context).await else {
            sleep(VERSION_RETRY_INTERVAL).await;
            continue;
        };
        let publisher = BundlePublisher::new(&context, version);
        tokio::select! {
            never = publisher.run() => match never {},
            () = until_not_best(&context, version) => {
                info!(cluster = &*context.cluster, "the API server serves another version of {PLURAL}");
            }
        }
    }
}

/// The best version that the API server serves; `None`, and a line in the log, if there is none or it does not answer.
async fn served_version(context: &ControllerContext) -> Option<ApiVersion> {
    let cluster = &*context.cluster;
    let cause = "clustertrustbundle-publishing finds the API version";
    let problem = match ApiVersion::serving(context, PLURAL).await {
        Ok(Some(version)) => {
            context.problems.ends(cause);
            return Some(version);
        }
        Ok(None) => format!(
            "the API server serves no {PLURAL}: they need Kubernetes 1.37, or before that \
             --feature-gates=ClusterTrustBundle=true --runtime-config={GROUP}/v1beta1/{PLURAL}=true"
        ),
        Err(error) => super::problems::error_message(&error),
    };
    if context.problems.begins(cause) {
        error!(cluster, controller = NAME.alias(), "cannot publish trust bundles, will retry: {problem}");
    } else {
        debug!(cluster, controller = NAME.alias(), "cannot publish trust bundles: {problem}");
    }
    None
}

/// Returns when the API server serves another version than this one, such as after an upgrade.
async fn until_not_best(context: &ControllerContext, version: ApiVersion) {
    loop {
        sleep(VERSION_INTERVAL).await;
        if ApiVersion::serving(context, PLURAL).await.is_ok_and(|best| best != Some(version)) {
            return;
        }
    }
}

/// Publishes bundles in one version of the API.
struct BundlePublisher<'a> {
    context: &'a ControllerContext,
    version: ApiVersion,
    /// The value of the annotation.
    name: String,
}

impl<'a> BundlePublisher<'a> {
    fn new(context: &'a ControllerContext, version: ApiVersion) -> Self {
        let election = context.settings.election.as_ref();
        let name = election.map(|election| format!("{}/{}", election.namespace, election.name));
        Self { context, version, name: name.unwrap_or_else(|| DEFAULT_PUBLISHER.to_owned()) }
    }

    fn path(&self) -> String {
        self.version.collection(PLURAL)
    }

    async fn run(&self) -> Infallible {
        let (label, value) = MANAGED_BY;
        let followed = FollowedResource {
            path: self.path(),
            label_selector: Some(format!("{label}={value}")),
            ..FollowedResource::default()
        };
        let (bundles, changes) = worker::watch_path::<TrustBundle>(self.context, PLURAL, followed, |_| {});
        let signers = &self.context.settings.published;
        let configured = signers.iter().map(|signer| BundleName(bundle_name(&signer.name)));
        // Before the first list is complete, a bundle with former anchors would look as if there were none.
        let listed = stream::once(bundles.wait_until_ready()).flat_map(|_| stream::iter(configured.clone()));
        let changes = select(listed, changes.map(|key| BundleName(key.name)));
        let handle = async |name| self.publish(&bundles, name).await;
        worker::work(self.context, NAME, RetryPolicy::CERTIFICATES, changes, &AtomicU64::new(0), handle).await
    }

    async fn publish(
        &self,
        bundles: &BoundedStore<TrustBundle>,
        BundleName(name): BundleName,
    ) -> AttemptOutcome {
        let signers = &self.context.settings.published;
        let signer = signers.iter().find(|signer| bundle_name(&signer.name) == name);
        let existing = bundles.find(|bundle| bundle.metadata.name.as_ref() == Some(&name));
        let (planned, next) = plan(existing.as_deref(), signer, &self.name, self.context.clock.now());
        let cluster = &*self.context.cluster;
        let cause = format!("{} writes {name}", NAME.alias());
        let written = match planned {
            BundlePlan::Keep => Ok(()),
            BundlePlan::Create(bundle) => self.create(&bundle).await,
            BundlePlan::Replace(bundle) => self.replace(&name, &bundle).await,
            BundlePlan::Delete => match &existing {
                Some(bundle) => self.delete(&name, bundle).await,
                None => Ok(()),
            },
            // A bundle of another publisher is no problem unless a signer of this gateway needs its name.
            BundlePlan::NotOurs(_) if signer.is_none() => return AttemptOutcome::Done,
            BundlePlan::NotOurs(why) => Err(WriteError::NotOurs(why)),
            BundlePlan::TooLarge(bytes) => Err(WriteError::TooLarge(bytes)),
        };
        match written {
            Ok(()) => {
                self.context.problems.ends(&cause);
                let next = next.map_or(CHECK_INTERVAL, |next| next.min(CHECK_INTERVAL));
                // A bundle that is gone has nothing left to check.
                if signer.is_none() && existing.is_none() {
                    AttemptOutcome::Done
                } else {
                    AttemptOutcome::After(next)
                }
            }
            Err(WriteError::Conflict) => {
                let labels = [cluster, NAME.alias()];
                self.context.metrics.controllers.conflicts.with_label_values(&labels).inc();
                AttemptOutcome::Retry
            }
            Err(problem) => {
                let (controller, bundle) = (NAME.alias(), &*name);
                if self.context.problems.begins(&cause) {
                    error!(
                        cluster,
                        controller, bundle, "cannot publish the trust bundle, will retry: {problem}"
                    );
                } else {
                    debug!(cluster, controller, bundle, "cannot publish the trust bundle: {problem}");
                }
                AttemptOutcome::Retry
            }
        }
    }

    async fn create(&self, bundle: &TrustBundle) -> Result<(), WriteError> {
        let body = self.body(bundle)?;
        let request = Request::new(self.path()).create(&PostParams::default(), body);
        match self.write(request).await {
            // The label selector hides it, or the store has no room for it.
            Err(WriteError::Conflict) => {
                Err(WriteError::NotOurs("it exists without the gateway's label".to_owned()))
            }
            Ok(()) => {
                self.log("trust bundle created", bundle);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn replace(&self, name: &str, bundle: &TrustBundle) -> Result<(), WriteError> {
        let body = self.body(bundle)?;
        let at = path_segment(name).map_err(|problem| WriteError::NotOurs(problem.to_string()))?;
        self.write(Request::new(self.path()).replace(&at, &PostParams::default(), body)).await?;
        self.log("trust bundle changed", bundle);
        Ok(())
    }

    async fn delete(&self, name: &str, bundle: &TrustBundle) -> Result<(), WriteError> {
        let at = path_segment(name).map_err(|problem| WriteError::NotOurs(problem.to_string()))?;
        let preconditions = Preconditions {
            uid: bundle.metadata.uid.clone(),
            resource_version: bundle.metadata.resource_version.clone(),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.write(Request::new(self.path()).delete(&at, &params)).await?;
        self.log("trust bundle deleted: its signer is not configured, and no certificate needs it", bundle);
        Ok(())
    }

    fn body(&self, bundle: &TrustBundle) -> Result<Vec<u8>, WriteError> {
        serde_json::to_vec(&bundle.body(self.version.name()))
            .map_err(|error| kube::Error::SerdeError(error).into())
    }

    async fn write(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<(), WriteError> {
        let writing = async { send(&self.context.client, request.map_err(kube::Error::BuildRequest)?).await };
        self.context.writes.track_future(writing).await.map_err(WriteError::from)
    }

    fn log(&self, message: &str, bundle: &TrustBundle) {
        let (cluster, signer) = (&*self.context.cluster, &*bundle.spec.signer_name);
        let name = bundle.metadata.name.as_deref().unwrap_or_default();
        let anchors = bundle.spec.trust_bundle.matches("-----BEGIN ").count();
        info!(cluster, bundle = name, signer, anchors, "{message}");
    }
}

/// Why a bundle is not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("the API server has a newer version")]
    Conflict,
    #[error(
        "the object is not this gateway's, and is not changed: {0}; delete the object, or see \
         docs/trust-bundles.md#objects-of-others"
    )]
    NotOurs(String),
    #[error(
        "the certificates that are still needed take {0} bytes, more than the API server accepts: nothing is changed; \
         rotate less often, or give certificates a shorter lifetime"
    )]
    TooLarge(usize),
    #[error("{}{}", .0.message, missing_right(.0))]
    Refused(Box<Status>),
    #[error("{0}")]
    Other(kube::Error),
}

impl From<kube::Error> for WriteError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 409 => Self::Conflict,
            kube::Error::Api(status) => Self::Refused(status),
            error => Self::Other(error),
        }
    }
}

/// The RBAC rule for the permission that the API server reports as missing.
// kubernetes: plugin/pkg/admission/certificates/ctbattest/admission.go
fn missing_right(status: &Status) -> String {
    if status.code != 403 {
        return String::new();
    }
    let rule = match status.message.split_once("not permitted to attest for signerName ") {
        Some((_, signer)) => {
            let signer = signer.trim_matches('"');
            format!("resources: [signers], resourceNames: [{signer}], verbs: [attest]")
        }
        None => format!("resources: [{PLURAL}], verbs: [list, watch, create, update, delete]"),
    };
    format!("; add to the gateway's role (deploy/rbac-controllers.yaml): {{apiGroups: [{GROUP}], {rule}}}")
}

#[cfg(test)]
mod tests;
