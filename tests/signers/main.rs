//! The controllers of certificate requests and bootstrap tokens beside kube-controller-manager: every case is played on two
//! clusters, and what becomes of it must be equal.
//!
//! ```text
//! cargo test --test signers -- gateway     our controllers, in a gateway in front of an API server
//! cargo test --test signers -- proof       the harness proves itself: a second kube-controller-manager shows no difference
//!                                          in any case, a cluster without controllers shows one in every group
//! cargo test --test signers -- ::keys::    one group
//! ```
//!
//! The servers are built on first use (`tests/backend/README.md`). How it fits together: `case.rs` is what happens to a certificate
//! request and what the reference must make of it, `cases/` the cases, `certificate.rs` what is compared of a certificate, `clusters.rs`
//! the running servers, `tokens.rs` and `cluster_info.rs` the cases of bootstrap tokens, `kubelet.rs` a kubelet from its token to the
//! renewal of its certificate, `cleaner.rs` upstream's cleaner beside ours, `replicas.rs` gateways that are killed meanwhile,
//! `pages.rs` the transcripts of the documentation.
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
mod replicas;
mod run;
mod scenario;
mod tokens;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::Arguments;
use testkit::real::{Source, skip_if_absent};

use clusters::SharedClusters;

/// The path of the binary.
const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The cases wait for servers; they do not compute.
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
