//! Holds back the revocation of most certificates at once. A gateway with the kubeconfig of another cluster finds none of its pods,
//! and what is in a CRL stays there. The operator decides: deleting the file `NAME.held` lets the revocations go on.

use std::time::Duration;

use portcullis_tools::certs::signer_records::SignerRecords;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info};

use super::super::{CONTROLLER, ControllerContext};

/// From so many pods with certificates on, more than half of which are missing in a list.
const MIN_PODS: usize = 100;
/// How often the file is looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The brake of a cluster. Its file is beside the first index with a CRL.
pub(super) struct Brake<'a> {
    records: &'a SignerRecords,
    state: BrakeState,
    /// When the file is looked for.
    look_at: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BrakeState {
    Open,
    /// The file could not be created yet; its absence means nothing.
    Unwritten,
    Held,
    /// The operator has deleted the file.
    Released,
}

impl<'a> Brake<'a> {
    pub(super) fn new(records: &'a SignerRecords) -> Self {
        Self { records, state: BrakeState::Open, look_at: Instant::now() }
    }

    /// Whether the pods that a list lacks must not be revoked now.
    pub(super) async fn holds(&mut self, context: &ControllerContext, known: usize, missing: usize) -> bool {
        let (cluster, controller) = (&*context.cluster, CONTROLLER.alias());
        if known < MIN_PODS || missing.saturating_mul(2) <= known {
            // Of this process, or of one before.
            let records = self.records.clone();
            if let Ok(Err(problem)) = spawn_blocking(move || records.release()).await {
                error!(cluster, controller, "{problem}");
            }
            self.state = BrakeState::Open;
            return false;
        }
        if self.state == BrakeState::Released || self.state == BrakeState::Held && self.is_file_gone().await {
            info!(cluster, controller, known, missing, "the certificates of missing pods are revoked");
            self.state = BrakeState::Open;
            return false;
        }
        let reason =
            format!("{missing} of {known} pods with certificates are missing in cluster {cluster}\n");
        let records = self.records.clone();
        let written = spawn_blocking(move || records.hold(&reason)).await;
        if self.state == BrakeState::Open {
            let file = self.records.hold_file();
            error!(
                cluster,
                controller,
                known,
                missing,
                "most pods with certificates are missing: none of their certificates is revoked until the file {} is deleted; \
                 check that the gateway reaches the right cluster",
                file.display()
            );
        }
        self.look_at = Instant::now() + LOOK_INTERVAL;
        self.state = match written {
            Ok(Ok(())) => BrakeState::Held,
            Ok(Err(problem)) => {
                error!(cluster, controller, "cannot write the file that holds back revocations: {problem}");
                BrakeState::Unwritten
            }
            Err(_) => BrakeState::Unwritten,
        };
        true
    }

    /// Returns once a new list may release what is held back. Cancel safe.
    pub(super) async fn released(&mut self) {
        loop {
            if matches!(self.state, BrakeState::Open | BrakeState::Released) {
                return std::future::pending().await;
            }
            sleep_until(self.look_at).await;
            let is_gone = self.state == BrakeState::Held && self.is_file_gone().await;
            self.look_at = Instant::now() + LOOK_INTERVAL;
            if is_gone {
                self.state = BrakeState::Released;
            }
            if is_gone || self.state == BrakeState::Unwritten {
                return;
            }
        }
    }

    async fn is_file_gone(&self) -> bool {
        let records = self.records.clone();
        matches!(spawn_blocking(move || records.is_held()).await, Ok(Ok(false)))
    }
}
