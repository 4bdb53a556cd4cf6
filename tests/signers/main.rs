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
//! request and what the reference must make of it, `cases/` the cases, `certificate.rs` what is compared of a certificate, `bed.rs`
//! the running servers, `tokens.rs` and `cluster_info.rs` the cases of bootstrap tokens, `kubelet.rs` a kubelet from its token to the
//! renewal of its certificate, `cleaner.rs` upstream's cleaner beside ours, `replicas.rs` gateways that are killed meanwhile,
//! `pages.rs` the transcripts of the documentation.
#![allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::print_stderr,
    clippy::large_futures,
    clippy::needless_pass_by_value,
    reason = "a test program: a panic is a failed test, and its messages go to the terminal"
)]

mod authorities;
mod bed;
#[path = "../support/build.rs"]
mod build;
mod case;
mod cases;
mod certificate;
mod cleaner;
mod client;
mod cluster_info;
#[path = "../support/csr.rs"]
mod csr;
mod kubelet;
mod pages;
#[path = "../support/pki.rs"]
mod pki;
mod replicas;
mod run;
mod scenario;
#[path = "../support/servers.rs"]
mod servers;
mod tokens;
#[path = "../support/transcript.rs"]
mod transcript;
#[path = "../support/two_requests.rs"]
mod two_requests;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The cases wait for servers; they do not compute.
    arguments.test_threads.get_or_insert(16);
    let source = build::look();
    let required = std::env::var("PORTCULLIS_REQUIRE_TWIN").is_ok_and(|value| value == "1");
    let absent = match &source {
        build::Source::Absent(why) => Some(why.clone()),
        source if !source.has_controllers() => {
            Some("there is no kube-controller-manager among KUBEBUILDER_ASSETS".to_owned())
        }
        _ => None,
    };
    let plan = run::Plan::new(&arguments);
    let lab = Arc::new(bed::Lab::new(source, plan.sides()));
    let mut trials = plan.trials(&lab);
    if let Some(why) = absent {
        if required {
            eprintln!("signers: PORTCULLIS_REQUIRE_TWIN is set, but {why}");
            return ExitCode::FAILURE;
        }
        eprintln!("\nsigners: SKIPPED, all {} tests: {why}\n", trials.len());
        trials = trials.into_iter().map(|trial: Trial| trial.with_ignored_flag(true)).collect();
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let keep = conclusion.has_failed() || std::env::var_os("PORTCULLIS_KEEP_TWIN").is_some();
    if let Some(lab) = Arc::into_inner(lab) {
        lab.finish(keep);
    }
    conclusion.exit_code()
}
