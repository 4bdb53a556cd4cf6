//! Compares the gateway's controllers for certificate requests and bootstrap tokens with kube-controller-manager: every
//! case runs on two clusters, and the outcomes must be equal.
//!
//! ```text
//! cargo test --test signers -- gateway     our controllers, in a gateway in front of an API server
//! cargo test --test signers -- proof       tests of the harness: a second kube-controller-manager differs in no case,
//!                                          a cluster without controllers differs in every group
//! cargo test --test signers -- ::keys::    one group
//! ```
//!
//! The servers are built on first use (`tests/go/README.md`). Modules: `case.rs` has the steps and the expected outcome
//! of a certificate request, `cases/` the cases, `certificate.rs` the comparison of certificates, `clusters.rs` the
//! running servers, `tokens.rs` and `cluster_info.rs` the cases of bootstrap tokens, `kubelet.rs` a kubelet's TLS
//! bootstrapping, `cleaner.rs` the comparison with upstream's cleaner, `replicas.rs` replicas that are killed while
//! they sign, `pod_certificates.rs` the certificates of pods, which kube-controller-manager does not sign, `trust_bundles.rs` the
//! published CAs, `volumes.rs` a kubelet with both, and `pages.rs` the transcripts of the documentation.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test program: a panic is a failed test, and its messages go to the terminal"
)]

mod authorities;
mod case;
mod cases;
mod certificate;
mod cleaner;
mod client;
mod cluster_info;
mod clusters;
mod kubelet;
mod pages;
mod pod_certificates;
mod replicas;
mod run;
mod scenario;
mod tokens;
mod trust_bundles;
mod volumes;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::Arguments;
use testkit::real::{Source, skip_if_absent};

use clusters::SharedClusters;

/// The path of the binary.
const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The tests mostly wait for servers, so more of them than cores can run.
    arguments.test_threads.get_or_insert(16);
    let source = Source::find();
    let absent = source.absent().or_else(|| source.without_controllers());
    let plan = run::Plan::new(&arguments);
    let clusters = Arc::new(SharedClusters::new(source, plan.sides()));
    let trials = match skip_if_absent("signers", absent, plan.trials(&clusters)) {
        Ok(trials) => trials,
        Err(code) => return code,
    };
    let (conclusion, keep_logs) = testkit::real::run(&arguments, trials);
    if let Some(clusters) = Arc::into_inner(clusters) {
        clusters.finish(keep_logs);
    }
    conclusion.exit_code()
}
