//! The shares of namespaces in the records of the signers, which are bounded. The certificates of one namespace must not leave the
//! others without any.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use portcullis_system::sync::lock;
use portcullis_tools::certs::signer_records::{RecordSizes, SignerRecord, SignerRecords};
use prometheus::IntGaugeVec;
use tracing::error;

use super::{CONTROLLER, ControllerContext, PodSignerSettings};

/// The records of a cluster's signers, by the paths of the indexes.
#[derive(Debug)]
pub(super) struct RecordShares {
    cluster: Arc<str>,
    gauge: IntGaugeVec,
    indexes: HashMap<PathBuf, SharedRecords>,
}

#[derive(Debug)]
struct SharedRecords {
    /// One of its signers, for the metric.
    signer: String,
    /// Measured at the start and every hour, and counted meanwhile.
    sizes: Mutex<RecordSizes>,
}

impl RecordShares {
    pub(super) fn new(context: &ControllerContext) -> Self {
        let signers = context.settings.pod_signers.iter();
        let shared = |signer: &PodSignerSettings| {
            let name = signer.name.as_str().to_owned();
            let index = signer.records.as_ref()?.index.clone();
            Some((index, SharedRecords { signer: name, sizes: Mutex::default() }))
        };
        Self {
            cluster: Arc::clone(&context.cluster),
            gauge: context.metrics.controllers.record_size.clone(),
            // Of several signers of an index the first.
            indexes: signers.rev().filter_map(shared).collect(),
        }
    }

    /// Replaces what was counted.
    pub(super) fn measured(&self, index: &Path, sizes: RecordSizes) {
        self.change(index, |known| *known = sizes);
    }

    /// Counts a line of an index.
    pub(super) fn add(&self, index: &Path, namespace: &str, size: u64) {
        self.change(index, |sizes| sizes.add(namespace, size));
    }

    fn change(&self, index: &Path, change: impl FnOnce(&mut RecordSizes)) {
        let Some(SharedRecords { signer, sizes }) = self.indexes.get(index) else { return };
        let mut sizes = lock(sizes);
        change(&mut sizes);
        for record in SignerRecord::ALL {
            let total = i64::try_from(sizes.total(record)).unwrap_or(i64::MAX);
            self.gauge.with_label_values(&[&*self.cluster, signer, record.as_str()]).set(total);
        }
    }

    /// Whether the certificate of a pod of this namespace may be recorded. Logs a refusal once.
    // threat: pod-index-flood
    pub(super) fn admits(
        &self,
        context: &ControllerContext,
        signer: &PodSignerSettings,
        namespace: &str,
    ) -> bool {
        let Some(SignerRecords { index, .. }) = &signer.records else { return true };
        let refused = self.indexes.get(index).and_then(|shared| lock(&shared.sizes).refuses(namespace));
        let cause = format!("{} share of {namespace} in {}", CONTROLLER.alias(), index.display());
        let Some(record) = refused else {
            context.problems.ends(&cause);
            return true;
        };
        if context.problems.begins(&cause) {
            let (cluster, signer, record) = (&*context.cluster, signer.name.as_str(), record.as_str());
            error!(
                cluster,
                signer,
                namespace,
                record,
                index = %index.display(),
                "no certificate is issued to pods of the namespace, will retry: its certificates take as much of a record as is free; \
                 they leave it a day after their end"
            );
        }
        false
    }
}

impl Drop for RecordShares {
    fn drop(&mut self) {
        for SharedRecords { signer, .. } in self.indexes.values() {
            for record in SignerRecord::ALL {
                self.gauge.remove_label_values(&[&*self.cluster, signer, record.as_str()]).ok();
            }
        }
    }
}
