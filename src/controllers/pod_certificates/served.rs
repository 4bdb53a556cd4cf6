//! Which version of the API serves the requests: v1 where it is served, else v1beta1.

use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::request::RESOURCE;
use crate::controllers::ControllerContext;
use crate::controllers::api_version::ApiVersion;
use crate::controllers::problems::error_message;
use crate::controllers::settings::ControllerName;

/// The interval between attempts while no version serves them.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
const CONTROLLER: ControllerName = ControllerName::PodCertificateSigning;
/// The cause of the problem.
const CAUSE: &str = "podcertificaterequest-signing versions";

/// The version that serves the requests; waits until there is one.
pub(super) async fn version(context: &ControllerContext) -> ApiVersion {
    let (cluster, controller) = (&*context.cluster, CONTROLLER.alias());
    let failing = FailingGauges(context);
    loop {
        let problem = match ApiVersion::serving(context, RESOURCE).await {
            Ok(Some(version)) => {
                info!(cluster, controller, path = version.path(), "the API server serves requests of pods");
                context.problems.ends(CAUSE);
                return version;
            }
            Ok(None) => "it has no podcertificaterequests in certificates.k8s.io v1 or v1beta1".to_owned(),
            Err(error) => error_message(&error),
        };
        failing.show();
        if context.problems.begins(CAUSE) {
            warn!(
                cluster,
                controller,
                "the API server serves no requests of pods, the controller waits: {problem}; Kubernetes 1.37 serves \
                 them by default, 1.35 and 1.36 with the feature gate PodCertificateRequest and \
                 --runtime-config=certificates.k8s.io/v1beta1/podcertificaterequests=true"
            );
        } else {
            debug!(cluster, controller, "the API server serves no requests of pods: {problem}");
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The gauges of watches that fail, while no version serves the requests.
struct FailingGauges<'a>(&'a ControllerContext);

impl FailingGauges<'_> {
    fn show(&self) {
        self.of_each(|labels| self.0.metrics.controllers.watch_failing.with_label_values(&labels).set(1));
    }

    fn of_each(&self, act: impl Fn([&str; 3])) {
        for signer in &self.0.settings.pod_signers {
            act([&*self.0.cluster, CONTROLLER.alias(), signer.name.as_str()]);
        }
    }
}

impl Drop for FailingGauges<'_> {
    fn drop(&mut self) {
        self.of_each(|labels| {
            self.0.metrics.controllers.watch_failing.remove_label_values(&labels).ok();
        });
    }
}
