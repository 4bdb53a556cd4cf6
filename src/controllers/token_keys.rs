//! Signing keys in PKCS#11 tokens: shows whether they can be used, and looks for tokens that are absent. Runs on every
//! replica: readiness shows the state, too.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use portcullis_pki::issuance::authority::CertificateAuthority;
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::settings::ControllerSettings;
use crate::metrics::Metrics;

/// How often the state is shown, and an absent token looked for.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Whether the key of each signer could be used when it was last tried; without signers whose key is in memory.
pub(crate) fn states(settings: &ControllerSettings) -> BTreeMap<&str, Result<(), String>> {
    let mut states = BTreeMap::new();
    for (signer, authority) in authorities(settings) {
        if let Some(state) = authority.token_problem() {
            // A signer of certificate requests and one of pods may have one name.
            let known: &mut Result<(), String> = states.entry(signer).or_insert(Ok(()));
            *known = std::mem::replace(known, Ok(())).and(state);
        }
    }
    states
}

fn authorities(settings: &ControllerSettings) -> impl Iterator<Item = (&str, &Arc<CertificateAuthority>)> {
    let of_pods = settings.pod_signers.iter().map(|signer| (signer.name.as_str(), &signer.authority));
    settings.signers.iter().map(|signer| (signer.name(), &signer.authority)).chain(of_pods)
}

/// Shows the states of a cluster's keys until it is dropped. Looks for absent tokens on blocking threads of `workers`.
pub(super) async fn follow(
    cluster: &str,
    settings: &Arc<ControllerSettings>,
    metrics: &Metrics,
    workers: &Handle,
) -> Infallible {
    let mut gauges = KeyGauges { cluster, metrics, shown: BTreeMap::new() };
    if states(settings).is_empty() {
        return std::future::pending().await;
    }
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        gauges.show(states(settings));
        if gauges.shown.values().all(|works| *works) {
            continue;
        }
        let of = Arc::clone(settings);
        // An error is a panic, or the end of the runtime.
        workers
            .spawn_blocking(move || authorities(&of).for_each(|(_, authority)| authority.look_again()))
            .await
            .ok();
        gauges.show(states(settings));
    }
}

/// The gauges of some signers.
struct KeyGauges<'a> {
    cluster: &'a str,
    metrics: &'a Metrics,
    shown: BTreeMap<String, bool>,
}

impl KeyGauges<'_> {
    fn show(&mut self, states: BTreeMap<&str, Result<(), String>>) {
        for (signer, state) in states {
            let labels = [self.cluster, signer];
            self.metrics.controllers.token_keys.with_label_values(&labels).set(i64::from(state.is_ok()));
            let before = self.shown.insert(signer.to_owned(), state.is_ok());
            let cluster = self.cluster;
            match (before, state) {
                (Some(true) | None, Err(problem)) => {
                    warn!(
                        cluster,
                        signer, "nothing is signed until the token of the CA key is back: {problem}"
                    );
                }
                (Some(false), Ok(())) => info!(cluster, signer, "the token of the CA key is back"),
                _ => {}
            }
        }
    }
}

impl Drop for KeyGauges<'_> {
    fn drop(&mut self) {
        for signer in self.shown.keys() {
            let labels = [self.cluster, signer.as_str()];
            self.metrics.controllers.token_keys.remove_label_values(&labels).ok();
        }
    }
}
