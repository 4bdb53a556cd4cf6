//! Holds back the revocation of most certificates at once. A gateway with the kubeconfig of another cluster finds none of its pods,
//! and what is in a CRL stays there. The operator decides: deleting the file `NAME.held` lets the revocations go on.

use std::sync::Arc;
use std::time::Duration;

use portcullis_tools::certs::signer_records::{SignerRecords, SignerRecordsError};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{error, info};

use super::super::{CONTROLLER, ControllerContext};

/// From so many pods with certificates on, more than half of which are missing in a list.
const MIN_PODS: usize = 100;
/// How often the file is looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// How long the file system may take. The pods of all signers wait for it.
const FILE_TIMEOUT: Duration = Duration::from_secs(10);

/// The brake of a cluster. Its file is beside the first index with a CRL.
pub(super) struct Brake<'a> {
    records: &'a SignerRecords,
    state: BrakeState,
    /// Whether a process before may have left the file.
    may_be_left: bool,
    /// Work on the file: one thread, also of a file system that does not answer.
    working: Arc<Semaphore>,
    /// When the file is looked for.
    look_at: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BrakeState {
    Open,
    /// The file could not be created yet; its absence means nothing.
    Unwritten,
    Held,
    /// The operator has deleted the file, and the missing pods are not all confirmed yet.
    Released,
}

impl<'a> Brake<'a> {
    pub(super) fn new(records: &'a SignerRecords) -> Self {
        Self {
            records,
            state: BrakeState::Open,
            may_be_left: true,
            working: Arc::new(Semaphore::new(1)),
            look_at: Instant::now(),
        }
    }

    /// Whether the pods that a list lacks must not be revoked now.
    pub(super) async fn holds(&mut self, context: &ControllerContext, known: usize, missing: usize) -> bool {
        let (cluster, controller) = (&*context.cluster, CONTROLLER.alias());
        if known < MIN_PODS || missing.saturating_mul(2) <= known {
            if self.may_be_left || self.state != BrakeState::Open {
                let released = self.on_file(SignerRecords::release).await;
                self.may_be_left = released.is_err();
                if let Err(problem) = released {
                    error!(cluster, controller, "{problem}");
                }
            }
            self.state = BrakeState::Open;
            return false;
        }
        if self.state == BrakeState::Released || self.state == BrakeState::Held && self.is_file_gone().await {
            info!(cluster, controller, known, missing, "the certificates of missing pods are revoked");
            self.state = BrakeState::Released;
            return false;
        }
        let reason =
            format!("{missing} of {known} pods with certificates are missing in cluster {cluster}\n");
        let written = self.on_file(move |records| records.hold(&reason)).await;
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
            Ok(()) => BrakeState::Held,
            Err(problem) => {
                error!(cluster, controller, "cannot write the file that holds back revocations: {problem}");
                BrakeState::Unwritten
            }
        };
        true
    }

    /// All missing pods of a list were looked for.
    pub(super) fn confirmed(&mut self) {
        if self.state == BrakeState::Released {
            self.state = BrakeState::Open;
        }
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
        self.on_file(SignerRecords::is_held).await == Ok(false)
    }

    async fn on_file<T: Send + 'static>(
        &self,
        work: impl FnOnce(&SignerRecords) -> Result<T, SignerRecordsError> + Send + 'static,
    ) -> Result<T, SignerRecordsError> {
        let file = self.records.hold_file();
        let silent =
            || SignerRecordsError::of(&format!("{}: the file system does not answer", file.display()));
        let permit = Arc::clone(&self.working).try_acquire_owned().map_err(|_| silent())?;
        let records = self.records.clone();
        let working = spawn_blocking(move || {
            let done = work(&records);
            drop(permit);
            done
        });
        match timeout(FILE_TIMEOUT, working).await {
            Ok(done) => done.unwrap_or_else(|error| Err(SignerRecordsError::of(&error))),
            Err(_) => Err(silent()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_system_that_does_not_answer_takes_one_thread_and_a_bounded_wait() {
        let records = SignerRecords { index: "/nowhere/pods.index.jsonl".into(), crl: None };
        let brake = Brake::new(&records);
        let (answer, answered) = std::sync::mpsc::channel::<()>();
        let hanging = brake.on_file(move |_| {
            answered.recv().ok();
            Ok(())
        });
        let waiting = async {
            tokio::task::yield_now().await;
            tokio::time::advance(FILE_TIMEOUT + Duration::from_secs(1)).await;
        };
        let (first, ()) = tokio::join!(hanging, waiting);
        assert!(first.unwrap_err().to_string().ends_with("pods.held: the file system does not answer"));
        let second = brake.on_file(|_| Ok(())).await;
        assert!(second.is_err() && !brake.is_file_gone().await, "without another thread");
        drop(answer);
        while brake.on_file(|_| Ok(())).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}
