//! The shares of namespaces in the indexes of the signers. The certificates of one namespace must not leave the others without any.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use portcullis_system::sync::lock;
use portcullis_tools::certs::signer_records::{IndexSizes, SignerRecords};
use prometheus::IntGaugeVec;
use tracing::error;

use super::{CONTROLLER, ControllerContext, PodSignerSettings};

/// The indexes of a cluster's signers, by their paths.
#[derive(Debug)]
pub(super) struct IndexShares {
    cluster: Arc<str>,
    gauge: IntGaugeVec,
    indexes: HashMap<PathBuf, SharedIndex>,
}

#[derive(Debug)]
struct SharedIndex {
    /// One of its signers, for the metric.
    signer: String,
    /// Measured at the start and every hour, and counted meanwhile.
    sizes: Mutex<IndexSizes>,
}

impl IndexShares {
    pub(super) fn new(context: &ControllerContext) -> Self {
        let signers = context.settings.pod_signers.iter();
        let shared = |signer: &PodSignerSettings| {
            let name = signer.name.as_str().to_owned();
            let index = signer.records.as_ref()?.index.clone();
            Some((index, SharedIndex { signer: name, sizes: Mutex::default() }))
        };
        Self {
            cluster: Arc::clone(&context.cluster),
            gauge: context.metrics.controllers.index_size.clone(),
            // Of several signers of an index the first.
            indexes: signers.rev().filter_map(shared).collect(),
        }
    }

    /// Replaces what was counted of an index.
    pub(super) fn measured(&self, index: &Path, sizes: IndexSizes) {
        self.change(index, |known| *known = sizes);
    }

    /// Counts a line.
    pub(super) fn add(&self, index: &Path, namespace: &str, size: u64) {
        self.change(index, |sizes| sizes.add(namespace, size));
    }

    fn change(&self, index: &Path, change: impl FnOnce(&mut IndexSizes)) {
        let Some(SharedIndex { signer, sizes }) = self.indexes.get(index) else { return };
        let mut sizes = lock(sizes);
        change(&mut sizes);
        let total = i64::try_from(sizes.total()).unwrap_or(i64::MAX);
        self.gauge.with_label_values(&[&*self.cluster, signer]).set(total);
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
        let is_admitted = self.indexes.get(index).is_none_or(|index| lock(&index.sizes).admits(namespace));
        let cause = format!("{} share of {namespace} in {}", CONTROLLER.alias(), index.display());
        if is_admitted {
            context.problems.ends(&cause);
        } else if context.problems.begins(&cause) {
            let (cluster, signer) = (&*context.cluster, signer.name.as_str());
            error!(
                cluster,
                signer,
                namespace,
                index = %index.display(),
                "no certificate is issued to pods of the namespace, will retry: its certificates take as much of the index as is \
                 free; they leave it a day after their end"
            );
        }
        is_admitted
    }
}

impl Drop for IndexShares {
    fn drop(&mut self) {
        for SharedIndex { signer, .. } in self.indexes.values() {
            self.gauge.remove_label_values(&[&*self.cluster, signer]).ok();
        }
    }
}
